// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func paused(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	nm.Spec.Paused = true
	return nm
}

// toldPaused adds the condition that this controller writes during a pause.
func toldPaused(e *v1alpha1.Evacuation) {
	e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPaused, LastTransitionTime: *after(0),
	})
}

func TestDecidePaused(t *testing.T) {
	pause := func(s *situation) { s.pausedBy = paused(newMaintenance()) }
	completed := withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true })
	runDecide(t, map[string]decideTest{
		"a pod is not evicted": {
			evacuation: upForEviction(), pod: newPod(), mod: pause, at: minute,
			want: outcome{Active: evict, Blocked: "not: Paused", Wake: 2 * minute},
		},
		"an evacuator stays active after its deadline": {
			evacuation: turnOfA(reported(0, "")), pod: newPod(), mod: pause, at: 10 * hour,
			want: outcome{Active: classA, Blocked: "not: Paused", Wake: 10*hour + minute},
		},
		"an evacuator stays active after it has reported completion": {
			evacuation: turnOfA(reported(0, ""), completed), pod: newPod(), mod: pause, at: minute,
			want: outcome{Active: classA, Completed: true, Blocked: "not: Paused", Wake: 2 * minute},
		},
		"a pod that was blocked is not": {
			evacuation: upForEviction(withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget, 0)), pod: newPod(), mod: pause, at: minute,
			want: outcome{Active: evict, Blocked: "not: Paused", Wake: 2 * minute},
		},
		"a pod that terminates is told as without a pause": {
			evacuation: turnOfA(reported(0, "")), pod: newPod(stoppingFor(hour)), mod: pause, at: minute,
			want: outcome{Active: classA, Blocked: "not: PodStopping", Wake: 2 * minute},
		},
		"a pod that has left completes the Evacuation": {
			evacuation: turnOfA(toldPaused), mod: pause, at: minute,
			want: outcome{Active: classA, Blocked: "not: NotBlocked", Complete: "PodDeleted", Wake: 6 * minute},
		},
		"after a pause the deadline starts again": {
			evacuation: turnOfA(reported(0, ""), toldPaused), pod: newPod(), at: 10 * hour,
			want: outcome{Active: classA, Since: 10 * hour, Blocked: "not: NotBlocked", Wake: 10*hour + 15*minute},
		},
		"after a pause a report of completion counts": {
			evacuation: turnOfA(reported(0, ""), completed, toldPaused), pod: newPod(), at: minute,
			want: outcome{Active: evict, Since: minute, Blocked: "not: NotBlocked", Evict: true},
		},
	})
}

// TestPausedPodIsNotEvicted pauses a drain whose pod is about to be evicted, for ten minutes, and
// resumes it. Another client may have tried to evict the pod before the drain reached it.
func TestPausedPodIsNotEvicted(t *testing.T) {
	for name, finalizers := range map[string][]string{"for a maintenance": {ours}, "an eviction came first": {raw, ours}} {
		bubble.Run(t, name, func(t *testing.T) { testPausedPod(t, finalizers) })
	}
}

func testPausedPod(t *testing.T, finalizers []string) {
	t.Helper()
	nodemaintenances := v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances")
	w := newWorld(t, 0, turnOfA(reported(0, ""), withFinalizers(finalizers...)), newPod(), newNode(corev1.ConditionTrue), paused(newMaintenance()))
	w.api.edit(t, w.target, withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true }))
	w.until("the Evacuation says that it is paused", time.Second, protocol.IsPaused)
	blocked := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionBlocked)
	is.True(t, strings.Contains(blocked.Message, "kubectl maintenance resume all"), "got the message %q", blocked.Message)
	<-time.After(10 * time.Minute)
	is.Equal(t, w.host.sent(), 0, "evictions during the pause")
	is.Equal(t, w.get().Status.ActiveEvacuatorClass, classA, "active class during the pause")
	resumed := newMaintenance()
	resumed.ResourceVersion = "2"
	must.Do(w, w.api.client.Tracker().Update(nodemaintenances, resumed, ""))
	w.until("the pod is deleted", 0, podDeleted)
	is.Equal(t, w.host.sent(), 1, "evictions")
}

// TestPauseOfAnEvictionThatWaits pauses a drain while the eviction of its pod is refused again and
// again.
func TestPauseOfAnEvictionThatWaits(t *testing.T) {
	nodemaintenances := v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances")
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, upForEviction(), newPod(), newNode(corev1.ConditionTrue))
		w.host.answer(refuse)
		w.until("the eviction is refused twice", time.Second, func(*v1alpha1.Evacuation) bool { return w.host.sent() > 1 })
		nm := paused(newMaintenance())
		nm.ResourceVersion = "2"
		must.Do(w, w.api.client.Tracker().Update(nodemaintenances, nm, ""))
		w.until("the Evacuation says that it is paused", 0, protocol.IsPaused)
		before := w.host.sent()
		w.host.answer(w.accept)
		<-time.After(10 * time.Minute)
		is.Equal(t, w.host.sent(), before, "evictions after the pause")
		t.Log("another maintenance of the node that has not reached the pod changes nothing")
		other := newMaintenance()
		other.Name, other.UID = "other", "other"
		must.Do(w, w.api.client.Tracker().Add(other))
		<-time.After(10 * time.Minute)
		is.Equal(t, w.host.sent(), before, "evictions for a maintenance without targets")
		other = reaching(other)
		must.Do(w, w.api.client.Tracker().Update(nodemaintenances, other, ""))
		w.until("the pod is deleted for the other maintenance", 0, podDeleted)
	})
}

