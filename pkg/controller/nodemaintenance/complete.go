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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// releaseRetry is how soon a maintenance that ends is reconciled again if no event of its nodes
// comes before.
const releaseRetry = 5 * time.Second

// makesSchedulable reports whether a maintenance went to Complete without having held its nodes.
// Such a maintenance exists only to uncordon its nodes, regardless of who cordoned them. The API
// server stores the stages that were entered, so this does not depend on what the controller saw.
func makesSchedulable(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return !slices.ContainsFunc(nm.Status.StageStatuses, func(s maintenancev1alpha1.StageStatus) bool {
		return s.Name == maintenancev1alpha1.NodeMaintenanceStageCordon || s.Name == maintenancev1alpha1.NodeMaintenanceStageDrain
	})
}

// complete waits until the node reconciler has released every node of a maintenance, and then drops
// its finalizer. Each node is released by itself: one that cannot be keeps its own message, and the
// others go. A maintenance without the finalizer has been through this.
func (c *Controller) complete(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	c.memories.remove(nm.Name)
	c.forecasts.forget(nm.UID)
	c.retainViews()
	if isDone(nm) {
		return c.finishCompleted(ctx, nm)
	}
	if err := c.withdrawNominated(ctx, nm); err != nil {
		return err
	}
	held := c.heldNodes(nm)
	for name := range held {
		if !c.nodes.isFailing(name) {
			c.nodes.enqueue(name)
		}
	}
	status := c.completedStatus(nm, held)
	c.tally(nm, &status)
	stored, err := c.writeStatus(ctx, nm, status)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	c.announceProgressing(nm, stored)
	if len(held) > 0 {
		c.queue.AddAfter(nm.Name, releaseRetry)
		return nil
	}
	if stored == nm && !sameStatus(&nm.Status, &status) {
		return nil // the last word waits its turn, and the maintenance comes back for it
	}
	return c.dropFinalizer(ctx, stored)
}

// withdrawNominated withdraws what was asked of pods when they were nominated for a node, and that
// are on no node now.
func (c *Controller) withdrawNominated(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	work := slices.DeleteFunc(c.evacuationsWithoutNode(), func(e *maintenancev1alpha1.Evacuation) bool { return !c.isStray(e, nm.UID) })
	return inParallel(ctx, len(work), func(ctx context.Context, i int) error { return c.leave(ctx, work[i]) })
}

// heldNodes returns the nodes on which something of a maintenance is left: an annotation that names
// it, an Evacuation that no other maintenance wants, an eviction that is under way, or a cordon
// that it was made to lift.
func (c *Controller) heldNodes(nm *maintenancev1alpha1.NodeMaintenance) sets.Set[string] {
	held := c.nodes.recordedFor(nm.UID)
	// The index follows the cache; what was written since then may have removed the name.
	for name := range held {
		if node, err := c.nodes.latest(name); err != nil || !isRecorded(node, nm.UID) {
			held.Delete(name)
		}
	}
	for name := range c.touchedNodes(nm) {
		if !held.Has(name) && !c.isQuiet(name) {
			held.Insert(name)
		}
	}
	if makesSchedulable(nm) {
		for _, node := range c.selection.nodesOf(nm.Name) {
			latest, err := c.nodes.latest(node.Name)
			if err == nil && latest.Spec.Unschedulable && !c.nodes.hasMadeSchedulable(latest, nm) && !c.isHeldByOthers(latest, nm) {
				held.Insert(node.Name)
			}
		}
	}
	return held
}

// isHeldByOthers reports whether another maintenance holds a node.
func (c *Controller) isHeldByOthers(node *corev1.Node, nm *maintenancev1alpha1.NodeMaintenance) bool {
	return slices.ContainsFunc(c.selection.maintenancesOn(node.Name), func(name string) bool {
		other, err := c.get(name)
		return err == nil && other.UID != nm.UID && isHolding(other) && (ownersOf(node).has(other) || taintersOf(node).has(other))
	})
}

