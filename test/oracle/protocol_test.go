// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

const (
	podUID    = "f5823a89-e03f-4752-b013-445643b8c7a0"
	first     = "first.example.com"
	second    = "second.example.com"
	evict     = v1alpha1.EvacuatorClassEviction
	finalizer = v1alpha1.FinalizerInstigatorPrefix + "test.example.com"
	sender    = "server"
)

var dawn = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)

type mod func(*v1alpha1.Evacuation)

// observe returns an observation.
func observe(seen time.Time, kind watch.EventType, object runtime.Object) Observation {
	return Observation{Event: watch.Event{Type: kind, Object: object}, Seen: seen}
}

// evacuation returns an Evacuation with two evacuators, each with a deadline of 10 s. Neither of
// them is active.
func evacuation(mods ...mod) *v1alpha1.Evacuation {
	return build.With(&v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "blue", Name: podUID + "-web", UID: "evacuation-1", Finalizers: []string{finalizer},
			CreationTimestamp: metav1.NewTime(dawn),
		},
		Spec: v1alpha1.EvacuationSpec{
			PodRef: v1alpha1.PodReference{Name: "web", UID: podUID}, ProgressDeadlineSeconds: ptr.To[int32](10),
			Evacuators: []v1alpha1.Evacuator{
				{EvacuatorClass: second, Priority: 5}, {EvacuatorClass: first, Priority: 100},
			},
		},
		Status: v1alpha1.EvacuationStatus{EvacuationCancellationPolicy: v1alpha1.EvacuationCancellationPolicyAllow},
	}, mods...)
}

// turn makes a class the active evacuator, some seconds after the beginning. The evacuator has not
// reported yet.
func turn(class string, at int) mod {
	return func(e *v1alpha1.Evacuation) {
		e.Status.ActiveEvacuatorClass = class
		e.Status.ActiveEvacuatorSince = ptr.To(metav1.NewTime(dawn.Add(time.Duration(at) * time.Second)))
		e.Status.Message = "who is active and why: for people"
	}
}

// reports adds a report of the active evacuator, some seconds after the beginning.
func reports(at int) mod {
	return func(e *v1alpha1.Evacuation) {
		e.Status.EvacuationProgressTimestamp = ptr.To(metav1.NewTime(dawn.Add(time.Duration(at) * time.Second)))
	}
}

func says(message string) mod { return func(e *v1alpha1.Evacuation) { e.Status.Message = message } }

func done(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorCompleted = true }

func forbid(e *v1alpha1.Evacuation) {
	e.Status.EvacuationCancellationPolicy = v1alpha1.EvacuationCancellationPolicyForbid
}

func failed(n int32) mod { return func(e *v1alpha1.Evacuation) { e.Status.FailedEvictionCounter = n } }

// heldByOther adds a finalizer that does not belong to an instigator.
func heldByOther(e *v1alpha1.Evacuation) { e.Finalizers = append(e.Finalizers, "example.com/other") }

func withdrawn(e *v1alpha1.Evacuation) { e.Finalizers = nil }

func condition(conditionType, reason string) mod {
	return func(e *v1alpha1.Evacuation) {
		e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{
			Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, Message: "x",
		})
	}
}

