// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// host is an authorizer that allows the deletion of the nodes in allowed, and counts the access
// reviews.
type host struct {
	mu      sync.Mutex
	allowed map[string]bool
	denied  map[string]bool
	fails   map[string]error
	hangs   map[string]bool
	asked   []string
	// maintains has the nodes and pools that bob may maintain: nodes/NAME, where an empty name
	// stands for all nodes, and nodepools/NAME. The map fails has the same keys. maintainAsked are
	// the access reviews about this verb.
	maintains     map[string]bool
	maintainAsked []string
}

var errDown = errors.New("the webhook is down")

func (h *host) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "maintain" {
		return h.maintain(a)
	}
	h.mu.Lock()
	h.asked = append(h.asked, a.GetName())
	name := a.GetName()
	allowed, denied, err, hangs := h.allowed[name], h.denied[name], h.fails[name], h.hangs[name]
	if err == nil {
		err = h.fails["*"]
	}
	h.mu.Unlock()
	switch {
	case a.GetVerb() != "delete" || a.GetResource() != "nodes" || a.GetAPIGroup() != "" || a.GetUser().GetName() != "bob":
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("asked for the wrong thing: %v", a)
	case hangs:
		<-ctx.Done()
		return authorizer.DecisionNoOpinion, "", ctx.Err()
	case err != nil:
		return authorizer.DecisionNoOpinion, "", err
	case allowed && !denied:
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// take returns the access reviews since the last call, sorted.
func (h *host) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	asked := slices.Sorted(slices.Values(h.asked))
	h.asked = nil
	return asked
}

// count returns the number of access reviews since the last calls of take and takeMaintain.
func (h *host) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.asked) + len(h.maintainAsked)
}

func (h *host) set(change func(*host)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

func may(names ...string) *host {
	h := &host{
		allowed: map[string]bool{}, denied: map[string]bool{}, fails: map[string]error{}, hangs: map[string]bool{},
		maintains: map[string]bool{},
	}
	for _, name := range names {
		h.allowed[name] = true
	}
	return h
}

// mayAll returns an authorizer that allows the deletion of all nodes of a list, and also the
// deletion of all nodes without a name.
func mayAll(nodes []*corev1.Node) *host {
	h := may("")
	for _, node := range nodes {
		h.allowed[node.Name] = true
	}
	return h
}

var bob = &authenticationv1.UserInfo{Username: "bob", Groups: []string{"ops"}}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
}

func workers(n int) []*corev1.Node {
	nodes := make([]*corev1.Node, n)
	for i := range nodes {
		nodes[i] = node(fmt.Sprintf("n-%04d", i))
	}
	return nodes
}

func controlPlane(name string) *corev1.Node {
	n := node(name)
	n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	return n
}

func newCache(h *host) *Cache {
	return NewCache(CacheConfig{Authorizer: h, Clock: clock.RealClock{}})
}

// settled calls Ask until the cache makes no new access review, and returns the answers. It must
// run in a bubble.
func settled(t *testing.T, c *Cache, h *host, user *authenticationv1.UserInfo, nodes []*corev1.Node) map[string]Answer {
	t.Helper()
	for {
		before := h.count()
		answers := c.Ask(t.Context(), user, nodes)
		synctest.Wait()
		if h.count() == before {
			return answers
		}
	}
}

// elapse advances the clock of the bubble, and returns when all work that is due has ended. It does
// not take real time, since the clock of a bubble advances when all goroutines are blocked.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func expectAllowed(t *testing.T, answers map[string]Answer, want int) {
	t.Helper()
	got := 0
	for name, answer := range answers {
		is.True(t, answer.Err == nil, "node %s: %v", name, answer.Err)
		if answer.Allowed {
			got++
		}
	}
	is.Equal(t, got, want, "nodes allowed")
}

