// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const poolLabel = "node-restriction.kubernetes.io/pool"

var withPools = Rules{PoolLabel: poolLabel}

// pooled returns a node of a pool. A control-plane node has the same label.
func pooled(name, pool string, modify ...func(*corev1.Node)) *corev1.Node {
	n := node(name)
	n.Labels = map[string]string{poolLabel: pool}
	for _, m := range modify {
		m(n)
	}
	return n
}

func onControlPlane(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }

// pool returns n nodes of a pool.
func pool(name string, n int) []*corev1.Node {
	nodes := make([]*corev1.Node, n)
	for i := range nodes {
		nodes[i] = pooled(fmt.Sprintf("%s-%04d", name, i), name)
	}
	return nodes
}

// mayMaintain returns an authorizer that allows bob the verb maintain for nodes/NAME and
// nodepools/NAME, and nothing else.
func mayMaintain(subjects ...string) *host {
	h := may()
	for _, subject := range subjects {
		h.maintains[subject] = true
	}
	return h
}

// maintain answers access reviews about the verb maintain.
func (h *host) maintain(a authorizer.Attributes) (authorizer.Decision, string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.GetAPIGroup() != "maintenance.haulout.dev" || !a.IsResourceRequest() || a.GetUser().GetName() != "bob" {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("asked for the wrong thing: %v", a)
	}
	about := a.GetResource() + "/" + a.GetName()
	h.maintainAsked = append(h.maintainAsked, about)
	switch {
	case h.fails[about] != nil:
		return authorizer.DecisionNoOpinion, "", h.fails[about]
	case h.maintains[about]:
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// takeMaintain returns the access reviews about the verb maintain since the last call, sorted.
func (h *host) takeMaintain() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	asked := slices.Sorted(slices.Values(h.maintainAsked))
	h.maintainAsked = nil
	return asked
}

func TestPoolOf(t *testing.T) {
	for name, test := range map[string]struct {
		rules Rules
		node  *corev1.Node
		want  string
	}{
		"the value of the label":                {withPools, pooled("a", "blue"), "blue"},
		"no such label":                         {withPools, node("a"), ""},
		"an empty value":                        {withPools, pooled("a", ""), ""},
		"a control-plane node":                  {withPools, pooled("a", "blue", onControlPlane), ""},
		"no label is configured":                {Rules{}, pooled("a", "blue"), ""},
		"the cluster does not have the node":    {withPools, nil, ""},
		"another label is configured":           {Rules{PoolLabel: "pool"}, pooled("a", "blue"), ""},
		"names are checked, pools count anyway": {Rules{PoolLabel: poolLabel, EveryByName: true}, pooled("a", "blue"), "blue"},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, test.rules.PoolOf(test.node), test.want, "pool")
		})
	}
}

// poolCase is a check of nodes that leave and that stay or join.
type poolCase struct {
	host             *host
	rules            Rules
	leaving, joining []*corev1.Node
	// stored are the pools in the status, by the name of the node.
	stored map[string]string
	// asked are the names about which "delete" is asked, maintained the access reviews about
	// "maintain".
	asked, maintained []string
	refused           []string
	pools             map[string]string
}

func (c poolCase) check(t *testing.T) (Verdict, error) {
	t.Helper()
	var leaving, joining Nodes
	for _, n := range c.leaving {
		var stored []string
		if pool := c.stored[n.Name]; pool != "" {
			stored = []string{pool}
		}
		leaving.Add(c.rules, n.Name, n, stored...)
	}
	for _, n := range c.joining {
		joining.Add(c.rules, n.Name, n)
	}
	q := Questioner{Authorizer: c.host, User: UserOf(bob), Rules: c.rules, AtMost: 500, RefusalsAtMost: 10}
	return q.AskChange(t.Context(), leaving, joining)
}

