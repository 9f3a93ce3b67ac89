// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestBlockers(t *testing.T) {
	for name, test := range map[string]struct {
		scene scene
		want  []string
	}{
		"none":                       {scene{pods: webs(3)}, nil},
		"a budget with room for all": {scene{pods: webs(2), budgets: limits{web(2)}}, nil},
		"a budget that splits the pods into groups": {
			scene{pods: webs(5), budgets: limits{web(2)}}, list{"Delayed PodDisruptionBudget: 5 web(2) in 3 rounds"},
		},
		"a budget that is used up": {
			scene{pods: webs(2), budgets: limits{web(0, unhealthy(9))}}, list{"NotNow PodDisruptionBudget: 2 web(0)"},
		},
		"a budget that never allows an eviction": {
			scene{pods: webs(2), budgets: limits{web(0, closed)}}, list{"Never PodDisruptionBudget: 2 web(0)"},
		},
		"a budget that never allows an eviction, and pods that are replaced first": {
			scene{
				evacuators: list{deploymentClass}, owners: owners{rs: true, web: pastBudgets},
				pods: webs(2), budgets: limits{web(0, closed)},
			},
			list{"Delayed PodDisruptionBudget: 2 web(0)"},
		},
		"a budget that never allows an eviction, and pods that are not replaced first": {
			scene{
				evacuators: list{deploymentClass}, owners: owners{rs: true, web: recreating},
				pods: webs(2), budgets: limits{web(0, closed)},
			},
			list{"Never PodDisruptionBudget: 2 web(0)"},
		},
		"a budget that is used up, and pods that are replaced first": {
			scene{
				evacuators: list{deploymentClass}, owners: owners{rs: true, web: pastBudgets},
				pods: webs(2),
				budgets: limits{
					web(0, unhealthy(9), func(b *policyv1.PodDisruptionBudget) {
						b.Spec.MaxUnavailable, b.Spec.MinAvailable = nil, ptr.To(intstr.FromInt32(9))
					}),
				},
			},
			list{"Delayed PodDisruptionBudget: 2 web(0)"},
		},
		"a budget that is used up, and pods whose replacement does not open it": {
			scene{
				evacuators: list{deploymentClass}, owners: owners{rs: true}, pods: webs(2),
				budgets: limits{web(0, unhealthy(9))},
			},
			list{"NotNow PodDisruptionBudget: 2 web(0)"},
		},
		"several budgets, and pods that are replaced first": {
			scene{
				evacuators: list{deploymentClass}, owners: owners{rs: true}, pods: webs(2),
				budgets: limits{budget("b", "web", 5), budget("a", "web", 5)},
			},
			list{"Never MultiplePodDisruptionBudgets: 2 a(5) b(5)"},
		},
		"a budget that cannot be computed": {
			scene{pods: webs(1), budgets: limits{web(0, failed)}},
			list{"Never PodDisruptionBudgetSyncFailed: 1 web(0)"},
		},
		"a budget with an invalid status": {
			scene{pods: webs(1), budgets: limits{web(-1)}}, list{"NotNow TooManyDisruptedPods: 1 web(0)"},
		},
		"a budget that has just changed": {
			scene{pods: webs(1), budgets: limits{web(5, func(b *policyv1.PodDisruptionBudget) { b.Generation = 1 })}},
			list{"NotNow PodDisruptionBudget: 1 web(0)"},
		},
		"several budgets": {
			scene{pods: webs(2), budgets: limits{budget("b", "web", 5), budget("a", "web", 5)}},
			list{"Never MultiplePodDisruptionBudgets: 2 a(5) b(5)"},
		},
		"pods that are not ready hold the budget": {
			scene{
				pods:    slices.Concat(webs(1), podList{pod("sick", "web", "n2", unready)}),
				budgets: limits{web(0, unhealthy(8))},
			},
			list{"NotNow UnhealthyPodsHoldBudget: 2 web(0)"},
		},
		"pods that are not ready, and a policy that allows their eviction": {
			scene{
				pods:    slices.Concat(webs(1), podList{pod("sick", "web", "n2", unready)}),
				budgets: limits{web(0, unhealthy(8), lettingUnreadyGo)},
			},
			list{"NotNow PodDisruptionBudget: 1 web(0)"},
		},
		"each wave gets the whole budget again": {
			scene{
				pods:    slices.Concat(webs(2), podList{pod("x", "web", "n2", withPriority(2000000000))}),
				budgets: limits{web(2)},
			},
			nil,
		},
		"the rounds of all waves are added": {
			scene{
				pods:    slices.Concat(webs(3), podList{pod("x", "web", "n2", withPriority(2000000000))}),
				budgets: limits{web(2)},
			},
			list{"Delayed PodDisruptionBudget: 4 web(2) in 3 rounds"},
		},
		"pending and terminating pods use no budget": {
			scene{
				pods: podList{
					pod("pending", "web", "n1", inPhase(corev1.PodPending)),
					pod("going", "web", "n1", goneBy(-time.Minute)),
				},
				budgets: limits{web(0, closed)},
			},
			nil,
		},
		"the budget of a DaemonSet's pod does not matter to its evacuator": {
			scene{
				evacuators: list{daemonSetClass}, owners: owners{agent: true},
				pods:    webs(1, ownedBy("apps/v1", "DaemonSet", "agent")),
				budgets: limits{web(0, closed)},
			},
			nil,
		},
		"a pod that its DaemonSet does not select": {
			scene{evacuators: list{daemonSetClass}, pods: webs(1, ownedBy("apps/v1", "DaemonSet", "agent"))},
			list{"Never NoEvacuator: 1"},
		},
		"pods without a controller": {scene{pods: webs(2, bare)}, list{"Lost NoController: 2"}},
		"a namespace that is being deleted": {
			scene{pods: webs(2, bare), namespaces: list{"shop"}}, list{"NotNow NamespaceTerminating: 2"},
		},
		"a finalizer":                        {scene{pods: webs(1, held("example.com/a"))}, list{"Delayed PodFinalizer: 1"}},
		"the finalizer of a Job is harmless": {scene{pods: webs(1, held("batch.kubernetes.io/job-tracking"))}, nil},
		"a finalizer of a pod that should be gone": {
			scene{pods: webs(1, held("example.com/a"), goneBy(time.Minute))}, list{"NotNow PodFinalizer: 1"},
		},
		"a pod that should be gone":               {scene{pods: webs(1, goneBy(31*time.Second))}, list{"NotNow PodTerminating: 1"}},
		"a pod whose grace period has just ended": {scene{pods: webs(1, goneBy(29*time.Second))}, nil},
		"a kubelet that does not respond": {
			scene{nodes: []*corev1.Node{node("n1", unreachable)}, pods: webs(1, goneBy(time.Minute))},
			list{"NotNow NodeUnreachable: 1"},
		},
		"the worst effect first, then the most pods": {
			scene{
				pods: slices.Concat(pods(1, "never", "n1"), pods(4, "slow", "n1"), pods(2, "bare", "n1", bare),
					pods(1, "shut", "n2"), pods(3, "closed", "n2"), pods(3, "another", "n2")),
				budgets: limits{
					budget("never", "never", 0, closed), budget("slow", "slow", 1),
					budget("shut", "shut", 0, unhealthy(9)), budget("closed", "closed", 0, unhealthy(9)),
					budget("another", "another", 0, unhealthy(9)),
				},
			},
			list{
				"Never PodDisruptionBudget: 1 never(0)", "NotNow PodDisruptionBudget: 3 another(0)",
				"NotNow PodDisruptionBudget: 3 closed(0)", "NotNow PodDisruptionBudget: 1 shut(0)",
				"Lost NoController: 2", "Delayed PodDisruptionBudget: 4 slow(1) in 4 rounds",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := test.scene.preview(t)
			if got := troubles(out); !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			for i := range out.Blockers {
				b := &out.Blockers[i]
				if b.Message == "" || int(b.PodCount) != len(b.Pods) || b.PodsOmitted != 0 {
					t.Errorf("blocker %+v has no message, or other pods than it counts", b)
				}
			}
		})
	}
}

