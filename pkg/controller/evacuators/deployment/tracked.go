// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/controller/loop"
)

// longestWait is the maximum result of restAfter, unless the surge timeout is longer.
const longestWait = time.Hour

// tracked has the state of Deployments with leaving pods. Other Deployments are not synced. The
// state need not survive a restart.
type tracked struct {
	loop.Memory[types.NamespacedName, state]
}

type state struct {
	memory
	// record is the last written record, with the UID of its object.
	record   *record
	nextSync time.Time
	// unreported has, by name, the Evacuations whose last report failed, with the time of the
	// failure. The map is not changed after it is stored.
	unreported map[string]time.Time
	// refused has the error with which the replica count cannot be written.
	refused refusal
	// notReplaced is the reason why the Deployment is not scaled up, as a phrase that follows its
	// name.
	notReplaced string
	// scaledDown is the time of the last write that lowered the replica count.
	scaledDown time.Time
	// surplus are the replacements that a scale-down which takes a surge back has to delete. They
	// stay here until the ReplicaSet has had time to delete pods after the scale-down (see
	// deletesUntil). The map is not changed after it is stored.
	surplus map[types.UID]struct{}
}

// refusal is the error with which a write fails, and the time of the first failure.
type refusal struct {
	since time.Time
	text  string
	// declined counts the consecutive times at which the write has failed for the whole surge
	// timeout.
	declined int
}

// retryAt returns the time at which a write that has failed for the whole surge timeout is tried
// again.
func (r refusal) retryAt(timeout time.Duration) time.Time {
	return r.since.Add(timeout + restAfter(r.declined, timeout))
}

// restAfter returns how long to wait before a surge is tried again after a failure. failed is the
// number of failures before the last one. The wait starts with the surge timeout and doubles with
// each failure.
func restAfter(failed int, timeout time.Duration) time.Duration {
	return min(timeout<<min(failed, 10), max(longestWait, timeout))
}

// wrote records a successful write to the target of a Deployment.
func (t *tracked) wrote(key types.NamespacedName, change scaling, before int32, now time.Time) {
	t.change(key, func(s *state) {
		s.record, s.refused = change.record, refusal{}
		if change.value != nil && *change.value < before {
			s.scaledDown = now
		}
	})
}

// decided records what other controllers read, before the decision is applied.
func (t *tracked) decided(key types.NamespacedName, d decision, of situation) {
	t.change(key, func(s *state) {
		s.standing = d.memory.standing
		if d.surplus != nil || !of.now.Before(deletesUntil(s.scaledDown, of.deployment)) {
			s.surplus = d.surplus
		}
	})
}

// change changes the state of a Deployment, and starts to track it.
func (t *tracked) change(key types.NamespacedName, change func(*state)) {
	t.Change(key, func(s state, _ bool) (state, bool) {
		change(&s)
		return s, true
	})
}

func (t *tracked) isTracked(key types.NamespacedName) bool {
	_, ok := t.Get(key)
	return ok
}

// get returns the state of a Deployment, which is zero if it is not tracked.
func (t *tracked) get(key types.NamespacedName) state {
	s, _ := t.Get(key)
	return s
}

// noteSync sets the earliest time of the next sync of a Deployment. at is the start of this sync.
func (t *tracked) noteSync(key types.NamespacedName, at time.Time, pods int, startDeadline time.Duration) {
	pause := pauseAfter(pods, t.Len(), startDeadline)
	t.change(key, func(s *state) { s.nextSync = at.Add(pause) })
}

// scaleFailed records that the replica count could not be written, and reports whether the error is
// new. If the write fails again after the surge timeout and a wait, this evacuator reports
// completion immediately, and the next wait is longer.
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
