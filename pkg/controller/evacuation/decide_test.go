// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/is"
)

// outcome has the parts of a decision that the tables compare.
type outcome struct {
	Active string
	// Since is when the class became active, Progress the time of the last report, both counted
	// from start.
	Since    time.Duration
	Progress time.Duration
	// Policy is Allow unless a test case sets another value.
	Policy          v1alpha1.EvacuationCancellationPolicy
	Completed       bool
	Complete        string
	Blocked         string
	FailedEvictions int32
	Evict           bool
	Release         release
	Wake            time.Duration
	Events          string
}

func outcomeOf(d decision) outcome {
	o := outcome{
		Active: d.status.ActiveEvacuatorClass, Policy: d.status.EvacuationCancellationPolicy,
		Completed: d.status.ActiveEvacuatorCompleted, FailedEvictions: d.status.FailedEvictionCounter, Evict: d.evict,
		Release: d.release,
	}
	if d.status.ActiveEvacuatorSince != nil {
		o.Since = d.status.ActiveEvacuatorSince.Sub(start)
	}
	if d.status.EvacuationProgressTimestamp != nil {
		o.Progress = d.status.EvacuationProgressTimestamp.Sub(start)
	}
	for _, condition := range d.status.Conditions {
		value := condition.Reason
		if condition.Status != metav1.ConditionTrue {
			value = "not: " + value
		}
		switch condition.Type {
		case v1alpha1.ConditionComplete:
			o.Complete = value
		case v1alpha1.ConditionBlocked:
			o.Blocked = value
		}
	}
	if !d.wake.IsZero() {
		o.Wake = d.wake.Sub(start)
	}
	var reasons []string
	for _, e := range d.events {
		reasons = append(reasons, e.reason)
	}
	o.Events = strings.Join(reasons, " ")
	return o
}

type decideTest struct {
	evacuation *v1alpha1.Evacuation
	pod        *corev1.Pod
	mod        func(*situation)
	at         time.Duration
	want       outcome
	// says is a part of the message in the status.
	says string
}

func runDecide(t *testing.T, tests map[string]decideTest) {
	t.Helper()
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := situation{
				now: start.Add(tc.at), evacuation: tc.evacuation, pod: tc.pod,
				podType: v1alpha1.PodTypeDefault, servingSince: start.Add(-hour),
				completedTTL: DefaultCompletedTTL, startDeadline: DefaultEvacuatorStartDeadline, seen: sets.New[string](),
				surgeTimeout: protocol.DefaultSurgeTimeout, budgetPatience: protocol.DefaultBudgetPatience, longGrace: protocol.DefaultLongGrace,
			}
			if tc.mod != nil {
				tc.mod(&s)
			}
			before := tc.evacuation.DeepCopy()
			got := decide(s)
			tc.want.Policy = cmp.Or(tc.want.Policy, allow)
			if outcomeOf(got) != tc.want {
				t.Errorf("wrong decision (-want +got):\n%s", diff.Diff(tc.want, outcomeOf(got)))
			}
			if !strings.Contains(got.status.Message, tc.says) {
				t.Errorf("got message %q, want %q in it", got.status.Message, tc.says)
			}
			if !equality.Semantic.DeepEqual(before, tc.evacuation) {
				t.Errorf("decide changed the cached object:\n%s", diff.Diff(before, tc.evacuation))
			}
		})
	}
}

