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

package evacuation

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
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
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(evacuationDuration, evacuationsBlocked)
	})
)

// blockedTally keeps the gauge of blocked Evacuations in step with the cache.
type blockedTally struct {
	mu      sync.Mutex
	reasons map[types.NamespacedName]string
}

// set records why an Evacuation is blocked; "" if it is not.
func (t *blockedTally) set(key types.NamespacedName, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.reasons[key]
	if before == reason {
		return
	}
	if before != "" {
		evacuationsBlocked.WithLabelValues(before).Dec()
		delete(t.reasons, key)
	}
	if reason != "" {
		evacuationsBlocked.WithLabelValues(reason).Inc()
		t.reasons[key] = reason
	}
}

// reset takes everything back: after it, somebody else leads and counts.
func (t *blockedTally) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.reasons)
	evacuationsBlocked.Reset()
}
