// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/is"
)

// withoutReady makes an Evacuation one that an older server created.
func withoutReady(e *v1alpha1.Evacuation) { e.Status.Conditions = nil }

// summaryOf returns the conditions Leaving, Ready and Stalled as text.
func summaryOf(e *v1alpha1.Evacuation) string {
	var parts []string
	for _, c := range e.Status.Conditions {
		if c.Type == v1alpha1.ConditionLeaving || c.Type == v1alpha1.ConditionReady || c.Type == v1alpha1.ConditionStalled {
			parts = append(parts, c.Type+"="+string(c.Status)+":"+c.Reason)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// TestDecideReady decides about new Evacuations. No case without a change of another field or an
// end causes a write.
func TestDecideReady(t *testing.T) {
	const unobserved = "Ready=Unknown:NotObserved"
	refused := func(s *situation) {
		s.eviction = eviction.State{Known: true, Blocker: &eviction.Blocker{Reason: v1alpha1.ReasonPodDisruptionBudget, Message: "The budget is closed."}}
	}
	for name, test := range map[string]struct {
		evacuation *v1alpha1.Evacuation
		pod        *corev1.Pod
		mod        func(*situation)
		at         time.Duration
		state      glance.StateWord
		want       string
		message    string
	}{
		"nothing has happened: no write": {
			evacuation: turnOfA(), pod: newPod(), at: second, state: glance.StateWaiting, want: unobserved,
		},
		"the evacuator has reported: no write": {
			evacuation: turnOfA(reported(second, "copying")), pod: newPod(), at: minute, state: glance.StateMoving, want: unobserved,
		},
		"an older server has created it": {
			evacuation: upForEviction(withoutReady), pod: newPod(), at: second,
			state: glance.StateWaiting, want: "Ready=False:Evacuating", message: "The pod has not left yet",
		},
		"an older server has created it, and the pod has just begun to stop": {
			evacuation: upForEviction(withoutReady), pod: newPod(stoppingFor(minute)), at: second,
			state: glance.StateMoving, want: "Leaving=True:PodStopping Ready=False:Evacuating", message: "The pod has not left yet",
		},
		"an older server has created it, and it is cancelled: no write before the release": {
			evacuation: upForEviction(withoutReady, withFinalizers()), pod: newPod(), at: second, state: glance.StateWaiting,
		},
		"another version has written that it is not complete": {
			evacuation: upForEviction(withStatus(func(st *v1alpha1.EvacuationStatus) {
				st.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonEvacuating}}
			})), pod: newPod(), at: second,
			state: glance.StateWaiting, want: "Ready=False:Evacuating", message: "The pod has not left yet",
		},
		"the budget refuses": {
			evacuation: upForEviction(), pod: newPod(), at: second, mod: refused,
			state: glance.StateBlocked, want: "Ready=False:PodDisruptionBudget", message: "The budget is closed.",
		},
		"the budget no longer refuses": {
			evacuation: upForEviction(withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget, 0)), pod: newPod(), at: second,
			mod:   func(s *situation) { s.eviction = eviction.State{Known: true} },
			state: glance.StateWaiting, want: "Ready=False:Evacuating", message: "The pod has not left yet",
		},
		"the next evacuator is active": {
			evacuation: newEvacuation(withEvacuators(classA), active(classA), withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true })), pod: newPod(), at: second,
			state: glance.StateWaiting, want: "Ready=False:Evacuating", message: "The pod has not left yet",
		},
		"the pod has just begun to stop: no write": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(minute)), at: second, state: glance.StateWaiting, want: unobserved,
		},
		"the pod has just begun to stop after it was blocked": {
			evacuation: upForEviction(withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget, 0)), pod: newPod(stoppingFor(minute)), at: second,
			state: glance.StateMoving, want: "Leaving=True:PodStopping Ready=False:Evacuating", message: "The pod has not left yet",
		},
		"the pod is stopping": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(minute)), at: 5 * second,
			state: glance.StateMoving, want: "Leaving=True:PodStopping Ready=False:Evacuating", message: "The pod has not left yet",
		},
		"the pod does not stop": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(minute)), at: 2 * minute,
			state: glance.StateBlocked, want: "Leaving=True:PodStopping Ready=False:PodTerminating",
			message: "The grace period of the pod ended at " + start.Add(minute).Format(time.RFC3339) + " and it has not stopped, or its volumes are still mounted. Check its containers, its volumes and the kubelet of node " + testNode + ".",
		},
		"the pod is gone": {
			evacuation: upForEviction(withCondition(v1alpha1.ConditionLeaving, v1alpha1.ReasonPodStopping, 0)), at: 12 * second,
			state: glance.StateGone, want: "Ready=True:PodDeleted",
			message: "The pod was gone at " + start.Add(12*second).Format(time.RFC3339) + ", 12s after it was asked to leave.",
		},
		"the pod has ended": {
			evacuation: upForEviction(), pod: newPod(inPhase(corev1.PodSucceeded)), at: 3 * minute,
			state: glance.StateEnded, want: "Ready=True:PodTerminated",
			message: "The pod had ended with phase Succeeded at " + start.Add(3*minute).Format(time.RFC3339) + ", 3m after it was asked to leave.",
		},
		"cancelled after the evacuator had forbidden it": {
			evacuation: upForEviction(withFinalizers(), withStatus(func(st *v1alpha1.EvacuationStatus) { st.EvacuationCancellationPolicy = forbid })),
			pod:        newPod(), at: hour,
			state: glance.StateCancelled, want: "Ready=False:Cancelled Stalled=True:Cancelled",
			message: "The evacuation was cancelled at " + start.Add(hour).Format(time.RFC3339) +
				", 60m after it was asked for, and the pod stays: no instigator requests it any more, and no evacuator is left.",
		},
		"cancelled while the pod stops: no write before the release": {
			evacuation: upForEviction(withFinalizers()), pod: newPod(stoppingFor(minute)), at: 10 * second,
			state: glance.StateWaiting, want: unobserved,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := situation{
				now: start.Add(test.at), evacuation: test.evacuation, pod: test.pod, podType: v1alpha1.PodTypeDefault, servingSince: start.Add(-hour),
				completedTTL: DefaultCompletedTTL, startDeadline: DefaultEvacuatorStartDeadline, surgeTimeout: protocol.DefaultSurgeTimeout,
				budgetPatience: protocol.DefaultBudgetPatience, longGrace: protocol.DefaultLongGrace,
			}
			if test.mod != nil {
				test.mod(&s)
			}
			after := test.evacuation.DeepCopy()
			after.Status = decide(s).status
			is.Equal(t, glance.State(after), test.state, "the state")
			is.Equal(t, summaryOf(after), test.want, "the conditions")
			if test.want == unobserved || test.want == "" {
				is.True(t, equality.Semantic.DeepEqual(after, test.evacuation), "the decision changes %+v", after.Status)
				return
			}
			for _, c := range after.Status.Conditions {
				if c.Type == v1alpha1.ConditionReady {
					is.Equal(t, c.Message, test.message, "the message of Ready")
				}
			}
			if protocol.IsComplete(after) {
				is.Equal(t, after.Status.Message, test.message, "the message of the status")
			}
		})
	}
}
