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
		// Initialize all series: an alert on a metric that does not exist never fires.
		for _, reason := range []string{
			EventSurgeStarted, EventSurgeEnded, EventSurgeDissolved, EventSurgeDeclined, EventSurgeInVain,
		} {
			surges.WithLabelValues(reason).Add(0)
		}
	})
)
