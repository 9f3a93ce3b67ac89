// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

// TestFailedPodOfAnEarlierRollout leaves a pod behind that its kubelet has evicted. It belongs to
// an older ReplicaSet after the next rollout.
func TestFailedPodOfAnEarlierRollout(t *testing.T) {
	t.Parallel()
	pool, _ := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	single(t, namespace, "web", pool, minAvailable(1))
	merge(t, namespace, "pod", livePods(t, namespace)[0].Name, `{"status":{"phase":"Failed","reason":"Evicted"}}`, "--subresource=status")
	merge(t, namespace, "deployment", "web", `{"spec":{"template":{"metadata":{"annotations":{"example.com/rollout":"2"}}}}}`)
	framework.Eventually(t, "the rollout is complete", func(ctx context.Context) (bool, error) {
		d, err := cluster.As(t).Kube.AppsV1().Deployments(namespace).Get(ctx, "web", metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == 1 &&
			d.Status.Replicas == 1 && d.Status.AvailableReplicas == 1, err
	})
	node := ""
	for _, pod := range livePods(t, namespace) {
		if pod.Status.Phase == corev1.PodRunning {
			node = pod.Spec.NodeName
		}
	}
	available := watchAvailability(t, namespace, "web")
	nm := drainNodes(t, pool, node)
	drained(t, nm.Name)
	if lowest := available.stop(t); lowest < 1 {
		t.Errorf("at one time %d pods were available", lowest)
	}
}

// TestDeploymentThatToleratesTheCordon drains the only node of a Deployment whose pods come back to
// it.
func TestDeploymentThatToleratesTheCordon(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	single(t, namespace, "web", pool, nil, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	})
	pod := livePods(t, namespace)[0]
	available := watchAvailability(t, namespace, "web")
	nm := drainNodes(t, pool, nodes...)
	e := evacuationFor(t, &pod, "has a report of the surge", surgeReported)
	blocked(t, e, v1alpha1.ReasonRecreated, "tolerates the cordon taint node.kubernetes.io/unschedulable")
	progressing(t, nm.Name, metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
	if pods := livePods(t, namespace); len(pods) > 2 {
		t.Errorf("%d pods were started, want 2 at most", len(pods))
	}
	cluster.NewNodes(t, pool, true, pool+"-spare")
	merge(t, namespace, "deployment", "web",
		`{"spec":{"template":{"spec":{"tolerations":[{"key":"`+framework.Pool+`","operator":"Exists"}]}}}}`)
	drained(t, nm.Name)
	asBefore(t, namespace, "web", 1)
	if lowest := available.stop(t); lowest < 1 {
		t.Errorf("at one time %d pods were available", lowest)
	}
}

// TestOwnerSaysAlwaysDuringTheDrain has the owner do what the runbook says, when the pod is blocked
// already.
func TestOwnerSaysAlwaysDuringTheDrain(t *testing.T) {
	t.Parallel()
	pool, _ := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	node := single(t, namespace, "web", pool, nothingMissing())
	pod := livePods(t, namespace)[0]
	available := watchAvailability(t, namespace, "web")
	nm := drainNodes(t, pool, node)
	blocked(t, evacuationFor(t, &pod, "is made", isOurs), v1alpha1.ReasonPodDisruptionBudget, "PodDisruptionBudget web")
	merge(t, namespace, "deployment", "web",
		`{"metadata":{"annotations":{"`+v1alpha1.AnnotationSurge+`":"`+v1alpha1.SurgeAlways+`"}}}`)
	drained(t, nm.Name)
	asBefore(t, namespace, "web", 1)
	if lowest := available.stop(t); lowest < 1 {
		t.Errorf("at one time %d pods were available", lowest)
	}
}

// TestNoPodCanBeCreated drains the only pod of an app while its namespace refuses new ones.
func TestNoPodCanBeCreated(t *testing.T) {
	t.Parallel()
	pool, _ := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	node := single(t, namespace, "web", pool, nil, annotated(v1alpha1.AnnotationSurgeTimeout, "2s"))
	pod := livePods(t, namespace)[0]
	available := watchAvailability(t, namespace, "web")
	merge(t, "", "namespace", namespace, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	nm := drainNodes(t, pool, node)
	blocked(t, evacuationFor(t, &pod, "is made", isOurs), v1alpha1.ReasonReplicaFailure, "PodSecurity")
	progressing(t, nm.Name, metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
	merge(t, "", "namespace", namespace, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null}}}`)
	drained(t, nm.Name)
	asBefore(t, namespace, "web", 1)
	if lowest := available.stop(t); lowest < 1 {
		t.Errorf("at one time %d pods were available", lowest)
	}
}
