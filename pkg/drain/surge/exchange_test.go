// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package surge

import (
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestEvictions(t *testing.T) {
	for name, tc := range map[string]struct{ leaving, extra, evictedOnly, want int }{
		"the pods beyond the extra replicas":               {600, 150, 0, 450},
		"none if there is an extra replica for each":       {3, 3, 0, 0},
		"those that no scale-down may delete":              {3, 3, 1, 1},
		"those count among the pods beyond the extra ones": {10, 3, 2, 7},
	} {
		t.Run(name, func(t *testing.T) { is.Equal(t, Evictions(tc.leaving, tc.extra, tc.evictedOnly), tc.want) })
	}
}

// status sets the numbers of a budget as the disruption controller does.
func status(expected, healthy int32) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) {
		desired := pdb.DesiredHealthy(b, expected)
		b.Status = policyv1.PodDisruptionBudgetStatus{
			ExpectedPods: expected, CurrentHealthy: healthy, DesiredHealthy: desired, DisruptionsAllowed: max(0, healthy-desired),
		}
	}
}

func TestKeepsBudget(t *testing.T) {
	for name, tc := range map[string]struct {
		budget           *policyv1.PodDisruptionBudget
		replicas, others int32
		want             bool
	}{
		"all pods, which is met at the end":           {budget("10", ""), 10, 0, true},
		"more pods than there are without the surge":  {budget("12", ""), 10, 0, false},
		"the same, with too few of another workload":  {budget("12", ""), 10, 1, false},
		"the same, with enough of another workload":   {budget("12", ""), 10, 2, true},
		"a percentage, which grows with the replicas": {budget("90%", ""), 10, 0, true},
		"maxUnavailable": {budget("", "1"), 10, 0, true},
	} {
		t.Run(name, func(t *testing.T) { is.Equal(t, KeepsBudget(tc.budget, tc.replicas, tc.others), tc.want) })
	}
}

func TestRemovable(t *testing.T) {
	evicted := func(n int32) func(*policyv1.PodDisruptionBudget) {
		return func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed -= n }
	}
	stale := func(b *policyv1.PodDisruptionBudget) { b.Generation++ }
	failed := func(b *policyv1.PodDisruptionBudget) {
		b.Status.Conditions = []metav1.Condition{
			{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason},
		}
	}
	for name, tc := range map[string]struct {
		budget         *policyv1.PodDisruptionBudget
		replicas, pods int32
		want           int32
	}{
		"all extra replicas, although only one pod may be missing": {budget("", "1", status(13, 13)), 13, 3, 3},
		"all extra replicas of a percentage":                       {budget("", "10%", status(750, 750)), 750, 150, 150},
		"all extra replicas if all pods without them are required": {budget("10", "", status(13, 13)), 13, 3, 3},
		"as many as a number leaves":                               {budget("12", "", status(13, 13)), 13, 3, 1},
		"as many as unready pods leave":                            {budget("10", "", status(13, 12)), 13, 3, 2},
		"none if the budget allows no disruption":                  {budget("10", "", status(13, 10)), 13, 3, 0},
		"fewer if evictions were just granted":                     {budget("10", "", status(13, 13), evicted(2)), 13, 3, 1},
		"none under a budget whose status is old":                  {budget("10", "", status(13, 13), stale), 13, 3, 0},
		"none under a budget that cannot be computed":              {budget("10", "", status(13, 13), failed), 13, 3, 0},
		"with pods of another workload":                            {budget("12", "", status(15, 14)), 13, 3, 2},
	} {
		t.Run(name, func(t *testing.T) { is.Equal(t, Removable(tc.budget, tc.replicas, tc.pods), tc.want) })
	}
}
