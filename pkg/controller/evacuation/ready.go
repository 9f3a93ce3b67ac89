// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// decideReady sets the conditions that summarize the others: Leaving, Ready and Stalled. Only
// Leaving is worth a status write of its own, and only for a pod that does not stop within seconds.
// Otherwise each pod of a drain would need another write. An Evacuation of an older server has no
// condition Ready and gets it once: without it, tools that wait for Ready take it for complete.
func (d *decision) decideReady(s situation) {
	isComplete := meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionComplete)
	lacksReady := d.release == releaseNone && meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionReady) == nil
	if isComplete {
		meta.RemoveStatusCondition(&d.status.Conditions, v1alpha1.ConditionLeaving)
	} else if d.release == releaseNone && isStopping(s) && (lacksReady || d.changes(s) || d.isStoppingShown(s)) {
		d.set(s, v1alpha1.ConditionLeaving, metav1.ConditionTrue, v1alpha1.ReasonPodStopping, stoppingMessage(s))
	}
	if !lacksReady && !d.changes(s) {
		return
	}
	complete, blocked := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionComplete), blockerOf(&d.status)
	switch {
	case isComplete && complete.Reason == v1alpha1.ReasonCancelled:
		d.set(s, v1alpha1.ConditionReady, metav1.ConditionFalse, complete.Reason, complete.Message)
		d.set(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, complete.Reason, complete.Message)
	case isComplete:
		d.set(s, v1alpha1.ConditionReady, metav1.ConditionTrue, complete.Reason, complete.Message)
	case blocked != nil:
		d.set(s, v1alpha1.ConditionReady, metav1.ConditionFalse, blocked.Reason, blocked.Message)
	default:
		d.set(s, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonEvacuating, "The pod has not left yet")
	}
}

// changes reports whether the decision changes the status.
func (d *decision) changes(s situation) bool {
	return !equality.Semantic.DeepEqual(s.evacuation.Status, d.status)
}

func (d *decision) set(s situation, conditionType string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: message,
		LastTransitionTime: *protocol.Timestamp(s.now), ObservedGeneration: s.evacuation.Generation,
	})
}
