// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/is"
)

// within sets the progress deadline of the Evacuation.
func within(seconds int32) podMod {
	return func(p *pod) { p.evacuation.Spec.ProgressDeadlineSeconds = ptr.To(seconds) }
}

// TestFirstReport checks when an Evacuation for which this evacuator has been active since the
// start gets its first report.
func TestFirstReport(t *testing.T) {
	up := newDeployment(2, recorded(1, 2, web0))
	replacement := newTestPod("web-1", fresh, unready)
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

// twoLeaving returns the situation of a surge that has made progress since the last report, which
// was at the start. Its two pods wait for their replacements.
func twoLeaving(after time.Duration, mods ...podMod) situation {
	mods = append([]podMod{leaves(ours), minOne(4, 2), reported(0)}, mods...)
	s := at(after, newDeployment(4, recorded(2, 4, web0, "uid-web-1-web-1"), surging("2")),
		newTestPod("web-0", mods...), newTestPod("web-1", mods...), newTestPod("web-2", fresh, unready), newTestPod("web-3", fresh, unready))
	s.memory.saidAt = start
	return s
}

// TestProgressThatIsHeldBackIsReportedLater: there is progress shortly after the last report. Only
// a pod without a report gets one immediately.
func TestProgressThatIsHeldBackIsReportedLater(t *testing.T) {
	s := twoLeaving(time.Second)
	s.pods[1].evacuation.Status.EvacuationProgressTimestamp = nil
	d := decide(s)
	if len(d.reports) != 1 || d.reports[0].evacuation.Spec.PodRef.Name != "web-1" {
		t.Fatalf("reported %+v, want a report to web-1 alone", d.reports)
	}
	due := start.Add(sayFirst)
	if !d.wake.Equal(due) {
		t.Errorf("wakes at %s, want %s", d.wake, due)
	}
	s.now, s.memory = due, d.memory
	d = decide(s)
	if len(d.reports) != 2 || !d.reports[0].progress {
		t.Errorf("reported %+v, want progress to both", d.reports)
	}
}

// TestReportsWaitWhilePodsLeave checks how long after a report the next one follows.
func TestReportsWaitWhilePodsLeave(t *testing.T) {
	for name, tc := range map[string]struct {
		// left is how long pods leave after the report.
		left time.Duration
		mods []podMod
		want time.Duration
	}{
		"no pod leaves":                   {want: sayFirst},
		"pods leave for some time":        {left: 20 * time.Second, want: 20*time.Second + sayFirst},
		"pods leave all the time":         {left: time.Hour, want: 150 * time.Second},
		"the deadline is a minute":        {left: time.Hour, mods: []podMod{within(60)}, want: 30 * time.Second},
		"the deadline is a few seconds":   {left: time.Hour, mods: []podMod{within(6)}, want: sayEvery},
		"no pod leaves before a deadline": {mods: []podMod{within(60)}, want: sayFirst},
	} {
		t.Run(name, func(t *testing.T) {
			for _, after := range []time.Duration{tc.want - time.Second, tc.want} {
				s := twoLeaving(after, tc.mods...)
				s.memory.delivered = start.Add(min(tc.left, after))
				d := decide(s)
				is.Equal(t, len(d.reports), map[bool]int{true: 2}[after == tc.want], fmt.Sprintf("reports after %s", after))
				is.True(t, after == tc.want || d.wake.Equal(start.Add(tc.want)), "wakes at %s", d.wake)
			}
		})
	}
}

// TestReportWithoutProgressDoesNotDelayProgress: pods leave, and there has been no progress for
// long when a text without progress is reported. Progress is then reported before the surge times
// out.
func TestReportWithoutProgressDoesNotDelayProgress(t *testing.T) {
	s := twoLeaving(297 * time.Second)
	s.memory.saidAt, s.memory.delivered = start.Add(290*time.Second), start.Add(295*time.Second)
	s.memory.highest = ptr.To(2)
	d := decide(s)
	is.Equal(t, len(d.reports), 2, "reports")
}

// TestOldRefusalsAreNotQuoted covers a pod that a webhook has refused, and for which the API server
// is not asked again, since another pod is not ready.
func TestOldRefusalsAreNotQuoted(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration
		want  bool
	}{
		"the answer still counts":        {denyRetry - time.Second, true},
		"the next answer is due":         {denyRetry, true},
		"the next answer is not overdue": {2*denyRetry - time.Second, true},
		"the next answer is overdue":     {2 * denyRetry, false},
	} {
		t.Run(name, func(t *testing.T) {
			never := under(nil, ptrTo(0), 3, 2)
			s := at(tc.after, newDeployment(3, recorded(2, 3, web0), always), newTestPod("web-0", leaves(ours), reported(tc.after), never),
				newTestPod("web-1", unready, readyFor(2*sickAfter), never), newTestPod("web-2", fresh, never))
			d := decide(answeredFor("web-0", eviction.ConsentDenied, start, s))
			check(t, d, "", "the pod waits until pod web-1 is ready or deleted")
			is.Equal(t, strings.Contains(d.reports[0].message, "The eviction is refused for now: not today."), tc.want, "quotes the refusal")
		})
	}
}

