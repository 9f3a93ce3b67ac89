// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestGaugesAddMaintenancesUp(t *testing.T) {
	registerMetrics()
	const (
		drain  = v1alpha1.NodeMaintenanceStageDrain
		cordon = v1alpha1.NodeMaintenanceStageCordon
		idle   = v1alpha1.NodeMaintenanceStageIdle
	)
	inStage := func(
		stage v1alpha1.NodeMaintenanceStage, entered int64, progressing metav1.ConditionStatus,
		node v1alpha1.NodeMaintenanceNodeStatus,
	) *v1alpha1.NodeMaintenance {
		return &v1alpha1.NodeMaintenance{
			Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage},
			Status: v1alpha1.NodeMaintenanceStatus{
				StageStatuses: []v1alpha1.StageStatus{
					{Name: cordon, StartTimestamp: new(metav1.Unix(1, 0))},
					{Name: stage, StartTimestamp: new(metav1.Unix(entered, 0))},
				},
				Conditions:   []metav1.Condition{{Type: v1alpha1.ConditionProgressing, Status: progressing}},
				NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{node},
			},
		}
	}
	moves := inStage(drain, 300, metav1.ConditionTrue, v1alpha1.NodeMaintenanceNodeStatus{
		PodsEvacuating: 3, PodsBlocked: 2, PodsPendingEvacuation: 1,
	})
	stuck := inStage(drain, 200, metav1.ConditionFalse, v1alpha1.NodeMaintenanceNodeStatus{
		PodsEvacuating: 1, PodsBlocked: 1, PodsKept: 4,
	})
	planned := inStage(idle, 100, metav1.ConditionTrue, v1alpha1.NodeMaintenanceNodeStatus{
		PodsPendingEvacuation: 9,
	})
	all := []*v1alpha1.NodeMaintenance{moves, stuck, planned}
	want := func(text string, gauge metrics.GaugeMetric, value float64) {
		t.Helper()
		if got, err := testutil.GetGaugeMetricValue(gauge); err != nil || got != value {
			t.Errorf("%s: got %v, error %v, want %v", text, got, err, value)
		}
	}
	publish(all)
	want("maintenances that drain", maintenancesByStage.WithLabelValues("Drain"), 2)
	want("maintenances in stage Idle", maintenancesByStage.WithLabelValues("Idle"), 1)
	want("nodes that are drained", nodesHeld.WithLabelValues("Drain"), 2)
	want("start of the oldest drain", oldestStart.WithLabelValues("Drain"), 200)
	want("start of the oldest Cordon stage", oldestStart.WithLabelValues("Cordon"), 0)
	want("drains without progress", drainsBlocked, 1)
	want("evacuating pods", podsByState.WithLabelValues("evacuating"), 4)
	want("blocked pods", podsByState.WithLabelValues("blocked"), 3)
	want("pending pods without those of Idle", podsByState.WithLabelValues("pending"), 1)
	want("kept pods", podsByState.WithLabelValues("kept"), 4)

	all = slices.DeleteFunc(all, func(nm *v1alpha1.NodeMaintenance) bool { return nm == stuck })
	publish(all)
	want("start of the oldest drain after the other was deleted", oldestStart.WithLabelValues("Drain"), 300)
	want("drains without progress after it was deleted", drainsBlocked, 0)

	publish(nil)
	want("maintenances that drain while another replica leads", maintenancesByStage.WithLabelValues("Drain"), 0)
}
