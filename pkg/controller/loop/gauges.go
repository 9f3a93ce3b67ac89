// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// gaugePeriod is how often gauges are computed: the age that a scraped value may have.
const gaugePeriod = 2 * time.Second

// Gauges keeps gauges that are computed from the objects of a cache, until the context ends. Then
// it has them computed from no objects: the replica that leads from now on counts.
func Gauges[T any](ctx context.Context, list func() []T, publish func([]T)) {
	wait.UntilWithContext(ctx, func(context.Context) { publish(list()) }, gaugePeriod)
	publish(nil)
}
