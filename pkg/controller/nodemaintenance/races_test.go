// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/rights"
)

// wantEnqueued waits until an event has enqueued a maintenance.
func (f *fixture) wantEnqueued(name string) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%q is enqueued", name), func() bool {
		f.wait(debounce)
		found := false
		for f.queue.Len() > 0 {
			item, _ := f.queue.Get()
			f.queue.Done(item)
			found = found || item == name
		}
		return found
	})
}

// wantWithdrawals waits until an event has enqueued an Evacuation for withdrawal, and syncs it.
func (f *fixture) wantWithdrawals() {
	f.t.Helper()
	f.eventually("an Evacuation is to be withdrawn", func() bool { return f.withdrawals.queue.Len() > 0 })
	if err := f.withdraw(); err != nil {
		f.t.Fatal(err)
	}
	f.cached()
}

func (f *fixture) updatePod(name string, modify func(*corev1.Pod)) {
	f.t.Helper()
	pod, err := f.host.CoreV1().Pods("default").Get(f.ctx, name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	modify(pod)
	if _, err := f.host.CoreV1().Pods("default").Update(f.ctx, pod, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func nominated(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, NominatedNodeName: node}
	}
}

// TestEvacuationsThatTheCacheDoesNotShowAreWithdrawn: a maintenance is completed immediately after
// the controller has created an Evacuation and joined another instigator's Evacuation.
func TestEvacuationsThatTheCacheDoesNotShowAreWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newPod("q", "one", 0), newMaintenance("m",
			createdAt(stageCordon)),
			ourEvacuation("q", "one", instigatedBy(foreignInstigator)))
		f.step("m")
		f.enter("m", v1alpha1.NodeMaintenanceStageDrain)
		// From here on the cache gets no events of Evacuations.
		f.maintenance.PrependWatchReactor("evacuations", func(clienttesting.Action) (bool, watch.Interface, error) {
			f.watches.Begin("evacuations")
			return true, watch.NewFake(), nil
		})
		f.restart()
		f.syncOnce("m")
		f.wantEvacuating("p", "q")
		f.enter("m", stageComplete)
		f.eventually("the maintenance is complete", func() bool {
			if err := f.Controller.sync(f.ctx, "m"); err != nil && !loop.IsOnlyConflict(err) {
				t.Fatal(err)
			}
			if err := errors.Join(f.withdraw(), f.reconcileNodes()); err != nil {
				t.Fatal(err)
			}
			f.wait(time.Second)
			return len(f.nm("m").Finalizers) == 0
		})
		f.wantEvacuating()
		if left := f.evacuationList(); len(left) != 1 || left[0].Spec.PodRef.Name != "q" {
			t.Errorf("got %d Evacuations, want only that of the other instigator", len(left))
		}
	})
}

// TestCompleteWaitsForRequestsInFlight: a maintenance is completed while the controller creates an
// Evacuation for it.
func TestCompleteWaitsForRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, node := newPod("p", "one", 0), newNode("one")
		f := newFixture(t, node, pod, newMaintenance("m", createdAt(stageCordon)))
		f.step("m")
		asked := f.state.Classify(pod, node)
		answer, answered := make(chan struct{}), make(chan error)
		go func() {
			answered <- f.state.Requests.Do(&asked, func() error { <-answer; return nil })
		}()
		synctest.Wait()
		f.enter("m", stageComplete)
		for range 3 {
			f.step("m")
			f.wait(nodestate.RequestPatience)
		}
		f.wantCordon("one", true, "m")
		if len(f.nm("m").Finalizers) == 0 {
			t.Error("the maintenance has ended while a request for an Evacuation is in flight")
		}
		close(answer)
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
		f.step("m")
		f.wait(answerRetry)
		f.step("m")
		f.wantCordon("one", false)
		if finalizers := f.nm("m").Finalizers; len(finalizers) > 0 {
			t.Errorf("got finalizers %v, want none: no Evacuation was created", finalizers)
		}
	})
}

