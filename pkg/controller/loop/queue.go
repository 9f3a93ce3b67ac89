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

// Package loop is the queue loop that all controllers share: workers take items from a queue and
// sync them. A failed item comes back after a while; a write that met a conflict is no failure. The
// package's watchdog reports a worker that has been busy with one item for too long.
package loop

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// maxBackoff is how long an item waits at most after a failure.
const maxBackoff = time.Minute

// Config is what a queue needs.
type Config[T comparable] struct {
	// Name is what the queue is called in the metrics.
	Name string
	// Backoff is how long an item waits after its first failure. Each further one doubles that, up
	// to a minute.
	Backoff time.Duration
	// Clock is the time.
	Clock clock.WithTicker
	// Liveness is told what the workers are busy with; nil tells nobody.
	Liveness *Tracker
	// Busy is how the tracker names work, in front of the item; empty is Name.
	Busy string
	// LogAs says under which key, and as what, an item stands in the log.
	LogAs func(T) (key string, value any)
	// Failed counts a failure. It is not told of conflicts, nor of what fails because the context
	// has ended. Nil tells nobody.
	Failed func()
}

// Queue is a queue of items and the workers that sync them.
type Queue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	config Config[T]
}

// NewQueue makes an empty queue.
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

// Run has some workers sync what is in the queue until the context ends, and returns when the last
// of them is done. What is in the queue by then is dropped. A queue runs once.
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
		logger.V(4).Info("Something changed meanwhile, will look again", "reason", err.Error())
	case ctx.Err() == nil:
		q.config.Failed()
		logger.Error(err, "Sync failed, will try again")
	}
	q.AddRateLimited(item)
}

// IsOnlyConflict says whether somebody else wrote first and nothing else went wrong.
func IsOnlyConflict(err error) bool {
	// Not errors.As: that would be content with the first conflict among several errors.
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