// TestLargeDrainAsksFewQuestions limits the number of access reviews for a drain whose requester
// may delete any node.
func TestLargeDrainAsksFewQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := append(workers(5000), controlPlane("z-1"), controlPlane("z-2"), controlPlane("z-3"))
		h := mayAll(nodes)
		c := newCache(h)
		expectAllowed(t, settled(t, c, h, bob, nodes), len(nodes))
		if asked := h.take(); len(asked) >= 200 || !slices.Contains(asked, "z-3") || !slices.Contains(asked, "n-0099") {
			t.Errorf("got %d questions, want fewer than 200 with the control plane and a hundred others", len(asked))
		}
		// Asking node by node, as events of nodes cause it, must not need more access reviews.
		for _, n := range nodes {
			expectAllowed(t, c.Ask(t.Context(), bob, []*corev1.Node{n}), 1)
		}
		if asked := h.take(); len(asked) != 0 {
			t.Errorf("got %d more questions, want none while the answers count", len(asked))
		}
	})
}

func TestEveryByNameAsksForEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := workers(300)
		h := mayAll(nodes)
		c := NewCache(CacheConfig{Authorizer: h, Clock: clock.RealClock{}, Rules: Rules{EveryByName: true}})
		expectAllowed(t, settled(t, c, h, bob, nodes), len(nodes))
		if asked := h.take(); len(asked) != 300 || slices.Contains(asked, "") {
			t.Errorf("got %d questions, want one for each node", len(asked))
		}
	})
}

func TestAnswers(t *testing.T) {
	tests := map[string]struct {
		host *host
		user *authenticationv1.UserInfo
		want map[string]Answer
	}{
		"by name alone": {host: may("a"), user: bob, want: map[string]Answer{"a": {Allowed: true}, "b": {}, "c": {}}},
		"all but one denied by name": {
			host: func() *host { h := may("", "a", "b", "c"); h.denied["b"] = true; return h }(), user: bob,
			want: map[string]Answer{"a": {Allowed: true}, "b": {}, "c": {Allowed: true}},
		},
		"no requester": {host: may(""), want: map[string]Answer{"a": {}, "b": {}, "c": {}}},
		"a requester without name": {
			host: may(""), user: &authenticationv1.UserInfo{}, want: map[string]Answer{"a": {}, "b": {}, "c": {}},
		},
		"one node without an answer": {
			host: func() *host { h := may("a", "b", "c"); h.fails["b"] = errDown; return h }(), user: bob,
			want: map[string]Answer{"a": {Allowed: true}, "b": {Err: errDown}, "c": {Allowed: true}},
		},
		"no answer at all": {
			host: func() *host { h := may("a"); h.fails["*"] = errDown; return h }(), user: bob,
			want: map[string]Answer{"a": {Err: errDown}, "b": {Err: errDown}, "c": {Err: errDown}},
		},
		"a node about which the authorizer never responds": {
			host: func() *host { h := may("a", "b", "c"); h.hangs["b"] = true; return h }(), user: bob,
			want: map[string]Answer{"a": {Allowed: true}, "b": {Err: context.DeadlineExceeded}, "c": {Allowed: true}},
		},
	}
	for name, tt := range tests {
		bubble.Run(t, name, func(t *testing.T) {
			start := time.Now()
			c, nodes := newCache(tt.host), []*corev1.Node{node("a"), node("b"), node("c")}
			got := settled(t, c, tt.host, tt.user, nodes)
			if waited := time.Since(start); waited > 0 {
				t.Errorf("the caller waited %s", waited)
			}
			if slices.ContainsFunc(slices.Collect(maps.Values(got)),
				func(a Answer) bool { return errors.Is(a.Err, ErrAsking) }) {
				elapse(answerWithin)
				got = c.Ask(t.Context(), tt.user, nodes)
			}
			for name, want := range tt.want {
				answer := got[name]
				if answer.Allowed != want.Allowed || answer.Stale != want.Stale || !errors.Is(answer.Err, want.Err) {
					t.Errorf("node %s: got %+v, want %+v", name, answer, want)
				}
			}
		})
	}
}

