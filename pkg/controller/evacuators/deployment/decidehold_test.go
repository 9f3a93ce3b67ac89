// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/is"
)

// awaitsCosts returns a situation in which a scale-down has waited for writes of deletion costs
// since the start.
func awaitsCosts(after time.Duration, d *appsv1.Deployment, pods ...pod) situation {
	s := at(after, d, pods...)
	s.memory.costsSince = start
	return s
}

// answered replaces the answers of the API server.
func answered(answer eviction.Consent, s situation) situation {
	for uid := range s.memory.answers {
		s.memory.answers[uid] = consent{Consent: answer, at: s.now, text: "not today"}
	}
	return s
}

// costs sets the deletion cost of a pod.
func costs(cost string) podMod {
	return func(p *pod) { p.Pod.Annotations = map[string]string{corev1.PodDeletionCost: cost} }
}

func keepsCost(p *pod) {
	p.Pod.Annotations = map[string]string{v1alpha1.AnnotationDeletionCost: v1alpha1.DeletionCostKeep}
}

func TestDecideHold(t *testing.T) {
	const back = "back to 1;hand over web-0;"
	leaving := func() pod { return newTestPod("web-0", leaves(ours)) }
	starting := func() pod { return newTestPod("web-1", fresh, unready) }
	replacement := func() pod { return newTestPod("web-1", fresh) }
	surplus := func() pod { return newTestPod("web-1", fresh, cheapest) }
	up := recorded(1, 2, web0)
	scaled := func(mods ...func(*appsv1.Deployment)) *appsv1.Deployment {
		return newDeployment(2, append(mods, up)...)
	}
	slow := func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 30 }
	later := 9 * time.Second
	for name, tc := range map[string]struct {
		s    situation
		want string
		says string
	}{
		"the pod waits for the surge pod": {
			s:    at(later, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 1)), starting()),
			says: "web-1 on node node-1 is not ready",
		},
		"the scheduler is quoted": {
			s: at(later, scaled(), leaving(),
				newTestPod("web-1", fresh, pending("0/3 nodes are available: 3 Insufficient cpu."))),
			says: "surge pod web-1 is Pending: 0/3 nodes are available: 3 Insufficient cpu.",
		},
		"a quota is quoted": {
			s: at(later, scaled(func(d *appsv1.Deployment) {
				d.Status.Conditions = []appsv1.DeploymentCondition{
					{
						Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue,
						Reason: failedCreate, Message: "exceeded quota: small",
					},
				}
			}), leaving()),
			says: "no surge pod can be created: exceeded quota: small.",
		},
		"the container is quoted": {
			s: func() situation {
				s := at(later, scaled(), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh, unready))
				s.memory.waiting = map[string]string{"web-1": "container app waits (ImagePullBackOff)"}
				return s
			}(),
			says: "is not ready: container app waits (ImagePullBackOff).",
		},
		"a ready surge pod is not available before minReadySeconds": {
			s:    at(later, scaled(slow), leaving(), replacement()),
			says: "must stay ready until",
		},
		"no available pod leaves while too few are available": {
			s: at(later, newDeployment(3, recorded(2, 3, web0), slow), newTestPod("web-0", leaves(ours), cheapest, minOne(3, 3)),
				newTestPod("web-1", readyFor(0)), newTestPod("web-2", fresh)),
			says: "must stay ready until",
		},
		"no available pod is evicted while another one is about to be available": {
			s: at(later, newDeployment(3, recorded(2, 3, web0), slow), newTestPod("web-0", leaves(ours), keepsCost, readyFor(time.Hour)),
				newTestPod("web-1", readyFor(0)), newTestPod("web-2", fresh, readyFor(time.Minute))),
			says: "waits for its other replicas",
		},
		"no available pod is evicted while another one has been unready for a moment": {
			s: at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), keepsCost),
				newTestPod("web-1", unready, readyFor(0)), newTestPod("web-2", fresh)),
			says: "waits for its other replicas",
		},
		"an available pod is evicted although another one is sick": {
			s: at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), keepsCost),
				newTestPod("web-1", unready, readyFor(sickAfter)), newTestPod("web-2", fresh)),
			want: "hand over web-0;", says: "available in its place",
		},
		"pods that are ready but not available leave as their budget allows": {
			s: at(later, newDeployment(4, recorded(2, 4, web0, "uid-web-1-web-1"), slow),
				newTestPod("web-0", leaves(ours), cheapest, readyFor(0), under(ptrTo(2), nil, 4, 3)),
				newTestPod("web-1", leaves(ours), cheapest, readyFor(0), under(ptrTo(2), nil, 4, 3)),
				newTestPod("web-2", fresh), newTestPod("web-3", fresh)),
			says: "must stay ready until",
		},
		"an available surge pod on a node under maintenance does not count": {
			s: at(
				later, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 2)),
				newTestPod("web-1", fresh, cordoned),
			),
			says: "which is cordoned",
		},
		"a pod under a budget gets the lowest deletion cost": {
			s:    at(later, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 2)), replacement()),
			want: "lower web-0;",
		},
		"the surge is reverted after the cost of a pod under a budget was lowered": {
			s:    at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest, minOne(2, 2)), replacement()),
			want: "back to 1;",
		},
		"a pod that a webhook refuses is handed over, and the surge stays": {
			s:    answered(eviction.ConsentDenied, at(later, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 2)), replacement())),
			want: "hand over web-0;", says: "The eviction is refused for now: not today.",
		},
		"a pod without a budget that a webhook refuses is handed over": {
			s:    answered(eviction.ConsentDenied, at(later, scaled(), leaving(), replacement())),
			want: "hand over web-0;", says: "The eviction is refused for now: not today.",
		},
		"a pod that only a scale-down can remove and a webhook refuses stays": {
			s: answered(eviction.ConsentDenied, at(later, newDeployment(2, up, always),
				newTestPod("web-0", leaves(ours), cheapest, under(nil, ptrTo(0), 2, 2)), replacement())),
			says: "waits for its other replicas. The eviction is refused for now: not today.",
		},
		"the refusal is quoted when its turn ends": {
			s: answered(eviction.ConsentDenied, at(15*time.Minute, newDeployment(2, up, always),
				newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 2, 2)), surplus())),
			want: back, says: "with more replicas either. The eviction is refused for now: not today.",
		},
		"a pod whose budget is closed for a moment waits": {
			s:    answered(eviction.ConsentLater, at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest, minOne(2, 2)), replacement())),
			says: "1 of 1 are available",
		},
		"the API server is asked again if its answer is old": {
			s: changed(at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest, minOne(2, 2)), replacement()),
				func(s *situation) { s.now = s.now.Add(answerTTL) }),
		},
		"a pod is evicted if another one has the lowest cost": {
			s: at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), minOne(3, 3)),
				newTestPod("web-1", minOne(3, 3), costs("-2147483648")), newTestPod("web-2", fresh)),
			want: "hand over web-0;", says: "available in its place",
		},
		"a pod with a malformed cost is evicted": {
			s:    at(later, scaled(), newTestPod("web-0", leaves(ours), costs("low"), minOne(2, 2)), replacement()),
			want: "hand over web-0;", says: "available in its place",
		},
		"a pod is evicted if its budget is not met without the extra replicas": {
			s:    at(later, newDeployment(3, recorded(1, 3, web0)), newTestPod("web-0", leaves(ours), under(ptrTo(2), nil, 3, 3)), replacement(), newTestPod("web-2", fresh)),
			want: "hand over web-0;", says: "available in its place",
		},
		"the scale-down waits until it is observed": {
			s:    at(later, scaled(func(d *appsv1.Deployment) { d.Generation++ }), newTestPod("web-0", leaves(ours), cheapest, minOne(2, 2)), replacement()),
			says: "1 of 1 are available",
		},
		"the surge stays until the handed-over pod has left": {
			s: at(later, scaled(), newTestPod("web-0", leaves(lanes), minOne(2, 2)), replacement()),
		},
		"the surge is reverted after the pod has left": {
			s: at(later, scaled(), replacement(), newTestPod("web-2", fresh, pending(""))), want: "back to 1;",
		},
		"the surge stays until the ReplicaSet has replaced the pod that has left": {
			s: at(later, scaled(), replacement()),
		},
		"the surge is reverted if the ReplicaSet does not replace the pod for a while": {
			s: changed(at(later, scaled(), replacement()), func(s *situation) {
				s.memory.gone, s.memory.goneAt = 1, s.now.Add(-replaceTime)
			}),
			want: "back to 1;",
		},
		"a surge that is given up stays until the ReplicaSet has replaced the pod that has left": {
			s: at(later, scaled(func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
			}), replacement()),
		},
		"a scale-down waits until the ReplicaSet has replaced the pod that has left": {
			s: at(later, newDeployment(3, recorded(1, 3, web0, "gone")),
				newTestPod("web-0", leaves(ours), cheapest), replacement()),
			says: "the pod waits until the ReplicaSet has replaced the pods that have left.",
		},
		"a scale-down waits for another one": {
			s: changed(at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest, minOne(2, 2)), replacement()), func(s *situation) {
				s.unconfirmed = func(pods []*pod) string { return pods[0].Name + " may leave" }
			}),
			says: "the pod waits until web-0 may leave.",
		},
		"a scale-down waits for the API server": {
			s: changed(at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest, minOne(2, 2)), replacement()), func(s *situation) {
				s.memory.answers, s.memory.askedSince = nil, s.now.Add(-askedLong)
			}),
			says: "the pod waits until the API server agrees that pods may leave.",
		},
		"a scale-down waits until its budget no longer counts a pod of another workload": {
			s: changed(at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest, under(ptrTo(2), nil, 3, 3)), replacement()), func(s *situation) {
				s.others = map[types.NamespacedName]int32{testKey: 1}
				s.healthyUnder = func(*policyv1.PodDisruptionBudget) int32 { return 2 }
			}),
			says: "the pod waits until the status of PodDisruptionBudget web no longer counts pods that are not healthy any more.",
		},
		"a scale-down does not wait for a budget that allows it without the pods that have left": {
			s: changed(at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest, under(ptrTo(2), nil, 4, 4)), replacement()), func(s *situation) {
				s.others = map[types.NamespacedName]int32{testKey: 2}
				s.healthyUnder = func(*policyv1.PodDisruptionBudget) int32 { return 3 }
			}),
			want: "back to 1;",
		},
		"a scale-down does not wait for long": {
			s: changed(at(later, newDeployment(3, recorded(1, 3, web0, "gone")),
				newTestPod("web-0", leaves(ours), cheapest), replacement()), func(s *situation) {
				s.memory.gone, s.memory.goneAt = 1, s.now.Add(-replaceTime)
			}),
			want: "scale to 2 for 2;",
		},
		"the surge is reverted if the ReplicaSet cannot replace the pod": {
			s: at(later, scaled(func(d *appsv1.Deployment) {
				d.Status.Conditions = []appsv1.DeploymentCondition{
					{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: failedCreate, Message: "denied"},
				}
			}), replacement()),
			want: "back to 1;",
		},
		"other pods join a full record after its pods have left": {
			s: at(later, newDeployment(2, recorded(1, 2, slices.Repeat([]string{"gone"}, maxRecorded)...)),
				newTestPod("web-0", leaves(ours), minOne(2, 2)), replacement()),
			want: "scale to 2 for 1;", says: "from 1 to 2",
		},
		"a pod without a budget gets the lowest deletion cost": {
			s: at(later, scaled(), leaving(), replacement()), want: "lower web-0;",
		},
		"a pod without a budget that keeps its deletion cost is handed over": {
			s:    at(later, scaled(), newTestPod("web-0", leaves(ours), keepsCost), replacement()),
			want: "hand over web-0;", says: "available in its place",
		},
		"the cost of a pod that only a scale-down can remove is lowered although the pod should keep it": {
			s: at(later, newDeployment(2, up, always),
				newTestPod("web-0", leaves(ours), keepsCost, under(nil, ptrTo(0), 2, 2)), replacement()),
			want: "lower web-0;",
		},
		"the surge is reverted after the cost was lowered": {
			s:    at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest), replacement()),
			want: "back to 1;",
		},
		"a pod under a budget that never allows an eviction leaves by scale-down with surge: Always": {
			s: at(later, newDeployment(2, up, always),
				newTestPod("web-0", leaves(ours), cheapest, under(nil, ptrTo(0), 2, 2)), replacement()),
			want: "back to 1;",
		},
		"a budget that now never allows an eviction ends the surge, and the cost of web-0 is restored first": {
			s: at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest, under(nil, ptrTo(0), 2, 2)),
				replacement()),
			want: "lower web-1;restore web-0;",
		},
		"after the cost of web-0 is restored, the surge is reverted": {
			s:    at(later, scaled(), newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 2, 2)), surplus()),
			want: back, says: "never allows an eviction",
		},
		"such a budget ends the surge also for a handed-over pod": {
			s:    at(later, scaled(), newTestPod("web-0", leaves(lanes), under(nil, ptrTo(0), 2, 2)), surplus()),
			want: "back to 1;",
		},
		"the cost of a pod is restored before the scale-down at the end of its turn": {
			s: at(15*time.Minute, scaled(), newTestPod("web-0", leaves(ours), cheapest, under(ptrTo(4), nil, 6, 4)),
				newTestPod("web-1", fresh, cordoned)),
			want: "lower web-1;restore web-0;",
		},
		"several budgets end the surge": {
			s:    at(later, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 2), minOne(2, 2)), surplus()),
			want: back, says: "under the PodDisruptionBudgets",
		},
		"a pod that is blocked for less than the timeout keeps the surge": {
			s: goneAt(
				start,
				at(5*time.Minute-time.Second, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2)),
					replacement()),
			),
		},
		"a pod that is blocked for longer does not keep the surge": {
			s: goneAt(start, at(5*time.Minute, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2)),
				surplus())),
			want: "back to 1;",
		},
		"a pod that is blocked for longer keeps the surge when a replacement becomes available": {
			s: changed(goneAt(start, at(5*time.Minute, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2)), surplus())),
				func(s *situation) { s.memory.available = 0 }),
		},
		"a pod that is blocked for long can leave when a late replacement becomes available": {
			s: changed(goneAt(start, at(time.Hour, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2)), surplus())),
				func(s *situation) { s.memory.available = 0 }),
		},
		"a pod that is blocked for longer keeps the surge right after its turn has ended": {
			s: changed(goneAt(start, at(5*time.Minute, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2)), surplus())),
				func(s *situation) { s.memory.delivered = start.Add(4 * time.Minute) }),
		},
		"a pod that is blocked for longer keeps the surge if another pod has left since": {
			s: goneAt(
				start.Add(time.Second),
				at(5*time.Minute, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2)), replacement()),
			),
		},
		"the cost of a blocked pod is restored before the scale-down": {
			s: goneAt(
				start,
				at(5*time.Minute, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2), cheapest),
					replacement()),
			),
			want: "lower web-1;restore web-0;",
		},
		"a pod that is blocked because its replacement is unavailable keeps the surge": {
			s: goneAt(start, at(time.Hour, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 1)),
				starting())),
		},
		"a pod that its budget keeps from another client for less than the timeout keeps the surge": {
			s: goneAt(start, at(5*time.Minute-time.Second, scaled(), newTestPod("web-0", leaves(lanes), evictedByOthers, minOne(2, 1)),
				replacement())),
		},
		"a pod that its budget keeps from another client for longer does not keep the surge": {
			s: goneAt(start, at(5*time.Minute, scaled(), newTestPod("web-0", leaves(lanes), evictedByOthers, minOne(2, 1)),
				surplus())),
			want: "back to 1;",
		},
		"a pod that another client may evict keeps the surge": {
			s: goneAt(start, at(time.Hour, scaled(), newTestPod("web-0", leaves(lanes), evictedByOthers, minOne(2, 2)), surplus())),
		},
		"a turn in which the surge flaps ends after three timeouts": {
			s:    at(15*time.Minute, scaled(), newTestPod("web-0", leaves(ours), reported(14*time.Minute)), starting()),
			want: back, says: "No replacement is available after 15m0s",
		},
		"a turn in which the surge flaps does not end before three timeouts": {
			s: at(15*time.Minute-time.Second, scaled(),
				newTestPod("web-0", leaves(ours), cheapest, reported(14*time.Minute)),
				starting()),
			says: "not ready",
		},
		"the turn does not end while the budget only lacks the replacement": {
			s:    at(time.Hour, scaled(), newTestPod("web-0", leaves(ours), cheapest, minOne(2, 1)), starting()),
			says: "PodDisruptionBudget web allows no disruption",
		},
		"the turn ends if the budget also lacks other pods": {
			s:    at(15*time.Minute, scaled(), newTestPod("web-0", leaves(ours), under(ptrTo(4), nil, 6, 3)), starting()),
			want: back,
			says: "PodDisruptionBudget web would not allow a disruption with more replicas either",
		},
		"the turn ends if the available replacements do not help": {
			s: at(15*time.Minute, newDeployment(3, recorded(2, 3, web0, "uid-web-1-web-1")),
				newTestPod("web-0", leaves(lanes), under(ptrTo(3), nil, 3, 3)),
				newTestPod("web-1", leaves(ours), under(ptrTo(3), nil, 3, 3)), newTestPod("web-2", fresh)),
			want: "hand over web-1;", says: "with more replicas either",
		},
		"the turn starts again after another pod was handed over": {
			s: changed(at(15*time.Minute, scaled(), newTestPod("web-0", leaves(ours), cheapest, reported(14*time.Minute)),
				starting()), func(s *situation) { s.memory.delivered = start.Add(12 * time.Minute) }),
			says: "not ready",
		},
		"the surge waits for a deletion cost that cannot be restored": {
			s:    awaitsCosts(29*time.Second, scaled(), newTestPod("web-0", cheapest), newTestPod("web-1", fresh)),
			want: "lower web-1;restore web-0;",
		},
		"the wait for a deletion cost ends, and the surge is reverted": {
			s:    awaitsCosts(30*time.Second, scaled(), newTestPod("web-0", cheapest), newTestPod("web-1", fresh)),
			want: "back to 1;lower web-1;restore web-0;",
		},
		"the scale-down waits for a deletion cost that cannot be lowered": {
			s:    awaitsCosts(29*time.Second, scaled(), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh)),
			want: "lower web-0;", says: "the pod waits until the deletion costs of pods are written",
		},
		"the scale-down is not made without the lower cost, since it would delete the other pod": {
			s:    awaitsCosts(30*time.Second, scaled(), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh)),
			want: "lower web-0;", says: "waits until the deletion costs of pods are written",
		},
		"the costs of pods that may stay are restored first": {
			s: at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), cheapest),
				newTestPod("web-1", cheapest), newTestPod("web-2", fresh)),
			want: "restore web-1;",
		},
		"the evacuator restores no costs without a surge": {
			s: at(time.Hour, newDeployment(1), newTestPod("web-0", cheapest)), want: "idle;",
		},
		"another pod that is unready does not delay the hand-over": {
			s: at(later, newDeployment(4, recorded(3, 4, web0)), newTestPod("web-0", leaves(ours), minOne(4, 3)),
				newTestPod("web-1"), newTestPod("web-2", unready), newTestPod("web-3", fresh)),
			want: "hand over web-0;", says: "available in its place",
		},
		"a replacement that is unready delays the hand-over": {
			s: at(later, newDeployment(4, recorded(3, 4, web0)), newTestPod("web-0", leaves(ours), minOne(4, 3)),
				newTestPod("web-1"), newTestPod("web-2", unready), newTestPod("web-3", fresh, unready)),
			says: "not ready",
		},
		"each replacement is for one pod": {
			s: at(later, newDeployment(4, recorded(3, 4, web0, "uid-web-1-web-1")),
				newTestPod("web-1", leaves(ours), minOne(4, 2)), newTestPod("web-2", unready),
				newTestPod("web-3", fresh), newTestPod("web-4", fresh, unready)),
			says: "not ready",
		},
		"a pod from just before the surge is no replacement": {
			s:    at(later, newDeployment(3, recorded(2, 3, web0)), leaving(), newTestPod("web-1", justBefore)),
			says: "has not been created yet",
		},
		"a pod from just before the surge is no replacement while the replacement is unavailable": {
			s: at(later, newDeployment(3, recorded(2, 3, web0)), leaving(),
				newTestPod("web-1", justBefore), newTestPod("web-2", fresh, unready)),
			says: "0 of 1 are available; surge pod web-2 on node node-1 is not ready",
		},
		"a pod from just before the surge counts as serving on a node that a user has cordoned": {
			s: at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), minOne(3, 3)),
				newTestPod("web-1", justBefore, cordoned), newTestPod("web-2", fresh)),
			want: "lower web-0;",
		},
		"a handed-over pod uses up its replacement": {
			s: at(later, newDeployment(3, recorded(2, 3, web0, "uid-web-1-web-1")),
				newTestPod("web-0", leaves(lanes), minOne(3, 3)), newTestPod("web-1", leaves(ours), minOne(3, 3)),
				newTestPod("web-2", fresh)),
			says: "waits for its other replicas",
		},
		"a pod whose turn has ended without a replacement does not count as serving": {
			s: at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), minOne(3, 3)),
				newTestPod("web-1", leaves(lanes), minOne(3, 3)), newTestPod("web-2", fresh)),
			says: "1 of 1 are available",
		},
		"cancelled: the surge is reverted and no pod leaves": {
			s: at(later, scaled(), newTestPod("web-0"), surplus()), want: "back to 1;",
		},
		"cancelled: the deletion costs are restored first": {
			s: at(later, scaled(), newTestPod("web-0", cheapest), surplus()), want: "restore web-0;",
		},
		"cancelled: those of the replacements are lowered first": {
			s: at(later, scaled(), newTestPod("web-0"), replacement()), want: "lower web-1;",
		},
		"cancelled: the cost of a replacement that keeps its own is not lowered": {
			s: at(later, scaled(), newTestPod("web-0"), newTestPod("web-1", fresh, keepsCost)), want: "back to 1;",
		},
		"cancelled: a replacement that is not ready goes first anyway": {
			s: at(later, scaled(), newTestPod("web-0"), starting()), want: "back to 1;",
		},
		"a user has reverted the surge": {s: at(later, newDeployment(1, up), leaving()), want: "record 1 resets;"},
		"a user has reverted the surge while the pod is up for eviction": {
			s: at(later, newDeployment(1, up), newTestPod("web-0", leaves(lanes))), want: "record 1 resets;",
		},
		"a user has reverted the surge and no pod leaves any more": {
			s: at(later, newDeployment(1, up), newTestPod("web-0")), want: "drop record;",
		},
		"a user has scaled up":   {s: at(later, newDeployment(5, up), leaving()), want: "drop record;"},
		"a user has scaled to 0": {s: at(later, newDeployment(0, up), leaving()), want: "drop record;"},
		"the Deployment is paused during the surge": {
			s:    at(later, scaled(func(d *appsv1.Deployment) { d.Spec.Paused = true }), leaving(), surplus()),
			want: back, says: "is paused",
		},
		"the evacuator is disabled during the surge": {
			s:    changed(at(later, scaled(), leaving(), surplus()), func(s *situation) { s.off = true }),
			want: back, says: "is disabled",
		},
		"the Deployment is deleted during the surge": {
			s: at(later, scaled(func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{Time: start} }),
				leaving()),
			want: "hand over web-0;", says: "being deleted",
		},
		"a rollout starts during the surge": {
			s:    at(later, scaled(func(d *appsv1.Deployment) { d.Status.Replicas = 3 }), leaving(), replacement()),
			says: "waits for a rollout",
		},
		"one more pod leaves and maxSurge allows a replacement": {
			s: at(later, newDeployment(5, recorded(4, 5, web0), surging("2")), leaving(),
				newTestPod("web-1", leaves(ours)), newTestPod("web-2"), newTestPod("web-3"),
				newTestPod("web-4", fresh)),
			want: "scale to 6 for 2;", says: "from 4 to 6",
		},
		"one more pod leaves and maxSurge does not allow a replacement": {
			s: at(later, newDeployment(5, recorded(4, 5, web0)), leaving(),
				newTestPod("web-1", leaves(ours)), newTestPod("web-2"), newTestPod("web-3"),
				newTestPod("web-4", fresh)),
			want: "scale to 5 for 2;", says: "from 4 to 5",
		},
		"no progress for too long, without a budget": {
			s: at(6*time.Minute, scaled(), leaving(), starting()), want: back, says: "No progress",
		},
		"no progress for too long, and the budget does not allow the eviction": {
			s: at(6*time.Minute, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 1)),
				newTestPod("web-1", fresh, unready)),
			says: "PodDisruptionBudget web allows no disruption",
		},
		"no progress for too long, and the budget allows the eviction without the surge": {
			s: at(6*time.Minute, scaled(),
				newTestPod("web-0", leaves(ours), under(nil, ptr.To(intstr.FromInt32(1)), 2, 1)),
				starting()),
			want: back, says: "No progress",
		},
		"a new leader waits longer": {
			s:    changed(at(6*time.Minute, scaled(), newTestPod("web-0", leaves(ours), cheapest), starting()), func(s *situation) { s.servingSince = start.Add(5 * time.Minute) }),
			says: "not ready",
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, decide(tc.s), tc.want, tc.says) })
	}
}

// TestAnOpenBudgetIsNotBlamed: no pod can be created, and the budget would allow the eviction.
func TestAnOpenBudgetIsNotBlamed(t *testing.T) {
	d := newDeployment(5, recorded(4, 5, web0), func(d *appsv1.Deployment) {
		d.Status.Conditions = []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: failedCreate, Message: "denied",
		}}
	})
	for says, budget := range map[string]podMod{
		"no surge pod can be created: denied. No progress for 5m0s; the pod stays because PodDisruptionBudget web allows no disruption.": under(nil, ptrTo(0), 4, 4),
		"no surge pod can be created: denied.": under(nil, ptrTo(1), 4, 4),
	} {
		s := at(6*time.Minute, d, newTestPod("web-0", leaves(ours), budget), newTestPod("web-1", budget), newTestPod("web-2", budget), newTestPod("web-3", budget))
		message := s.progressMessage()
		is.True(t, strings.HasSuffix(message, says), "got %q, want %q", message, says)
	}
}
