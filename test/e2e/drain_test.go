// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

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

// unschedulable waits until spec.unschedulable of all nodes has a value.
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

// podsOn returns the live pods on the nodes.
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

// availability watches the pods and the Deployment of an app, and records the minimum number of
// ready pods.
type availability struct {
	app     string
	mu      sync.Mutex
	ready   map[types.UID]bool
	lowest  int
	history []string
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

func watchAvailability(t *testing.T, namespace, app string) *availability {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &availability{app: app, ready: map[types.UID]bool{}, lowest: math.MaxInt, cancel: cancel}
	kube := cluster.As(t).Kube
	list := must.Get(kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app}))(t)
	for i := range list.Items {
		a.see(&list.Items[i], false)
	}
	a.lowest = a.count()
	pods := must.Get(kube.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{
		LabelSelector: "app=" + app, ResourceVersion: list.ResourceVersion,
	}))(t)
	owners := must.Get(kube.AppsV1().Deployments(namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + app,
	}))(t)
	a.done.Go(func() {
		defer pods.Stop()
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				a.see(pod, event.Type == watch.Deleted)
			}
		}
	})
	a.done.Go(func() {
		defer owners.Stop()
		for event := range owners.ResultChan() {
			if d, ok := event.Object.(*appsv1.Deployment); ok {
				a.tell("deployment %s: %s, replicas %d, available %d, %v",
					d.Name, d.ResourceVersion, *d.Spec.Replicas, d.Status.AvailableReplicas, d.Annotations)
			}
		}
	})
	return a
}

// tell adds a line to the history, which a failed test prints.
func (a *availability) tell(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.history = append(a.history, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (a *availability) see(pod *corev1.Pod, deleted bool) {
	up := !deleted && pod.DeletionTimestamp == nil && oracle.IsReady(pod)
	a.tell("pod %s on %q: %s, available %t, leaving %t, gone %t, %v",
		pod.Name, pod.Spec.NodeName, pod.ResourceVersion, up, pod.DeletionTimestamp != nil, deleted, pod.Annotations)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ready[pod.UID] = up
	a.lowest = min(a.lowest, a.count())
}

func (a *availability) count() int {
	n := 0
	for _, r := range a.ready {
		if r {
			n++
		}
	}
	return n
}

// atLeast ends the watch, and checks the minimum number of ready pods. If the test fails, it prints
// the history.
func (a *availability) atLeast(t *testing.T, want int) {
	t.Helper()
	a.cancel()
	a.done.Wait()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("cluster: pods and Deployment of the app " + a.app + ":\n" + strings.Join(a.history, "\n"))
		}
	})
	is.True(t, a.lowest >= want, "%s had only %d available pods at one time, want %d", a.app, a.lowest, want)
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
	available := watchAvailability(t, namespace, "web")
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
	available.atLeast(t, replicas-maxUnavailable)
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
