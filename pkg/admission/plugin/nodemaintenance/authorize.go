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
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance"
)

const (
	// askAtOnce is how many questions the authorizer gets at the same time.
	askAtOnce = 16
	// askAtMost bounds the time of a request. What lies beyond is asked by the controller, before it touches the node.
	askAtMost = 500
	// askBesideShortcut is how many nodes, beside the control plane's, are asked by name although the user may delete all of them.
	askBesideShortcut = 100
	// refusalsAtMost is how many refused nodes an error names; it is pointless to look for more.
	refusalsAtMost = 10
	// rememberedRequests bounds how many requests are remembered.
	rememberedRequests = 64
)

// nodeSet is the nodes that a write touches, by name; those that are in the status but not in the cluster are nil.
type nodeSet map[string]*corev1.Node

// touchedNodes returns the nodes that a write gives to, takes from or leaves in a maintenance. All three count: who narrows a selector
// releases nodes, and who changes a plan or a stage changes what happens to those that stay.
func (p *Plugin) touchedNodes(objects ...*maintenance.NodeMaintenance) (nodeSet, error) {
	touched := nodeSet{}
	for _, nm := range objects {
		if nm == nil {
			continue
		}
		for i := range nm.Status.NodeStatuses {
			name := nm.Status.NodeStatuses[i].NodeRef.Name
			if _, seen := touched[name]; seen {
				continue
			}
			touched[name] = nil
			if node, err := p.nodes.Get(name); err == nil {
				touched[name] = node
			}
		}
		selected, err := p.selectedNodes(nm.Spec.NodeSelector)
		if err != nil {
			return nil, err
		}
		for _, node := range selected {
			touched[node.Name] = node
		}
	}
	return touched, nil
}

func (p *Plugin) selectedNodes(selector *corev1.NodeSelector) ([]*corev1.Node, error) {
	if selector == nil {
		return nil, nil
	}
	parsed, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("parse the node selector: %w", err)
	}
	all, err := p.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(node *corev1.Node) bool { return !parsed.Match(node) }), nil
}

func isControlPlane(node *corev1.Node) bool {
	if node == nil {
		return false
	}
	_, ok := node.Labels["node-role.kubernetes.io/control-plane"]
	if !ok {
		_, ok = node.Labels["node-role.kubernetes.io/master"]
	}
	return ok
}

// byImportance returns the names of the control plane's nodes and of the others, each in order, so that a repeated request asks the same.
func (s nodeSet) byImportance() (controlPlane, others []string) {
	for name, node := range s {
		if isControlPlane(node) {
			controlPlane = append(controlPlane, name)
		} else {
			others = append(others, name)
		}
	}
	slices.Sort(controlPlane)
	slices.Sort(others)
	return controlPlane, others
}

// authorize returns an error that names the nodes that the user may not delete.
func (p *Plugin) authorize(ctx context.Context, a admission.Attributes, touched nodeSet) error {
	if len(touched) == 0 {
		return nil
	}
	q := questioner{authorizer: p.authorizer, user: a.GetUserInfo(), known: &p.remembered(ctx).decisions}
	controlPlane, names := touched.byImportance()
	if !p.config.AskEveryNodeByName {
		all, err := q.mayDelete(ctx, "")
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		if all {
			names = names[:min(len(names), askBesideShortcut)]
		}
	}
	names = slices.Concat(controlPlane, names)
	refused, more, err := q.refused(ctx, names[:min(len(names), askAtMost)])
	if len(refused) > 0 {
		text := strings.Join(refused, ", ")
		if more {
			text += ", … and more"
		}
		return admission.NewForbidden(a, fmt.Errorf("user %q may not delete these nodes, so may not put them under maintenance or release them: %s",
			a.GetUserInfo().GetName(), text))
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return nil
}

// questioner asks the authorizer for one request.
type questioner struct {
	authorizer authorizer.UnconditionalAuthorizer
	user       user.Info
	known      *decisions
}

// mayDelete asks about one node, or about all of them if the name is empty.
func (q questioner) mayDelete(ctx context.Context, name string) (bool, error) {
	if allowed, ok := q.known.get(name); ok {
		return allowed, nil
	}
	decision, _, err := q.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: q.user, Verb: "delete", APIVersion: "v1", Resource: "nodes", Name: name, ResourceRequest: true,
	})
	allowed := decision == authorizer.DecisionAllow
	if err != nil && !allowed {
		return false, fmt.Errorf("ask whether user %q may delete node %q: %w", q.user.GetName(), name, err)
	}
	q.known.set(name, allowed)
	return allowed, nil
}

// refused returns which of the nodes the user may not delete; more says that there are others, or may be.
func (q questioner) refused(ctx context.Context, names []string) (refused []string, more bool, firstErr error) {
	// Only the handing out of questions is cancelled: those that are under way shall have their answer.
	asking, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	answered := 0
	workqueue.ParallelizeUntil(asking, askAtOnce, len(names), func(i int) {
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
			refused = append(refused, names[i])
			if len(refused) >= refusalsAtMost {
				stop()
			}
		}
	})
	if err := ctx.Err(); err != nil && firstErr == nil {
		// The request has ended: what was not asked must not pass for allowed.
		firstErr = err
	}
	slices.Sort(refused)
	more = len(refused) > refusalsAtMost || answered < len(names)
	return refused[:min(len(refused), refusalsAtMost)], more, firstErr
}

// decisions are the authorizer's answers for one request.
type decisions struct {
	mu     sync.Mutex
	byName map[string]bool
}

func (d *decisions) get(name string) (allowed, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	allowed, ok = d.byName[name]
	return allowed, ok
}

func (d *decisions) set(name string, allowed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byName == nil {
		d.byName = map[string]bool{}
	}
	d.byName[name] = allowed
}
