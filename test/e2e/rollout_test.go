// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// kernelLabel is the label that the workers of the rollouts change, to the value newKernel.
const (
	kernelLabel = "e2e.haulout.dev/kernel"
	newKernel   = "6.12"
)

func rollouts(t *testing.T) clientv1alpha1.NodeMaintenanceRolloutInterface {
	t.Helper()
	return cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
}

// roll creates a rollout over a pool, whose nodes have to get the new kernel, and deletes it after
// the test.
func roll(t *testing.T, pool string, modify ...func(*v1alpha1.NodeMaintenanceRollout)) *v1alpha1.NodeMaintenanceRollout {
	t.Helper()
	r := build.With(&v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: framework.Name("nmr")},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			Stage: v1alpha1.RolloutStageRoll, NodeSelector: framework.Select(framework.Pool, pool),
			Template: v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{
				Worker: pool + ".example.com", DoneWhen: fmt.Sprintf("%[1]q in node.metadata.labels && node.metadata.labels[%[1]q] == %[2]q", kernelLabel, newKernel),
			}},
		},
	}, modify...)
	r = must.Get(rollouts(t).Create(t.Context(), r, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		if t.Failed() {
			cluster.Diagnose(t)
		}
		err := rollouts(t).Delete(context.Background(), r.Name, metav1.DeleteOptions{})
		is.True(t, err == nil || apierrors.IsNotFound(err), "delete rollout %s: %v", r.Name, err)
	})
	return r
}

// runWorker claims the NodeTasks of a pool until the test ends. work does the work on a node, and
// returns its result.
func runWorker(t *testing.T, pool string, work func(node string) v1alpha1.NodeTaskResult) {
	t.Helper()
	tasks := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeTasks()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	report := func(task *v1alpha1.NodeTask, status string) {
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":%s}`, task.UID, status)
		_, err := tasks.Patch(ctx, task.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			t.Errorf("report %s about node %s: %v", status, task.Name, err)
		}
	}
	go func() {
		defer close(done)
		for ticker := time.Tick(200 * time.Millisecond); ctx.Err() == nil; <-ticker {
			list, err := tasks.List(ctx, metav1.ListOptions{FieldSelector: "spec.worker=" + pool + ".example.com"})
			if err != nil {
				continue
			}
			for i := range list.Items {
				switch task := &list.Items[i]; {
				case task.Status.State == v1alpha1.NodeTaskOffered && task.Status.Holder == "":
					report(task, `{"holder":"e2e"}`)
				case task.Status.State == v1alpha1.NodeTaskClaimed && task.Status.Result == "":
					report(task, fmt.Sprintf(`{"result":%q}`, work(task.Name)))
				}
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// install gives a node the new kernel.
func install(t *testing.T, node string) v1alpha1.NodeTaskResult {
	t.Helper()
	if err := label(t, cluster.As(t), node, kernelLabel, newKernel); err != nil {
		t.Errorf("label node %s: %v", node, err)
		return v1alpha1.NodeTaskResultFailed
	}
	return v1alpha1.NodeTaskResultDone
}

func rolloutUntil(t *testing.T, name, reason string) *v1alpha1.NodeMaintenanceRollout {
	t.Helper()
	return framework.Until(t, "rollout "+name+" is "+reason, rollouts(t), name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		progressing := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing)
		return progressing != nil && progressing.Reason == reason
	})
}

// outOf watches the nodes of a pool until the returned function is called, which returns the
// violations of the limits: more than most nodes were out, or nodes of two zones.
func outOf(t *testing.T, pool string, most int) (violations func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := must.Get(cluster.As(t).Nodes().Watch(ctx, metav1.ListOptions{LabelSelector: framework.Pool + "=" + pool}))(t)
	var found []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		out := map[string]string{}
		for event := range w.ResultChan() {
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				continue
			}
			delete(out, node.Name)
			if node.Spec.Unschedulable {
				out[node.Name] = node.Labels[zoneLabel]
			}
			zones := map[string]bool{}
			for _, zone := range out {
				zones[zone] = true
			}
			if len(out) > most || len(zones) > 1 {
				found = append(found, fmt.Sprint(out))
			}
		}
	}()
	return func() []string {
		cancel()
		w.Stop()
		<-done
		return found
	}
}

