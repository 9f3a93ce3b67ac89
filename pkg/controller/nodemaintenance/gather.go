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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drainplan"
)

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
	// views are what is on the nodes, by name, for all nodes of subject and draining.
	views map[string]*nodeView
	// memory is what earlier syncs of the subject have worked out.
	memory *memory
}

func (c *Controller) gather(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) (*gathered, error) {
	subject, err := c.member(ctx, nm)
	if err != nil {
		return nil, err
	}
	g := &gathered{subject: subject, memory: c.memories.of(nm)}
	if isDraining(nm) {
		if g.draining, err = c.component(ctx, subject); err != nil {
			return nil, err
		}
	}
	g.views = make(map[string]*nodeView, len(subject.nodes)+len(subject.refused))
	for _, m := range append(slices.Clone(g.draining), subject) {
		for _, node := range slices.Concat(m.nodes, m.refused) {
			if _, done := g.views[node.Name]; !done {
				if g.views[node.Name], err = c.view(ctx, node); err != nil {
					return nil, err
				}
			}
		}
	}
	return g, nil
}

// stays says whether a pod of this server is left on its node.
func (g *gathered) stays(pod *corev1.Pod) bool {
	view := g.views[pod.Spec.NodeName]
	return view != nil && slices.ContainsFunc(view.pods, func(p livePod) bool { return p.UID == pod.UID && p.left == drainplan.LeftOwn })
}

// drainingOn returns the maintenance of the given name if it drains the node, or nil.
func (g *gathered) drainingOn(name string, node *corev1.Node) *member {
	for _, m := range g.draining {
		if m.Name == name && m.mayTouch(node) {
			return m
		}
	}
	return nil
}

// mayTouch says whether a selected node is one that the requester may delete.
func (m *member) mayTouch(node *corev1.Node) bool {
	return !slices.ContainsFunc(m.refused, func(r *corev1.Node) bool { return r.Name == node.Name })
}

// component returns the draining maintenances that share nodes with the subject, directly or through others, the subject first.
func (c *Controller) component(ctx context.Context, subject *member) ([]*member, error) {
	component := []*member{subject}
	seen := map[string]bool{subject.Name: true}
	for i := 0; i < len(component); i++ {
		for _, name := range c.selection.neighbours(component[i].nodes) {
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

// world is what the planner is asked about.
func (c *Controller) world(g *gathered) drainplan.World {
	var w drainplan.World
	added := make(map[string]bool, len(g.views))
	for _, m := range g.draining {
		pm := drainplan.Maintenance{
			Name: m.Name, Created: m.CreationTimestamp.Time, Plan: m.Spec.DrainPlan,
			Nodes: make([]string, 0, len(m.nodes)), Before: make(map[string][]maintenancev1alpha1.DrainPlanEntry, len(m.nodes)),
		}
		before := c.stored.nodes(m.NodeMaintenance)
		for _, node := range m.nodes {
			pm.Nodes = append(pm.Nodes, node.Name)
			if !node.Spec.Unschedulable {
				pm.Uncordoned = append(pm.Uncordoned, node.Name)
			}
			if targets := before[refOf(node)].targets; len(targets) > 0 {
				pm.Before[node.Name] = targets
			}
			if !added[node.Name] {
				added[node.Name] = true
				w.Nodes = append(w.Nodes, g.views[node.Name].plan)
			}
		}
		w.Maintenances = append(w.Maintenances, pm)
	}
	return w
}

func refOf(node *corev1.Node) maintenancev1alpha1.NodeReference {
	return maintenancev1alpha1.NodeReference{Name: node.Name, UID: node.UID}
}

// holders returns the maintenances, other than the one of the given UID, that keep a node cordoned: those whose annotation is on it and those
// that are about to put it there. A right that was revoked ends no hold that was taken.
func (c *Controller) holders(ctx context.Context, node *corev1.Node, except types.UID) (owners, error) {
	return c.holdersFor(ctx, node, ownersOf(node), func(nm *maintenancev1alpha1.NodeMaintenance) bool { return nm.UID != except && isHolding(nm) })
}

// holdersFor returns the maintenances on a node for which holds is true and that stand in the annotation, or may come to stand there.
func (c *Controller) holdersFor(ctx context.Context, node *corev1.Node, annotated owners, holds func(*maintenancev1alpha1.NodeMaintenance) bool) (owners, error) {
	out := owners{}
	for _, name := range c.selection.maintenancesOn(node.Name) {
		nm, err := c.get(name)
		if apierrors.IsNotFound(err) || err == nil && !holds(nm) {
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