func TestRules(t *testing.T) {
	tests := map[string]struct {
		states []*v1alpha1.Evacuation
		// missed means that events were missed between the states.
		missed bool
		want   []string
	}{
		"turns that end by completion and by deadlines": {states: []*v1alpha1.Evacuation{
			evacuation(), evacuation(turn(first, 0)), evacuation(turn(first, 3), done), evacuation(turn(second, 4)),
			evacuation(turn(second, 4), reports(5)), evacuation(turn(evict, 15)),
		}},
		"one that never started": {
			states: []*v1alpha1.Evacuation{evacuation(turn(first, 0)), evacuation(turn(second, 2))},
		},
		"one that had not had its time to start": {
			states: []*v1alpha1.Evacuation{evacuation(turn(first, 0)), evacuation(turn(second, 1))},
			want:   []string{"may be silent for 2s"},
		},
		"one that had reported": {
			states: []*v1alpha1.Evacuation{evacuation(turn(first, 0), reports(0)), evacuation(turn(second, 9))},
			want:   []string{"may be silent for 10s"},
		},
		"states that were missed may have been right": {
			states: []*v1alpha1.Evacuation{evacuation(turn(first, 0), reports(0)), evacuation(turn(evict, 1))},
			missed: true,
		},
		"a turn that comes back": {
			states: []*v1alpha1.Evacuation{evacuation(turn(second, 0)), evacuation(turn(first, 20))}, missed: true,
			want: []string{"comes before it"},
		},
		"an evacuator that was left out": {
			states: []*v1alpha1.Evacuation{evacuation(turn(first, 0), done), evacuation(turn(evict, 20))},
			want:   []string{"out of order"},
		},
		"a turn that no instigator asks for": {
			states: []*v1alpha1.Evacuation{
				evacuation(turn(first, 0), done, withdrawn), evacuation(turn(second, 20), withdrawn),
			},
			want: []string{"had no instigator"},
		},
		"a class that no evacuator has": {
			states: []*v1alpha1.Evacuation{evacuation(), evacuation(turn("x", 0))}, want: []string{"not an evacuator"},
		},
		"a counter that falls": {
			states: []*v1alpha1.Evacuation{evacuation(failed(2)), evacuation(failed(1))},
			want:   []string{"fell from 2 to 1"},
		},
		"a change after the end": {
			states: []*v1alpha1.Evacuation{
				evacuation(condition("Complete", "PodDeleted")),
				evacuation(condition("Complete", "PodDeleted"), says("x")),
			},
			want: []string{"after it was complete"}},
		"a spec that changes": {
			states: []*v1alpha1.Evacuation{
				evacuation(), evacuation(func(e *v1alpha1.Evacuation) { e.Spec.NodeName = "x" }),
			},
			want: []string{"spec"},
		},
		"Forbid in time": {
			states: []*v1alpha1.Evacuation{
				evacuation(turn(first, 0)), evacuation(turn(first, 1), forbid),
				evacuation(turn(first, 2), forbid, withdrawn),
			},
		},
		"Forbid after all are gone": {
			states: []*v1alpha1.Evacuation{
				evacuation(turn(first, 0), withdrawn), evacuation(turn(first, 1), withdrawn, forbid),
			},
			want: []string{"had no instigator"},
		},
		"Forbid across a hand-over": {
			states: []*v1alpha1.Evacuation{
				evacuation(turn(first, 0), done, forbid), evacuation(turn(second, 1), forbid),
			},
			want: []string{"still set"},
		},
		"Forbid for the eviction": {
			states: []*v1alpha1.Evacuation{evacuation(turn(evict, 0)), evacuation(turn(evict, 0), forbid)},
			want:   []string{"not an evacuator"},
		},
		"two for one pod": {
			states: []*v1alpha1.Evacuation{
				evacuation(), evacuation(func(e *v1alpha1.Evacuation) { e.UID, e.Namespace = "evacuation-2", "red" }),
			},
			want: []string{"two Evacuations"},
		},
		"another name": {
			states: []*v1alpha1.Evacuation{evacuation(func(e *v1alpha1.Evacuation) { e.Name = "x" })},
			want:   []string{"not named"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var log Log
			for _, e := range tt.states {
				o := observe(dawn.Add(time.Minute), watch.Modified, e)
				o.relisted = tt.missed
				log.Observations = append(log.Observations, o)
			}
			expect(t, Protocol(log, 2*time.Second), tt.want...)
		})
	}
}

func TestEvictionsHaveTheirTurn(t *testing.T) {
	at := func(seconds int) time.Time {
		return dawn.Add(time.Duration(seconds)*time.Second + 500*time.Millisecond)
	}
	type seen struct {
		at    int
		event watch.EventType
		e     *v1alpha1.Evacuation
	}
	upForEviction := []seen{
		{0, watch.Added, evacuation(turn(first, 0))}, {20, watch.Modified, evacuation(turn(evict, 20))},
	}
	tests := map[string]struct {
		seen []seen
		uid  types.UID
		// blind is a time in which events were missed, in seconds.
		blind [2]int
		at    int
		want  []string
	}{
		"when it is its turn": {seen: upForEviction, uid: podUID, at: 30},
		"of a DaemonSet pod, in the turn of its evacuator": {
			seen: []seen{{0, watch.Added, evacuation(turn(v1alpha1.EvacuatorClassDaemonSet, 0))}}, uid: podUID, at: 10},
		"when another finalizer holds it and a drain may still want the pod": {
			seen: append(upForEviction, seen{
				at: 40, event: watch.Modified, e: evacuation(turn(evict, 20), withdrawn, heldByOther),
			}),
			uid: podUID, at: 45,
		},
		"before":                  {seen: upForEviction, uid: podUID, at: 10, want: []string{"no Evacuation allowed"}},
		"of no pod in particular": {seen: upForEviction, at: 30, want: []string{"without the UID"}},
		"of a pod that no Evacuation asks to leave": {
			seen: upForEviction, uid: "other", at: 30, want: []string{"never had"},
		},
		"of a namesake's, which was meant": {
			seen: append(upForEviction, seen{40, watch.Deleted, evacuation(turn(evict, 20))}), uid: podUID, at: 41,
		},
		"after it was cancelled": {
			seen: append(upForEviction, seen{40, watch.Modified, evacuation(turn(evict, 20), withdrawn)}), uid: podUID,
			at: 45, want: []string{"no Evacuation allowed"},
		},
		"after it was asked for again": {
			seen: append(upForEviction, seen{40, watch.Deleted, evacuation(turn(evict, 20))}, seen{
				at: 41, event: watch.Added,
				e: evacuation(func(e *v1alpha1.Evacuation) { e.UID = "evacuation-2" }, turn(first, 41)),
			}),
			uid: podUID, at: 44, want: []string{"no Evacuation allowed"}},
		"in a gap, and perhaps in order": {
			seen: []seen{
				{at: 0, event: watch.Added, e: evacuation(turn(first, 0))},
				{at: 30, event: watch.Modified, e: evacuation(turn(evict, 10), condition("Complete", "PodDeleted"))},
			},
			uid: podUID, blind: [2]int{5, 30}, at: 15,
		},
		"in a gap, and it was not active after": {
			seen: []seen{
				{0, watch.Added, evacuation(turn(first, 0))}, {30, watch.Modified, evacuation(turn(first, 29))},
			},
			uid: podUID, blind: [2]int{5, 30}, at: 15, want: []string{"no Evacuation allowed"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			log := Log{Calls: []Call{
				{
					Subresource: "eviction", Namespace: "blue", Name: "web", UID: tt.uid, User: sender,
					Received: at(tt.at),
				},
				{Subresource: "eviction", Namespace: "blue", Name: "web", User: "somebody else", Received: at(tt.at)},
			}}
			if tt.blind[1] > 0 {
				log.Gaps = []Gap{{at(tt.blind[0]), at(tt.blind[1])}}
			}
			for _, s := range tt.seen {
				log.Observations = append(log.Observations, observe(at(s.at), s.event, s.e))
			}
			found, evictions := OutOfTurn(log, sender)
			expect(t, found, tt.want...)
			is.True(t, evictions == 1, "counted %d evictions of the server, want 1", evictions)
		})
	}
}

