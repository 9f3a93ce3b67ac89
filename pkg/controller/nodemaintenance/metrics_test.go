// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// measured returns a maintenance with one node, which was created and entered its stage at the
// given second. reason is the reason of Progressing, which is False if the reason is one of those
// that stop a drain.
func measured(
	name string, stage v1alpha1.NodeMaintenanceStage, second int64, reason string, node v1alpha1.NodeMaintenanceNodeStatus,
) *v1alpha1.NodeMaintenance {
	progressing := metav1.ConditionTrue
	if slices.Contains([]string{v1alpha1.ReasonProgressBlocked, v1alpha1.ReasonProgressStalled, v1alpha1.ReasonPaused}, reason) {
		progressing = metav1.ConditionFalse
	}
	node.NodeRef.Name = "node-" + name
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(second, 0)},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: stage, Paused: reason == v1alpha1.ReasonPaused},
		Status: v1alpha1.NodeMaintenanceStatus{
			StageStatuses: []v1alpha1.StageStatus{
				{Name: stageCordon, StartTimestamp: new(metav1.Unix(1, 0))},
				{Name: stage, StartTimestamp: new(metav1.Unix(second, 0))},
			},
			Conditions:   []metav1.Condition{{Type: v1alpha1.ConditionProgressing, Status: progressing, Reason: reason}},
			NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{node},
		},
	}
}

func TestGaugesAddMaintenancesUp(t *testing.T) {
	registerMetrics()
	none := v1alpha1.NodeMaintenanceNodeStatus{}
	moves := measured("moves", stageDrain, 300, v1alpha1.ReasonProgressDraining, none)
	stuck := measured("stuck", stageDrain, 200, v1alpha1.ReasonProgressBlocked, none)
	paused := measured("paused", stageDrain, 250, v1alpha1.ReasonPaused, none)
	planned := measured("planned", stageIdle, 100, v1alpha1.ReasonProgressNotRequested, none)
	planned.Spec.Paused = true
	all := []*v1alpha1.NodeMaintenance{moves, stuck, paused, planned}
	want := func(text string, gauge metrics.GaugeMetric, value float64) {
		t.Helper()
		if got, err := testutil.GetGaugeMetricValue(gauge); err != nil || got != value {
			t.Errorf("%s: got %v, error %v, want %v", text, got, err, value)
		}
	}
	publish(all)
	want("maintenances that drain", maintenancesByStage.WithLabelValues("Drain"), 3)
	want("maintenances in stage Idle", maintenancesByStage.WithLabelValues("Idle"), 1)
	want("nodes that are drained", nodesHeld.WithLabelValues("Drain"), 3)
	want("start of the oldest drain", oldestStart.WithLabelValues("Drain"), 200)
	want("start of the oldest Cordon stage", oldestStart.WithLabelValues("Cordon"), 0)
	want("drains without progress, without the paused one", drainsBlocked, 1)
	want("paused drains, without the one in Idle", drainsPaused, 1)

	all = slices.DeleteFunc(all, func(nm *v1alpha1.NodeMaintenance) bool { return nm == stuck })
	publish(all)
	want("start of the oldest drain after the other was deleted", oldestStart.WithLabelValues("Drain"), 250)
	want("drains without progress after it was deleted", drainsBlocked, 0)

	publish(nil)
	want("maintenances that drain while another replica leads", maintenancesByStage.WithLabelValues("Drain"), 0)
	want("paused drains while another replica leads", drainsPaused, 0)
}

// samplesOf returns the samples of a metric that are not 0, as "value label label".
func samplesOf(t *testing.T, name string) []string {
	t.Helper()
	var samples []string
	for _, family := range must.Get(legacyregistry.DefaultGatherer.Gather())(t) {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			if metric.GetGauge().GetValue() == 0 {
				continue
			}
			text := fmt.Sprint(metric.GetGauge().GetValue())
			for _, label := range metric.GetLabel() {
				text += " " + label.GetValue()
			}
			samples = append(samples, text)
		}
	}
	slices.Sort(samples)
	return samples
}

