// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/test/e2e/framework"
)

// TestStatefulSetWithoutBudgetLeavesInTurns drains the only node of a StatefulSet that no budget
// protects: of its pods no more than a quarter are missing at any time.
func TestStatefulSetWithoutBudgetLeavesInTurns(t *testing.T) {
	t.Parallel()
	const replicas, mayBeMissing = 8, 2
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	labels := map[string]string{"app": "store"}
	sets := cluster.As(t).Kube.AppsV1().StatefulSets(namespace)
	count := int32(replicas)
	if _, err := sets.Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "store"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &count, Selector: &metav1.LabelSelector{MatchLabels: labels},
			ServiceName: "store", PodManagementPolicy: appsv1.ParallelPodManagement,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: framework.PodSpec(pool),
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	available := func() {
		framework.Eventually(t, "all pods are available", func(ctx context.Context) (bool, error) {
			set, err := sets.Get(ctx, "store", metav1.GetOptions{})
			return err == nil && set.Status.AvailableReplicas == replicas, err
		})
	}
	available()
	cluster.NewNodes(t, pool, true, pool+"-spare")
	watched := watchAvailability(t, namespace, "store")
	nm := drainNodes(t, pool, nodes...)
	drained(t, nm.Name)
	available()
	switch lowest := watched.stop(t); {
	case lowest < replicas-mayBeMissing:
		t.Errorf("only %d of %d pods were available at a time, want at least %d",
			lowest, replicas, replicas-mayBeMissing)
	case lowest == replicas:
		t.Error("the watch has not seen any pod leave")
	}
}
