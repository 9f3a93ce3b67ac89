// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// announceRefused emits one event about each node that the requester may not maintain, with what
// that means for the waves. It emits none if the previous status already has that reason for the
// node.
func (c *Controller) announceRefused(m *member) {
	for _, node := range m.nodes {
		if node.outside == nil || node.outside.reason != v1alpha1.NodeStatusNotAuthorized {
			continue
		}
		before := v1alpha1.NodeStatusOf(m.NodeMaintenance, refOf(node.Node))
		if before != nil && before.Reason == v1alpha1.NodeStatusNotAuthorized {
			continue
		}
		why := fmt.Sprintf("user %q may not maintain the node", m.username())
		if node.unanswered {
			why = node.outside.why
		}
		c.nodeEvent(node.Node, m.NodeMaintenance, corev1.EventTypeWarning, EventNotAuthorized, actionDrain,
			"Skipped by NodeMaintenance %s: %s", m.Name, why)
		c.maintenanceEvent(m.NodeMaintenance, corev1.EventTypeWarning, EventNotAuthorized, actionDrain,
			"Node %s is skipped: %s; %s", node.Name, strings.TrimSuffix(why, "."), effectOnWaves(m))
	}
}

// announceExcluded emits an event about the nodes that the drain begins to go on without, with what
// that means for the waves. For a node that the requester may not maintain, announceRefused does.
func (c *Controller) announceExcluded(m *member) {
	if !v1alpha1.IsDraining(m.NodeMaintenance) {
		return
	}
	var excludedNow []memberNode
	for _, node := range m.nodes {
		if node.outside != nil && node.outside.reason != v1alpha1.NodeStatusNotAuthorized && !wasExcluded(m.NodeMaintenance, &node) {
			excludedNow = append(excludedNow, node)
		}
	}
	if _, text := excluded(excludedNow, m.username(), outsideDrain); text != "" {
		c.maintenanceEvent(m.NodeMaintenance, corev1.EventTypeWarning, EventNodeExcluded, actionDrain, "%s; %s", text, effectOnWaves(m))
	}
}

// wasExcluded reports whether the drain has gone on without a node before, according to the
// previous status. A node that is only not cordoned yet has the same reason and another message. In
// a status without room for messages, the condition Drained tells of the first excluded node only.
func wasExcluded(nm *v1alpha1.NodeMaintenance, node *memberNode) bool {
	before, drained := v1alpha1.NodeStatusOf(nm, refOf(node.Node)), conditionOf(nm, v1alpha1.ConditionDrained)
	switch {
	case before == nil || before.Reason != node.outside.reason || drained == nil || drained.Reason == v1alpha1.ReasonNotRequested:
		return false
	case before.DrainMessage == "":
		return drained.Reason == node.outside.drained() || drained.Reason == v1alpha1.ReasonNotAuthorized
	}
	return strings.HasPrefix(before.DrainMessage, drainplan.NotDrained)
}

// effectOnWaves returns text about what an excluded node means for the waves.
func effectOnWaves(m *member) string {
	if m.Spec.OnExcludedNode == v1alpha1.ExcludedNodeWait {
		return wavesWait
	}
	return wavesContinue
}

// announceProgress emits events about the changes between the previous and the written status.
func (c *Controller) announceProgress(f *facts, d *decision, written *v1alpha1.NodeMaintenance) {
	nm, plan := f.subject.NodeMaintenance, d.plan
	if written == nm {
		return
	}
	c.announceRefused(f.subject)
	c.announceExcluded(f.subject)
	if isDrained(written) && !isDrained(nm) {
		c.stageEvent(nm, EventDrained, actionDrain, meta.FindStatusCondition(written.Status.Conditions, v1alpha1.ConditionDrained).Message)
	}
	// The deletion of the drained node is usual.
	if drained := conditionOf(written, v1alpha1.ConditionDrained); isDrained(nm) && !isDrained(written) && drained.Reason != v1alpha1.ReasonNoNodes {
		c.maintenanceEvent(nm, corev1.EventTypeWarning, EventDrainedNoLonger, actionDrain, "%s", drained.Message)
	}
	// A rollout starts many drains, and each forecast reads the whole cluster.
	if hasTargets(written) && !hasTargets(nm) && protocol.RolloutOf(nm) == nil {
		c.forecasts.queue.Add(nm.Name)
	}
	for _, i := range startedWaves(nm, written) {
		wave, what := &written.Spec.DrainPlan[i], "are asked to leave"
		if d.waves[i].asked == 0 {
			what = "may complete before later waves on"
		}
		c.maintenanceEvent(nm, corev1.EventTypeNormal, EventWaveStarted, actionDrain,
			"%s pods up to priority %d %s %s", wave.PodType, wave.PodPriority, what, wording.Count(len(f.subject.inside), "node"))
	}
	c.announceProgressing(nm, written)
	if now := blockedDrain(written); now != nil && blockedDrain(nm) == nil {
		c.maintenanceEvent(nm, corev1.EventTypeWarning, EventDrainBlocked, actionDrain, "%s", now.Message)
	}
	if len(plan.FastForwarded[nm.Name]) > 0 {
		c.announceFastForward(nm, plan)
	}
	if !drainplan.SameTargets(nm, written) {
		for _, o := range plan.Overrides {
			if slices.Contains(o.Overridden, nm.Name) {
				c.maintenanceEvent(nm, corev1.EventTypeWarning, EventOrderOverridden, actionDrain,
					"The drain plans of %s and %s contradict each other: the nodes are drained in the order of %s", o.Followed, nm.Name, o.Followed)
			}
		}
	}
}

