// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// asking returns a maintenance that drains all pods of a node.
func asking(name string, node *corev1.Node) *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: *after(-hour)},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain, Reason: "kernel\nupdate", NodeSelector: build.Named(node.Name),
		},
		Status: v1alpha1.NodeMaintenanceStatus{
			NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{{
				NodeRef: v1alpha1.NodeReference{Name: node.Name, UID: node.UID},
				DrainTargets: []v1alpha1.DrainPlanEntry{
					{PodType: v1alpha1.PodTypeDefault, PodPriority: 1000},
					{PodType: v1alpha1.PodTypeDaemonSet, PodPriority: 1000},
				},
			}},
		},
	}
}

func TestDecideHeld(t *testing.T) {
	const held = "EvacuationHeld"
	// heldBack returns an Evacuation without instigators that is kept by a finalizer.
	heldBack := func(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
		e := upForEviction(deleting, withFinalizers(foreign))
		return build.With(e, mods...)
	}
	targeted := func(s *situation) { s.targeted = true }
	ofType := func(podType v1alpha1.PodType, replaced bool) func(*situation) {
		return func(s *situation) { s.targeted, s.podType, s.replaced = true, podType, replaced }
	}
	wasHeld := withCondition(v1alpha1.ConditionBlocked, held, 0)
	runDecide(t, map[string]decideTest{
		"a pod that a maintenance targets is evicted, and the finalizers are reported": {
			evacuation: heldBack(), pod: newPod(), mod: targeted,
			want: outcome{Active: evict, Blocked: held, Evict: true, Wake: minute, Events: EventBlocked},
		},
		"a pod with an active evacuator is evicted, too": {
			evacuation: heldBack(withEvacuators(classA), active(classA)), pod: newPod(), mod: targeted,
			want: outcome{Active: classA, Blocked: held, Evict: true, Wake: minute, Events: EventBlocked},
		},
		"a pod that no maintenance targets is not evicted": {
			evacuation: heldBack(wasHeld), pod: newPod(),
			want: outcome{Active: evict, Blocked: "not: NotBlocked", Wake: minute},
		},
		"a static pod is not evicted": {
			evacuation: heldBack(), pod: newPod(), mod: ofType(v1alpha1.PodTypeStatic, false),
			want: outcome{Active: evict, Blocked: held, Wake: minute, Events: EventBlocked},
		},
		"a DaemonSet pod that the DaemonSet would replace is not evicted": {
			evacuation: heldBack(), pod: newPod(), mod: ofType(v1alpha1.PodTypeDaemonSet, true),
			want: outcome{Active: evict, Blocked: held, Wake: minute, Events: EventBlocked},
		},
		"a DaemonSet pod that is not replaced is evicted": {
			evacuation: heldBack(), pod: newPod(), mod: ofType(v1alpha1.PodTypeDaemonSet, false),
			want: outcome{Active: evict, Blocked: held, Evict: true, Wake: minute, Events: EventBlocked},
		},
		"the Evacuation waits for a terminating pod": {
			evacuation: heldBack(wasHeld), pod: newPod(terminatingUntil(20 * second)), mod: targeted,
			want: outcome{Active: evict, Blocked: "not: NotBlocked", Wake: 50 * second},
		},
		"refused evictions are counted": {
			evacuation: heldBack(), pod: newPod(), mod: func(s *situation) {
				s.targeted, s.eviction = true, eviction.State{Known: true, FailedEvictions: 4}
			},
			want: outcome{
				Active: evict, Blocked: held, FailedEvictions: 4, Evict: true, Wake: minute, Events: EventBlocked,
			},
		},
		"an evacuator that forbids cancellation stays active": {
			evacuation: heldBack(
				withEvacuators(classA), active(classA), reported(0, "moving"),
				withStatus(func(st *v1alpha1.EvacuationStatus) {
					st.EvacuationCancellationPolicy = forbid
				}),
			), pod: newPod(), mod: targeted,
			want: outcome{Active: classA, Policy: forbid, Wake: 15 * minute},
		},
		"an Evacuation with an instigator is cancelled": {
			evacuation: heldBack(withFinalizers(foreign, ours)), pod: newPod(), mod: targeted,
			want: outcome{Active: evict, Release: releaseAll, Events: EventCancelled},
		},
	})
}

func TestPodOfAHeldEvacuationIsEvicted(t *testing.T) {
	for name, tt := range map[string]struct {
		asks bool
		want int
	}{
		"a maintenance targets the pod":  {true, 1},
		"no maintenance targets the pod": {false, 0},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			node := newNode(corev1.ConditionTrue)
			w := newWorld(t, 0, newEvacuation(withFinalizers(foreign, ours)), newPod(), node, newBudget("1", 0))
			if tt.asks {
				must.Do(w, w.api.client.Tracker().Add(asking("kernel-2026-11", node)))
			}
			w.until("the eviction is active", 0, hasClass(evict))
			w.api.edit(t, w.target, deleting)
			w.until("no instigator is left", 0, func(e *v1alpha1.Evacuation) bool {
				return len(e.Finalizers) == 1
			})
			if tt.asks {
				w.until("the condition has the reason EvacuationHeld", 0,
					hasReason(v1alpha1.ConditionBlocked, v1alpha1.ReasonEvacuationHeld))
				blocked := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionBlocked)
				if !strings.Contains(blocked.Message, foreign) {
					t.Errorf("got message %q, want finalizer %s in it", blocked.Message, foreign)
				}
			}
			must.Get(w.client.PolicyV1().PodDisruptionBudgets("shop").Update(t.Context(), newBudget("2", 1),
				metav1.UpdateOptions{}))(w)
			w.until("two minutes have passed", second, func(*v1alpha1.Evacuation) bool {
				return w.clock.Since(start) > 2*minute
			})
			is.Equal(t, w.host.sent(), tt.want, "evictions")
			if e := w.get(); e == nil || podDeleted(e) != tt.asks {
				t.Errorf("got %+v, want an Evacuation with PodDeleted: %t", e, tt.asks)
			}
		})
	}
}

// TestHeldPodWaitsForAScaleDown covers a pod under whose budget the evacuator of Deployments is
// about to delete another one.
func TestHeldPodWaitsForAScaleDown(t *testing.T) {
	evacuation, pod, node := upForEviction(deleting, withFinalizers(foreign)), newPod(), newNode(corev1.ConditionTrue)
	c, cluster := newIdleController(t, fake.NewClientset(pod), evacuation)
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	must.Do(t, pods.Add(pod))
	must.Do(t, cluster.Nodes.Informer().GetIndexer().Add(node))
	must.Do(t, cluster.NodeMaintenances.Informer().GetIndexer().Add(asking("kernel-2026-11", node)))
	c.podLister = corelisters.NewPodLister(pods)
	var why *eviction.Blocker
	c.standing = func(*corev1.Pod, string) *eviction.Blocker { return why }
	request := eviction.Request{Evacuation: keyOf(evacuation), Pod: pod.Name, UID: pod.UID}
	is.True(t, c.isWanted(request), "the pod is not evicted")
	why = &eviction.Blocker{Reason: v1alpha1.ReasonPodWaits}
	is.True(t, !c.isWanted(request), "the pod is evicted during the scale-down")
}
