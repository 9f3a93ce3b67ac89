// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestFailedSurgesAreTriedAgain has reasons to decline that no event ends.
func TestFailedSurgesAreTriedAgain(t *testing.T) {
	refusedFor := func(declined int) func(*situation) {
		return func(s *situation) {
			s.refused = refusal{since: start, text: "a webhook refuses it", declined: declined}
		}
	}
	missed := func(times int) func(*situation) {
		return func(s *situation) { s.memory.misses, s.memory.missedAt = times, start.Add(5*time.Minute) }
	}
	for name, tc := range map[string]struct {
		mod  func(*situation)
		rest time.Duration
	}{
		"scaling was refused for the whole timeout": {refusedFor(0), 5 * time.Minute},
		"scaling was refused again":                 {refusedFor(1), 10 * time.Minute},
		"scaling was refused all day":               {refusedFor(50), time.Hour},
		"two scale-downs removed other pods":        {missed(2), 5 * time.Minute},
		"three scale-downs removed other pods":      {missed(3), 10 * time.Minute},
	} {
		for state, mods := range map[string][]podMod{
			"blocked":             {leaves(lanes), blocked, minOne(1, 1)},
			"up for eviction":     {leaves(lanes), minOne(1, 1)},
			"still our evacuator": {leaves(ours), minOne(1, 1)},
		} {
			t.Run(name+", "+state, func(t *testing.T) {
				end := 5*time.Minute + tc.rest
				s := at(end-time.Second, newDeployment(1), newTestPod("web-0", mods...))
				tc.mod(&s)
				d := decide(s)
				if d.scale != nil || d.idle || len(d.reports) > 0 && d.reports[0].takesUp || !d.wake.Equal(start.Add(end)) {
					t.Errorf("before the end of the rest: got %q, %+v, wake %s; want it to wait until %s", summary(d), d.reports, d.wake, start.Add(end))
				}
				s = at(end, newDeployment(1), newTestPod("web-0", mods...))
				tc.mod(&s)
				d = decide(s)
				if state == "blocked" && (len(d.reports) != 1 || !d.reports[0].takesUp) || state == "still our evacuator" && summary(d) != "scale to 2 for 1;" {
					t.Errorf("after the rest: got %q, %+v", summary(d), d.reports)
				}
				if state == "blocked" && d.memory.misses != s.memory.misses {
					t.Errorf("%d misses are left of %d", d.memory.misses, s.memory.misses)
				}
			})
		}
	}
	t.Run("a further refusal doubles the rest", func(t *testing.T) {
		key, known := types.NamespacedName{Namespace: testNamespace, Name: testName}, newTracked()
		for _, tc := range []struct{ at, retry time.Duration }{
			{0, 10 * time.Minute}, {time.Minute, 10 * time.Minute}, {10 * time.Minute, 20 * time.Minute},
			{11 * time.Minute, 20 * time.Minute}, {21 * time.Minute, 41 * time.Minute},
		} {
			known.scaleFailed(key, "a webhook refuses it", start.Add(tc.at), 5*time.Minute)
			if got := known.get(key).refused.retryAt(5 * time.Minute); !got.Equal(start.Add(tc.retry)) {
				t.Errorf("failed after %s: tried again at %s, want %s", tc.at, got, start.Add(tc.retry))
			}
		}
	})
}
