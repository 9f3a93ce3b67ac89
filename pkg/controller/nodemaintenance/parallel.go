// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"sync/atomic"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/util/workqueue"
)

// maxParallel bounds the calls that one maintenance has under way.
const maxParallel = 16

// roundTime is how long one sync may make a maintenance's requests. Then the state is gathered
// again: a cancellation must not wait for thousands of them.
const roundTime = time.Second

// requestTimeout limits one request to this server: a webhook may hang for up to 30 s, and the
// other requests of the round wait for it.
const requestTimeout = 5 * time.Second

// inRounds calls do for 0 … n-1, some at a time, until the time of a round is over. The rest is
// left to the next sync, which follows immediately.
func (c *Controller) inRounds(ctx context.Context, maintenance string, n int, do func(ctx context.Context, i int) error) error {
	end := c.clock.Now().Add(roundTime)
	var left atomic.Bool
	err := inParallel(ctx, n, func(ctx context.Context, i int) error {
		if c.clock.Now().After(end) {
			left.Store(true)
			return nil
		}
		return do(ctx, i)
	})
	if left.Load() {
		c.queue.Add(maintenance)
	}
	return err
}

// inParallel calls do for 0 … n-1, some at a time, and returns their errors when all have ended.
// Those not begun when the context ends are left out.
func inParallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	if n == 0 {
		return nil
	}
	errs := make([]error, n, n+1)
	workqueue.ParallelizeUntil(ctx, maxParallel, n, func(i int) { errs[i] = do(ctx, i) })
	return utilerrors.NewAggregate(append(errs, ctx.Err()))
}