// completedStatus keeps which nodes the maintenance had, and drops the rest: a completed
// maintenance may be kept for years. Nodes that are still to be released have the reason as their
// message.
func (c *Controller) completedStatus(nm *maintenancev1alpha1.NodeMaintenance, held sets.Set[string]) maintenancev1alpha1.NodeMaintenanceStatus {
	status := *nm.Status.DeepCopy()
	status.ObservedGeneration = nm.Generation
	var failed []problem
	for i := range status.NodeStatuses {
		entry := &status.NodeStatuses[i]
		*entry = maintenancev1alpha1.NodeMaintenanceNodeStatus{NodeRef: entry.NodeRef, DrainTargets: entry.DrainTargets}
		if !held.Has(entry.NodeRef.Name) {
			entry.DrainTargets = nil
			continue
		}
		if t, visible := c.nodes.troubleOf(entry.NodeRef.Name); visible {
			entry.DrainMessage = drainplan.Fit("Not released: "+t.text, drainplan.MaxMessageBytes)
			failed = append(failed, problem{object: "node " + entry.NodeRef.Name, since: t.since, text: t.text})
		} else {
			entry.DrainMessage = "Being released"
		}
	}
	c.setCondition(nm, &status, maintenancev1alpha1.ConditionDrained, metav1.ConditionFalse, maintenancev1alpha1.ReasonNotRequested, "The maintenance is complete")
	c.setProgressing(nm, &status, progressFacts{ending: true, nodesHeld: len(held), problems: failed})
	return status
}

// finishCompleted deletes a completed maintenance whose time is over, and deletes again one whose
// deletion was interrupted.
func (c *Controller) finishCompleted(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	if nm.DeletionTimestamp != nil || c.completedTTL == 0 {
		return nil
	}
	completed := enteredAt(nm, maintenancev1alpha1.NodeMaintenanceStageComplete)
	if completed.IsZero() {
		return nil
	}
	if wait := c.completedTTL - c.clock.Since(completed); wait > 0 {
		c.queue.AddAfter(nm.Name, wait)
		return nil
	}
	err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Delete(ctx, nm.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(nm.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the completed maintenance after %s: %w", c.completedTTL, err)
	}
	return nil
}

func (c *Controller) dropFinalizer(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	if !slices.Contains(nm.Finalizers, maintenancev1alpha1.FinalizerMaintenanceCompletion) {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(nm.Finalizers), func(f string) bool { return f == maintenancev1alpha1.FinalizerMaintenanceCompletion })
	patch, err := finalizerPatch(nm, rest)
	if err != nil {
		return err
	}
	_, err = c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Patch(ctx, nm.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("drop the finalizer: %w", err)
	}
	if err == nil {
		c.maintenanceEvent(nm, corev1.EventTypeNormal, EventCompleted, actionComplete, "Everything that the maintenance had changed is as before")
	}
	return nil
}

// deletionPatience is how long the API server may take between the two writes of a deletion.
const deletionPatience = 5 * time.Second

// finishDeletion deletes a maintenance again that is marked as deleted although nothing holds it.
// An Idle one is marked in one write and deleted in the next: a server that dies between them
// leaves an object that nothing else would ever remove.
func (c *Controller) finishDeletion(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	if wait := deletionPatience - c.clock.Since(nm.DeletionTimestamp.Time); wait > 0 {
		// Not longer, whatever the clock of the server that marked it says.
		c.queue.AddAfter(nm.Name, min(wait, deletionPatience))
		return nil
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(nm.UID))}
	err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Delete(ctx, nm.Name, options)
	// A conflict means that another one has taken its name.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete again: %w", err)
	}
	return nil
}

// isDone reports whether a maintenance has given everything back.
func isDone(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return isEnding(nm) && !slices.Contains(nm.Finalizers, maintenancev1alpha1.FinalizerMaintenanceCompletion)
}

// sweepEvacuations withdraws from the pods of nodes that no maintenance looks after: after a
// finalizer was removed by force, or where a pod's nomination was dropped.
func (c *Controller) sweepEvacuations(ctx context.Context) error {
	all, err := c.evacuationLister.List(labels.Everything())
	if err != nil {
		return err
	}
	var work []*maintenancev1alpha1.Evacuation
	for _, e := range all {
		if c.isStray(e, "") {
			work = append(work, e)
		}
	}
	return inParallel(ctx, len(work), func(ctx context.Context, i int) error { return c.leave(ctx, work[i]) })
}

// isLookedAfter reports whether a maintenance, other than the one of the given UID, drains a node,
// or will withdraw from it before it lets go of its finalizer.
func (c *Controller) isLookedAfter(node string, except types.UID) bool {
	return slices.ContainsFunc(c.selection.maintenancesOn(node), func(name string) bool {
		nm, err := c.get(name)
		return err == nil && nm.UID != except && (isDraining(nm) || isEnding(nm) && !isDone(nm))
	})
}