func TestWhichRightIsSufficient(t *testing.T) {
	a, b := pooled("a", "blue"), pooled("b", "red")
	master := pooled("m", "blue", onControlPlane)
	for name, test := range map[string]poolCase{
		"delete on the node": {
			host: may("a"), joining: []*corev1.Node{a}, asked: []string{"", "a"}, maintained: []string{"nodepools/blue", "nodes/"},
		},
		"maintain on the node": {
			host: mayMaintain("nodes/a"), joining: []*corev1.Node{a}, asked: []string{"", "a"},
			maintained: []string{"nodepools/blue", "nodes/", "nodes/a"},
		},
		"maintain on all nodes, which is asked about by name as well": {
			host: mayMaintain("nodes/", "nodes/a", "nodes/m"), joining: []*corev1.Node{a, master}, asked: []string{"", "a", "m"},
			maintained: []string{"nodes/", "nodes/a", "nodes/m"},
		},
		"maintain on the pool": {
			host: mayMaintain("nodepools/blue"), joining: []*corev1.Node{a}, asked: []string{""},
			maintained: []string{"nodepools/blue", "nodes/"}, pools: map[string]string{"a": "blue"},
		},
		"maintain on the pool of one of two nodes": {
			host: mayMaintain("nodepools/blue"), joining: []*corev1.Node{a, b}, asked: []string{"", "b"},
			maintained: []string{"nodepools/blue", "nodepools/red", "nodes/", "nodes/b"}, refused: []string{"b"}, pools: map[string]string{"a": "blue"},
		},
		"maintain on the pool of a control-plane node": {
			host: mayMaintain("nodepools/blue"), joining: []*corev1.Node{master}, asked: []string{"", "m"},
			maintained: []string{"nodes/", "nodes/m"}, refused: []string{"m"},
		},
		"maintain on a control-plane node by name": {
			host: mayMaintain("nodes/m"), joining: []*corev1.Node{master}, asked: []string{"", "m"},
			maintained: []string{"nodes/", "nodes/m"},
		},
		"a pool that has the name of the node": {
			host: mayMaintain("nodepools/a"), joining: []*corev1.Node{a}, asked: []string{"", "a"},
			maintained: []string{"nodepools/blue", "nodes/", "nodes/a"}, refused: []string{"a"},
		},
		"the server has no pools": {
			host: mayMaintain("nodepools/blue"), rules: Rules{EveryByName: true}, joining: []*corev1.Node{a}, stored: map[string]string{"a": "blue"},
			asked: []string{"a"}, maintained: []string{"nodes/a"}, refused: []string{"a"},
		},
		"every node is asked about by name, and its pool is sufficient": {
			host: mayMaintain("nodepools/blue"), rules: Rules{PoolLabel: poolLabel, EveryByName: true}, joining: []*corev1.Node{a},
			maintained: []string{"nodepools/blue"}, pools: map[string]string{"a": "blue"},
		},
		"delete on all nodes but one, and maintain on its pool": {
			host: func() *host { h := may(""); h.maintains["nodepools/blue"] = true; return h }(), joining: []*corev1.Node{a},
			asked: []string{"", "a"}, maintained: []string{"nodepools/blue", "nodes/a"}, pools: map[string]string{"a": "blue"},
		},
		"release of a node by its present pool": {
			host: mayMaintain("nodepools/blue"), leaving: []*corev1.Node{a}, asked: []string{""}, maintained: []string{"nodepools/blue", "nodes/"},
		},
		"release of a node by the pool in the status": {
			host: mayMaintain("nodepools/green"), leaving: []*corev1.Node{a}, stored: map[string]string{"a": "green"},
			asked: []string{""}, maintained: []string{"nodepools/blue", "nodepools/green", "nodes/"},
		},
		"release of a node that is of the control plane now": {
			host: mayMaintain("nodepools/green"), leaving: []*corev1.Node{master}, stored: map[string]string{"m": "green"},
			asked: []string{""}, maintained: []string{"nodepools/green", "nodes/"},
		},
		"the pool in the status of a node that stays does not count": {
			host: mayMaintain("nodepools/green"), joining: []*corev1.Node{a}, stored: map[string]string{"a": "green"},
			asked: []string{"", "a"}, maintained: []string{"nodepools/blue", "nodes/", "nodes/a"}, refused: []string{"a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.rules == (Rules{}) {
				test.rules = withPools
			}
			verdict := must.Get(test.check(t))(t)
			is.Slices(t, verdict.Refused, test.refused, "refused")
			is.Slices(t, test.host.take(), test.asked, "asked about delete")
			is.Slices(t, test.host.takeMaintain(), test.maintained, "asked about maintain")
			for _, n := range test.joining {
				is.Equal(t, verdict.Pools[n.Name], test.pools[n.Name], "pool that grants the right to "+n.Name)
			}
		})
	}
}

