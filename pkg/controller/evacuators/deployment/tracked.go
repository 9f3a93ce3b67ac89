// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/controller/loop"
)

// longestWait is the maximum of restAfter, unless the surge timeout is longer.
const longestWait = time.Hour

// tracked caches what this process knows about Deployments with leaving pods. It need not survive a
// restart: it avoids syncs of Deployments without leaving pods.
type tracked struct {
	loop.Memory[types.NamespacedName, state]
}

// state is the state of one Deployment.
type state struct {
	memory
	// record is the last written record, with the UID of its object.
	record *record
	// nextLook is the earliest time of the next sync.
	nextLook time.Time
	// unreported is when the last report to an Evacuation failed, by its name. The map is replaced,
	// never changed.
	unreported map[string]time.Time
	// refused is why the replica count cannot be written.
	refused refusal
}

// refusal is why a write fails, and since when.
type refusal struct {
	since time.Time
	text  string
	// declined is how often in a row it has failed for the whole surge timeout.
	declined int
}

// retryAt is when a write that has failed for the whole surge timeout is tried again.
func (r refusal) retryAt(timeout time.Duration) time.Time {
	return r.since.Add(timeout + restAfter(r.declined, timeout))
}

// restAfter is how long a surge is not tried again that has failed so many times before. It starts
// with the surge timeout and doubles each time.
func restAfter(failed int, timeout time.Duration) time.Duration {
	return min(timeout<<min(failed, 10), max(longestWait, timeout))
}

// change changes the state of a Deployment, and tracks it from now on.
func (t *tracked) change(key types.NamespacedName, change func(*state)) {
	t.Change(key, func(s state, _ bool) (state, bool) {
		change(&s)
		return s, true
	})
}

// isTracked reports whether a Deployment is tracked.
func (t *tracked) isTracked(key types.NamespacedName) bool {
	_, ok := t.Get(key)
	return ok
}

// get returns the state of a Deployment, which is zero if it is not tracked.
func (t *tracked) get(key types.NamespacedName) state {
	s, _ := t.Get(key)
	return s
}

// haveLooked tracks a Deployment from now on. It records the start of a sync and its number of
// pods.
func (t *tracked) haveLooked(key types.NamespacedName, at time.Time, pods int) {
	t.change(key, func(s *state) { s.nextLook = at.Add(min(time.Duration(pods)*pausePerPod, longestPause)) })
}

// scaleFailed records that the replica count could not be written, and reports whether the error is
// new. If that was tried again after the surge timeout and a rest, the turns end after the first
// failure, and the next rest is longer.
func (t *tracked) scaleFailed(key types.NamespacedName, text string, now time.Time, timeout time.Duration) (isNew bool) {
	t.change(key, func(s *state) {
		was := s.refused
		if was.text == "" {
			s.refused.since = now
		} else if !now.Before(was.retryAt(timeout)) {
			s.refused.since = now.Add(-timeout)
			s.refused.declined++
		}
		s.refused.text, isNew = text, was.text != text
	})
	return isNew
}

// reported records the result of a report to an Evacuation of a tracked Deployment.
func (t *tracked) reported(key types.NamespacedName, evacuation string, now time.Time, err error) {
	t.Change(key, func(s state, known bool) (state, bool) {
		if _, failed := s.unreported[evacuation]; !known || err == nil && !failed {
			return s, known
		}
		replaced := maps.Clone(s.unreported)
		if replaced == nil {
			replaced = map[string]time.Time{}
		}
		if delete(replaced, evacuation); err != nil {
			replaced[evacuation] = now
		}
		s.unreported = replaced
		return s, true
	})
}