// TestRolloutZoneByZone rolls six nodes in three zones, of which one has the new kernel already.
func TestRolloutZoneByZone(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 6, true)
	for i, node := range nodes {
		must.Do(t, label(t, cluster.As(t), node, zoneLabel, fmt.Sprintf("zone-%d", i/2)))
	}
	must.Do(t, label(t, cluster.As(t), nodes[0], kernelLabel, newKernel))
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "web", pool, 6)
	cluster.Budget(t, namespace, "web", 2)
	violations := outOf(t, pool, 2)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	r := roll(t, pool, func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Limits = []v1alpha1.RolloutLimit{
			{MaxUnavailable: ptr.To(intstr.FromString("40%"))}, {MaxDomains: ptr.To[int32](1), TopologyKey: zoneLabel},
		}
	})
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 6, Done: 6})
	unschedulable(t, false, nodes...)
	for _, found := range violations() {
		t.Errorf("too many nodes, or nodes of two zones, were out: %s", found)
	}
	list := must.Get(cluster.As(t).Maintenances().List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.LabelRollout + "=" + r.Name}))(t)
	is.Equal(t, len(list.Items), 5, "maintenances of the rollout")
	for i := range list.Items {
		nm := &list.Items[i]
		is.True(t, !strings.Contains(nm.Name, nodes[0]), "node %s had the new kernel, but got %s", nodes[0], nm.Name)
		is.Equal(t, nm.Spec.RequestedBy.Username, r.Spec.RequestedBy.Username, "requester of "+nm.Name)
	}
}

// TestRolloutHaltsAndIsHeld: the work fails on the first node, so no other node is disturbed. A
// user repairs the node, and another one holds the rollout meanwhile. The deletion of the rollout
// releases all nodes.
func TestRolloutHaltsAndIsHeld(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 3, true)
	broken := make(chan struct{})
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult {
		select {
		case <-broken:
			return install(t, node)
		default:
			return v1alpha1.NodeTaskResultFailed
		}
	})
	holder := framework.Name("holder")
	cluster.Bind(t, holder, "haulout-rollout-holder")
	r := roll(t, pool)
	halted := rolloutUntil(t, r.Name, v1alpha1.ReasonHalted)
	is.Equal(t, halted.Status.Nodes, v1alpha1.RolloutNodes{Total: 3, Failed: 1, Waiting: 2})
	failed := halted.Status.Current[0].Unit
	unschedulable(t, true, failed)
	must.Do(t, patchRollout(t, rolloutsOf(t, holder), r.Name, `{"spec":{"holds":[{"name":"ceph","reason":"rebuild"}]}}`, true))
	close(broken)
	must.Do(t, cluster.As(t).Haulout.MaintenanceV1alpha1().NodeTasks().Delete(t.Context(), failed, metav1.DeleteOptions{}))
	framework.Until(t, "the node is done, and the rollout held", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		progressing := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing)
		return r.Status.Nodes.Done == 1 && len(r.Status.Current) == 0 && progressing.Reason == v1alpha1.ReasonHeld && strings.Contains(progressing.Message, "ceph")
	})
	unschedulable(t, false, nodes...)
	must.Get(rollouts(t).Patch(t.Context(), r.Name, types.MergePatchType, []byte(`{"spec":{"holds":null}}`), metav1.PatchOptions{}))(t)
	framework.Until(t, "the next unit runs", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool { return len(r.Status.Current) > 0 })
	must.Do(t, rollouts(t).Delete(t.Context(), r.Name, metav1.DeleteOptions{}))
	framework.Eventually(t, "the maintenances of the rollout are deleted", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Maintenances().List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelRollout + "=" + r.Name})
		return err == nil && len(list.Items) == 0, err
	})
	unschedulable(t, false, nodes...)
}
