// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"
	"maps"
	"slices"
	"sync"
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

	mu    sync.Mutex
	byKey map[K]map[string]Failure
	told  map[K]string
}

// NewFailures creates an empty memory of failures. It calls changed, which may be nil, when
// something begins or ceases to fail.
func NewFailures[K comparable](clock clock.PassiveClock, changed func(K)) *Failures[K] {
	if changed == nil {
		changed = func(K) {}
	}
	return &Failures[K]{clock: clock, changed: changed, byKey: map[K]map[string]Failure{}, told: map[K]string{}}
}

// Note takes in the outcome of an attempt; an empty text ends the failure. It reports whether one
// that was visible has ended.
func (f *Failures[K]) Note(key K, about, text string) (ended bool) {
	f.mu.Lock()
	before, failed := f.byKey[key][about]
	switch {
	case text == "":
		delete(f.byKey[key], about)
		if len(f.byKey[key]) == 0 {
			delete(f.byKey, key)
		}
		ended = failed && f.clock.Since(before.Since) >= VisibleAfter
	case failed:
		f.byKey[key][about] = Failure{About: about, Since: before.Since, Text: text}
	default:
		if f.byKey[key] == nil {
			f.byKey[key] = map[string]Failure{}
		}
		f.byKey[key][about] = Failure{About: about, Since: f.clock.Now(), Text: text}
	}
	f.mu.Unlock()
	if failed != (text != "") {
		f.changed(key)
	}
	return ended
}

// End ends what fails about something, for whatever key.
func (f *Failures[K]) End(about string) {
	f.mu.Lock()
	keys := slices.Collect(maps.Keys(f.byKey))
	f.mu.Unlock()
	for _, key := range keys {
		f.Note(key, about, "")
	}
}

// Visible returns what has failed for VisibleAfter, the oldest first, and how long it takes until
// something else has, 0 if nothing will.
func (f *Failures[K]) Visible(key K) (visible []Failure, next time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.byKey[key] {
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
func (f *Failures[K]) Tell(key K, text string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told[key] == text {
		return false
	}
	f.told[key] = text
	return true
}

// Forget drops what is remembered of a key.
func (f *Failures[K]) Forget(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byKey, key)
	delete(f.told, key)
}
