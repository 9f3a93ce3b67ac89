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
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	policylisters "k8s.io/client-go/listers/policy/v1"

	"haulout.dev/haulout/pkg/eviction/pdb"
)

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

// explain says why a budget lets a pod not go and what can be done. steady says that its pods have been as they are for a while.
func explain(budget *policyv1.PodDisruptionBudget, ready, steady bool) *Blocker {
	refusal, held := pdb.HeldByUnhealthy(budget, ready, steady)
	if !held {
		refusal = pdb.Explain(budget)
	}
	b := Blocker(refusal)
	return &b
}

func tooManyDisruptedPods(what string) *Blocker {
	b := Blocker(pdb.TooManyDisruptedPods(what))
	return &b
}

func severalBudgets(matching []*policyv1.PodDisruptionBudget) *Blocker {
	b := Blocker(pdb.ExplainSeveral(matching))
	return &b
}
