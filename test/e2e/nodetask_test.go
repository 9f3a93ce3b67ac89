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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	// workedOn is the label that the worker of a test puts on its node.
	workedOn = "e2e.haulout.dev/worked-on"
	// quiet is how long a test watches that the server does nothing.
	quiet = 3 * time.Second
)

func tasks(tb testing.TB) clientv1alpha1.NodeTaskInterface {
	tb.Helper()
	return cluster.As(tb).Haulout.MaintenanceV1alpha1().NodeTasks()
}

// withTask adds a task whose nodes are done when they have the label workedOn.
func withTask(nm *v1alpha1.NodeMaintenance) {
	nm.Spec.Task = &v1alpha1.NodeMaintenanceTask{
		Worker: "test.e2e.haulout.dev", DoneWhen: fmt.Sprintf("'%s' in node.metadata.labels", workedOn),
	}
}

// createWithTask creates a maintenance with a task in stage Drain, and removes its NodeTasks after
// the test.
func createWithTask(t *testing.T, pool string, nodes []string) *v1alpha1.NodeMaintenance {
	t.Helper()
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, withTask))
	t.Cleanup(func() {
		for _, node := range nodes {
			_ = tasks(t).Delete(context.Background(), node, metav1.DeleteOptions{})
		}
	})
	return nm
}

// work writes the status of a NodeTask as a worker does.
func work(t *testing.T, node, status string) {
	t.Helper()
	must.Get(tasks(t).Patch(t.Context(), node, types.MergePatchType, fmt.Appendf(nil, `{"status":%s}`, status), metav1.PatchOptions{}, "status"))(t)
}

func untilTask(t *testing.T, node string, state v1alpha1.NodeTaskState) *v1alpha1.NodeTask {
	t.Helper()
	return framework.Until(t, fmt.Sprintf("the task of %s is %s", node, state), tasks(t), node, func(task *v1alpha1.NodeTask) bool {
		return task.Status.State == state
	})
}

func untilSchedulable(t *testing.T, node string, want bool) {
	t.Helper()
	framework.Until(t, fmt.Sprintf("node %s is schedulable: %t", node, want), cluster.As(t).Nodes(), node, func(n *corev1.Node) bool {
		return n.Spec.Unschedulable == !want
	})
}