func TestPodsWithoutABudgetGoInTurns(t *testing.T) {
	db := ownedBy("apps/v1", "StatefulSet", "db")
	runs := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }
	for name, test := range map[string]struct {
		scene scene
		want  []string
		says  string
	}{
		"several pods of a StatefulSet": {
			scene: scene{pods: pods(3, "db", "n1", serving, db)}, want: list{"Delayed TurnsByOwner: 3"},
			says: "protects the pods of StatefulSet shop/db. ",
		},
		"the workload of most pods is named first": {
			scene: scene{pods: slices.Concat(pods(2, "a", "n1", serving), pods(3, "db", "n1", serving, db))},
			want:  list{"Delayed TurnsByOwner: 5"},
			says:  "protects the pods of StatefulSet shop/db, ReplicaSet shop/rs. ",
		},
		"a Deployment is named in the place of its ReplicaSet": {
			scene: scene{
				evacuators: list{deploymentClass}, owners: owners{rs: true, web: unscaled}, pods: webs(2, serving),
			},
			want: list{"Delayed TurnsByOwner: 2"}, says: "protects the pods of Deployment shop/web. ",
		},
		"pods that are replaced first": {
			scene: scene{evacuators: list{deploymentClass}, owners: owners{rs: true}, pods: webs(2, serving)},
		},
		"one pod of a workload":       {scene: scene{pods: pods(1, "db", "n1", serving, db)}},
		"pods that run to completion": {scene: scene{pods: pods(3, "db", "n1", runs, db)}},
		"pods that are not ready":     {scene: scene{pods: pods(3, "db", "n1", serving, db, unready)}},
		"pods of a budget": {
			scene: scene{pods: pods(3, "db", "n1", serving, db), budgets: limits{budget("db", "db", 5)}},
		},
		"turns by owner are disabled": {scene: scene{pods: pods(3, "db", "n1", serving, db), allAtOnce: true}},
	} {
		t.Run(name, func(t *testing.T) {
			out := test.scene.preview(t)
			var got []string
			for _, b := range out.Blockers {
				got = append(got, fmt.Sprintf("%s %s: %d", b.Effect, b.Reason, b.PodCount))
				if test.says == "" || !strings.Contains(b.Message, test.says) {
					t.Errorf("the message is %q, want %q in it", b.Message, test.says)
				}
			}
			is.Slices(t, got, test.want)
		})
	}
}

