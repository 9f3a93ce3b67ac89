// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	surges = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "surge", Name: "steps_total",
		Help:           "Number of steps of surges of Deployments, such as the scale-up (SurgeStarted), by the reason of the event.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	syncErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "surge", Name: "sync_errors_total",
		Help:           "Failed syncs of Deployments with pods that have to leave, which are retried. Conflicts do not count.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(surges, syncErrors)
		// Initialize all series: an alert does not fire on a metric that does not exist.
		for _, reason := range []string{
			EventSurgeStarted, EventSurgeEnded, EventSurgeDissolved, EventSurgeDeclined, EventSurgeInVain,
		} {
			surges.WithLabelValues(reason).Add(0)
		}
	})
)