func TestDecideCompletion(t *testing.T) {
	completed := withCondition(v1alpha1.ConditionComplete, v1alpha1.ReasonPodDeleted, minute)
	runDecide(t, map[string]decideTest{
		"the pod is deleted": {
			evacuation: upForEviction(), at: minute,
			want: outcome{Active: evict, Complete: "PodDeleted", Wake: 6 * minute},
		},
		"the pod was deleted before an evacuator was active": {
			evacuation: newEvacuation(withEvacuators(classA)), at: minute,
			want: outcome{Complete: "PodDeleted", Wake: 6 * minute},
		},
		"the pod has succeeded": {
			evacuation: upForEviction(), pod: newPod(inPhase(corev1.PodSucceeded)), at: minute,
			want: outcome{Active: evict, Complete: "PodTerminated", Wake: 6 * minute},
		},
		"the pod has failed": {
			evacuation: upForEviction(), pod: newPod(inPhase(corev1.PodFailed)), at: minute,
			want: outcome{Active: evict, Complete: "PodTerminated", Wake: 6 * minute},
		},
		"the pod has failed and the kubelet has cleaned up": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(0), inPhase(corev1.PodFailed)), at: minute,
			want: outcome{Active: evict, Complete: "PodTerminated", Wake: 6 * minute},
		},
		"Blocked is cleared when the pod is deleted": {
			evacuation: newEvacuation(active(evict),
				withCondition(v1alpha1.ConditionBlocked, "PodDisruptionBudget", 0)),
			at:   minute,
			want: outcome{Active: evict, Complete: "PodDeleted", Blocked: "not: NotBlocked", Wake: 6 * minute},
		},
		"the last refusals are counted when the pod is deleted": {
			evacuation: upForEviction(), at: minute,
			mod:  func(s *situation) { s.eviction = eviction.State{Known: true, FailedEvictions: 3} },
			want: outcome{Active: evict, Complete: "PodDeleted", FailedEvictions: 3, Wake: 6 * minute},
		},
		"the pod is deleted and the object is being deleted, as in a terminating namespace": {
			evacuation: upForEviction(deleting, withFinalizers(ours, theirs)), at: minute,
			want: outcome{Active: evict, Complete: "PodDeleted", Release: releaseAll},
		},
		"the pod is deleted, and the evacuator has forbidden cancellation": {
			evacuation: newEvacuation(
				withEvacuators(classA), active(classA), withFinalizers(),
				withStatus(func(st *v1alpha1.EvacuationStatus) {
					st.EvacuationCancellationPolicy = forbid
				}),
			), at: minute,
			want: outcome{Active: classA, Policy: forbid, Complete: "PodDeleted", Wake: 6 * minute},
		},
		"a complete Evacuation is kept for the TTL": {
			evacuation: upForEviction(completed), at: 5 * minute,
			want: outcome{Active: evict, Complete: "PodDeleted", Wake: 6 * minute},
		},
		"a complete Evacuation is released after the TTL": {
			evacuation: upForEviction(completed), at: 6 * minute,
			want: outcome{Active: evict, Complete: "PodDeleted", Release: releaseDue},
		},
		"a complete Evacuation with a foreign finalizer is released after the TTL": {
			evacuation: upForEviction(completed, deleting, withFinalizers(foreign)), at: 6 * minute,
			want: outcome{Active: evict, Complete: "PodDeleted", Release: releaseDue},
		},
		"a complete Evacuation that is being deleted with a foreign finalizer is released after the TTL": {
			evacuation: upForEviction(completed, deleting, withFinalizers(theirs, foreign)), at: 2 * minute,
			want: outcome{Active: evict, Complete: "PodDeleted", Release: releaseAll, Wake: 6 * minute},
		},
		"a complete Evacuation of a namespace that has too many is released before the TTL": {
			evacuation: upForEviction(completed), at: 2 * minute,
			mod:  func(s *situation) { s.surplus = true },
			want: outcome{Active: evict, Complete: "PodDeleted", Release: releaseDue},
		},
		"a complete Evacuation is released immediately when it is being deleted": {
			evacuation: upForEviction(completed, deleting), at: minute,
			want: outcome{Active: evict, Complete: "PodDeleted", Release: releaseAll},
		},
		"a cancelled Evacuation is released immediately": {
			evacuation: turnOfA(withFinalizers(),
				withCondition(v1alpha1.ConditionComplete, v1alpha1.ReasonCancelled, minute)),
			pod: newPod(), at: minute,
			want: outcome{Active: classA, Complete: "Cancelled", Release: releaseAll},
		},
	})
}

