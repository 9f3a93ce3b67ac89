// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
)

// explainKept adds to the message that a DaemonSet pod is kept, because its budget has allowed no
// disruption for too long, and does not block the drain. The status write makes the maintenance
// count the pod as kept.
func (d *decision) explainKept(s situation, b *eviction.Blocker) *eviction.Blocker {
	if b == nil || !d.isRequested(s) || !protocol.IsBudgetReason(b.Reason) {
		return b
	}
	since := s.now
	blocked := meta.FindStatusCondition(d.status.Conditions, maintenancev1alpha1.ConditionBlocked)
	if blocked != nil && blocked.Status == metav1.ConditionTrue {
		if !protocol.IsBudgetReason(blocked.Reason) {
			// Until now something else blocked the pod: the patience with its budget begins now.
			blocked.LastTransitionTime = *protocol.Timestamp(s.now)
		}
		since = blocked.LastTransitionTime.Time
	}
	if b.Reason != maintenancev1alpha1.ReasonPodDisruptionBudgetSyncFailed {
		if at := since.Add(s.budgetPatience); s.now.Before(at) {
			d.wakeAt(at)
			return b
		}
	}
	kept := *b
	kept.Message += " The pod is kept on its node since " + since.UTC().Format(time.RFC3339) +
		" and does not block the drain. It is evicted if the budget opens."
	return &kept
}
