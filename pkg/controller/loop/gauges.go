// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics"
)

// gaugePeriod is how often gauges are computed, which is the maximum age of a scraped value.
const gaugePeriod = 2 * time.Second

// Gauges calls publish periodically with the objects of a cache, until the context ends. Then it
// calls publish without objects, since the next leader publishes the gauges.
func Gauges[T any](ctx context.Context, list func() []T, publish func([]T)) {
	wait.UntilWithContext(ctx, func(context.Context) { publish(list()) }, gaugePeriod)
	publish(nil)
}

// Samples are the samples of a gauge whose label values come from objects, such as their names. A
// sample exists only while an object has its label values.
type Samples[K comparable] struct {
	// Gauge is the gauge, which must be registered before the first call of Set.
	Gauge *metrics.GaugeVec
	// LabelValues returns the label values for a key, in the order of the labels of the gauge.
	LabelValues func(K) []string

	mu    sync.Mutex
	shown sets.Set[K]
}

// Set sets the samples to the given values, and deletes the samples of all other keys. Gauge.Reset
// would be simpler, but a concurrent scrape would miss the samples.
func (s *Samples[K]) Set(values map[K]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, value := range values {
		s.Gauge.WithLabelValues(s.LabelValues(key)...).Set(value)
	}
	now := sets.KeySet(values)
	for key := range s.shown.Difference(now) {
		s.Gauge.DeleteLabelValues(s.LabelValues(key)...)
	}
	s.shown = now
}
