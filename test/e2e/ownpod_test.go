/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

// The server of the development cluster runs in no pod. It is told that it runs in one of a Deployment, which stands for its own.
func TestServerLeavesItsNodeLastAndOnlyForAnother(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 2, true)
	home, other := nodes[0], nodes[1]
	namespace := cluster.NewNamespace(t)
	unschedulableBy(t, true, other)
	labels := map[string]string{"app": framework.Name("server")}
	cluster.Deployment(t, namespace, labels["app"], pool, 1)
	unschedulableBy(t, false, other)
	const hold = "e2e.haulout.dev/hold"
	web := cluster.PodOn(t, namespace, "web", pool, home, func(pod *corev1.Pod) { pod.Finalizers = []string{hold} })
	restartIn(t, namespace, serverPod(t, namespace, labels).Name)
	// Not in a cleanup: by then the context of the test has ended.
	defer restartIn(t, "", "")

	first := cluster.Create(t, over(home))
	framework.Eventually(t, "the other pod leaves and the server's pod waits", func(ctx context.Context) (bool, error) {
		nm, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, first.Name, metav1.GetOptions{})
		if err != nil || len(nm.Status.NodeStatuses) != 1 {
			return false, err
		}
		pod, err := cluster.As(t).Kube.CoreV1().Pods(namespace).Get(ctx, web.Name, metav1.GetOptions{})
		status := nm.Status.NodeStatuses[0]
		return err == nil && pod.DeletionTimestamp != nil && status.PodsEvacuating == 1 && status.PodsPendingEvacuation == 1, err
	})
	cluster.MustKubectl(t, "", "patch", "pod", web.Name, "-n", namespace, "--type=merge", `-p={"metadata":{"finalizers":null}}`)
	wantDrainedBecause(t, first.Name, v1alpha1.ReasonDrainComplete)
	if pod := serverPod(t, namespace, labels); pod.Spec.NodeName != other {
		t.Fatalf("the server's pod is on %q, want %s", pod.Spec.NodeName, other)
	}

	restartIn(t, namespace, serverPod(t, namespace, labels).Name)
	second := cluster.Create(t, over(other))
	if message := wantDrainedBecause(t, second.Name, v1alpha1.ReasonDrainCompleteWithPodsLeft); !strings.Contains(message, labels["app"]) {
		t.Errorf("the server's pod is not named: %s", message)
	}
	if pod := serverPod(t, namespace, labels); pod.Spec.NodeName != other {
		t.Fatalf("the server's pod is on %q, want %s", pod.Spec.NodeName, other)
	}
	setStage(t, first.Name, v1alpha1.NodeMaintenanceStageComplete)
	wantDrainedBecause(t, second.Name, v1alpha1.ReasonDrainComplete)
	if pod := serverPod(t, namespace, labels); pod.Spec.NodeName != home {
		t.Errorf("the server's pod is on %q, want %s", pod.Spec.NodeName, home)
	}
}

func over(node string) *v1alpha1.NodeMaintenance {
	return framework.Maintenance("", v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, node)
	})
}

// restartIn starts the server anew as if it ran in a pod; an empty name means in none.
func restartIn(t *testing.T, namespace, pod string) {
	t.Helper()
	t.Setenv("POD_NAME", pod)
	t.Setenv("POD_NAMESPACE", namespace)
	cluster.KillServer(t)
	if err := cluster.Up(); err != nil {
		t.Fatal(err)
	}
}

// serverPod waits until the one pod of the Deployment runs.
func serverPod(t *testing.T, namespace string, labels map[string]string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	framework.Eventually(t, "the server's pod runs", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(metav1.SetAsLabelSelector(labels))})
		if err != nil || len(list.Items) != 1 || list.Items[0].Status.Phase != corev1.PodRunning || list.Items[0].DeletionTimestamp != nil {
			return false, err
		}
		pod = &list.Items[0]
		return true, nil
	})
	return pod
}

func unschedulableBy(t *testing.T, want bool, node string) {
	t.Helper()
	verb := map[bool]string{true: "cordon", false: "uncordon"}[want]
	cluster.MustKubectl(t, "", verb, node)
}

// wantDrainedBecause waits until a maintenance is drained for a reason, and returns the message.
func wantDrainedBecause(t *testing.T, name, reason string) string {
	t.Helper()
	var message string
	framework.Eventually(t, name+" is drained: "+reason, func(ctx context.Context) (bool, error) {
		nm, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
		if err != nil || !conditionIs(nm.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, reason) {
			return false, err
		}
		message = meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained).Message
		return true, nil
	})
	return message
}
