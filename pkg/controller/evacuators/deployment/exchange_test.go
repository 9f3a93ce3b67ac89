// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/is"
)

const web1 = "uid-web-1-web-1"

// changedSince makes the cost one that another client has changed after it was lowered.
func changedSince(p *pod) {
	p.Annotations = map[string]string{corev1.PodDeletionCost: "7", v1alpha1.AnnotationOriginalPodDeletionCost: ""}
}

// answeredFor replaces the answer of the API server for one pod.
func answeredFor(name string, answer eviction.Consent, at time.Time, s situation) situation {
	s.memory.answers[types.UID("uid-"+name)] = consent{Consent: answer, at: at, text: "not today"}
	return s
}

// stalled has no replacement that has become available, and no pod that has left, since the start.
func stalled(s situation) situation {
	s.memory.available, s.memory.availableAt = len(s.replacements()), start
	s.memory.gone, s.memory.goneAt = s.gone(), start
	return s
}

// waited has waited for pods to recover since the start, without progress.
func waited(s situation) situation {
	s = stalled(s)
	s.memory.recoverySince = start
	return s
}

// justUnready makes a pod one that has been unready since about half of the surge timeout after the
// start.
func justUnready(p *pod) { readyFor(-145 * time.Second)(p) }

// createdAfter makes a pod one that was created some time after the start and has no conditions.
func createdAfter(after time.Duration) podMod {
	return func(p *pod) {
		p.CreationTimestamp, p.Status.Conditions = metav1.NewTime(start.Add(after)), nil
	}
}

// TestSlowAnswers: if each answer takes as long as an answer counts, the pod with the first one
// leaves, instead of expiring while another one is asked for.
func TestSlowAnswers(t *testing.T) {
	for took, asks := range map[time.Duration]int{0: 1, askFor: 0, answerTTL: 0} {
		s := at(9*time.Second, newDeployment(4, recorded(2, 4, web0, web1)), newTestPod("web-0", leaves(ours), cheapest),
			newTestPod("web-1", leaves(ours)), newTestPod("web-2", fresh), newTestPod("web-3", fresh))
		delete(s.memory.answers, "uid-web-1")
		answer := s.memory.answers["uid-web-0"]
		answer.took = took
		s.memory.answers["uid-web-0"] = answer
		d := decide(s)
		is.Equal(t, len(d.ask), asks, "questions after an answer that took "+took.String())
		is.Equal(t, len(d.removed), 1-asks, "pods that leave after an answer that took "+took.String())
	}
}

