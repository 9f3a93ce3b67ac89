// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// IsKeptByBudget reports whether the DaemonSet pod of an Evacuation is kept on its node because of
// its disruption budget: the budget has allowed no disruption for longer than patience, or it can
// never be computed. Such a pod counts among the podsKept of its node and does not block the drain.
// If the budget allows a disruption later, the pod is evicted. The time in which Blocked had
// another reason does not count: when a budget becomes the reason, the controller of Evacuations
// sets lastTransitionTime again.
func IsKeptByBudget(evacuation *v1alpha1.Evacuation, patience time.Duration, now time.Time) bool {
	at, kept := KeptByBudgetAt(evacuation, patience)
	return kept && !now.Before(at)
}

// KeptByBudgetAt returns the time from which IsKeptByBudget is true if the status stays the same;
// false if there is no such time.
func KeptByBudgetAt(evacuation *v1alpha1.Evacuation, patience time.Duration) (time.Time, bool) {
	status := &evacuation.Status
	if status.ActiveEvacuatorClass != v1alpha1.EvacuatorClassDaemonSet || status.ActiveEvacuatorCompleted ||
		IsComplete(evacuation) {
		return time.Time{}, false
	}
	blocked := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked)
	if blocked == nil || blocked.Status != metav1.ConditionTrue || !wording.RemedyFor(blocked.Reason).OfBudget {
		return time.Time{}, false
	}
	if blocked.Reason == v1alpha1.ReasonPodDisruptionBudgetSyncFailed {
		return blocked.LastTransitionTime.Time, true
	}
	return blocked.LastTransitionTime.Add(patience), true
}

// LeftAt returns the time at which the pod of an Evacuation left its node, regardless of the cause:
// an eviction, a scale-down, a deletion by its owner, or its own end. It returns false if the pod
// has not left, or if the Evacuation was cancelled.
func LeftAt(evacuation *v1alpha1.Evacuation) (time.Time, bool) {
	complete := meta.FindStatusCondition(evacuation.Status.Conditions, v1alpha1.ConditionComplete)
	if complete == nil || complete.Status != metav1.ConditionTrue || complete.Reason == v1alpha1.ReasonCancelled {
		return time.Time{}, false
	}
	return complete.LastTransitionTime.Time, true
}
