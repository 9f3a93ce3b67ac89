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

// Package noderights asks the host cluster whether a user may delete nodes, which is what a user needs to have them maintained. It asks about
// many nodes at once, and knows when not every one of them has to be asked about.
package noderights

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/util/workqueue"
)

const (
	// AtOnce is how many questions the authorizer gets at the same time.
	AtOnce = 16
	// besideShortcut is how many nodes, beside the control plane's, are asked by name although the user may delete all of them.
	besideShortcut = 100
)

// Nodes are those that are asked about, by name. The order of each list decides who is asked about first.
type Nodes struct {
	// ControlPlane are those of the control plane, which are never left out.
	ControlPlane []string
	// Others are all others.
	Others []string
}

// IsControlPlane says whether the labels of a node are those of the control plane.
func IsControlPlane(node *corev1.Node) bool {
	_, ok := node.Labels["node-role.kubernetes.io/control-plane"]
	if !ok {
		_, ok = node.Labels["node-role.kubernetes.io/master"]
	}
	return ok
}

// Questioner asks in the name of one user.
type Questioner struct {
	// Authorizer is that of the host cluster.
	Authorizer authorizer.UnconditionalAuthorizer
	// User is in question.
	User user.Info
	// Known are the answers that there are already; new ones are added.
	Known *Answers
	// EveryByName switches off the shortcut of asking first whether the user may delete all nodes. With the shortcut such a user is asked
	// about by name for the control plane and a hundred others only.
	EveryByName bool
	// AtMost bounds how many nodes are asked about by name.
	AtMost int
	// RefusalsAtMost ends the questions when there are as many refusals; 0 stands for no limit.
	RefusalsAtMost int
}

// Verdict is what came out.
type Verdict struct {
	// Refused are nodes that the user may not delete, sorted by name.
	Refused []string
	// More says that there are others, or may be, because the limit of refusals ended the questions.
	More bool
	// Unasked is how many nodes were not asked about because of AtMost. Those that the shortcut spares are not counted.
	Unasked int
}

// Ask asks about nodes. A node about which there is no answer is an error, unless there are refusals.
func (q Questioner) Ask(ctx context.Context, nodes Nodes) (Verdict, error) {
	if len(nodes.ControlPlane)+len(nodes.Others) == 0 {
		return Verdict{}, nil
	}
	others := nodes.Others
	if !q.EveryByName {
		all, err := q.mayDelete(ctx, "")
		if err != nil {
			return Verdict{}, err
		}
		if all {
			others = others[:min(len(others), besideShortcut)]
		}
	}
	names := slices.Concat(nodes.ControlPlane, others)
	asked := names[:min(len(names), q.AtMost)]
	verdict, err := q.byName(ctx, asked)
	verdict.Unasked = len(names) - len(asked)
	return verdict, err
}

// mayDelete asks about one node, or about all of them if the name is empty.
func (q Questioner) mayDelete(ctx context.Context, name string) (bool, error) {
	if allowed, ok := q.Known.get(name); ok {
		return allowed, nil
	}
	decision, _, err := q.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: q.User, Verb: "delete", APIVersion: "v1", Resource: "nodes", Name: name, ResourceRequest: true,
	})
	allowed := decision == authorizer.DecisionAllow
	if err != nil && !allowed {
		return false, fmt.Errorf("ask whether user %q may delete node %q: %w", q.User.GetName(), name, err)
	}
	q.Known.set(name, allowed)
	return allowed, nil
}

// byName asks about each of the nodes.
func (q Questioner) byName(ctx context.Context, names []string) (verdict Verdict, firstErr error) {
	limit := q.RefusalsAtMost
	if limit == 0 {
		limit = len(names) + 1
	}
	// Only the handing out of questions is cancelled: those that are under way shall have their answer.
	asking, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	answered := 0
	workqueue.ParallelizeUntil(asking, AtOnce, len(names), func(i int) {
		allowed, err := q.mayDelete(ctx, names[i])
		mu.Lock()
		defer mu.Unlock()
		answered++
		switch {
		case err != nil:
			if firstErr == nil {
				firstErr = err
			}
			stop()
		case !allowed:
			verdict.Refused = append(verdict.Refused, names[i])
			if len(verdict.Refused) >= limit {
				stop()
			}
		}
	})
	if err := ctx.Err(); err != nil && firstErr == nil {
		// The request has ended: what was not asked must not pass for allowed.
		firstErr = err
	}
	slices.Sort(verdict.Refused)
	verdict.More = len(verdict.Refused) > limit || answered < len(names)
	verdict.Refused = verdict.Refused[:min(len(verdict.Refused), limit)]
	return verdict, firstErr
}

// Answers are what the authorizer has said about one user. The zero value is ready for use, by several goroutines.
type Answers struct {
	mu     sync.Mutex
	byName map[string]bool
}

func (a *Answers) get(name string) (allowed, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	allowed, ok = a.byName[name]
	return allowed, ok
}

func (a *Answers) set(name string, allowed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byName == nil {
		a.byName = map[string]bool{}
	}
	a.byName[name] = allowed
}