// TestOneQuestionForEachPool bounds the number of access reviews for users who may maintain pools,
// with thousands of nodes.
func TestOneQuestionForEachPool(t *testing.T) {
	nodes := slices.Concat(pool("blue", 2000), pool("green", 2000), pool("red", 1000))
	for name, test := range map[string]struct {
		host             *host
		leaving, joining []*corev1.Node
		// asked and maintained are the numbers of access reviews.
		asked, maintained, refused, unasked int
	}{
		"all pools are granted": {
			host: mayMaintain("nodepools/blue", "nodepools/green", "nodepools/red"), joining: nodes, asked: 1, maintained: 4,
		},
		"all pools are granted, nodes leave and stay": {
			host: mayMaintain("nodepools/blue", "nodepools/green", "nodepools/red"), leaving: nodes[:2500], joining: nodes[2500:],
			asked: 1, maintained: 4,
		},
		"the nodes of a pool that is not granted are granted by name, up to the limit": {
			host: func() *host {
				h := mayMaintain("nodepools/blue", "nodepools/green")
				for _, n := range nodes[4000:] {
					h.allowed[n.Name] = true
				}
				return h
			}(),
			joining: nodes, asked: 501, maintained: 4, unasked: 500,
		},
		"more pools than names are asked about": {host: mayMaintain(), joining: func() []*corev1.Node {
			var each []*corev1.Node
			for i := range 700 {
				each = append(each, pooled(fmt.Sprintf("n-%04d", i), fmt.Sprintf("p-%04d", i)))
			}
			return each
		}(), asked: 11 + AtOnce, maintained: 1 + 500 + 10 + AtOnce, refused: 10, unasked: 200},
	} {
		t.Run(name, func(t *testing.T) {
			verdict := must.Get(poolCase{host: test.host, rules: withPools, leaving: test.leaving, joining: test.joining}.check(t))(t)
			asked, maintained := len(test.host.take()), len(test.host.takeMaintain())
			is.True(t, asked <= test.asked && maintained <= test.maintained, "got %d and %d questions, want at most %d and %d",
				asked, maintained, test.asked, test.maintained)
			is.True(t, len(verdict.Refused) == test.refused && verdict.Unasked == test.unasked, "got %d refused, %d unasked", len(verdict.Refused), verdict.Unasked)
		})
	}
}

func TestPoolWithoutAnAnswerIsNotAllowed(t *testing.T) {
	h := may("a")
	h.fails["nodepools/blue"] = errDown
	_, err := poolCase{host: h, rules: withPools, joining: []*corev1.Node{pooled("a", "blue")}}.check(t)
	is.True(t, errors.Is(err, errDown), "got %v, want that the authorizer is down", err)
}

