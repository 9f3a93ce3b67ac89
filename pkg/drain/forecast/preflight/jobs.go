// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// JobOf returns the name of the Job that owns a pod, and whether one does.
func (p *Pod) JobOf() (name string, ok bool) {
	if p.Owner == nil || p.Owner.Kind != "Job" || p.Owner.APIVersion != batchv1.SchemeGroupVersion.String() {
		return "", false
	}
	return p.Owner.Name, true
}

// FailsJob reports whether a Job fails for good when so many of its pods are evicted at the same
// time. An evicted pod counts as failed, unless the Job's pod failure policy ignores pods that were
// disrupted (KEP-3329). A Job that counts the failures of each index (KEP-3850) loses an index for
// good only if it allows none.
func FailsJob(job *batchv1.Job, evicted int32) bool {
	if action, ok := onDisruption(job.Spec.PodFailurePolicy); ok {
		switch action {
		case batchv1.PodFailurePolicyActionIgnore:
			return false
		case batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionFailIndex:
			return true
		}
	}
	if limit := job.Spec.BackoffLimitPerIndex; limit != nil {
		return *limit == 0
	}
	limit := job.Spec.BackoffLimit
	return limit != nil && job.Status.Failed+evicted > *limit
}

// onDisruption returns the action of the first rule that matches a pod because it was disrupted.
func onDisruption(policy *batchv1.PodFailurePolicy) (batchv1.PodFailurePolicyAction, bool) {
	if policy == nil {
		return "", false
	}
	for i := range policy.Rules {
		for _, pattern := range policy.Rules[i].OnPodConditions {
			// The API server defaults the status to True.
			if pattern.Type == corev1.DisruptionTarget && (pattern.Status == "" || pattern.Status == corev1.ConditionTrue) {
				return policy.Rules[i].Action, true
			}
		}
	}
	return "", false
}