// TestNoEvacuationForACompletedMaintenance: the maintenance is completed in the middle of a sync.
func TestNoEvacuationForACompletedMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, joined := newPod("p", "one", 0), newPod("q", "one", 0)
		f := newFixture(t, newNode("one"), pod, joined, newMaintenance("m", createdAt(stageCordon)),
			ourEvacuation("q", "one", instigatedBy(foreignInstigator)))
		f.step("m")
		f.enter("m", stageDrain)
		before := f.nm("m")
		f.enter("m", stageComplete)
		node := f.node("one")
		for _, err := range []error{
			f.Controller.create(f.ctx, before, ptr.To(f.state.Classify(pod, node))), f.adopt(f.ctx, before, ptr.To(f.state.Classify(joined, node))),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		f.wantEvacuating()
		if f.state.HasOurs("one") {
			t.Error("the node waits for a request that was not sent")
		}
	})
}

// TestNoEvacuationOnADeselectedNode: the selector changes in the middle of a round of requests.
func TestNoEvacuationOnADeselectedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod("p", "one", 0)
		f := newFixture(t, newNode("one"), pod, newMaintenance("m", createdAt(stageCordon)))
		f.step("m")
		f.enter("m", stageDrain)
		before := f.nm("m")
		nm := f.nm("m")
		nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"green"}
		nm.Generation++
		if _, err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.cached()
		if err := f.Controller.create(f.ctx, before, ptr.To(f.state.Classify(pod, f.node("one")))); err != nil {
			t.Error(err)
		}
		f.wantEvacuating()
		if f.state.HasOurs("one") {
			t.Error("the node waits for a request that was not sent")
		}
	})
}

// TestMaintenanceEndsBesideOneThatHasNoTargets covers a second maintenance of the node, whose
// requester may not maintain the node.
func TestMaintenanceEndsBesideOneThatHasNoTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("a", createdMinute(1)))
		f.step("a")
		f.wantEvacuating("p")
		f.rights.refused.Insert("one")
		f.create(newMaintenance("b", createdMinute(2), func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.RequestedBy = &authenticationv1.UserInfo{Username: "other"}
		}))
		f.step("b")
		f.wantEvacuating("p")
		f.enter("a", stageComplete)
		f.step("a")
		f.wantEvacuating()
		if nm := f.nm("a"); len(nm.Finalizers) > 0 {
			t.Errorf("maintenance a has not ended, conditions %v", nm.Status.Conditions)
		}
	})
}

// TestStrayEvacuationsAreWithdrawn covers a leader that writes before it knows that it is no longer
// the leader, or that its maintenance has ended.
func TestStrayEvacuationsAreWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("p", "one", 0), newPod("q", "two", 0),
			newMaintenance("m", createdAt(stageComplete)))
		f.step("m")
		f.create(ourEvacuation("p", "one"))
		f.wantWithdrawals()
		f.wantEvacuating()

		if err := f.host.CoreV1().Nodes().Delete(f.ctx, "two", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.cached()
		f.create(ourEvacuation("q", "two"))
		f.wantWithdrawals()
		f.wantEvacuating()
	})
}

func TestCordonWrittenAfterTheEndOfItsMaintenanceIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m", createdAt(stageCordon)))
		f.step("m")
		f.enter("m", stageComplete)
		f.step("m")
		f.updateNode("one", func(node *corev1.Node) {
			cordoned(node)
			ownedBy(`{"m":"uid-m"}`)(node)
		})
		f.cached()
		go f.nodes.Run(f.ctx, 0)
		f.eventually("the node is released", func() bool { return !f.node("one").Spec.Unschedulable })
		f.wantCordon("one", false)
	})
}

func TestEvacuationIsWithdrawnWhenThePodLosesItsNomination(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"because it was bound to another node": func(pod *corev1.Pod) {
			pod.Spec.NodeName, pod.Status = "green", corev1.PodStatus{Phase: corev1.PodRunning}
		},
		"because another node is nominated": nominated("green"), "because none is nominated": nominated(""),
	} {
		for when, ends := range map[string]func(*fixture){
			"in the middle": func(f *fixture) {
				f.wantWithdrawals()
			},
			"at the end": func(f *fixture) {
				f.enter("m", stageComplete)
				f.step("m")
			},
		} {
			t.Run(name+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t, newNode("one"), newNode("green", inPool("green")), newMaintenance("m"),
						newPod("nominee", "", 0, nominated("one")))
					f.step("m")
					f.create(ourEvacuation("nominee", ""))
					f.step("m")
					f.wantEvacuating("nominee")
					f.updatePod("nominee", change)
					f.cached()
					ends(f)
					f.wantEvacuating()
				})
			})
		}
	}
}

