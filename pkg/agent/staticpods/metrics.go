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
