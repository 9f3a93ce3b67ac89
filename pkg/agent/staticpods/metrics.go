// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The operations of the metric of moves.
const (
	moveParked      = "parked"
	moveParkedAgain = "parked_again"
	moveRestored    = "restored"
	moveArchived    = "archived"
)

var (
	manifestsParked = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "static_pod_manifests_parked",
		Help:           "Number of manifests of static pods that are parked.",
		StabilityLevel: metrics.ALPHA,
	})
	manifestMoves = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "static_pod_moves_total",
		Help: "Manifests of static pods that were moved, by operation: parked, parked_again after a tool put them back, " +
			"restored, or archived because a newer manifest was at their path.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"operation"})
	staticPodErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "static_pod_errors_total",
		Help:           "Failed operations on static pods, which are retried.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(manifestsParked, manifestMoves, staticPodErrors)
		for _, operation := range []string{moveParked, moveParkedAgain, moveRestored, moveArchived} {
			manifestMoves.WithLabelValues(operation).Add(0)
		}
	})
)
