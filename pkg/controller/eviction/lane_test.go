// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestActiveLanesShareTheCalls(t *testing.T) {
	lanes := func(n int, change func(*lane)) []*lane {
		made := make([]*lane, n)
		for i := range made {
			made[i] = newLane(types.NamespacedName{Name: strconv.Itoa(i)}, newBudget("web", 1), start)
			made[i].add(&item{})
			change(made[i])
		}
		return made
	}
	asIs := func(*lane) {}
	empty := func(l *lane) { l.ready.first().leaveHeap() }
	closed := func(since time.Time) func(*lane) {
		return func(l *lane) { l.open, l.since = false, since }
	}
	now := start.Add(time.Hour)
	for name, test := range map[string]struct {
		ring []*lane
		want int
	}{
		"none":                         {nil, laneAwake},
		"one":                          {lanes(1, asIs), laneAwake},
		"two":                          {lanes(2, asIs), laneAwake / 2},
		"many":                         {lanes(30, asIs), 1},
		"one, and others without pods": {append(lanes(5, empty), lanes(1, asIs)...), laneAwake},
		"one, and others that have been closed for long": {
			append(lanes(5, closed(now.Add(-blockedAfter))), lanes(1, asIs)...), laneAwake,
		},
		"one, and others that closed a moment ago": {
			append(lanes(5, closed(now.Add(-time.Second))), lanes(1, asIs)...), 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			free := newLane(types.NamespacedName{}, nil, start)
			free.add(&item{})
			q := &Queue{ring: append(test.ring, free)}
			is.Equal(t, q.awakePerLane(now), test.want)
		})
	}
}

func TestLaneSendsNoMoreThanItsShare(t *testing.T) {
	l := newLane(types.NamespacedName{Name: "web"}, newBudget("web", 10), start)
	l.awake.limit = laneAwake
	for n := range 2 {
		is.True(t, l.hasSlot(start, 2), "got no slot beside %d calls, want one: two are allowed", n)
		l.sending[&item{}] = start
	}
	is.True(t, !l.hasSlot(start, 2), "got a slot for a third call, want none")
	is.True(t, l.hasSlot(start.Add(asleepAfter), 2), "got no slot while the other calls wait in the API server, want one")
}