func labelNode(t *testing.T, node string) {
	t.Helper()
	must.Get(cluster.As(t).Nodes().Patch(t.Context(), node, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:"yes"}}}`, workedOn), metav1.PatchOptions{}))(t)
}

// recordOf returns the state of the work on a node in the status of a maintenance.
func recordOf(nm *v1alpha1.NodeMaintenance, node string) v1alpha1.NodeTaskState {
	for _, entry := range nm.Status.NodeStatuses {
		if entry.NodeRef.Name == node && entry.Task != nil {
			return entry.Task.State
		}
	}
	return ""
}

// TestWorkerKeepsItsNode completes a maintenance while a worker has one of its two nodes, and has
// pods, users and another maintenance get in the way of the worker.
func TestWorkerKeepsItsNode(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	admin := cluster.As(t)
	cluster.PodOn(t, namespace, "web", pool, nodes[1])
	nm := createWithTask(t, pool, nodes)
	untilTask(t, nodes[0], v1alpha1.NodeTaskOffered)
	untilTask(t, nodes[1], v1alpha1.NodeTaskOffered)
	work(t, nodes[0], `{"holder":"worker-1"}`)
	task := untilTask(t, nodes[0], v1alpha1.NodeTaskClaimed)
	is.True(t, task.Status.ClaimedBy != "", "no user in %+v", task.Status)

	cluster.PodOn(t, namespace, "late", pool, nodes[0])
	other := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	framework.Until(t, "the other maintenance waits for the worker", admin.Maintenances(), other.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		return conditionIs(nm.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionFalse, v1alpha1.ReasonNodeTaskInProgress)
	})
	framework.UntilGone(t, "the offer is withdrawn, since another maintenance holds the node", tasks(t), nodes[1])
	cluster.Remove(t, other.Name)
	untilTask(t, nodes[1], v1alpha1.NodeTaskOffered)
	must.Get(admin.Maintenances().Patch(t.Context(), nm.Name, types.MergePatchType, []byte(`{"spec":{"stage":"Complete"}}`), metav1.PatchOptions{}))(t)
	framework.UntilGone(t, "the offer is withdrawn", tasks(t), nodes[1])
	untilSchedulable(t, nodes[1], true)
	cluster.MustKubectl(t, "", "uncordon", nodes[0])
	untilSchedulable(t, nodes[0], false)
	<-time.After(quiet)
	must.Get(admin.Pods(namespace).Get(t.Context(), "late", metav1.GetOptions{}))(t)
	is.Equal(t, len(must.Get(admin.Evacuations(namespace).List(t.Context(), metav1.ListOptions{}))(t).Items), 0)

	work(t, nodes[0], `{"result":"Done","message":"new kernel"}`)
	untilTask(t, nodes[0], v1alpha1.NodeTaskVerifying)
	<-time.After(quiet)
	untilSchedulable(t, nodes[0], false)
	labelNode(t, nodes[0])
	untilSchedulable(t, nodes[0], true)
	framework.UntilGone(t, "the task of finished work is deleted", tasks(t), nodes[0])
	ended := framework.Until(t, "the maintenance has released its nodes", admin.Maintenances(), nm.Name, v1alpha1.IsDone)
	is.Equal(t, recordOf(ended, nodes[0]), v1alpha1.NodeTaskDone)
	is.Equal(t, recordOf(ended, nodes[1]), v1alpha1.NodeTaskState(""))
}

// TestNodeIsReinstalledWithoutItsLabels has a worker register its node again. The label by which
// the maintenance selects the node comes after the worker has reported Done. The test runs alone:
// as long as the node does not exist, rollouts count it as out.
func TestNodeIsReinstalledWithoutItsLabels(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 1, true)
	node, admin := nodes[0], cluster.As(t)
	nm := createWithTask(t, pool, nodes)
	untilTask(t, node, v1alpha1.NodeTaskOffered)
	work(t, node, `{"holder":"worker-1"}`)
	untilTask(t, node, v1alpha1.NodeTaskClaimed)
	must.Do(t, admin.Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}))
	cluster.NewNodes(t, pool+"-later", true, node)
	untilSchedulable(t, node, false)
	framework.Until(t, "the status has the work", admin.Maintenances(), nm.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		return recordOf(nm, node) == v1alpha1.NodeTaskClaimed
	})
	labelNode(t, node)
	work(t, node, `{"result":"Done"}`)
	untilTask(t, node, v1alpha1.NodeTaskDone)
	<-time.After(quiet)
	is.True(t, must.Get(admin.Nodes().Get(t.Context(), node, metav1.GetOptions{}))(t).Spec.Unschedulable, "node %s is in service", node)
	untilTask(t, node, v1alpha1.NodeTaskDone)
	must.Do(t, label(t, admin, node, framework.Pool, pool))
	framework.UntilGone(t, "the work is recorded", tasks(t), node)
	framework.Until(t, "the maintenance says whose move it is", admin.Maintenances(), nm.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		progressing := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
		return recordOf(nm, node) == v1alpha1.NodeTaskDone && progressing != nil && strings.HasPrefix(progressing.Message, "The work on all nodes is done")
	})
	is.True(t, must.Get(admin.Nodes().Get(t.Context(), node, metav1.GetOptions{}))(t).Spec.Unschedulable, "node %s is in service", node)
	must.Get(admin.Maintenances().Patch(t.Context(), nm.Name, types.MergePatchType, []byte(`{"spec":{"stage":"Complete"}}`), metav1.PatchOptions{}))(t)
	untilSchedulable(t, node, true)
}

// TestFailedTaskStartsOver has a worker fail, and deletes its task: the pod that came meanwhile
// leaves, and the node is offered again. The next worker only gets the node without the pod.
func TestFailedTaskStartsOver(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	admin := cluster.As(t)
	nm := createWithTask(t, pool, nodes)
	untilTask(t, nodes[0], v1alpha1.NodeTaskOffered)
	work(t, nodes[0], `{"holder":"worker-1"}`)
	untilTask(t, nodes[0], v1alpha1.NodeTaskClaimed)
	work(t, nodes[0], `{"result":"Failed","message":"exit code 3"}`)
	failed := untilTask(t, nodes[0], v1alpha1.NodeTaskFailed)
	is.Equal(t, failed.Status.Reason, v1alpha1.NodeTaskWorkerFailed)
	framework.Until(t, "the maintenance names the failure", admin.Maintenances(), nm.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		return recordOf(nm, nodes[0]) == v1alpha1.NodeTaskFailed
	})
	cluster.PodOn(t, namespace, "late", pool, nodes[0])
	<-time.After(quiet)
	must.Get(admin.Pods(namespace).Get(t.Context(), "late", metav1.GetOptions{}))(t)

	must.Do(t, tasks(t).Delete(t.Context(), nodes[0], metav1.DeleteOptions{}))
	framework.UntilGone(t, "the late pod leaves", admin.Pods(namespace), "late")
	untilTask(t, nodes[0], v1alpha1.NodeTaskOffered)
	labelNode(t, nodes[0])
	framework.UntilGone(t, "a node that meets doneWhen needs no worker", tasks(t), nodes[0])
	framework.Until(t, "the work is recorded", admin.Maintenances(), nm.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		return recordOf(nm, nodes[0]) == v1alpha1.NodeTaskDone
	})
	<-time.After(quiet)
	untilSchedulable(t, nodes[0], false)
}
