// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// apart is how far the clocks of two leaders are apart in these tests.
const apart = 5 * time.Minute

// leaders has how far the clocks of the first and of the second leader are ahead.
var leaders = map[string][2]time.Duration{
	"the first is ahead":   {apart, 0},
	"the first is behind":  {-apart, 0},
	"the second is ahead":  {0, apart},
	"the second is behind": {0, -apart},
}

// takeOver starts another leader after the end of the present one. Its clock is ahead by some time.
func (w *world) takeOver(ahead time.Duration) {
	w.Helper()
	w.stop()
	w.ahead = ahead
	w.start()
}

// negative matches a duration below zero. No time and no name in these tests looks like one.
var negative = regexp.MustCompile(`-[0-9.]+(ms|[smh])`)

// tellsNoNegativeDuration checks the texts of the status and of the events since the last call.
func (w *world) tellsNoNegativeDuration() {
	w.Helper()
	status := string(must.Get(json.Marshal(w.rollout().Status))(w))
	for _, text := range append(w.told(), status) {
		is.True(w, !negative.MatchString(text), "a negative duration in %q", text)
	}
}

// TestLeaderWithAnotherClock has a second leader that finds units of all kinds: one that is done,
// one that a worker has, one that is drained, and one that waits. It goes on as the first one
// would, and starts no unit again.
func TestLeaderWithAnotherClock(t *testing.T) {
	for name, ahead := range leaders {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newNode("a"), newNode("b"), newNode("c"), newNode("d"), newRollout())
			w.scripts["b"], w.scripts["c"] = claimed, drainStuck
			most := 0
			w.played = func() { most = max(most, w.out()) }
			w.ahead = ahead[0]
			w.start()
			w.untilPhase("b", v1alpha1.RolloutPhaseClaimed)
			w.untilPhase("c", v1alpha1.RolloutPhaseDraining)
			before := map[string]*v1alpha1.NodeMaintenance{}
			for _, nm := range w.maintenances() {
				before[nm.Name] = nm
			}

			w.takeOver(ahead[1])
			w.rest(time.Minute)
			is.Equal(t, w.phase("b"), v1alpha1.RolloutPhaseClaimed)
			is.Equal(t, w.phase("c"), v1alpha1.RolloutPhaseDraining)
			is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 4, Done: 1, Running: 2, Waiting: 1})
			w.tellsNoNegativeDuration()

			w.scripts["b"], w.scripts["c"] = "", ""
			resumed := time.Now()
			w.untilReason(v1alpha1.ReasonRolloutComplete)
			is.True(t, time.Since(resumed) < time.Minute, "the units that were left took %s", time.Since(resumed))
			is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 4, Done: 4})
			is.Equal(t, most, 2, "nodes that are out, at most")
			var names []string
			for _, nm := range w.maintenances() {
				names = append(names, nm.Name)
				is.True(t, before[nm.Name] == nil || before[nm.Name].UID == nm.UID, "%s was created again", nm.Name)
			}
			slices.Sort(names)
			is.Equal(t, strings.Join(names, " "), "kernel-a-1 kernel-b-1 kernel-c-1 kernel-d-1")
			w.tellsNoNegativeDuration()
		})
	}
}

// TestWaitsAcrossClocks: the leader changes while a unit waits by a stored time. The wait is never
// longer by more than the clocks are apart. A soak and a deadline are not shorter, as long as they
// are not longer than LeaderPatience.
func TestWaitsAcrossClocks(t *testing.T) {
	// late is the time of a takeover, and of the steps of the test.
	const late = 20 * time.Second
	for what, test := range map[string]struct {
		script string
		// wait is how long the unit waits, and least how long it waits at least.
		wait, least time.Duration
		// begins and ends report whether the wait has begun, and has ended.
		begins, ends func(w *world) bool
		// attempts is the number of maintenances afterwards.
		attempts int
	}{
		"a unit that soaks": {
			wait: apart, least: apart,
			begins: func(w *world) bool { return w.phase("a") == v1alpha1.RolloutPhaseSoaking },
			ends:   func(w *world) bool { return w.phase("a") == "" }, attempts: 1,
		},
		"a drain that does not move": {
			script: drainStuck, wait: apart, least: apart,
			begins: func(w *world) bool { return w.phase("a") == v1alpha1.RolloutPhaseDraining },
			ends:   func(w *world) bool { return v1alpha1.IsEnding(w.maintenance("kernel-a-1")) }, attempts: 1,
		},
		"a blocked unit": {
			script: drainStuck, wait: 10 * time.Minute, least: 10*time.Minute - apart,
			begins: func(w *world) bool {
				nm := w.maintenance("kernel-a-1")
				return nm != nil && v1alpha1.IsDone(nm)
			},
			ends: func(w *world) bool { return w.maintenance("kernel-a-2") != nil }, attempts: 2,
		},
	} {
		for name, ahead := range leaders {
			bubble.Run(t, what+", "+name, func(t *testing.T) {
				w := newWorld(t, newNode("a"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
					r.Spec.SoakSeconds, r.Spec.ProgressDeadlineSeconds = int32(test.wait.Seconds()), new(int32(test.wait.Seconds()))
				}))
				w.scripts["a"], w.ahead = test.script, ahead[0]
				w.start()
				w.until("the wait begins", 5*time.Second, func() bool { return test.begins(w) })
				began := time.Now()
				w.takeOver(ahead[1])
				w.until("the wait ends", 5*time.Second, func() bool { return test.ends(w) })
				took := time.Since(began)
				is.True(t, took >= test.least-late && took <= test.wait+apart+late, "it took %s, want %s to %s", took, test.least, test.wait+apart)
				is.Equal(t, len(w.maintenances()), test.attempts, "maintenances")
				w.tellsNoNegativeDuration()
			})
		}
	}
}

// TestMetricOfAPhaseThatBeganAhead has a phase that a leader has begun whose clock is ahead.
func TestMetricOfAPhaseThatBeganAhead(t *testing.T) {
	registerMetrics()
	now := time.Now()
	c := &Controller{Config: Config{Clock: clocktesting.NewFakeClock(now)}}
	metric := phaseDuration.WithLabelValues("Ahead")
	before := must.Get(testutil.GetHistogramMetricCount(metric))(t)
	c.observePhase(&v1alpha1.RolloutUnit{Phase: "Ahead", Since: metav1.NewTime(now.Add(apart))})
	is.Equal(t, must.Get(testutil.GetHistogramMetricCount(metric))(t), before+1, "phases")
	is.Equal(t, must.Get(testutil.GetHistogramMetricValue(metric))(t), 0, "seconds")
}