func TestWhyPodsAreNotReplacedFirst(t *testing.T) {
	for name, test := range map[string]struct {
		web  func(*appsv1.Deployment)
		want string
	}{
		"its strategy": {
			web: recreating,
			want: "No replacement starts first (Deployment web has the strategy Recreate: its pods " +
				"must not run at the same time).",
		},
		"its annotation": {
			web: unscaled,
			want: "No replacement starts first (Deployment web has the annotation " +
				"maintenance.haulout.dev/surge: Disabled).",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := scene{
				evacuators: list{deploymentClass}, owners: owners{rs: true, web: test.web},
				pods: webs(2), budgets: limits{web(0, closed)},
			}.preview(t)
			want := "PodDisruptionBudget web never allows an eviction (maxUnavailable 0) and cannot open by itself. " +
				"The owner of the app can change it (kubectl describe pdb web -n shop). Otherwise the operator of a maintenance can " +
				"remove the node from its selector, or the pod can be deleted by hand. " + test.want
			if got := out.Blockers[0].Message; got != want {
				t.Errorf("got  %q\nwant %q", got, want)
			}
			if got := out.Waves[0].Evacuators; len(got) != 1 || got[0].EvacuatorClass != evictionClass {
				t.Errorf("evacuators are %+v", got)
			}
		})
	}
}

