// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

const web0 = "uid-web-0-web-0"

func TestDecideStart(t *testing.T) {
	const handOver = "hand over web-0;"
	leaving := newTestPod("web-0", leaves(ours))
	now := metav1.NewTime(start)
	for name, tc := range map[string]struct {
		s    situation
		want string
		says string
	}{
		"one replica is scaled to two": {
			s: at(0, newDeployment(1), leaving), want: "scale to 2 for 1;",
			says: "Deployment web is scaled from 1 to 2",
		},
		"one extra replica for each leaving pod, within maxSurge": {
			s: at(0, newDeployment(3, surging("2")), leaving, newTestPod("web-1", leaves(ours)),
				newTestPod("web-2", leaves(ours))),
			want: "scale to 5 for 3;", says: "from 3 to 5",
		},
		"no more extra replicas than leaving pods": {
			s: at(0, newDeployment(2, surging("100%")), leaving, newTestPod("web-1")), want: "scale to 3 for 1;",
			says: "from 2 to 3",
		},
		"percentages are rounded up": {
			s: at(0, newDeployment(5), leaving, newTestPod("web-1", leaves(ours)), newTestPod("web-2", leaves(ours)),
				newTestPod("web-3"), newTestPod("web-4")),
			want: "scale to 7 for 3;", says: "from 5 to 7",
		},
		"no pod leaves": {s: at(0, newDeployment(1), newTestPod("web-0")), want: "idle;"},
		"pods of another evacuator are not replaced": {
			s: at(0, newDeployment(1), newTestPod("web-0", leaves(lanes))), want: "idle;",
		},
		"the start waits until the last change is observed": {
			s: at(0, newDeployment(1, func(d *appsv1.Deployment) { d.Generation = 2 }), leaving), says: "not observed",
		},
		"the start waits for a rollout": {
			s: at(0,
				newDeployment(1, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 2, 1 }),
				leaving),
			says: "rollout is not complete",
		},
		"the start waits for a rollout with a second ReplicaSet": {
			s:    changed(at(0, newDeployment(1), leaving), func(s *situation) { s.activeReplicaSets = 2 }),
			says: "rollout is not complete",
		},
		"the start waits for pods that are missing in the cache": {
			s: at(0, newDeployment(2), leaving), says: "has 1 pods and should have 2",
		},
		"a Recreate strategy declines": {
			s: at(
				0,
				newDeployment(1, func(d *appsv1.Deployment) {
					d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
				}),
				leaving,
			),
			want: handOver, says: "strategy Recreate",
		},
		"maxSurge 0 declines": {s: at(0, newDeployment(1, surging("0")), leaving), want: handOver, says: "maxSurge 0"},
		"maxSurge 0% declines": {
			s: at(0, newDeployment(1, surging("0%")), leaving), want: handOver, says: "maxSurge 0",
		},
		"a paused Deployment declines": {
			s:    at(0, newDeployment(1, func(d *appsv1.Deployment) { d.Spec.Paused = true }), leaving),
			want: handOver, says: "is paused",
		},
		"a Deployment that is being deleted declines": {
			s:    at(0, newDeployment(1, func(d *appsv1.Deployment) { d.DeletionTimestamp = &now }), leaving),
			want: handOver, says: "being deleted",
		},
		"a Deployment with the annotation declines": {
			s: at(0, newDeployment(1, func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{v1alpha1.AnnotationSurge: "Disabled"}
			}), leaving),
			want: handOver, says: "maintenance.haulout.dev/surge: Disabled",
		},
		"all Deployments decline while the evacuator is disabled": {
			s:    changed(at(0, newDeployment(1), leaving), func(s *situation) { s.off = true }),
			want: handOver, says: "is disabled",
		},
		"a Deployment that is scaled to 0 declines": {s: at(0, newDeployment(0), leaving), want: handOver, says: "scaled to 0"},
		"a volume for one node declines": {
			s:    changed(at(0, newDeployment(1), leaving), func(s *situation) { s.oneNodeClaims = []string{"data"} }),
			want: handOver, says: "volume claim data is for one node at a time",
		},
		"a Deployment that was reverted twice declines": {
			s: at(0, newDeployment(1, annotated(record{UID: testUID, Resets: 2})), leaving), want: handOver,
			says: "reverted its replicas 2 times",
		},
		"a Deployment that was reverted once is tried again": {
			s: at(0, newDeployment(1, annotated(record{UID: testUID, Resets: 1})), leaving), want: "scale to 2 for 1;",
			says: "from 1 to 2",
		},
		"the count of reverts is dropped when no pod leaves": {
			s:    at(0, newDeployment(1, annotated(record{UID: testUID, Resets: 2})), newTestPod("web-0")),
			want: "drop record;",
		},
		"the count of reverts stays while a pod is up for eviction": {
			s: at(0, newDeployment(1, annotated(record{UID: testUID, Resets: 2})), newTestPod("web-0", leaves(lanes))),
		},
		"the counter is kept while the report of completion waits for the evacuation controller": {
			s: at(0, newDeployment(1, annotated(record{UID: testUID, Resets: 2})), newTestPod("web-0", leaves(ours), completed)),
		},

		"a record that cannot be read is dropped": {
			s: at(0, newDeployment(1, func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{v1alpha1.AnnotationSurgeRecord: "{"}
			}), leaving),
			want: "drop record;",
		},
		"a record from another object is dropped, and nothing is scaled": {
			s: at(0, newDeployment(2, annotated(record{UID: "other", From: 1, To: 2, Keep: 1, Since: &now})),
				newTestPod("web-0"), newTestPod("web-1")),
			want: "drop record;",
		},
		"a record that would end at 0 is dropped, and nothing is scaled": {
			s: at(0, newDeployment(2, annotated(record{UID: testUID, From: 0, To: 2, Since: &now})),
				newTestPod("web-0"), newTestPod("web-1")),
			want: "drop record;",
		},
		"the turn waits for a rollout without progress until the timeout": {
			s:    at(6*time.Minute, newDeployment(1, func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 0 }), leaving),
			want: handOver, says: "for 5m0s",
		},
		"the turn waits longer if the budget does not allow the eviction": {
			s: at(6*time.Minute, newDeployment(1, func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 0 }),
				newTestPod("web-0", leaves(ours), minOne(1, 1))),
			says: "rollout is not complete",
		},
		"the turn does not wait for a rollout that has exceeded its deadline": {
			s: at(time.Second, newDeployment(1, stuck), leaving), want: handOver,
			says: "rollout of Deployment web is stuck (ProgressDeadlineExceeded)",
		},
		"the turn waits for such a rollout if the budget does not allow the eviction": {
			s:    at(time.Second, newDeployment(1, stuck), newTestPod("web-0", leaves(ours), minOne(1, 1))),
			says: "rollout is not complete",
		},
		"the start waits for a rollout after a stuck one": {
			s:    at(time.Second, newDeployment(1, stuck, func(d *appsv1.Deployment) { d.Generation = 2 }), leaving),
			says: "not observed",
		},
		"a pod that has not been ready for a minute is not replaced": {
			s:    at(0, newDeployment(1), newTestPod("web-0", leaves(ours), unready, readyFor(time.Minute))),
			want: handOver, says: "has not been ready for 1m0s",
		},
		"a pod that has been unready for less is replaced": {
			s:    at(0, newDeployment(1), newTestPod("web-0", leaves(ours), unready, readyFor(59*time.Second))),
			want: "scale to 2 for 1;", says: "from 1 to 2",
		},
		"an unready pod is replaced if its budget does not allow the eviction": {
			s:    at(0, newDeployment(1), newTestPod("web-0", leaves(ours), unready, minOne(1, 0))),
			want: "scale to 2 for 1;", says: "from 1 to 2",
		},
		"a budget with maxUnavailable 0 declines": {
			s:    at(0, newDeployment(1), newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 1, 1))),
			want: handOver,
			says: "not scaled up under PodDisruptionBudget web (maxUnavailable 0), which never allows an eviction: " +
				"its pods are replaced nevertheless if it has the annotation maintenance.haulout.dev/surge: Always",
		},
		"a budget in percent that rounds up to all pods declines": {
			s: at(0, newDeployment(2), newTestPod("web-0", leaves(ours), under(percent("90%"), nil, 2, 2)),
				newTestPod("web-1")),
			want: handOver, says: "(minAvailable 90% of at most 3 pods)",
		},
		"a budget in percent gets several extra replicas if it needs them": {
			s: at(0, newDeployment(2, surging("900%")),
				newTestPod("web-0", leaves(ours), under(percent("90%"), nil, 2, 2)), newTestPod("web-1")),
			want: "scale to 10 for 1;", says: "from 2 to 10",
		},
		"a budget with maxUnavailable 0 does not decline with surge: Always": {
			s:    at(0, newDeployment(1, always), newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 1, 1))),
			want: "scale to 2 for 1;", says: "from 1 to 2",
		},
		"several budgets decline": {
			s:    at(0, newDeployment(1), newTestPod("web-0", leaves(ours), minOne(1, 1), minOne(1, 1))),
			want: handOver, says: "under the PodDisruptionBudgets web, web",
		},
		"a budget that cannot be computed declines": {
			s:    at(0, newDeployment(1), newTestPod("web-0", leaves(ours), minOne(1, 1), syncFailed)),
			want: handOver, says: "PodDisruptionBudget web (it cannot be computed)",
		},
		"only the pods under such budgets are declined": {
			s: at(0, newDeployment(2), newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 2, 2)),
				newTestPod("web-1", leaves(ours))),
			want: "scale to 3 for 1;hand over web-0;", says: "never allows an eviction",
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, decide(tc.s), tc.want, tc.says) })
	}
}