func TestExchangeRemovesOnlyChosenPods(t *testing.T) {
	const later = 9 * time.Second
	never := under(nil, ptrTo(0), 4, 4)
	first, second := newTestPod("web-2", fresh), newTestPod("web-3", fresh)
	two := newDeployment(4, recorded(2, 4, web0, web1))
	twoAlways := newDeployment(4, recorded(2, 4, web0, web1), always)
	one := newDeployment(4, recorded(2, 4, web0), always)
	full := newDeployment(4, recorded(2, 4, web0, web1), func(d *appsv1.Deployment) {
		d.Status.Conditions = []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: failedCreate, Message: "exceeded quota: small",
		}}
	})
	asked0 := newTestPod("web-0", leaves(ours), cheapest, reported(350*time.Second))
	asked1 := newTestPod("web-1", leaves(ours), reported(350*time.Second))
	for name, tc := range map[string]struct {
		s    situation
		want string
		says string
	}{
		"an unready pod that a webhook refuses and no eviction can remove": {
			s: answeredFor("web-0", eviction.ConsentDenied, start, at(later, twoAlways, newTestPod("web-0", leaves(ours), unready, readyFor(0), never),
				newTestPod("web-1", leaves(ours), cheapest, never), first, second)),
			says: "2 of 2 are available",
		},
		"an unready pod whose budget is closed": {
			s: answeredFor("web-0", eviction.ConsentLater, start.Add(later), at(later, two, newTestPod("web-0", leaves(ours), unready, readyFor(0), minOne(4, 3)),
				newTestPod("web-1", leaves(ours), cheapest, minOne(4, 3)), first, second)),
			want: "hand over web-1;", says: "available in its place",
		},
		"an unready pod before its replacement is created": {
			s: at(later, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", leaves(ours), cheapest, unready, readyFor(0))), says: "0 of 1 are available",
		},
		"a pod within minReadySeconds before its replacement is created": {
			s: at(later, newDeployment(2, recorded(1, 2, web0), func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 30 }),
				newTestPod("web-0", leaves(ours), cheapest, readyFor(0))), says: "0 of 1 are available",
		},
		"an unready stray": {
			s: at(later, one, newTestPod("web-0", leaves(ours), cheapest, never), newTestPod("web-1"),
				newTestPod("web-2", leaves(ours), fresh, unready, never), second),
			says: "1 of 2 are available",
		},
		"a stray with the lowest cost": {
			s: at(later, one, newTestPod("web-0", leaves(ours), cheapest, never), newTestPod("web-1"),
				newTestPod("web-2", leaves(ours), fresh, costs("-2147483648"), never), second),
			says: "1 of 2 are available",
		},
		"a pod with the lowest cost is chosen first": {
			s: at(later, newDeployment(3, recorded(2, 3, web0, web1), always), newTestPod("web-0", leaves(ours), cheapest, never),
				newTestPod("web-1", leaves(ours), costs("-2147483648"), never), first),
			want: "restore web-0;",
		},
		"a refused pod that has become unready": {
			s: at(later, two, newTestPod("web-0", leaves(lanes), blocked, unready, readyFor(2*sickAfter)),
				newTestPod("web-1", leaves(ours), cheapest), first, second),
			want: "hand over web-1;", says: "available in its place",
		},
		"a refused pod that is not available has no replica to spare": {
			s: at(later, two, newTestPod("web-0", leaves(lanes), blocked, unready, readyFor(2*sickAfter)),
				newTestPod("web-1", leaves(ours)), first, newTestPod("web-3", fresh, unready)),
			says: "1 of 2 are available",
		},
		"a pod whose cost another client has changed after it was lowered": {
			s: at(later, newDeployment(2, recorded(1, 2, web0), always), newTestPod("web-0", leaves(ours), changedSince, under(nil, ptrTo(0), 2, 2)),
				newTestPod("web-1", fresh)),
			says: "the pod waits until its deletion cost can be lowered, which another client has changed.",
		},
		"another pod is paused, and no eviction can remove the pod": {
			s: at(later, newDeployment(3, recorded(2, 3, web0), always), newTestPod("web-0", leaves(ours), cheapest, never),
				newTestPod("web-1", func(p *pod) { p.isPaused = true }, never), first),
			says: "the pod waits until no pod of the Deployment is paused any more",
		},
		"another pod has the lowest cost, and no eviction can remove the pod": {
			s: at(later, newDeployment(3, recorded(2, 3, web0), always), newTestPod("web-0", leaves(ours), cheapest, never),
				newTestPod("web-1", costs("-2147483648"), never), first),
			says: "the pod waits until pod web-1 is deleted or no longer has the lowest deletion cost",
		},
		"an autoscaler was created": {
			s: at(later, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", leaves(ours), cheapest, minOne(2, 2)),
				newTestPod("web-1", fresh)).scaledBy(newAutoscaler(1, 5, 2)),
			want: "hand over web-0;", says: "available in its place",
		},
		"no pod leaves while pods of an earlier scale-down exist": {
			s: at(later, newDeployment(3, recorded(2, 3, web0, web1)), newTestPod("web-0", leaves(ours), cheapest),
				newTestPod("web-1", leaves(ours), cheapest), first, second),
			says: "waits until the ReplicaSet has deleted pods: the Deployment has 4 and should have 3.",
		},
		"a sick pod that is not asked to leave": {
			s: at(later, newDeployment(3, recorded(2, 3, web0), always), newTestPod("web-0", leaves(ours), cheapest, never),
				newTestPod("web-1", unready, readyFor(2*sickAfter), never), first),
			says: "the pod waits until pod web-1 is ready or deleted: it has not been ready for 1m0s",
		},
		"another pod has been unready for a moment for half of the surge timeout": {
			s: waited(at(150*time.Second, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), cheapest, minOne(3, 2)),
				newTestPod("web-1", unready, justUnready), first)),
			want: "hand over web-0;", says: "available in its place",
		},
		"another pod has been unready for a moment for less than that": {
			s: waited(at(149*time.Second, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), cheapest, minOne(3, 2)),
				newTestPod("web-1", unready, justUnready), first)),
			says: "waits for its other replicas",
		},
		"another pod has been unready for a moment for half of that, and no eviction can remove the pod": {
			s: waited(at(150*time.Second, newDeployment(3, recorded(2, 3, web0), always), newTestPod("web-0", leaves(ours), cheapest, never),
				newTestPod("web-1", unready, justUnready), first)),
			says: "waits for its other replicas",
		},
		"a replacement is starting for half of the surge timeout": {
			s: waited(at(150*time.Second, newDeployment(6, recorded(3, 6, web0, web1)), newTestPod("web-0", leaves(ours), minOne(6, 3)),
				newTestPod("web-1", leaves(ours), cheapest, unready, justUnready, minOne(6, 3)), newTestPod("db-0", unready, justUnready), first,
				second, newTestPod("web-4", fresh, unready))),
			says: "2 of 3 are available",
		},
		"another pod becomes unready for the first time when that time has passed": {
			s: stalled(at(200*time.Second, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), cheapest, minOne(3, 2)),
				newTestPod("web-1", unready, readyFor(-199*time.Second)), first)),
			says: "waits for its other replicas",
		},
		"a replacement that has just become unready is waited for after the surge timeout": {
			s:    stalled(at(6*time.Minute, two, asked0, asked1, first, newTestPod("web-3", fresh, unready, cheapest, readyFor(-359*time.Second)))),
			says: "1 of 2 are available",
		},
		"a replacement that has just been created is waited for after the surge timeout": {
			s:    stalled(at(6*time.Minute, two, asked0, asked1, first, newTestPod("web-4", cheapest, createdAfter(359*time.Second)))),
			says: "1 of 2 are available",
		},
		"such a replacement is given up when it has not been ready for a minute": {
			s:    stalled(at(7*time.Minute, two, asked0, asked1, first, newTestPod("web-3", fresh, unready, cheapest, readyFor(-6*time.Minute)))),
			want: "back to 2;",
		},
		"a replacement that no node has room for is deleted as well": {
			s: at(time.Minute, two, newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", leaves(ours)), first,
				newTestPod("web-3", fresh, pending("no room"), cheapest)),
			want: "back to 2;",
		},
		"a replacement that a quota prevents is given up": {
			s:    stalled(at(time.Minute, full, newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", leaves(ours)), first)),
			want: "back to 2;",
		},
		"a replacement that a quota prevents is waited for at first": {
			s:    stalled(at(roomTime-time.Second, full, newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", leaves(ours)), first)),
			says: "1 of 2 are available",
		},
		"such a replacement gets the lowest cost first, since it may become ready": {
			s: at(time.Minute, two, newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", leaves(ours)), first,
				newTestPod("web-3", fresh, pending("no room"))),
			want: "lower web-3;",
		},
		"all turns end while pods of an earlier scale-down exist": {
			s: removedAt(start.Add(2*time.Minute), at(6*time.Minute, newDeployment(3, recorded(2, 3, web0, web1)),
				newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", leaves(ours), cheapest), first, newTestPod("web-3", fresh, unready))),
		},
		"all turns end, and pods of an earlier scale-down exist for long": {
			s: removedAt(start, at(6*time.Minute, newDeployment(3, recorded(2, 3, web0, web1)),
				newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", leaves(ours), cheapest), first, newTestPod("web-3", fresh, unready))),
			want: "lower web-2;restore web-0;restore web-1;",
		},
		"turns end while pods of an earlier scale-down exist": {
			s: at(6*time.Minute, newDeployment(3, recorded(2, 3, web0, web1)), newTestPod("web-0", leaves(ours), cheapest),
				newTestPod("web-1", leaves(ours), cheapest, reported(5*time.Minute)), first, newTestPod("web-3", fresh, unready)),
			want: "hand over web-0;", says: "No progress",
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, decide(tc.s), tc.want, tc.says) })
	}
}

// removedAt sets the time of the last scale-down that has to delete pods.
func removedAt(t time.Time, s situation) situation {
	s.memory.delivered = t
	return s
}

// TestMissesAreCountedAfterTheDeletions: the ReplicaSet controller may need minutes.
func TestMissesAreCountedAfterTheDeletions(t *testing.T) {
	s := at(time.Hour, newDeployment(2, recorded(1, 2, web1)), newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", leaves(ours)),
		newTestPod("web-2", fresh))
	s.memory.dropped = []types.UID{"uid-web-0"}
	d := decide(s)
	is.Equal(t, d.memory.misses, 0, "the misses before the deletion")
	s.memory, s.pods = d.memory, slices.Delete(s.pods, 1, 2)
	is.Equal(t, decide(s).memory.misses, 1, "the misses after another pod is deleted")
}

// TestExchangeGivesUpOnCosts: an admission policy refuses all changes of costs. In the meantime the
// API server has to be asked several times whether the pod may leave.
func TestExchangeGivesUpOnCosts(t *testing.T) {
	s := at(0, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", leaves(ours), minOne(2, 2)), newTestPod("web-1", fresh))
	asked, said := 0, false
	for second := range 40 {
		s.now = start.Add(20*time.Second + time.Duration(second)*time.Second)
		d := decide(s)
		if strings.Contains(summary(d), "hand over web-0;") {
			is.True(t, asked > 1 && said, "asked %d times, said why: %t", asked, said)
			return
		}
		for _, r := range d.reports {
			said = said || strings.Contains(r.message, "the deletion costs of pods are written")
		}
		s.memory = d.memory
		s.memory.answers = maps.Clone(s.memory.answers)
		for _, p := range d.ask {
			asked++
			s.memory.answers[p.UID] = consent{Consent: eviction.ConsentGiven, at: s.now}
		}
	}
	t.Error("the pod is not evicted")
}

// TestNothingIsAskedBeforeAScaleDown covers a pod that is up for eviction and does not leave. An
// answer may take several seconds, in which the decision would become outdated.
func TestNothingIsAskedBeforeAScaleDown(t *testing.T) {
	s := goneAt(start, at(time.Minute, newDeployment(4, recorded(2, 4, web0, web1)), newTestPod("web-0", leaves(lanes), minOne(4, 4)),
		newTestPod("web-1", leaves(ours), cheapest, minOne(4, 4)), newTestPod("web-2", fresh), newTestPod("web-3", fresh)))
	d := decide(answeredFor("web-0", eviction.ConsentGiven, start, s))
	is.Equal(t, len(d.removed), 1, "the pods that are removed")
	is.Equal(t, len(d.ask), 0, "the questions")
}

// TestReplacementThatFlapsIsLeftBehind covers a replacement that is ready for some seconds again
// and again and never available. The pod with the other replacement must not wait for it.
func TestReplacementThatFlapsIsLeftBehind(t *testing.T) {
	flapping := newTestPod("web-3", fresh)
	slow := func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 15 }
	s := at(0, newDeployment(4, recorded(2, 4, web0, web1), slow), newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", leaves(ours)),
		newTestPod("web-2", fresh), flapping)
	for s.now.Before(start.Add(time.Minute)) {
		s.now = s.now.Add(time.Second)
		if s.now.Second()%8 == 0 {
			ready := &flapping.Status.Conditions[0]
			ready.LastTransitionTime = metav1.NewTime(s.now)
			ready.Status = map[corev1.ConditionStatus]corev1.ConditionStatus{"True": "False", "False": "True"}[ready.Status]
		}
		s = answered(eviction.ConsentGiven, s)
		d := decide(s)
		if len(d.removed) > 0 {
			is.Equal(t, summary(d), "scale to 3 for 2;", "decided")
			return
		}
		s.memory = d.memory
	}
	t.Error("no pod leaves")
}

// TestProgress covers replacements that become available, one minute after the other.
func TestProgress(t *testing.T) {
	first, second, third := newTestPod("web-2", fresh), newTestPod("web-3", fresh), newTestPod("web-4", fresh)
	for name, tc := range map[string]struct {
		minutes [][]pod
		want    time.Duration
	}{
		"a further one":        {[][]pod{{first}, {first, second}}, time.Minute},
		"the same one again":   {[][]pod{{first, second}, {first, newTestPod("web-3", fresh, unready)}, {first, second}}, 0},
		"one that was deleted": {[][]pod{{first, second}, {first}, {first, third}}, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			var d decision
			for i, replacements := range tc.minutes {
				s := at(time.Duration(i)*time.Minute, newDeployment(4, recorded(2, 4, web0)),
					append([]pod{newTestPod("web-0", leaves(ours)), newTestPod("web-1")}, replacements...)...)
				s.memory = d.memory
				d.noteAvailable(s)
			}
			is.Equal(t, d.memory.movedAt(), start.Add(tc.want), "the last progress")
		})
	}
}

// TestWaitForRecoveryBeginsWithTheFirstFlap covers a pod that stays and is unready for some seconds
// again and again, from some time after the last progress. The other pod leaves by eviction if that
// goes on for half of the surge timeout.
func TestWaitForRecoveryBeginsWithTheFirstFlap(t *testing.T) {
	for name, tc := range map[string]struct {
		// before is a time at which it flaps once while the budget is closed.
		before, from, gone, want time.Duration
	}{
		"it flaps from the beginning":         {from: time.Second, want: 151 * time.Second},
		"it flaps after minutes":              {from: 200 * time.Second, want: 350 * time.Second},
		"it also flaps once long before":      {before: 10 * time.Second, from: 200 * time.Second, want: 350 * time.Second},
		"it still flaps when a pod has left":  {from: time.Second, gone: 100 * time.Second, want: 250 * time.Second},
		"it flaps after a pod has left":       {from: 200 * time.Second, gone: 100 * time.Second, want: 350 * time.Second},
		"it flaps longer, but with progress":  {from: time.Second, gone: 150 * time.Second, want: 300 * time.Second},
		"the next flap is after the progress": {from: 101 * time.Second, gone: 100 * time.Second, want: 251 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			flapping := newTestPod("web-1")
			s := at(0, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), cheapest, minOne(3, 2)), flapping,
				newTestPod("web-2", fresh))
			for after := time.Second; after < 10*time.Minute; after += time.Second {
				s.now = start.Add(after)
				s.pods[0] = newTestPod("web-0", leaves(ours), cheapest, minOne(3, 2), reported(after))
				// The budget is closed until the pod flaps again and again.
				s.pods[1], s = newTestPod("web-1"), answered(eviction.ConsentLater, s)
				if after == tc.before {
					s.pods[1] = newTestPod("web-1", unready, readyFor(-after))
				}
				if after >= tc.from {
					s.pods[1], s = newTestPod("web-1", unready, readyFor(-after.Truncate(5*time.Second))), answered(eviction.ConsentGiven, s)
				}
				if after == tc.gone {
					s.memory.goneAt = s.now
				}
				d := decide(s)
				if strings.Contains(summary(d), "hand over web-0;") {
					is.Equal(t, after, tc.want, "evicted after")
					return
				}
				is.Equal(t, summary(d), "", "decided")
				s.memory = d.memory
			}
			t.Error("the pod is not evicted")
		})
	}
}