// TestSilentAuthorizer covers an authorizer that does not respond. Callers do not wait, and waiting
// access reviews fail together with the access review that timed out.
func TestSilentAuthorizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := workers(100)
		h := mayAll(nodes)
		for _, n := range nodes {
			h.hangs[n.Name] = true
		}
		c := NewCache(CacheConfig{Authorizer: h, Clock: clock.RealClock{}, Rules: Rules{EveryByName: true}})
		start := time.Now()
		for name, answer := range settled(t, c, h, bob, nodes) {
			if answer.Allowed || !errors.Is(answer.Err, ErrAsking) {
				t.Errorf("node %s: got %+v, want that the authorizer is asked", name, answer)
			}
		}
		if waited := time.Since(start); waited > 0 {
			t.Errorf("the caller waited %s", waited)
		}
		elapse(answerWithin)
		for name, answer := range c.Ask(t.Context(), bob, nodes) {
			if answer.Allowed || answer.Err == nil || errors.Is(answer.Err, ErrAsking) {
				t.Errorf("node %s: got %+v, want that the question has failed", name, answer)
			}
		}
		if asked := h.take(); len(asked) != 1 {
			t.Errorf("got %d questions, want one", len(asked))
		}
		// The authorizer responds again, and the timeout has no further effect.
		h.set(func(h *host) { h.hangs = map[string]bool{} })
		elapse(askAgainAfter)
		expectAllowed(t, settled(t, c, h, bob, nodes), len(nodes))
	})
}

// TestSilenceAboutOneUserDelaysNoOther covers an authorizer that does not respond for some users,
// while Ask is called for their nodes all the time, as in a drain.
func TestSilenceAboutOneUserDelaysNoOther(t *testing.T) {
	for name, silent := range map[string]int{"one user": 1, "twenty users": 20} {
		bubble.Run(t, name, func(t *testing.T) {
			nodes := workers(100)
			h := mayAll(nodes)
			authorizer := silentAbout{host: h, users: map[string]bool{}}
			c := NewCache(CacheConfig{Authorizer: authorizer, Clock: clock.RealClock{}, Rules: Rules{EveryByName: true}})
			for i := range silent {
				authorizer.users[fmt.Sprintf("silent-%d", i)] = true
			}
			for user := range authorizer.users {
				c.Ask(t.Context(), &authenticationv1.UserInfo{Username: user}, nodes)
			}
			if silent > AtOnce {
				// Some access reviews have to wait until the first ones have timed out.
				elapse(2 * answerWithin)
			}
			for range 5 {
				for user := range authorizer.users {
					c.Ask(t.Context(), &authenticationv1.UserInfo{Username: user}, nodes)
				}
				elapse(askAgainAfter)
			}
			start := time.Now()
			expectAllowed(t, settled(t, c, h, bob, nodes), len(nodes))
			if waited := time.Since(start); waited > 0 {
				t.Errorf("the first answers about another user took %s", waited)
			}
			// The last access reviews of the other users time out.
			elapse(5 * answerWithin)
			expectAllowed(t, c.Ask(t.Context(), bob, nodes), len(nodes))
		})
	}
}

// silentAbout is an authorizer that does not respond for some users.
type silentAbout struct {
	*host
	users map[string]bool
}

func (s silentAbout) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if s.users[a.GetUser().GetName()] {
		<-ctx.Done()
		return authorizer.DecisionNoOpinion, "", ctx.Err()
	}
	return s.host.Authorize(ctx, a)
}

// TestNodesAreToldOf counts how often subscribers are called with a node that had no answer.
func TestNodesAreToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := may("", "a")
		h.fails["*"] = errDown
		var mu sync.Mutex
		told := map[string]int{}
		c := NewCache(CacheConfig{Authorizer: h, Clock: clock.RealClock{}})
		c.Subscribe(func(node string) {
			mu.Lock()
			defer mu.Unlock()
			told[node]++
		})
		expect := func(what string, want int) {
			t.Helper()
			settled(t, c, h, bob, []*corev1.Node{node("a")})
			mu.Lock()
			defer mu.Unlock()
			is.True(t, told["a"] == want && len(told) <= 1, "%s: told of %v, want %d times of a", what, told, want)
		}
		expect("the first failure", 1)
		for range 3 {
			elapse(askAgainAfter)
			expect("the same failure again", 1)
		}
		h.set(func(h *host) { delete(h.fails, "*") })
		elapse(askAgainAfter)
		// There is one answer for all nodes, and one for this node.
		expect("answers", 3)
		elapse(AnswerTTL - time.Second)
		expect("nothing new", 3)
	})
}