func TestDecideCancellation(t *testing.T) {
	forbidding := withStatus(func(st *v1alpha1.EvacuationStatus) {
		st.EvacuationCancellationPolicy = forbid
	})
	runDecide(t, map[string]decideTest{
		"no instigator is left": {
			evacuation: upForEviction(withFinalizers(foreign)), pod: newPod(),
			want: outcome{Active: evict, Release: releaseAll, Events: EventCancelled},
		},
		"another instigator is left": {
			evacuation: upForEviction(withFinalizers(theirs)), pod: newPod(), want: outcome{Active: evict, Evict: true},
		},
		"the object is being deleted": {
			evacuation: upForEviction(deleting), pod: newPod(),
			want: outcome{Active: evict, Release: releaseAll, Events: EventCancelled},
		},
		"the object is being deleted without instigators, and another finalizer keeps it": {
			evacuation: upForEviction(deleting, withFinalizers(foreign)), pod: newPod(),
			want: outcome{Active: evict, Wake: minute},
		},
		"no instigator is left before the first evacuator is active": {
			evacuation: newEvacuation(withFinalizers()), pod: newPod(),
			want: outcome{Release: releaseAll, Events: EventCancelled},
		},
		"the evacuator forbids cancellation and reports": {
			evacuation: turnOfA(reported(minute, "moving"), forbidding, withFinalizers()),
			pod:        newPod(), at: 2 * minute,
			want: outcome{Active: classA, Progress: minute, Policy: forbid, Wake: 16 * minute},
		},
		"the evacuator forbids cancellation, then completes: the pod is not evicted": {
			evacuation: newEvacuation(
				withEvacuators(classA, classB), active(classA), reported(minute, "moving"), forbidding,
				withFinalizers(),
				withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true }),
			), pod: newPod(),
			at: 2 * minute,
			want: outcome{
				Active: classA, Progress: minute, Policy: forbid, Completed: true, Complete: "Cancelled",
				Release: releaseAll, Events: EventCancelled,
			},
		},
		"the evacuator forbids cancellation, then does not report: the pod is not evicted": {
			evacuation: turnOfA(reported(minute, "moving"), forbidding, withFinalizers()),
			pod:        newPod(), at: 31 * minute,
			want: outcome{
				Active: classA, Progress: minute, Policy: forbid, Complete: "Cancelled", Release: releaseAll,
				Events: EventCancelled,
			},
		},
		"cancellation is forbidden while the eviction is active": {
			evacuation: upForEviction(forbidding, withFinalizers()), pod: newPod(),
			want: outcome{
				Active: evict, Policy: forbid, Complete: "Cancelled", Release: releaseAll, Events: EventCancelled,
			},
		},
		"cancellation is forbidden while no evacuator is active": {
			evacuation: newEvacuation(forbidding, withFinalizers()), pod: newPod(),
			want: outcome{Policy: forbid, Complete: "Cancelled", Release: releaseAll, Events: EventCancelled},
		},
	})
}

