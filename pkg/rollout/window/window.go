// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package window computes when the units of a rollout may start: the windows in which they may, and
// the holds that keep them from it. It has no clock.
package window

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"haulout.dev/haulout/pkg/apis/maintenance/schedule"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// horizon is how far At looks for the end of open windows. It is longer than the longest window.
const horizon = 8 * 24 * time.Hour

// State tells whether units may start, and how long that lasts.
type State struct {
	// Open is true if a window is open.
	Open bool
	// Until is the time at which the last open window closes or, if none is open, at which the next
	// one opens. It is zero if no window opens again, and if they stay open for more than a week.
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
	if end := lastEnd(all, now); end.After(now) {
		if end.Sub(now) > horizon {
			end = time.Time{}
		}
		return State{Open: true, Until: end}, nil
	}
	var opens time.Time
	for _, o := range all {
		opens = Earliest(opens, o.after(now))
	}
	return State{Until: opens}, nil
}

// lastEnd returns the end of the windows that are open from a time on without a gap. It is the time
// itself if none is open. It stops beyond the horizon.
func lastEnd(all []opening, from time.Time) time.Time {
	end := from
	for extended := true; extended && end.Sub(from) <= horizon; {
		extended = false
		for _, o := range all {
			if later := o.endAfter(end); later.After(end) {
				end, extended = later, true
			}
		}
	}
	return end
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
	// On a day on which the clocks change, what the library finds depends on the time at which it
	// begins to search. A CronJob begins at its last start. So begin before the change, for else a
	// window that never opened would be found open later in the day.
	from := t
	if changed, _ := t.In(o.schedule.Location).ZoneBounds(); !changed.IsZero() && t.Sub(changed) < 36*time.Hour {
		from = changed.Add(-24 * time.Hour)
	}
	next := o.schedule.Next(from)
	for !next.IsZero() && !next.After(t) {
		next = o.schedule.Next(next)
	}
	return next
}

// endAfter returns the end of an opening that is open at t, or begins at t; otherwise the zero time.
// Of several it prefers a late one, so that few steps reach the end of overlapping openings.
func (o opening) endAfter(t time.Time) time.Time {
	for back := time.Minute; ; back *= 2 {
		back = min(back, o.duration)
		if start := o.after(t.Add(-back)); !start.IsZero() && !start.After(t) {
			return start.Add(o.duration)
		}
		if back >= o.duration {
			return time.Time{}
		}
	}
}

// Earliest returns the earlier of two times, of which a zero one means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
