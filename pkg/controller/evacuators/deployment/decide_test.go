/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package deployment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const web0 = "uid-web-0-web-0"

func TestDecideStart(t *testing.T) {
	leaving := newTestPod("web-0", leaves(ours))
	now := metav1.NewTime(start)
	for name, tc := range map[string]struct {
		s    situation
		want string
		says string
	}{
		"one replica is scaled to two": {
			at(0, newDeployment(1), leaving), "scale to 2 for 1;", "Deployment web is scaled from 1 to 2",
		},
		"as many as leave, within maxSurge": {
			at(0, newDeployment(3, surging("2")), leaving, newTestPod("web-1", leaves(ours)), newTestPod("web-2", leaves(ours))),
			"scale to 5 for 3;", "from 3 to 5",
		},
		"no more than leave": {
			at(0, newDeployment(2, surging("100%")), leaving, newTestPod("web-1")), "scale to 3 for 1;", "from 2 to 3",
		},
		"percentages are rounded up": {
			at(0, newDeployment(5), leaving, newTestPod("web-1", leaves(ours)), newTestPod("web-2", leaves(ours)), newTestPod("web-3"), newTestPod("web-4")),
			"scale to 7 for 3;", "from 5 to 7",
		},
		"nobody leaves": {at(0, newDeployment(1), newTestPod("web-0")), "idle;", ""},
		"those that are in other hands are not ours": {
			at(0, newDeployment(1), newTestPod("web-0", leaves(lanes))), "idle;", "",
		},
		"a change that has not been seen is waited for": {
			at(0, newDeployment(1, func(d *appsv1.Deployment) { d.Generation = 2 }), leaving), "", "not been seen",
		},
		"a rollout is waited for": {
			at(0, newDeployment(1, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 2, 1 }), leaving), "", "rollout is not complete",
		},
		"so is one with a second ReplicaSet": {
			func() situation { s := at(0, newDeployment(1), leaving); s.activeReplicaSets = 2; return s }(), "", "rollout is not complete",
		},
		"pods that the cache has not seen are waited for": {
			at(0, newDeployment(2), leaving), "", "has 1 pods and should have 2",
		},
		"a Recreate strategy declines": {
			at(0, newDeployment(1, func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }), leaving),
			"hand over web-0;", "strategy Recreate",
		},
		"maxSurge 0 declines":  {at(0, newDeployment(1, surging("0")), leaving), "hand over web-0;", "maxSurge 0"},
		"maxSurge 0% declines": {at(0, newDeployment(1, surging("0%")), leaving), "hand over web-0;", "maxSurge 0"},
		"a paused Deployment declines": {
			at(0, newDeployment(1, func(d *appsv1.Deployment) { d.Spec.Paused = true }), leaving), "hand over web-0;", "is paused",
		},
		"one that is being deleted declines": {
			at(0, newDeployment(1, func(d *appsv1.Deployment) { d.DeletionTimestamp = &now }), leaving), "hand over web-0;", "being deleted",
		},
		"one with the annotation declines": {
			at(0, newDeployment(1, func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{maintenancev1alpha1.AnnotationSurge: "Disabled"}
			}), leaving), "hand over web-0;", "maintenance.haulout.dev/surge: Disabled",
		},
		"while the evacuator is off all decline": {
			func() situation { s := at(0, newDeployment(1), leaving); s.off = true; return s }(), "hand over web-0;", "switched off",
		},
		"one that is scaled to 0 declines": {at(0, newDeployment(0), leaving), "hand over web-0;", "scaled to 0"},
		"a volume for one node declines": {
			func() situation { s := at(0, newDeployment(1), leaving); s.oneNodeClaims = []string{"data"}; return s }(),
			"hand over web-0;", "volume claim data is for one node at a time",
		},
		"one that was set back twice declines": {
			at(0, newDeployment(1, annotated(record{UID: testUID, Resets: 2})), leaving), "hand over web-0;", "set its replicas back 2 times",
		},
		"one that was set back once is tried again": {
			at(0, newDeployment(1, annotated(record{UID: testUID, Resets: 1})), leaving), "scale to 2 for 1;", "from 1 to 2",
		},
		"what is left of a count goes when nobody leaves": {
			at(0, newDeployment(1, annotated(record{UID: testUID, Resets: 2})), newTestPod("web-0")), "drop record;", "",
		},
		"a record that cannot be read goes": {
			at(0, newDeployment(1, func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{maintenancev1alpha1.AnnotationSurgeRecord: "{"}
			}), leaving), "drop record;", "",
		},
		"a record from another object goes, and nothing is scaled": {
			at(0, newDeployment(2, annotated(record{UID: "other", From: 1, To: 2, Keep: 1, Since: &now})), newTestPod("web-0"), newTestPod("web-1")),
			"drop record;", "",
		},
		"a record that would end at 0 goes, and nothing is scaled": {
			at(0, newDeployment(2, annotated(record{UID: testUID, From: 0, To: 2, Since: &now})), newTestPod("web-0"), newTestPod("web-1")),
			"drop record;", "",
		},
		"a rollout that is stuck is not waited for longer than the timeout": {
			at(6*time.Minute, newDeployment(1, func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 0 }), leaving), "hand over web-0;", "for 5m0s",
		},
		"unless the budget would not let the pod go": {
			at(6*time.Minute, newDeployment(1, func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 0 }), newTestPod("web-0", leaves(ours), minOne(1, 1))),
			"lower web-0;", "rollout is not complete",
		},
		"one that is stuck by its own deadline is not waited for at all": {
			at(time.Second, newDeployment(1, stuck), leaving), "hand over web-0;", "rollout of Deployment web is stuck (ProgressDeadlineExceeded)",
		},
		"unless the budget would not let the pod go then": {
			at(time.Second, newDeployment(1, stuck), newTestPod("web-0", leaves(ours), minOne(1, 1))), "", "rollout is not complete",
		},
		"a rollout that follows one that was stuck is waited for": {
			at(time.Second, newDeployment(1, stuck, func(d *appsv1.Deployment) { d.Generation = 2 }), leaving), "", "not been seen",
		},
		"a pod that has not been ready for a minute is not replaced": {
			at(0, newDeployment(1), newTestPod("web-0", leaves(ours), unready, readyFor(time.Minute))), "hand over web-0;", "has not been ready for 1m0s",
		},
		"one that has not been ready for less is": {
			at(0, newDeployment(1), newTestPod("web-0", leaves(ours), unready, readyFor(59*time.Second))), "scale to 2 for 1;", "from 1 to 2",
		},
		"so is one that its budget keeps until another one is ready": {
			at(0, newDeployment(1), newTestPod("web-0", leaves(ours), unready, minOne(1, 0))), "scale to 2 for 1;", "from 1 to 2",
		},
		"a budget of zero is its owner's no": {
			at(0, newDeployment(1), newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 1, 1))), "hand over web-0;",
			"not scaled up past PodDisruptionBudget web (maxUnavailable 0), which never allows an eviction: its pods are replaced nevertheless if it has the annotation maintenance.haulout.dev/surge: Always",
		},
		"so is one in percent that rounds up to all pods": {
			at(0, newDeployment(2), newTestPod("web-0", leaves(ours), under(percent("90%"), nil, 2, 2)), newTestPod("web-1")), "hand over web-0;",
			"(minAvailable 90% of at most 3 pods)",
		},
		"a percentage that needs several more pods gets them": {
			at(0, newDeployment(2, surging("900%")), newTestPod("web-0", leaves(ours), under(percent("90%"), nil, 2, 2)), newTestPod("web-1")),
			"scale to 10 for 1;", "from 2 to 10",
		},
		"but the owner may say that it does not matter": {
			at(0, newDeployment(1, always), newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 1, 1))), "scale to 2 for 1;", "from 1 to 2",
		},
		"several budgets decline": {
			at(0, newDeployment(1), newTestPod("web-0", leaves(ours), minOne(1, 1), minOne(1, 1))), "hand over web-0;", "past the PodDisruptionBudgets web, web",
		},
		"a budget that cannot be computed declines": {
			at(0, newDeployment(1), newTestPod("web-0", leaves(ours), minOne(1, 1), syncFailed)), "hand over web-0;", "PodDisruptionBudget web (it cannot be computed)",
		},
		"only the pods under such budgets are declined": {
			at(0, newDeployment(2), newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 2, 2)), newTestPod("web-1", leaves(ours))),
			"scale to 3 for 1;hand over web-0;", "never allows an eviction",
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, decide(tc.s), tc.want, tc.says) })
	}
}

