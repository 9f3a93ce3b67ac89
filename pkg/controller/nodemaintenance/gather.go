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
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	controllercache "haulout.dev/haulout/pkg/controller/cache"
	"haulout.dev/haulout/pkg/drainplan"
)

// livePod is a pod that counts for a node.
type livePod struct {
	*corev1.Pod
	plan drainplan.Pod
	left drainplan.LeftReason
	// evacuation is the pod's Evacuation, or nil.
	evacuation *maintenancev1alpha1.Evacuation
}

// member is a maintenance with its nodes.
type member struct {
	*maintenancev1alpha1.NodeMaintenance
	// nodes are those that the requester may delete, refused the others. Both are sorted by name.
	nodes, refused []*corev1.Node
}

// gathered is all that a sync decides from.
type gathered struct {
	subject *member
	// draining are the maintenances in stage Drain that share nodes with the subject, directly or through others, and the subject itself if
	// it drains.
	draining []*member
	// pods are the live pods by node name, for all nodes of subject and draining.
	pods map[string][]livePod
}

func (c *Controller) gather(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) (*gathered, error) {
	subject, err := c.member(ctx, nm)
	if err != nil {
		return nil, err
	}
	g := &gathered{subject: subject, pods: map[string][]livePod{}}
	if isDraining(nm) {
		if g.draining, err = c.component(ctx, subject); err != nil {
			return nil, err
		}
	}
	for _, m := range append(slices.Clone(g.draining), subject) {
		for _, node := range slices.Concat(m.nodes, m.refused) {
			if _, done := g.pods[node.Name]; !done {
				if g.pods[node.Name], err = c.podsOf(node); err != nil {
					return nil, err
				}
			}
		}
	}
	return g, nil
}

// component returns the draining maintenances that share nodes with the subject, directly or through others, the subject first.
func (c *Controller) component(ctx context.Context, subject *member) ([]*member, error) {
	component := []*member{subject}
	seen := map[string]bool{subject.Name: true}
	for i := 0; i < len(component); i++ {
		for _, node := range component[i].nodes {
			for _, name := range c.selection.maintenancesOn(node.Name) {
				if seen[name] {
					continue
				}
				seen[name] = true
				other, err := c.get(name)
				if apierrors.IsNotFound(err) || err == nil && !isDraining(other) {
					continue
				}
				if err != nil {
					return nil, err
				}
				m, err := c.member(ctx, other)
				if err != nil {
					return nil, fmt.Errorf("maintenance %s on the same nodes: %w", name, err)
				}
				component = append(component, m)
			}
		}
	}
	return component, nil
}

// member sorts the nodes of a maintenance into those it may touch and those it may not. An Idle one touches none, so that nobody is asked.
func (c *Controller) member(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) (*member, error) {
	m := &member{NodeMaintenance: nm}
	nodes := c.selection.nodesOf(nm.Name)
	if !isHolding(nm) {
		m.nodes = nodes
		return m, nil
	}
	allowed, err := c.authorize.allowed(ctx, nm.Spec.RequestedBy, nodes)
	if err != nil {
		return nil, err
	}
	for _, node := range nodes {
		if allowed[node.Name] {
			m.nodes = append(m.nodes, node)
		} else {
			m.refused = append(m.refused, node)
		}
	}
	return m, nil
}

func (m *member) username() string {
	if m.Spec.RequestedBy == nil {
		return ""
	}
	return m.Spec.RequestedBy.Username
}

// podsOf returns the live pods that count for a node, in the order of their names.
func (c *Controller) podsOf(node *corev1.Node) ([]livePod, error) {
	objects, err := c.podIndexer.ByIndex(controllercache.PodsByNode, node.Name)
	if err != nil {
		return nil, err
	}
	pods := make([]livePod, 0, len(objects))
	for _, obj := range objects {
		if pod := obj.(*corev1.Pod); drainplan.IsLive(pod) {
			live := c.classify(pod, node)
			live.evacuation = c.evacuationOf(pod)
			pods = append(pods, live)
		}
	}
	slices.SortFunc(pods, func(a, b livePod) int {
		if a.Namespace != b.Namespace {
			return strings.Compare(a.Namespace, b.Namespace)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return pods, nil
}

func (c *Controller) classify(pod *corev1.Pod, node *corev1.Node) livePod {
	plan := drainplan.PodOf(pod, node.UID)
	return livePod{Pod: pod, plan: plan, left: drainplan.Left(pod, plan.Type, c.evacuators)}
}

// world is what the planner is asked about.
func (g *gathered) world() drainplan.World {
	var w drainplan.World
	added := map[string]bool{}
	for _, m := range g.draining {
		pm := drainplan.Maintenance{
			Name: m.Name, Created: m.CreationTimestamp.Time, Plan: m.Spec.DrainPlan,
			Before: make(map[string][]maintenancev1alpha1.DrainPlanEntry, len(m.nodes)),
		}
		before := targetsByNode(m.NodeMaintenance)
		for _, node := range m.nodes {
			pm.Nodes = append(pm.Nodes, node.Name)
			if !node.Spec.Unschedulable {
				pm.Uncordoned = append(pm.Uncordoned, node.Name)
			}
			if targets, ok := before[refOf(node)]; ok {
				pm.Before[node.Name] = targets
			}
			if !added[node.Name] {
				added[node.Name] = true
				w.Nodes = append(w.Nodes, &drainplan.Node{Name: node.Name, UID: node.UID, Pods: leaving(g.pods[node.Name])})
			}
		}
		w.Maintenances = append(w.Maintenances, pm)
	}
	return w
}

func leaving(pods []livePod) []drainplan.Pod {
	out := make([]drainplan.Pod, 0, len(pods))
	for i := range pods {
		if pods[i].left == "" {
			out = append(out, pods[i].plan)
		}
	}
	return out
}

func refOf(node *corev1.Node) maintenancev1alpha1.NodeReference {
	return maintenancev1alpha1.NodeReference{Name: node.Name, UID: node.UID}
}

// targetsByNode returns what a status says, by name and UID: a node that was created again starts anew.
func targetsByNode(nm *maintenancev1alpha1.NodeMaintenance) map[maintenancev1alpha1.NodeReference][]maintenancev1alpha1.DrainPlanEntry {
	out := make(map[maintenancev1alpha1.NodeReference][]maintenancev1alpha1.DrainPlanEntry, len(nm.Status.NodeStatuses))
	for i := range nm.Status.NodeStatuses {
		if entry := &nm.Status.NodeStatuses[i]; len(entry.DrainTargets) > 0 {
			out[entry.NodeRef] = entry.DrainTargets
		}
	}
	return out
}

// holders returns the maintenances, other than the one of the given UID, that keep a node cordoned: those whose annotation is on it and those
// that are about to put it there. A right that was revoked ends no hold that was taken.
func (c *Controller) holders(ctx context.Context, node *corev1.Node, except types.UID) (owners, error) {
	annotated := ownersOf(node)
	out := owners{}
	for _, name := range c.selection.maintenancesOn(node.Name) {
		nm, err := c.get(name)
		if apierrors.IsNotFound(err) || err == nil && (nm.UID == except || !isHolding(nm)) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !annotated.has(nm) {
			allowed, err := c.authorize.allowed(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})
			if err != nil {
				return nil, err
			}
			if !allowed[node.Name] {
				continue
			}
		}
		out[nm.Name] = nm.UID
	}
	return out, nil
}

// maintenances returns all maintenances.
func (c *Controller) maintenances() []*maintenancev1alpha1.NodeMaintenance {
	all, err := c.maintenanceLister.List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("list maintenances from the cache: %w", err))
	}
	return all
}
