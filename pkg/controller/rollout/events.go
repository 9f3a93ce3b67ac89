// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/host/eventref"
	"haulout.dev/haulout/pkg/rollout/next"
)

// actionRoll is the action of all events.
const actionRoll = "Roll"

func (c *Controller) event(r *v1alpha1.NodeMaintenanceRollout, eventType, reason, format string, args ...any) {
	c.Cluster.Recorder.Eventf(eventref.Rollout(r), nil, eventType, reason, actionRoll, "%s", eventref.Note(format, args...))
}

// announceChanges emits the events about the changes between two stored states, and observes how
// long each phase took.
func (c *Controller) announceChanges(old, r *v1alpha1.NodeMaintenanceRollout, d *decision) {
	for i := range d.units {
		c.announceUnit(r, &d.units[i])
	}
	for i := range r.Status.Current {
		unit := &r.Status.Current[i]
		isSame := func(was v1alpha1.RolloutUnit) bool {
			return was.Unit == unit.Unit && was.Maintenance == unit.Maintenance
		}
		if unit.Phase == v1alpha1.RolloutPhaseStarting && !slices.ContainsFunc(old.Status.Current, isSame) {
			c.event(r, corev1.EventTypeNormal, EventUnitStarted, "Unit %s starts: %s", unit.Unit, nodesText(unit))
		}
	}
	c.announceReason(old, r)
}

// announceUnit emits the event about a unit that was in the status, or was adopted. An adopted one
// has no phase before.
func (c *Controller) announceUnit(r *v1alpha1.NodeMaintenanceRollout, u *followed) {
	unit := &u.before
	if u.over || u.unit.Phase != unit.Phase {
		c.observePhase(unit)
	}
	switch u.outcome {
	case "":
		if u.unit.Phase == v1alpha1.RolloutPhaseFailed && unit.Phase != v1alpha1.RolloutPhaseFailed && unit.Phase != "" {
			c.event(r, corev1.EventTypeWarning, EventUnitFailed, "Unit %s has failed: %s", unit.Unit, u.unit.Message)
		}
	case next.Done:
		if unit.Phase != v1alpha1.RolloutPhaseSoaking {
			c.event(r, corev1.EventTypeNormal, EventUnitDone, "Unit %s is done, and in service again: %s", unit.Unit, nodesText(unit))
		}
	case next.Released:
		c.event(r, corev1.EventTypeWarning, EventUnitReleasedByUser,
			"A user has completed NodeMaintenance %s before the work on unit %s was done. To start it again: kubectl maintenance rollout retry %s %s",
			unit.Maintenance, unit.Unit, r.Name, unit.Unit)
	case next.Withdrawn:
		switch u.nm.Annotations[v1alpha1.AnnotationWithdrawn] {
		case next.WithdrawnBlocked:
			c.event(r, corev1.EventTypeWarning, EventUnitBlocked,
				"%s. The unit is released, and is tried again later", join(fmt.Sprintf("Unit %s was not ready for a worker in time", unit.Unit), unit.Message))
		case next.WithdrawnGone:
			c.event(r, corev1.EventTypeWarning, EventUnitBlocked,
				"The nodes of unit %s were deleted, or left the rollout. The unit is tried again later if they return", unit.Unit)
		case next.WithdrawnNoWorker:
			if unit.Phase != v1alpha1.RolloutPhaseFailed {
				c.event(r, corev1.EventTypeWarning, EventUnitFailed, "Unit %s has failed: no worker has claimed it in time", unit.Unit)
			}
		}
	}
}

// announceReason emits the event about the reason of the condition Progressing, if it has changed.
func (c *Controller) announceReason(old, r *v1alpha1.NodeMaintenanceRollout) {
	was, is := meta.FindStatusCondition(old.Status.Conditions, v1alpha1.ConditionProgressing), meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing)
	if is == nil || was != nil && was.Reason == is.Reason {
		return
	}
	switch is.Reason {
	case v1alpha1.ReasonHalted:
		c.event(r, corev1.EventTypeWarning, EventRolloutHalted, "%s", is.Message)
	case v1alpha1.ReasonHeld:
		c.event(r, corev1.EventTypeNormal, EventRolloutHeld, "%s", is.Message)
	case v1alpha1.ReasonRolloutComplete:
		c.event(r, corev1.EventTypeNormal, EventRolloutComplete, "%s", is.Message)
	}
}

// nodesText names the nodes of a unit.
func nodesText(unit *v1alpha1.RolloutUnit) string {
	names := make([]string, len(unit.Nodes))
	for i := range unit.Nodes {
		names[i] = unit.Nodes[i].Name
	}
	return fmt.Sprintf("%s (%s)", wording.Count(len(names), "node"), next.Names(names))
}