// check compares a decision with its summary and with a part of what is said.
func check(t *testing.T, d decision, want, says string) {
	t.Helper()
	if got := summary(d); got != want {
		t.Errorf("decided %q, want %q", got, want)
	}
	said := ""
	for _, r := range d.reports {
		said += r.message + "\n"
	}
	if !strings.Contains(said, says) || says == "" && said != "" {
		t.Errorf("says %q, want %q", said, says)
	}
}

func TestDecideHold(t *testing.T) {
	up := recorded(1, 2, web0)
	scaled := func(mods ...func(*appsv1.Deployment)) *appsv1.Deployment {
		return newDeployment(2, append(mods, up)...)
	}
	later := 9 * time.Second
	for name, tc := range map[string]struct {
		s    situation
		want string
		says string
	}{
		"the surge pod is awaited": {
			at(later, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 1)), newTestPod("web-1", fresh, unready)), "", "web-1 on node node-1 is not ready",
		},
		"the scheduler is quoted": {
			at(later, scaled(), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh, pending("0/3 nodes are available: 3 Insufficient cpu."))),
			"", "surge pod web-1 is Pending: 0/3 nodes are available: 3 Insufficient cpu.",
		},
		"a quota is quoted": {
			at(later, scaled(func(d *appsv1.Deployment) {
				d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota: small"}}
			}), newTestPod("web-0", leaves(ours))), "", "no surge pod can be created: exceeded quota: small.",
		},
		"the container is quoted": {
			func() situation {
				s := at(later, scaled(), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh, unready))
				s.waiting = map[string]string{"web-1": "container app waits (ImagePullBackOff)"}
				return s
			}(), "", "is not ready: container app waits (ImagePullBackOff).",
		},
		"the node of a volume is named": {
			func() situation {
				s := at(later, scaled(), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh, unready))
				s.waiting = map[string]string{"web-1": "volume data: still attached to node-7"}
				return s
			}(), "", "waits for volume data: still attached to node-7.",
		},
		"ready is not yet available": {
			at(later, scaled(func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 30 }), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh)),
			"", "has to stay so until",
		},
		"available on a node that is under maintenance does not count": {
			at(later, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 2)), newTestPod("web-1", fresh, cordoned)), "", "under maintenance itself",
		},
		"a pod under a budget goes to its lane, and the surge stays": {
			at(later, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 2)), newTestPod("web-1", fresh)), "hand over web-0;", "available in its place",
		},
		"while it is there the surge stays": {
			at(later, scaled(), newTestPod("web-0", leaves(lanes), minOne(2, 2)), newTestPod("web-1", fresh)), "", "",
		},
		"when it has gone the surge is taken back": {
			at(later, scaled(), newTestPod("web-1", fresh), newTestPod("web-2", fresh, pending(""))), "back to 1;", "",
		},
		"when all have gone that a full record has room for, the next ones take their place": {
			at(later, newDeployment(2, recorded(1, 2, slices.Repeat([]string{"gone"}, maxRecorded)...)), newTestPod("web-0", leaves(ours), minOne(2, 2)), newTestPod("web-1", fresh)),
			"scale to 2 for 1;", "from 1 to 2",
		},
		"a pod without a budget gets the lowest deletion cost": {
			at(later, scaled(), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh)), "lower web-0;", "",
		},
		"and then the surge is taken back": {
			at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", fresh)), "back to 1;", "lowest deletion cost",
		},
		"a budget that never has room does not keep a pod whose owner wants it replaced": {
			at(later, newDeployment(2, up, always), newTestPod("web-0", leaves(ours), cheapest, under(nil, ptrTo(0), 2, 2)), newTestPod("web-1", fresh)),
			"back to 1;", "lowest deletion cost",
		},
		"a budget that has become one that never allows an eviction ends the surge, the pod not being the first to go": {
			at(later, scaled(), newTestPod("web-0", leaves(ours), cheapest, under(nil, ptrTo(0), 2, 2)), newTestPod("web-1", fresh)),
			"restore web-0;", "",
		},
		"and when its deletion cost is what it was, the surge is taken back": {
			at(later, scaled(), newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 2, 2)), newTestPod("web-1", fresh)),
			"back to 1;hand over web-0;", "never allows an eviction",
		},
		"it does not hold the surge in other hands either": {
			at(later, scaled(), newTestPod("web-0", leaves(lanes), under(nil, ptrTo(0), 2, 2)), newTestPod("web-1", fresh)), "back to 1;", "",
		},
		"a pod that its budget keeps at the end of its turn is not the first to go with the scale-down": {
			at(15*time.Minute, scaled(), newTestPod("web-0", leaves(ours), cheapest, under(ptrTo(4), nil, 6, 4)), newTestPod("web-1", fresh, cordoned)),
			"restore web-0;", "",
		},
		"several budgets end the surge": {
			at(later, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 2), minOne(2, 2)), newTestPod("web-1", fresh)), "back to 1;hand over web-0;", "past the",
		},
		"a pod that is blocked for less than the timeout keeps the surge": {
			goneAt(start, at(5*time.Minute-time.Second, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2)), newTestPod("web-1", fresh))), "", "",
		},
		"one that is blocked for longer does not": {
			goneAt(start, at(5*time.Minute, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2)), newTestPod("web-1", fresh))), "back to 1;", "",
		},
		"unless another one has gone since": {
			goneAt(start.Add(time.Second), at(5*time.Minute, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2)), newTestPod("web-1", fresh))), "", "",
		},
		"and is not the first to go with the scale-down": {
			goneAt(start, at(5*time.Minute, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 2), cheapest), newTestPod("web-1", fresh))),
			"restore web-0;", "",
		},
		"one that is blocked since its replacement is not there keeps the surge": {
			goneAt(start, at(time.Hour, scaled(), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 1)), newTestPod("web-1", fresh, unready))), "", "",
		},
		"a turn in which the surge flaps ends after three timeouts": {
			at(15*time.Minute, scaled(), newTestPod("web-0", leaves(ours), reported(14*time.Minute)), newTestPod("web-1", fresh, unready)),
			"back to 1;hand over web-0;", "No other replica has taken its place in 15m0s",
		},
		"not before": {
			at(15*time.Minute-time.Second, scaled(), newTestPod("web-0", leaves(ours), cheapest, reported(14*time.Minute)), newTestPod("web-1", fresh, unready)),
			"", "not ready",
		},
		"it does not end while the budget waits for the replacement only": {
			at(time.Hour, scaled(), newTestPod("web-0", leaves(ours), cheapest, minOne(2, 1)), newTestPod("web-1", fresh, unready)),
			"", "PodDisruptionBudget web lets no pod go",
		},
		"it ends where the budget lacks pods of others as well": {
			at(15*time.Minute, scaled(), newTestPod("web-0", leaves(ours), under(ptrTo(4), nil, 6, 3)), newTestPod("web-1", fresh, unready)),
			"back to 1;hand over web-0;", "PodDisruptionBudget web would let no pod go with more replicas either",
		},
		"it ends where the replacements are there and do not help": {
			at(15*time.Minute, newDeployment(3, recorded(2, 3, web0, "uid-web-1-web-1")), newTestPod("web-0", leaves(lanes), under(ptrTo(3), nil, 3, 3)),
				newTestPod("web-1", leaves(ours), under(ptrTo(3), nil, 3, 3)), newTestPod("web-2", fresh)), "hand over web-1;", "with more replicas either",
		},
		"pods of which one has gone lately wait as long again": {
			func() situation {
				s := at(15*time.Minute, scaled(), newTestPod("web-0", leaves(ours), cheapest, reported(14*time.Minute)), newTestPod("web-1", fresh, unready))
				s.memory.delivered = start.Add(12 * time.Minute)
				return s
			}(), "", "not ready",
		},
		"a pod that waits is the first that a scale-down by its user takes": {
			at(10*time.Second, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 1)), newTestPod("web-1", fresh, unready)), "lower web-0;", "not ready",
		},
		"one at a time": {
			at(10*time.Second, newDeployment(4, recorded(3, 4, web0, "uid-web-1-web-1")), newTestPod("web-0", leaves(ours), minOne(4, 3)),
				newTestPod("web-1", leaves(ours), minOne(4, 3)), newTestPod("web-2"), newTestPod("web-3", fresh, unready)), "lower web-0;", "not ready",
		},
		"and not in the same moment": {
			func() situation {
				s := at(10*time.Second, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 1)), newTestPod("web-1", fresh, unready))
				s.memory.lowered = start.Add(10*time.Second - time.Millisecond)
				return s
			}(), "", "not ready",
		},
		"a deletion cost that could not be restored does not keep the surge up": {
			func() situation {
				s := at(later, scaled(), newTestPod("web-0", cheapest), newTestPod("web-1", fresh))
				s.attempts = map[types.UID]attempts{"uid-web-0": {failed: 1, next: start.Add(5 * time.Second)}}
				return s
			}(), "back to 1;restore web-0;", "",
		},
		"it is not tried again before its time": {
			func() situation {
				s := at(later, scaled(), newTestPod("web-0", cheapest), newTestPod("web-1", fresh))
				s.attempts = map[types.UID]attempts{"uid-web-0": {failed: 2, next: start.Add(15 * time.Second)}}
				return s
			}(), "back to 1;", "",
		},
		"nor after five attempts": {
			func() situation {
				s := at(time.Hour, newDeployment(1), newTestPod("web-0", cheapest))
				s.attempts = map[types.UID]attempts{"uid-web-0": {failed: 5}}
				return s
			}(), "idle;", "",
		},
		"a sick one of its kind does not hold it": {
			at(later, newDeployment(4, recorded(3, 4, web0)), newTestPod("web-0", leaves(ours), minOne(4, 3)), newTestPod("web-1"), newTestPod("web-2", unready),
				newTestPod("web-3", fresh)), "hand over web-0;", "available in its place",
		},
		"but a replacement that is sick does": {
			at(later, newDeployment(4, recorded(3, 4, web0)), newTestPod("web-0", leaves(ours), minOne(4, 3)), newTestPod("web-1"), newTestPod("web-2", unready),
				newTestPod("web-3", fresh, unready)), "", "not ready",
		},
		"each replacement is for one pod": {
			at(later, newDeployment(4, recorded(3, 4, web0, "uid-web-1-web-1")), newTestPod("web-1", leaves(ours), minOne(4, 2)), newTestPod("web-2", unready),
				newTestPod("web-3", fresh), newTestPod("web-4", fresh, unready)), "", "not ready",
		},
		"a pod from just before the surge is no replacement": {
			at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours)), newTestPod("web-1", justBefore)), "", "has not been created yet",
		},
		"nor is it one while the replacement is not available": {
			at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours)), newTestPod("web-1", justBefore), newTestPod("web-2", fresh, unready)),
			"", "0 of 1 are available; surge pod web-2 on node node-1 is not ready",
		},
		"and it serves, also on a node that somebody has cordoned": {
			at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), minOne(3, 3)), newTestPod("web-1", justBefore, cordoned), newTestPod("web-2", fresh)),
			"hand over web-0;", "available in its place",
		},
		"a pod that was handed over counts as gone": {
			at(later, newDeployment(3, recorded(2, 3, web0, "uid-web-1-web-1")), newTestPod("web-0", leaves(lanes), minOne(3, 3)),
				newTestPod("web-1", leaves(ours), minOne(3, 3)), newTestPod("web-2", fresh)), "", "waits for the others",
		},
		"a pod whose turn has ended without a replacement does not serve": {
			at(later, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), minOne(3, 3)), newTestPod("web-1", leaves(lanes), minOne(3, 3)),
				newTestPod("web-2", fresh)), "", "1 of 1 are available",
		},
		"cancelled: the surge is taken back and nothing goes": {
			at(later, scaled(), newTestPod("web-0"), newTestPod("web-1", fresh)), "back to 1;", "",
		},
		"cancelled: first the deletion costs are restored": {
			at(later, scaled(), newTestPod("web-0", cheapest), newTestPod("web-1", fresh)), "restore web-0;", "",
		},
		"somebody has set it back": {
			at(later, newDeployment(1, up), newTestPod("web-0", leaves(ours))), "record 1 resets;", "",
		},
		"somebody has set it back and nobody leaves any more": {
			at(later, newDeployment(1, up), newTestPod("web-0")), "drop record;", "",
		},
		"somebody has scaled on":   {at(later, newDeployment(5, up), newTestPod("web-0", leaves(ours))), "drop record;", ""},
		"somebody has scaled to 0": {at(later, newDeployment(0, up), newTestPod("web-0", leaves(ours))), "drop record;", ""},
		"paused meanwhile": {
			at(later, scaled(func(d *appsv1.Deployment) { d.Spec.Paused = true }), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh)),
			"back to 1;hand over web-0;", "is paused",
		},
		"switched off meanwhile": {
			func() situation {
				s := at(later, scaled(), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh))
				s.off = true
				return s
			}(), "back to 1;hand over web-0;", "switched off",
		},
		"deleted meanwhile": {
			at(later, scaled(func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{Time: start} }), newTestPod("web-0", leaves(ours))),
			"hand over web-0;", "being deleted",
		},
		"rolled out meanwhile": {
			at(later, scaled(func(d *appsv1.Deployment) { d.Status.Replicas = 3 }), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh)),
			"", "waits for a rollout",
		},
		"one more leaves and maxSurge allows it": {
			at(later, newDeployment(5, recorded(4, 5, web0), surging("2")), newTestPod("web-0", leaves(ours)), newTestPod("web-1", leaves(ours)), newTestPod("web-2"),
				newTestPod("web-3"), newTestPod("web-4", fresh)), "scale to 6 for 2;", "from 4 to 6",
		},
		"one more leaves and maxSurge does not allow it": {
			at(later, newDeployment(5, recorded(4, 5, web0)), newTestPod("web-0", leaves(ours)), newTestPod("web-1", leaves(ours)), newTestPod("web-2"),
				newTestPod("web-3"), newTestPod("web-4", fresh)), "scale to 5 for 2;", "from 4 to 5",
		},
		"no progress for too long, and nothing holds the pod": {
			at(6*time.Minute, scaled(), newTestPod("web-0", leaves(ours)), newTestPod("web-1", fresh, unready)), "back to 1;hand over web-0;", "No progress",
		},
		"no progress for too long, and the budget holds the pod": {
			at(6*time.Minute, scaled(), newTestPod("web-0", leaves(ours), minOne(2, 1)), newTestPod("web-1", fresh, unready)), "lower web-0;", "PodDisruptionBudget web lets no pod go",
		},
		"no progress for too long, and the budget lets a pod go without the surge": {
			at(6*time.Minute, scaled(), newTestPod("web-0", leaves(ours), under(nil, ptr.To(intstr.FromInt32(1)), 2, 1)), newTestPod("web-1", fresh, unready)),
			"back to 1;hand over web-0;", "No progress",
		},
		"a new leader gives it time": {
			func() situation {
				s := at(6*time.Minute, scaled(), newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-1", fresh, unready))
				s.servingSince = start.Add(5 * time.Minute)
				return s
			}(), "", "not ready",
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, decide(tc.s), tc.want, tc.says) })
	}
}

