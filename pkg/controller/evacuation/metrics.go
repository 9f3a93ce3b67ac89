// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
)

var (
	evacuationDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace: "haulout", Subsystem: "evacuation", Name: "duration_seconds",
		Help:           "Time from the creation of an Evacuation until its pod was gone or had ended, in seconds.",
		Buckets:        metrics.ExponentialBuckets(1, 2, 15),
		StabilityLevel: metrics.ALPHA,
	})
	evacuationsBlocked = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "evacuation", Name: "blocked",
		Help:           "Number of Evacuations whose pod cannot leave, by reason.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	evacuationsCompleted = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "evacuation", Name: "completed_total",
		Help:           "Evacuations that became Complete, by reason: the pod was deleted, it terminated by itself, or no instigator requested the evacuation any more after its last evacuator had stopped.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	evacuationHandovers = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "evacuation", Name: "handovers_total",
		Help:           "Changes of the active evacuator to the next one or to eviction, because the previous one completed without success or did not report for too long.",
		StabilityLevel: metrics.ALPHA,
	})
	rawEvictionsExpired = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "evacuation", Name: "raw_evictions_expired_total",
		Help:           "Evacuations that were made for an eviction, and lost that request because no client tried to evict the pod for --raw-eviction-ttl.",
		StabilityLevel: metrics.ALPHA,
	})
	syncErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "evacuation", Name: "sync_errors_total",
		Help:           "Failed syncs of Evacuations, which are retried. Conflicts do not count.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(evacuationDuration, evacuationsBlocked, evacuationsCompleted, evacuationHandovers, rawEvictionsExpired, syncErrors)
		for _, reason := range completeReasons {
			evacuationsCompleted.WithLabelValues(reason).Add(0)
		}
		publishBlocked(nil)
	})
)

// Initialize all series: an alert does not fire on a metric that does not exist.
var completeReasons = []string{v1alpha1.ReasonPodDeleted, v1alpha1.ReasonPodTerminated, v1alpha1.ReasonCancelled}

// blockedSamples are the samples of evacuationsBlocked by reason.
var blockedSamples = loop.Samples[string]{
	Gauge: evacuationsBlocked, LabelValues: func(reason string) []string { return []string{reason} },
}

// publishBlocked counts the Evacuations whose pod cannot leave. A reason of another version of the
// server gets a sample only while an Evacuation has it.
func publishBlocked(evacuations []*v1alpha1.Evacuation) {
	counts := map[string]float64{}
	for _, remedy := range wording.Blocked {
		counts[remedy.Reason] = 0
	}
	for _, evacuation := range evacuations {
		if blocker := blockerOf(&evacuation.Status); blocker != nil {
			counts[blocker.Reason]++
		}
	}
	blockedSamples.Set(counts)
}