func TestNominatedPodsThatAreBoundKeepTheirEvacuation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("nominee", "", 0, nominated("one")))
		f.step("m")
		f.updatePod("nominee", func(pod *corev1.Pod) {
			pod.Spec.NodeName, pod.Status = "one", corev1.PodStatus{Phase: corev1.PodRunning}
		})
		f.cached()
		f.sweep()
		f.step("m")
		f.wantEvacuating("nominee")
	})
}

// TestDeselectedNodesStayInTheStatusUntilTheyAreReleased deselects nodes without an annotation of
// ours, so that only the status names them.
func TestDeselectedNodesStayInTheStatusUntilTheyAreReleased(t *testing.T) {
	for name, leaves := range map[string]func(*fixture){
		"the label of a node with a foreign cordon changes": func(f *fixture) {
			f.updateNode("foreign", inPool("green"))
		},
		"the selector changes": func(f *fixture) {
			nm := f.nm("m")
			nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions = append(nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions,
				corev1.NodeSelectorRequirement{Key: "kept", Operator: corev1.NodeSelectorOpExists})
			nm.Generation++
			if _, err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm,
				metav1.UpdateOptions{}); err != nil {
				f.t.Fatal(err)
			}
		},
		"the node is deleted": func(f *fixture) {
			if err := f.host.CoreV1().Nodes().Delete(f.ctx, "foreign", metav1.DeleteOptions{}); err != nil {
				f.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, newNode("one",
					func(node *corev1.Node) { node.Labels["kept"] = "" }), newNode("foreign", cordoned),
					newPod("p", "one", 0), newPod("q", "foreign", 0), newPod("gone", "foreign", 0), newMaintenance("m"))
				f.step("m")
				f.wantEvacuating("gone", "p", "q")
				// The Evacuation of the pod exists for a while after the eviction.
				if err := f.host.CoreV1().Pods("default").Delete(f.ctx, "gone", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				failing, refused := true, errors.New("not now")
				f.maintenance.PrependReactor("patch", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
					return failing, nil, refused
				})
				leaves(f)
				f.cached()
				f.syncOnce("m")
				f.wait(selection.Lingering)
				f.cached()
				f.syncOnce("m")
				if err := f.withdraw(); !errors.Is(err, refused) {
					t.Errorf("got error %v, want %v", err, refused)
				}
				if err := f.reconcileNodes(); err != nil {
					t.Error(err)
				}
				f.wantEvacuating("gone", "p", "q")
				f.nodeStatus("m", "foreign")
				failing = false
				// A new leader knows the nodes only from the status.
				f.restart()
				f.wait(selection.Lingering)
				f.step("m")
				f.wait(selection.Lingering)
				f.step("m")
				f.wantEvacuating("p")
				want := 1
				if name == "the node is deleted" {
					want = 2 // the node may be registered again
				}
				if got := len(f.nm("m").Status.NodeStatuses); got != want {
					t.Errorf("got %d node statuses, want %d", got, want)
				}
			})
		})
	}
}

// TestNewLeaderConfirmsDrainedNodes covers a pod on a drained node that is missing in the status
// and in the cache.
func TestNewLeaderConfirmsDrainedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"))
		f.step("m")
		f.wait(nodestate.SettleTime)
		f.step("m")
		f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainComplete)
		f.restart()
		lists, hidden := 0, []corev1.Pod{}
		f.host.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if !strings.Contains(action.(clienttesting.ListAction).GetListRestrictions().Fields.String(),
				"spec.nodeName=one") {
				return false, nil, nil
			}
			lists++
			return true, &corev1.PodList{Items: hidden}, nil
		})
		f.step("m")
		f.step("m")
		f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainComplete)
		if lists != 1 {
			t.Errorf("got %d live lists, want 1", lists)
		}
		hidden = append(hidden, *newPod("hidden", "one", 0))
		f.restart()
		f.step("m")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress)
	})
}

