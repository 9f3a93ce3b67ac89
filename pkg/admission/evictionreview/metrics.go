// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evictionreview

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	reviewsTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "eviction", Name: "reviews_total",
		Help: "Evictions that kube-apiserver sent for a review, by answer. made and under_way are refused because the pod is evacuated, all others are allowed; " +
			"error, no_leader and limited are allowed although the pod may have evacuators. Each replica counts what it answers.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"answer"})
	reviewDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace: "haulout", Subsystem: "eviction", Name: "review_duration_seconds",
		Help:           "Time to answer a review of an eviction, in seconds.",
		Buckets:        metrics.ExponentialBuckets(0.002, 2, 11),
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(reviewsTotal, reviewDuration)
		// Initialize all series: an alert does not fire on a metric that does not exist.
		for _, a := range answers {
			reviewsTotal.WithLabelValues(string(a)).Add(0)
		}
	})
)
