// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

const testInstigator = v1alpha1.FinalizerInstigatorPrefix + "e2e.haulout.dev"

func evacuationOf(pod *corev1.Pod, modify ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Finalizers: []string{testInstigator}},
		Spec:       v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}},
	}
	for _, m := range modify {
		m(e)
	}
	return e
}

func withEvacuators(evacuators ...v1alpha1.Evacuator) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.Spec.Evacuators = evacuators }
}

func withForeignFinalizer(e *v1alpha1.Evacuation) {
	e.Finalizers = append(e.Finalizers, "e2e.haulout.dev/foreign")
}

func with64KiBOfLabels(e *v1alpha1.Evacuation) {
	e.Labels = map[string]string{}
	for i := range 1000 {
		e.Labels[fmt.Sprintf("label-%04d", i)] = strings.Repeat("x", 55)
	}
}

func TestEvacuationThatIsRefused(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	pod := cluster.PodOn(t, namespace, "pod", pool, nodes[0])
	evacuations := cluster.As(t).Haulout.MaintenanceV1alpha1().Evacuations(namespace)
	cases := map[string]struct {
		modify func(*v1alpha1.Evacuation)
		field  string
		words  []string
	}{
		"with the UID of an earlier pod of that name": {
			modify: func(e *v1alpha1.Evacuation) { e.Spec.PodRef.UID = "11111111-2222-3333-4444-555555555555" },
			field:  "spec.podRef.uid", words: []string{string(pod.UID)},
		},
		"with two controllers": {
			modify: withEvacuators(
				v1alpha1.Evacuator{
					EvacuatorClass: "a.example.com", Priority: 10000, Role: v1alpha1.EvacuatorRoleController,
				},
				v1alpha1.Evacuator{
					EvacuatorClass: "b.example.com", Priority: 10000, Role: v1alpha1.EvacuatorRoleController,
				}),
			field: "spec.evacuators[1].role",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := evacuations.Create(t.Context(), evacuationOf(pod, c.modify), metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !hasCause(err, c.field, c.words...) {
				t.Errorf("got %v, want a refusal of %s that says %q", err, c.field, c.words)
			}
		})
	}
}

