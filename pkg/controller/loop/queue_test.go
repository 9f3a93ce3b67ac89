// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
)

var (
	conflict = apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "a",
		errors.New("the object has been modified"))
	errBroken = errors.New("broken")
)

// started is a queue with workers that run until the test ends.
type started struct {
	*Queue[string]
	failed atomic.Int32
	stop   func()
}

// start runs a queue with a backoff of a second and returns when its workers wait for items. It
// must be called within a synctest bubble.
func start(
	ctx context.Context, t *testing.T, tracker *Tracker, workers int, do func(context.Context, string) error,
) *started {
	t.Helper()
	s := &started{}
	s.Queue = NewQueue(Config[string]{
		Name: "test", Backoff: time.Second, Clock: clock.RealClock{}, Liveness: tracker, Busy: "test of",
		LogAs: func(item string) (string, any) { return "letter", item }, Failed: func() { s.failed.Add(1) },
	})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx, workers, do)
	}()
	s.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(s.stop)
	synctest.Wait()
	return s
}

func TestItemsAreRequeuedUntilTheySucceed(t *testing.T) {
	for name, test := range map[string]struct {
		results []error
		// after has the times at which the item is reconciled, counted from its addition.
		after  []time.Duration
		failed int32
		errors int
	}{
		"an item that succeeds is reconciled once": {results: []error{nil}, after: []time.Duration{0}},
		"the time between attempts doubles": {
			results: []error{errBroken, errBroken, nil}, after: []time.Duration{0, 1, 3}, failed: 2, errors: 2,
		},
		"a conflict is requeued and is not a failure": {
			results: []error{conflict, conflict, nil}, after: []time.Duration{0, 1, 3},
		},
		"another error together with a conflict is a failure": {
			results: []error{errors.Join(conflict, errBroken), nil}, after: []time.Duration{0, 1}, failed: 1, errors: 1,
		},
		"the time between attempts is at most a minute": {
			results: []error{
				errBroken, errBroken, errBroken, errBroken, errBroken, errBroken, errBroken, errBroken, nil,
			},
			after: []time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183}, failed: 8, errors: 8,
		},
		"a canceled call is a failure while the queue runs": {
			results: []error{context.Canceled, nil}, after: []time.Duration{0, 1}, failed: 1, errors: 1,
		},
		"a wrapped conflict is a conflict": {
			results: []error{fmt.Errorf("write: %w", conflict), nil}, after: []time.Duration{0, 1},
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(4)))
			var after []time.Duration
			began := time.Now()
			s := start(klog.NewContext(t.Context(), logger), t, nil, 2, func(_ context.Context, item string) error {
				is.Equal(t, item, "a", "a sync of")
				result := test.results[len(after)]
				after = append(after, time.Since(began)/time.Second)
				return result
			})
			s.Add("a")
			<-time.After(time.Hour)
			synctest.Wait()
			is.True(t, slices.Equal(after, test.after), "reconciled after %d seconds, want %d", after, test.after)
			if n := s.NumRequeues("a"); n != 0 {
				t.Errorf("got %d requeues after a success, want 0: the next backoff would be longer", n)
			}
			if failed := s.failed.Load(); failed != test.failed {
				t.Errorf("%d failures counted, want %d", failed, test.failed)
			}
			logged := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			if n := strings.Count(logged, "Sync failed"); n != test.errors {
				t.Errorf("%d failures logged, want %d:\n%s", n, test.errors, logged)
			}
			if n := strings.Count(logged, `letter="a"`); n != len(test.results)-1 {
				t.Errorf("%d lines name the item, want %d:\n%s", n, len(test.results)-1, logged)
			}
		})
	}
}

func TestWorkersReconcileDifferentItemsInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var busy, syncs atomic.Int32
		s := start(t.Context(), t, nil, 2, func(context.Context, string) error {
			busy.Add(1)
			defer busy.Add(-1)
			<-release
			syncs.Add(1)
			return nil
		})
		s.Add("a")
		synctest.Wait()
		s.Add("a")
		synctest.Wait()
		is.Equal(t, busy.Load(), 1, "workers are busy with one item")
		s.Add("b")
		synctest.Wait()
		is.Equal(t, busy.Load(), 2, "workers are busy with two items")
		close(release)
		synctest.Wait()
		if n := syncs.Load(); n != 3 {
			t.Errorf("%d syncs, want 3: an item that was added during its sync is reconciled again", n)
		}
	})
}

func TestRunReturnsAfterTheLastSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		release := make(chan struct{})
		var synced []string
		s := start(klog.NewContext(t.Context(), logger), t, nil, 1, func(ctx context.Context, item string) error {
			synced = append(synced, item)
			<-release
			return ctx.Err()
		})
		s.Add("a")
		s.Add("b")
		synctest.Wait()
		stopped := make(chan struct{})
		go func() {
			s.stop()
			close(stopped)
		}()
		synctest.Wait()
		select {
		case <-stopped:
			t.Error("Run has returned during a sync")
		default:
		}
		close(release)
		<-stopped
		if !slices.Equal(synced, []string{"a"}) {
			t.Errorf("synced %q, want only the item whose sync began before the stop", synced)
		}
		if logged := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); s.failed.Load() != 0 || logged != "" {
			t.Errorf("got %d failures and log %q, want none after the context is canceled", s.failed.Load(), logged)
		}
	})
}

func TestTrackerReportsTheItemOfAStuckWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		tracker := NewTracker(clock.RealClock{})
		s := start(t.Context(), t, tracker, 1, func(context.Context, string) error {
			<-release
			return nil
		})
		s.Add("a")
		<-time.After(StuckAfter + time.Second)
		if err := tracker.Check(nil); err == nil || !strings.Contains(err.Error(), "test of a") {
			t.Errorf("a worker is stuck, but Check returned %v", err)
		}
		close(release)
		synctest.Wait()
		if err := tracker.Check(nil); err != nil {
			t.Errorf("the worker is done, but Check returned %v", err)
		}
	})
}

func TestIsOnlyConflict(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"no error":                        {},
		"a conflict":                      {err: conflict, want: true},
		"a wrapped conflict":              {err: fmt.Errorf("write: %w", conflict), want: true},
		"another error":                   {err: errBroken},
		"two conflicts":                   {err: errors.Join(conflict, fmt.Errorf("write: %w", conflict)), want: true},
		"a conflict and another error":    {err: errors.Join(conflict, errBroken)},
		"an aggregate of conflicts":       {err: utilerrors.NewAggregate([]error{conflict, conflict}), want: true},
		"an aggregate with another error": {err: utilerrors.NewAggregate([]error{conflict, errBroken})},
		"a wrapped aggregate of conflicts": {
			err: fmt.Errorf("write: %w", utilerrors.NewAggregate([]error{conflict})), want: true,
		},
		"a nested list with another error": {err: errors.Join(conflict, errors.Join(conflict, errBroken))},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsOnlyConflict(test.err); got != test.want {
				t.Errorf("%v: got %v, want %v", test.err, got, test.want)
			}
		})
	}
}
