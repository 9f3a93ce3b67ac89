// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"math"
	"time"

	"haulout.dev/haulout/pkg/agent/state"
)

// The wall clock can be set during a shutdown, so the manager keeps the deadline on the monotonic
// clock. The next process cannot use that clock, so the manager stores the deadline as a time since
// the boot.

// remainingOf returns the time until the deadline that a machine reports, according to the present
// wall clock. A deadline that has already passed when the agent first reads it is ignored: the
// machine still runs, so the clock was set.
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

// goingDownPeriod is the time after the deadline in which a machine may still start the agent: the
// timer of the machine is late, and the machine does not stop all services at the same moment.
const goingDownPeriod = 10 * time.Second

// remainingOfStored returns the time until a stored deadline, 0 if the deadline has passed and the
// machine is going down. ok is false if there is no stored deadline, or if it passed more than
// goingDownPeriod ago and the machine still runs: then the deadline belongs to another shutdown. If
// the time since the boot is unknown, the wall clock is used. If the wall clock was set forward,
// the deadline may seem to have passed; if it was set back, the result is limited to the remaining
// time at the start of the shutdown.
func remainingOfStored(signal *state.Signal, wall time.Time, sinceBoot, longest time.Duration) (remaining time.Duration, ok bool) {
	if signal.Deadline.IsZero() {
		return 0, false
	}
	remaining = signal.Deadline.Sub(wall)
	if signal.DeadlineSinceBoot > 0 && sinceBoot > 0 {
		remaining = signal.DeadlineSinceBoot - sinceBoot
	}
	if remaining <= -goingDownPeriod {
		return 0, false
	}
	if whole := signal.Deadline.Sub(signal.Time); whole > 0 {
		remaining = min(remaining, whole)
	}
	return min(max(remaining, 0), longest), true
}

// Resumed returns the start and the deadline of a shutdown that was stored in this boot, on the
// present wall clock.
func Resumed(signal state.Signal, now time.Time, sinceBoot time.Duration) (since, deadline time.Time) {
	remaining, ok := remainingOfStored(&signal, now, sinceBoot, math.MaxInt64)
	if !ok {
		return time.Time{}, time.Time{}
	}
	deadline = now.Add(remaining)
	return deadline.Add(signal.Time.Sub(signal.Deadline)), deadline
}

// withinPeriod is the time for which a request to shorten a shutdown stays valid if no shutdown
// begins.
const withinPeriod = 5 * time.Minute

// remainingWithin returns the remaining time that a request allows for a shutdown that began at the
// given time since the boot. The time counts from the request; if that time ended before the
// shutdown began, it counts from the start of the shutdown.
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

// IsSooner reports whether an older request, which may be nil, is still valid and its end is
// earlier than the end of a newer request.
func IsSooner(old, request *state.Within) bool {
	end := func(w *state.Within) time.Duration { return w.SinceBoot + w.Within }
	return old != nil && old.BootID == request.BootID && old.SinceBoot+withinPeriod >= request.SinceBoot &&
		end(old) > request.SinceBoot && end(old) < end(request)
}
