// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"
)

// StuckAfter is how long a worker may process one item. Every call that a controller makes returns
// sooner, possibly with an error.
const StuckAfter = 10 * time.Minute

// LeaderPatience is how long a new leader serves at most before a deadline passes whose beginning
// was stored before: the clock of the previous leader may have been minutes behind, and what would
// have moved the deadline may have been lost in the change.
const LeaderPatience = 5 * time.Minute

// Tracker records which item each worker of a set of controllers processes. A nil tracker records
// nothing and is always healthy.
type Tracker struct {
	clock clock.PassiveClock
	busy  Memory[*work, struct{}]
}

type work struct {
	what  string
	since time.Time
}

// NewTracker returns an empty tracker.
func NewTracker(c clock.PassiveClock) *Tracker {
	return &Tracker{clock: c}
}

// Start records that a worker starts to work on something, for example "nodemaintenance kernel";
// the worker calls done when it has finished.
func (t *Tracker) Start(what string) (done func()) {
	if t == nil {
		return func() {}
	}
	w := &work{what: what, since: t.clock.Now()}
	t.busy.Set(w, struct{}{})
	return func() { t.busy.Forget(w) }
}

// Check implements a health check. It fails if a worker has processed one item for longer than
// StuckAfter, and names the item.
func (t *Tracker) Check(*http.Request) error {
	if t == nil {
		return nil
	}
	var stuck []string
	for _, w := range t.busy.Keys() {
		if busy := t.clock.Since(w.since); busy > StuckAfter {
			stuck = append(stuck, fmt.Sprintf("%s for %v", w.what, busy.Round(time.Second)))
		}
	}
	if len(stuck) == 0 {
		return nil
	}
	slices.Sort(stuck)
	return fmt.Errorf("workers are stuck: %s", strings.Join(stuck, ", "))
}
