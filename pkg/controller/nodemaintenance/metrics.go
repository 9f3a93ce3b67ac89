// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

var (
	nodesHeld = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "nodes",
		Help:           "Nodes that NodeMaintenances select, by stage. A node of several maintenances counts for each.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"stage"})
	podsByState = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "pods",
		Help:           "Pods on nodes that are drained, by state: pending, evacuating, blocked (these are evacuating, too), kept. A pod on a node of several maintenances counts for each.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
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
		Help:           "NodeMaintenances that make no progress (condition Progressing is False).",
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
		legacyregistry.MustRegister(nodesHeld, podsByState, maintenancesByStage, oldestStart, drainsBlocked,
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

// publish sets the gauges to the sums over the given maintenances.
func publish(all []*v1alpha1.NodeMaintenance) {
	maintenances, nodes := map[v1alpha1.NodeMaintenanceStage]int{}, map[v1alpha1.NodeMaintenanceStage]int{}
	oldest := map[v1alpha1.NodeMaintenanceStage]time.Time{}
	var pods v1alpha1.NodeMaintenanceNodeStatus
	blocked := 0
	for _, nm := range all {
		stage := nm.Spec.Stage
		maintenances[stage]++
		nodes[stage] += len(nm.Status.NodeStatuses)
		entered := v1alpha1.StageEntered(nm, stage)
		if first, ok := oldest[stage]; !entered.IsZero() && (!ok || entered.Before(first)) {
			oldest[stage] = entered
		}
		if meta.IsStatusConditionFalse(nm.Status.Conditions, v1alpha1.ConditionProgressing) {
			blocked++
		}
		if stage != v1alpha1.NodeMaintenanceStageDrain {
			continue
		}
		for i := range nm.Status.NodeStatuses {
			node := &nm.Status.NodeStatuses[i]
			pods.PodsPendingEvacuation += node.PodsPendingEvacuation
			pods.PodsEvacuating += node.PodsEvacuating
			pods.PodsBlocked += node.PodsBlocked
			pods.PodsKept += node.PodsKept
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
	drainsBlocked.Set(float64(blocked))
	podsByState.WithLabelValues("pending").Set(float64(pods.PodsPendingEvacuation))
	podsByState.WithLabelValues("evacuating").Set(float64(pods.PodsEvacuating))
	podsByState.WithLabelValues("blocked").Set(float64(pods.PodsBlocked))
	podsByState.WithLabelValues("kept").Set(float64(pods.PodsKept))
}
