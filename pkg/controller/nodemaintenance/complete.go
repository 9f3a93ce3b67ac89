// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/identity"
	"haulout.dev/haulout/pkg/mergepatch"
)

// releaseRetry is the time after which a maintenance that ends is reconciled again without an
// event.
const releaseRetry = 5 * time.Second

// heldNodes returns the nodes that a maintenance has not released: the node has an annotation that
// names the maintenance, an Evacuation that no other maintenance wants, an eviction in flight, a
// worker that works for the maintenance, or a cordon that the maintenance has to remove.
func (c *Controller) heldNodes(nm *v1alpha1.NodeMaintenance) sets.Set[string] {
	held := sets.New[string]()
	names := c.touchedNodes(nm)
	for _, node := range c.selection.NodesOf(nm.Name) {
		names.Insert(node.Name)
	}
	for name, task := range c.state.TasksOf(nm.UID) {
		if holds.Keeps(task, nm.UID) {
			held.Insert(name) // even if the node does not exist: its worker may register it again
		}
	}
	for name := range names {
		node, exists := c.state.Nodes.Get(name)
		if exists && isUntaken(node, nm) {
			continue
		}
		if exists && (marks.UIDs(node).Has(nm.UID) || c.isToBeUncordoned(node, nm)) || !c.isQuiet(name) {
			held.Insert(name)
		}
	}
	return held
}

// lostNodes returns the nodes in the status of a maintenance that do not exist.
func (c *Controller) lostNodes(nm *v1alpha1.NodeMaintenance) sets.Set[string] {
	lost := sets.New[string]()
	for i := range nm.Status.NodeStatuses {
		if name := nm.Status.NodeStatuses[i].NodeRef.Name; nm.Status.NodeStatuses[i].Task != nil {
			if _, exists := c.state.Nodes.Get(name); !exists {
				lost.Insert(name)
			}
		}
	}
	return lost
}

// isUntaken reports whether a maintenance has a node in its status that it never took.
func isUntaken(node *corev1.Node, nm *v1alpha1.NodeMaintenance) bool {
	entry := v1alpha1.NodeStatusOf(nm, refOf(node))
	return entry != nil && marks.IsUntaken(node, nm, entry)
}

// isToBeUncordoned reports whether a node has a cordon that a maintenance has to remove.
func (c *Controller) isToBeUncordoned(node *corev1.Node, nm *v1alpha1.NodeMaintenance) bool {
	return v1alpha1.UncordonsOnly(nm) && node.Spec.Unschedulable && slices.Contains(c.selection.MaintenancesOn(node.Name), nm.Name) &&
		!c.state.Cordons.IsLifted(node, nm.UID) && !c.holders.Any(node.Name, func(other *v1alpha1.NodeMaintenance) bool {
		return other.UID != nm.UID && v1alpha1.IsHolding(other) && marks.Holds(node, other)
	})
}

// isQuiet reports whether a node has neither an eviction in flight nor an Evacuation of ours that
// no maintenance wants.
func (c *Controller) isQuiet(node string) bool {
	if c.state.IsEvicting(node) {
		return false
	}
	if !c.isTargeted(node) {
		return !c.state.HasOurs(node)
	}
	// A request may have been made for another active maintenance.
	isRecent := func(r nodestate.Request) bool { return r.IsRecent(c.clock.Now()) }
	return !slices.ContainsFunc(c.state.Requests.On(node), isRecent) && !slices.ContainsFunc(c.state.OurEvacuations(node), func(e *v1alpha1.Evacuation) bool {
		return !c.wanted(e, node)
	})
}

// isTargeted reports whether a maintenance drains a node and has stored targets for it, and no
// worker stops it.
func (c *Controller) isTargeted(name string) bool {
	node, err := c.nodeLister.Get(name)
	if err != nil {
		return false
	}
	hands := c.state.HandsOn(node)
	return c.holders.Any(name, func(nm *v1alpha1.NodeMaintenance) bool { return holds.Targeting(node)(nm) && !hands.Stops(nm, name) })
}

