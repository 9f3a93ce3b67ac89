// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/testing/is"
)

var now = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// Text returns lines without colors.
func Text(lines []screen.Line) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(strings.TrimRight(screen.Escape(line.Text), " ") + "\n")
	}
	return b.String()
}

func TestPace(t *testing.T) {
	for name, test := range map[string]struct {
		pace      pace
		pods      int
		perMinute int
		wantETA   time.Duration
	}{
		"pods leave steadily":                         {pace{30, time.Minute}, 15, 30, 30 * time.Second},
		"a drain that has just begun has a pace, too": {pace{5, 10 * time.Second}, 20, 30, 40 * time.Second},
		"the pace is unknown in the first second":     {pace{5, time.Second / 2}, 20, 0, 0},
		"the pace is unknown if no pod has left":      {pace{0, time.Minute}, 20, 0, 0},
		"without pods, no time is left":               {pace{30, time.Minute}, 0, 30, 0},
		"the time is at least a second":               {pace{6000, time.Minute}, 1, 6000, time.Second},
		"very many pods do not overflow":              {pace{1, time.Minute}, 150_000, 1, 150_000 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, test.pace.perMinute(), test.perMinute, "a minute")
			is.Equal(t, test.pace.forPods(test.pods), test.wantETA, "to go")
		})
	}
}

// TestDeparturesOfBefore checks that pods that left the node under another maintenance do not
// count.
func TestDeparturesOfBefore(t *testing.T) {
	nm := &v1alpha1.NodeMaintenance{Status: v1alpha1.NodeMaintenanceStatus{
		StageStatuses: []v1alpha1.StageStatus{
			{Name: v1alpha1.NodeMaintenanceStageDrain, StartTimestamp: new(metav1.NewTime(now))},
		},
		NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "a"}}},
	}}
	complete := func(pod, node, reason string, at time.Time) v1alpha1.Evacuation {
		return v1alpha1.Evacuation{
			Spec: v1alpha1.EvacuationSpec{
				NodeName: node, PodRef: v1alpha1.PodReference{Name: pod, UID: types.UID(pod)},
			},
			Status: v1alpha1.EvacuationStatus{Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: reason,
				LastTransitionTime: metav1.NewTime(at),
			}}},
		}
	}
	var d Departures
	d.See(nm, []v1alpha1.Evacuation{
		complete("gone", "a", v1alpha1.ReasonPodDeleted, now.Add(time.Second)),
		complete("gone", "a", v1alpha1.ReasonPodDeleted, now.Add(time.Second)),
		complete("finished", "a", v1alpha1.ReasonPodTerminated, now.Add(2*time.Second)),
		complete("earlier", "a", v1alpha1.ReasonPodDeleted, now.Add(-time.Second)),
		complete("elsewhere", "b", v1alpha1.ReasonPodDeleted, now.Add(time.Second)),
		complete("cancelled", "a", v1alpha1.ReasonCancelled, now.Add(time.Second)),
		{Spec: v1alpha1.EvacuationSpec{NodeName: "a"}},
	})
	if all, late := d.from("a"), d.since(now.Add(2*time.Second), nil); all != 2 || late != 1 {
		t.Errorf("%d pods have left, %d of them late, want 2 and 1", all, late)
	}
}

