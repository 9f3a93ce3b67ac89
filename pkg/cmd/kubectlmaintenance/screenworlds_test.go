// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// large is a drain of a pool of 40 nodes of a cloud in its third wave of five, with causes of
// different kinds. Two entries of its plan have no pods.
func large() []runtime.Object {
	nm := undescribed()
	nm.CreationTimestamp = before(time.Hour)
	for i := range nm.Status.StageStatuses {
		nm.Status.StageStatuses[i].StartTimestamp = new(before(20 * time.Minute))
	}
	nm.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{
		{PodType: v1alpha1.PodTypeDefault, PodPriority: 0}, {PodType: v1alpha1.PodTypeDefault, PodPriority: 1000},
		{PodType: v1alpha1.PodTypeDefault, PodPriority: 2000}, {PodType: v1alpha1.PodTypeDefault, PodPriority: 5000},
		{PodType: v1alpha1.PodTypeDefault, PodPriority: 1000000000},
		{PodType: v1alpha1.PodTypeDefault, PodPriority: v1alpha1.SystemClusterCritical},
		{PodType: v1alpha1.PodTypeDaemonSet, PodPriority: v1alpha1.SystemNodeCritical},
	}
	nm.Status.NodeStatuses = nil
	for i := range 40 {
		n := v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef:      v1alpha1.NodeReference{Name: fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/10, 10+i%10)},
			DrainTargets: nm.Spec.DrainPlan[4:5], DrainMessage: "Evacuating", PodsEvacuating: int32(2 + i%3), PodsPendingEvacuation: 3, PodsKept: 4, PodsPeak: 30,
		}
		switch {
		case i < 2:
			n.PodsEvacuating = 2
		case i == 2:
			n.PodsEvacuating = 7
		case i >= 30:
			n.PodsEvacuating, n.PodsPendingEvacuation = 0, 0
			n.DrainMessage = fmt.Sprintf("Waiting for nodes %s, %s and 28 more.", nm.Status.NodeStatuses[0].NodeRef.Name, nm.Status.NodeStatuses[1].NodeRef.Name)
		}
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, n)
	}
	nm.Status.Nodes, nm.Status.PodsGone = 40, 1018
	nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{
		{Entry: 0, PodsPeak: 700, StartTime: new(before(20 * time.Minute)), EndTime: new(before(15 * time.Minute))},
		{Entry: 1, PodsPeak: 250, StartTime: new(before(15 * time.Minute)), EndTime: new(before(4 * time.Minute))},
		{Entry: 4, PodsPeak: 160, PodsLeft: 92, StartTime: new(before(4 * time.Minute))},
		{Entry: 5, PodsPeak: 50, PodsLeft: 50}, {Entry: 6, PodsPeak: 40, PodsLeft: 40},
	}
	objects := []runtime.Object{nm}
	node := func(i int) string { return nm.Status.NodeStatuses[i].NodeRef.Name }
	for i, pod := range []string{"checkout-55fbf85d9c-dnv98", "checkout-55fbf85d9c-9h6rl", "checkout-55fbf85d9c-fgctk"} {
		objects = append(objects, evacuation("shop", pod, node(i), ofDeployment("55fbf85d9c"),
			blocked(v1alpha1.ReasonPodDisruptionBudget, budgetMessage, 4*time.Minute)))
	}
	for i, pod := range []string{"db-0", "db-1"} {
		objects = append(objects, evacuation("shop", pod, node(i), ofStatefulSet(pod), blocked(v1alpha1.ReasonPodFinalizer,
			"The pod should have been gone at 2026-11-21T09:59:30Z and is held by the finalizers example.com/backup. "+
				"Check the controllers that added them.", time.Minute)))
	}
	for i := range 6 {
		job := fmt.Sprintf("report-%d", i)
		objects = append(objects, evacuation("batch", job+"-x7k2p", node(2), ofJob(job),
			blocked(v1alpha1.ReasonNodeUnreachable, unreachable(node(2)), 2*time.Minute)))
	}
	for i := 3; i < 30; i++ {
		for j := range nm.Status.NodeStatuses[i].PodsEvacuating {
			objects = append(objects, evacuation("shop", fmt.Sprintf("web-658ff459ff-x%02dk%d", i, j), node(i), ofDeployment("658ff459ff")))
		}
	}
	for i := range 5 {
		objects = append(objects, evacuation("shop", fmt.Sprintf("web-658ff459ff-6dg4%d", i), node(5), gone(time.Duration(i)*time.Second)))
	}
	described(nm, objects)
	return objects
}

func withLabel(key, value string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { metav1.SetMetaDataLabel(&e.ObjectMeta, key, value) }
}