// TestAClaimOfANodeStopsEvictions grants a node to a worker while the eviction of a pod of the node
// is refused again and again. The Evacuation is not withdrawn yet.
func TestAClaimOfANodeStopsEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, upForEviction(), newPod(), newNode(corev1.ConditionTrue))
		w.host.answer(refuse)
		w.until("the eviction is refused twice", time.Second, func(*v1alpha1.Evacuation) bool { return w.host.sent() > 1 })
		task := &v1alpha1.NodeTask{
			ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "task", ResourceVersion: "1"},
			Spec:       v1alpha1.NodeTaskSpec{Maintenance: v1alpha1.NodeTaskMaintenance{Name: "other", UID: "other"}},
			Status:     v1alpha1.NodeTaskStatus{State: v1alpha1.NodeTaskClaimed},
		}
		must.Do(w, w.api.client.Tracker().Add(task))
		synctest.Wait()
		before := w.host.sent()
		w.host.answer(w.accept)
		<-time.After(10 * time.Minute)
		is.Equal(t, w.host.sent(), before, "evictions while a worker has the node")
		must.Do(w, w.api.client.Tracker().Delete(v1alpha1.SchemeGroupVersion.WithResource("nodetasks"), "", testNode))
		w.until("the pod is deleted", time.Second, podDeleted)
	})
}

// reaching returns the next version of a maintenance, whose drain has reached the pods of the node.
func reaching(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	nm = nm.DeepCopy()
	nm.ResourceVersion = "2"
	nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
		NodeRef:      v1alpha1.NodeReference{Name: testNode, UID: "uid-" + testNode},
		DrainTargets: []v1alpha1.DrainPlanEntry{{PodType: v1alpha1.PodTypeDefault, PodPriority: 1000}},
	}}
	return nm
}

// TestOnlyThePausedMaintenanceIsLeft lets the other maintenance that asks for a pod end in each
// way.
func TestOnlyThePausedMaintenanceIsLeft(t *testing.T) {
	nodemaintenances := v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances")
	for name, end := range map[string]func(*v1alpha1.NodeMaintenance){
		"deleted":  nil,
		"complete": func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete },
		"narrowed": func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Operator = corev1.NodeSelectorOpExists
			nm.Status.NodeStatuses = nil
		},
		"pod spare": func(nm *v1alpha1.NodeMaintenance) { nm.Status.NodeStatuses[0].DrainTargets = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 0, turnOfA(reported(0, "")), newPod(), newNode(corev1.ConditionTrue), paused(newMaintenance()))
				w.until("the Evacuation says that it is paused", time.Second, protocol.IsPaused)
				other := reaching(newMaintenance())
				other.Name, other.UID = "other", "other"
				must.Do(w, w.api.client.Tracker().Add(other))
				w.until("the other maintenance asks for the pod", time.Second, func(e *v1alpha1.Evacuation) bool { return !protocol.IsPaused(e) })
				if end == nil {
					must.Do(w, w.api.client.Tracker().Delete(nodemaintenances, "", other.Name))
				} else {
					other = other.DeepCopy()
					end(other)
					other.ResourceVersion = "3"
					must.Do(w, w.api.client.Tracker().Update(nodemaintenances, other, ""))
				}
				ended := w.clock.Now()
				w.until("the Evacuation says that it is paused", time.Second, protocol.IsPaused)
				is.True(t, w.clock.Since(ended) < time.Minute, "it took %s", w.clock.Since(ended))
			})
		})
	}
}

// TestAPodThatMayCompleteIsNotEvicted has an Evacuation that a maintenance which has ended asked
// for. The one that is left lets the pod complete.
func TestAPodThatMayCompleteIsNotEvicted(t *testing.T) {
	for _, behavior := range []v1alpha1.DrainBehavior{
		v1alpha1.DrainBehaviorDrain, v1alpha1.DrainBehaviorWaitCompleted, v1alpha1.DrainBehaviorSkip,
	} {
		t.Run(string(behavior), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nm := reaching(newMaintenance())
				nm.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{{
					PodType: v1alpha1.PodTypeDefault, PodPriority: 1000, Behavior: &behavior,
				}}
				w := newWorld(t, 0, upForEviction(), newPod(), newNode(corev1.ConditionTrue), nm)
				<-time.After(10 * time.Minute)
				is.Equal(t, w.host.sent() > 0, behavior == v1alpha1.DrainBehaviorDrain, "evicted")
			})
		})
	}
}

// TestNewLeaderKnowsThePause starts a controller with an Evacuation that its predecessor has handed
// to the queue of evictions.
func TestNewLeaderKnowsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, upForEviction(), newPod(), newNode(corev1.ConditionTrue), paused(newMaintenance()))
		<-time.After(10 * time.Minute)
		is.Equal(t, w.host.sent(), 0, "evictions")
	})
}