// TestPodsTiedToTheirNodes covers pods with local volumes. No replacement of them can restore their
// budget.
func TestPodsTiedToTheirNodes(t *testing.T) {
	claiming := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}}}
		}
	}
	members := append(pods(1, "db", "n1", claiming("data-0")), pod("db-2", "db", "n2", claiming("data-1")))
	for name, test := range map[string]struct {
		allowed int32
		pinned  []string
		want    []string
	}{
		"more than the budget allows":    {1, []string{"data-0", "data-1"}, []string{"Never BudgetPodsCordoned: 2 db(1)"}},
		"as many as the budget allows":   {2, []string{"data-0", "data-1"}, nil},
		"one, the other can be replaced": {1, []string{"data-0"}, []string{"Delayed PodDisruptionBudget: 2 db(1) in 2 rounds"}},
		"none":                           {1, nil, []string{"Delayed PodDisruptionBudget: 2 db(1) in 2 rounds"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := scene{pods: members, pinned: test.pinned, budgets: limits{budget("db", "db", test.allowed)}}.preview(t)
			is.Slices(t, troubles(out), test.want)
		})
	}
}

// TestPodsTiedByTheirNodeSelector covers pods that a node selector ties to a node, such as the pods
// of a storage system that uses the disks of its hosts. They have no volume claim.
func TestPodsTiedByTheirNodeSelector(t *testing.T) {
	tied := func(host string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: host} }
	}
	labelled := func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelHostname: n.Name} }
	out := scene{
		nodes:   []*corev1.Node{node("n1", labelled), node("n2", labelled)},
		pods:    podList{pod("osd-0", "osd", "n1", tied("n1")), pod("osd-1", "osd", "n2", tied("n2"))},
		budgets: limits{budget("osd", "osd", 1)},
	}.preview(t)
	if got, want := troubles(out), []string{"Never BudgetPodsCordoned: 2 osd(1)"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestPodsThatAskForAStep covers pods that name eviction responders, which the drain does not ask.
func TestPodsThatAskForAStep(t *testing.T) {
	naming := func(names ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, name := range names {
				p.Spec.EvictionResponders = append(p.Spec.EvictionResponders, corev1.EvictionResponder{Name: name})
			}
		}
	}
	for name, test := range map[string]struct {
		pods          podList
		want, message []string
	}{
		"ours": {pods: pods(1, "db", "n1", naming("maintenance.haulout.dev/evacuation"))},
		"two pods, several responders": {
			pods: podList{pod("db-1", "db", "n1", naming("b.example.com/x")), pod("db-2", "db", "n1", naming("a.example.com/x", "b.example.com/x"))},
			want: []string{"Unasked EvictionResponders: 2"}, message: []string{"b.example.com/x, a.example.com/x"},
		},
		"a terminating pod": {pods: pods(1, "db", "n1", naming("a.example.com/x"), goneBy(-time.Minute))},
		"worse than leaving in groups": {
			pods: pods(1, "db", "n1", naming("a.example.com/x"), func(p *corev1.Pod) { p.Finalizers = []string{"example.com/wait"} }),
			want: []string{"Unasked EvictionResponders: 1", "Delayed PodFinalizer: 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := scene{pods: test.pods, budgets: limits{budget("db", "db", 5)}}.preview(t)
			is.Slices(t, troubles(out), test.want)
			for i, words := range test.message {
				is.True(t, strings.Contains(out.Blockers[i].Message, words), "got the message %q, want %q", out.Blockers[i].Message, words)
			}
		})
	}
}

