// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// gang creates a PodGroup of two pods that have to be scheduled together. Each requests as much as
// one pod of the Deployment.
func (w world) gang(t *testing.T, name string, priority int32) {
	t.Helper()
	kube := cluster.As(t).Kube
	class := cluster.PriorityClass(t, priority)
	group := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	group.Spec.PriorityClassName = class
	group.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: 2}
	must.Get(kube.SchedulingV1beta1().PodGroups(w.namespace).Create(t.Context(), group, metav1.CreateOptions{}))(t)
	for _, member := range []string{name + "-0", name + "-1"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: member}, Spec: framework.PodSpec(w.pool)}
		pod.Spec.PriorityClassName = class
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
		request(&pod.Spec, "32")
		must.Get(kube.CoreV1().Pods(w.namespace).Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	}
}

// TestBudgetHoldsUpAGroup creates a PodGroup that fits only if two pods are removed. It must wait
// until the budget allows both disruptions, and an event must name the cause.
func TestBudgetHoldsUpAGroup(t *testing.T) {
	pool, _ := cluster.NewPool(t, 2, true)
	w := world{pool: pool, namespace: cluster.NewNamespace(t)}
	class := cluster.PriorityClass(t, 10)
	annotate(t, class, "1000")
	cluster.Deployment(t, w.namespace, "web", pool, 4, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.PriorityClassName = class
		request(&d.Spec.Template.Spec, "32")
	})
	cluster.Budget(t, w.namespace, "web", 0)
	w.log = cluster.AuditLog(t)
	recorder := w.record(t)

	w.gang(t, "gang", 100)
	const why = " pods were not considered as victims, because PodDisruptionBudgets protect them; preempting them needs priority 1000"
	waitEvent(t, w.namespace, "PreemptionHeldBack", "gang", "4"+why)
	// The gang has two pods, and one disruption makes room for only one.
	w.allow(t, "web", 1)
	waitEvent(t, w.namespace, "PreemptionHeldBack", "gang", "3"+why)
	w.wantCounts(t, 0, 0, 0)

	w.allow(t, "web", 2)
	w.waitRuns(t, "gang-0")
	w.waitRuns(t, "gang-1")
	w.wantCounts(t, 2, 0, 0)
	verdict := judge(settled(t, recorder), func(string) int32 { return 100 })
	framework.Accept(t, verdict.Found, nil)
}
