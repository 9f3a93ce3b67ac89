// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestPodsThatStartOnHeldNodesAreNoReplacements simulates an hour in which each pod of a surge
// starts on a node that is drained, although it does not tolerate the cordon. It also simulates an
// hour in which no pod of the surge starts there.
func TestPodsThatStartOnHeldNodesAreNoReplacements(t *testing.T) {
	for name, tc := range map[string]struct {
		budget int
		never  bool
	}{
		"without a budget":                            {},
		"with minAvailable 1":                         {budget: 1},
		"past a budget that never allows an eviction": {never: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &simulation{
				t: t, rng: rand.New(rand.NewPCG(1, 1)), now: start, wish: 1, calm: true, budget: tc.budget, never: tc.never,
				d: newDeployment(1, surging("1")),
			}
			w.pods = append(w.pods, w.newPod(true))
			evicted := 0
			second := func(held bool) {
				w.now = w.now.Add(time.Second)
				if w.d = w.d.DeepCopy(); tc.never {
					always(w.d)
				}
				w.replicaSet()
				w.kubelet()
				for i := range w.pods {
					if p := &w.pods[i]; p.evacuation == nil && held {
						leaves(ours)(p)
						p.evacuation.Status.ActiveEvacuatorSince = &metav1.Time{Time: w.now}
					}
				}
				// The evacuation controller delays the eviction of pods that return.
				hold := time.Duration(0)
				if evicted > 2 {
					hold = min(10*time.Second<<min(evicted-3, 10), 5*time.Minute)
				}
				if before := len(w.pods); !slices.ContainsFunc(w.pods, func(p pod) bool {
					return p.evacuation != nil && !isOurTurn(p.evacuation) && w.now.Before(p.CreationTimestamp.Add(hold))
				}) {
					w.eviction()
					evicted += before - len(w.pods)
				}
				w.us(false)
				if w.ready() < 1 {
					w.fail("no pod is ready")
				}
			}
			for range 3600 {
				second(true)
				if tc.never {
					// The budget never allows an eviction, so the pods leave by scale-down.
					continue
				}
				i := slices.IndexFunc(w.pods, func(p pod) bool { return p.Name == "web-1" })
				if i < 0 || !isOurTurn(w.pods[i].evacuation) {
					w.fail("web-1 has to leave without a replacement after %s", w.now.Sub(start))
				}
				if quiet := w.now.Sub(protocol.TurnOf(&w.pods[i].evacuation.Status).Since); quiet >= protocol.DefaultProgressDeadline {
					w.fail("its deadline passes: no report for %s", quiet)
				}
			}
			is.True(t, w.next <= 25, "%d pods were started in an hour", w.next)
			for range 3600 {
				second(false)
			}
			if len(w.pods) != 1 || w.pods[0].evacuation != nil || *w.d.Spec.Replicas != 1 {
				w.fail("ends with %d pods of %d", len(w.pods), *w.d.Spec.Replicas)
			}
		})
	}
}

