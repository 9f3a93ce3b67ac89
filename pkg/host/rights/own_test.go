// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// refusing is an authorizer that allows nothing and records the nodes of the access reviews for the
// verb delete.
type refusing struct {
	mu    sync.Mutex
	asked []string
}

func (r *refusing) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "maintain" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, a.GetName())
	return authorizer.DecisionNoOpinion, "", nil
}

func (r *refusing) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.asked))
}

func asUser(name string, groups ...string) *authenticationv1.UserInfo {
	return &authenticationv1.UserInfo{Username: name, Groups: groups}
}

// ownCases are cases in which a user may delete no other node, with the nodes to check. allowed are
// the nodes with a positive answer, and asked are the nodes of the access reviews. An empty name
// stands for the access review for all nodes.
var ownCases = map[string]struct {
	user    *authenticationv1.UserInfo
	nodes   []string
	allowed []string
	asked   []string
}{
	"a node about itself": {
		user: asUser("system:node:a", "system:nodes"), nodes: []string{"a"}, allowed: []string{"a"},
	},
	"a node about another one": {
		user: asUser("system:node:a", "system:nodes"), nodes: []string{"b"}, asked: []string{"", "b"},
	},
	"a node about itself and others": {
		user: asUser("system:node:a", "system:nodes"), nodes: []string{"aa", "a", "b"}, allowed: []string{"a"}, asked: []string{"", "aa", "b"},
	},
	"a user of the same name without the group": {
		user: asUser("system:node:a", "system:authenticated"), nodes: []string{"a"}, asked: []string{"", "a"},
	},
	"a member of the group with the name of the node": {
		user: asUser("a", "system:nodes"), nodes: []string{"a"}, asked: []string{"", "a"},
	},
	"a service account": {
		user: asUser("system:serviceaccount:system:node:a", "system:nodes"), nodes: []string{"a"}, asked: []string{"", "a"},
	},
	"a node without a name": {
		user: asUser("system:node:", "system:nodes"), nodes: []string{"a"}, asked: []string{"", "a"},
	},
}

func TestCacheAboutTheNodeOfTheRequester(t *testing.T) {
	for name, test := range ownCases {
		bubble.Run(t, name, func(t *testing.T) {
			host := &refusing{}
			c := NewCache(CacheConfig{Authorizer: host, Clock: clock.RealClock{}})
			var nodes []*corev1.Node
			for _, name := range test.nodes {
				nodes = append(nodes, node(name))
			}
			c.Ask(t.Context(), test.user, nodes)
			// The answer for all nodes must arrive before the access reviews by name are sent.
			synctest.Wait()
			c.Ask(t.Context(), test.user, nodes)
			synctest.Wait()
			answers := c.Ask(t.Context(), test.user, nodes)
			for _, name := range test.nodes {
				want := Answer{Allowed: slices.Contains(test.allowed, name)}
				if got := answers[name]; got != want {
					t.Errorf("answer about %s: %+v, want %+v", name, got, want)
				}
			}
			is.Slices(t, host.take(), test.asked, "asked about")
		})
	}
}

func TestQuestionerAboutTheNodeOfTheUser(t *testing.T) {
	for name, test := range ownCases {
		for kind, of := range map[string]func(names []string) (leaving, joining Nodes){
			"joining":                  func(names []string) (Nodes, Nodes) { return Nodes{}, Nodes{Others: names} },
			"leaving":                  func(names []string) (Nodes, Nodes) { return Nodes{Others: names}, Nodes{} },
			"joining control plane of": func(names []string) (Nodes, Nodes) { return Nodes{}, Nodes{ControlPlane: names} },
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				host := &refusing{}
				names := slices.Clone(test.nodes)
				leaving, joining := of(names)
				verdict := must.Get(Questioner{Authorizer: host, User: UserOf(test.user)}.AskChange(t.Context(), leaving, joining))(t)
				var refused []string
				for _, name := range test.nodes {
					if !slices.Contains(test.allowed, name) {
						refused = append(refused, name)
					}
				}
				slices.Sort(refused)
				is.Slices(t, verdict.Refused, refused, "refused")
				is.Slices(t, host.take(), test.asked, "asked about")
				is.True(t, slices.Equal(names, test.nodes), "the list of the caller was changed to %q", names)
			})
		}
	}
}

// TestNodesAreToldOfARightThatChanges: a right changes while the cache renews the answer in the
// background. No caller calls Ask during that time.
func TestNodesAreToldOfARightThatChanges(t *testing.T) {
	for name, test := range map[string]struct {
		host   *host
		change func(*host)
	}{
		"the right to one node is granted":      {may(), func(h *host) { h.allowed["a"] = true }},
		"the right to one node is revoked":      {may("a"), func(h *host) { h.allowed["a"] = false }},
		"the right to all nodes is granted":     {may(), func(h *host) { h.allowed[""] = true }},
		"the right to all and to one is denied": {may("", "a"), func(h *host) { h.allowed = map[string]bool{} }},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := newCache(test.host)
			var told atomic.Int32
			c.Subscribe(func(string) { told.Add(1) })
			go c.Run(ctx)
			settled(t, c, test.host, bob, []*corev1.Node{node("a")})
			told.Store(0)
			elapse(renewAfter + renewEvery)
			is.True(t, told.Load() <= 0, "subscribers are called although the right is the same")
			test.host.set(test.change)
			elapse(renewAfter + renewEvery)
			is.True(t, told.Load() != 0, "no subscriber is called")
		})
	}
}
