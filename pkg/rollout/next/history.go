// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/window"
)

// The values of the annotation with which the server completes a NodeMaintenance of a rollout.
const (
	// WithdrawnDone means that the work is done on the nodes that are left, although others of the
	// unit no longer exist. All other values mean that work is left.
	WithdrawnDone = "Done"
	// WithdrawnBlocked means that the drain did not move for the deadline, or that no worker could
	// be offered the nodes for that long. It is tried again later.
	WithdrawnBlocked = "Blocked"
	// WithdrawnClosed means that the last open window closed. It is tried again in the next one.
	WithdrawnClosed = "OutsideWindow"
	// WithdrawnStopped means that the rollout is in stage Complete.
	WithdrawnStopped = "Stopped"
	// WithdrawnNoWorker means that no worker has claimed a node in time. It is a failure. The
	// controller of tasks sets it.
	WithdrawnNoWorker = string(v1alpha1.NodeTaskNoWorker)
	// WithdrawnGone means that the nodes of the unit no longer exist, or left the rollout. If they
	// return, the unit is tried again later: the label of a node may flap.
	WithdrawnGone = string(v1alpha1.NodeStatusGone)
)

// Outcome is how an attempt ended.
type Outcome string

const (
	// Running means that the attempt has not ended: not all of its nodes are released.
	Running Outcome = "Running"
	// Done means that the work on all nodes that still exist is done.
	Done Outcome = "Done"
	// Withdrawn means that the server ended the attempt; the annotation has the reason.
	Withdrawn Outcome = "Withdrawn"
	// Released means that a user completed the maintenance before the work was done.
	Released Outcome = "Released"
	// Retried means that the attempt has ended, and that a user lets the unit start again as if it
	// were new. Only what the attempt has done counts.
	Retried Outcome = "Retried"
)

// OutcomeOf returns how an attempt, a NodeMaintenance of a rollout, ended.
func OutcomeOf(nm *v1alpha1.NodeMaintenance) Outcome {
	withdrawn := nm.Annotations[v1alpha1.AnnotationWithdrawn]
	switch {
	case !v1alpha1.IsDone(nm):
		return Running
	case nm.Annotations[v1alpha1.AnnotationRetried] != "":
		return Retried
	case withdrawn == WithdrawnDone:
		return Done
	case withdrawn != "":
		return Withdrawn
	}
	outcome := Released
	for i := range nm.Status.NodeStatuses {
		switch ptr.Deref(nm.Status.NodeStatuses[i].Task, v1alpha1.NodeMaintenanceNodeTask{}).State {
		case v1alpha1.NodeTaskDone:
			outcome = Done
		case v1alpha1.NodeTaskGone:
		default:
			return Released
		}
	}
	return outcome
}

// The time after which a blocked unit is tried again: it doubles with each blocked attempt.
const (
	firstRetry = 10 * time.Minute
	lastRetry  = 6 * time.Hour
)

// past is what is known of the attempts for a unit.
type past struct {
	attempts, blocked int
	// lastBlocked is the time at which the last blocked attempt ended. An attempt whose nodes left
	// the rollout counts as blocked.
	lastBlocked time.Time
	// noWorker and released name an attempt that ended so. It counts until a user retries the unit.
	noWorker, released string
}

// retry returns the earliest time of the next attempt.
func (p *past) retry() time.Time {
	wait := firstRetry
	for i := 1; i < p.blocked && wait < lastRetry; i++ {
		wait *= 2
	}
	return p.lastBlocked.Add(min(wait, lastRetry))
}

// history is what the attempts of a rollout tell of all units together.
type history struct {
	// lastFailure is the time of the last failure that no user has resolved.
	lastFailure time.Time
	// succeeded are the ends of the attempts that ended as Done and no longer soak.
	succeeded []time.Time
}

// DoneBy returns the times at which the work on nodes was done according to the maintenances of a
// rollout, by the UIDs of the nodes.
func DoneBy(attempts []*v1alpha1.NodeMaintenance) map[types.UID]time.Time {
	done := make(map[types.UID]time.Time, len(attempts))
	for _, nm := range attempts {
		for i := range nm.Status.NodeStatuses {
			status := &nm.Status.NodeStatuses[i]
			if status.Task != nil && status.Task.State == v1alpha1.NodeTaskDone {
				done[status.NodeRef.UID] = timeOf(status.Task.EndTime)
			}
		}
	}
	return done
}

// readHistory reads the attempts of a rollout: what they tell of all units, and of those in which
// work is left.
func (d *decider) readHistory() {
	h := &d.history
	h.succeeded = make([]time.Time, 0, len(d.Attempts))
	var none Unit
	for _, nm := range d.Attempts {
		u := cmp.Or(d.byName[nm.Annotations[v1alpha1.AnnotationRolloutUnit]], &none)
		p := &u.past
		outcome, ended := OutcomeOf(nm), v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageComplete)
		if outcome == Retried || outcome != Running && nm.DeletionTimestamp != nil {
			continue
		}
		p.attempts++
		switch {
		case outcome == Running:
			h.lastFailure = window.Latest(h.lastFailure, d.cluster.failed[nm.Name])
		case outcome == Done:
			if u.work == nil || !u.work.soaking {
				h.succeeded = append(h.succeeded, ended)
			}
		case outcome == Released:
			p.released = nm.Name
		case nm.Annotations[v1alpha1.AnnotationWithdrawn] == WithdrawnNoWorker:
			p.noWorker = nm.Name
			h.lastFailure = window.Latest(h.lastFailure, ended)
		case nm.Annotations[v1alpha1.AnnotationWithdrawn] == WithdrawnBlocked, nm.Annotations[v1alpha1.AnnotationWithdrawn] == WithdrawnGone:
			p.blocked++
			p.lastBlocked = window.Latest(p.lastBlocked, ended)
		}
	}
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}