func TestDecideActiveEvacuator(t *testing.T) {
	done := withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true })
	servingSince := func(at time.Duration) func(*situation) {
		return func(s *situation) { s.servingSince = start.Add(at) }
	}
	runDecide(t, map[string]decideTest{
		"the pod is evicted if there are no evacuators": {
			evacuation: newEvacuation(), pod: newPod(), at: minute,
			want: outcome{Active: evict, Since: minute, Evict: true},
			says: "no evacuator was active before",
		},
		"the evacuator with the highest priority becomes active": {
			evacuation: newEvacuation(withEvacuators(classB, classA)), pod: newPod(), at: minute,
			want: outcome{Active: classB, Since: minute, Wake: 3*minute + 30*second},
			says: classB,
		},
		"an evacuator that has not reported has until the start deadline": {
			evacuation: newEvacuation(withEvacuators(classA, classB), active(classA)), pod: newPod(),
			at:   5*minute - second,
			want: outcome{Active: classA, Wake: 5 * minute, Blocked: "EvacuatorNotProgressing", Events: EventBlocked},
		},
		"an evacuator that has not reported by the start deadline hands over": {
			evacuation: newEvacuation(withEvacuators(classA, classB), active(classA)), pod: newPod(),
			at:   5 * minute,
			want: outcome{Active: classB, Since: 5 * minute, Wake: 7*minute + 30*second, Events: EventHandedOver},
			says: "a.example.com has not started within 5m0s",
		},
		"a progress deadline that is shorter than the start deadline replaces it": {
			evacuation: turnOfA(func(e *v1alpha1.Evacuation) {
				e.Spec.ProgressDeadlineSeconds = ptr.To[int32](60)
			}),
			pod: newPod(), at: minute,
			want: outcome{Active: evict, Since: minute, Evict: true, Events: EventHandedOver},
			says: "has not started within 1m0s",
		},
		"a report without a message counts": {
			evacuation: turnOfA(reported(3*second, "")),
			pod:        newPod(), at: 10 * minute,
			want: outcome{Active: classA, Progress: 3 * second, Wake: 15*minute + 3*second},
		},
		"a report right after the hand-over starts the progress deadline": {
			evacuation: turnOfA(reported(time.Millisecond, "")),
			pod:        newPod(), at: 10 * minute,
			want: outcome{Active: classA, Progress: time.Millisecond, Wake: 15*minute + time.Millisecond},
		},
		"a report in the second of the hand-over starts the progress deadline": {
			evacuation: turnOfA(reported(0, "")), pod: newPod(),
			at: 10 * minute, want: outcome{Active: classA, Wake: 15 * minute},
		},
		"an evacuator that reports stays active for the progress deadline": {
			evacuation: turnOfA(reported(20*minute, "copying")),
			pod:        newPod(), at: 49 * minute,
			want: outcome{
				Active: classA, Progress: 20 * minute, Wake: 50 * minute,
				Blocked: "EvacuatorNotProgressing", Events: EventBlocked,
			},
			says: "copying",
		},
		"an evacuator that does not report for the progress deadline hands over": {
			evacuation: turnOfA(reported(20*minute, "copying")),
			pod:        newPod(), at: 50 * minute,
			want: outcome{Active: evict, Since: 50 * minute, Evict: true, Events: EventHandedOver},
			says: "a.example.com has not reported for 30m0s",
		},
		"the default of the progress deadline is half an hour": {
			evacuation: newEvacuation(
				withEvacuators(classA), active(classA), reported(minute, "copying"),
				func(e *v1alpha1.Evacuation) {
					e.Spec.ProgressDeadlineSeconds = nil
				},
			), pod: newPod(), at: 2 * minute,
			want: outcome{Active: classA, Progress: minute, Wake: 16 * minute},
		},
		"an evacuator that has completed hands over immediately, with its message": {
			evacuation: newEvacuation(
				withEvacuators(classA, classB), active(classA), reported(minute, "strategy is Recreate"), done,
				withStatus(func(st *v1alpha1.EvacuationStatus) {
					st.ExpectedEvacuationFinishTime, st.EvacuationCancellationPolicy = after(hour), forbid
				}),
			), pod: newPod(), at: minute,
			want: outcome{Active: classB, Since: minute, Wake: 3*minute + 30*second},
			says: `a.example.com has finished: "strategy is Recreate".`,
		},
		"a new leader waits for reports of evacuators": {
			evacuation: turnOfA(reported(minute, "copying")),
			pod:        newPod(), at: 62 * minute, mod: servingSince(hour),
			want: outcome{Active: classA, Progress: minute, Wake: 62*minute + 30*second},
		},
		"a new leader does not wait longer than the deadline": {
			evacuation: newEvacuation(
				withEvacuators(classA), active(classA), reported(minute, "copying"),
				func(e *v1alpha1.Evacuation) {
					e.Spec.ProgressDeadlineSeconds = ptr.To[int32](60)
				},
			), pod: newPod(), at: 61 * minute,
			mod:  servingSince(hour),
			want: outcome{Active: evict, Since: 61 * minute, Evict: true, Events: EventHandedOver},
		},
		"a new leader hands over immediately from an evacuator that has completed": {
			evacuation: turnOfA(done), pod: newPod(),
			at: 61 * minute, mod: servingSince(hour),
			want: outcome{Active: evict, Since: 61 * minute, Evict: true},
		},
		"an active class that is not in the spec hands over": {
			evacuation: newEvacuation(withEvacuators(classA), active(classB)), pod: newPod(), at: minute,
			want: outcome{Active: evict, Since: minute, Evict: true, Events: EventHandedOver},
		},
		"the start deadline of the DaemonSet evacuator restarts before the drain reaches the pod": {
			evacuation: newEvacuation(withEvacuators(v1alpha1.EvacuatorClassDaemonSet),
				active(v1alpha1.EvacuatorClassDaemonSet)),
			pod: newPod(), at: 3 * minute, mod: func(s *situation) { s.podType = v1alpha1.PodTypeDaemonSet },
			want: outcome{
				Active: v1alpha1.EvacuatorClassDaemonSet, Since: 3 * minute, Wake: 5*minute + 30*second,
			},
		},
		"a start deadline of one second restarts once a second": {
			evacuation: newEvacuation(withEvacuators(v1alpha1.EvacuatorClassDaemonSet),
				active(v1alpha1.EvacuatorClassDaemonSet),
				func(e *v1alpha1.Evacuation) { e.Spec.ProgressDeadlineSeconds = ptr.To[int32](1) }),
			pod: newPod(), at: 3*minute + 700*time.Millisecond, mod: func(s *situation) { s.podType = v1alpha1.PodTypeDaemonSet },
			want: outcome{
				Active: v1alpha1.EvacuatorClassDaemonSet, Since: 3 * minute, Wake: 3*minute + second,
			},
		},
		"the start deadline of the DaemonSet evacuator counts after the drain reaches the pod": {
			evacuation: newEvacuation(withEvacuators(v1alpha1.EvacuatorClassDaemonSet),
				active(v1alpha1.EvacuatorClassDaemonSet)),
			pod: newPod(), at: 5 * minute,
			mod: func(s *situation) { s.targeted, s.podType = true, v1alpha1.PodTypeDaemonSet },
			want: outcome{
				Active: evict, Since: 5 * minute, Blocked: "NoEvacuator", Events: EventHandedOver + " " + EventBlocked,
			},
		},
	})
}

