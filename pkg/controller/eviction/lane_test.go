// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestActiveLanesShareTheCalls(t *testing.T) {
	lanes := func(n int, change func(*budgetLane)) []lane {
		made := make([]lane, n)
		for i := range made {
			l := newBudgetLane(&budgetLanes{}, newBudget("web", 1), start)
			l.wait(&item{Request: &Request{}})
			change(l)
			made[i] = l
		}
		return made
	}
	asIs := func(*budgetLane) {}
	empty := func(l *budgetLane) { l.first().leaveLine() }
	closed := func(since time.Time) func(*budgetLane) {
		return func(l *budgetLane) { l.open, l.since = false, since }
	}
	now := start.Add(time.Hour)
	for name, test := range map[string]struct {
		ring []lane
		want int
	}{
		"none":                         {nil, laneAwake},
		"one":                          {lanes(1, asIs), laneAwake},
		"two":                          {lanes(2, asIs), laneAwake / 2},
		"many":                         {lanes(30, asIs), 1},
		"one, and others without pods": {append(lanes(5, empty), lanes(1, asIs)...), laneAwake},
		"one, and others that have been closed for long": {append(lanes(5, closed(now.Add(-blockedAfter))), lanes(1, asIs)...), laneAwake},
		"one, and others that closed a moment ago":       {append(lanes(5, closed(now.Add(-time.Second))), lanes(1, asIs)...), 1},
	} {
		t.Run(name, func(t *testing.T) {
			free := &freeLane{newGroup()}
			free.wait(&item{Request: &Request{}})
			is.Equal(t, awakePerLane(append(test.ring, free), now), test.want)
		})
	}
}

func TestLaneSendsNoMoreThanItsShare(t *testing.T) {
	l := newBudgetLane(&budgetLanes{awake: 2}, newBudget("web", 10), start)
	l.limit.limit = laneAwake
	for n := range 2 {
		is.True(t, l.hasSlot(start), "got no slot beside %d calls, want one: two are allowed", n)
		l.sending[&item{}] = start
	}
	is.True(t, !l.hasSlot(start), "got a slot for a third call, want none")
	is.True(t, l.hasSlot(start.Add(asleepAfter)), "got no slot while the other calls wait in the API server, want one")
}
