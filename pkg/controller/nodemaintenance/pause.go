// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// A paused maintenance asks no pod to leave (docs/decisions/0052-a-paused-drain.md). Its targets
// stay as they are stored, so no wave opens, and the planner ignores it when it plans for other
// maintenances of its nodes.

// planOfPaused returns the stored targets of a paused maintenance as its plan.
func planOfPaused(f *facts) (drainplan.Result, error) {
	nm, result := f.subject.NodeMaintenance, drainplan.Result{Targets: map[string]drainplan.Targets{}}
	messages := make(map[string]string, len(f.subject.inside))
	for _, node := range f.subject.inside {
		targets, err := drainplan.CompileTargets(holds.Stored(nm, node))
		if err != nil {
			return result, fmt.Errorf("drain targets of node %s: %w", node.Name, err)
		}
		result.Targets[node.Name], messages[node.Name] = targets, "Paused"
	}
	result.Messages = map[string]map[string]string{nm.Name: messages}
	return result, nil
}

// describePause returns a text about the pause of a drain, with its user, its time and the command
// that ends it, "" if it is not paused.
func describePause(nm *v1alpha1.NodeMaintenance, left *remainder) string {
	if !v1alpha1.IsPaused(nm) {
		return ""
	}
	return fmt.Sprintf("%s; %s. To resume it, run %s", pauserOf(nm), left.progress(), protocol.ResumeCommand(nm))
}

// pauserOf returns a phrase with the user who paused a maintenance, and the time.
func pauserOf(nm *v1alpha1.NodeMaintenance) string {
	if nm.Status.Pause == nil {
		return "Paused"
	}
	return fmt.Sprintf("Paused by user %q since %s", protocol.UserName(nm.Status.Pause.By), nm.Status.Pause.Since.UTC().Format(time.RFC3339))
}

// announcePause emits an event about a maintenance that was paused or resumed. old is nil if it was
// created paused.
func (c *Controller) announcePause(old, nm *v1alpha1.NodeMaintenance) {
	switch {
	case !nm.Spec.Paused:
		c.maintenanceEvent(nm, corev1.EventTypeNormal, EventDrainResumed, actionDrain, "Resumed. Before: %s", pauserOf(old))
	case v1alpha1.IsDraining(nm):
		c.maintenanceEvent(nm, corev1.EventTypeNormal, EventDrainPaused, actionDrain, "%s: no further pod is asked to leave", pauserOf(nm))
	default:
		c.maintenanceEvent(nm, corev1.EventTypeNormal, EventDrainPaused, actionDrain,
			"%s: no pod will be asked to leave when stage %s begins", pauserOf(nm), v1alpha1.NodeMaintenanceStageDrain)
	}
}

// isEmpty reports whether no pod is left that the plan covers.
func (r *remainder) isEmpty() bool {
	for _, wave := range r.waves {
		if wave.left > 0 {
			return false
		}
	}
	return true
}