func TestGaugesNameMaintenances(t *testing.T) {
	registerMetrics()
	moves := measured("moves", stageDrain, 300, v1alpha1.ReasonProgressDraining, v1alpha1.NodeMaintenanceNodeStatus{
		PodsPeak: 9, PodsEvacuating: 3, PodsBlocked: 2, PodsPendingEvacuation: 1, PodsKept: 4, PodsWaiting: new(int32(1)),
	})
	planned := measured("planned", stageIdle, 100, v1alpha1.ReasonProgressNotRequested, v1alpha1.NodeMaintenanceNodeStatus{
		PodsPendingEvacuation: 9,
	})
	done := measured("done", stageComplete, 50, v1alpha1.ReasonProgressComplete, v1alpha1.NodeMaintenanceNodeStatus{})
	done.Status.NodeStatuses = nil
	done.Status.Conditions = append(done.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue})
	// Both nodes go down, and each boot has a maintenance of its own.
	down, alsoDown := downOf("node-a", 10), downOf("node-b", 20)
	// A rollout has a maintenance for each unit.
	first, second := measured("kernel-a-1", stageCordon, 30, v1alpha1.ReasonProgressNotRequested, v1alpha1.NodeMaintenanceNodeStatus{}),
		measured("kernel-b-1", stageCordon, 40, v1alpha1.ReasonProgressNotRequested, v1alpha1.NodeMaintenanceNodeStatus{})
	ofRollout(first)
	ofRollout(second)
	publish([]*v1alpha1.NodeMaintenance{moves, planned, done, down, alsoDown, first, second})
	is.Slices(t, samplesOf(t, "haulout_nodemaintenance_info"), []string{
		"1 moves Drain Draining", "1 planned Idle Idle", "2 kernel Cordon Cordoning", "2 node-shutdown Drain Blocked",
	}, "info")
	is.Slices(t, samplesOf(t, "haulout_nodemaintenance_pods"), []string{
		"1 moves pending", "1 moves waiting", "2 moves blocked", "2 node-shutdown blocked", "2 node-shutdown evacuating",
		"3 moves evacuating", "4 moves kept", "5 moves gone",
	}, "pods")

	moves.Status.Conditions[0].Reason = v1alpha1.ReasonProgressWaiting
	publish([]*v1alpha1.NodeMaintenance{moves})
	is.Slices(t, samplesOf(t, "haulout_nodemaintenance_info"), []string{"1 moves Drain Waiting"}, "info after the others ended")
	publish(nil)
	is.Slices(t, samplesOf(t, "haulout_nodemaintenance_info"), nil, "info while another replica leads")
	want := "# HELP haulout_nodemaintenance_pods " + podsByName.Help + "\n# TYPE haulout_nodemaintenance_pods gauge\n"
	for _, state := range []string{"blocked", "evacuating", "gone", "kept", "pending", "waiting"} {
		want += fmt.Sprintf("haulout_nodemaintenance_pods{name=\"other\",state=%q} 0\n", state)
	}
	must.Do(t, testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "haulout_nodemaintenance_pods"))
}

// downOf returns the maintenance of a node that goes down, with a blocked pod.
func downOf(node string, second int64) *v1alpha1.NodeMaintenance {
	const boot = "0c7bd4e1-6c4b-4d0a-9d2e-5f6f7a8b9c0d"
	nm := measured(protocol.ShutdownName(node, boot), stageDrain, second, v1alpha1.ReasonProgressBlocked, v1alpha1.NodeMaintenanceNodeStatus{
		PodsEvacuating: 1, PodsBlocked: 1,
	})
	nm.Annotations = map[string]string{v1alpha1.AnnotationBootID: boot}
	nm.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
	}}}}
	return nm
}

// TestGaugesNameTheOldest: a maintenance keeps its name in the metrics until it ends, whatever is
// created later.
func TestGaugesNameTheOldest(t *testing.T) {
	registerMetrics()
	var all []*v1alpha1.NodeMaintenance
	for i := range namesShown + 3 {
		// The younger ones come first in alphabetical order.
		all = append(all, measured(fmt.Sprintf("nm-%03d", 900-i), stageCordon, int64(1000+i), v1alpha1.ReasonProgressNotRequested, v1alpha1.NodeMaintenanceNodeStatus{}))
	}
	names := func() []string { return samplesOf(t, "haulout_nodemaintenance_info") }
	publish(all)
	first := names()
	is.Equal(t, len(first), namesShown+1, "samples")
	is.True(t, slices.Contains(first, "1 nm-900 Cordon Cordoning"), "the oldest maintenance has no sample in %q", first)
	is.True(t, slices.Contains(first, "3 other Cordon Cordoning"), "the three youngest maintenances are not added up in %q", first)

	all = append(all, measured("a-new-one", stageCordon, 5000, v1alpha1.ReasonProgressNotRequested, v1alpha1.NodeMaintenanceNodeStatus{}))
	publish(all)
	is.Equal(t, len(names()), namesShown+1, "samples with one more maintenance")
	is.True(t, slices.Contains(names(), "4 other Cordon Cordoning"), "the new maintenance is not added up in %q", names())

	publish(all[1:])
	is.True(t, slices.Contains(names(), "1 nm-700 Cordon Cordoning"), "the name that became free is not used in %q", names())
	is.True(t, slices.Contains(names(), "3 other Cordon Cordoning"), "the name that became free is not used in %q", names())
}
