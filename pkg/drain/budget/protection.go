// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

// UsesUp reports whether the end of a pod that the budget selects uses up one of the disruptions
// that the budget allows. The end of a pod whose eviction was granted already does not.
func UsesUp(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod, now time.Time) bool {
	if isGranted(budget, pod, now) || !Holds(pod) {
		return false
	}
	return IsReady(pod) || !LetsUnreadyGo(budget)
}

// grantTimeout is the disruption controller's DeletionTimeout: it then counts a pod again whose
// eviction was granted and which was not deleted.
const grantTimeout = 2 * time.Minute

// isGranted reports whether the budget has been reduced for the pod's eviction. The status lists
// pods by name, and while the disruption controller is down it keeps entries of earlier pods.
func isGranted(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod, now time.Time) bool {
	granted, listed := budget.Status.DisruptedPods[pod.Name]
	return listed && granted.After(pod.CreationTimestamp.Time) && now.Sub(granted.Time) < grantTimeout
}

// Room returns how many disruptions the budget allows now. Like Allowed, it is 0 for a status that
// the Eviction API does not act on; it is also 0 if the disruption controller could not compute the
// status.
func Room(budget *policyv1.PodDisruptionBudget) int {
	if _, failed := SyncFailure(budget); failed {
		return 0
	}
	return Allowed(budget)
}