// TestTheLastCountersAreWritten: a drain ends during the pause between two status writes.
func TestTheLastCountersAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("p", "one", 0), newPod("q", "one", 0))
		go f.run(1)
		evacuating := func() int32 {
			for _, n := range f.nm("m").Status.NodeStatuses {
				return n.PodsEvacuating
			}
			return 0
		}
		f.ticking("two pods are counted", func() bool { return evacuating() == 2 })
		f.deletePod("p")
		f.ticking("one pod is counted", func() bool { return evacuating() == 1 })
	})
}

func TestRefusedNodesOfARunningDrainStayAsTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("p", "one", 0), newPod("q", "two", 0),
			newMaintenance("m"))
		f.step("m")
		f.wantEvacuating("p", "q")
		f.rights.refused.Insert("one")
		f.wait(rights.AnswerTTL + time.Second)
		f.create(newPod("r", "one", 0))
		f.create(newPod("s", "two", 0))
		f.updateNode("one", func(node *corev1.Node) { node.Spec.Unschedulable = false })
		f.step("m")
		// Node one is not cordoned again and gets no further Evacuation. Its existing Evacuations
		// stay. Node two drains.
		f.wantEvacuating("p", "q", "s")
		f.wantCordon("one", false, "m")
		f.sweep()
		f.wantEvacuating("p", "q", "s")
		if got := f.nodeStatus("m", "one").DrainTargets; len(got) == 0 {
			t.Error("the status has no targets of node one")
		}
		f.rights.refused.Delete("one")
		f.wait(rights.AnswerTTL + time.Second)
		f.step("m")
		f.wantEvacuating("p", "q", "r", "s")
		f.wantCordon("one", true, "m")
	})
}

// TestRequestsAreSentInRounds sends requests that take a quarter of roundTime each. After roundTime
// the maintenance must be reconciled again, so that the user can cancel it.
func TestRequestsAreSentInRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newMaintenance("m"))
		var sent atomic.Int32
		err := f.inRounds(f.ctx, "m", 10*maxParallel, func(context.Context, int) error {
			sent.Add(1)
			<-time.After(roundTime / 4)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// Five batches are sent, since the fifth begins exactly at the end of roundTime.
		if got := sent.Load(); got != 5*maxParallel {
			t.Errorf("got %d requests in a round, want %d", got, 5*maxParallel)
		}
		f.wantEnqueued("m")
	})
}

func TestCompleteWaitsForEvictionsInFlight(t *testing.T) {
	evictionOf := func(pod string) inflight.Eviction {
		return inflight.Eviction{Evacuation: types.NamespacedName{
			Namespace: "default", Name: protocol.CanonicalName(pod, types.UID("uid-"+pod)),
		}, Pod: pod, UID: types.UID("uid-" + pod)}
	}
	for name, test := range map[string]struct {
		under []inflight.Eviction
		waits bool
	}{
		"of a pod of its nodes":                     {under: []inflight.Eviction{evictionOf("p")}, waits: true},
		"of a pod of another node":                  {under: []inflight.Eviction{evictionOf("q")}},
		"of a pod that another instigator asks for": {under: []inflight.Eviction{evictionOf("r")}},
		"of a pod that is gone":                     {under: []inflight.Eviction{evictionOf("gone")}},
		"of an earlier pod of the same name": {
			under: []inflight.Eviction{{Evacuation: evictionOf("p").Evacuation, Pod: "p", UID: "before"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, newNode("one"), newNode(
					"two", inPool("green"),
				), newMaintenance("m"), newPod("p", "one", 0), newPod("q", "two", 0), newPod("r", "one", 0),
					ourEvacuation("r", "one", instigatedBy(foreignInstigator)))
				for _, e := range test.under {
					f.evictions.Add(e)
				}
				f.step("m")
				f.wantEvacuating("p", "r")
				f.enter("m", stageComplete)
				f.cached()
				f.step("m")
				f.wantEvacuating()
				f.wantCordon("one", test.waits, holders(test.waits)...)
				if finalizers := f.nm("m").Finalizers; (len(finalizers) > 0) != test.waits {
					t.Fatalf("got finalizers %v, want waiting %t", finalizers, test.waits)
				}
				for _, e := range test.under {
					f.evictions.Remove(e.UID)
				}
				f.step("m")
				f.wantCordon("one", false)
			})
		})
	}
}

// holders returns the name of the maintenance if holds is set.
func holders(holds bool) []string {
	if holds {
		return []string{"m"}
	}
	return nil
}
