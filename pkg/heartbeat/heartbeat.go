// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package heartbeat sends the heartbeats of the libraries for evacuators and workers, and repeats
// the writes that they must not lose.
package heartbeat

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/answer"
)

const (
	// beatsPerDeadline is the number of heartbeats within a deadline: some may be lost.
	beatsPerDeadline = 4
	// longestBeat is the maximum time between two heartbeats, so that users see that the work is in
	// progress.
	longestBeat = time.Minute
	// firstRetry and longestRetry are the limits of the backoff between attempts of a required
	// write.
	firstRetry, longestRetry = 100 * time.Millisecond, 10 * time.Second
)

// Interval returns the time between two heartbeats for a deadline after the last one.
func Interval(deadline time.Duration) time.Duration {
	return min(deadline/beatsPerDeadline, longestBeat)
}

// Sender sends heartbeats for a handler until the time at which it expects to finish.
type Sender struct {
	clock clock.Clock
	write func(context.Context) error
	// reported is a channel that wakes Run.
	reported chan struct{}

	mu       sync.Mutex
	expected time.Time
}

// NewSender returns a Sender whose heartbeats are calls of write.
func NewSender(c clock.Clock, write func(context.Context) error) *Sender {
	return &Sender{clock: c, write: write, reported: make(chan struct{}, 1)}
}

// Reported records that the handler reports itself, and when it expects to finish; the zero time
// ends the heartbeats.
func (s *Sender) Reported(expected time.Time) {
	s.mu.Lock()
	s.expected = expected
	s.mu.Unlock()
	select {
	case s.reported <- struct{}{}:
	default:
	}
}

// Run sends heartbeats until the context ends. interval returns the time between two of them.
func (s *Sender) Run(ctx context.Context, interval func() time.Duration) {
	timer := s.clock.NewTimer(interval())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.reported:
			// The report was a heartbeat.
			timer.Reset(interval())
			continue
		case <-timer.C():
		}
		s.mu.Lock()
		isExpected := s.clock.Now().Before(s.expected)
		s.mu.Unlock()
		if isExpected {
			if err := s.write(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot send a heartbeat, will retry")
			}
		}
		timer.Reset(interval())
	}
}

// Persist retries until it succeeds or the context ends.
func Persist(ctx context.Context, c clock.Clock, try func() error) {
	pause := firstRetry
	for ctx.Err() == nil {
		err := try()
		if err == nil || ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "API request failed, will retry", "pause", pause)
		select {
		case <-ctx.Done():
		case <-c.After(pause):
		}
		pause = min(2*pause, longestRetry)
	}
}

// WriteError is the error of a write of a library.
type WriteError struct{ error }

// NewWriteError returns a WriteError, or the error itself if the context of the write has ended:
// the handler had given it a time.
func NewWriteError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return &WriteError{err}
}

// Unwrap returns the error of the client.
func (e *WriteError) Unwrap() error { return e.error }

// PersistHandler calls a handler again while it returns the error of a write that the server has
// not answered, and returns its last error: a handler that passes this error on has not failed.
func PersistHandler(ctx context.Context, c clock.Clock, handle func() error) error {
	err := context.Canceled // the context may have ended already
	Persist(ctx, c, func() error {
		err = handle()
		var failed *WriteError
		if errors.As(err, &failed) && answer.IsTemporary(failed) {
			return err
		}
		return nil
	})
	return err
}
