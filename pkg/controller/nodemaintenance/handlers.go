// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/marks"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

// subscribe registers handlers that enqueue the affected maintenances.
func (c *Controller) subscribe() {
	c.selection.Subscribe(selection.Subscriber{Node: c.nodeChanged, Maintenance: c.maintenanceChanged, Released: c.nodeReleased})
	c.state.Subscribe(nodestate.Subscriber{
		Pod: c.podChanged, Evacuation: c.evacuationChanged, Changed: c.stateChanged, Task: c.taskChanged,
	})
	c.rights.Subscribe(c.enqueueNode)
}

// taskChanged enqueues the maintenances of a node, since they do not ask its pods to leave while a
// worker has it, and the Evacuations of its pods, for withdrawal.
func (c *Controller) taskChanged(task *v1alpha1.NodeTask) {
	c.queue.Add(task.Spec.Maintenance.Name)
	c.enqueueNode(task.Name)
	c.enqueueEvacuations(task.Name)
}

func (c *Controller) maintenanceChanged(old, nm *v1alpha1.NodeMaintenance) {
	if nm == nil {
		c.enqueueNeighbours(old)
		c.queue.Add(old.Name)
		c.enqueueEvacuationsOf(old)
		return
	}
	if old != nil && old.UID == nm.UID && old.Spec.Stage != nm.Spec.Stage || old == nil && nm.Status.ObservedGeneration == 0 {
		text := fmt.Sprintf("Stage %s", nm.Spec.Stage)
		if by := protocol.UserName(v1alpha1.RequesterOf(nm)); by != "" {
			text += ", requested by " + by
		}
		c.stageEvent(nm, EventStageStarted, actionMaintain, text)
	}
	if old != nil && old.UID == nm.UID && old.Spec.Paused != nm.Spec.Paused || old == nil && nm.Status.ObservedGeneration == 0 && nm.Spec.Paused {
		c.announcePause(old, nm)
	}
	statusOnly := old != nil && old.UID == nm.UID && old.Generation == nm.Generation &&
		slices.Equal(old.Finalizers, nm.Finalizers) && old.DeletionTimestamp.Equal(nm.DeletionTimestamp)
	if !statusOnly {
		c.queue.Add(nm.Name)
	}
	if old != nil && v1alpha1.IsHolding(old) != v1alpha1.IsHolding(nm) || !statusOnly || !drainplan.SameTargets(old, nm) {
		// Enqueue them without the debounce: they wait until nm has stored its targets.
		c.enqueueNeighbours(nm)
	}
	if v1alpha1.IsEnding(nm) && !statusOnly {
		c.enqueueEvacuationsOf(nm)
	}
}

// enqueueNeighbours enqueues the maintenances that share a node with nm, without a delay.
func (c *Controller) enqueueNeighbours(nm *v1alpha1.NodeMaintenance) {
	for _, name := range c.selection.Neighbours(c.selection.NodesOf(nm.Name)) {
		if name != nm.Name {
			c.queue.Add(name)
		}
	}
}

func (c *Controller) nodeChanged(change selection.NodeChange) {
	old, node := change.Old, change.New
	if old != nil && (node == nil || old.UID != node.UID) {
		c.enqueueEvacuations(old.Name)
	}
	if old != nil && node != nil && sameNode(old, node) {
		return
	}
	c.enqueue(change.Concerned)
	for _, name := range change.Lingering {
		c.queue.AddAfter(name, selection.Lingering)
	}
	if old != nil {
		// A maintenance that ends may wait until the annotations of the node no longer name it.
		c.enqueue(sets.List(marks.Names(old)))
	}
}

// sameNode reports whether two states of a node are equal in all fields that this controller reads.
func sameNode(a, b *corev1.Node) bool {
	return a.UID == b.UID && a.Spec.Unschedulable == b.Spec.Unschedulable && labels.Equals(a.Labels, b.Labels) && marks.Same(a, b) &&
		drainplan.IsTainted(a) == drainplan.IsTainted(b) && protocol.StaticPodFactsOf(a) == protocol.StaticPodFactsOf(b)
}

// stateChanged enqueues the maintenances that select a node, and the maintenances that its
// annotations still name.
func (c *Controller) stateChanged(name string) {
	c.enqueueNode(name)
	if node, err := c.nodeLister.Get(name); err == nil {
		c.enqueue(sets.List(marks.Names(node)))
	}
}

// nodeReleased enqueues the Evacuations of a node, for withdrawal, and its maintenances.
func (c *Controller) nodeReleased(node string) {
	c.enqueueEvacuations(node)
	c.enqueueNode(node)
}

func (c *Controller) podChanged(old, pod *corev1.Pod) {
	if old != nil && pod != nil && podcache.NodeOf(old) != podcache.NodeOf(pod) {
		// The Evacuation was requested for the old node. Maybe no maintenance drains the new node.
		if e := c.cluster.EvacuationOf(pod); e != nil {
			c.withdrawals.enqueue(e)
		}
	}
	for _, p := range []*corev1.Pod{old, pod} {
		if p != nil {
			c.enqueueNode(podcache.NodeOf(p))
		}
	}
}

func (c *Controller) evacuationChanged(old, evacuation *v1alpha1.Evacuation) {
	latest := evacuation
	if latest == nil {
		latest = old
	}
	c.withdrawals.enqueue(latest)
	c.enqueueNode(c.state.NodeOf(latest))
}

// enqueueEvacuationsOf enqueues the Evacuations on the nodes of a maintenance. Those that no other
// maintenance wants are then withdrawn.
func (c *Controller) enqueueEvacuationsOf(nm *v1alpha1.NodeMaintenance) {
	names := c.touchedNodes(nm)
	for _, node := range c.selection.NodesOf(nm.Name) {
		names.Insert(node.Name)
	}
	for name := range names {
		c.enqueueEvacuations(name)
	}
	for _, e := range c.state.EvacuationsWithoutNode() {
		c.withdrawals.enqueue(e)
	}
}

// enqueueEvacuations enqueues the Evacuations of a node. Those that no maintenance wants are then
// withdrawn.
func (c *Controller) enqueueEvacuations(node string) {
	for _, e := range c.state.OurEvacuations(node) {
		c.withdrawals.enqueue(e)
	}
	for _, request := range c.state.Requests.On(node) {
		c.withdrawals.queue.Add(withdrawal{NamespacedName: request.Evacuation})
	}
}

func (c *Controller) enqueueNode(node string) {
	if names := c.selection.MaintenancesOn(node); len(names) > 0 {
		c.enqueue(names)
	}
}

// enqueue adds maintenances after the debounce. Adding a maintenance again does not extend its
// delay, so a stream of events cannot starve it.
func (c *Controller) enqueue(names []string) {
	for _, name := range names {
		c.queue.AddAfter(name, c.debounce(name))
	}
}
