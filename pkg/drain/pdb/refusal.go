// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pdb

import (
	"fmt"
	"strings"

	policyv1 "k8s.io/api/policy/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// maxDisruptedPods is the maximum number of evictions under a budget that the API server grants
// before the disruption controller has confirmed them.
const maxDisruptedPods = 2000

// Refusal is the reason why an eviction is refused.
type Refusal struct {
	// Reason is a reason of the condition Blocked of Evacuations.
	Reason string
	// Message names the budget and a remedy.
	Message string
}

// Allowed predicts how many evictions the Eviction API would allow now.
func Allowed(budget *policyv1.PodDisruptionBudget) int {
	if !IsCurrent(budget) || hasTooManyDisruptedPods(budget) {
		return 0
	}
	return int(budget.Status.DisruptionsAllowed)
}

func hasTooManyDisruptedPods(budget *policyv1.PodDisruptionBudget) bool {
	return budget.Status.DisruptionsAllowed < 0 || len(budget.Status.DisruptedPods) > maxDisruptedPods
}

// Explain returns the reason why a budget allows no disruption now, with a remedy for the kind of
// owner. All messages about budgets that allow no disruption come from here.
func Explain(budget *policyv1.PodDisruptionBudget, owner Owner) Refusal {
	status := budget.Status
	if message, failed := SyncFailure(budget); failed {
		return Refusal{
			Reason: v1alpha1.ReasonPodDisruptionBudgetSyncFailed,
			Message: fmt.Sprintf("%s The owner of the app can correct it (%s). Otherwise delete the pod by hand.",
				wording.NeverOpens(budget.Name, "it cannot be computed: "+strings.TrimRight(message, ". ")), commandOf(budget)),
		}
	}
	if hasTooManyDisruptedPods(budget) {
		return TooManyDisruptedPods(fmt.Sprintf("PodDisruptionBudget %s allows %d disruptions and lists %d evictions that are not confirmed.",
			budget.Name, status.DisruptionsAllowed, len(status.DisruptedPods)))
	}
	refusal := Refusal{Reason: v1alpha1.ReasonPodDisruptionBudget}
	if CountsNone(budget) {
		refusal.Message = fmt.Sprintf("%s The owner of the app can set its minAvailable to a number (%s). Otherwise delete the pod by hand.",
			wording.NeverOpens(budget.Name, "its pods have no controller, so the number of expected pods is not known"), commandOf(budget))
		return refusal
	}
	if why, never := NeverAllows(budget); never {
		refusal.Message = owner.neverAllows(budget, why)
		return refusal
	}
	if !IsCurrent(budget) {
		refusal.Message = fmt.Sprintf("PodDisruptionBudget %s has changed and its status has not been computed since. Check that the disruption controller runs.",
			budget.Name)
		return refusal
	}
	refusal.Message = fmt.Sprintf("PodDisruptionBudget %s allows no disruption: %d of %d pods are healthy and %d must be. "+
		"The pod leaves when more pods of the budget are healthy, or the budget requires fewer.",
		budget.Name, status.CurrentHealthy, status.ExpectedPods, status.DesiredHealthy)
	return refusal
}

// NotReplacedFirst adds to a refusal why the pods of a Deployment are not replaced before they
// leave. why is a phrase that follows the name of the Deployment.
func (r Refusal) NotReplacedFirst(deployment, why string) Refusal {
	r.Message += fmt.Sprintf(" No replacement starts first (Deployment %s %s).", deployment, why)
	return r
}

// commandOf returns the command that shows a budget.
func commandOf(budget *policyv1.PodDisruptionBudget) string {
	return wording.BudgetCommand(budget.Namespace, budget.Name)
}

// HeldByUnhealthy reports whether a budget allows no disruption because the pod itself, or other
// pods of the budget, are not healthy, and returns the refusal. steady is true if the number of
// missing pods has not changed for a while. Otherwise the drain itself may have evicted the missing
// pods, unless fewer pods than desired are healthy, which evictions do not cause.
func HeldByUnhealthy(budget *policyv1.PodDisruptionBudget, ready, steady bool) (Refusal, bool) {
	refusal, status := Explain(budget, OwnerNone), budget.Status
	unhealthy := status.ExpectedPods - status.CurrentHealthy
	if refusal.Reason != v1alpha1.ReasonPodDisruptionBudget || !IsCurrent(budget) || unhealthy <= 0 {
		return Refusal{}, false
	}
	short := status.CurrentHealthy < status.DesiredHealthy
	switch {
	case !ready && !LetsUnreadyGo(budget):
	case ready && status.ExpectedPods > status.DesiredHealthy && (short || steady):
	default:
		return Refusal{}, false
	}
	advice := "Get them ready."
	policy := budget.Spec.UnhealthyPodEvictionPolicy
	why, never := NeverAllows(budget)
	switch {
	case never && !ready:
		// This budget would allow no disruption even if its pods were ready.
		advice = fmt.Sprintf("Set unhealthyPodEvictionPolicy to AlwaysAllow in the budget, which allows the eviction of pods that are not ready. "+
			"It never allows the eviction of a ready pod (%s).", why)
	case policy == nil || *policy != policyv1.AlwaysAllow:
		advice = "Get them ready, or set unhealthyPodEvictionPolicy to AlwaysAllow in the budget, which allows the eviction of pods that are not ready."
	}
	return Refusal{
		Reason: v1alpha1.ReasonUnhealthyPodsHoldBudget,
		Message: fmt.Sprintf("PodDisruptionBudget %s allows no disruption, because %d of %d pods are missing or not ready: %d are healthy, and %d must be healthy. %s",
			budget.Name, unhealthy, status.ExpectedPods, status.CurrentHealthy, status.DesiredHealthy, advice),
	}, true
}

// TooManyDisruptedPods returns the refusal for a budget with an invalid status. what is a sentence
// about the status.
func TooManyDisruptedPods(what string) Refusal {
	return Refusal{
		Reason:  v1alpha1.ReasonTooManyDisruptedPods,
		Message: what + " Check that the disruption controller runs; it corrects the budget's status.",
	}
}

// ExplainSeveral returns the reason why a pod that several budgets select is never evicted.
func ExplainSeveral(matching []*policyv1.PodDisruptionBudget) Refusal {
	const shown = 10 // of possibly thousands
	names := make([]string, 0, min(len(matching), shown)+1)
	for _, budget := range matching[:min(len(matching), shown)] {
		names = append(names, budget.Name)
	}
	if more := len(matching) - shown; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return Refusal{
		Reason: v1alpha1.ReasonMultiplePodDisruptionBudgets,
		Message: fmt.Sprintf("The pod is selected by the PodDisruptionBudgets %s, and the eviction API refuses pods with more than one. "+
			"Change their selectors or delete all but one.", strings.Join(names, ", ")),
	}
}