// check compares the summary and a part of the reports of a decision.
func check(t *testing.T, d decision, want, says string) {
	t.Helper()
	is.Equal(t, summary(d), want, "decided")
	said := ""
	for _, r := range d.reports {
		said += r.message + "\n"
	}
	if !strings.Contains(said, says) || says == "" && said != "" {
		t.Errorf("says %q, want %q", said, says)
	}
}

func TestDecideWithAutoscaler(t *testing.T) {
	const handOver = "hand over web-0;"
	leaving := newTestPod("web-0", leaves(ours))
	one := at(0, newDeployment(1), leaving)
	up := newAutoscaler(2, 3, 2)
	annotated(record{
		UID: "uid-hpa", From: 1, To: 2, Keep: 1, Since: &metav1.Time{Time: start}, Evacuations: []string{web0},
	})(&appsv1.Deployment{})
	withRecord := func(a *autoscalingv2.HorizontalPodAutoscaler, r record) *autoscalingv2.HorizontalPodAutoscaler {
		var d appsv1.Deployment
		annotated(r)(&d)
		a = a.DeepCopy()
		a.Annotations = d.Annotations
		return a
	}
	up = withRecord(up, record{
		UID: "uid-hpa", From: 1, To: 2, Keep: 1, Since: &metav1.Time{Time: start}, Evacuations: []string{web0},
	})
	for name, tc := range map[string]struct {
		s    situation
		want string
		says string
	}{
		"its minReplicas is raised": {
			s: one.scaledBy(newAutoscaler(1, 3, 1)), want: "scale to 2 for 1;", says: "by HorizontalPodAutoscaler web",
		},
		"its minReplicas is raised from the current replicas": {
			s: one.scaledBy(newAutoscaler(1, 4, 3)), want: "scale to 4 for 1;", says: "from 3 to 4",
		},
		"its maxReplicas leaves no room": {s: one.scaledBy(newAutoscaler(1, 1, 1)), want: handOver, says: "maxReplicas is 1"},
		"there are two autoscalers": {
			s:    one.scaledBy(newAutoscaler(1, 3, 1), newAutoscaler(1, 3, 1)),
			want: handOver, says: "2 HorizontalPodAutoscalers",
		},
		"it is not able to scale": {
			s: one.scaledBy(func() *autoscalingv2.HorizontalPodAutoscaler {
				a := newAutoscaler(1, 3, 1)
				a.Status.Conditions[0].Status = corev1.ConditionFalse
				return a
			}()),
			want: handOver, says: "AbleToScale",
		},
		"it never scales down": {
			s: one.scaledBy(func() *autoscalingv2.HorizontalPodAutoscaler {
				a := newAutoscaler(1, 3, 1)
				a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
					ScaleDown: &autoscalingv2.HPAScalingRules{SelectPolicy: ptr.To(autoscalingv2.DisabledPolicySelect)},
				}
				return a
			}()),
			want: handOver, says: "HorizontalPodAutoscaler web, which never scales down",
		},
		"surge: Always has no effect under a budget that grows with the replicas": {
			s: at(0, newDeployment(1, always),
				newTestPod("web-0", leaves(ours), under(nil, ptrTo(0), 1, 1))).scaledBy(newAutoscaler(1, 3, 1)),
			want: handOver, says: "without effect under PodDisruptionBudget web (maxUnavailable 0)",
		},
		"a ScaledObject controls the autoscaler": {
			s: one.scaledBy(func() *autoscalingv2.HorizontalPodAutoscaler {
				a := newAutoscaler(1, 3, 1)
				a.OwnerReferences = []metav1.OwnerReference{
					{Kind: "ScaledObject", Name: "web", Controller: ptr.To(true)},
				}
				return a
			}()),
			want: handOver, says: "ScaledObject web",
		},
		"it has not scaled the Deployment yet": {
			s: at(9*time.Second, newDeployment(1), leaving).scaledBy(up), says: "has not scaled the Deployment yet",
		},
		"pods without a budget are handed over": {
			s:    at(9*time.Second, newDeployment(2), leaving, newTestPod("web-1", fresh)).scaledBy(up),
			want: handOver, says: "available",
		},
		"the surge is reverted": {
			s: at(9*time.Second, newDeployment(2), newTestPod("web-1", fresh), newTestPod("web-2", fresh)).scaledBy(up), want: "back to 1;",
		},
		"replicas that it adds for the load stay": {
			s: at(9*time.Second, newDeployment(3), leaving, newTestPod("web-1", fresh),
				newTestPod("web-2", fresh, unready)).scaledBy(up),
			says: "not ready",
		},
		"a user has changed its minReplicas": {
			s: at(9*time.Second, newDeployment(3), leaving).scaledBy(withRecord(newAutoscaler(3, 5, 3),
				*mustRecord(up))),
			want: "drop record;",
		},
		"the Deployment is gone": {
			s:    changed(at(9*time.Second, newDeployment(1)).scaledBy(up), func(s *situation) { s.deployment = nil }),
			want: "back to 1;",
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
		"not for few names":              {worthDropping - 1, 2, 0, maxRecorded},
		"for many names":                 {worthDropping, 2, worthDropping, maxRecorded - worthDropping},
		"not while all named pods exist": {0, 0, 0, maxRecorded},
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
				t.Errorf("counts %d and names %d, want %d and %d",
					r.Gone, len(r.Evacuations), tc.wantGone, tc.wantNames)
			}
		})
	}
}

func TestMisses(t *testing.T) {
	s := at(0, newDeployment(1), newTestPod("web-0", leaves(ours), cheapest))
	s.memory.dropped = []types.UID{"uid-web-0"}
	d := decide(s)
	check(t, d, "scale to 2 for 1;", "from 1 to 2")
	is.True(t, d.memory.misses == 1, "counted %d misses, want 1", d.memory.misses)
	s.memory = d.memory
	s.memory.dropped = []types.UID{"uid-web-0"}
	check(t, decide(s), "hand over web-0;", "2 scale-downs in a row")
}