// startedWaves returns the indexes of the entries of the plan whose first pods are asked to leave,
// or waited for, since the previous status. Entries without pods do not start: the last entries of
// a plan often have none.
func startedWaves(before, written *v1alpha1.NodeMaintenance) []int32 {
	started := sets.New[int32]()
	for i := range before.Status.Waves {
		if before.Status.Waves[i].StartTime != nil {
			started.Insert(before.Status.Waves[i].Entry)
		}
	}
	var entries []int32
	for i := range written.Status.Waves {
		wave := &written.Status.Waves[i]
		if wave.StartTime != nil && !started.Has(wave.Entry) && int(wave.Entry) < len(written.Spec.DrainPlan) {
			entries = append(entries, wave.Entry)
		}
	}
	return entries
}

// hasTargets reports whether the status has targets for a node, that is, whether a wave has
// started.
func hasTargets(nm *v1alpha1.NodeMaintenance) bool {
	return slices.ContainsFunc(nm.Status.NodeStatuses, func(n v1alpha1.NodeMaintenanceNodeStatus) bool { return len(n.DrainTargets) > 0 })
}

// announceFastForward emits one event for each maintenance that has drained a node further than the
// plan of nm. It emits none for a node whose previous status already has that reason.
func (c *Controller) announceFastForward(nm *v1alpha1.NodeMaintenance, plan drainplan.Result) {
	before := map[string]v1alpha1.NodeStatusReason{}
	for i := range nm.Status.NodeStatuses {
		before[nm.Status.NodeStatuses[i].NodeRef.Name] = nm.Status.NodeStatuses[i].Reason
	}
	told := sets.New[string]()
	for node, by := range plan.FastForwarded[nm.Name] {
		if before[node] != v1alpha1.NodeStatusFastForwarded && !told.Has(by) {
			told.Insert(by)
			c.maintenanceEvent(nm, corev1.EventTypeWarning, EventFastForwarded, actionDrain,
				"NodeMaintenance %s has drained node %s further than the plan of %s: the pods of the skipped waves are asked to leave now", by, node, nm.Name)
		}
	}
}

// blockedDrain returns the condition Drained if its reason is that all pods are blocked, otherwise
// nil.
func blockedDrain(nm *v1alpha1.NodeMaintenance) *metav1.Condition {
	drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	if drained == nil || drained.Reason != v1alpha1.ReasonDrainBlocked {
		return nil
	}
	return drained
}

// announceProgressing emits an event when a maintenance stops making progress, or when the reason
// for that changes.
func (c *Controller) announceProgressing(old, written *v1alpha1.NodeMaintenance) {
	was, is := conditionOf(old, v1alpha1.ConditionProgressing), conditionOf(written, v1alpha1.ConditionProgressing)
	if is == nil {
		return
	}
	failing := is.Reason == v1alpha1.ReasonProgressSyncFailed ||
		is.Reason == v1alpha1.ReasonProgressComplete && is.Status == metav1.ConditionFalse
	switch {
	case is.Status == metav1.ConditionTrue && !failing, is.Reason == v1alpha1.ReasonPaused:
		return
	case failing && was != nil && was.Reason == is.Reason && was.Message == is.Message:
		return
	case !failing && was != nil && was.Reason == is.Reason && was.Status == is.Status:
		return
	}
	c.maintenanceEvent(written, corev1.EventTypeWarning, EventNotProgressing, actionDrain, "%s: %s", is.Reason, is.Message)
}

// announceUnwritable emits an event if the status of a maintenance cannot be written, since no
// condition can report it. It emits one event for each error text.
func (c *Controller) announceUnwritable(ctx context.Context, nm *v1alpha1.NodeMaintenance, err error) {
	if ctx.Err() != nil || loop.IsOnlyConflict(err) || apierrors.IsNotFound(err) {
		return
	}
	if text := nodestate.TextOf(err); c.problems.Tell(nm.Name, text) {
		c.maintenanceEvent(nm, corev1.EventTypeWarning, EventStatusNotWritten, actionMaintain, "The status cannot be written, so the maintenance makes no progress: %s", text)
	}
}
