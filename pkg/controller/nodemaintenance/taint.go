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
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drainplan"
)

// The taint stands on a node from the moment when its targets include DaemonSet pods until no maintenance whose targets do so holds the node. The
// DaemonSet controller would replace at once what leaves. Who holds it is written down as for the cordon.

// taintersOf returns who holds our taint on a node.
func taintersOf(node *corev1.Node) owners {
	return ownersIn(node, maintenancev1alpha1.AnnotationTaintedBy)
}

func isDrainTaint(taint corev1.Taint) bool {
	return taint.Key == maintenancev1alpha1.TaintDrain && taint.Effect == corev1.TaintEffectNoSchedule
}

// decideTaint says what puts the taint on a node on behalf of a maintenance. One without our annotation is somebody else's, and enough.
func decideTaint(node *corev1.Node, nm *maintenancev1alpha1.NodeMaintenance) nodeChange {
	tainted := drainplan.IsTainted(node)
	// What most nodes look like then, without reading the annotation.
	if value := node.Annotations[maintenancev1alpha1.AnnotationTaintedBy]; tainted && (value == "" || value == soleOwner(nm)) {
		return nodeChange{}
	}
	current := taintersOf(node)
	if tainted && (current == nil || current.has(nm)) {
		return nodeChange{}
	}
	wanted := maps.Clone(current)
	if wanted == nil {
		wanted = owners{}
	}
	wanted[nm.Name] = nm.UID
	change := nodeChange{tainters: wanted, setTainters: !maps.Equal(wanted, current)}
	if !tainted {
		change.taints = append(slices.Clone(node.Spec.Taints), corev1.Taint{Key: maintenancev1alpha1.TaintDrain, Effect: corev1.TaintEffectNoSchedule})
		change.setTaints = true
		change.restored = current.has(nm)
	}
	return change
}

// decideUntaint says what remains of our taint when the maintenances for which isLeaving is true let the node go and holders still want it.
func decideUntaint(node *corev1.Node, holders owners, isLeaving func(name string, uid types.UID) bool) nodeChange {
	current := taintersOf(node)
	rest := maps.Clone(current)
	maps.DeleteFunc(rest, isLeaving)
	if len(rest) == len(current) {
		return nodeChange{}
	}
	change := nodeChange{tainters: holders, setTainters: true}
	if len(holders) == 0 && slices.ContainsFunc(node.Spec.Taints, isDrainTaint) {
		change.taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), isDrainTaint)
		change.setTaints = true
	}
	return change
}

// asksDaemonSets says whether the stored targets of a maintenance that drains a node include DaemonSet pods.
func (c *Controller) asksDaemonSets(nm *maintenancev1alpha1.NodeMaintenance, node *corev1.Node) bool {
	return isDraining(nm) && slices.ContainsFunc(c.stored.nodes(nm)[refOf(node)].targets, func(e maintenancev1alpha1.DrainPlanEntry) bool {
		return e.PodType == maintenancev1alpha1.PodTypeDaemonSet
	})
}

// taintHolders returns the maintenances, other than the one of the given UID, that need the taint on a node.
func (c *Controller) taintHolders(ctx context.Context, node *corev1.Node, except types.UID) (owners, error) {
	return c.holdersFor(ctx, node, taintersOf(node), func(nm *maintenancev1alpha1.NodeMaintenance) bool {
		return nm.UID != except && c.asksDaemonSets(nm, node)
	})
}

// taint keeps DaemonSet pods off the nodes from which they are asked to leave, before the first of them is. It returns the nodes where that has
// not succeeded: those of one node must not wait for another.
func (c *Controller) taint(ctx context.Context, g *gathered, l *look) (sets.Set[string], error) {
	nm := g.subject.NodeMaintenance
	failed := sets.New[string]()
	if !c.evacuators.Has(maintenancev1alpha1.EvacuatorClassDaemonSet) {
		return failed, nil
	}
	var pending []*corev1.Node
	for i, node := range g.subject.nodes {
		if !c.asksDaemonSets(nm, node) || decideTaint(node, nm).empty() || len(c.behind(g, node, l.counts[i].targets)) > 0 {
			continue
		}
		// What was written a moment ago, the conditions among it, need not be in the cache yet.
		if latest, err := c.conditions.latest(node.Name); err == nil && latest.UID == node.UID {
			node = latest
		}
		change := decideTaint(node, nm)
		if change.empty() {
			continue
		}
		failed.Insert(node.Name)
		if wait := c.taints.backOff(node); change.restored && wait > 0 {
			c.queue.AddAfter(nm.Name, wait)
			continue
		}
		pending = append(pending, node)
	}
	if len(pending) == 0 {
		return failed, nil
	}
	if err := c.confirmHolding(ctx, nm); err != nil {
		return failed, err
	}
	var mu sync.Mutex
	return failed, c.inRounds(ctx, nm.Name, len(pending), func(ctx context.Context, i int) error {
		node := pending[i]
		change := decideTaint(node, nm)
		if err := c.apply(ctx, node, change); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("taint node %s: %w", node.Name, err)
		}
		if change.restored {
			c.taints.restored(node)
			c.nodeEvent(node, nm, corev1.EventTypeWarning, EventTaintRestored, actionTaint,
				"Somebody took the taint %s off the node while NodeMaintenance %s asks its DaemonSet pods to leave; it was put on again", maintenancev1alpha1.TaintDrain, nm.Name)
		}
		mu.Lock()
		defer mu.Unlock()
		failed.Delete(node.Name)
		return nil
	})
}
