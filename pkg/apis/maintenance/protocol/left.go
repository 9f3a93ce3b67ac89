// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// LeftAt returns when the pod of an Evacuation left its node, regardless of the cause: evicted,
// scaled down, deleted by its owner, or finished. It returns false if the pod has not left, or if
// the Evacuation was cancelled.
func LeftAt(evacuation *v1alpha1.Evacuation) (time.Time, bool) {
	complete := meta.FindStatusCondition(evacuation.Status.Conditions, v1alpha1.ConditionComplete)
	if complete == nil || complete.Status != metav1.ConditionTrue || complete.Reason == v1alpha1.ReasonCancelled {
		return time.Time{}, false
	}
	return complete.LastTransitionTime.Time, true
}