func TestStraysLeaveFirst(t *testing.T) {
	stray := func(class string, mods ...podMod) pod {
		return newTestPod("web-1", append([]podMod{fresh, leaves(class), minOne(2, 2)}, mods...)...)
	}
	first := newTestPod("web-0", leaves(ours), cheapest, minOne(2, 2))
	up := newDeployment(2, recorded(1, 2, web0))
	after := func(holds bool) situation {
		s := at(time.Hour, up, newTestPod("web-0", leaves(ours), cheapest), newTestPod("web-2", fresh, unready))
		s.memory.holds = holds
		return s
	}
	// A pod of two has left, and the other one no longer has to leave.
	atEnd := func(pods ...pod) situation {
		n := int32(len(pods))
		return at(replaceTime, newDeployment(n, recorded(2, n, "gone", web0)), pods...)
	}
	for name, tc := range map[string]struct {
		s          situation
		want, says string
	}{
		"an available stray": {
			s: at(time.Second, up, first, stray(ours)), want: "lower web-1;hand over web-1;", says: "leaves before the other pods",
		},
		"an unready stray": {
			s: at(time.Second, up, first, stray(ours, unready)), want: "lower web-1;hand over web-1;", says: "leaves before the other pods",
		},
		"a stray beside another pod that is unready": {
			s:    at(time.Second, newDeployment(3, recorded(2, 3, web0)), first, newTestPod("web-2", unready), stray(ours)),
			want: "lower web-1;hand over web-1;", says: "leaves before the other pods",
		},
		"a stray that serves for a pod that has left waits": {
			s:    at(time.Second, newDeployment(3, recorded(2, 3, web0, "gone")), first, stray(ours), newTestPod("web-2", fresh, unready)),
			says: "is not ready",
		},
		"such a stray leaves when it has a replacement": {
			s:    at(time.Second, newDeployment(3, recorded(2, 3, web0, "gone")), first, stray(ours), newTestPod("web-2", fresh)),
			want: "lower web-1;hand over web-1;", says: "leaves before the other pods",
		},
		"a stray is deleted first if the surge ends before its eviction": {
			s: atEnd(newTestPod("web-0"), stray(lanes), newTestPod("web-2", fresh)), want: "lower web-1;",
		},
		"a stray with the lowest cost is deleted first as well": {
			s: atEnd(newTestPod("web-0"), stray(lanes, cheapest), newTestPod("web-2", fresh)), want: "back to 2;",
		},
		"a stray that keeps its cost is not deleted in place of a replacement": {
			s: atEnd(newTestPod("web-0"), stray(lanes, keepsCost), newTestPod("web-2", fresh)), want: "lower web-2;",
		},
		"a stray with a malformed cost is not deleted in place of a replacement": {
			s: atEnd(newTestPod("web-0"), stray(lanes, costs("low")), newTestPod("web-2", fresh)), want: "lower web-2;",
		},
		"a replacement stays if one that is not ready is deleted with the stray": {
			s: atEnd(newTestPod("web-0"), stray(lanes), newTestPod("web-2", fresh), newTestPod("web-3", fresh, unready)), want: "lower web-1;",
		},
		"a replacement stays if an unready stray and one that is not ready are deleted": {
			s:    atEnd(newTestPod("web-0"), stray(lanes, unready), newTestPod("web-2", fresh), newTestPod("web-3", fresh, unready)),
			want: "back to 2;",
		},
		"no cost is lowered if only an old pod that is not ready is deleted": {
			s: atEnd(newTestPod("web-0", unready), stray(lanes), newTestPod("web-2", fresh)), want: "back to 2;",
		},
		"no turn ends before the stray has left":                 {s: at(time.Hour, up, first, stray(lanes, blocked)), says: "which is cordoned"},
		"no turn ends before the next pod has had the full time": {s: after(true), says: "is not ready"},
		"the turn ends after that time":                          {s: after(false), want: "restore web-0;"},
		"a stray after all other pods have left": {
			s: at(time.Second, newDeployment(2, recorded(1, 2, "gone")), stray(ours)), want: "scale to 2 for 2;", says: "from 1 to 2",
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, decide(tc.s), tc.want, tc.says) })
	}
}

func TestPodThatWasThereBeforeTheCordonCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		newLeader bool
		says      string
	}{
		"this leader saw it":   {},
		"a new leader did not": {newLeader: true, says: "which is cordoned"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			evacuations, host := scene(newBudget())
			w := newWorld(t, evacuations, host...)
			w.scaled(2, true)
			replacement := newTestPod("web-1", on("good"), fresh, unready, func(p *pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			})
			w.create(replacement)
			w.reported("web-0", false, "web-1 on node good is not ready")
			must.Get(w.host.CoreV1().Nodes().Update(t.Context(), newNode("good", true), metav1.UpdateOptions{}))(w)
			if tc.newLeader {
				w.stop()
				w.run()
			}
			ready := replacement.DeepCopy()
			ready.Status.Conditions[0].Status = corev1.ConditionTrue
			must.Get(w.host.CoreV1().Pods(testNamespace).UpdateStatus(t.Context(), ready, metav1.UpdateOptions{}))(w)
			if tc.newLeader {
				w.reported("web-0", false, tc.says)
				return
			}
			w.allows(2)
			w.scaled(1, false)
		})
	}
}