func TestDecideWithAutoscaler(t *testing.T) {
	leaving := newTestPod("web-0", leaves(ours))
	up := newAutoscaler(2, 3, 2)
	annotated(record{UID: "uid-hpa", From: 1, To: 2, Keep: 1, Since: &metav1.Time{Time: start}, Evacuations: []string{web0}})(&appsv1.Deployment{})
	withRecord := func(a *autoscalingv2.HorizontalPodAutoscaler, r record) *autoscalingv2.HorizontalPodAutoscaler {
		var d appsv1.Deployment
		annotated(r)(&d)
		a = a.DeepCopy()
		a.Annotations = d.Annotations
		return a
	}
	up = withRecord(up, record{UID: "uid-hpa", From: 1, To: 2, Keep: 1, Since: &metav1.Time{Time: start}, Evacuations: []string{web0}})
	for name, tc := range map[string]struct {
		s    situation
		want string
		says string
	}{
		"its minReplicas is raised":            {at(0, newDeployment(1), leaving).scaledBy(newAutoscaler(1, 3, 1)), "scale to 2 for 1;", "by HorizontalPodAutoscaler web"},
		"from what it has, not from its least": {at(0, newDeployment(1), leaving).scaledBy(newAutoscaler(1, 4, 3)), "scale to 4 for 1;", "from 3 to 4"},
		"it has no room":                       {at(0, newDeployment(1), leaving).scaledBy(newAutoscaler(1, 1, 1)), "hand over web-0;", "maxReplicas is 1"},
		"there are two":                        {at(0, newDeployment(1), leaving).scaledBy(newAutoscaler(1, 3, 1), newAutoscaler(1, 3, 1)), "hand over web-0;", "2 HorizontalPodAutoscalers"},
		"it is not able to scale": {
			at(0, newDeployment(1), leaving).scaledBy(func() *autoscalingv2.HorizontalPodAutoscaler {
				a := newAutoscaler(1, 3, 1)
				a.Status.Conditions[0].Status = corev1.ConditionFalse
				return a
			}()), "hand over web-0;", "AbleToScale",
		},
		"it never scales down": {
			at(0, newDeployment(1), leaving).scaledBy(func() *autoscalingv2.HorizontalPodAutoscaler {
				a := newAutoscaler(1, 3, 1)
				a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
					ScaleDown: &autoscalingv2.HPAScalingRules{SelectPolicy: ptr.To(autoscalingv2.DisabledPolicySelect)},
				}
				return a
			}()), "hand over web-0;", "HorizontalPodAutoscaler web, which never scales down",
		},
		"its budget grows with it, whatever the owner says": {
			at(0, newDeployment(1, always), newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 1, 1))).scaledBy(newAutoscaler(1, 3, 1)),
			"hand over web-0;", "in vain under PodDisruptionBudget web (maxUnavailable 0)",
		},
		"somebody keeps it as it is": {
			at(0, newDeployment(1), leaving).scaledBy(func() *autoscalingv2.HorizontalPodAutoscaler {
				a := newAutoscaler(1, 3, 1)
				a.OwnerReferences = []metav1.OwnerReference{{Kind: "ScaledObject", Name: "web", Controller: ptr.To(true)}}
				return a
			}()), "hand over web-0;", "ScaledObject web",
		},
		"it is slow":                             {at(9*time.Second, newDeployment(1), leaving).scaledBy(up), "", "has not scaled the Deployment yet"},
		"pods without a budget are evicted, too": {at(9*time.Second, newDeployment(2), leaving, newTestPod("web-1", fresh)).scaledBy(up), "hand over web-0;", "available"},
		"it is taken back":                       {at(9*time.Second, newDeployment(2), newTestPod("web-1", fresh)).scaledBy(up), "back to 1;", ""},
		"what it adds for the load stays": {
			at(9*time.Second, newDeployment(3), leaving, newTestPod("web-1", fresh), newTestPod("web-2", fresh, unready)).scaledBy(up), "", "not ready",
		},
		"somebody has changed its minReplicas": {
			at(9*time.Second, newDeployment(3), leaving).scaledBy(withRecord(newAutoscaler(3, 5, 3), *mustRecord(up))), "drop record;", "",
		},
		"the Deployment is gone": {
			func() situation { s := at(9*time.Second, newDeployment(1)).scaledBy(up); s.deployment = nil; return s }(), "back to 1;", "",
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, decide(tc.s), tc.want, tc.says) })
	}
}

