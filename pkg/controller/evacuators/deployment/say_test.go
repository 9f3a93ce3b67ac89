// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestFirstReport checks when an Evacuation for which this evacuator has been active since the
// start gets its first report.
func TestFirstReport(t *testing.T) {
	up := newDeployment(2, recorded(1, 2, web0))
	replacement := newTestPod("web-1", fresh, unready)
	within := func(seconds int32) podMod {
		return func(p *pod) { p.evacuation.Spec.ProgressDeadlineSeconds = ptr.To(seconds) }
	}
	heard := func(p *pod) { p.evacuation.Status.EvacuationProgressTimestamp = &metav1.Time{Time: start} }
	for name, tc := range map[string]struct {
		after time.Duration
		mods  []podMod
		// down: the surge has not started yet. ready: the replacement of the pod is ready.
		down, ready bool
		want, says  string
		// wake is the latest time at which the next sync must be due.
		wake time.Duration
	}{
		"the surge starts immediately": {down: true, want: "scale to 2 for 1;", wake: sayFirst},
		"it is in progress":            {after: 4 * time.Second, wake: sayFirst},
		"it ends before the report":    {after: 4 * time.Second, ready: true, want: "lower web-0;"},
		"it takes longer":              {after: sayFirst, says: "is not ready"},
		"it starts late":               {after: sayFirst, down: true, want: "scale to 2 for 1;", says: "is scaled from 1 to 2"},
		"it was reported before": {
			down: true, mods: []podMod{heard}, want: "scale to 2 for 1;", says: "is scaled from 1 to 2",
		},
		"the deadline is short": {mods: []podMod{within(4)}, wake: time.Second},
		"a quarter of a short one has passed": {
			after: time.Second, mods: []podMod{within(4)}, says: "is scaled from 1 to 2",
		},
		"the shortest deadline leaves no time": {
			after: time.Second, mods: []podMod{within(1)}, says: "is scaled from 1 to 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			leaving := newTestPod("web-0", append([]podMod{leaves(ours)}, tc.mods...)...)
			s := at(tc.after, up, leaving, replacement)
			if tc.ready {
				s = at(tc.after, up, leaving, newTestPod("web-1", fresh))
			}
			if tc.down {
				s = at(tc.after, newDeployment(1), leaving)
			}
			s.startDeadline = 5 * time.Minute
			d := decide(s)
			check(t, d, tc.want, tc.says)
			if tc.wake != 0 && (d.wake.IsZero() || d.wake.After(start.Add(tc.wake))) {
				t.Errorf("wakes at %s, want no later than %s", d.wake, start.Add(tc.wake))
			}
		})
	}
}

// TestHighestScore checks that each surge starts with a new score.
func TestHighestScore(t *testing.T) {
	for name, tc := range map[string]struct {
		s    situation
		want *int
	}{
		"a surge begins at 0":            {at(0, newDeployment(1), newTestPod("web-0", leaves(ours))), ptr.To(0)},
		"no score remains after a surge": {at(9*time.Second, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-1", fresh), newTestPod("web-2", fresh)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			tc.s.memory.highest = ptr.To(9)
			if got := decide(tc.s).memory.highest; !ptr.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", ptr.Deref(got, -1), ptr.Deref(tc.want, -1))
			}
		})
	}
}

// TestProgressThatIsHeldBackIsReportedLater: there is progress shortly after the last report. Only
// a pod without a report gets one immediately.
func TestProgressThatIsHeldBackIsReportedLater(t *testing.T) {
	s := at(9*time.Second, newDeployment(4, recorded(2, 4, web0, "uid-web-1-web-1"), surging("2")),
		newTestPod("web-0", leaves(ours), minOne(4, 2), reported(8*time.Second)), newTestPod("web-1", leaves(ours), minOne(4, 2)),
		newTestPod("web-2", fresh, unready), newTestPod("web-3", fresh, unready))
	s.memory.saidAt = start.Add(8 * time.Second)
	d := decide(s)
	if len(d.reports) != 1 || d.reports[0].evacuation.Spec.PodRef.Name != "web-1" {
		t.Fatalf("reported %+v, want a report to web-1 alone", d.reports)
	}
	due := start.Add(8*time.Second + sayEvery)
	if !d.wake.Equal(due) {
		t.Errorf("wakes at %s, want %s", d.wake, due)
	}
	s.now, s.memory = due, d.memory
	d = decide(s)
	if len(d.reports) != 2 || !d.reports[0].progress {
		t.Errorf("reported %+v, want progress to both", d.reports)
	}
}
