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

// VisibleAfter is how long something fails before the API shows it.
const VisibleAfter = time.Minute

// Failure is something that keeps failing.
type Failure struct {
	// About is what it is about, such as "node a".
	About string
	// Since is when it began to fail, and Text is the last error.
	Since time.Time
	Text  string
}

// Compare orders failures by their age, the oldest first, then by what they are about.
func (f Failure) Compare(other Failure) int {
	return cmp.Or(f.Since.Compare(other.Since), cmp.Compare(f.About, other.About))
}

// Failures remembers what keeps failing for each key. It may be dropped at any time: what still
// fails comes back, as of then. It is safe for concurrent use.
type Failures[K comparable] struct {
	clock   clock.PassiveClock
	changed func(K)

	byKey Memory[K, failing]
	told  Memory[K, string]
}

// failing has the failures of a key by what they are about. It is replaced, never changed.
type failing map[string]Failure

// NewFailures creates an empty memory of failures. It calls changed, which may be nil, when
// something begins or ceases to fail.
func NewFailures[K comparable](clock clock.PassiveClock, changed func(K)) *Failures[K] {
	if changed == nil {
		changed = func(K) {}
	}
	return &Failures[K]{clock: clock, changed: changed}
}

// Note takes in the outcome of an attempt; an empty text ends the failure. It reports whether one
// that was visible has ended.
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

// End ends what fails about something, for whatever key.
func (f *Failures[K]) End(about string) {
	for _, key := range f.byKey.Keys() {
		f.Note(key, about, "")
	}
}

// Visible returns what has failed for VisibleAfter, the oldest first, and how long it takes until
// something else has, 0 if nothing will.
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

// Of returns the oldest failure that is visible or, if none is, how long it takes until one is.
func (f *Failures[K]) Of(key K) (oldest *Failure, next time.Duration) {
	visible, next := f.Visible(key)
	if len(visible) > 0 {
		return &visible[0], 0
	}
	return nil, next
}

// Tell reports whether a text about a key is another one than the last.
func (f *Failures[K]) Tell(key K, text string) (isNew bool) {
	f.told.Change(key, func(last string, _ bool) (string, bool) {
		isNew = last != text
		return text, true
	})
	return isNew
}

// Forget drops what is remembered of a key.
func (f *Failures[K]) Forget(key K) {
	f.byKey.Forget(key)
	f.told.Forget(key)
}
