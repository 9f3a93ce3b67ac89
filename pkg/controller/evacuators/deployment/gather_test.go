// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/drain/pdb"
)

// TestBudgetsOfPodsWithTheSameLabelsAreMatchedOnce covers budgets whose selectors require no label.
func TestBudgetsOfPodsWithTheSameLabelsAreMatchedOnce(t *testing.T) {
	const budgets = 10
	c := &Controller{budgets: pdb.NewIndex(nil)}
	for i := range budgets {
		c.budgets.Set(&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: fmt.Sprintf("b-%d", i)},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprintf("other-%d", i), "canary"}},
			}}},
		})
	}
	var known budgetsByLabels
	canary := newTestPod("web-2", func(p *pod) { p.Labels = map[string]string{"app": "canary"} })
	for _, p := range slices.Concat([]pod{canary}, slices.Repeat([]pod{newTestPod("web-0"), newTestPod("web-1")}, 5)) {
		want := budgets
		if p.Name == canary.Name {
			want = 0
		}
		if got := c.budgetsOf(p.Pod, &known); len(got) != want {
			t.Errorf("%s has %d budgets, want %d", p.Name, len(got), want)
		}
	}
	if got := c.budgets.Matched(); got != 2*budgets {
		t.Errorf("budgets were matched %d times, want %d", got, 2*budgets)
	}
}
