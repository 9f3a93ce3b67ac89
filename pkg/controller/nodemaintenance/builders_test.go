// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func newNode(name string, modify ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"pool": "blue"},
	}}
	for _, m := range modify {
		m(node)
	}
	return node
}

func cordoned(node *corev1.Node) { node.Spec.Unschedulable = true }

func inPool(pool string) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Labels["pool"] = pool }
}

func newPod(name, node string, priority int32, modify ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node, Priority: &priority}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, m := range modify {
		m(pod)
	}
	return pod
}

func ofDaemonSet(pod *corev1.Pod) {
	yes := true
	pod.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logger", UID: "ds", Controller: &yes},
	}
}

// newMaintenance returns a maintenance in stage Drain that selects the nodes of pool blue. It has
// the defaults of the API server.
func newMaintenance(
	name string, modify ...func(*v1alpha1.NodeMaintenance),
) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       v1alpha1.NodeMaintenanceSpec{RequestedBy: &authenticationv1.UserInfo{Username: "jane"}},
	}
	selecting("blue")(nm)
	atStage(v1alpha1.NodeMaintenanceStageDrain)(nm)
	for _, m := range modify {
		m(nm)
	}
	v1alpha1.SetDefaults_NodeMaintenanceSpec(&nm.Spec)
	return nm
}

func selecting(pools ...string) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: pools},
			},
		}}}
	}
}

func planning(entries ...v1alpha1.DrainPlanEntry) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.DrainPlan = entries }
}

func upTo(priority int32) v1alpha1.DrainPlanEntry {
	return v1alpha1.DrainPlanEntry{PodType: v1alpha1.PodTypeDefault, PodPriority: priority}
}

// atStage sets the stage, and the fields that the API server sets with it.
func atStage(stage v1alpha1.NodeMaintenanceStage) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		if nm.Spec.Stage == "" {
			nm.Status.StageStatuses, nm.Status.NewestNodeTimestamp, nm.Finalizers = nil, nil, nil
		}
		nm.Spec.Stage = stage
		entered := []v1alpha1.NodeMaintenanceStage{stage}
		if stage == v1alpha1.NodeMaintenanceStageDrain {
			entered = []v1alpha1.NodeMaintenanceStage{v1alpha1.NodeMaintenanceStageCordon, stage}
		}
		for _, name := range entered {
			nm.Status.StageStatuses = append(nm.Status.StageStatuses, v1alpha1.StageStatus{Name: name})
		}
		if v1alpha1.IsHolding(nm) && nm.Status.NewestNodeTimestamp == nil {
			nm.Status.NewestNodeTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}
		if stage != v1alpha1.NodeMaintenanceStageIdle && !slices.Contains(nm.Finalizers,
			v1alpha1.FinalizerMaintenanceCompletion) {
			nm.Finalizers = append(nm.Finalizers, v1alpha1.FinalizerMaintenanceCompletion)
		}
	}
}

// createdAt sets the stage in which the maintenance is created.
func createdAt(stage v1alpha1.NodeMaintenanceStage) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.Stage = ""
		atStage(stage)(nm)
	}
}

func createdMinute(minute int) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.CreationTimestamp = metav1.NewTime(time.Date(2026, 11, 1, 0, minute, 0, 0, time.UTC))
	}
}