// TestDeparturesOfPodsThatComeBack checks that pods that leave, are recreated on the node and leave
// again do not count.
func TestDeparturesOfPodsThatComeBack(t *testing.T) {
	nm := &v1alpha1.NodeMaintenance{Status: v1alpha1.NodeMaintenanceStatus{
		StageStatuses: []v1alpha1.StageStatus{
			{Name: v1alpha1.NodeMaintenanceStageDrain, StartTimestamp: new(metav1.NewTime(now))},
		},
		NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "a"}}},
	}}
	departure := func(pod, app string, created, gone int) v1alpha1.Evacuation {
		e := v1alpha1.Evacuation{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", CreationTimestamp: metav1.NewTime(now.Add(time.Duration(created) * time.Second))},
			Spec:       v1alpha1.EvacuationSpec{NodeName: "a", PodRef: v1alpha1.PodReference{Name: pod, UID: types.UID(pod)}},
			Status: v1alpha1.EvacuationStatus{Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPodDeleted,
				LastTransitionTime: metav1.NewTime(now.Add(time.Duration(gone) * time.Second)),
			}}},
		}
		if app != "" {
			e.Labels = map[string]string{"app": app}
		}
		return e
	}
	for name, test := range map[string]struct {
		evacuations []v1alpha1.Evacuation
		want        int
	}{
		"pods of one wave": {[]v1alpha1.Evacuation{departure("1", "web", 1, 2), departure("2", "web", 1, 9), departure("3", "web", 2, 9)}, 3},
		"a pod that came back twice": {
			[]v1alpha1.Evacuation{departure("3", "web", 8, 9), departure("2", "web", 5, 6), departure("1", "web", 1, 2)}, 1,
		},
		"pods of another app in a later wave": {[]v1alpha1.Evacuation{departure("1", "web", 1, 2), departure("2", "db", 5, 9)}, 2},
		"pods without labels":                 {[]v1alpha1.Evacuation{departure("1", "", 1, 2), departure("2", "", 5, 9)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var d Departures
			d.See(nm, test.evacuations)
			d.See(nm, test.evacuations)
			if got := d.from("a"); got != test.want || len(d.all()) != test.want {
				t.Errorf("got %d departures, %d of them with a time, want %d", got, len(d.all()), test.want)
			}
		})
	}
}

// TestGone tests the number of departed pods with different information about them.
func TestGone(t *testing.T) {
	seen := func(pods int) *Departures {
		return &Departures{byNode: map[string]int{"a": pods}}
	}
	for name, test := range map[string]struct {
		node       v1alpha1.NodeMaintenanceNodeStatus
		departures *Departures
		want       int
		known      bool
	}{
		"the plugin has read all Evacuations": {
			node: v1alpha1.NodeMaintenanceNodeStatus{PodsPendingEvacuation: 3, PodsPeak: 10}, departures: seen(7),
			want: 7, known: true,
		},
		"the Evacuations of most are gone": {
			node: v1alpha1.NodeMaintenanceNodeStatus{PodsPendingEvacuation: 3, PodsPeak: 10}, departures: seen(2),
			want: 7, known: true,
		},
		"Evacuations may not be read": {
			node: v1alpha1.NodeMaintenanceNodeStatus{PodsPendingEvacuation: 3, PodsEvacuating: 1, PodsPeak: 10},
			want: 6, known: true,
		},
		"new pods were created meanwhile": {
			node: v1alpha1.NodeMaintenanceNodeStatus{PodsPendingEvacuation: 9, PodsPeak: 10}, departures: seen(7),
			want: 7, known: true,
		},
		"a server that keeps no peak, and no rights": {
			node: v1alpha1.NodeMaintenanceNodeStatus{PodsPendingEvacuation: 3}, want: 0,
		},
		"a server that keeps no peak": {
			node: v1alpha1.NodeMaintenanceNodeStatus{PodsPendingEvacuation: 3}, departures: seen(2), want: 2,
			known: true,
		},
		"the drain has begun": {
			node: v1alpha1.NodeMaintenanceNodeStatus{PodsPendingEvacuation: 10, PodsPeak: 10}, departures: seen(0),
			want: 0, known: true,
		},
		"the counters are out of date": {
			node: v1alpha1.NodeMaintenanceNodeStatus{PodsEvacuating: 4, PodsPeak: 10}, departures: seen(0), want: 10,
			known: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.node.NodeRef.Name = "a"
			f := Facts{
				Maintenance: &v1alpha1.NodeMaintenance{
					Status: v1alpha1.NodeMaintenanceStatus{
						NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{test.node},
					},
				},
				Departures: test.departures,
			}
			if got := f.gone(&test.node); got != test.want || f.knowsGone() != test.known {
				t.Errorf("%d have left (known: %v), want %d (%v)", got, f.knowsGone(), test.want, test.known)
			}
		})
	}
}

