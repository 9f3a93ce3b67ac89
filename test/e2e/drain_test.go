// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// drained waits until a maintenance is drained.
func drained(t *testing.T, name string) *v1alpha1.NodeMaintenance {
	t.Helper()
	var nm *v1alpha1.NodeMaintenance
	framework.Eventually(t, name+" is drained", func(ctx context.Context) (bool, error) {
		var err error
		nm, err = cluster.As(t).Maintenances().Get(ctx, name, metav1.GetOptions{})
		return err == nil && conditionIs(nm.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, ""), err
	})
	return nm
}

// unschedulable waits until spec.unschedulable of all nodes has the given value.
func unschedulable(t *testing.T, want bool, nodes ...string) {
	t.Helper()
	framework.Eventually(
		t, fmt.Sprintf("unschedulable is %v on %v", want, nodes),
		func(ctx context.Context) (bool, error) {
			for _, name := range nodes {
				node, err := cluster.As(t).Nodes().Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				if node.Spec.Unschedulable != want {
					return false, nil
				}
			}
			return true, nil
		},
	)
}

func setStage(t *testing.T, name string, stage v1alpha1.NodeMaintenanceStage) {
	t.Helper()
	must.Get(cluster.As(t).Maintenances().Patch(t.Context(), name,
		types.MergePatchType, []byte(fmt.Sprintf(`{"spec":{"stage":%q}}`, stage)), metav1.PatchOptions{}))(t)
}

// podsOn returns the pods on the nodes.
func podsOn(ctx context.Context, t *testing.T, nodes ...string) ([]corev1.Pod, error) {
	t.Helper()
	list, err := cluster.As(t).Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return !slices.Contains(nodes, p.Spec.NodeName)
	}), nil
}

// watchAvailability records from now on what happens to the pods and Deployments of a namespace. A
// test that fails shows it.
func watchAvailability(t *testing.T, namespace string) *oracle.Recorder {
	t.Helper()
	admin := cluster.As(t)
	recorder := must.Get(oracle.Start(t.Context(), admin.Kube, admin.Haulout, oracle.Scope{
		Namespaces: []string{namespace}, Only: []string{"pods", "deployments"},
	}))(t)
	t.Cleanup(func() {
		if log, err := recorder.Log(); t.Failed() {
			t.Logf("cluster: pods and Deployments (%v):\n%s", err, log)
		}
	})
	return recorder
}

// wasAvailable checks the lowest number of healthy pods of an app, and returns it.
func wasAvailable(t *testing.T, recorder *oracle.Recorder, app string, want int) int {
	t.Helper()
	for workload, span := range oracle.Availability(must.Get(recorder.Log())(t)) {
		if workload.Name == app {
			is.True(t, span.Lowest >= want, "of %s, at one time %d pods were available, want %d", app, span.Lowest, want)
			return span.Lowest
		}
	}
	t.Errorf("no pod of %s was ever available", app)
	return 0
}

func TestDrainFollowsThePlanWithinBudgets(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 4, true)
	namespace := cluster.NewNamespace(t)
	const replicas, maxUnavailable = 12, 2
	cluster.Deployment(t, namespace, "web", pool, replicas)
	cluster.Budget(t, namespace, "web", maxUnavailable)
	cluster.PodOn(t, namespace, "bare", pool, nodes[0])
	cluster.PodOn(t, namespace, "important", pool, nodes[1], func(p *corev1.Pod) {
		p.Spec.PriorityClassName = "system-cluster-critical"
	})
	available := watchAvailability(t, namespace)
	target := nodes[:2]

	nm := cluster.Create(
		t,
		framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, target...)
		}),
	)
	nm = drained(t, nm.Name)
	if pods, err := podsOn(t.Context(), t, target...); err != nil || len(pods) != 0 {
		t.Errorf("drained with pods left on the nodes: %d, %v", len(pods), err)
	}
	wasAvailable(t, available, "web", replicas-maxUnavailable)
	if len(nm.Status.NodeStatuses) != 2 || nm.Status.NodeStatuses[0].NodeRef.Name != target[0] ||
		nm.Status.NodeStatuses[0].NodeRef.UID == "" {
		t.Errorf("node statuses are %+v", nm.Status.NodeStatuses)
	}
	if len(nm.Status.StageStatuses) != 2 || nm.Status.StageStatuses[0].Name != v1alpha1.NodeMaintenanceStageCordon ||
		nm.Status.StageStatuses[1].Name != v1alpha1.NodeMaintenanceStageDrain {
		t.Errorf("stage statuses are %+v, want Cordon and Drain", nm.Status.StageStatuses)
	}
	unschedulable(t, true, target...)
	unschedulable(t, false, nodes[2:]...)

	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, nodes...)
	framework.Eventually(t, "the finalizer and the annotation are removed", func(ctx context.Context) (bool, error) {
		done, err := cluster.As(t).Maintenances().Get(ctx, nm.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		node, err := cluster.As(t).Nodes().Get(ctx, target[0], metav1.GetOptions{})
		return err == nil && len(done.Finalizers) == 0 && node.Annotations[v1alpha1.AnnotationCordonedBy] == "", err
	})
}

func TestForeignCordonIsLeftAlone(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	cluster.MustKubectl(t, "", "cordon", nodes[0])
	maintenances := cluster.As(t).Maintenances()

	t.Run("by a maintenance that is deleted immediately", func(t *testing.T) {
		for range 5 {
			nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon)
			must.Get(maintenances.Create(t.Context(), nm, metav1.CreateOptions{}))(t)
			must.Do(t, maintenances.Delete(t.Context(), nm.Name, metav1.DeleteOptions{}))
			framework.UntilGone(t, "the maintenance is gone", maintenances, nm.Name)
		}
		unschedulable(t, true, nodes[0])
		unschedulable(t, false, nodes[1])
	})
	t.Run("by a maintenance that completes", func(t *testing.T) {
		nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
		drained(t, nm.Name)
		setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
		unschedulable(t, false, nodes[1])
		unschedulable(t, true, nodes[0])
	})
	t.Run("but Idle to Complete uncordons the node", func(t *testing.T) {
		nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle))
		setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
		unschedulable(t, false, nodes...)
	})
}