// TestPodsOfAScaleDownGetNoReport: the pods that a scale-down deletes get no report if they are
// deleted soon.
func TestPodsOfAScaleDownGetNoReport(t *testing.T) {
	end := 3 * time.Minute
	replacement := newTestPod("web-1", fresh)
	s := at(end, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", leaves(ours), cheapest, reported(time.Minute)), replacement)
	s.memory.saidAt = start.Add(end - sayFirst)
	d := decide(s)
	check(t, d, "back to 1;", "")
	for after, says := range map[time.Duration]string{time.Second: "", sayFirst: "it has 2 pods and should have 1"} {
		s := at(end+after, newDeployment(1), newTestPod("web-0", leaves(ours), cheapest, reported(time.Minute)), replacement)
		s.memory = d.memory
		check(t, decide(s), "", says)
	}
}

// TestPodsThatJoinASurge covers a pod that joins a surge whose pods leave all the time. If the pod
// has had a report, the next one is the heartbeat.
func TestPodsThatJoinASurge(t *testing.T) {
	const joins = 150 * time.Second
	highest := 0
	decided := func(after time.Duration, names []string, mods ...podMod) decision {
		mods = append([]podMod{leaves(ours), minOne(4, 2)}, mods...)
		s := at(after, newDeployment(4, recorded(2, 4, names...), surging("2")), newTestPod("web-0", leaves(ours), minOne(4, 2), reported(joins)),
			newTestPod("web-1", mods...), newTestPod("web-2", fresh, unready), newTestPod("web-3", fresh, unready))
		s.memory.saidAt, s.memory.delivered, s.memory.highest = start.Add(joins), s.now, &highest
		return decide(s)
	}
	for name, tc := range map[string]struct {
		mods []podMod
		want int
	}{
		"it has had no report":                           {nil, 1},
		"less than half of the surge timeout has passed": {[]podMod{reported(time.Second)}, 0},
		"half of the surge timeout has passed":           {[]podMod{reported(0)}, 1},
		"less than half of its deadline has passed":      {[]podMod{reported(2 * time.Minute), within(62)}, 0},
		"half of its deadline has passed":                {[]podMod{reported(2 * time.Minute), within(60)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := decided(joins, []string{web0}, tc.mods...)
			is.Equal(t, summary(d), "scale to 4 for 2;", "decided")
			is.Equal(t, len(d.reports), tc.want, "reports")
		})
	}
	t.Run("replacements were lost, so the next heartbeat is not about progress", func(t *testing.T) {
		highest = 9
		defer func() { highest = 0 }()
		is.Equal(t, len(decided(joins, []string{web0}, reported(time.Second)).reports), 1, "reports")
	})
	t.Run("the heartbeat", func(t *testing.T) {
		const beats = 210 * time.Second
		d := decided(beats-time.Second, []string{web0, web1}, reported(time.Minute))
		is.Equal(t, len(d.reports), 0, "reports before it")
		is.True(t, !d.wake.IsZero() && !d.wake.After(start.Add(beats)), "wakes at %s", d.wake)
		d = decided(beats, []string{web0, web1}, reported(time.Minute))
		is.Equal(t, len(d.reports), 2, "reports")
		for _, r := range d.reports {
			is.True(t, r.progress && strings.HasPrefix(r.message, "Deployment web is scaled from 2 to 4"), "reports %+v", r)
		}
	})
}

// TestALargeDrainNeedsFewReports replaces 600 pods in two and a half minutes. In addition to its
// completion, each of them gets at most the first report, and one while its exchange waits for the
// evictions of other pods.
func TestALargeDrainNeedsFewReports(t *testing.T) {
	const pods = 600
	w := newLargeWorld(t, 20, pods)
	w.tick = 250 * time.Millisecond
	for len(w.leaving) > 0 {
		w.step()
	}
	most := 0
	for _, n := range w.told {
		most = max(most, n)
	}
	t.Logf("%d reports of progress to %d pods, at most %d to one", w.reports-pods, len(w.told), most)
	is.True(t, most <= 2, "%d reports of progress to one pod, want at most 2", most)
	is.True(t, w.reports-pods <= pods, "%d reports of progress, want at most %d", w.reports-pods, pods)
}
