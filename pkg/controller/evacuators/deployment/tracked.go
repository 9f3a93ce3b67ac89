// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// longestWait is the maximum of restAfter, unless the surge timeout is longer.
const longestWait = time.Hour

// tracked caches what this process knows about Deployments with leaving pods. It need not survive a
// restart: it avoids syncs of Deployments without leaving pods.
type tracked struct {
	mu          sync.Mutex
	deployments map[types.NamespacedName]*state
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

func newTracked() tracked {
	return tracked{deployments: map[types.NamespacedName]*state{}}
}

// isTracked reports whether a Deployment is tracked.
func (t *tracked) isTracked(key types.NamespacedName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.deployments[key]
	return ok
}

// keys returns all tracked Deployments for which keep returns true.
func (t *tracked) keys(keep func(types.NamespacedName) bool) []types.NamespacedName {
	t.mu.Lock()
	keys := slices.Collect(maps.Keys(t.deployments))
	t.mu.Unlock()
	return slices.DeleteFunc(keys, func(key types.NamespacedName) bool { return !keep(key) })
}

// state must be called with the lock held.
func (t *tracked) state(key types.NamespacedName) *state {
	if t.deployments[key] == nil {
		t.deployments[key] = &state{}
	}
	return t.deployments[key]
}

// get returns a copy of the state of a Deployment.
func (t *tracked) get(key types.NamespacedName) state {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.deployments[key]; s != nil {
		return *s
	}
	return state{}
}

func (t *tracked) remember(key types.NamespacedName, m memory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state(key).memory = m
}

func (t *tracked) stands(key types.NamespacedName, standing Standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state(key).standing = standing
}

// haveLooked tracks a Deployment from now on. It records the start of a sync and its number of
// pods.
func (t *tracked) haveLooked(key types.NamespacedName, at time.Time, pods int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state(key).nextLook = at.Add(min(time.Duration(pods)*pausePerPod, longestPause))
}

// nextLook returns the earliest time of the next sync of a Deployment.
func (t *tracked) nextLook(key types.NamespacedName) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.deployments[key]; s != nil {
		return s.nextLook
	}
	return time.Time{}
}

// wrote records the record that a write of the target has set.
func (t *tracked) wrote(key types.NamespacedName, r *record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.state(key)
	s.record, s.refused = r, refusal{}
}

// scaleFailed records that the replica count could not be written, and reports whether the error is
// new. If that was tried again after the surge timeout and a rest, the turns end after the first
// failure, and the next rest is longer.
func (t *tracked) scaleFailed(key types.NamespacedName, text string, now time.Time, timeout time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.state(key)
	was := s.refused
	if was.text == "" {
		s.refused.since = now
	} else if !now.Before(was.retryAt(timeout)) {
		s.refused.since = now.Add(-timeout)
		s.refused.declined++
	}
	s.refused.text = text
	return was.text != text
}

// reported records the result of a report to an Evacuation.
func (t *tracked) reported(key types.NamespacedName, evacuation string, now time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.deployments[key]
	if s == nil {
		return
	}
	if _, failed := s.unreported[evacuation]; err == nil && !failed {
		return
	}
	replaced := maps.Clone(s.unreported)
	if replaced == nil {
		replaced = map[string]time.Time{}
	}
	if delete(replaced, evacuation); err != nil {
		replaced[evacuation] = now
	}
	s.unreported = replaced
}

// forget drops a Deployment that has no leaving pods any more.
func (t *tracked) forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.deployments, key)
}