// decideRelease decides the status of a maintenance that ends. The status keeps only the names, the
// pools and the tasks of the released nodes, since a completed maintenance may exist for years. The
// user who deletes it needs the right to the nodes that it took, so the status also keeps the
// reason of nodes that it did not take. It keeps the targets, the reason and the message of nodes
// that are not released yet, and the totals of the drain.
func (d *decision) decideRelease(f *facts) {
	nm := f.subject.NodeMaintenance
	d.status = *nm.Status.DeepCopy()
	d.status.ObservedGeneration = nm.Generation
	var failed []loop.Failure
	why := ""
	for i := range d.status.NodeStatuses {
		entry := &d.status.NodeStatuses[i]
		name := entry.NodeRef.Name
		before := &nm.Status.NodeStatuses[i]
		*entry = v1alpha1.NodeMaintenanceNodeStatus{NodeRef: entry.NodeRef, PoolIndex: entry.PoolIndex, Task: f.taskEntry(name, before.Task, f.lost.Has(name))}
		if !f.held.Has(name) {
			if marks.IsUntaken(nil, nm, before) {
				entry.Reason = before.Reason
			}
			continue
		}
		entry.DrainTargets = before.DrainTargets
		entry.Reason, entry.DrainMessage = releaseOf(f, name)
		if why == "" && entry.DrainMessage != beingReleased {
			why = fmt.Sprintf(". Node %s: %s", name, entry.DrainMessage)
		}
		if trouble, failing := f.troubles[name]; failing {
			failed = append(failed, loop.Failure{About: "node " + name, Since: trouble.Since, Text: trouble.Text})
		}
	}
	slices.SortFunc(failed, loop.Failure.Compare)
	d.withdraw = sets.List(f.held)
	if len(f.held) > 0 {
		d.wake = sooner(d.wake, releaseRetry)
	}
	setCondition(nm, &d.status, v1alpha1.ConditionDrained,
		verdict{metav1.ConditionFalse, v1alpha1.ReasonNotRequested, "The maintenance is complete"}, f.now)
	progressing := decideProgressing(progressFacts{ending: true, held: d.withdraw, why: why, problems: failed})
	ready := progressing
	if len(f.held) > 0 {
		ready.status = metav1.ConditionFalse
	}
	setCondition(nm, &d.status, v1alpha1.ConditionProgressing, progressing, f.now)
	setReady(nm, &d.status, ready, f.now)
}

// goneTime is how long the maintenance of a shutdown lasts after its beginning if its node does not
// exist, and how long it stays after its completion. Autoscalers delete the nodes of machines that
// they shut down, and the names do not return.
const goneTime = time.Hour

// finishCompleted deletes a completed maintenance when its TTL is over. Those of a rollout stay as
// long as the rollout: they are its memory. One that the rollout has left behind has no owner.
func (c *Controller) finishCompleted(ctx context.Context, nm *v1alpha1.NodeMaintenance) error {
	if nm.DeletionTimestamp != nil {
		return nil
	}
	completed := v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageComplete)
	ttl := c.completedTTL
	if name := protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector); name != "" {
		// The node agent deletes the oldest ones of its node.
		if _, err := c.nodeLister.Get(name); apierrors.IsNotFound(err) && (ttl == 0 || ttl > goneTime) {
			ttl = goneTime
		}
	}
	if ttl == 0 || completed.IsZero() || protocol.RolloutOf(nm) != nil {
		return c.addReady(ctx, nm)
	}
	if wait := ttl - c.clock.Since(completed); wait > 0 {
		c.queue.AddAfter(nm.Name, wait)
		return c.addReady(ctx, nm)
	}
	err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Delete(ctx, nm.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(nm.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the completed maintenance after %s: %w", ttl, err)
	}
	return nil
}

// addReady writes the condition Ready of a maintenance that an older server has completed.
// Otherwise a client that waits for the condition would wait for ever.
func (c *Controller) addReady(ctx context.Context, nm *v1alpha1.NodeMaintenance) error {
	if meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionReady) {
		return nil
	}
	status := nm.Status.DeepCopy()
	status.ObservedGeneration = nm.Generation
	setReady(nm, status, decideProgressing(progressFacts{ending: true}), c.clock.Now())
	_, err := c.writeStatus(ctx, nm, *status, true)
	return err
}

