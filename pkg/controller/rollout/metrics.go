// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

var (
	nodesByState = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "rollout", Name: "nodes",
		Help: "Nodes of NodeMaintenanceRollouts in stage Roll, by state: done, waiting, running, blocked, failed or skipped. " +
			"A node of several rollouts counts for each.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
	waitingByReason = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "rollout", Name: "waiting",
		Help: "NodeMaintenanceRollouts in stage Roll that start no unit and are not complete (condition Progressing is False), by reason: " +
			"Halted, Held, OutsideWindow, NotAuthorized, AtLimit, NodesBlocked, NodesSkipped or SyncFailed.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	phaseDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: "haulout", Subsystem: "rollout", Name: "unit_duration_seconds",
		Help:           "How long the units of NodeMaintenanceRollouts were in a phase, in seconds, by the phase that ended.",
		Buckets:        metrics.ExponentialBuckets(1, 4, 9),
		StabilityLevel: metrics.ALPHA,
	}, []string{"phase"})
	syncErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "rollout", Name: "sync_errors_total",
		Help:           "Failed syncs of NodeMaintenanceRollouts, which are retried. Conflicts do not count.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(nodesByState, waitingByReason, phaseDuration, syncErrors)
		publish(nil)
		for _, phase := range append([]v1alpha1.RolloutPhase{v1alpha1.RolloutPhaseStarting, v1alpha1.RolloutPhaseSoaking}, phases...) {
			phaseDuration.WithLabelValues(string(phase))
		}
	})
)

// waitingReasons are the label values of waitingByReason.
var waitingReasons = []string{
	v1alpha1.ReasonHalted, v1alpha1.ReasonHeld, v1alpha1.ReasonOutsideWindow, v1alpha1.ReasonNotAuthorized,
	v1alpha1.ReasonAtLimit, v1alpha1.ReasonNodesBlocked, v1alpha1.ReasonNodesSkipped, v1alpha1.ReasonProgressSyncFailed,
}

// publish sets the gauges for the given rollouts.
func publish(all []*v1alpha1.NodeMaintenanceRollout) {
	var sum v1alpha1.RolloutNodes
	waiting := map[string]int{}
	for _, r := range all {
		if r.Spec.Stage != v1alpha1.RolloutStageRoll {
			continue
		}
		nodes := &r.Status.Nodes
		sum.Done += nodes.Done
		sum.Waiting += nodes.Waiting
		sum.Running += nodes.Running
		sum.Blocked += nodes.Blocked
		sum.Failed += nodes.Failed
		sum.Skipped += nodes.Skipped
		if is := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing); is != nil && is.Status == metav1.ConditionFalse {
			waiting[is.Reason]++
		}
	}
	for state, n := range map[string]int32{
		"done": sum.Done, "waiting": sum.Waiting, "running": sum.Running, "blocked": sum.Blocked, "failed": sum.Failed, "skipped": sum.Skipped,
	} {
		nodesByState.WithLabelValues(state).Set(float64(n))
	}
	for _, reason := range waitingReasons {
		waitingByReason.WithLabelValues(reason).Set(float64(waiting[reason]))
	}
}

// observePhase observes how long the stored phase of a unit took. The clock of the leader that
// stored its beginning may have been ahead.
func (c *Controller) observePhase(unit *v1alpha1.RolloutUnit) {
	if unit.Phase != "" {
		phaseDuration.WithLabelValues(string(unit.Phase)).Observe(max(0, c.Clock.Since(unit.Since.Time).Seconds()))
	}
}
