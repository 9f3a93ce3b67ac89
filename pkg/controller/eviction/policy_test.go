// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestTurn(t *testing.T) {
	const patience = 5 * time.Minute
	for name, tc := range map[string]struct {
		workload   workload
		most       Percent
		after      time.Duration
		want       bool
		writtenOff int
		at         time.Duration
	}{
		"one of one pod leaves":                              {workload{desired: 1, serving: 1}, 25, 0, true, 0, 0},
		"one of three pods leaves":                           {workload{desired: 3, serving: 3}, 25, 0, true, 0, 0},
		"a second one of three waits":                        {workload{desired: 3, serving: 2}, 25, 0, false, 0, patience},
		"a third one of ten leaves: the share is rounded up": {workload{desired: 10, serving: 8}, 25, 0, true, 0, 0},
		"a fourth one of ten waits":                          {workload{desired: 10, serving: 7}, 25, 0, false, 0, patience},
		"pods beyond the desired ones leave":                 {workload{desired: 3, serving: 5}, 25, 0, true, 0, 0},
		"pods of a workload that was scaled to zero leave":   {workload{desired: 0, serving: 2}, 25, 0, true, 0, 0},
		"pods wait until the patience ends":                  {workload{desired: 3, serving: 2}, 25, patience - 1, false, 0, patience},
		"the next share leaves when the patience ends":       {workload{desired: 3, serving: 2}, 25, patience, true, 1, 0},
		"the share after that waits for the next end": {
			workload{desired: 3, serving: 1, writtenOff: 1}, 25, 0, false, 1, patience,
		},
		"pods that were written off and replaced count again": {
			workload{desired: 3, serving: 2, writtenOff: 2}, 25, 0, true, 1, 0,
		},
		"a complete workload has none written off": {
			workload{desired: 3, serving: 3, writtenOff: 2}, 25, 0, true, 0, 0,
		},
		"the patience does not end while an eviction is in flight": {
			workload{desired: 3, serving: 2, unanswered: true}, 25, patience, false, 0, 0,
		},
		"a share leaves while an eviction is in flight": {
			workload{desired: 10, serving: 9, unanswered: true}, 25, 0, true, 0, 0,
		},
		"half of four pods": {workload{desired: 4, serving: 3}, 50, 0, true, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tc.workload.since = start
			got, writtenOff, at := tc.workload.turn(tc.most, patience, start.Add(tc.after))
			if got != tc.want || writtenOff != tc.writtenOff {
				t.Errorf("got %v with %d written off, want %v with %d", got, writtenOff, tc.want, tc.writtenOff)
			}
			if want := start.Add(tc.at); tc.at != 0 && !at.Equal(want) || tc.at == 0 && !at.IsZero() {
				t.Errorf("got %v as the time of the next turn, want %v", at, tc.at)
			}
		})
	}
}

// Turns slow a drain and never block it: an owner whose pods are not replaced waits three times at
// most.
func TestOwnerWaitsThreeTimesAtMost(t *testing.T) {
	for desired := 1; desired <= 200; desired++ {
		w := workload{desired: desired, serving: desired, since: start}
		now, waits := start, 0
		for w.serving > 0 {
			granted, writtenOff, at := w.turn(25, time.Minute, now)
			w.writtenOff = writtenOff
			if !granted {
				now = at
				waits++
				continue
			}
			w.serving--
			w.since = now
			if missing := w.missing() - w.writtenOff; missing > Percent(25).of(desired) {
				t.Fatalf("%d pods: got %d missing pods, not counting the ones written off", desired, missing)
			}
		}
		if most := min(3, desired-1); waits > most {
			t.Errorf("%d pods: got %d waits, want at most %d", desired, waits, most)
		}
	}
}

func TestPercent(t *testing.T) {
	for s, want := range map[string]Percent{"25%": 25, "1%": 1, "100%": 100, "0%": 0, "101%": 0, "25": 0, "": 0, "%": 0, "-5%": 0, "a%": 0} {
		var p Percent
		err := p.Set(s)
		is.True(t, p == want && (err == nil) == (want != 0), "%q: got %d, %v", s, p, err)
		if err == nil && p.String() != s {
			t.Errorf("%q: String returned %q", s, p.String())
		}
	}
}
