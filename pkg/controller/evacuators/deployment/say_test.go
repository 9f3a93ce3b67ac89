// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestFirstReport checks when an Evacuation first hears of a surge, whose turn began at the start.
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
		// down: the surge has not started yet; ready: its replacement is ready.
		down, ready bool
		want, says  string
		// wake is by when the next look is due.
		wake time.Duration
	}{
		"the surge starts immediately": {down: true, want: "scale to 2 for 1;", wake: 2 * sayEvery},
		"it goes on":                   {after: 4 * time.Second, wake: 2 * sayEvery},
		"it is over before":            {after: 4 * time.Second, ready: true, want: "lower web-0;"},
		"it takes longer":              {after: 2 * sayEvery, says: "is not ready"},
		"it starts late":               {after: 2 * sayEvery, down: true, want: "scale to 2 for 1;", says: "is scaled from 1 to 2"},
		"it has been told of": {
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
