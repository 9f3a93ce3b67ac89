// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// shippedDeployment returns the Deployment of artifacts/base/deployment.yaml.
func shippedDeployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join(cluster.Root(), "artifacts", "base", "deployment.yaml")))(t)
	var d appsv1.Deployment
	must.Do(t, yaml.UnmarshalStrict(content, &d))
	return &d
}

// asShipped copies the strategy and the tolerations of the server's Deployment to a Deployment.
func asShipped(t *testing.T) func(*appsv1.Deployment) {
	t.Helper()
	shipped := shippedDeployment(t)
	tolerations := shipped.Spec.Template.Spec.Tolerations
	must.True(t, len(tolerations) != 0, "the shipped Deployment has no tolerations")
	return func(d *appsv1.Deployment) {
		// The annotation allows a surge, as by default, but the strategy of the Deployment prevents
		// it.
		framework.WithSurge(d)
		d.Spec.Strategy = shipped.Spec.Strategy
		d.Spec.Template.Spec.Tolerations = append(d.Spec.Template.Spec.Tolerations, tolerations...)
	}
}

// fill creates a pod that requests most of the CPU and memory of a node, so that the scheduler
// prefers other nodes.
func fill(t *testing.T, namespace, pool, node string) {
	t.Helper()
	cluster.PodOn(t, namespace, "fills-"+node, pool, node, func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("56"), corev1.ResourceMemory: resource.MustParse("224Gi"),
		}
	})
}

// TestServerLeavesItsNodeLastAndDoesNotComeBack drains the node of a Deployment that represents the
// server's own: the server of the development cluster does not run in a pod, and the test
// configures the server as if it ran in a pod of this Deployment. The pod tolerates cordons, and
// its former node has the most free resources, so only the taint of held nodes makes the scheduler
// choose another node.
func TestServerLeavesItsNodeLastAndDoesNotComeBack(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 1, true)
	home, other := nodes[0], pool+"-other"
	namespace := cluster.NewNamespace(t)
	labels := map[string]string{"app": framework.Name("server")}
	cluster.Deployment(t, namespace, labels["app"], pool, 1, asShipped(t))
	cluster.NewNodes(t, pool, true, other)
	fill(t, namespace, pool, other)
	const hold = "e2e.haulout.dev/hold"
	web := cluster.PodOn(t, namespace, "web", pool, home, func(pod *corev1.Pod) {
		pod.Finalizers = []string{hold}
	})
	restartIn(t, namespace, serverPod(t, namespace, labels).Name)
	// Use defer and not a cleanup, because the context of the test has ended at a cleanup.
	defer restartIn(t, "", "")

	first := cluster.Create(t, over(home))
	framework.Eventually(t, "the other pod is terminating and the server's pod waits",
		func(ctx context.Context) (bool, error) {
			nm, err := cluster.As(t).Maintenances().Get(ctx, first.Name, metav1.GetOptions{})
			if err != nil || len(nm.Status.NodeStatuses) != 1 {
				return false, err
			}
			pod, err := cluster.As(t).Pods(namespace).Get(ctx, web.Name, metav1.GetOptions{})
			status := nm.Status.NodeStatuses[0]
			return err == nil && pod.DeletionTimestamp != nil &&
				status.PodsEvacuating == 1 && status.PodsPendingEvacuation == 1, err
		})
	if node := theNode(t, home); !isHeld(node) {
		t.Errorf("node %s has the taints %v, want %s", home, node.Spec.Taints, v1alpha1.TaintHeld)
	}
	merge(t, namespace, "pod", web.Name, `{"metadata":{"finalizers":null}}`)
	wantDrainedBecause(t, first.Name, v1alpha1.ReasonDrainComplete)
	if pod := serverPod(t, namespace, labels); pod.Spec.NodeName != other {
		t.Fatalf("the server's pod is on %q, want %s", pod.Spec.NodeName, other)
	}

	// Now all nodes that the pod can use are held. The pod must move once and then stay on its new
	// node.
	restartIn(t, namespace, serverPod(t, namespace, labels).Name)
	log := cluster.AuditLog(t)
	second := cluster.Create(t, over(other))
	keptBy := ""
	framework.Eventually(t, "one of the two maintenances names the pod", func(ctx context.Context) (bool, error) {
		keptBy = ""
		for _, name := range []string{first.Name, second.Name} {
			nm, err := cluster.As(t).Maintenances().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			c := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
			if c == nil || c.Status != metav1.ConditionTrue {
				return false, fmt.Errorf("Drained of %s is %+v", name, c)
			}
			if c.Reason == v1alpha1.ReasonDrainCompleteWithPodsLeft && strings.Contains(c.Message, labels["app"]) {
				keptBy += name
			}
		}
		return keptBy == first.Name || keptBy == second.Name, nil
	})
	on := map[string]string{first.Name: home, second.Name: other}[keptBy]
	if pod := serverPod(t, namespace, labels); pod.Spec.NodeName != on {
		t.Errorf("the server's pod is on %q, but the maintenance of %s names it", pod.Spec.NodeName, on)
	}
	calls := must.Get(log.Calls())(t)
	evicted := 0
	for _, call := range calls {
		if call.Evicted() && strings.HasPrefix(call.Name, labels["app"]+"-") {
			evicted++
		}
	}
	is.True(t, evicted == 1, "the server's pod was evicted %d times, want once", evicted)
	setStage(t, first.Name, v1alpha1.NodeMaintenanceStageComplete)
	setStage(t, second.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, home, other)
	framework.Accept(t, oracle.LeftOn(theNode(t, home), false), nil)
}

// isHeld reports whether a node has the taint of held nodes, which the scheduler tries to avoid.
func isHeld(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == v1alpha1.TaintHeld && taint.Effect == corev1.TaintEffectPreferNoSchedule
	})
}

// TestShippedDeploymentDoesNotTolerateHeldNodes checks the tolerations of the manifest. With a
// toleration of held nodes, the server's pod could return immediately to the node from which it was
// evicted.
func TestShippedDeploymentDoesNotTolerateHeldNodes(t *testing.T) {
	held := corev1.Taint{Key: v1alpha1.TaintHeld, Effect: corev1.TaintEffectPreferNoSchedule}
	for _, toleration := range shippedDeployment(t).Spec.Template.Spec.Tolerations {
		if toleration.ToleratesTaint(klog.FromContext(t.Context()), &held, true) {
			t.Errorf("the toleration %+v includes held nodes", toleration)
		}
	}
}

func over(node string) *v1alpha1.NodeMaintenance {
	return framework.Maintenance("", v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, node)
	})
}

// restartIn restarts the server as if it ran in a pod, or in no pod if the name is "".
func restartIn(t *testing.T, namespace, pod string) {
	t.Helper()
	t.Setenv("POD_NAME", pod)
	t.Setenv("POD_NAMESPACE", namespace)
	cluster.KillServer(t)
	must.Do(t, cluster.Up())
}

// serverPod waits until the one pod of the Deployment runs.
func serverPod(t *testing.T, namespace string, labels map[string]string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	framework.Eventually(t, "the server's pod runs", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + labels["app"]})
		if err != nil || len(list.Items) != 1 {
			return false, err
		}
		pod = &list.Items[0]
		return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil, nil
	})
	return pod
}

// wantDrainedBecause waits until the condition Drained of a maintenance is True with a reason.
func wantDrainedBecause(t *testing.T, name, reason string) {
	t.Helper()
	framework.Until(t, name+" is drained: "+reason,
		cluster.As(t).Maintenances(), name, func(nm *v1alpha1.NodeMaintenance) bool {
			return conditionIs(nm.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, reason)
		})
}
