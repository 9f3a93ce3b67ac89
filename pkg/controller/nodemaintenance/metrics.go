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
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

var (
	nodesHeld = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "nodes",
		Help:           "Nodes that are selected by NodeMaintenances, by stage. A node of several maintenances counts for each.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"stage"})
	podsByState = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "pods",
		Help:           "Pods on nodes that are drained, by state: pending, evacuating, blocked (these are evacuating, too), left. A pod on a node of several maintenances counts for each.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
	maintenancesByStage = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "maintenances",
		Help:           "NodeMaintenances, by stage.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"stage"})
	oldestStart = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "oldest_stage_start_timestamp_seconds",
		Help:           "When the NodeMaintenance that has been in its stage for longest entered it, for the stages Cordon and Drain, as a Unix time; 0 if none is in it.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"stage"})
	drainsBlocked = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "drains_blocked",
		Help:           "NodeMaintenances that do not move on (condition Progressing is False).",
		StabilityLevel: metrics.ALPHA,
	})
	syncErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "sync_errors_total",
		Help:           "Syncs of NodeMaintenances that failed and are tried again. Conflicts do not count.",
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
		(&tallies{}).publish()
	})
)

// tally is what one maintenance contributes to the gauges.
type tally struct {
	stage                              maintenancev1alpha1.NodeMaintenanceStage
	nodes                              int
	pending, evacuating, blocked, left int32
	// entered is when it entered its stage; zero if that is not known.
	entered time.Time
	// standsStill: no pod that is asked to leave is able to.
	standsStill bool
}

// tallies adds the maintenances up.
type tallies struct {
	mu     sync.Mutex
	byName map[string]tally
}

func tallyOf(nm *maintenancev1alpha1.NodeMaintenance, nodes []maintenancev1alpha1.NodeMaintenanceNodeStatus) tally {
	t := tally{stage: nm.Spec.Stage, nodes: len(nodes)}
	for i := range nm.Status.StageStatuses {
		if entered := &nm.Status.StageStatuses[i]; entered.Name == nm.Spec.Stage && entered.StartTimestamp != nil {
			t.entered = entered.StartTimestamp.Time
		}
	}
	if nm.Spec.Stage != maintenancev1alpha1.NodeMaintenanceStageDrain {
		return t
	}
	for i := range nodes {
		t.pending += nodes[i].PodsPendingEvacuation
		t.evacuating += nodes[i].PodsEvacuating
		t.blocked += nodes[i].PodsBlocked
		t.left += nodes[i].PodsKept
	}
	return t
}

func (t *tallies) set(name string, one tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byName[name] = one
	t.publish()
}

func (t *tallies) remove(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byName, name)
	t.publish()
}

// reset publishes zeros: another replica counts from now on.
func (t *tallies) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.byName)
	t.publish()
}

func (t *tallies) publish() {
	const idle, cordon, drain, complete = maintenancev1alpha1.NodeMaintenanceStageIdle, maintenancev1alpha1.NodeMaintenanceStageCordon,
		maintenancev1alpha1.NodeMaintenanceStageDrain, maintenancev1alpha1.NodeMaintenanceStageComplete
	maintenances, nodes, oldest := map[maintenancev1alpha1.NodeMaintenanceStage]int{}, map[maintenancev1alpha1.NodeMaintenanceStage]int{}, map[maintenancev1alpha1.NodeMaintenanceStage]time.Time{}
	var sum tally
	standing := 0
	for _, one := range t.byName {
		maintenances[one.stage]++
		nodes[one.stage] += one.nodes
		if first, ok := oldest[one.stage]; !one.entered.IsZero() && (!ok || one.entered.Before(first)) {
			oldest[one.stage] = one.entered
		}
		if one.standsStill {
			standing++
		}
		sum.pending += one.pending
		sum.evacuating += one.evacuating
		sum.blocked += one.blocked
		sum.left += one.left
	}
	for _, stage := range []maintenancev1alpha1.NodeMaintenanceStage{idle, cordon, drain, complete} {
		maintenancesByStage.WithLabelValues(string(stage)).Set(float64(maintenances[stage]))
		nodesHeld.WithLabelValues(string(stage)).Set(float64(nodes[stage]))
	}
	for _, stage := range []maintenancev1alpha1.NodeMaintenanceStage{cordon, drain} {
		var entered float64
		if first, ok := oldest[stage]; ok {
			entered = float64(first.Unix())
		}
		oldestStart.WithLabelValues(string(stage)).Set(entered)
	}
	drainsBlocked.Set(float64(standing))
	podsByState.WithLabelValues("pending").Set(float64(sum.pending))
	podsByState.WithLabelValues("evacuating").Set(float64(sum.evacuating))
	podsByState.WithLabelValues("blocked").Set(float64(sum.blocked))
	podsByState.WithLabelValues("left").Set(float64(sum.left))
}
