// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
)

const (
	// namesShown is the maximum number of maintenances whose names are label values. Prometheus
	// stores a series for each name that it has ever seen.
	namesShown = 200
	// nameOfOthers is the label value in place of the names of all further maintenances.
	nameOfOthers = "other"
	// nameOfShutdowns is the label value in place of the names of the maintenances of node agents:
	// each boot of each node has a new name.
	nameOfShutdowns = "node-shutdown"
)

var (
	infoByName = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "info",
		Help: "1 for each NodeMaintenance that is not complete, with its stage and its STATUS in kubectl get. name is node-shutdown for those of node agents, " +
			"the name of the rollout for those of a NodeMaintenanceRollout, and other for all beyond the 200 oldest; for these, the value is the number of NodeMaintenances.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"name", "stage", "status"})
	nodesHeld = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "nodes",
		Help:           "Nodes that NodeMaintenances select, by stage. A node of several maintenances counts for each.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"stage"})
	podsByName = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "pods",
		Help: "Pods of NodeMaintenances that are not complete, by name as in haulout_nodemaintenance_info, and by state. pending, evacuating, " +
			"blocked (also counted as evacuating), waiting (to complete, also counted as pending) and kept are on nodes that are drained; gone have left, without those that came back. A pod on a node of several maintenances counts for each.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"name", "state"})
	maintenancesByStage = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "maintenances",
		Help:           "NodeMaintenances, by stage.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"stage"})
	oldestStart = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "oldest_stage_start_timestamp_seconds",
		Help:           "Unix time when the oldest NodeMaintenance in the stage entered it, for the stages Cordon and Drain; 0 if none is in the stage.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"stage"})
	drainsBlocked = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "drains_blocked",
		Help:           "NodeMaintenances that make no progress (condition Progressing is False), without those that are paused.",
		StabilityLevel: metrics.ALPHA,
	})
	drainsPaused = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "paused",
		Help:           "NodeMaintenances in stage Drain that a user has paused (spec.paused).",
		StabilityLevel: metrics.ALPHA,
	})
	syncErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "sync_errors_total",
		Help:           "Failed syncs of NodeMaintenances, which are retried. Conflicts do not count.",
		StabilityLevel: metrics.ALPHA,
	})
	syncDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "sync_duration_seconds",
		Help:           "How long a sync of a NodeMaintenance takes, in seconds.",
		Buckets:        metrics.ExponentialBuckets(0.001, 4, 8),
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(infoByName, nodesHeld, podsByName, maintenancesByStage, oldestStart, drainsBlocked, drainsPaused,
			syncErrors, syncDuration)
		publish(nil)
	})
)

var stages = []v1alpha1.NodeMaintenanceStage{
	v1alpha1.NodeMaintenanceStageIdle,
	v1alpha1.NodeMaintenanceStageCordon,
	v1alpha1.NodeMaintenanceStageDrain,
	v1alpha1.NodeMaintenanceStageComplete,
}

// infoKey has the label values of infoByName.
type infoKey struct {
	name   string
	stage  v1alpha1.NodeMaintenanceStage
	status glance.StatusWord
}

// podsKey has the label values of podsByName.
type podsKey struct{ name, state string }

var (
	infoSamples = loop.Samples[infoKey]{
		Gauge: infoByName, LabelValues: func(k infoKey) []string { return []string{k.name, string(k.stage), string(k.status)} },
	}
	podsSamples = loop.Samples[podsKey]{Gauge: podsByName, LabelValues: func(k podsKey) []string { return []string{k.name, k.state} }}
)

// publish sets the gauges for the given maintenances.
func publish(all []*v1alpha1.NodeMaintenance) {
	publishByStage(all)
	publishByName(all)
	blocked, paused := 0, 0
	for _, nm := range all {
		progressing := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
		if progressing != nil && progressing.Status == metav1.ConditionFalse && progressing.Reason != v1alpha1.ReasonPaused {
			blocked++
		}
		if v1alpha1.IsPaused(nm) {
			paused++
		}
	}
	drainsBlocked.Set(float64(blocked))
	drainsPaused.Set(float64(paused))
}

