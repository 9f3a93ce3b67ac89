// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// withoutSurge makes Haulout evict the pods of a Deployment without a replacement.
func withoutSurge(d *appsv1.Deployment) {
	d.Annotations = map[string]string{v1alpha1.AnnotationSurge: "Disabled"}
}

// costs returns the annotations about deletion costs of the pods of an app, by pod name.
func costs(ctx context.Context, t *testing.T, namespace, app string) (map[string]map[string]string, error) {
	t.Helper()
	list, err := cluster.As(t).Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for i := range list.Items {
		pod := &list.Items[i]
		out[pod.Name] = map[string]string{}
		for _, key := range []string{corev1.PodDeletionCost, v1alpha1.AnnotationOriginalPodDeletionCost} {
			if value, set := pod.Annotations[key]; set {
				out[pod.Name][key] = value
			}
		}
	}
	return out, nil
}

// waitForCosts waits until check returns true for the annotations of each pod of an app.
func waitForCosts(
	t *testing.T, namespace, app, what string, check func(pod string, annotations map[string]string) bool,
) {
	t.Helper()
	framework.Eventually(t, what, func(ctx context.Context) (bool, error) {
		found, err := costs(ctx, t, namespace, app)
		if err != nil {
			return false, err
		}
		for pod, annotations := range found {
			if !check(pod, annotations) {
				return false, fmt.Errorf("pod %s has %v", pod, annotations)
			}
		}
		return true, nil
	})
}

var loweredCost = map[string]string{
	corev1.PodDeletionCost: "-2147483647", v1alpha1.AnnotationOriginalPodDeletionCost: "",
}

// TestScaleDownTakesThePodsThatWait scales an app down while some of its pods are blocked on a
// drained node: only these pods must be deleted.
func TestScaleDownTakesThePodsThatWait(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 3, true)
	namespace := cluster.NewNamespace(t)
	const replicas = 6
	cluster.Deployment(t, namespace, "web", pool, replicas, withoutSurge)
	cluster.Budget(t, namespace, "web", 0)
	blocked, safe := map[types.UID]string{}, map[types.UID]string{}
	for _, pod := range livePods(t, namespace) {
		if pod.Spec.NodeName == nodes[0] {
			blocked[pod.UID] = pod.Name
		} else {
			safe[pod.UID] = pod.Name
		}
	}
	if len(blocked) == 0 || len(safe) == 0 {
		t.Fatalf("%d pods are on %s and %d elsewhere", len(blocked), nodes[0], len(safe))
	}
	nm := cluster.Create(
		t,
		framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes[0])
		}),
	)
	waitForCosts(
		t, namespace, "web", "only the blocked pods have a low cost",
		func(pod string, annotations map[string]string) bool {
			for _, name := range blocked {
				if pod == name {
					return maps.Equal(annotations, loweredCost)
				}
			}
			return len(annotations) == 0
		},
	)
	cluster.MustKubectl(t, "", "scale", "deployment", "web", "-n", namespace,
		fmt.Sprintf("--replicas=%d", replicas-len(blocked)))
	drained(t, nm.Name)
	framework.Until(t, "the app is scaled down",
		cluster.As(t).Kube.AppsV1().Deployments(namespace), "web", func(d *appsv1.Deployment) bool {
			return d.Status.ObservedGeneration == d.Generation && int(d.Status.Replicas) == len(safe)
		})
	for _, pod := range livePods(t, namespace) {
		if _, was := safe[pod.UID]; !was {
			t.Errorf("pod %s was started although others could stay", pod.Name)
		}
	}
}

// TestDeletionCostsComeBack ends drains with blocked pods in different ways.
func TestDeletionCostsComeBack(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, nm string){
		"by completing it": func(t *testing.T, nm string) {
			t.Helper()
			setStage(t, nm, v1alpha1.NodeMaintenanceStageComplete)
		},
		"by deleting it": deleteMaintenance,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			costsComeBack(t, end)
		})
	}
}

// TestDeletionCostsComeBackAfterTheServerWasKilled kills the server during the drain.
func TestDeletionCostsComeBackAfterTheServerWasKilled(t *testing.T) {
	costsComeBack(t, func(t *testing.T, nm string) {
		t.Helper()
		cluster.KillServer(t)
		must.Do(t, cluster.Up())
		deleteMaintenance(t, nm)
	})
}

func deleteMaintenance(t *testing.T, nm string) {
	t.Helper()
	cluster.MustKubectl(t, "", "delete", "nodemaintenance", nm, "--timeout=60s")
}

// costsComeBack drains a node whose pods are blocked, which lowers their deletion costs. It changes
// the cost of one pod and ends the drain. The server must restore the costs of the other pods.
func costsComeBack(t *testing.T, end func(t *testing.T, nm string)) {
	t.Helper()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "web", pool, 3, withoutSurge)
	cluster.Budget(t, namespace, "web", 0)
	pods := livePods(t, namespace)
	dear, changed := pods[0].Name, pods[1].Name
	merge(t, namespace, "pod", dear, `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"7"}}}`)
	before := must.Get(costs(t.Context(), t, namespace, "web"))(t)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	waitForCosts(
		t, namespace, "web", "all pods have a low cost",
		func(pod string, annotations map[string]string) bool {
			want := maps.Clone(loweredCost)
			if pod == dear {
				want[v1alpha1.AnnotationOriginalPodDeletionCost] = "7"
			}
			return maps.Equal(annotations, want)
		},
	)
	merge(t, namespace, "pod", changed,
		`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"9"}}}`)
	end(t, nm.Name)
	waitForCosts(
		t, namespace, "web", "the costs are restored, except the changed one",
		func(pod string, annotations map[string]string) bool {
			if pod == changed {
				return maps.Equal(annotations, map[string]string{corev1.PodDeletionCost: "9"})
			}
			return maps.Equal(annotations, before[pod])
		},
	)
	if now := livePods(t, namespace); len(now) != 3 || now[0].Spec.NodeName != nodes[0] {
		t.Errorf("got %d pods, want that all have stayed", len(now))
	}
}
