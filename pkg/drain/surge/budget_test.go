// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package surge

import (
	"testing"

	policyv1 "k8s.io/api/policy/v1"

	"haulout.dev/haulout/pkg/testing/is"
)

func expecting(pods int32) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Status = policyv1.PodDisruptionBudgetStatus{ExpectedPods: pods}
	}
}

func TestBudgetsThatNeverAllowAnEviction(t *testing.T) {
	for name, tc := range map[string]struct {
		budget          *policyv1.PodDisruptionBudget
		replicas, extra int32
		// why is empty if the budget allows an eviction with the extra replicas.
		why       string
		wantExtra int32
	}{
		"maxUnavailable 0":                       {budget("", "0", expecting(3)), 3, 1, "maxUnavailable 0", 1},
		"maxUnavailable 0%":                      {budget("", "0%", expecting(3)), 3, 1, "maxUnavailable 0%", 1},
		"maxUnavailable 1% rounds up to one pod": {budget("", "1%", expecting(3)), 3, 1, "", 1},
		"maxUnavailable 1":                       {budget("", "1", expecting(3)), 3, 1, "", 1},
		"minAvailable 100%": {
			budget: budget("100%", "", expecting(3)), replicas: 3, extra: 3, why: "minAvailable 100% of at most 6 pods",
			wantExtra: 3,
		},
		"all pods by number have room with one more": {budget("3", "", expecting(3)), 3, 1, "", 1},
		"minAvailable 5 of 3 pods needs three more":  {budget("5", "", expecting(3)), 3, 3, "", 3},
		"minAvailable 5 of 3 pods has no room with one more": {
			budget: budget("5", "", expecting(3)), replicas: 3, extra: 1, why: "minAvailable 5 of at most 4 pods",
			wantExtra: 1,
		},
		"90% of 5 pods rounds up to all, also with 2": {
			budget: budget("90%", "", expecting(5)), replicas: 5, extra: 2, why: "minAvailable 90% of at most 7 pods",
			wantExtra: 2,
		},
		"90% of 5 pods has room with 5 more":    {budget("90%", "", expecting(5)), 5, 5, "", 5},
		"50% of one pod has room with one more": {budget("50%", "", expecting(1)), 1, 1, "", 1},
		"95% of 20 pods has room as it is":      {budget("95%", "", expecting(20)), 20, 5, "", 1},
		"pods of other workloads count":         {budget("90%", "", expecting(19)), 5, 2, "", 1},
		"a status that is not set yet":          {budget("3", "", expecting(0)), 3, 1, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			why, never := NeverAllows(tc.budget, tc.replicas, tc.extra, 0)
			is.True(t, why == tc.why && never == (tc.why != ""), "got %v %q, want %q", never, why, tc.why)
			if got := ExtraFor(tc.budget, tc.replicas, tc.extra); got != tc.wantExtra {
				t.Errorf("needs %d extra replicas, want %d", got, tc.wantExtra)
			}
		})
	}
}

func TestLeavesByScaleDown(t *testing.T) {
	type budgets = []*policyv1.PodDisruptionBudget
	for name, tc := range map[string]struct {
		always, autoscaled bool
		budgets            budgets
		want               bool
	}{
		"a pod without a budget":                                    {false, false, nil, true},
		"a pod without a budget, and an autoscaler":                 {false, true, nil, false},
		"a budget of zero":                                          {false, false, budgets{budget("", "0")}, false},
		"a budget of zero, and the annotation Always":               {true, false, budgets{budget("", "0")}, true},
		"a budget of zero, the annotation Always and an autoscaler": {true, true, budgets{budget("", "0")}, false},
		"a budget that a surge opens, and the annotation Always":    {true, false, budgets{budget("2", "")}, false},
		"several budgets, and the annotation Always": {
			always: true, budgets: budgets{budget("1", ""), budget("1", "")}, want: true,
		},
		"several budgets": {budgets: budgets{budget("1", ""), budget("1", "")}},
		"a budget that cannot be computed, and Always": {true, false, budgets{budget("1", "", failing)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := web()
			if tc.always {
				always(d)
			}
			if got := LeavesByScaleDown(d, tc.autoscaled, 2, 1, 0, tc.budgets); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestTheReplicasOfASurgeDoNotCountTwice has a Deployment of three pods, which has a fourth in its
// surge: the budget expects it, too.
func TestTheReplicasOfASurgeDoNotCountTwice(t *testing.T) {
	d, surging := web(always), budget("80%", "", expecting(4))
	is.True(t, LeavesByScaleDown(d, false, 3, 1, 0, []*policyv1.PodDisruptionBudget{budget("80%", "", expecting(3))}), "before the surge")
	is.True(t, LeavesByScaleDown(d, false, 3, 1, 1, []*policyv1.PodDisruptionBudget{surging}), "during the surge")
}