// TestCacheAboutPools has the last step of each case settle again after a change.
func TestCacheAboutPools(t *testing.T) {
	type step struct {
		wait  time.Duration
		do    func(*host)
		nodes []*corev1.Node
		want  map[string]Answer
		// asked and maintained are the access reviews of the step.
		asked, maintained []string
	}
	a, b := pooled("a", "blue"), pooled("b", "blue")
	yes := Answer{Allowed: true, Pool: "blue"}
	for name, test := range map[string]struct {
		host  *host
		steps []step
	}{
		"one question for the nodes of a pool": {mayMaintain("nodepools/blue"), []step{
			{nodes: []*corev1.Node{a, b}, want: map[string]Answer{"a": yes, "b": yes}, asked: []string{""}, maintained: []string{"nodepools/blue", "nodes/"}},
			{wait: AnswerTTL - time.Second, nodes: []*corev1.Node{a, b}, want: map[string]Answer{"a": yes, "b": yes}},
		}},
		"the pool is not granted, one node is": {mayMaintain("nodes/b"), []step{
			{nodes: []*corev1.Node{a, b}, want: map[string]Answer{"a": {}, "b": {Allowed: true}}, asked: []string{"", "a", "b"},
				maintained: []string{"nodepools/blue", "nodes/", "nodes/a", "nodes/b"}},
		}},
		"a control-plane node has no pool": {mayMaintain("nodepools/blue"), []step{
			{nodes: []*corev1.Node{pooled("m", "blue", onControlPlane)}, want: map[string]Answer{"m": {}}, asked: []string{"", "m"},
				maintained: []string{"nodes/", "nodes/m"}},
		}},
		"the node moves to another pool": {mayMaintain("nodepools/blue"), []step{
			{nodes: []*corev1.Node{a}, want: map[string]Answer{"a": yes}, asked: []string{""}, maintained: []string{"nodepools/blue", "nodes/"}},
			{nodes: []*corev1.Node{pooled("a", "red")}, want: map[string]Answer{"a": {}}, asked: []string{"a"}, maintained: []string{"nodepools/red", "nodes/a"}},
			{nodes: []*corev1.Node{a}, want: map[string]Answer{"a": yes}},
		}},
		"the right to the pool is revoked": {mayMaintain("nodepools/blue"), []step{
			{nodes: []*corev1.Node{a}, want: map[string]Answer{"a": yes}, asked: []string{""}, maintained: []string{"nodepools/blue", "nodes/"}},
			{wait: AnswerTTL, do: func(h *host) { h.maintains = map[string]bool{} }, nodes: []*corev1.Node{a}, want: map[string]Answer{"a": {}},
				asked: []string{"", "a"}, maintained: []string{"nodepools/blue", "nodes/", "nodes/a"}},
		}},
		"the authorizer fails about the pool, and no node is asked about by name": {mayMaintain(), []step{
			{do: func(h *host) { h.fails["nodepools/blue"] = errDown }, nodes: []*corev1.Node{a, b},
				want: map[string]Answer{"a": {Err: errDown}, "b": {Err: errDown}}, asked: []string{""}, maintained: []string{"nodepools/blue", "nodes/"}},
		}},
		"a stale yes about the pool": {mayMaintain("nodepools/blue"), []step{
			{nodes: []*corev1.Node{a}, want: map[string]Answer{"a": yes}, asked: []string{""}, maintained: []string{"nodepools/blue", "nodes/"}},
			{wait: AnswerTTL, do: func(h *host) { h.fails["nodepools/blue"] = errDown }, nodes: []*corev1.Node{a},
				want:  map[string]Answer{"a": {Allowed: true, Pool: "blue", Stale: true, Err: errDown}},
				asked: []string{""}, maintained: []string{"nodepools/blue", "nodes/"}},
		}},
		"delete on all nodes but one, and maintain on its pool": {
			func() *host { h := may("", "b"); h.maintains["nodepools/blue"] = true; return h }(), []step{
				{nodes: []*corev1.Node{a, b}, want: map[string]Answer{"a": yes, "b": {Allowed: true}}, asked: []string{"", "a", "b"},
					maintained: []string{"nodepools/blue", "nodes/a"}},
			}},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			c := NewCache(CacheConfig{Authorizer: test.host, Clock: clock.RealClock{}, Rules: withPools})
			for i, step := range test.steps {
				if step.do != nil {
					test.host.set(step.do)
				}
				elapse(step.wait)
				got := settled(t, c, test.host, bob, step.nodes)
				for name, want := range step.want {
					answer := got[name]
					if answer.Allowed != want.Allowed || answer.Pool != want.Pool || answer.Stale != want.Stale || !errors.Is(answer.Err, want.Err) {
						t.Errorf("step %d, node %s: got %+v, want %+v", i, name, answer, want)
					}
				}
				is.Slices(t, test.host.take(), step.asked, fmt.Sprintf("step %d: asked about delete", i))
				is.Slices(t, test.host.takeMaintain(), step.maintained, fmt.Sprintf("step %d: asked about maintain", i))
			}
		})
	}
}

// TestLargeDrainAsksOneQuestionForEachPool limits the number of access reviews for a drain whose
// requester may maintain the pools of its nodes.
func TestLargeDrainAsksOneQuestionForEachPool(t *testing.T) {
	bubble.Run(t, "5,000 nodes of three pools", func(t *testing.T) {
		nodes := slices.Concat(pool("blue", 2000), pool("green", 2000), pool("red", 1000))
		h := mayMaintain("nodepools/blue", "nodepools/green", "nodepools/red")
		c := NewCache(CacheConfig{Authorizer: h, Clock: clock.RealClock{}, Rules: withPools})
		expectAllowed(t, settled(t, c, h, bob, nodes), len(nodes))
		for _, n := range nodes {
			expectAllowed(t, c.Ask(t.Context(), bob, []*corev1.Node{n}), 1)
		}
		is.Slices(t, h.take(), []string{""}, "asked about delete")
		is.Slices(t, h.takeMaintain(), []string{"nodepools/blue", "nodepools/green", "nodepools/red", "nodes/"}, "asked about maintain")
	})
}
