/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"
)

// authorizationTTL is how long an answer counts: a right that is given or revoked shows after this time at the latest.
const authorizationTTL = 5 * time.Minute

// authorizations remembers who may delete which node. Admission asked already, but nodes join later and rights go: no node is written to
// unless its requester may delete it.
type authorizations struct {
	authorizer authorizer.Authorizer
	clock      clock.PassiveClock

	mu sync.Mutex
	// answers are by what identifies the user, then by node.
	answers map[string]map[types.UID]authorizationAnswer
	swept   time.Time
}

type authorizationAnswer struct {
	allowed bool
	until   time.Time
}

func newAuthorizations(a authorizer.Authorizer, clock clock.PassiveClock) *authorizations {
	return &authorizations{authorizer: a, clock: clock, answers: map[string]map[types.UID]authorizationAnswer{}, swept: clock.Now()}
}

// allowed says which of the nodes the requester may delete, by name. An authorizer that does not answer is an error, never an answer.
func (a *authorizations) allowed(ctx context.Context, requester *authenticationv1.UserInfo, nodes []*corev1.Node) (map[string]bool, error) {
	if requester == nil || requester.Username == "" {
		return map[string]bool{}, nil
	}
	identity := identify(requester)
	out, unknown := a.known(identity, nodes)
	var mu sync.Mutex
	err := inParallel(ctx, len(unknown), func(ctx context.Context, i int) error {
		ok, err := a.ask(ctx, requester, identity, unknown[i])
		if err != nil {
			return fmt.Errorf("authorize %s to delete node %s: %w", requester.Username, unknown[i].Name, err)
		}
		mu.Lock()
		defer mu.Unlock()
		out[unknown[i].Name] = ok
		return nil
	})
	return out, err
}

func (a *authorizations) ask(ctx context.Context, requester *authenticationv1.UserInfo, identity string, node *corev1.Node) (bool, error) {
	decision, _, err := a.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User:            userOf(requester),
		Verb:            "delete",
		APIVersion:      "v1",
		Resource:        "nodes",
		Name:            node.Name,
		ResourceRequest: true,
	})
	if err != nil {
		return false, err
	}
	answer := authorizationAnswer{allowed: decision == authorizer.DecisionAllow, until: a.clock.Now().Add(authorizationTTL)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answers[identity] == nil {
		a.answers[identity] = map[types.UID]authorizationAnswer{}
	}
	a.answers[identity][node.UID] = answer
	return answer.allowed, nil
}

// known returns the answers that still count, by node name, and the nodes without one.
func (a *authorizations) known(identity string, nodes []*corev1.Node) (answers map[string]bool, unknown []*corev1.Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	a.sweep(now)
	mine := a.answers[identity]
	answers = make(map[string]bool, len(nodes))
	for _, node := range nodes {
		if answer, ok := mine[node.UID]; ok && !now.After(answer.until) {
			answers[node.Name] = answer.allowed
		} else {
			unknown = append(unknown, node)
		}
	}
	return answers, unknown
}

// sweep forgets, now and then, what does not count any more.
func (a *authorizations) sweep(now time.Time) {
	if now.Sub(a.swept) <= authorizationTTL {
		return
	}
	a.swept = now
	for identity, answers := range a.answers {
		maps.DeleteFunc(answers, func(_ types.UID, answer authorizationAnswer) bool { return now.After(answer.until) })
		if len(answers) == 0 {
			delete(a.answers, identity)
		}
	}
}

func userOf(u *authenticationv1.UserInfo) user.Info {
	extra := make(map[string][]string, len(u.Extra))
	for k, v := range u.Extra {
		extra[k] = v
	}
	return &user.DefaultInfo{Name: u.Username, UID: u.UID, Groups: u.Groups, Extra: extra}
}

// identify returns a text that differs for users who may differ in rights.
func identify(u *authenticationv1.UserInfo) string {
	groups := slices.Clone(u.Groups)
	slices.Sort(groups)
	extra := make([]string, 0, len(u.Extra))
	for k, v := range u.Extra {
		extra = append(extra, fmt.Sprintf("%q=%q", k, []string(v)))
	}
	slices.Sort(extra)
	return fmt.Sprintf("%q %q %q %s", u.Username, u.UID, groups, strings.Join(extra, " "))
}
