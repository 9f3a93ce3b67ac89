// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestDecideProgress(t *testing.T) {
	const silent = "EvacuatorNotProgressing"
	wasSilent := withCondition(maintenancev1alpha1.ConditionBlocked, silent, 0)
	servingSince := func(at time.Duration) func(*situation) {
		return func(s *situation) { s.servingSince = start.Add(at) }
	}
	runDecide(t, map[string]decideTest{
		"an evacuator is not blocked before half of the progress deadline": {
			evacuation: newEvacuation(withEvacuators(classA), active(classA), reported(time.Minute, "copying")),
			pod:        newPod(), at: 16*time.Minute - time.Second,
			want: outcome{Active: classA, Progress: time.Minute, Policy: allow, Wake: 16 * time.Minute},
		},
		"an evacuator that does not report for half of the progress deadline is blocked": {
			evacuation: newEvacuation(withEvacuators(classA), active(classA), reported(time.Minute, "copying")),
			pod:        newPod(), at: 16 * time.Minute,
			want: outcome{
				Active: classA, Progress: time.Minute, Policy: allow, Blocked: silent, Wake: 31 * time.Minute,
				Events: EventBlocked,
			},
		},
		"a report clears Blocked": {
			evacuation: newEvacuation(withEvacuators(classA), active(classA), reported(20*time.Minute, "copying"),
				wasSilent),
			pod: newPod(), at: 20 * time.Minute,
			want: outcome{
				Active: classA, Progress: 20 * time.Minute, Policy: allow, Blocked: "not: NotBlocked",
				Wake: 35 * time.Minute,
			},
		},
		"a hand-over clears Blocked": {
			evacuation: newEvacuation(withEvacuators(classA, classB), active(classA), wasSilent), pod: newPod(),
			at: 5 * time.Minute,
			want: outcome{
				Active: classB, Since: 5 * time.Minute, Policy: allow, Blocked: "not: NotBlocked",
				Wake: 7*time.Minute + 30*time.Second, Events: EventHandedOver,
			},
		},
		"a terminating pod clears Blocked": {
			evacuation: newEvacuation(withEvacuators(classA), active(classA), wasSilent),
			pod:        newPod(terminatingUntil(4 * time.Minute)), at: 4 * time.Minute,
			want: outcome{
				Active: classA, Policy: allow, Blocked: "not: NotBlocked", Wake: 4*time.Minute + overdueAfter,
			},
		},
		"a new leader waits for a report of the evacuator": {
			evacuation: newEvacuation(withEvacuators(classA), active(classA), reported(time.Minute, "copying")),
			pod:        newPod(), at: 62 * time.Minute, mod: servingSince(time.Hour),
			want: outcome{Active: classA, Progress: time.Minute, Policy: allow, Wake: 62*time.Minute + 30*time.Second},
		},
		"a new leader that gets no report sets Blocked": {
			evacuation: newEvacuation(withEvacuators(classA), active(classA), reported(time.Minute, "copying")),
			pod:        newPod(), at: 63 * time.Minute, mod: servingSince(time.Hour),
			want: outcome{
				Active: classA, Progress: time.Minute, Policy: allow, Blocked: silent, Wake: 65 * time.Minute,
				Events: EventBlocked,
			},
		},
		"a new leader does not clear Blocked": {
			evacuation: newEvacuation(withEvacuators(classA), active(classA), reported(time.Minute, "copying"),
				wasSilent),
			pod: newPod(), at: 61 * time.Minute, mod: servingSince(time.Hour),
			want: outcome{
				Active: classA, Progress: time.Minute, Policy: allow, Blocked: silent, Wake: 65 * time.Minute,
			},
		},
		"the DaemonSet evacuator does not have to report before the drain reaches the pod": {
			evacuation: newEvacuation(withEvacuators(maintenancev1alpha1.EvacuatorClassDaemonSet),
				active(maintenancev1alpha1.EvacuatorClassDaemonSet)),
			pod: newPod(), at: 2*time.Minute + 29*time.Second,
			want: outcome{
				Active: maintenancev1alpha1.EvacuatorClassDaemonSet, Policy: allow,
				Wake: 2*time.Minute + 30*time.Second,
			},
		},
	})
}

func TestMessageOfAnEvacuatorThatDoesNotProgress(t *testing.T) {
	for name, tc := range map[string]struct {
		mods []func(*maintenancev1alpha1.Evacuation)
		at   time.Duration
		want []string
	}{
		"it names the evacuator, its last report and the next evacuator": {
			mods: []func(*maintenancev1alpha1.Evacuation){reported(time.Minute, "copying")}, at: 20 * time.Minute,
			want: []string{
				"a.example.com has not reported since 2000-01-01T00:01:00Z",
				"b.example.com becomes active at 2000-01-01T00:31:00Z",
			},
		},
		"the evacuator has never reported": {
			at: 4 * time.Minute,
			want: []string{
				"since it became active at 2000-01-01T00:00:00Z",
				"b.example.com becomes active at 2000-01-01T00:05:00Z",
			},
		},
		"no evacuator follows": {
			mods: []func(*maintenancev1alpha1.Evacuation){
				reported(0, ""), withFinalizers(),
				withStatus(func(st *maintenancev1alpha1.EvacuationStatus) { st.EvacuationCancellationPolicy = forbid }),
			},
			at:   20 * time.Minute,
			want: []string{"the evacuation ends, as no instigator requests it any more, at 2000-01-01T00:30:00Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvacuation(withEvacuators(classA, classB), active(classA))
			for _, mod := range tc.mods {
				mod(e)
			}
			got := decide(situation{
				now: start.Add(tc.at), evacuation: e, pod: newPod(), podType: maintenancev1alpha1.PodTypeDefault,
				servingSince: start.Add(-time.Hour), startDeadline: DefaultEvacuatorStartDeadline,
			})
			blocked := meta.FindStatusCondition(got.status.Conditions, maintenancev1alpha1.ConditionBlocked)
			for _, want := range tc.want {
				if blocked == nil || !strings.Contains(blocked.Message, want) {
					t.Errorf("got condition %+v, want %q in its message", blocked, want)
				}
			}
		})
	}
}
