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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// drained waits until a maintenance is drained.
func drained(t *testing.T, name string) *v1alpha1.NodeMaintenance {
	t.Helper()
	var nm *v1alpha1.NodeMaintenance
	framework.Eventually(t, name+" is drained", func(ctx context.Context) (bool, error) {
		var err error
		nm, err = cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
		return err == nil && conditionIs(nm.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, ""), err
	})
	return nm
}

// unschedulable waits until all the nodes are, or are not.
func unschedulable(t *testing.T, want bool, nodes ...string) {
	t.Helper()
	framework.Eventually(
		t, fmt.Sprintf("unschedulable is %v on %v", want, nodes),
		func(ctx context.Context) (bool, error) {
			for _, name := range nodes {
				node, err := cluster.As(t).Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
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
	if _, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Patch(t.Context(), name,
		types.MergePatchType, []byte(fmt.Sprintf(`{"spec":{"stage":%q}}`, stage)), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// podsOn returns the live pods on the nodes.
func podsOn(ctx context.Context, t *testing.T, nodes ...string) ([]corev1.Pod, error) {
	t.Helper()
	list, err := cluster.As(t).Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return !slices.Contains(nodes, p.Spec.NodeName)
	}), nil
}

// availability watches the pods of an app and its Deployment, and keeps the lowest number of pods
// that were there to serve together.
type availability struct {
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
	a := &availability{ready: map[types.UID]bool{}, lowest: math.MaxInt, cancel: cancel}
	kube := cluster.As(t).Kube
	list, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		a.see(&list.Items[i], false)
	}
	a.lowest = a.count()
	pods, err := kube.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{
		LabelSelector: "app=" + app, ResourceVersion: list.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	owners, err := kube.AppsV1().Deployments(namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + app,
	})
	if err != nil {
		t.Fatal(err)
	}
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

// tell adds a line to the history, which a test shows when too few pods were available.
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

// stop returns the lowest number of pods that were available. A test that then fails shows how it
// came to it.
func (a *availability) stop(t *testing.T) int {
	t.Helper()
	a.cancel()
	a.done.Wait()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("cluster: pods and Deployment of the app:\n" + strings.Join(a.history, "\n"))
		}
	})
	return a.lowest
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
	if lowest := available.stop(t); lowest < replicas-maxUnavailable {
		t.Errorf("only %d pods were available at a time, the budget wants %d", lowest, replicas-maxUnavailable)
	}
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
	framework.Eventually(t, "the finalizer is off, the annotation gone", func(ctx context.Context) (bool, error) {
		done, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, nm.Name,
			metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		node, err := cluster.As(t).Kube.CoreV1().Nodes().Get(ctx, target[0], metav1.GetOptions{})
		return err == nil && len(done.Finalizers) == 0 && node.Annotations[v1alpha1.AnnotationCordonedBy] == "", err
	})
}

// No pod of a higher wave may be asked to leave while one of a lower wave is left on any node of
// the maintenance.
func TestWavesAreInOrder(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 3, true)
	namespace := cluster.NewNamespace(t)
	admin := cluster.As(t)
	for i, node := range nodes {
		cluster.PodOn(t, namespace, fmt.Sprintf("low-%d", i), pool, node)
		cluster.PodOn(t, namespace, fmt.Sprintf("high-%d", i), pool, node,
			func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" })
	}
	w, err := admin.Kube.CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	lowLeft, highLeft := len(nodes), len(nodes)
	deadline := time.After(framework.Timeout)
	for lowLeft+highLeft > 0 {
		select {
		case event := <-w.ResultChan():
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				t.Fatalf("watch ended with %v", event.Object)
			}
			high := pod.Spec.PriorityClassName != ""
			if high && pod.DeletionTimestamp != nil && lowLeft > 0 {
				t.Fatalf("%s was asked to leave while %d pods of the first wave are left", pod.Name, lowLeft)
			}
			if event.Type != "DELETED" {
				continue
			}
			if high {
				highLeft--
			} else {
				lowLeft--
			}
		case <-deadline:
			t.Fatalf("%d and %d pods are left", lowLeft, highLeft)
		}
	}
	drained(t, nm.Name)
}

