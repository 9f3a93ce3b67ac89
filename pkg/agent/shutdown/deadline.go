// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"math"
	"time"

	"haulout.dev/haulout/pkg/agent/state"
)

// The wall clock can be set during a shutdown, so the manager keeps the deadline on the monotonic
// clock, which a process cannot hand on. What is stored is the time since the boot.

// remainingOf returns the time until the deadline of a machine, as the wall clock shows it now. A
// deadline that is over when it is seen first says nothing: the machine still runs, so the clock
// was set.
func remainingOf(machine *MachineState, wall time.Time, longest time.Duration) time.Duration {
	if machine.Deadline.IsZero() || !machine.Deadline.After(wall) {
		if machine.Delay > 0 {
			return min(machine.Delay, longest)
		}
		return longest
	}
	deadline := machine.Deadline.Round(0)
	if !machine.Since.IsZero() {
		if own := machine.Since.Round(0).Add(longest); own.Before(deadline) {
			deadline = own
		}
	}
	return min(max(deadline.Sub(wall), 0), longest)
}

// remainingOfStored returns the time until a stored deadline. ok is false if the deadline says
// nothing: there is none, or it is over and the machine still runs, so it belongs to another
// shutdown. Without the time since the boot, the clock on the wall is taken: if that was set
// forward, the deadline may be over, too, and if it was set back, the time is not longer than it
// was when the shutdown began.
func remainingOfStored(signal *state.Signal, wall time.Time, sinceBoot, longest time.Duration) (remaining time.Duration, ok bool) {
	if signal.Deadline.IsZero() {
		return 0, false
	}
	remaining = signal.Deadline.Sub(wall)
	if signal.DeadlineSinceBoot > 0 && sinceBoot > 0 {
		remaining = signal.DeadlineSinceBoot - sinceBoot
	}
	if remaining <= 0 {
		return 0, false
	}
	if whole := signal.Deadline.Sub(signal.Time); whole > 0 {
		remaining = min(remaining, whole)
	}
	return min(remaining, longest), true
}

// Resumed returns when a shutdown that was stored in this boot began, and its deadline, as the
// clock on the wall shows them now.
func Resumed(signal state.Signal, now time.Time, sinceBoot time.Duration) (since, deadline time.Time) {
	remaining, ok := remainingOfStored(&signal, now, sinceBoot, math.MaxInt64)
	if !ok {
		return time.Time{}, time.Time{}
	}
	deadline = now.Add(remaining)
	return deadline.Add(signal.Time.Sub(signal.Deadline)), deadline
}

// withinPeriod is how long a request to shorten a shutdown waits for one.
const withinPeriod = 5 * time.Minute

// remainingWithin returns the time that a request leaves to a shutdown that has begun at some time
// since the boot. The request counts from when it was made; if its time was over when the shutdown
// began, from then.
func remainingWithin(w *state.Within, bootID string, begun, sinceBoot time.Duration) (remaining time.Duration, ok bool) {
	if w == nil || !state.OfKernel(bootID, w.BootID) || w.SinceBoot+withinPeriod < begun {
		return 0, false
	}
	end := w.SinceBoot + w.Within
	if end <= begun {
		end = begun + w.Within
	}
	return max(end-sinceBoot, 0), true
}

// IsSooner reports whether an older request, which may be nil, still counts and ends the machine
// before a newer one of the same clock.
func IsSooner(old, request *state.Within) bool {
	end := func(w *state.Within) time.Duration { return w.SinceBoot + w.Within }
	return old != nil && old.BootID == request.BootID && old.SinceBoot+withinPeriod >= request.SinceBoot &&
		end(old) > request.SinceBoot && end(old) < end(request)
}