func TestEvacuationOfAnEvacuator(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	const class = "mover.example.com"
	pod := cluster.PodOn(t, namespace, "pod", pool, nodes[0], func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationEvacuatorPrefix + class: "20000"}
		p.Labels = map[string]string{"app": "pod", "tier": "gold"}
	})
	admins := cluster.As(t).Haulout.MaintenanceV1alpha1().Evacuations(namespace)
	created, err := admins.Create(t.Context(), evacuationOf(pod), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(created.Spec.Evacuators) != 1 || created.Spec.Evacuators[0].EvacuatorClass != class ||
		created.Spec.Evacuators[0].Priority != 20000 {
		t.Errorf("evacuators are %+v, want the one that the pod's annotation names", created.Spec.Evacuators)
	}
	if created.Labels["tier"] != "gold" || created.Spec.NodeName != nodes[0] {
		t.Errorf("labels %v and node %q are not those of the pod", created.Labels, created.Spec.NodeName)
	}
	framework.Eventually(t, "it is the evacuator's turn", func(ctx context.Context) (bool, error) {
		e, err := admins.Get(ctx, created.Name, metav1.GetOptions{})
		return err == nil && e.Status.ActiveEvacuatorClass == class, err
	})
	writeStatus := rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"evacuations/status"},
		Verbs: []string{"patch", "update"},
	}
	stranger, mover := framework.Name("stranger"), framework.Name("mover")
	cluster.Grant(t, stranger, writeStatus,
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"evacuators"},
			ResourceNames: []string{"other.example.com"}, Verbs: []string{"progress"},
		})
	cluster.Grant(t, mover, writeStatus,
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"evacuators"}, ResourceNames: []string{class},
			Verbs: []string{"progress"},
		})
	forbid := []byte(`{"status":{"evacuationCancellationPolicy":"Forbid","message":"flushing"}}`)

	t.Run("a user who may progress another class only is refused", func(t *testing.T) {
		_, err := cluster.As(t, stranger).Haulout.MaintenanceV1alpha1().Evacuations(namespace).
			Patch(t.Context(), created.Name, types.MergePatchType, forbid, metav1.PatchOptions{}, "status")
		if !apierrors.IsForbidden(err) {
			t.Errorf("got %v, want Forbidden", err)
		}
	})
	t.Run("the evacuator itself is heard, and its report is stamped", func(t *testing.T) {
		e, err := cluster.As(t, mover).Haulout.MaintenanceV1alpha1().Evacuations(namespace).
			Patch(t.Context(), created.Name, types.MergePatchType, forbid, metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
		if e.Status.EvacuationCancellationPolicy != v1alpha1.EvacuationCancellationPolicyForbid ||
			e.Status.EvacuationProgressTimestamp == nil {
			t.Errorf("status is %+v", e.Status)
		}
	})
	t.Run("what it has forbidden to cancel cannot be deleted while the pod lives", func(t *testing.T) {
		err := admins.Delete(t.Context(), created.Name, metav1.DeleteOptions{})
		if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "Forbid") {
			t.Errorf("got %v, want a conflict that says why", err)
		}
	})
	t.Run("the evacuator deletes the pod and the evacuation completes", func(t *testing.T) {
		if err := cluster.As(t).Kube.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		framework.Eventually(t, "it is complete", func(ctx context.Context) (bool, error) {
			e, err := admins.Get(ctx, created.Name, metav1.GetOptions{})
			return err == nil &&
				conditionIs(e.Status.Conditions, v1alpha1.ConditionComplete, metav1.ConditionTrue,
					v1alpha1.ReasonPodDeleted), err
		})
		if _, err := admins.Patch(t.Context(), created.Name, types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestEvacuationsThatFillANamespace has a tenant create Evacuations of pods without a node, which
// it deletes again: first as large as they may be, then with a finalizer that would keep them.
func TestEvacuationsThatFillANamespace(t *testing.T) {
	t.Parallel()
	const tries, allowed = 500, 200
	pool, _ := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	admin := cluster.As(t)
	evacuations, pods := admin.Haulout.MaintenanceV1alpha1().Evacuations(namespace), admin.Kube.CoreV1().Pods(namespace)
	created, refused := 0, 0
	for i := range tries {
		pod, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%03d", i)}, Spec: neverScheduled(pool),
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := evacuations.Create(t.Context(), evacuationOf(pod, withForeignFinalizer, with64KiBOfLabels), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Fatalf("with a foreign finalizer and 64 KiB of labels: got %v, want it to be refused as invalid", err)
		}
		_, err = evacuations.Create(t.Context(), evacuationOf(pod), metav1.CreateOptions{})
		switch {
		case err == nil:
			created++
		case apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), "at most 200 are allowed"):
			refused++
		default:
			t.Fatalf("got %v, want it to be created or refused for their number", err)
		}
		// The server may have evicted it by now.
		if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	// The controllers delete Evacuations whose pods are gone, which makes room.
	list, err := evacuations.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) > allowed {
		t.Errorf("the namespace has %d Evacuations, want at most %d", len(list.Items), allowed)
	}
	t.Logf("%d created, %d refused, %d left", created, refused, len(list.Items))
}

// neverScheduled is the spec of a pod of a pool that the scheduler leaves alone.
func neverScheduled(pool string) corev1.PodSpec {
	spec := framework.PodSpec(pool)
	spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.haulout.dev/never"}}
	return spec
}

// conditionIs reports whether a condition has a status and, unless empty, a reason.
func conditionIs(
	conditions []metav1.Condition, conditionType string, status metav1.ConditionStatus, reason string,
) bool {
	for _, c := range conditions {
		if c.Type == conditionType {
			return c.Status == status && (reason == "" || c.Reason == reason)
		}
	}
	return false
}