func TestDecideEviction(t *testing.T) {
	budget := &eviction.Blocker{
		Reason: v1alpha1.ReasonPodDisruptionBudget, Message: "PodDisruptionBudget web allows no disruption.",
	}
	wasBlocked := withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget, 0)
	inherited := upForEviction(withCondition(v1alpha1.ConditionBlocked, ofOlderServer, 0))
	runDecide(t, map[string]decideTest{
		"DaemonSet pods are never evicted": {
			evacuation: upForEviction(), pod: newPod(),
			mod:  func(s *situation) { s.podType = v1alpha1.PodTypeDaemonSet },
			want: outcome{Active: evict, Blocked: "NoEvacuator", Events: EventBlocked},
		},
		"static pods are never evicted": {
			evacuation: upForEviction(), pod: newPod(),
			mod:  func(s *situation) { s.podType = v1alpha1.PodTypeStatic },
			want: outcome{Active: evict, Blocked: "NoEvacuator", Events: EventBlocked},
		},
		"the Evacuation waits for a terminating pod": {
			evacuation: upForEviction(), pod: newPod(terminatingUntil(minute)), at: minute,
			want: outcome{Active: evict, Wake: 90 * second},
		},
		"the blocker of the queue becomes the condition Blocked": {
			evacuation: upForEviction(), pod: newPod(),
			mod: func(s *situation) { s.eviction = eviction.State{Known: true, FailedEvictions: 2, Blocker: budget} },
			want: outcome{
				Active: evict, Blocked: "PodDisruptionBudget", FailedEvictions: 2, Evict: true,
				Wake: minute, Events: EventBlocked,
			},
		},
		"the same blocker is not recorded as a second event": {
			evacuation: upForEviction(wasBlocked), pod: newPod(),
			mod:  func(s *situation) { s.eviction = eviction.State{Known: true, Blocker: budget} },
			want: outcome{Active: evict, Blocked: "PodDisruptionBudget", Evict: true, Wake: minute},
		},
		"Blocked is cleared when the queue has no blocker": {
			evacuation: upForEviction(wasBlocked), pod: newPod(),
			mod:  func(s *situation) { s.eviction = eviction.State{Known: true} },
			want: outcome{Active: evict, Blocked: "not: NotBlocked", Evict: true},
		},
		"Blocked stays after a restart until the queue has an answer": {
			evacuation: upForEviction(wasBlocked), pod: newPod(),
			want: outcome{Active: evict, Blocked: "PodDisruptionBudget", Evict: true},
		},
		"a pod does not wait any more for a scale-down that is over": {
			evacuation: upForEviction(func(e *v1alpha1.Evacuation) {
				e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{
					Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPodWaits, Message: "Deployment web is scaled down.",
				})
			}), pod: newPod(),
			want: outcome{Active: evict, Blocked: "not: NotBlocked", Evict: true},
		},
		"Blocked stays with the reason of an older server until the queue has an answer": {
			evacuation: inherited, pod: newPod(),
			mod: func(s *situation) {
				s.eviction = eviction.State{Known: true, Blocker: blockerOf(&inherited.Status)}
			},
			want: outcome{Active: evict, Blocked: ofOlderServer, Evict: true},
		},
		"the queue replaces the reason of an older server": {
			evacuation: inherited, pod: newPod(),
			mod:  func(s *situation) { s.eviction = eviction.State{Known: true} },
			want: outcome{Active: evict, Blocked: "not: NotBlocked", Evict: true},
		},
		"Blocked is cleared when the pod terminates": {
			evacuation: upForEviction(wasBlocked), pod: newPod(terminatingUntil(minute)),
			want: outcome{Active: evict, Blocked: "not: NotBlocked", Wake: 90 * second},
		},
		"the counter of failed evictions never decreases": {
			evacuation: newEvacuation(active(evict),
				withStatus(func(st *v1alpha1.EvacuationStatus) { st.FailedEvictionCounter = 7 })),
			pod: newPod(), want: outcome{Active: evict, FailedEvictions: 7, Evict: true},
		},
		"the grace period has passed": {
			evacuation: upForEviction(), pod: newPod(terminatingUntil(minute)), at: 90 * second,
			want: outcome{Active: evict, Blocked: "PodTerminating", Events: EventBlocked},
		},
		"its containers have ended, and the kubelet cannot unmount its volumes": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(minute), inPhase(corev1.PodFailed)), at: 90 * second,
			want: outcome{Active: evict, Blocked: "PodTerminating", Events: EventBlocked},
		},
		"a finalizer keeps the pod": {
			evacuation: upForEviction(),
			pod:        newPod(terminatingUntil(minute), func(p *corev1.Pod) { p.Finalizers = []string{foreign} }),
			at:         90 * second,
			want:       outcome{Active: evict, Blocked: "PodFinalizer", Events: EventBlocked},
		},
		"the node is unreachable": {
			evacuation: upForEviction(),
			pod:        newPod(terminatingUntil(minute), func(p *corev1.Pod) { p.Finalizers = []string{foreign} }),
			at:         90 * second, mod: func(s *situation) { s.nodeUnreachable = true },
			want: outcome{Active: evict, Blocked: "NodeUnreachable", Events: EventBlocked},
		},
		"another reason is recorded as another event": {
			evacuation: newEvacuation(active(evict),
				withCondition(v1alpha1.ConditionBlocked, "NodeUnreachable", 0)),
			pod: newPod(terminatingUntil(minute)), at: 90 * second,
			want: outcome{Active: evict, Blocked: "PodTerminating", Events: EventBlocked},
		},
	})
}

func TestTurnMessage(t *testing.T) {
	message := turnMessage(classA, strings.Repeat("ä", protocol.MaxMessage))
	is.True(t, len(message) <= protocol.MaxMessage, "got a message of %d bytes, want at most %d", len(message), protocol.MaxMessage)
}