// TestWithdrawnPodsHaveNotLeft reads a status that is older than the withdrawal of two Evacuations.
func TestWithdrawnPodsHaveNotLeft(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.NodeMaintenance){
		"by a pause":                        func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused, nm.Status.ObservedGeneration = true, 2 },
		"by a pause that has ended already": func(*v1alpha1.NodeMaintenance) {},
	} {
		t.Run(name, func(t *testing.T) {
			nm := inStage(drain)
			nm.Generation, nm.Status.ObservedGeneration = 2, 1
			nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{PodsEvacuating: 2, PodsPeak: 5}}
			change(nm)
			f := Facts{Maintenance: nm, Departures: &Departures{}, Now: now}
			is.Equal(t, f.gone(&nm.Status.NodeStatuses[0]), 3, "the number of pods that have left")
		})
	}
}

func TestWrap(t *testing.T) {
	for name, test := range map[string]struct {
		text    string
		columns int
		want    string
	}{
		"text that fits stays on one line":               {"one two", 20, "  one two\n"},
		"text that does not fit is broken between words": {"one two three", 9, "  one two\n  three\n"},
		"a word that is too long has a line of its own": {
			text: "a pneumonoultramicroscopic b", columns: 10, want: "  a\n  pneumonoultramicroscopic\n  b\n",
		},
		"an empty text has no lines": {"", 10, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Text(wrap("  ", test.text, test.columns, screen.Plain)); got != test.want {
				t.Errorf("got\n%swant\n%s", got, test.want)
			}
		})
	}
}

// TestNote checks that a note leaves room for what it is about.
func TestNote(t *testing.T) {
	o := Options{Columns: 30}
	is.Equal(t, Text(o.Note("")), "")
	is.Equal(t, Text(o.Note("the server is away")), "note: the server is away\n")
	is.Equal(t, Text(o.Note("the server has not answered since 10:00:00Z; retrying (no, and no, and no)")),
		"note: the server has not\nanswered since 10:00:00Z; …\n")
}

// TestManyNodes checks that a long list of nodes is truncated and ends with the number of omitted
// nodes.
func TestManyNodes(t *testing.T) {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.NodeMaintenanceStageDrain},
	}
	for range 5000 {
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: "node"}, PodsEvacuating: 1,
		})
	}
	nm.Status.NodeStatuses[4999].NodeRef.Name, nm.Status.NodeStatuses[4999].PodsBlocked = "worst", 1
	facts := Facts{Maintenance: nm, Departures: &Departures{}, Now: now}
	short, long := Text(Status(facts, Options{})), Text(Status(facts, Options{Wide: true}))
	if !strings.Contains(short, "... 4960 more nodes (-o wide lists all)") || strings.Count(short, "\n") > 60 {
		t.Errorf("got\n%s", short)
	}
	if strings.Index(short, "worst") > strings.Index(short, "node  ") || !strings.Contains(short, "worst") {
		t.Errorf("the blocked node is not the first:\n%s", short)
	}
	is.True(t, strings.Count(long, "\n") >= 5000, "-o wide leaves nodes out")
}

