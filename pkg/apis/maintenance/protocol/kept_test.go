// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestIsKeptByBudget(t *testing.T) {
	const patience = 5 * time.Minute
	begin := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	condition := func(kind, reason string, status metav1.ConditionStatus) func(*v1alpha1.EvacuationStatus) {
		return func(st *v1alpha1.EvacuationStatus) {
			st.Conditions = append(st.Conditions, metav1.Condition{
				Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(begin),
			})
		}
	}
	blocked := func(reason string) func(*v1alpha1.EvacuationStatus) {
		return condition("Blocked", reason, metav1.ConditionTrue)
	}
	active := func(class string) func(*v1alpha1.EvacuationStatus) {
		return func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorClass = class }
	}
	completed := func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true }
	type mods []func(*v1alpha1.EvacuationStatus)
	for name, tt := range map[string]struct {
		mods mods
		at   time.Duration
		want bool
	}{
		"a budget that has allowed no disruption for the patience": {mods{blocked("PodDisruptionBudget")}, patience, true},
		"a budget that has allowed no disruption for less":         {mods{blocked("PodDisruptionBudget")}, patience - 1, false},
		"a budget that cannot be computed":                         {mods: mods{blocked("PodDisruptionBudgetSyncFailed")}, at: 0, want: true},
		"several budgets, after the patience":                      {mods{blocked("MultiplePodDisruptionBudgets")}, patience, true},
		"a budget without disruptions because of unhealthy pods":   {mods{blocked("UnhealthyPodsHoldBudget")}, patience, true},
		"a budget whose pods run on other nodes":                   {mods{blocked("BudgetPodsCordoned")}, patience, true},
		"an eviction that is refused for another reason":           {mods{blocked("EvictionForbidden")}, time.Hour, false},
		"a budget that allows a disruption again": {
			mods: mods{condition("Blocked", "NotBlocked", metav1.ConditionFalse)}, at: time.Hour,
		},
		"the pod is not blocked": {nil, time.Hour, false},
		"a pod that waits for its eviction": {
			mods: mods{blocked("PodDisruptionBudget"), active("eviction.maintenance.haulout.dev")}, at: time.Hour,
		},
		"a pod that the evacuator declined": {mods{blocked("PodDisruptionBudget"), completed}, time.Hour, false},
		"a complete Evacuation": {
			mods: mods{blocked("PodDisruptionBudget"), condition("Complete", "PodDeleted", metav1.ConditionTrue)},
			at:   time.Hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := &v1alpha1.Evacuation{Status: v1alpha1.EvacuationStatus{
				ActiveEvacuatorClass: v1alpha1.EvacuatorClassDaemonSet,
			}}
			for _, mod := range tt.mods {
				mod(&e.Status)
			}
			is.Equal(t, IsKeptByBudget(e, patience, begin.Add(tt.at)), tt.want)
		})
	}
}
