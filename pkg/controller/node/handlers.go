// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/marks"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

// subscribe registers handlers that enqueue a node when its cordon, taints or conditions may have
// to change.
func (c *Controller) subscribe() {
	c.selection.Subscribe(selection.Subscriber{Node: c.nodeChanged, Maintenance: c.maintenanceChanged, Released: c.enqueue})
	c.state.Subscribe(nodestate.Subscriber{
		Pod: c.podChanged, Evacuation: c.evacuationChanged, RequestEnded: c.enqueue, Task: c.taskChanged,
	})
	c.rights.Subscribe(c.enqueue)
}

// enqueue enqueues a node immediately; enqueueConditions enqueues its conditions after
// conditionsDelay.
func (c *Controller) enqueue(name string)           { c.queue.Add(name) }
func (c *Controller) enqueueConditions(name string) { c.queue.AddAfter(name, conditionsDelay) }

// enqueueAll enqueues all nodes for which isConcerned is true, in case an event was missed.
func (c *Controller) enqueueAll(context.Context) {
	for _, obj := range c.nodes.List() {
		if node := obj.(*corev1.Node); c.isConcerned(node) {
			c.enqueue(node.Name)
		}
	}
}

// isConcerned reports whether a node has an annotation of ours, a maintenance selects it, or a
// worker may have registered it again.
func (c *Controller) isConcerned(node *corev1.Node) bool {
	for _, key := range marks.Annotations {
		if _, ok := node.Annotations[key]; ok {
			return true
		}
	}
	return len(c.selection.MaintenancesOn(node.Name)) > 0 || c.state.TaskOn(node.Name) != nil
}

func (c *Controller) nodeChanged(change selection.NodeChange) {
	old, node := change.Old, change.New
	if old != nil && (node == nil || old.UID != node.UID) {
		c.forget(old)
	}
	if node == nil || old != nil && sameNode(old, node) || !c.isConcerned(node) {
		return
	}
	c.enqueue(node.Name)
}

// forget drops what is kept in memory about a deleted node.
func (c *Controller) forget(node *corev1.Node) {
	c.foreign.Forget(node.UID)
	nodesWithForeignMarks.Set(float64(len(c.foreign.Keys())))
}

// sameNode reports whether two states of a node are equal in all fields that the decision reads.
func sameNode(a, b *corev1.Node) bool {
	// The labels decide which pool the node has, and with it which users may maintain the node.
	samePool := labels.Equals(a.Labels, b.Labels)
	if a.UID != b.UID || !samePool || a.Spec.Unschedulable != b.Spec.Unschedulable || !nodestate.SameTaints(a, b) || !marks.Same(a, b) ||
		protocol.StaticPodFactsOf(a) != protocol.StaticPodFactsOf(b) || !sameProtection(a, b) {
		return false
	}
	for _, conditionType := range conditionTypes {
		x, y := conditionOf(a, conditionType), conditionOf(b, conditionType)
		if (x == nil) != (y == nil) || x != nil && (x.Status != y.Status || x.Reason != y.Reason || x.Message != y.Message) {
			return false
		}
	}
	return true
}

func sameProtection(a, b *corev1.Node) bool {
	return !slices.ContainsFunc(podcache.NodeProtections, func(key string) bool { return a.Annotations[key] != b.Annotations[key] })
}

// maintenanceChanged enqueues the nodes that a maintenance selects, and the nodes whose annotations
// name it.
func (c *Controller) maintenanceChanged(old, nm *v1alpha1.NodeMaintenance) {
	if old != nil && nm != nil && old.UID == nm.UID && old.Generation == nm.Generation && old.DeletionTimestamp.Equal(nm.DeletionTimestamp) &&
		drainplan.SameTargets(old, nm) {
		return
	}
	for _, m := range []*v1alpha1.NodeMaintenance{old, nm} {
		if m == nil {
			continue
		}
		for _, node := range c.selection.NodesOf(m.Name) {
			c.enqueue(node.Name)
		}
		for name := range c.recordedFor(m.UID) {
			c.enqueue(name)
		}
	}
}

// recordedFor returns the cached nodes whose annotations name a maintenance.
func (c *Controller) recordedFor(uid types.UID) sets.Set[string] {
	keys, err := c.nodes.IndexKeys(nodestate.NodesByMaintenance, string(uid))
	if err != nil {
		return nil
	}
	return sets.New(keys...)
}

// taskChanged enqueues the node of a NodeTask. The end of the work is collected: in most cases the
// release of the node follows it in moments, and is then the only change of the node.
func (c *Controller) taskChanged(task *v1alpha1.NodeTask) {
	if task.Status.Result != "" || task.Status.State == v1alpha1.NodeTaskDone {
		c.enqueueConditions(task.Name)
	} else {
		c.enqueue(task.Name)
	}
}

func (c *Controller) podChanged(old, pod *corev1.Pod) {
	for _, p := range []*corev1.Pod{old, pod} {
		if p != nil {
			c.enqueueHeld(podcache.NodeOf(p))
		}
	}
}

func (c *Controller) evacuationChanged(old, evacuation *v1alpha1.Evacuation) {
	latest := evacuation
	if latest == nil {
		latest = old
	}
	node := c.state.NodeOf(latest)
	c.enqueueHeld(node)
	if old != nil && nodestate.IsOurs(old) && (evacuation == nil || !nodestate.IsOurs(evacuation)) && node != "" {
		// The release of the node may wait for this Evacuation.
		c.queue.AddAfter(node, quietRetry)
	}
}

// enqueueHeld enqueues the conditions of a node if a maintenance selects it.
func (c *Controller) enqueueHeld(node string) {
	if len(c.selection.MaintenancesOn(node)) > 0 {
		c.enqueueConditions(node)
	}
}
