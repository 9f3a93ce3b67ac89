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

// Package budget knows what PodDisruptionBudgets mean to the eviction API: which pods they hold,
// and what they let go. Values in, values out: it has no client, so that whoever evicts and whoever
// only predicts read a budget the same way.
package budget

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Matcher finds the budgets of pods. It keeps the parsed selectors, since a namespace with many
// budgets and pods matches each with each. It is not safe for concurrent use.
type Matcher struct {
	parsed map[types.NamespacedName]parsedSelector
}

type parsedSelector struct {
	uid        types.UID
	generation int64
	selector   labels.Selector
}

// NewMatcher returns a Matcher that has parsed nothing yet.
func NewMatcher() *Matcher {
	return &Matcher{parsed: map[types.NamespacedName]parsedSelector{}}
}

// Matching returns those of the budgets that select pods with the given labels, ordered by name.
// The budgets are those of the pod's namespace.
func (m *Matcher) Matching(pod labels.Set, budgets []*policyv1.PodDisruptionBudget) []*policyv1.PodDisruptionBudget {
	var matching []*policyv1.PodDisruptionBudget
	for _, budget := range budgets {
		if m.selector(budget).Matches(pod) {
			matching = append(matching, budget)
		}
	}
	slices.SortFunc(matching, func(x, y *policyv1.PodDisruptionBudget) int { return strings.Compare(x.Name, y.Name) })
	return matching
}

func (m *Matcher) selector(budget *policyv1.PodDisruptionBudget) labels.Selector {
	name := NameOf(budget)
	if known, ok := m.parsed[name]; ok && known.uid == budget.UID && known.generation == budget.Generation {
		return known.selector
	}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		// The eviction API ignores a budget with a broken selector, too.
		selector = labels.Nothing()
	}
	m.parsed[name] = parsedSelector{budget.UID, budget.Generation, selector}
	return selector
}

// Forget drops what is kept for a budget that has changed or is gone.
func (m *Matcher) Forget(budget *policyv1.PodDisruptionBudget) {
	delete(m.parsed, NameOf(budget))
}

// NameOf returns the namespace and name of a budget.
func NameOf(budget *policyv1.PodDisruptionBudget) types.NamespacedName {
	return types.NamespacedName{Namespace: budget.Namespace, Name: budget.Name}
}

// Holds says whether the eviction API looks at budgets at all for the pod. Pods that are pending,
// finished or terminating bypass them, even several of them.
func Holds(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed:
		return false
	}
	return pod.DeletionTimestamp == nil
}

// IsReady says whether the pod counts as healthy for budgets.
func IsReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// IsCurrent says whether the status answers to the spec. While it does not, the eviction API
// refuses.
func IsCurrent(budget *policyv1.PodDisruptionBudget) bool {
	return budget.Status.ObservedGeneration >= budget.Generation
}

// LetsUnreadyGo says whether a pod that is not ready may be evicted without using up the budget.
func LetsUnreadyGo(budget *policyv1.PodDisruptionBudget) bool {
	if policy := budget.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return budget.Status.DesiredHealthy > 0 && budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy
}

// SyncFailure returns why the disruption controller cannot compute the budget. Such a budget allows
// nothing until it is corrected.
func SyncFailure(budget *policyv1.PodDisruptionBudget) (message string, failed bool) {
	condition := meta.FindStatusCondition(budget.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != policyv1.SyncFailedReason {
		return "", false
	}
	return condition.Message, true
}

// CountsNone says whether the budget has pods and expects none. The disruption controller takes
// from the controllers of pods how many there shall be, unless minAvailable is a number, and leaves
// out pods that have none; it then allows no disruption and does not call that a failure.
func CountsNone(budget *policyv1.PodDisruptionBudget) bool {
	return IsCurrent(budget) && budget.Status.ExpectedPods == 0 && budget.Status.CurrentHealthy > 0 && budget.Status.DisruptionsAllowed == 0
}

// NeverAllows says whether no ready pod can be evicted under the budget even when all of its pods
// are healthy, and what in the budget is the reason, in few words. Only surplus pods beside the
// expected ones make room in such a budget; while there are some it is not reported.
func NeverAllows(budget *policyv1.PodDisruptionBudget) (reason string, never bool) {
	spec, status, current := &budget.Spec, &budget.Status, IsCurrent(budget)
	if current && status.DisruptionsAllowed > 0 {
		return "", false
	}
	maximum, minimum := spec.MaxUnavailable, spec.MinAvailable
	switch {
	case maximum == nil && minimum == nil:
		// The disruption controller expects no pods then and so allows no disruption.
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
	// How many pods there shall be is known from the status only. Percentages of few pods round up
	// to all of them.
	if maximum == nil && current && status.ExpectedPods > 0 && status.DesiredHealthy >= status.ExpectedPods {
		return fmt.Sprintf("minAvailable %s of %d pods", minimum.String(), status.ExpectedPods), true
	}
	return "", false
}

// MakesRoom says whether a budget lets a pod go if so many are expected and all are healthy.
func MakesRoom(budget *policyv1.PodDisruptionBudget, expected int32) bool {
	expected = max(expected, budget.Status.ExpectedPods)
	return DesiredHealthy(budget, expected) < expected
}

// DesiredHealthy returns how many pods a budget wants to be healthy if so many are expected.
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

// ofHundred returns what a limit comes to for a hundred pods, or -1 if it is malformed.
func ofHundred(limit *intstr.IntOrString) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(limit, 100, true)
	if err != nil {
		return -1
	}
	return n
}
