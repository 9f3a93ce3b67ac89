// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func seenBefore(classes ...string) func(*situation) {
	return func(s *situation) { s.seen.Insert(classes...) }
}

func TestDecideStartDeadline(t *testing.T) {
	both := func() *v1alpha1.Evacuation { return newEvacuation(withEvacuators(classA, classB), active(classA)) }
	runDecide(t, map[string]decideTest{
		"an evacuator whose class has reported before has until the progress deadline": {
			evacuation: both(), pod: newPod(), mod: seenBefore(classA),
			at:   15*minute - second,
			want: outcome{Active: classA, Wake: 15 * minute},
		},
		"an evacuator whose class has reported before hands over after the progress deadline": {
			evacuation: both(), pod: newPod(), mod: seenBefore(classA),
			at:   30 * minute,
			want: outcome{Active: classB, Since: 30 * minute, Wake: 32*minute + 30*second, Events: EventHandedOver},
			says: "a.example.com has not started within 30m0s",
		},
		"a report of another class does not lengthen the start deadline": {
			evacuation: both(), pod: newPod(), mod: seenBefore(classB),
			at:   5 * minute,
			want: outcome{Active: classB, Since: 5 * minute, Wake: 20 * minute, Events: EventHandedOver},
			says: "a.example.com has not started within 5m0s",
		},
		"a built-in evacuator has the start deadline, whatever was seen": {
			evacuation: newEvacuation(withEvacuators(v1alpha1.EvacuatorClassDeployment), active(v1alpha1.EvacuatorClassDeployment)), pod: newPod(),
			mod: seenBefore(v1alpha1.EvacuatorClassDeployment), at: 5 * minute,
			want: outcome{Active: evict, Since: 5 * minute, Evict: true, Events: EventHandedOver},
			says: "has not started within 5m0s",
		},
		"the pod requests a longer start deadline": {
			evacuation: both(), pod: newPod(), at: 20 * minute,
			mod:  func(s *situation) { s.podStartDeadline = 20 * minute },
			want: outcome{Active: classB, Since: 20 * minute, Wake: 30 * minute, Events: EventHandedOver},
			says: "has not started within 20m0s",
		},
		"an eviction waits for the start deadline, whatever was seen and the pod requests": {
			evacuation: newEvacuation(withEvacuators(classA, classB), active(classA), withFinalizers(raw)), pod: newPod(), at: 5 * minute,
			mod: func(s *situation) {
				s.seen.Insert(classA)
				s.podStartDeadline, s.rawEvictionTTL = 20*minute, hour
			},
			want: outcome{Active: classB, Since: 5 * minute, Wake: 7*minute + 30*second, Events: EventHandedOver},
			says: "a.example.com has not started within 5m0s",
		},
		"an eviction beside another instigator waits longer": {
			evacuation: newEvacuation(withEvacuators(classA, classB), active(classA), withFinalizers(raw, theirs)), pod: newPod(), at: 5 * minute,
			mod: func(s *situation) {
				s.seen.Insert(classA)
				s.rawEvictionTTL = hour
			},
			want: outcome{Active: classA, Wake: 15 * minute},
		},
		"the pod cannot shorten the start deadline": {
			evacuation: both(), pod: newPod(), at: 5*minute - second,
			mod:  func(s *situation) { s.podStartDeadline = minute },
			want: outcome{Active: classA, Wake: 5 * minute, Blocked: "EvacuatorNotProgressing", Events: EventBlocked},
		},
		"the pod cannot exceed the progress deadline": {
			evacuation: both(), pod: newPod(), at: 30 * minute,
			mod:  func(s *situation) { s.podStartDeadline = 24 * hour },
			want: outcome{Active: classB, Since: 30 * minute, Wake: 45 * minute, Events: EventHandedOver},
			says: "has not started within 30m0s",
		},
	})
}

func TestReporters(t *testing.T) {
	both := newEvacuation(withEvacuators(classA, classB)).Spec.Evacuators
	var r reporters
	r.note(&turnOfA().Status)
	is.Slices(t, r.among(both).UnsortedList(), []string{}, "classes that reported, before the first report")
	r.note(&turnOfA(reported(minute, "copying")).Status)
	is.Slices(t, r.among(both).UnsortedList(), []string{classA}, "classes that reported, after a report")

	r.wasSilent(classA, start.Add(hour))
	is.Slices(t, r.among(both).UnsortedList(), []string{}, "classes that reported, after the deadline")
	r.note(&turnOfA(reported(2*minute, "copying")).Status)
	is.Slices(t, r.among(both).UnsortedList(), []string{}, "classes that reported, after an old report is read again")
	r.note(&turnOfA(reported(hour+minute, "copying")).Status)
	is.Slices(t, r.among(both).UnsortedList(), []string{classA}, "classes that reported, after a new report")
}

// An evacuator that reports and is then down has 30 minutes for the next pod, also after an
// Evacuation with a short deadline. If it exceeds them, it has 5 minutes for the pod after that.
func TestStartDeadlineOfAKnownEvacuator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(withEvacuators(classA, classB)), newPod(), newNode(corev1.ConditionTrue))
		w.until("the first evacuator is active", 0, hasClass(classA))
		for _, want := range []struct {
			reports         bool
			deadline, takes time.Duration
		}{{true, minute, minute}, {false, 30 * minute, 30 * minute}, {false, 30 * minute, DefaultEvacuatorStartDeadline}} {
			if want.reports {
				w.api.edit(t, w.target, reported(w.clock.Since(start), "copying"))
				synctest.Wait()
			}
			begun := w.clock.Now()
			w.api.edit(t, w.target, func(e *v1alpha1.Evacuation) {
				e.Spec.ProgressDeadlineSeconds = new(int32(want.deadline.Seconds()))
				e.Status.ActiveEvacuatorClass, e.Status.ActiveEvacuatorSince, e.Status.EvacuationProgressTimestamp = classA, &metav1.Time{Time: begun}, nil
			})
			w.until("the second evacuator is active", second, hasClass(classB))
			if took := w.clock.Since(begun); took < want.takes || took > want.takes+minute {
				t.Errorf("the hand-over was after %s, want %s", took, want.takes)
			}
		}
	})
}