// TestWaits distinguishes pods whose evacuator makes no progress from pods that leave, are blocked
// or wait for an eviction.
func TestWaits(t *testing.T) {
	const flush = "flush.example.com"
	never := time.Duration(-1)
	for name, test := range map[string]struct {
		class string
		// activeFor is the time since the evacuator became active, and reported is the age of its
		// last heartbeat.
		activeFor, reported time.Duration
		modify              func(*v1alpha1.Evacuation)
		want                bool
	}{
		"an evacuator whose heartbeat was 10s ago": {
			class: flush, activeFor: time.Hour, reported: 10 * time.Second, want: true,
		},
		"an evacuator whose heartbeat was 9s ago": {class: flush, activeFor: time.Hour, reported: 9 * time.Second},
		"an evacuator that has not reported in 10s": {
			class: flush, activeFor: 10 * time.Second, reported: never, want: true,
		},
		"an evacuator that became active 9s ago": {class: flush, activeFor: 9 * time.Second, reported: never},
		"no active evacuator":                    {activeFor: time.Minute, reported: never},
		"a pod that will be evicted": {
			class: v1alpha1.EvacuatorClassEviction, activeFor: time.Minute, reported: never,
		},
		"a pod that waits for other pods before its eviction": {
			class: v1alpha1.EvacuatorClassEviction, activeFor: time.Second, reported: never, want: true,
			modify: func(e *v1alpha1.Evacuation) {
				e.Status.Conditions = []metav1.Condition{
					{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPodWaits},
				}
			},
		},
		"a pod that is stopping": {
			class: v1alpha1.EvacuatorClassEviction, activeFor: time.Second, reported: never, want: true,
			modify: func(e *v1alpha1.Evacuation) {
				e.Status.Conditions = []metav1.Condition{
					{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPodStopping},
				}
			},
		},
		"a DaemonSet pod before its wave": {
			class: v1alpha1.EvacuatorClassDaemonSet, activeFor: time.Minute, reported: never,
		},
		"a DaemonSet pod whose evacuator has reported": {
			class: v1alpha1.EvacuatorClassDaemonSet, activeFor: time.Hour, reported: time.Minute, want: true,
		},
		"an evacuator that has completed": {
			class: flush, activeFor: time.Hour, reported: time.Minute,
			modify: func(e *v1alpha1.Evacuation) {
				e.Status.ActiveEvacuatorCompleted = true
			},
		},
		"an Evacuation that was withdrawn": {
			class: flush, activeFor: time.Hour, reported: time.Minute,
			modify: func(e *v1alpha1.Evacuation) {
				e.DeletionTimestamp = new(metav1.NewTime(now))
			},
		},
		"an evacuator with no recorded time": {class: flush, activeFor: never, reported: never},
		"a pod that is blocked": {
			class: flush, activeFor: time.Hour, reported: time.Minute,
			modify: func(e *v1alpha1.Evacuation) {
				e.Status.Conditions = []metav1.Condition{
					{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue},
				}
			},
		},
		"a pod that has left": {
			class: flush, activeFor: time.Hour, reported: time.Minute,
			modify: func(e *v1alpha1.Evacuation) {
				e.Status.Conditions = []metav1.Condition{
					{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue},
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			// The plugin must not parse the time in the message, which is only a text for users.
			e := &v1alpha1.Evacuation{Status: v1alpha1.EvacuationStatus{
				ActiveEvacuatorClass: test.class,
				Message:              test.class + " is active since 2026-11-21T10:00:00Z: it is the first evacuator.",
			}}
			if test.activeFor != never {
				e.Status.ActiveEvacuatorSince = new(metav1.NewTime(now.Add(-test.activeFor)))
			}
			if test.reported != never {
				e.Status.EvacuationProgressTimestamp = new(metav1.NewTime(now.Add(-test.reported)))
			}
			if test.modify != nil {
				test.modify(e)
			}
			is.Equal(t, Waits(e, now), test.want, "it waits")
		})
	}
}

// TestWavesThatAreOver checks that a terminal that is too small for all waves hides first the waves
// that are over, up to the first one with pods: a late pod of an early wave is shown.
func TestWavesThatAreOver(t *testing.T) {
	for name, test := range map[string]struct {
		left []int32
		rows int
		want string
	}{
		"the first waves are over":    {[]int32{0, 0, 4, 5}, 2, "  2 earlier waves are done\n  WAVE 5\n  WAVE 7"},
		"a late pod of the first one": {[]int32{1, 0, 4, 5}, 2, "  WAVE 1\n  WAVE 2\n  ... 2 more waves"},
		"a late pod of the second":    {[]int32{0, 2, 4, 5}, 2, "  1 earlier wave is done\n  WAVE 2\n  WAVE 5\n  ... 1 more wave"},
	} {
		t.Run(name, func(t *testing.T) {
			nm := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.NodeMaintenanceStageDrain}}
			nm.Spec.DrainPlan = make([]v1alpha1.DrainPlanEntry, 8)
			for i, left := range test.left {
				nm.Status.Waves = append(nm.Status.Waves, v1alpha1.NodeMaintenanceWave{Entry: []int32{0, 1, 4, 6}[i], PodsPeak: 5, PodsLeft: left})
			}
			l := layout{f: &Facts{Maintenance: nm, Now: now}}
			l.addProgress(l.f.count(), nil)
			lines := strings.Split(strings.TrimSpace(Text(l.waveLines(test.rows))), "\n")
			for i, line := range lines {
				if at := strings.Index(line, "WAVE "); at >= 0 {
					lines[i] = "  " + line[at:at+len("WAVE 1")]
				} else {
					lines[i] = "  " + strings.TrimSpace(line)
				}
			}
			is.Equal(t, strings.Join(lines, "\n"), test.want, "waves")
		})
	}
}