// publishByStage sets the gauges that add up the maintenances of each stage.
func publishByStage(all []*v1alpha1.NodeMaintenance) {
	maintenances, nodes := map[v1alpha1.NodeMaintenanceStage]int{}, map[v1alpha1.NodeMaintenanceStage]int{}
	oldest := map[v1alpha1.NodeMaintenanceStage]time.Time{}
	for _, nm := range all {
		stage := nm.Spec.Stage
		maintenances[stage]++
		nodes[stage] += len(nm.Status.NodeStatuses)
		entered := v1alpha1.StageEntered(nm, stage)
		if first, ok := oldest[stage]; !entered.IsZero() && (!ok || entered.Before(first)) {
			oldest[stage] = entered
		}
	}
	for _, stage := range stages {
		maintenancesByStage.WithLabelValues(string(stage)).Set(float64(maintenances[stage]))
		nodesHeld.WithLabelValues(string(stage)).Set(float64(nodes[stage]))
	}
	for _, stage := range []v1alpha1.NodeMaintenanceStage{
		v1alpha1.NodeMaintenanceStageCordon, v1alpha1.NodeMaintenanceStageDrain,
	} {
		var entered float64
		if first, ok := oldest[stage]; ok {
			entered = float64(first.Unix())
		}
		oldestStart.WithLabelValues(string(stage)).Set(entered)
	}
}

// publishByName sets the gauges of the maintenances that are not complete. Those of a rollout have
// its name, since there is a new one for each unit and attempt. A maintenance whose name is a label
// value keeps it until it is complete: only older ones come before it.
func publishByName(all []*v1alpha1.NodeMaintenance) {
	open := slices.DeleteFunc(slices.Clone(all), func(nm *v1alpha1.NodeMaintenance) bool {
		return glance.Status(nm) == glance.StatusComplete
	})
	slices.SortFunc(open, v1alpha1.CompareAge)
	counts, sums := map[infoKey]float64{}, map[podsKey]float64{}
	// If there are no maintenances, a sum over all names must be 0 and not missing.
	addPods(sums, nameOfOthers, &v1alpha1.NodeMaintenance{})
	shown := 0
	for _, nm := range open {
		name := nameOfOthers
		rollout := protocol.RolloutOf(nm)
		switch {
		case protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector) != "":
			name = nameOfShutdowns
		case rollout != nil:
			name = rollout.Name
		case shown < namesShown:
			name = nm.Name
			shown++
		}
		counts[infoKey{name: name, stage: nm.Spec.Stage, status: glance.Status(nm)}]++
		addPods(sums, name, nm)
	}
	infoSamples.Set(counts)
	podsSamples.Set(sums)
}

// addPods adds the pods of a maintenance to the sums of a name, which exist afterwards. In other
// stages than Drain, the pods on its nodes do not have to leave.
func addPods(sums map[podsKey]float64, name string, nm *v1alpha1.NodeMaintenance) {
	var pods v1alpha1.NodeMaintenanceNodeStatus
	var waiting int32
	if nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
		for i := range nm.Status.NodeStatuses {
			node := &nm.Status.NodeStatuses[i]
			pods.PodsPendingEvacuation += node.PodsPendingEvacuation
			pods.PodsEvacuating += node.PodsEvacuating
			pods.PodsBlocked += node.PodsBlocked
			pods.PodsKept += node.PodsKept
			waiting += ptr.Deref(node.PodsWaiting, 0)
		}
	}
	gone, _ := glance.Pods(nm)
	sums[podsKey{name, "gone"}] += float64(gone)
	sums[podsKey{name, "pending"}] += float64(pods.PodsPendingEvacuation)
	sums[podsKey{name, "evacuating"}] += float64(pods.PodsEvacuating)
	sums[podsKey{name, "blocked"}] += float64(pods.PodsBlocked)
	sums[podsKey{name, "kept"}] += float64(pods.PodsKept)
	sums[podsKey{name, "waiting"}] += float64(waiting)
}
