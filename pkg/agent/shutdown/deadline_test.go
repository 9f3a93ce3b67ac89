// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"testing"
	"time"

	"haulout.dev/haulout/pkg/agent/state"
)

func TestRemaining(t *testing.T) {
	at := wall.Add
	for name, tt := range map[string]struct {
		machine MachineState
		want    time.Duration
	}{
		"a deadline":                       {MachineState{Since: at(0), Deadline: at(time.Minute)}, time.Minute},
		"no deadline and a delay":          {MachineState{Delay: 5 * time.Second}, 5 * time.Second},
		"no deadline and no delay":         {MachineState{}, 30 * time.Minute},
		"longer than configured":           {MachineState{Since: at(0), Deadline: at(24 * time.Hour)}, 30 * time.Minute},
		"longer than configured, and late": {MachineState{Since: at(-10 * time.Minute), Deadline: at(24 * time.Hour)}, 20 * time.Minute},
		"over":                             {MachineState{Since: at(-time.Hour), Deadline: at(-time.Minute), Delay: 5 * time.Minute}, 5 * time.Minute},
		"the deadline passed longer ago than the limit": {MachineState{Since: at(-time.Hour), Deadline: at(time.Minute)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := remainingOf(&tt.machine, wall, 30*time.Minute); got != tt.want {
				t.Errorf("remainingOf() = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestRemainingOfStored(t *testing.T) {
	at := wall.Add
	for name, tt := range map[string]struct {
		signal state.Signal
		// sinceBoot is the time since the boot, if it is known.
		sinceBoot time.Duration
		want      time.Duration
		wantOK    bool
	}{
		"since the boot": {
			state.Signal{Time: at(-time.Minute), Deadline: at(time.Minute), DeadlineSinceBoot: time.Hour}, 59 * time.Minute, time.Minute, true,
		},
		"since the boot, and the clock was set forward": {
			state.Signal{Time: at(-25 * time.Hour), Deadline: at(-24 * time.Hour), DeadlineSinceBoot: time.Hour}, 55 * time.Minute, 5 * time.Minute, true,
		},
		"since the boot, and the clock was set forward a little": {
			state.Signal{Time: at(-9 * time.Minute), Deadline: at(time.Minute), DeadlineSinceBoot: time.Hour}, 55 * time.Minute, 5 * time.Minute, true,
		},
		"since the boot, and the clock was set back": {
			state.Signal{Time: at(24 * time.Hour), Deadline: at(25 * time.Hour), DeadlineSinceBoot: time.Hour}, 55 * time.Minute, 5 * time.Minute, true,
		},
		"since the boot, over, and the machine goes down": {
			state.Signal{Time: at(-time.Minute), Deadline: at(0), DeadlineSinceBoot: time.Hour}, time.Hour + 9*time.Second, 0, true,
		},
		"since the boot, over, and the machine does not go down": {
			state.Signal{Time: at(-time.Minute), Deadline: at(0), DeadlineSinceBoot: time.Hour}, time.Hour + 10*time.Second, 0, false,
		},
		"since the boot, over": {
			state.Signal{Time: at(time.Hour), Deadline: at(2 * time.Hour), DeadlineSinceBoot: time.Hour}, 2 * time.Hour, 0, false,
		},
		"since the boot, longer than at the start": {
			state.Signal{Time: at(0), Deadline: at(time.Minute), DeadlineSinceBoot: time.Hour}, time.Minute, time.Minute, true,
		},
		"of an agent that did not store the time since the boot": {
			state.Signal{Time: at(0), Deadline: at(time.Minute)}, time.Hour, time.Minute, true,
		},
		"none":                   {state.Signal{}, 0, 0, false},
		"in the middle":          {state.Signal{Time: at(-time.Minute), Deadline: at(time.Minute)}, 0, time.Minute, true},
		"the clock was set back": {state.Signal{Time: at(time.Hour), Deadline: at(time.Hour + 2*time.Minute)}, 0, 2 * time.Minute, true},
		"the clock was set forward, or the shutdown is another one": {state.Signal{Time: at(-time.Hour), Deadline: at(-50 * time.Minute)}, 0, 0, false},
		"longer than configured":                                    {state.Signal{Time: at(0), Deadline: at(2 * time.Hour)}, 0, 30 * time.Minute, true},
		"without a beginning":                                       {state.Signal{Deadline: at(time.Minute)}, 0, time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := remainingOfStored(&tt.signal, wall, tt.sinceBoot, 30*time.Minute)
			if got != tt.want || ok != tt.wantOK {
				t.Errorf("remainingOfStored() = %s, %t, want %s, %t", got, ok, tt.want, tt.wantOK)
			}
		})
	}
}

// TestResumed checks the start and the deadline that the logind watch gets after a restart: they
// must be times on the present wall clock.
func TestResumed(t *testing.T) {
	stored := state.Signal{Time: wall, Deadline: wall.Add(30 * time.Minute), DeadlineSinceBoot: 2 * time.Hour}
	for name, now := range map[string]time.Time{
		"in order": wall.Add(10 * time.Minute), "set forward": wall.Add(48 * time.Hour), "set back": wall.Add(-48 * time.Hour),
	} {
		since, deadline := Resumed(stored, now, time.Hour+40*time.Minute)
		if !since.Equal(now.Add(-10*time.Minute)) || !deadline.Equal(now.Add(20*time.Minute)) {
			t.Errorf("%s: since %s until %s, want 10 minutes ago and 20 minutes later than %s", name, since, deadline, now)
		}
	}
	if since, deadline := Resumed(stored, wall, 3*time.Hour); !since.IsZero() || !deadline.IsZero() {
		t.Errorf("of a shutdown that is over: since %s until %s", since, deadline)
	}
}
