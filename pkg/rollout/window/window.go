// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package window computes when the units of a rollout may start: the windows in which they may, and
// the holds that keep them from it. It has no clock.
package window

import (
	"fmt"
	"slices"
	"time"

	"github.com/robfig/cron/v3"

	"haulout.dev/haulout/pkg/apis/maintenance/schedule"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// maxStarts is the number of openings that At follows to find the end of windows that overlap:
// those of two days if one opens each minute.
const maxStarts = 3000

// State tells whether units may start, and how long that lasts.
type State struct {
	// Open is true if a window is open.
	Open bool
	// Until is the time at which the last open window closes or, if none is open, at which the next
	// one opens. It is zero if no window opens again, and if the end is too far away to be found.
	Until time.Time
}

// At returns the state of windows at a time. Without windows units may always start. A window that
// cannot be parsed is an error, and all windows count as closed.
func At(windows []v1alpha1.RolloutWindow, now time.Time) (State, error) {
	if len(windows) == 0 {
		return State{Open: true}, nil
	}
	all := make([]opening, 0, len(windows))
	for i := range windows {
		o, err := parse(&windows[i])
		if err != nil {
			return State{}, fmt.Errorf("windows[%d]: %w", i, err)
		}
		all = append(all, o)
	}
	return stateOf(all, now), nil
}

func stateOf(all []opening, now time.Time) State {
	end, found := lastEnd(all, now)
	switch {
	case !found:
		return State{Open: true}
	case end.After(now):
		return State{Open: true, Until: end}
	}
	var opens time.Time
	for _, o := range all {
		opens = Earliest(opens, o.after(now))
	}
	return State{Until: opens}
}

// lastEnd returns the end of the windows that are open from a time on without a gap: the time
// itself if none is open. found is false if there are too many openings.
func lastEnd(all []opening, from time.Time) (end time.Time, found bool) {
	starts := make([]time.Time, len(all))
	for i, o := range all {
		starts[i] = o.after(from.Add(-o.duration))
	}
	end = from
	for steps, extended := 0, true; extended; {
		extended = false
		for i, o := range all {
			for !starts[i].IsZero() && !starts[i].After(end) {
				if steps++; steps > maxStarts {
					return end, false
				}
				end, extended = Latest(end, starts[i].Add(o.duration)), true
				starts[i] = o.next(starts[i])
			}
		}
	}
	return end, true
}

// opening is a window that opens again and again, or once.
type opening struct {
	schedule *cron.SpecSchedule
	start    time.Time
	duration time.Duration
}

func parse(w *v1alpha1.RolloutWindow) (opening, error) {
	o := opening{duration: w.Duration.Duration}
	if w.Start != nil {
		o.start = w.Start.Time
		return o, nil
	}
	zone, err := schedule.TimeZone(w.TimeZone)
	if err != nil {
		return opening{}, fmt.Errorf("timeZone: %w", err)
	}
	if o.schedule, err = schedule.Parse(w.Schedule, zone); err != nil {
		return opening{}, fmt.Errorf("schedule: %w", err)
	}
	return o, nil
}

// after returns the first time after t at which the window opens; the zero time if it does not.
func (o opening) after(t time.Time) time.Time {
	if o.schedule == nil {
		if o.start.After(t) {
			return o.start
		}
		return time.Time{}
	}
	// On a day on which the clocks change, what the library finds depends on where it begins. A
	// CronJob begins at its last start. So begin before the change: else a window that did not open
	// would be found open later in the day.
	from := t
	if changed, _ := t.In(o.schedule.Location).ZoneBounds(); !changed.IsZero() && t.Sub(changed) < 36*time.Hour {
		from = changed.Add(-24 * time.Hour)
	}
	start := o.next(from)
	for !start.IsZero() && !start.After(t) {
		start = o.next(start)
	}
	return start
}

// next returns the opening after another one.
func (o opening) next(start time.Time) time.Time {
	if o.schedule == nil {
		return time.Time{}
	}
	return o.schedule.Next(start)
}

// Latest returns the later of two times.
func Latest(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// Earliest returns the earlier of two times, of which a zero one means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