func TestDeletionInEveryStageReleasesTheNodes(t *testing.T) {
	t.Parallel()
	for _, stage := range []v1alpha1.NodeMaintenanceStage{
		v1alpha1.NodeMaintenanceStageIdle, v1alpha1.NodeMaintenanceStageCordon, v1alpha1.NodeMaintenanceStageDrain,
		v1alpha1.NodeMaintenanceStageComplete,
	} {
		t.Run(string(stage), func(t *testing.T) {
			pool, nodes := cluster.NewPool(t, 2, true)
			namespace := cluster.NewNamespace(t)
			cluster.Deployment(t, namespace, "stuck", pool, 2)
			// nothing can ever leave, so a drain is under way when it is deleted
			cluster.Budget(t, namespace, "stuck", 0)
			maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
			nm := cluster.Create(t, framework.Maintenance(pool, stage))
			if stage == v1alpha1.NodeMaintenanceStageCordon || stage == v1alpha1.NodeMaintenanceStageDrain {
				unschedulable(t, true, nodes...)
			}
			if stage == v1alpha1.NodeMaintenanceStageDrain {
				framework.Eventually(t, "both pods have an evacuation", func(ctx context.Context) (bool, error) {
					list, err := cluster.As(t).Haulout.MaintenanceV1alpha1().Evacuations(namespace).List(ctx,
						metav1.ListOptions{})
					return err == nil && len(list.Items) == 2, err
				})
			}
			if err := maintenances.Delete(t.Context(), nm.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			framework.Eventually(t, "the maintenance is gone", func(ctx context.Context) (bool, error) {
				_, err := maintenances.Get(ctx, nm.Name, metav1.GetOptions{})
				return apierrors.IsNotFound(err), nil
			})
			unschedulable(t, false, nodes...)
			framework.Eventually(
				t, "its evacuations are gone and the pods are not",
				func(ctx context.Context) (bool, error) {
					list, err := cluster.As(t).Haulout.MaintenanceV1alpha1().Evacuations(namespace).List(ctx,
						metav1.ListOptions{})
					if err != nil || len(list.Items) > 0 {
						return false, err
					}
					pods, err := podsOn(ctx, t, nodes...)
					return len(pods) == 2, err
				},
			)
		})
	}
}

func TestForeignCordonIsLeftAlone(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	cluster.MustKubectl(t, "", "cordon", nodes[0])
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()

	t.Run("by a maintenance that comes and goes immediately", func(t *testing.T) {
		for range 5 {
			nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon)
			if _, err := maintenances.Create(t.Context(), nm, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := maintenances.Delete(t.Context(), nm.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			framework.Eventually(t, "the maintenance is gone", func(ctx context.Context) (bool, error) {
				_, err := maintenances.Get(ctx, nm.Name, metav1.GetOptions{})
				return apierrors.IsNotFound(err), nil
			})
		}
		unschedulable(t, true, nodes[0])
		unschedulable(t, false, nodes[1])
	})
	t.Run("by one that runs its course", func(t *testing.T) {
		nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
		drained(t, nm.Name)
		setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
		unschedulable(t, false, nodes[1])
		unschedulable(t, true, nodes[0])
	})
	t.Run("but lifted by one that goes from Idle to Complete, which says: make schedulable", func(t *testing.T) {
		nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle))
		setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
		unschedulable(t, false, nodes...)
	})
}

func TestNodeHeldByTwoMaintenancesStaysCordoned(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	first := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon))
	second := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	drained(t, second.Name)
	setStage(t, first.Name, v1alpha1.NodeMaintenanceStageComplete)
	framework.Eventually(t, "the first maintenance has let go", func(ctx context.Context) (bool, error) {
		nm, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, first.Name,
			metav1.GetOptions{})
		return err == nil && len(nm.Finalizers) == 0, err
	})
	unschedulable(t, true, nodes...)
	setStage(t, second.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, nodes...)
}