func TestCompletionTellsTheTruth(t *testing.T) {
	tests := map[string]struct {
		reason string
		// left is the number of seconds between the completion and the end of the pod; negative if
		// the pod stays.
		left int
		want []string
	}{
		"the pod is gone":                 {"PodDeleted", 0, nil},
		"the pod goes a good while after": {"PodDeleted", 30, []string{"before its pod had left"}},
		"the pod stays":                   {"PodTerminated", -1, []string{"has not left"}},
		"no Evacuation asked it to leave": {"Cancelled", -1, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			log := Log{Observations: []Observation{
				observe(dawn, watch.Added, evacuation(condition("Complete", tt.reason))),
			}}
			if tt.left >= 0 {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: podUID}}
				log.Observations = append(log.Observations,
					observe(dawn.Add(time.Duration(tt.left)*time.Second), watch.Deleted, pod))
			}
			expect(t, EndedEarly(log), tt.want...)
		})
	}
}

func TestUnsettled(t *testing.T) {
	forEviction := func(e *v1alpha1.Evacuation) { e.Finalizers = []string{v1alpha1.FinalizerInstigatorRawEviction} }
	tests := map[string]struct {
		e    *v1alpha1.Evacuation
		want []string
	}{
		"it is over":             {e: evacuation(condition("Complete", "PodDeleted"))},
		"it says what blocks it": {e: evacuation(turn(evict, 0), condition("Blocked", "PodDisruptionBudget"))},
		"it says nothing":        {e: evacuation(turn(evict, 0)), want: []string{"does not report why"}},
		"it has an unknown reason": {
			e: evacuation(turn(evict, 0), condition("Blocked", "BadMood")), want: []string{"unknown reason"},
		},
		"it waits for its client":                       {e: evacuation(turn(evict, 0), forEviction)},
		"it waits for its client, and has an evacuator": {e: evacuation(turn(first, 0), forEviction), want: []string{"does not report why"}},
		"it waits for its client and for another instigator": {
			e: evacuation(turn(evict, 0), func(e *v1alpha1.Evacuation) {
				e.Finalizers = append(e.Finalizers, v1alpha1.FinalizerInstigatorRawEviction)
			}),
			want: []string{"does not report why"},
		},
		"it was cancelled": {
			e:    evacuation(turn(evict, 0), withdrawn, condition("Blocked", "PodDisruptionBudget")),
			want: []string{"is cancelled"},
		},
		"it was cancelled, and a finalizer keeps it": {
			e: evacuation(func(e *v1alpha1.Evacuation) { e.Finalizers = []string{"example.com/other"} }),
		},
		"it was cancelled, and its evacuator forbids it": {
			e: evacuation(turn(first, 0), withdrawn, forbid, condition("Blocked", "EvacuatorNotProgressing")),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, Unsettled([]*v1alpha1.Evacuation{tt.e}), tt.want...)
		})
	}
}
