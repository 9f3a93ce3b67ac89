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
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// makesSchedulable says whether a maintenance went to Complete without having held its nodes: then it was made to make them schedulable,
// whoever had cordoned them. The API server stores the stages that were entered, so this does not depend on what the controller saw.
func makesSchedulable(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return !slices.ContainsFunc(nm.Status.StageStatuses, func(s maintenancev1alpha1.StageStatus) bool {
		return s.Name == maintenancev1alpha1.NodeMaintenanceStageCordon || s.Name == maintenancev1alpha1.NodeMaintenanceStageDrain
	})
}

// complete puts back what a maintenance has changed, and then drops its finalizer. A maintenance without the finalizer has been through this.
func (c *Controller) complete(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	if slices.Contains(nm.Finalizers, maintenancev1alpha1.FinalizerMaintenanceCompletion) {
		if err := c.giveBack(ctx, nm); err != nil {
			return err
		}
	}
	c.memories.remove(nm.Name)
	c.retainViews()
	c.tallies.set(nm.Name, tallyOf(nm, nm.Status.NodeStatuses))
	status := completedStatus(nm)
	c.setCondition(nm, &status, maintenancev1alpha1.ConditionDrained, metav1.ConditionFalse, maintenancev1alpha1.ReasonNotRequested, "The maintenance is complete")
	stored, err := c.writeStatus(ctx, nm, status)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	return c.dropFinalizer(ctx, stored)
}

// completedStatus keeps which nodes the maintenance had and how far they were, and clears what goes on.
func completedStatus(nm *maintenancev1alpha1.NodeMaintenance) maintenancev1alpha1.NodeMaintenanceStatus {
	status := *nm.Status.DeepCopy()
	status.ObservedGeneration = nm.Generation
	for i := range status.NodeStatuses {
		entry := &status.NodeStatuses[i]
		*entry = maintenancev1alpha1.NodeMaintenanceNodeStatus{NodeRef: entry.NodeRef, DrainTargets: entry.DrainTargets}
	}
	return status
}

func (c *Controller) giveBack(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	selected := c.selection.nodesOf(nm.Name)
	nodes := c.touchedNodes(nm)
	for _, node := range selected {
		nodes.Insert(node.Name)
	}
	var mayMakeSchedulable map[string]bool
	if makesSchedulable(nm) {
		// Lifting somebody else's cordon is a right that has to be had; lifting our own is not asked for.
		allowed, err := c.authorize.allowed(ctx, nm.Spec.RequestedBy, selected)
		if err != nil {
			return err
		}
		for _, node := range selected {
			if !allowed[node.Name] && node.Spec.Unschedulable {
				c.nodeEvent(node, nm, corev1.EventTypeWarning, EventNotAuthorized, actionUncordon,
					"Not made schedulable by NodeMaintenance %s: its requester may not delete the node", nm.Name)
			}
		}
		mayMakeSchedulable = allowed
	}
	return c.release(ctx, nm, sets.List(nodes), mayMakeSchedulable)
}

// release withdraws a maintenance from nodes: first its Evacuations, then its conditions and its cordon. Of the nodes in makeSchedulable any cordon is lifted.
// Releasing a node twice does no harm.
func (c *Controller) release(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, nodes []string, makeSchedulable map[string]bool) error {
	left, err := c.withdraw(ctx, nodes, nm.UID)
	if err != nil {
		return err
	}
	if err := c.quiet(ctx, sets.New(nodes...), left); err != nil {
		return err
	}
	live, err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, nm.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the maintenance before uncordoning: %w", err)
	}
	// What is decided from an old state of it must not be written.
	if err == nil && live.UID == nm.UID && live.Generation != nm.Generation {
		return apierrors.NewConflict(maintenancev1alpha1.Resource("nodemaintenances"), nm.Name, errors.New("the maintenance has moved on"))
	}
	return inParallel(ctx, len(nodes), func(ctx context.Context, i int) error {
		// What a node says goes first: whoever sees it schedulable sees nothing of the maintenance any more.
		return errors.Join(c.conditions.reconcile(ctx, nodes[i]), c.uncordon(ctx, nm, nodes[i], makeSchedulable[nodes[i]]))
	})
}

// uncordon gives back a node. What the cache shows as cordoned by the maintenance is so, or the write is refused; anything else is read live:
// the cache may not show yet the cordon that this controller has just set.
func (c *Controller) uncordon(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, name string, makeSchedulable bool) error {
	if node, err := c.conditions.latest(name); err == nil && (ownersOf(node).has(nm) || taintersOf(node).has(nm)) {
		if err := c.giveBackNode(ctx, node, nm, makeSchedulable); !apierrors.IsConflict(err) {
			return err
		}
	}
	node, err := c.host.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read node %s before uncordoning: %w", name, err)
	}
	if !makeSchedulable && !ownersOf(node).has(nm) && !taintersOf(node).has(nm) {
		return nil
	}
	return c.giveBackNode(ctx, node, nm, makeSchedulable)
}

func (c *Controller) giveBackNode(ctx context.Context, node *corev1.Node, nm *maintenancev1alpha1.NodeMaintenance, makeSchedulable bool) error {
	holders, err := c.holders(ctx, node, nm.UID)
	if err != nil {
		return fmt.Errorf("see who else holds node %s: %w", node.Name, err)
	}
	tainting, err := c.taintHolders(ctx, node, nm.UID)
	if err != nil {
		return fmt.Errorf("see who else asks DaemonSet pods to leave node %s: %w", node.Name, err)
	}
	untaint := decideUntaint(node, tainting, func(_ string, uid types.UID) bool { return uid == nm.UID })
	return c.lift(ctx, node, nm, decideRelease(node, nm, holders, makeSchedulable).with(untaint))
}