func ofDeployment(hash string) func(*v1alpha1.Evacuation) {
	return withLabel(appsv1.DefaultDeploymentUniqueLabelKey, hash)
}

func ofStatefulSet(pod string) func(*v1alpha1.Evacuation) {
	return withLabel(appsv1.StatefulSetPodNameLabel, pod)
}

func ofJob(job string) func(*v1alpha1.Evacuation) { return withLabel(batchv1.JobNameLabel, job) }

// allBlocked is the world of the review: three pods of one workload, which are all that is left.
func allBlocked() []runtime.Object {
	nm := undescribed()
	nm.Status.NodeStatuses = nil
	objects := []runtime.Object{nm}
	for i, pod := range []string{"checkout-55fbf85d9c-dnv98", "checkout-55fbf85d9c-9h6rl", "checkout-55fbf85d9c-fgctk"} {
		node := fmt.Sprintf("node-00%d", 3+i)
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: node}, DrainTargets: targets, PodsEvacuating: 1, PodsPeak: 8,
		})
		objects = append(objects, evacuation("shop", pod, node, ofDeployment("55fbf85d9c"),
			blocked(v1alpha1.ReasonPodDisruptionBudget, budgetMessage, 84*time.Second)))
	}
	nm.Status.PodsGone, nm.Status.LastProgressTimestamp = 21, new(before(86*time.Second))
	nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{{Entry: 0, PodsPeak: 24, PodsLeft: 3, StartTime: new(before(90 * time.Second))}}
	described(nm, objects)
	return objects
}

// ended is a maintenance that is complete, with the record of its drain.
func ended() *v1alpha1.NodeMaintenance {
	nm := completed()
	nm.CreationTimestamp, nm.Status.PodsGone = before(20*time.Minute), 65
	for i := range nm.Status.StageStatuses[:3] {
		nm.Status.StageStatuses[i].StartTimestamp = new(before(10 * time.Minute))
	}
	nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{
		{Entry: 0, PodsPeak: 60, StartTime: new(before(10 * time.Minute)), EndTime: new(before(9 * time.Minute))},
		{Entry: 1, PodsPeak: 5, StartTime: new(before(9 * time.Minute)), EndTime: new(before(8 * time.Minute))},
	}
	return described(nm, nil)
}

// paused is a drain that a user has paused: only the pods stay on their way that had begun to
// leave.
func paused() []runtime.Object {
	nm := undescribed()
	nm.CreationTimestamp, nm.Status.StageStatuses[0].StartTimestamp = before(20*time.Minute), new(before(20*time.Minute))
	for i := range nm.Status.StageStatuses[1:] {
		nm.Status.StageStatuses[i+1].StartTimestamp = new(before(7 * time.Minute))
	}
	nm.Status.Waves[0].StartTime, nm.Status.LastProgressTimestamp = new(before(7*time.Minute)), new(before(6*time.Minute))
	nm.Spec.Paused = true
	nm.Status.Pause = &v1alpha1.NodeMaintenancePause{By: "bob", Since: before(5 * time.Minute)}
	nm.Status.NodeStatuses[0].PodsPendingEvacuation, nm.Status.NodeStatuses[1].PodsPendingEvacuation = 5, 5
	evacuations := slices.DeleteFunc(evacuations(), func(object runtime.Object) bool {
		e := object.(*v1alpha1.Evacuation)
		return !protocol.IsComplete(e) && e.Spec.PodRef.Name != "postgres-0"
	})
	evacuations = append(evacuations, evacuation("shop", "cart-1", "node-003", active(v1alpha1.EvacuatorClassDeployment, surgeMessage, 25*time.Second),
		notBlocked(v1alpha1.ReasonPaused, "NodeMaintenance kernel-update is paused: the server neither evicts the pod nor makes the next evacuator active. "+
			"To resume it, run kubectl maintenance resume kernel-update.", 5*time.Minute)))
	counted(nm, evacuations)
	nm.Status.Waves[0].PodsLeft, nm.Status.Waves[0].PodsPeak = nm.Status.Waves[0].PodsLeft+7, nm.Status.Waves[0].PodsPeak+7
	return append([]runtime.Object{nm}, evacuations...)
}

// foreign has texts that are wider than their number of characters, or not ASCII.
func foreign() []runtime.Object {
	objects := drainOf(evacuation("shop", "web-1", "node-004",
		blocked(v1alpha1.ReasonEvictionDenied, "Der Webhook größe.example.com hat die Eviction abgelehnt: 予算がありません", time.Minute)),
		evacuation("shop", "web-2", "node-003"))
	objects[0].(*v1alpha1.NodeMaintenance).Spec.Reason = "カーネルの更新 für den blauen Pool: " + "新しいカーネルをすべてのノードに入れるために再起動します"
	return objects
}
