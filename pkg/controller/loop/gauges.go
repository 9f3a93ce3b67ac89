// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// gaugePeriod is how often gauges are computed, which is the maximum age of a scraped value.
const gaugePeriod = 2 * time.Second

// Gauges calls publish periodically with the objects of a cache, until the context ends. Then it
// calls publish without objects, since the next leader publishes the gauges.
func Gauges[T any](ctx context.Context, list func() []T, publish func([]T)) {
	wait.UntilWithContext(ctx, func(context.Context) { publish(list()) }, gaugePeriod)
	publish(nil)
}