func (c *Controller) dropFinalizer(ctx context.Context, nm *v1alpha1.NodeMaintenance) error {
	if !slices.Contains(nm.Finalizers, v1alpha1.FinalizerMaintenanceCompletion) {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(nm.Finalizers), func(f string) bool { return f == v1alpha1.FinalizerMaintenanceCompletion })
	_, err := mergepatch.IfUnchanged(ctx, c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Patch, nm,
		map[string]any{"finalizers": rest}, nil, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer: %w", err)
	}
	if err == nil {
		c.stageEvent(nm, EventCompleted, actionComplete, "All changes of the maintenance to nodes are undone")
	}
	return nil
}

// deletionPatience is how long to wait for the API server to finish a deletion that it makes in two
// writes.
const deletionPatience = 5 * time.Second

// finishDeletion repeats the deletion of a maintenance that has a deletion timestamp and no
// finalizer. The API server deletes an Idle maintenance in two writes. If it is killed between
// them, the object would exist forever.
func (c *Controller) finishDeletion(ctx context.Context, nm *v1alpha1.NodeMaintenance) error {
	if wait := deletionPatience - c.clock.Since(nm.DeletionTimestamp.Time); wait > 0 {
		// The clock of the server that set the timestamp may be fast.
		c.queue.AddAfter(nm.Name, min(wait, deletionPatience))
		return nil
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(nm.UID))}
	err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Delete(ctx, nm.Name, options)
	// A conflict means that another object has the same name now.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("repeat the deletion: %w", err)
	}
	return nil
}

// supersede completes the maintenance of a shutdown in place of the node agent.
func (c *Controller) supersede(ctx context.Context, f *facts) error {
	nm := f.subject.NodeMaintenance
	spec := map[string]any{"stage": v1alpha1.NodeMaintenanceStageComplete}
	_, err := mergepatch.IfUnchanged(ctx, c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Patch, nm, nil,
		map[string]any{"spec": spec}, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("complete the maintenance, since %s: %w", f.superseded, err)
	}
	c.maintenanceEvent(nm, corev1.EventTypeNormal, EventSuperseded, actionComplete, "Completed: %s", f.superseded)
	return nil
}

// whySuperseded returns why the maintenance of a shutdown is over although the node agent has not
// completed it; otherwise "", and the time after which it may be over without an event. Its node
// does not exist, or the machine has shut down for a later maintenance that holds the node. Until
// then the later shutdown may be cancelled, and the earlier maintenance must still hold the node.
func (c *Controller) whySuperseded(nm *v1alpha1.NodeMaintenance) (why string, wait time.Duration) {
	name := protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector)
	if name == "" {
		return "", 0
	}
	node, err := c.nodeLister.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		if nm.Spec.RequestedBy == nil {
			return "", 0
		}
		// A user who has taken the maintenance over may repair the machine.
		if by, _ := identity.NodeOf(rights.UserOf(nm.Spec.RequestedBy)); by != name {
			return "", 0
		}
		began := nm.CreationTimestamp.Time
		if wait := goneTime - c.clock.Since(began); wait > 0 {
			return "", wait
		}
		return fmt.Sprintf("the shutdown of the node began at %s, and the node does not exist", began.UTC().Format(time.RFC3339)), 0
	case err != nil:
		return "", 0
	}
	if later := c.laterShutdown(name, node, nm); later != nil {
		return "the node has shut down since then, for NodeMaintenance " + later.Name, 0
	}
	return "", 0
}

// laterShutdown returns a maintenance of a later shutdown that holds the same node and for which
// the machine has shut down, or nil. The machine has shut down for a maintenance if its kernel has
// booted since, or if another shutdown maintenance was created in a later boot.
func (c *Controller) laterShutdown(name string, node *corev1.Node, nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	later := c.holders.Which(name, func(m *v1alpha1.NodeMaintenance) bool {
		return v1alpha1.IsHolding(m) && marks.IsShutdownOf(name, m) &&
			v1alpha1.CompareAge(nm, m) < 0 && marks.Holds(node, m)
	})
	if len(later) == 0 {
		return nil
	}
	slices.SortFunc(later, v1alpha1.CompareAge)
	latest := later[len(later)-1]
	switch {
	case protocol.HasBootedSince(node.Status.NodeInfo.BootID, latest.Annotations[v1alpha1.AnnotationBootID]):
		return latest
	case len(later) > 1:
		return later[len(later)-2]
	}
	return nil
}
