// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	evictionsTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace:      "haulout",
		Name:           "evictions_total",
		Help:           "Number of calls of the eviction API, by the meaning of the response.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"answer"})

	evictionsInFlight = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace:      "haulout",
		Name:           "evictions_in_flight",
		Help:           "Number of calls of the eviction API that wait for a response.",
		StabilityLevel: metrics.ALPHA,
	})

	evictionLanes = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      "haulout",
		Name:           "eviction_lanes",
		Help:           "Number of disruption budgets with pods that wait for eviction, by whether the budget allows an eviction (open) or not (closed).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})

	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(evictionsTotal, evictionsInFlight, evictionLanes)
		// Initialize all series: an alert does not fire on a metric that does not exist.
		for v := range consequences {
			evictionsTotal.WithLabelValues(string(v)).Add(0)
		}
		countLanes(nil)
	})
)

// countLanes sets the metric of budgets with waiting pods.
func countLanes(lanes []lane) {
	open, closed := 0, 0
	for _, l := range lanes {
		switch l, ok := l.(*budgetLane); {
		case !ok:
		case l.open:
			open++
		default:
			closed++
		}
	}
	evictionLanes.WithLabelValues("open").Set(float64(open))
	evictionLanes.WithLabelValues("closed").Set(float64(closed))
}