// TestChangesDuringTheFirstSyncCount: a replacement changes after the first sync of a leader has
// read it from the cache.
func TestChangesDuringTheFirstSyncCount(t *testing.T) {
	evacuations, host := scene()
	host[0] = newDeployment(2, recorded(1, 2, web0))
	replacement := newTestPod("web-1", on("good"), fresh, unready)
	c := newKnowing(t, evacuations, append(host, replacement.Pod))
	c.servingSince.Store(ptr.To(c.clock.Now()))
	read, enqueued := false, false
	c.Client.(*fake.Clientset).PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		read, enqueued = true, c.enqueueOwner(replacement.Pod)
		return false, nil, nil
	})
	must.Do(t, c.syncDeployment(t.Context(), testKey))
	is.True(t, read && enqueued, "read %t, and then enqueued %t", read, enqueued)
}

func TestCancelledSurgeIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene(newBudget())
		w := newWorld(t, evacuations, host...)
		w.scaled(2, true)
		must.Do(w, w.own.MaintenanceV1alpha1().Evacuations(testNamespace).Delete(t.Context(), web0, metav1.DeleteOptions{}))
		w.scaled(1, false)
		if _, err := w.host.CoreV1().Pods(testNamespace).Get(t.Context(), "web-0", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestCancelledSurgeIsKeptUntilEvictionsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene(newBudget())
		w := newUnstartedWorld(t, evacuations, host...)
		w.refuse("web-0")
		w.run()
		w.scaled(2, true)
		w.create(newTestPod("web-1", on("good"), fresh))
		w.allows(2)
		w.reported("web-0", true, "available in its place")
		w.inFlight.Add(inflight.Eviction{UID: "uid-web-0"})
		must.Do(w, w.own.MaintenanceV1alpha1().Evacuations(testNamespace).Delete(t.Context(), web0, metav1.DeleteOptions{}))
		<-time.After(time.Minute)
		synctest.Wait()
		w.scaled(2, true)
		w.inFlight.Remove("uid-web-0")
		w.scaled(1, false)
	})
}

func TestSurgeDoesNotGrowFromTheNumberOfAUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeployment(2, recorded(1, 2, web0), surging("2"))
		d.ManagedFields = replicasManagedBy("kubectl")
		evacuations, host := scene()
		other := newTestPod("web-1", leaves(ours), on("drained"))
		host[0] = d
		w := newWorld(t, append(evacuations, other.evacuation), append(host, other.Pod)...)
		// Both pods leave in a new surge. After it the Deployment has the replica count of the
		// user.
		w.scaled(4, true)
		r, _ := readRecord(w.deployment(), 1)
		is.True(t, r.From == 2, "the surge is from %d to %d", r.From, r.To)
	})
}

func replicasManagedBy(manager string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "apps/v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`),
	}}
}

func TestSurgeOfAnotherTimeIsTakenBack(t *testing.T) {
	leftBehind := func(manager string) *appsv1.Deployment {
		d := newDeployment(2, recorded(1, 2, web0))
		d.ManagedFields = replicasManagedBy(manager)
		return d
	}
	bubble.Run(t, "the number is reverted if it is still ours", func(t *testing.T) {
		w := newWorld(t, nil, leftBehind(fieldManager), newReplicaSet())
		w.scaled(1, false)
	})
	bubble.Run(t, "the number stays if a rollback has restored the record", func(t *testing.T) {
		w := newWorld(t, nil, leftBehind("kubectl"), newReplicaSet())
		w.scaled(2, false)
	})
}
