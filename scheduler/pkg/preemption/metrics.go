// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	// resultUnrestricted: budgets had no effect.
	resultUnrestricted = "unrestricted"
	// resultWithinBudgets: victims were found, and budgets protected pods or could have.
	resultWithinBudgets = "within_budgets"
	// resultHeldBack: no victims were found, because of budgets.
	resultHeldBack = "held_back"
	// resultRefused: victims were found, and then not evicted.
	resultRefused = "refused"

	answerEvicted   = "evicted"
	answerGone      = "gone"
	answerBudget    = "budget"
	answerForbidden = "forbidden"
	answerError     = "error"
)

var (
	attempts = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "haulout_preemption", Name: "attempts_total",
		Help:           "Searches for victims by result: unrestricted (budgets had no effect), within_budgets, held_back (by budgets), refused (during the eviction of victims).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	evictions = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "haulout_preemption", Name: "evictions_total",
		Help:           "Evictions of victims by response of the Eviction API: evicted, gone, budget (no disruption allowed), forbidden, error.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"answer"})
	waitingPods = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: "haulout_preemption", Name: "waiting_pods",
		Help:           "Pending pods and groups of pods that could preempt other pods if budgets allowed it.",
		StabilityLevel: metrics.ALPHA,
	})
	wokenPods = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "haulout_preemption", Name: "woken_pods_total",
		Help:           "Times that a waiting pod or group was tried again because a budget or a PriorityClass changed.",
		StabilityLevel: metrics.ALPHA,
	})
	badThresholdClasses = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: "haulout_preemption", Name: "bad_thresholds",
		Help:           "PriorityClasses with a malformed threshold, which counts as the highest.",
		StabilityLevel: metrics.ALPHA,
	})
	offerDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "haulout_preemption", Name: "offer_duration_seconds",
		Help:           "Time to determine which pods of one node may be victims.",
		Buckets:        metrics.ExponentialBuckets(0.00001, 4, 9),
		StabilityLevel: metrics.ALPHA,
	})
	registerOnce sync.Once
)

func registerMetrics() {
	registerOnce.Do(func() {
		legacyregistry.MustRegister(attempts, evictions, waitingPods, wokenPods, badThresholdClasses, offerDuration)
	})
}
