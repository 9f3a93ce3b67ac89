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

package nodemaintenance

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestGaugesAddMaintenancesUp(t *testing.T) {
	registerMetrics()
	const drain, cordon, idle = maintenancev1alpha1.NodeMaintenanceStageDrain, maintenancev1alpha1.NodeMaintenanceStageCordon, maintenancev1alpha1.NodeMaintenanceStageIdle
	inStage := func(stage maintenancev1alpha1.NodeMaintenanceStage, entered int64, nodes ...maintenancev1alpha1.NodeMaintenanceNodeStatus) tally {
		at := metav1.Unix(entered, 0)
		return tallyOf(&maintenancev1alpha1.NodeMaintenance{
			Spec: maintenancev1alpha1.NodeMaintenanceSpec{Stage: stage},
			Status: maintenancev1alpha1.NodeMaintenanceStatus{StageStatuses: []maintenancev1alpha1.StageStatus{
				{Name: cordon, StartTimestamp: new(metav1.Unix(1, 0))}, {Name: stage, StartTimestamp: &at},
			}},
		}, nodes)
	}
	want := func(text string, gauge metrics.GaugeMetric, value float64) {
		t.Helper()
		if got, err := testutil.GetGaugeMetricValue(gauge); err != nil || got != value {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, value)
		}
	}
	all := &tallies{byName: map[string]tally{}}
	all.set("a", inStage(
		drain,
		300,
		maintenancev1alpha1.NodeMaintenanceNodeStatus{PodsEvacuating: 3, PodsBlocked: 2, PodsPendingEvacuation: 1},
	))
	stuck := inStage(
		drain, 200, maintenancev1alpha1.NodeMaintenanceNodeStatus{PodsEvacuating: 1, PodsBlocked: 1, PodsKept: 4},
	)
	stuck.standsStill = true
	all.set("b", stuck)
	all.set(
		"c", inStage(idle, time.Now().Unix(), maintenancev1alpha1.NodeMaintenanceNodeStatus{PodsPendingEvacuation: 9}),
	)
	for _, g := range []struct {
		text  string
		gauge metrics.GaugeMetric
		value float64
	}{
		{"maintenances that drain", maintenancesByStage.WithLabelValues("Drain"), 2},
		{"maintenances in stage Idle", maintenancesByStage.WithLabelValues("Idle"), 1},
		{"nodes that are drained", nodesHeld.WithLabelValues("Drain"), 2},
		{"the oldest one that drains", oldestStart.WithLabelValues("Drain"), 200},
		{"none is in stage Cordon", oldestStart.WithLabelValues("Cordon"), 0},
		{"drains that stand still", drainsBlocked, 1},
		{"pods that evacuate", podsByState.WithLabelValues("evacuating"), 4},
		{"pods that are blocked", podsByState.WithLabelValues("blocked"), 3},
		{"pods that are pending, those of Idle aside", podsByState.WithLabelValues("pending"), 1},
		{"pods that stay", podsByState.WithLabelValues("left"), 4},
	} {
		want(g.text, g.gauge, g.value)
	}
	all.remove("b")
	want("the oldest one when the other is gone", oldestStart.WithLabelValues("Drain"), 300)
	want("no drain stands still", drainsBlocked, 0)
	all.reset()
	want("another replica counts", maintenancesByStage.WithLabelValues("Drain"), 0)
}
