// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	secondScheduler = "haulout-scheduler"
	// slot is a resource. Each node has one unit of it.
	slot = "example.com/slot"
)

// testSecondScheduler runs haulout-scheduler as a second scheduler, as in docs/preemption.md. The
// scheduler must schedule the pods that name it, and must not exceed budgets.
func testSecondScheduler(t *testing.T, c *framework.Cluster) {
	t.Helper()
	framework.NeedsNewestKube(t, secondScheduler)
	apply(t, c, "second-scheduler", secondScheduler)
	c.MustKubectl(t, "", "--namespace="+secondScheduler, "rollout", "status", "deployment/"+secondScheduler, "--timeout=2m")

	kube := c.As(t).Kube
	patch := []byte(`[{"op":"add","path":"/status/capacity/example.com~1slot","value":"1"}]`)
	must.Get(kube.CoreV1().Nodes().Patch(t.Context(), drained, types.JSONPatchType, patch, metav1.PatchOptions{}, "status"))(t)
	class := c.PriorityClass(t, 10)
	_, err := kube.SchedulingV1().PriorityClasses().Patch(t.Context(), class, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"maintenance.haulout.dev/allow-disruption-by-priority-greater-than-or-equal":"1000"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespace := c.NewNamespace(t)
	takeSlot(t, c, namespace, "guarded", class)
	waitScheduled(t, c, namespace, "guarded", true, "")
	// A budget of pods without a controller can only have a number in minAvailable.
	budgets := kube.PolicyV1().PodDisruptionBudgets(namespace)
	must.Get(budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "guarded"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}, MinAvailable: ptr.To(intstr.FromInt32(1)),
		},
	}, metav1.CreateOptions{}))(t)

	takeSlot(t, c, namespace, "important", c.PriorityClass(t, 100))
	waitScheduled(t, c, namespace, "important", false, "PodDisruptionBudgets protect; preempting them needs priority 1000.")
	_ = must.Get(budgets.Patch(t.Context(), "guarded", types.MergePatchType,
		[]byte(`{"spec":{"minAvailable":0}}`), metav1.PatchOptions{}))(t)
	waitScheduled(t, c, namespace, "important", true, "")
	// The second scheduler does not schedule its own pods.
	own := must.Get(kube.CoreV1().Pods(secondScheduler).List(t.Context(), metav1.ListOptions{}))(t)
	for i := range own.Items {
		if name := own.Items[i].Spec.SchedulerName; name != corev1.DefaultSchedulerName {
			t.Errorf("pod %s is scheduled by %s", own.Items[i].Name, name)
		}
	}
}

// takeSlot creates a pod that requests a slot and names the second scheduler.
func takeSlot(t *testing.T, c *framework.Cluster, namespace, name, class string) {
	t.Helper()
	one := corev1.ResourceList{slot: resource.MustParse("1")}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			SchedulerName:     secondScheduler,
			PriorityClassName: class,
			Containers: []corev1.Container{{
				Name: "app", Image: "localhost/app:dev", Args: []string{"serve", "0"},
				Resources: corev1.ResourceRequirements{Requests: one, Limits: one},
			}},
		},
	}
	must.Get(c.As(t).Kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}))(t)
}

// waitScheduled waits until the second scheduler has scheduled a pod and it runs, or until the
// message of the condition contains the text.
func waitScheduled(t *testing.T, c *framework.Cluster, namespace, name string, runs bool, text string) {
	t.Helper()
	kube := c.As(t).Kube
	framework.Eventually(t, "pod "+name+" runs or has the message "+text, func(ctx context.Context) (bool, error) {
		pod, err := kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || runs {
			return err == nil && pod.Status.Phase == corev1.PodRunning, err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && strings.Contains(condition.Message, text) {
				return true, nil
			}
		}
		return false, nil
	})
	if !runs {
		return
	}
	framework.Eventually(t, "the event about "+name+" is from the second scheduler", func(ctx context.Context) (bool, error) {
		events, err := kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Scheduled"})
		if err != nil {
			return false, err
		}
		for i := range events.Items {
			if event := &events.Items[i]; event.Regarding.Name == name {
				return event.ReportingController == secondScheduler, nil
			}
		}
		return false, nil
	})
}
