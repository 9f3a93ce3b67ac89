/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package eviction

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	policylisters "k8s.io/client-go/listers/policy/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/eviction/pdb"
)

// maxDisruptedPods is how many evictions the API server lets a budget have before the disruption controller has confirmed them.
const maxDisruptedPods = 2000

// budgets finds the budgets of a pod in the cache.
type budgets struct {
	lister  policylisters.PodDisruptionBudgetLister
	matcher *pdb.Matcher
}

func newBudgets(lister policylisters.PodDisruptionBudgetLister) *budgets {
	return &budgets{lister: lister, matcher: pdb.NewMatcher()}
}

// of returns the budgets that select the pod, ordered by name.
func (b *budgets) of(pod *corev1.Pod) []*policyv1.PodDisruptionBudget {
	all, err := b.lister.PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	return b.matcher.Matching(pod.Labels, all)
}

// disruptionsAllowed predicts how many evictions the API would let pass.
func disruptionsAllowed(budget *policyv1.PodDisruptionBudget) int {
	if !pdb.IsCurrent(budget) || hasTooManyDisruptedPods(budget) {
		return 0
	}
	return int(budget.Status.DisruptionsAllowed)
}

func hasTooManyDisruptedPods(budget *policyv1.PodDisruptionBudget) bool {
	return budget.Status.DisruptionsAllowed < 0 || len(budget.Status.DisruptedPods) > maxDisruptedPods
}

// explain says why a budget lets nothing go and what can be done.
func explain(budget *policyv1.PodDisruptionBudget) *Blocker {
	status := budget.Status
	if message, failed := pdb.SyncFailure(budget); failed {
		return &Blocker{
			Reason: maintenancev1alpha1.ReasonPodDisruptionBudgetSyncFailed,
			Message: fmt.Sprintf("PodDisruptionBudget %s cannot be computed and so never allows a disruption: %s. Correct the budget, or delete the pod by hand.",
				budget.Name, message),
		}
	}
	if hasTooManyDisruptedPods(budget) {
		return tooManyDisruptedPods(fmt.Sprintf("PodDisruptionBudget %s allows %d disruptions and lists %d evictions that are not confirmed.",
			budget.Name, status.DisruptionsAllowed, len(status.DisruptedPods)))
	}
	blocker := &Blocker{Reason: maintenancev1alpha1.ReasonPodDisruptionBudget}
	if !pdb.IsCurrent(budget) {
		blocker.Message = fmt.Sprintf("PodDisruptionBudget %s has changed and its status has not been computed since. Check that the disruption controller runs.",
			budget.Name)
		return blocker
	}
	blocker.Message = fmt.Sprintf("PodDisruptionBudget %s allows no disruption: %d of %d pods are healthy and %d must be. "+
		"The pod goes when more of its kind are healthy, or when the budget asks for less.",
		budget.Name, status.CurrentHealthy, status.ExpectedPods, status.DesiredHealthy)
	return blocker
}

func tooManyDisruptedPods(what string) *Blocker {
	return &Blocker{
		Reason:  maintenancev1alpha1.ReasonTooManyDisruptedPods,
		Message: what + " Check that the disruption controller runs; it puts the budget's status in order.",
	}
}

func severalBudgets(matching []*policyv1.PodDisruptionBudget) *Blocker {
	names := make([]string, 0, len(matching))
	for _, budget := range matching {
		names = append(names, budget.Name)
	}
	return &Blocker{
		Reason: maintenancev1alpha1.ReasonMultiplePodDisruptionBudgets,
		Message: fmt.Sprintf("The pod is selected by the PodDisruptionBudgets %s, and the eviction API refuses pods with more than one. "+
			"Change their selectors or delete all but one.", strings.Join(names, ", ")),
	}
}