// TestPodsThatAreLostWithTheirJob covers Jobs that fail permanently when a pod is evicted.
func TestPodsThatAreLostWithTheirJob(t *testing.T) {
	ofJob := ownedBy("batch/v1", "Job", "backup")
	job := func(limit, failed int32) owners {
		return owners{job: &batchv1.Job{Spec: batchv1.JobSpec{BackoffLimit: &limit}, Status: batchv1.JobStatus{Failed: failed}}}
	}
	for name, test := range map[string]struct {
		scene scene
		want  []string
	}{
		"a Job that allows no failure": {
			scene: scene{pods: pods(1, "backup", "n1", ofJob), owners: job(0, 0)}, want: []string{"Lost JobFails: 1"},
		},
		"a Job whose pods together are too many failures": {
			scene: scene{pods: pods(3, "backup", "n1", ofJob), owners: job(2, 0)}, want: []string{"Lost JobFails: 3"},
		},
		"a Job with failures left":   {scene: scene{pods: pods(2, "backup", "n1", ofJob), owners: job(6, 4)}},
		"a Job that does not exist":  {scene: scene{pods: pods(1, "backup", "n1", ofJob)}},
		"a Job of another group":     {scene: scene{pods: pods(1, "backup", "n1", ownedBy("batch.example.com/v1", "Job", "backup")), owners: job(0, 0)}},
		"a terminating pod of a Job": {scene: scene{pods: pods(1, "backup", "n1", ofJob, goneBy(-time.Minute)), owners: job(0, 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			is.Slices(t, troubles(test.scene.preview(t)), test.want)
		})
	}
}

// TestNominatedPodsAreWaitedFor covers pods that are only nominated for the node. They are neither
// evicted nor lost.
func TestNominatedPodsAreWaitedFor(t *testing.T) {
	out := scene{pods: append(pods(1, "gated", "n1", bare, nominated), pod("web-1", "web", "n1"))}.preview(t)
	if got, want := troubles(out), []string{"NotNow PodNominated: 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, e := range out.Waves[0].Evacuators {
		if e.PodCount != 1 {
			t.Errorf("got %d pods for evacuator %q, want 1: the nominated pod has none", e.PodCount, e.EvacuatorClass)
		}
	}
}

// TestRemedyOfABudgetThatNeverAllows covers the owners of pods: the remedy must fit the owner.
func TestRemedyOfABudgetThatNeverAllows(t *testing.T) {
	ofOperator := func(p *corev1.Pod) {
		p.OwnerReferences = build.Owner("postgresql.cnpg.io/v1", "Cluster", "pg", "pg")
	}
	for name, test := range map[string]struct {
		scene   scene
		effect  v1alpha1.PreviewEffect
		says    string
		mustNot string
	}{
		"a Deployment that would be scaled up but for its budget": {
			scene: scene{
				evacuators: []string{deploymentClass}, owners: owners{rs: true, web: func(*appsv1.Deployment) {}},
				pods: pods(2, "web", "n1"),
			},
			effect: v1alpha1.PreviewEffectNever, says: "maintenance.haulout.dev/surge: Always", mustNot: "No replacement starts first",
		},
		"an operator, which may move the role of the pod": {
			scene:  scene{pods: pods(1, "web", "n1", ofOperator)},
			effect: v1alpha1.PreviewEffectNotNow, says: "Cluster pg owns the pod", mustNot: "or delete",
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.scene.budgets = limits{budget("web", "web", 0, closed)}
			got := test.scene.preview(t).Blockers[0]
			if got.Effect != test.effect || !strings.Contains(got.Message, test.says) || strings.Contains(got.Message, test.mustNot) {
				t.Errorf("got %s %q, want %s with %q and without %q", got.Effect, got.Message, test.effect, test.says, test.mustNot)
			}
		})
	}
}

func TestPodsNameTheirBlockers(t *testing.T) {
	out := scene{pods: pods(1, "web", "n1", bare), budgets: limits{budget("web", "web", 0, closed)}}.preview(t)
	got := out.Waves[0].Nodes[0].Namespaces[0].Pods[0].Blockers
	if want := []string{
		v1alpha1.ReasonPodDisruptionBudget, v1alpha1.ReasonNoController,
	}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
