// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package pdb evaluates PodDisruptionBudgets as the Eviction API does: which pods they protect, and
// how many disruptions they allow. It uses no client, so controllers that evict pods and previews
// that predict evictions can share it.
package pdb

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NameOf returns the namespace and name of a budget.
func NameOf(budget *policyv1.PodDisruptionBudget) types.NamespacedName {
	return types.NamespacedName{Namespace: budget.Namespace, Name: budget.Name}
}

// Holds reports whether the Eviction API checks budgets for the pod. It does not check them for
// pods that are pending, finished or terminating, even if several budgets select the pod.
func Holds(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed:
		return false
	}
	return pod.DeletionTimestamp == nil
}

// IsReady reports whether the pod counts as healthy for budgets.
func IsReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// IsCurrent reports whether the status reflects the current spec. The Eviction API refuses
// evictions as long as the status is older.
func IsCurrent(budget *policyv1.PodDisruptionBudget) bool {
	return budget.Status.ObservedGeneration >= budget.Generation
}

// LetsUnreadyGo reports whether a pod that is not ready may be evicted without using up the budget.
func LetsUnreadyGo(budget *policyv1.PodDisruptionBudget) bool {
	if policy := budget.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return budget.Status.DesiredHealthy > 0 && budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy
}

// SyncFailure returns the reason why the disruption controller cannot compute the budget. Such a
// budget allows no disruption until it is corrected.
func SyncFailure(budget *policyv1.PodDisruptionBudget) (message string, failed bool) {
	condition := meta.FindStatusCondition(budget.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != policyv1.SyncFailedReason {
		return "", false
	}
	return condition.Message, true
}

// CountsNone reports whether the budget has healthy pods but expects none. Unless minAvailable is a
// number, the disruption controller computes the expected pods from their controllers, and ignores
// pods without a controller. It then allows no disruption and does not report a failure.
func CountsNone(budget *policyv1.PodDisruptionBudget) bool {
	return IsCurrent(budget) && budget.Status.ExpectedPods == 0 && budget.Status.CurrentHealthy > 0 && budget.Status.DisruptionsAllowed == 0
}

// NeverAllows reports whether the budget allows no eviction of a ready pod even if all of its pods
// are healthy, and returns a short reason. While there are more pods than expected, such a budget
// may still allow a disruption; NeverAllows then returns false.
func NeverAllows(budget *policyv1.PodDisruptionBudget) (reason string, never bool) {
	spec, status, current := &budget.Spec, &budget.Status, IsCurrent(budget)
	if current && status.DisruptionsAllowed > 0 {
		return "", false
	}
	maximum, minimum := spec.MaxUnavailable, spec.MinAvailable
	switch {
	case maximum == nil && minimum == nil:
		// The disruption controller then expects no pods and so allows no disruption.
		return "neither minAvailable nor maxUnavailable", true
	case maximum != nil && ofHundred(maximum) == 0:
		return "maxUnavailable " + maximum.String(), true
	case maximum == nil && minimum.Type == intstr.String && ofHundred(minimum) == 100:
		return "minAvailable 100%", true
	}
	if _, failed := SyncFailure(budget); failed {
		return "it cannot be computed", true
	}
	if CountsNone(budget) {
		return "it counts none of its pods, which have no controller", true
	}
	// Only the status has the number of expected pods. If there are few pods, a percentage may be
	// rounded up to all of them.
	if maximum == nil && current && status.ExpectedPods > 0 && status.DesiredHealthy >= status.ExpectedPods {
		return fmt.Sprintf("minAvailable %s of %d pods", minimum.String(), status.ExpectedPods), true
	}
	return "", false
}

// DesiredHealthy returns how many of the expected pods must be healthy.
func DesiredHealthy(budget *policyv1.PodDisruptionBudget, expected int32) int32 {
	limit, unavailable := budget.Spec.MinAvailable, budget.Spec.MaxUnavailable
	if unavailable != nil {
		limit = unavailable
	}
	if limit == nil {
		return expected
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(limit, int(expected), true)
	switch {
	case err != nil:
		return expected
	case unavailable != nil:
		return max(0, expected-int32(n))
	}
	return int32(n)
}

// ofHundred returns the value of a limit for a hundred pods, or -1 if it is malformed.
func ofHundred(limit *intstr.IntOrString) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(limit, 100, true)
	if err != nil {
		return -1
	}
	return n
}

// UsesUp reports whether the budget allows one disruption less when a pod that it selects ends. It
// returns false if the budget was already reduced for the eviction of the pod.
func UsesUp(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod, now time.Time) bool {
	if isGranted(budget, pod, now) || !Holds(pod) {
		return false
	}
	return IsReady(pod) || !LetsUnreadyGo(budget)
}

// grantTimeout is the DeletionTimeout of the disruption controller. After that time the controller
// counts a pod again whose eviction was granted but which was not deleted.
const grantTimeout = 2 * time.Minute

// isGranted reports whether the budget was already reduced for the pod's eviction. The status lists
// pods by name. While the disruption controller is down, the status keeps entries of earlier pods
// with the same name.
func isGranted(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod, now time.Time) bool {
	granted, listed := budget.Status.DisruptedPods[pod.Name]
	return listed && granted.After(pod.CreationTimestamp.Time) && now.Sub(granted.Time) < grantTimeout
}

// Room returns how many disruptions the budget allows now. Like Allowed, it returns 0 if the
// Eviction API does not use the status. It also returns 0 if the disruption controller could not
// compute the status.
func Room(budget *policyv1.PodDisruptionBudget) int {
	if _, failed := SyncFailure(budget); failed {
		return 0
	}
	return Allowed(budget)
}
