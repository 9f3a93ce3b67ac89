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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/noderights"
)

const (
	// askAtMost bounds the time of a request. What lies beyond is asked by the controller, before it touches the node.
	askAtMost = 500
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

func isControlPlane(node *corev1.Node) bool { return node != nil && noderights.IsControlPlane(node) }

// byImportance returns the nodes in order, so that a repeated request asks about the same.
func (s nodeSet) byImportance() noderights.Nodes {
	var nodes noderights.Nodes
	for name, node := range s {
		if isControlPlane(node) {
			nodes.ControlPlane = append(nodes.ControlPlane, name)
		} else {
			nodes.Others = append(nodes.Others, name)
		}
	}
	slices.Sort(nodes.ControlPlane)
	slices.Sort(nodes.Others)
	return nodes
}

// authorize returns an error that names the nodes that the user may not delete.
func (p *Plugin) authorize(ctx context.Context, a admission.Attributes, touched nodeSet) error {
	q := noderights.Questioner{
		Authorizer: p.authorizer, User: a.GetUserInfo(), Known: &p.remembered(ctx).decisions,
		EveryByName: p.config.AskEveryNodeByName, AtMost: askAtMost, RefusalsAtMost: refusalsAtMost,
	}
	verdict, err := q.Ask(ctx, touched.byImportance())
	if len(verdict.Refused) > 0 {
		text := strings.Join(verdict.Refused, ", ")
		if verdict.More {
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
