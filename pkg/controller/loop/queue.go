// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package loop is the queue loop that all controllers share: workers take items from a queue and
// sync them. A failed item is retried after a backoff. A conflict does not count as a failure. The
// package's watchdog reports a worker that has processed one item for too long.
package loop

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Resync is how often controllers reconcile everything without an event.
const Resync = 10 * time.Minute

// maxBackoff is the longest time after which a failed item is retried.
const maxBackoff = time.Minute

// Config has the dependencies and options of a queue.
type Config[T comparable] struct {
	// Name is the name of the queue in the metrics.
	Name string
	// Backoff is the time after which an item is retried after its first failure. Each further
	// failure doubles the time, up to maxBackoff.
	Backoff time.Duration
	// Clock is the clock.
	Clock clock.WithTicker
	// Liveness tracks which item each worker processes; nil disables tracking.
	Liveness *Tracker
	// Busy is the text before the item in reports of the tracker; empty means Name.
	Busy string
	// LogAs returns the key and the value of an item in the log.
	LogAs func(T) (key string, value any)
	// Failed counts a failure. It is called neither for conflicts nor for failures because the
	// context has ended. It may be nil.
	Failed func()
}

// Queue is a queue of items and the workers that sync them.
type Queue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	config Config[T]
}

// NewQueue creates an empty queue.
func NewQueue[T comparable](config Config[T]) *Queue[T] {
	if config.Busy == "" {
		config.Busy = config.Name
	}
	if config.Failed == nil {
		config.Failed = func() {}
	}
	return &Queue[T]{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[T](config.Backoff, maxBackoff),
			workqueue.TypedRateLimitingQueueConfig[T]{Name: config.Name, Clock: config.Clock}),
		config: config,
	}
}

// AddUnlessFailed adds an item immediately if its last sync succeeded. After a failure, the pending
// retry handles the item. The item is also added after maxBackoff: if a sync is running and
// succeeds with old data, the queue makes no retry.
func (q *Queue[T]) AddUnlessFailed(item T) {
	if q.NumRequeues(item) > 0 {
		q.AddAfter(item, maxBackoff)
		return
	}
	q.Add(item)
}

// Run starts workers that sync the items of the queue until the context ends, and returns when the
// last worker is done. Items that are still in the queue are dropped. A queue runs once.
func (q *Queue[T]) Run(ctx context.Context, workers int, do func(context.Context, T) error) {
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				item, shutdown := q.Get()
				if shutdown {
					return
				}
				q.handle(ctx, item, do)
			}
		})
	}
	<-ctx.Done()
	q.ShutDown()
	wg.Wait()
}

func (q *Queue[T]) handle(ctx context.Context, item T, do func(context.Context, T) error) {
	defer q.Done(item)
	if ctx.Err() != nil {
		return
	}
	defer q.config.Liveness.Start(fmt.Sprintf("%s %v", q.config.Busy, item))()
	key, value := q.config.LogAs(item)
	logger := klog.FromContext(ctx).WithValues(key, value)
	err := do(klog.NewContext(ctx, logger), item)
	switch {
	case err == nil:
		q.Forget(item)
		return
	case IsOnlyConflict(err):
		logger.V(4).Info("Conflict, will retry", "reason", err.Error())
	case ctx.Err() == nil:
		q.config.Failed()
		logger.Error(err, "Sync failed, will retry")
	}
	q.AddRateLimited(item)
}

// IsOnlyConflict reports whether an error consists only of conflicts.
func IsOnlyConflict(err error) bool {
	// Do not use errors.As: it would match the first conflict among several errors.
	var all []error
	switch e := any(err).(type) {
	case interface{ Errors() []error }:
		all = e.Errors()
	case interface{ Unwrap() []error }:
		all = e.Unwrap()
	case interface{ Unwrap() error }:
		return IsOnlyConflict(e.Unwrap())
	default:
		return apierrors.IsConflict(err)
	}
	return len(all) > 0 && !slices.ContainsFunc(all, func(one error) bool { return !IsOnlyConflict(one) })
}

// IgnoreNotFound returns nil if the error is that an object does not exist, otherwise the error.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Start names the logger of a controller, waits for its caches, and logs that the controller
// starts. It returns false if the context ended before that.
func Start(ctx context.Context, name string, workers int, synced ...cache.InformerSynced) (context.Context, bool) {
	logger := klog.FromContext(ctx).WithName(name)
	ctx = klog.NewContext(ctx, logger)
	if !cache.WaitForNamedCacheSyncWithContext(ctx, synced...) || ctx.Err() != nil {
		return ctx, false
	}
	logger.Info("Controller starts", "workers", workers)
	return ctx, true
}
