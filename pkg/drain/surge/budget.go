// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package surge

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	policyv1 "k8s.io/api/policy/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/pdb"
)

// NeverAllows reports whether a budget allows no eviction even if a Deployment has the given
// replicas and the extra replicas of a surge, and all of its pods are healthy. surplus is how many
// extra replicas it has already: the budget expects them, too, as soon as the disruption controller
// has seen their pods. why is a short reason. Percentages are rounded as the disruption controller
// rounds them. The owner of such a budget forbids disruptions.
func NeverAllows(budget *policyv1.PodDisruptionBudget, replicas, extra, surplus int32) (why string, never bool) {
	if _, failed := pdb.SyncFailure(budget); failed {
		return "it cannot be computed", true
	}
	if pdb.CountsNone(budget) {
		return "it counts none of its pods", true
	}
	expected := expectedOf(budget, replicas, surplus) + extra
	if pdb.DesiredHealthy(budget, expected) < expected {
		return "", false
	}
	switch spec := &budget.Spec; {
	case spec.MaxUnavailable != nil:
		return "maxUnavailable " + spec.MaxUnavailable.String(), true
	case spec.MinAvailable != nil:
		return fmt.Sprintf("minAvailable %s of at most %d pods", spec.MinAvailable.String(), expected), true
	}
	return "neither minAvailable nor maxUnavailable", true
}

// ExtraFor returns how many extra replicas, at least one, a surge of a Deployment with the given
// replicas needs so that the budget allows an eviction when all pods are healthy. A percentage may
// need several. ExtraFor returns most if even that number is not sufficient.
func ExtraFor(budget *policyv1.PodDisruptionBudget, replicas, most int32) int32 {
	expected := expectedOf(budget, replicas, 0)
	for extra := int32(1); extra < most; extra++ {
		if pdb.DesiredHealthy(budget, expected+extra) < expected+extra {
			return extra
		}
	}
	return most
}

// expectedOf returns how many pods a budget expects without a surge, possibly including pods of
// other workloads.
func expectedOf(budget *policyv1.PodDisruptionBudget, replicas, surplus int32) int32 {
	return max(replicas, budget.Status.ExpectedPods-surplus)
}

// RefuseBudgets returns the reason why a Deployment is not scaled up for a pod under these budgets:
// even with the extra replicas the budgets never allow an eviction. a is the autoscaler of the
// Deployment, or nil.
func RefuseBudgets(
	d *appsv1.Deployment, a *autoscalingv2.HorizontalPodAutoscaler, budgets []*policyv1.PodDisruptionBudget, replicas, extra int32,
) Refusal {
	var names, why string
	switch len(budgets) {
	case 0:
		return Refusal{}
	case 1:
		reason, never := NeverAllows(budgets[0], replicas, extra, 0)
		if !never {
			return Refusal{}
		}
		names, why = fmt.Sprintf("PodDisruptionBudget %s (%s)", budgets[0].Name, reason), "which never allows an eviction"
	default:
		names, why = "the PodDisruptionBudgets "+namesOf(budgets), "since the Eviction API refuses pods with more than one"
	}
	switch always := IsAlways(d.Annotations); {
	case always && a == nil:
		return Refusal{}
	case always:
		// An autoscaler may scale down at any time, so the pods of its target can only leave by
		// eviction.
		return Refusal{
			Fact:    fmt.Sprintf("is scaled up by HorizontalPodAutoscaler %s without effect under %s, %s", a.Name, names, why),
			Because: "the pods of an autoscaled Deployment leave by eviction only",
		}
	}
	return Refusal{
		Fact: fmt.Sprintf("is not scaled up under %s, %s", names, why),
		Because: fmt.Sprintf("its pods are replaced nevertheless if it has the annotation %s: %s", v1alpha1.AnnotationSurge,
			v1alpha1.SurgeAlways),
	}
}

func namesOf(budgets []*policyv1.PodDisruptionBudget) string {
	names := make([]string, 0, len(budgets))
	for _, budget := range budgets {
		names = append(names, budget.Name)
	}
	return strings.Join(names, ", ")
}

// LeavesByScaleDown reports whether a pod under these budgets leaves by the scale-down at the end
// of a surge, and not by eviction. This is so if the pod has no budget, or if its budgets never
// allow an eviction and the Deployment has the annotation surge: Always. As in a rollout, no budget
// is checked then, and the pod is deleted only when its replacement is available. The pods of an
// autoscaled Deployment always leave by eviction, since the autoscaler may scale down at any time.
func LeavesByScaleDown(
	d *appsv1.Deployment, autoscaled bool, replicas, extra, surplus int32, budgets []*policyv1.PodDisruptionBudget,
) bool {
	switch {
	case autoscaled:
		return false
	case len(budgets) == 0:
		return true
	case !IsAlways(d.Annotations):
		return false
	case len(budgets) > 1:
		return true
	}
	_, never := NeverAllows(budgets[0], replicas, extra, surplus)
	return never
}