func TestAnswersExpireAndAreRenewed(t *testing.T) {
	type step struct {
		wait time.Duration
		do   func(*host)
		want Answer
		// asks is set if an access review is made.
		asks bool
	}
	revoke := func(h *host) { h.allowed = map[string]bool{} }
	fail := func(h *host) { h.fails["*"] = errDown }
	tests := map[string]struct {
		run   bool
		host  *host
		steps []step
	}{
		"a revoked right counts for five minutes": {host: may("a"), steps: []step{
			{do: revoke, wait: AnswerTTL - time.Second, want: Answer{Allowed: true}},
			{wait: time.Second, want: Answer{}, asks: true},
		}},
		"it is renewed in the background": {run: true, host: may("a"), steps: []step{
			{wait: 9 * time.Minute, want: Answer{Allowed: true}}, {wait: 9 * time.Minute, want: Answer{Allowed: true}},
		}},
		"a revoked right is noticed in the background": {run: true, host: may("a"), steps: []step{
			{do: revoke, wait: renewAfter + renewEvery + time.Second, want: Answer{}},
		}},
		"a granted right is noticed in the background": {run: true, host: may(), steps: []step{
			{
				do: func(h *host) { h.allowed["a"] = true }, wait: renewAfter + renewEvery + time.Second,
				want: Answer{Allowed: true},
			},
		}},
		"a stale yes is kept while the authorizer does not answer": {run: true, host: may("a"), steps: []step{
			{do: fail, wait: AnswerTTL - time.Second, want: Answer{Allowed: true}},
			{wait: time.Hour / 3, want: Answer{Allowed: true, Stale: true, Err: errDown}, asks: true},
			{do: func(h *host) { delete(h.fails, "*") }, wait: renewEvery + time.Second, want: Answer{Allowed: true}},
		}},
		"a stale yes about all nodes, too": {host: may("", "a"), steps: []step{
			{do: fail, wait: AnswerTTL, want: Answer{Allowed: true, Stale: true, Err: errDown}, asks: true},
		}},
		"a stale no is not an answer": {host: may(), steps: []step{
			{do: fail, wait: AnswerTTL, want: Answer{Err: errDown}, asks: true},
		}},
		"an answer that is not in use is dropped": {run: true, host: may("a"), steps: []step{
			{wait: forgetAfter + time.Minute, want: Answer{Allowed: true}, asks: true},
		}},
	}
	for name, tt := range tests {
		bubble.Run(t, name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := newCache(tt.host)
			if tt.run {
				go c.Run(ctx)
			}
			nodes := []*corev1.Node{node("a")}
			settled(t, c, tt.host, bob, nodes)
			for i, step := range tt.steps {
				if step.do != nil {
					tt.host.set(step.do)
				}
				elapse(step.wait)
				tt.host.take()
				got := settled(t, c, tt.host, bob, nodes)["a"]
				if got.Allowed != step.want.Allowed || got.Stale != step.want.Stale ||
					(got.Err == nil) != (step.want.Err == nil) {
					t.Errorf("step %d: got %+v, want %+v", i, got, step.want)
				}
				if asked := tt.host.take(); (len(asked) > 0) != step.asks {
					t.Errorf("step %d: asked %q, want a question: %v", i, asked, step.asks)
				}
			}
		})
	}
}

func TestAnotherNodeOfTheNameIsAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := may("a")
		c := newCache(h)
		settled(t, c, h, bob, []*corev1.Node{node("a")})
		h.set(func(h *host) { h.allowed["a"] = false })
		again := node("a")
		again.UID = "another"
		if got := c.Ask(t.Context(), bob, []*corev1.Node{again})["a"]; got.Allowed || !errors.Is(got.Err, ErrAsking) {
			t.Errorf("got %+v about the new node, want that the authorizer is asked", got)
		}
		if got := settled(t, c, h, bob, []*corev1.Node{again})["a"]; got.Allowed {
			t.Error("the answer about the node that is gone was given for the new one")
		}
	})
}

func TestUsersDoNotShareAnswers(t *testing.T) {
	users := []*authenticationv1.UserInfo{
		bob, {Username: "bob"}, {Username: "bob", Groups: []string{"ops", "dev"}},
		{Username: "bob", UID: "1", Groups: []string{"ops"}},
		{Username: "bob", Groups: []string{"ops"}, Extra: map[string]authenticationv1.ExtraValue{"scopes": {"a"}}},
		{Username: "bob", Groups: []string{"ops"}, Extra: map[string]authenticationv1.ExtraValue{"scopes": {"b"}}},
	}
	seen := map[string]bool{}
	for _, u := range users {
		seen[identify(u)] = true
	}
	is.True(t, len(seen) == len(users), "got %d identities of %d users", len(seen), len(users))
	if identify(users[2]) != identify(&authenticationv1.UserInfo{Username: "bob", Groups: []string{"dev", "ops"}}) {
		t.Error("the order of groups makes another user")
	}
}

func TestCallersShareAQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := may()
		h.hangs[""] = true
		c := newCache(h)
		for range 5 {
			go c.Ask(t.Context(), bob, []*corev1.Node{node("a")})
		}
		synctest.Wait()
		if asked := h.take(); len(asked) != 1 {
			t.Errorf("five callers asked %q, want one question", asked)
		}
		elapse(answerWithin)
	})
}

func TestAskChange(t *testing.T) {
	names := func(prefix string, n int) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf("%s-%04d", prefix, i))
		}
		return out
	}
	all := func(lists ...[]string) *host { return may(slices.Concat(lists...)...) }
	tests := map[string]struct {
		host             *host
		leaving, joining Nodes
		asked            int
		refused          []string
		unasked          int
		// notAsked is a node for which no access review may be made.
		notAsked string
	}{
		"all leaving nodes are asked about by name, beyond the limit": {
			host: all(names("l", 1200)), leaving: Nodes{Others: names("l", 1200)}, asked: 1201},
		"one leaving node that may not be deleted, behind all others": {
			host: all(names("l", 1199)), leaving: Nodes{Others: names("l", 1200)}, asked: 1201,
			refused: []string{"l-1199"},
		},
		"joining nodes do not displace leaving ones": {
			host: all(names("a", 600), names("l", 2)), leaving: Nodes{Others: names("l", 3)},
			joining: Nodes{Others: names("a", 600)}, asked: 4, refused: []string{"l-0002"}, notAsked: "a-0000",
		},
		"joining nodes are asked about up to the limit": {
			host: all(names("a", 600), names("l", 3)), leaving: Nodes{Others: names("l", 3)},
			joining: Nodes{Others: names("a", 600)}, asked: 504, unasked: 100,
		},
		"with the right to delete all, a hundred and the control plane, leaving ones first": {
			host:    all(names("a", 600), names("l", 150), names("z", 2), []string{""}),
			leaving: Nodes{ControlPlane: []string{"z-0001"}, Others: names("l", 150)},
			joining: Nodes{ControlPlane: []string{"z-0000"}, Others: names("a", 600)}, asked: 103, notAsked: "a-0000",
		},
		"with the right to delete all, a leaving control plane node that is denied by name": {
			host:    all(names("l", 150), []string{""}),
			leaving: Nodes{ControlPlane: []string{"z-0000"}, Others: names("l", 150)}, asked: 102,
			refused: []string{"z-0000"},
		},
		"nothing to ask about": {host: all()},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			q := Questioner{Authorizer: tt.host, User: UserOf(bob), AtMost: 500, RefusalsAtMost: 10}
			verdict := must.Get(q.AskChange(t.Context(), tt.leaving, tt.joining))(t)
			asked := tt.host.take()
			if len(asked) != tt.asked || !slices.Equal(verdict.Refused, tt.refused) || verdict.Unasked != tt.unasked {
				t.Errorf("asked %d, got %+v; want %d, refused %q, %d unasked",
					len(asked), verdict, tt.asked, tt.refused, tt.unasked)
			}
			is.True(t, tt.notAsked == "" || !slices.Contains(asked, tt.notAsked), "%s was asked about", tt.notAsked)
		})
	}
}

// TestAskChangeWithoutTime covers a change with so many leaving nodes that there is no time to
// check all of them. Nodes that were not checked must not count as allowed.
func TestAskChangeWithoutTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := may("l-0000")
		h.hangs["l-0001"] = true
		q := Questioner{Authorizer: h, User: UserOf(bob), RefusalsAtMost: 10}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := q.AskChange(ctx, Nodes{Others: []string{"l-0000", "l-0001"}}, Nodes{})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "l-0001") {
			t.Errorf("got %v, want that the time has run out", err)
		}
	})
}