func mustRecord(a *autoscalingv2.HorizontalPodAutoscaler) *record {
	r, garbage := readRecord(a, 0)
	if garbage {
		panic("no record")
	}
	return r
}

func TestFullRecordMakesRoom(t *testing.T) {
	for name, tc := range map[string]struct {
		gone, leaving       int
		wantGone, wantNames int
	}{
		"not for a few":                      {worthDropping - 1, 2, 0, maxRecorded},
		"for many at once":                   {worthDropping, 2, worthDropping, maxRecorded - worthDropping},
		"not while all that it names are up": {0, 0, 0, maxRecorded},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			var pods []pod
			for i := range maxRecorded {
				class := lanes
				if i < tc.gone+tc.leaving {
					class = ours
				}
				p := newTestPod(fmt.Sprintf("web-%d", i), leaves(class), minOne(2, 2))
				names = append(names, p.evacuation.Name)
				if i >= tc.gone {
					pods = append(pods, p)
				}
			}
			s := at(time.Minute, newDeployment(300, recorded(200, 300, names...)), pods...)
			r := *s.target.record
			r.dropGone(s)
			if r.Gone != tc.wantGone || len(r.Evacuations) != tc.wantNames {
				t.Errorf("counts %d and names %d, want %d and %d", r.Gone, len(r.Evacuations), tc.wantGone, tc.wantNames)
			}
		})
	}
}

func TestMisses(t *testing.T) {
	s := at(0, newDeployment(1), newTestPod("web-0", leaves(ours), cheapest))
	s.memory.dropped = []string{"web-0"}
	d := decide(s)
	check(t, d, "scale to 2 for 1;", "from 1 to 2")
	if d.memory.misses != 1 {
		t.Errorf("counted %d misses, want 1", d.memory.misses)
	}
	s.memory = d.memory
	s.memory.dropped = []string{"web-0"}
	check(t, decide(s), "hand over web-0;", "2 scale-downs in a row")
}
