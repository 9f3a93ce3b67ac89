// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestDecideProgress(t *testing.T) {
	const silent = "EvacuatorNotProgressing"
	wasSilent := withCondition(v1alpha1.ConditionBlocked, silent, 0)
	servingSince := func(at time.Duration) func(*situation) {
		return func(s *situation) { s.servingSince = start.Add(at) }
	}
	runDecide(t, map[string]decideTest{
		"an evacuator is not blocked before half of the progress deadline": {
			evacuation: turnOfA(reported(minute, "copying")),
			pod:        newPod(), at: 16*minute - second,
			want: outcome{Active: classA, Progress: minute, Wake: 16 * minute},
		},
		"an evacuator that does not report for half of the progress deadline is blocked": {
			evacuation: turnOfA(reported(minute, "copying")),
			pod:        newPod(), at: 16 * minute,
			want: outcome{Active: classA, Progress: minute, Blocked: silent, Wake: 31 * minute, Events: EventBlocked},
		},
		"a report clears Blocked": {
			evacuation: turnOfA(reported(20*minute, "copying"), wasSilent),
			pod:        newPod(), at: 20 * minute,
			want: outcome{Active: classA, Progress: 20 * minute, Blocked: "not: NotBlocked", Wake: 35 * minute},
		},
		"a hand-over clears Blocked": {
			evacuation: newEvacuation(withEvacuators(classA, classB), active(classA), wasSilent), pod: newPod(),
			at: 5 * minute,
			want: outcome{
				Active: classB, Since: 5 * minute, Blocked: "not: NotBlocked",
				Wake: 7*minute + 30*second, Events: EventHandedOver,
			},
		},
		"a terminating pod clears Blocked": {
			evacuation: turnOfA(wasSilent),
			pod:        newPod(terminatingUntil(4 * minute)), at: 4 * minute,
			want: outcome{Active: classA, Blocked: "not: NotBlocked", Wake: 4*minute + overdueAfter},
		},
		"a new leader waits for a report of the evacuator": {
			evacuation: turnOfA(reported(minute, "copying")),
			pod:        newPod(), at: 62 * minute, mod: servingSince(hour),
			want: outcome{Active: classA, Progress: minute, Wake: 62*minute + 30*second},
		},
		"a new leader that gets no report sets Blocked": {
			evacuation: turnOfA(reported(minute, "copying")),
			pod:        newPod(), at: 63 * minute, mod: servingSince(hour),
			want: outcome{Active: classA, Progress: minute, Blocked: silent, Wake: 65 * minute, Events: EventBlocked},
		},
		"a new leader does not clear Blocked": {
			evacuation: turnOfA(reported(minute, "copying"), wasSilent),
			pod:        newPod(), at: 61 * minute, mod: servingSince(hour),
			want: outcome{Active: classA, Progress: minute, Blocked: silent, Wake: 65 * minute},
		},
		"the DaemonSet evacuator does not have to report before the drain reaches the pod": {
			evacuation: newEvacuation(withEvacuators(v1alpha1.EvacuatorClassDaemonSet),
				active(v1alpha1.EvacuatorClassDaemonSet)),
			pod: newPod(), at: 2*minute + 29*second,
			want: outcome{Active: v1alpha1.EvacuatorClassDaemonSet, Wake: 2*minute + 30*second},
		},
	})
}

func TestMessageOfAnEvacuatorThatDoesNotProgress(t *testing.T) {
	for name, tc := range map[string]struct {
		mods []func(*v1alpha1.Evacuation)
		at   time.Duration
		want []string
	}{
		"it names the evacuator, its last report and the next evacuator": {
			mods: []func(*v1alpha1.Evacuation){reported(minute, "copying")}, at: 20 * minute,
			want: []string{
				"a.example.com has not reported since 2000-01-01T00:01:00Z",
				"b.example.com becomes active at 2000-01-01T00:31:00Z",
			},
		},
		"the evacuator has never reported": {
			at: 4 * minute,
			want: []string{
				"since it became active at 2000-01-01T00:00:00Z",
				"b.example.com becomes active at 2000-01-01T00:05:00Z",
			},
		},
		"no evacuator follows": {
			mods: []func(*v1alpha1.Evacuation){
				reported(0, ""), withFinalizers(),
				withStatus(func(st *v1alpha1.EvacuationStatus) { st.EvacuationCancellationPolicy = forbid }),
			},
			at:   20 * minute,
			want: []string{"the evacuation ends, as no instigator requests it any more, at 2000-01-01T00:30:00Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvacuation(withEvacuators(classA, classB), active(classA))
			for _, mod := range tc.mods {
				mod(e)
			}
			got := decide(situation{
				now: start.Add(tc.at), evacuation: e, pod: newPod(), podType: v1alpha1.PodTypeDefault,
				servingSince: start.Add(-hour), startDeadline: DefaultEvacuatorStartDeadline,
			})
			blocked := meta.FindStatusCondition(got.status.Conditions, v1alpha1.ConditionBlocked)
			for _, want := range tc.want {
				if blocked == nil || !strings.Contains(blocked.Message, want) {
					t.Errorf("got condition %+v, want %q in its message", blocked, want)
				}
			}
		})
	}
}