func (c *Controller) lift(ctx context.Context, node *corev1.Node, nm *maintenancev1alpha1.NodeMaintenance, change nodeChange) error {
	if change.empty() {
		return nil
	}
	if err := c.apply(ctx, node, change); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("uncordon node %s: %w", node.Name, err)
	}
	if change.unschedulable != nil {
		c.nodeEvent(node, nm, corev1.EventTypeNormal, EventUncordoned, actionUncordon, "Made schedulable again by NodeMaintenance %s", nm.Name)
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

// finishDeletion deletes a maintenance again that is marked as deleted although nothing holds it. An Idle one is marked in one write and deleted
// in the next: a server that dies between them leaves an object that nobody else would ever remove.
func (c *Controller) finishDeletion(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	if wait := deletionPatience - c.clock.Since(nm.DeletionTimestamp.Time); wait > 0 {
		// Not longer, whatever the clock of the server that marked it says.
		c.queue.AddAfter(nm.Name, min(wait, deletionPatience))
		return nil
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(nm.UID))}
	err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Delete(ctx, nm.Name, options)
	// A conflict tells that another one has taken its name.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete again: %w", err)
	}
	return nil
}

// sweep gives back what maintenances left behind that are gone or complete: after a finalizer was taken off by force, or where two of them
// let go of a node at the same moment.
func (c *Controller) sweep(ctx context.Context) error {
	return errors.Join(c.sweepNodes(ctx), c.sweepEvacuations(ctx))
}

func (c *Controller) sweepNodes(ctx context.Context) error {
	all, err := c.nodeLister.List(labels.Everything())
	if err != nil {
		return err
	}
	gone := map[types.UID]bool{}
	var stale []string
	for _, node := range all {
		found := false
		for _, owners := range []owners{ownersOf(node), taintersOf(node)} {
			for name, uid := range owners {
				if _, asked := gone[uid]; !asked {
					if gone[uid], err = c.isGone(ctx, name, uid); err != nil {
						return err
					}
				}
				found = found || gone[uid]
			}
		}
		if found {
			stale = append(stale, node.Name)
		}
	}
	return inParallel(ctx, len(stale), func(ctx context.Context, i int) error { return c.sweepNode(ctx, stale[i], gone) })
}

// isGone says whether a maintenance will not release its nodes any more. The cache answers for those that are there, the API for the others.
func (c *Controller) isGone(ctx context.Context, name string, uid types.UID) (bool, error) {
	if nm, err := c.get(name); err == nil && nm.UID == uid && !isDone(nm) {
		return false, nil
	}
	nm, err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for maintenance %s: %w", name, err)
	}
	return nm.UID != uid || isDone(nm), nil
}

// isDone says whether a maintenance has given everything back.
func isDone(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return isEnding(nm) && !slices.Contains(nm.Finalizers, maintenancev1alpha1.FinalizerMaintenanceCompletion)
}

func (c *Controller) sweepNode(ctx context.Context, name string, gone map[types.UID]bool) error {
	node, err := c.host.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read node %s before uncordoning: %w", name, err)
	}
	holders, err := c.holders(ctx, node, "")
	if err != nil {
		return fmt.Errorf("see who else holds node %s: %w", name, err)
	}
	tainting, err := c.taintHolders(ctx, node, "")
	if err != nil {
		return fmt.Errorf("see who else asks DaemonSet pods to leave node %s: %w", name, err)
	}
	change := decideSweep(node, gone, holders).with(decideUntaint(node, tainting, func(_ string, uid types.UID) bool { return gone[uid] }))
	if change.empty() {
		return nil
	}
	klog.FromContext(ctx).Info("Node bears the cordon or the taint of a maintenance that is gone", "node", klog.KObj(node))
	if err := c.apply(ctx, node, change); err != nil {
		return fmt.Errorf("release node %s: %w", name, err)
	}
	return nil
}

// decideSweep takes the maintenances that are gone off a node's annotation, and lifts the cordon if nobody is left.
func decideSweep(node *corev1.Node, gone map[types.UID]bool, holders owners) nodeChange {
	current := ownersOf(node)
	rest := maps.Clone(current)
	maps.DeleteFunc(rest, func(_ string, uid types.UID) bool { return gone[uid] })
	if len(rest) == len(current) {
		return nodeChange{}
	}
	maps.Copy(rest, holders)
	change := nodeChange{owners: rest, setOwners: true}
	if len(rest) == 0 && node.Spec.Unschedulable {
		no := false
		change.unschedulable = &no
	}
	return change
}

// sweepEvacuations withdraws from the pods of nodes that no maintenance looks after.
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

// isLookedAfter says whether a maintenance, other than the one of the given UID, drains a node, or will withdraw from it before it lets go of its
// finalizer.
func (c *Controller) isLookedAfter(node string, except types.UID) bool {
	return slices.ContainsFunc(c.selection.maintenancesOn(node), func(name string) bool {
		nm, err := c.get(name)
		return err == nil && nm.UID != except && (isDraining(nm) || isEnding(nm) && !isDone(nm))
	})
}
