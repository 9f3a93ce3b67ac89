// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/selection"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestEvictionTakesFourWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(), newPod(), newNode(corev1.ConditionTrue))
		w.until("the pod is deleted", 0, podDeleted)
		w.until("the Evacuation is released", 10*time.Second, gone)
		if elapsed := w.clock.Since(start); elapsed < DefaultCompletedTTL {
			t.Errorf("the Evacuation was released after %s, want not before %s", elapsed, DefaultCompletedTTL)
		}
		writes := slices.DeleteFunc(w.api.written(), func(write string) bool { return write == "conflict" })
		if want := []string{"status", "status", "finalizers", "delete"}; !slices.Equal(writes, want) {
			t.Errorf("got writes %v, want %v", writes, want)
		}
		is.Equal(t, w.host.sent(), 1, "evictions")
	})
}

// A user has cancelled a drain, and the nodemaintenance controller has not withdrawn the Evacuation
// yet, which can happen after a change of the leader.
func TestPodIsNotEvictedForAMaintenanceThatIsOver(t *testing.T) {
	tests := map[string]struct {
		change  func(*v1alpha1.NodeMaintenance)
		mods    []func(*v1alpha1.Evacuation)
		evicted bool
	}{
		"its stage is Complete": {
			change: func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
			},
		},
		"it is being deleted": {
			change: func(nm *v1alpha1.NodeMaintenance) { nm.DeletionTimestamp = after(0) },
		},
		"it selects other nodes": {
			change: func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Operator = corev1.NodeSelectorOpExists
			},
		},
		"another instigator asks, too": {
			change: func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
			},
			mods: []func(*v1alpha1.Evacuation){func(e *v1alpha1.Evacuation) {
				e.Finalizers = append(e.Finalizers, theirs)
			}},
			evicted: true,
		},
		"it drains": {change: func(*v1alpha1.NodeMaintenance) {}, evicted: true},
	}
	for name, tt := range tests {
		bubble.Run(t, name, func(t *testing.T) {
			nm := newMaintenance()
			tt.change(nm)
			w := newWorld(t, 0, newEvacuation(tt.mods...), newPod(), newNode(corev1.ConditionTrue), nm)
			<-time.After(10 * withdrawalPatience)
			if evicted := w.host.sent() == 1; evicted != tt.evicted {
				t.Fatalf("got %d evictions after %s, want an eviction: %t", w.host.sent(), 10*withdrawalPatience, tt.evicted)
			}
			if tt.evicted {
				return
			}
			other := newMaintenance()
			other.Name = "other"
			must.Do(w, w.api.client.Tracker().Add(other))
			w.until("the pod is deleted for another maintenance", withdrawalPatience, podDeleted)
		})
	}
}

func TestEvictionIsRetriedWhenTheBudgetAllowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(), newPod(), newNode(corev1.ConditionTrue), newBudget("1", 0))
		accept := w.host.answer(refuse)
		w.until("the Evacuation is blocked", 100*time.Millisecond,
			hasReason(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget))
		w.expectEvent(EventBlocked)
		w.host.answer(accept)
		must.Get(w.client.PolicyV1().PodDisruptionBudgets("shop").Update(t.Context(), newBudget("2", 1),
			metav1.UpdateOptions{}))(w)
		w.until("the pod is deleted", 0, podDeleted)
		if meta.IsStatusConditionTrue(w.get().Status.Conditions, v1alpha1.ConditionBlocked) {
			t.Error("got Blocked true after the pod was deleted, want false")
		}
	})
}

func TestRefusedEvictionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0,
			newEvacuation(withStatus(func(st *v1alpha1.EvacuationStatus) { st.FailedEvictionCounter = 2 })),
			newPod(), newNode(corev1.ConditionTrue), newBudget("1", 0))
		w.host.answer(refuse)
		w.until("a refused eviction is counted", 100*time.Millisecond, func(e *v1alpha1.Evacuation) bool {
			return e.Status.FailedEvictionCounter == 3
		})
	})
}

func TestCancelled(t *testing.T) {
	tests := map[string]struct {
		finalizers []string
		withdraw   func(*v1alpha1.Evacuation)
		// wantLeft are the finalizers that remain if the Evacuation is not deleted.
		wantLeft []string
	}{
		"the last instigator withdraws":      {[]string{ours}, withFinalizers(), nil},
		"the object is deleted":              {[]string{ours, theirs}, deleting, nil},
		"another finalizer keeps the object": {[]string{foreign, ours}, deleting, []string{foreign}},
	}
	for name, tc := range tests {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, 0, newEvacuation(withFinalizers(tc.finalizers...)), newPod(),
				newNode(corev1.ConditionTrue), newBudget("1", 0))
			w.until("the eviction is active", 0, hasClass(evict))
			w.api.edit(t, w.target, tc.withdraw)
			w.until("the Evacuation is released", 0, func(e *v1alpha1.Evacuation) bool {
				return e == nil && tc.wantLeft == nil ||
					e != nil && tc.wantLeft != nil && slices.Equal(e.Finalizers, tc.wantLeft)
			})
			w.expectEvent(EventCancelled)

			// The pod stays, although its budget now allows the eviction.
			must.Get(w.client.PolicyV1().PodDisruptionBudgets("shop").Update(t.Context(), newBudget("2", 1),
				metav1.UpdateOptions{}))(w)
			<-time.After(time.Hour)
			is.Equal(t, w.host.sent(), 0, "evictions")
		})
	}
}

func TestCompletedEvacuationIsDeletedDespiteAnotherInstigator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(withFinalizers(ours, theirs)), newPod(), newNode(corev1.ConditionTrue))
		w.until("the pod is deleted", 0, podDeleted)
		w.until("the Evacuation is deleted", 10*time.Second, gone)
	})
}

func TestHandOverAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(withEvacuators(classA, classB)), newPod(), newNode(corev1.ConditionTrue))
		w.until("the first evacuator is active", 0, hasClass(classA))
		w.until("the evacuator does not progress", time.Second,
			hasReason(v1alpha1.ConditionBlocked, v1alpha1.ReasonEvacuatorNotProgressing))
		w.expectEvent(EventBlocked)
		w.until("the second evacuator is active", time.Second, hasClass(classB))
		if meta.IsStatusConditionTrue(w.get().Status.Conditions, v1alpha1.ConditionBlocked) {
			t.Error("got Blocked true right after the hand-over, want false")
		}
		w.expectEvent(EventHandedOver)
		if elapsed := w.clock.Since(start); elapsed < DefaultEvacuatorStartDeadline {
			t.Errorf("the hand-over was after %s, want not before %s", elapsed, DefaultEvacuatorStartDeadline)
		}
		w.api.edit(t, w.target,
			withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true }))
		w.until("the pod is evicted", 0, podDeleted)
	})
}

func TestNewLeaderContinuesAnEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuation := newEvacuation(active(evict),
			withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget, 0))
		w := newWorld(t, time.Hour, evacuation, newPod(), newNode(corev1.ConditionTrue), newBudget("1", 1))
		w.until("the pod is deleted", 0, podDeleted)
		if writes := w.api.written(); writes[0] != "status" || len(writes) > 1 {
			t.Errorf("got writes %v, want one write of the status", writes)
		}
	})
}

func TestPodOfTheSameNameIsNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(), newPod(func(p *corev1.Pod) { p.UID = types.UID("another") }),
			newNode(corev1.ConditionTrue))
		w.until("the Evacuation is complete", 0, podDeleted)
		if w.host.sent() != 0 {
			t.Errorf("got %d evictions, want none of the pod with the same name", w.host.sent())
		}
	})
}

// newIdleController returns a controller that does not run, and its cluster. Its caches have only
// the objects that the test adds.
func newIdleController(t *testing.T, client *fake.Clientset, evacuation *v1alpha1.Evacuation) (*Controller, *host.Cluster) {
	t.Helper()
	cluster := must.Get(host.NewCluster(host.Clients{
		Client: client, Unlimited: client, Maintenance: versionedfake.NewClientset(), Recorder: &events.FakeRecorder{},
	}, 0))(t)
	selected := must.Get(selection.New(cluster.Nodes.Informer(), cluster.NodeMaintenances.Informer(), clock.RealClock{}))(t)
	c := must.Get(New(Config{Cluster: cluster, Selection: selected, State: newState(t, cluster, selected), Evictions: &fakeHost{client: client}}))(t)
	must.Do(t, cluster.Evacuations.Informer().GetIndexer().Add(evacuation))
	return c, cluster
}

func TestPodThatIsNotInTheCache(t *testing.T) {
	unavailable := func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("starting")
	}
	tests := map[string]struct {
		// live are the pods in the API.
		live []runtime.Object
		// broken makes the API return an error.
		broken bool
		// notify sends events to the controller.
		notify  func(*Controller)
		wantPod bool
		wantErr bool
	}{
		"the API has the pod":           {live: []runtime.Object{newPod()}, wantPod: true},
		"the API does not have the pod": {},
		"the API has a pod of the same name": {
			live: []runtime.Object{newPod(func(p *corev1.Pod) { p.UID = "another" })},
		},
		"the API returns an error": {broken: true, wantErr: true},
		"the watch has the deletion of the pod, so the API is not read": {
			broken: true, notify: func(c *Controller) { c.podGone(newPod()) },
		},
		"a list does not have the pod, so the API is read": {
			live:   []runtime.Object{newPod()},
			notify: func(c *Controller) { c.podGone(cache.DeletedFinalStateUnknown{Obj: newPod()}) }, wantPod: true,
		},
		"the watch has the deletion of a pod of the same name": {
			live:   []runtime.Object{newPod()},
			notify: func(c *Controller) { c.podGone(newPod(func(p *corev1.Pod) { p.UID = "another" })) }, wantPod: true,
		},
		"the deletion is forgotten with the Evacuation": {
			broken: true, wantErr: true,
			notify: func(c *Controller) {
				c.podGone(newPod())
				c.evacuationGone(newEvacuation())
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(tc.live...)
			if tc.broken {
				client.PrependReactor("get", "pods", unavailable)
			}
			c, _ := newIdleController(t, client, newEvacuation())
			if tc.notify != nil {
				tc.notify(c)
			}
			s, err := c.gather(t.Context(), newEvacuation())
			if (err != nil) != tc.wantErr || (s.pod != nil) != tc.wantPod {
				t.Errorf("got a pod: %t, error %v; want a pod: %t, an error: %t",
					s.pod != nil, err, tc.wantPod, tc.wantErr)
			}
		})
	}
}

func TestTypeOfMirrorPodWithoutItsNode(t *testing.T) {
	mirror := newPod(func(p *corev1.Pod) {
		yes := true
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: testNode, UID: "uid-" + testNode, Controller: &yes},
		}
	})
	if got := podTypeOf(mirror, nil); got != v1alpha1.PodTypeStatic {
		t.Errorf("got %s for a mirror pod without its node, want Static", got)
	}
	if got := podTypeOf(mirror, newNode(corev1.ConditionTrue)); got != v1alpha1.PodTypeStatic {
		t.Errorf("got %s for a mirror pod, want Static", got)
	}
	if got := podTypeOf(newPod(), nil); got != v1alpha1.PodTypeDefault {
		t.Errorf("got %s for a bare pod, want Default", got)
	}
}
