// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	agentstate "haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestAShortDeadlineLeavesTimeForEveryBucket(t *testing.T) {
	t.Parallel()
	table := tableOf(time.Minute, 0, 1000, 2000, 3000)
	n := newNode(t, table, newPod("a", 0, ends(-1)), newPod("b", 1000, ends(-1)), newPod("d", 3000, ends(time.Second)))
	deadline := time.Now().Add(5 * time.Second)
	must.Do(t, n.engine.End(t.Context(), agentstate.Local{}, deadline, n.next))
	is.True(t, !time.Now().After(deadline), "returned after the deadline")
	// Two later buckets have pods, and 2 seconds are reserved for each. So the first bucket has one
	// second.
	for pod, latest := range map[string]time.Duration{"b": -4 * time.Second, "d": -2 * time.Second} {
		if at := n.of(t, stopAsked, pod).at.Sub(deadline); at < latest-200*time.Millisecond || at > latest+slow {
			t.Errorf("%s was stopped %s before the deadline, want %s", pod, -at, -latest)
		}
	}
	for _, e := range n.happened(stopAsked) {
		if e.timeout != 2*time.Second {
			t.Errorf("timeout of %s is %s, want 2s", e.pod, e.timeout)
		}
	}
	if got, want := n.allKilled(), []string{"a", "b", "d"}; !slices.Equal(got, want) {
		t.Errorf("killed %v, want %v", got, want)
	}
}

// If the remaining time is too short, each bucket gets a proportional part of the time. A bucket
// without pods gets no time.
func TestAShortTimeIsCutInProportion(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(time.Minute, 0, 1000, 2000))
	r := newRun(n.engine, agentstate.Local{}, nil)
	r.table[1].Period = 3 * time.Minute
	r.deadline = time.Now().Add(2 * time.Minute)
	list := []*pod{{bucket: 0, running: []container{{}}}, {bucket: 1, running: []container{{}}}}
	if got := time.Until(r.endOf(0, list)); got > 30*time.Second || got < 29*time.Second {
		t.Errorf("the first bucket has %s, want a quarter of 2m", got)
	}
	r.deadline = time.Now().Add(5 * time.Minute)
	if got := time.Until(r.endOf(0, list)); got > time.Minute || got < 59*time.Second {
		t.Errorf("the first bucket has %s, want its period", got)
	}
}

func TestDeadlineIsOver(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(time.Minute, 0), newPod("a", 0, ends(-1)))
	if err := n.engine.End(t.Context(), agentstate.Local{}, time.Now().Add(-time.Second), n.next); err == nil {
		t.Error("got no error for a deadline in the past")
	}
	is.True(t, n.kubelet.stops == 0, "the kubelet was stopped for nothing")
}

func TestDeadlineEndsTheLastBucket(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(time.Minute, 0, 1000), newPod("a", 0, ends(-1)), newPod("b", 1000, ends(-1)))
	deadline := time.Now().Add(700 * time.Millisecond)
	// The context of the caller may end at the same time.
	ctx, cancel := context.WithDeadline(t.Context(), deadline)
	defer cancel()
	if err := n.engine.End(ctx, agentstate.Local{}, deadline, n.next); err != nil {
		t.Error(err)
	}
	if late := time.Since(deadline); late < -slow || late > slow {
		t.Errorf("returned %s after the deadline, want at it", late)
	}
	// There is no time to wait for the first bucket, but its pods get the stop signal.
	if got := n.stops(); len(got) != 2 {
		t.Errorf("stopped %v, want both", got)
	}
	if diff := cmp.Diff([]progress{{Bucket: 1}, {Bucket: 2, Done: true}}, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}
