// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// DefaultProgressDeadline is the default of spec.progressDeadlineSeconds.
const DefaultProgressDeadline = 30 * time.Minute

// Turn is the state of the active evacuator in the status of an Evacuation.
type Turn struct {
	// Class is the class of the active evacuator.
	Class string
	// Completed is set if the evacuator has reported that it has done all it can.
	Completed bool
	// Since is the start of the deadline: the last report or, before the first one, the time at
	// which the evacuator became active. Zero if neither is recorded.
	Since time.Time
	// Reported is set if the evacuator has reported since it became active.
	Reported bool
}

// TurnOf returns the turn in a status.
func TurnOf(status *v1alpha1.EvacuationStatus) Turn {
	return turnOf(status.ActiveEvacuatorClass, status.ActiveEvacuatorSince, status.EvacuationProgressTimestamp, status.ActiveEvacuatorCompleted)
}

// TurnOfInternal is TurnOf for the internal type.
func TurnOfInternal(status *maintenance.EvacuationStatus) Turn {
	return turnOf(status.ActiveEvacuatorClass, status.ActiveEvacuatorSince, status.EvacuationProgressTimestamp, status.ActiveEvacuatorCompleted)
}

func turnOf(class string, since, progress *metav1.Time, completed bool) Turn {
	turn := Turn{Class: class, Completed: completed, Reported: progress != nil}
	for _, t := range []*metav1.Time{since, progress} {
		if t != nil && t.After(turn.Since) {
			turn.Since = t.Time
		}
	}
	return turn
}

// Patience returns how long the evacuator may go without a report before the next one becomes
// active. progressDeadlineSeconds is the field of the spec; start limits the time until the first
// report.
func (t Turn) Patience(progressDeadlineSeconds *int32, start time.Duration) time.Duration {
	patience := DefaultProgressDeadline
	if progressDeadlineSeconds != nil {
		patience = time.Duration(*progressDeadlineSeconds) * time.Second
	}
	if t.Reported {
		return patience
	}
	return min(patience, start)
}

// FirstTurn returns the first active class of a new Evacuation with the given evacuators, and the
// reason.
func FirstTurn(evacuators []maintenance.Evacuator) (class, account string) {
	if len(evacuators) == 0 {
		return v1alpha1.EvacuatorClassEviction, "it has no evacuator"
	}
	sorted := slices.Clone(evacuators)
	SortInternal(sorted)
	return sorted[0].EvacuatorClass, "it is the first evacuator"
}

// TurnMessage returns the status message at a hand-over: which class is active now, and why. It is
// for people; programs do not read it.
func TurnMessage(class, account string) string {
	if class == v1alpha1.EvacuatorClassEviction {
		return "The pod is up for eviction, within its disruption budget if it has one: " + account + "."
	}
	return "Evacuator " + class + " is active: " + account + "."
}

// Timestamp returns a time with the precision that the API stores.
func Timestamp(t time.Time) *metav1.Time {
	at := metav1.NewTime(t).Rfc3339Copy()
	return &at
}
