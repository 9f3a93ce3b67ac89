// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package noderights

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"
)

// refusing is an authorizer that allows nothing and records about which nodes it is asked.
type refusing struct {
	mu    sync.Mutex
	asked []string
}

func (r *refusing) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
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

// ownCases are questions of a user who may delete no node about nodes, with those about which the
// answer is yes, and the questions of the authorizer. The empty name is the question about all.
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host := &refusing{}
				c := NewCache(CacheConfig{Authorizer: host, Clock: clock.RealClock{}})
				var nodes []*corev1.Node
				for _, name := range test.nodes {
					nodes = append(nodes, node(name))
				}
				c.Ask(t.Context(), test.user, nodes)
				// The answer about all nodes comes before the questions by name.
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
				if asked := host.take(); !slices.Equal(asked, test.asked) {
					t.Errorf("asked about %q, want %q", asked, test.asked)
				}
			})
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
				verdict, err := Questioner{Authorizer: host, User: UserOf(test.user)}.AskChange(t.Context(), leaving, joining)
				if err != nil {
					t.Fatal(err)
				}
				var refused []string
				for _, name := range test.nodes {
					if !slices.Contains(test.allowed, name) {
						refused = append(refused, name)
					}
				}
				slices.Sort(refused)
				if !slices.Equal(verdict.Refused, refused) {
					t.Errorf("refused %q, want %q", verdict.Refused, refused)
				}
				if asked := host.take(); !slices.Equal(asked, test.asked) {
					t.Errorf("asked about %q, want %q", asked, test.asked)
				}
				if !slices.Equal(names, test.nodes) {
					t.Errorf("the list of the caller was changed to %q", names)
				}
			})
		}
	}
}
