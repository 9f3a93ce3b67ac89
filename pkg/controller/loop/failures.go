// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/utils/clock"
)

// VisibleAfter is how long a failure has to last before a status reports it.
const VisibleAfter = time.Minute

// Failure is an operation that keeps failing.
type Failure struct {
	// About names the object or operation, such as "node a".
	About string
	// Since is the time of the first error, and Text is the last error.
	Since time.Time
	Text  string
}

// Compare orders failures by age, the oldest first, then by About.
func (f Failure) Compare(other Failure) int {
	return cmp.Or(f.Since.Compare(other.Since), cmp.Compare(f.About, other.About))
}

// Failures records the failures of each key. Its content may be lost at any time: an operation that
// still fails is recorded again, with a new start time. Failures is safe for concurrent use.
type Failures[K comparable] struct {
	clock   clock.PassiveClock
	changed func(K)

	byKey Memory[K, failing]
	told  Memory[K, string]
}

// failing has the failures of a key by About. It is not changed after it is stored.
type failing map[string]Failure

// NewFailures creates an empty memory of failures. It calls changed, which may be nil, when a
// failure begins or ends.
func NewFailures[K comparable](clock clock.PassiveClock, changed func(K)) *Failures[K] {
	if changed == nil {
		changed = func(K) {}
	}
	return &Failures[K]{clock: clock, changed: changed}
}

// Note records the result of an attempt; an empty text ends the failure. It reports whether a
// visible failure has ended.
func (f *Failures[K]) Note(key K, about, text string) (ended bool) {
	var failed bool
	f.byKey.Change(key, func(before failing, _ bool) (failing, bool) {
		one, known := before[about]
		if failed = known; !known && text == "" {
			return before, len(before) > 0
		}
		now := maps.Clone(before)
		if text == "" {
			ended = f.clock.Since(one.Since) >= VisibleAfter
			delete(now, about)
			return now, len(now) > 0
		}
		if now == nil {
			now = failing{}
		}
		since := f.clock.Now()
		if known {
			since = one.Since
		}
		now[about] = Failure{About: about, Since: since, Text: text}
		return now, true
	})
	if failed != (text != "") {
		f.changed(key)
	}
	return ended
}

// End ends the failures with the given About, for all keys.
func (f *Failures[K]) End(about string) {
	for _, key := range f.byKey.Keys() {
		f.Note(key, about, "")
	}
}

// Visible returns the failures that have lasted for VisibleAfter, the oldest first, and the time
// until another failure becomes visible, 0 if there is no other.
func (f *Failures[K]) Visible(key K) (visible []Failure, next time.Duration) {
	failures, _ := f.byKey.Get(key)
	for _, one := range failures {
		if wait := VisibleAfter - f.clock.Since(one.Since); wait <= 0 {
			visible = append(visible, one)
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	slices.SortFunc(visible, Failure.Compare)
	return visible, next
}

// Of returns the oldest visible failure. If there is none, it returns the time until one becomes
// visible.
func (f *Failures[K]) Of(key K) (oldest *Failure, next time.Duration) {
	visible, next := f.Visible(key)
	if len(visible) > 0 {
		return &visible[0], 0
	}
	return nil, next
}

// Tell reports whether a text about a key differs from the previous one, and records it. An empty
// text drops the previous one.
func (f *Failures[K]) Tell(key K, text string) (isNew bool) {
	f.told.Change(key, func(last string, _ bool) (string, bool) {
		isNew = last != text
		return text, text != ""
	})
	return isNew
}

// Forget drops all records of a key.
func (f *Failures[K]) Forget(key K) {
	f.byKey.Forget(key)
	f.told.Forget(key)
}
