// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/pkg/worker"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// shortDeadlines gives the workers of a rollout as little time as the API allows: a minute.
func shortDeadlines(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Template.Task.ProgressDeadlineSeconds = ptr.To[int32](60)
	r.Spec.Template.Task.VerifyDeadlineSeconds = ptr.To[int32](60)
}

// untilOffered waits until a node is offered to the workers of a pool, and returns its name. With
// one node at a time, that is the first one.
func untilOffered(t *testing.T, pool string) (node string) {
	t.Helper()
	framework.Eventually(t, "a node of "+pool+" is offered", func(ctx context.Context) (bool, error) {
		list, err := tasks(t).List(ctx, metav1.ListOptions{FieldSelector: "spec.worker=" + pool + ".example.com"})
		if err != nil || len(list.Items) == 0 {
			return false, err
		}
		node = list.Items[0].Name
		return list.Items[0].Status.State == v1alpha1.NodeTaskOffered, nil
	})
	return node
}

// rollOneByOne begins a rollout over two nodes, one at a time, and claims the first one. It returns
// the rollout, its pool and its nodes.
func rollOneByOne(t *testing.T, modify ...func(*v1alpha1.NodeMaintenanceRollout)) (r *v1alpha1.NodeMaintenanceRollout, pool string, nodes []string) {
	t.Helper()
	pool, nodes = cluster.NewPool(t, 2, true)
	r = roll(t, pool, append(modify, limited(maxUnavailable(1)))...)
	if untilOffered(t, pool) != nodes[0] {
		slices.Reverse(nodes)
	}
	work(t, nodes[0], `{"holder":"e2e"}`)
	untilTask(t, nodes[0], v1alpha1.NodeTaskClaimed)
	return r, pool, nodes
}

// inService checks that a node is in service now.
func inService(t *testing.T, node string) {
	t.Helper()
	is.True(t, !must.Get(cluster.As(t).Nodes().Get(t.Context(), node, metav1.GetOptions{}))(t).Spec.Unschedulable, "node %s is out of service", node)
}

// untilHalted waits until a rollout over two nodes has halted because the work on the first one has
// failed for a reason. That node is out of service, and the other one is not disturbed.
func untilHalted(t *testing.T, r *v1alpha1.NodeMaintenanceRollout, nodes []string, reason v1alpha1.NodeTaskReason) {
	t.Helper()
	is.Equal(t, untilTask(t, nodes[0], v1alpha1.NodeTaskFailed).Status.Reason, reason)
	halted := rolloutUntil(t, r.Name, v1alpha1.ReasonHalted)
	is.Equal(t, halted.Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Failed: 1, Waiting: 1})
	unschedulable(t, true, nodes[0])
	inService(t, nodes[1])
}

// finish has workers do the nodes of a rollout that are left, and waits until all are done. At no
// time were two out.
func finish(t *testing.T, r *v1alpha1.NodeMaintenanceRollout, pool string, recorder *oracle.Recorder, nodes int32) {
	t.Helper()
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: nodes, Done: nodes})
	neverMoreOut(t, recorder, 1, oracle.Limit{Nodes: 1})
}

// TestSilentWorkerComesLate has a worker that claims a node and reports nothing for a minute: the
// rollout halts. Its late result is verified like any other, and the rollout goes on.
func TestSilentWorkerComesLate(t *testing.T) {
	t.Parallel() // the test mostly waits
	r, pool, nodes := rollOneByOne(t, shortDeadlines)
	recorder := recordNodes(t, pool)
	untilHalted(t, r, nodes, v1alpha1.NodeTaskLost)
	must.Do(t, label(t, cluster.As(t), nodes[0], kernelLabel, newKernel))
	work(t, nodes[0], `{"result":"Done","message":"The network was down"}`)
	finish(t, r, pool, recorder, 2)
}

// TestLyingWorker has a worker that reports Done and has done nothing: the node stays out of
// service, and the rollout halts. It goes on when a user has done the work.
func TestLyingWorker(t *testing.T) {
	t.Parallel() // the test mostly waits
	r, pool, nodes := rollOneByOne(t, shortDeadlines)
	recorder := recordNodes(t, pool)
	work(t, nodes[0], `{"result":"Done"}`)
	framework.Until(t, "the server names what is not true", tasks(t), nodes[0], func(task *v1alpha1.NodeTask) bool {
		return task.Status.State == v1alpha1.NodeTaskVerifying && task.Status.ServerMessage == "doneWhen is false"
	})
	untilHalted(t, r, nodes, v1alpha1.NodeTaskNotVerified)
	must.Do(t, label(t, cluster.As(t), nodes[0], kernelLabel, newKernel))
	finish(t, r, pool, recorder, 2)
}

// TestWorkerReinstallsItsNode has a worker that deletes the Node that it has claimed, and registers
// a new one under that name. The node keeps its place while it does not exist. The new Node is
// cordoned until the server has verified it, and its pods are left alone. Meanwhile the node takes
// a place in the limits of all rollouts, so the test runs alone.
func TestWorkerReinstallsItsNode(t *testing.T) {
	r, pool, nodes := rollOneByOne(t)
	recorder := recordNodes(t, pool)
	namespace, first := cluster.NewNamespace(t), nodes[0]
	old := must.Get(cluster.As(t).Nodes().Get(t.Context(), first, metav1.GetOptions{}))(t)
	must.Do(t, cluster.As(t).Nodes().Delete(t.Context(), first, metav1.DeleteOptions{}))
	<-time.After(quiet)
	inService(t, nodes[1])
	is.Equal(t, must.Get(tasks(t).Get(t.Context(), first, metav1.GetOptions{}))(t).Status.State, v1alpha1.NodeTaskClaimed)

	cluster.NewNodes(t, pool, true, first)
	renewed := framework.Until(t, "the new node is cordoned", cluster.As(t).Nodes(), first, func(n *corev1.Node) bool { return n.Spec.Unschedulable })
	is.True(t, renewed.UID != old.UID, "node %s still has the UID %s", first, old.UID)
	cluster.PodOn(t, namespace, "network", pool, first)
	work(t, first, `{"message":"Joining the cluster"}`)
	<-time.After(quiet)
	must.Get(cluster.As(t).Pods(namespace).Get(t.Context(), "network", metav1.GetOptions{}))(t)
	unschedulable(t, true, first)
	inService(t, nodes[1])
	must.Do(t, label(t, cluster.As(t), first, kernelLabel, newKernel))
	work(t, first, `{"result":"Done"}`)
	finish(t, r, pool, recorder, 2)
	must.Get(cluster.As(t).Pods(namespace).Get(t.Context(), "network", metav1.GetOptions{}))(t)
}

// TestClaimedNodeVanishes has a worker whose node is deleted and does not return. It keeps its
// place for the deadline, and then the rollout goes on without it, and counts no failure. All other
// rollouts wait for that node, too, as it could return with any label: so the test runs alone, and
// only in the large size.
func TestClaimedNodeVanishes(t *testing.T) {
	if !framework.Full(t) {
		return
	}
	r, pool, nodes := rollOneByOne(t, shortDeadlines)
	recorder := recordNodes(t, pool)
	must.Do(t, cluster.As(t).Nodes().Delete(t.Context(), nodes[0], metav1.DeleteOptions{}))
	<-time.After(quiet)
	inService(t, nodes[1])
	untilTask(t, nodes[1], v1alpha1.NodeTaskOffered)
	framework.UntilGone(t, "the task of the node that is gone is deleted", tasks(t), nodes[0])
	finish(t, r, pool, recorder, 1)
}

// TestPodComesBackBeforeTheClaim has a pod start on a node that is offered, at the time of the
// claim. Whichever is first, the worker does not get the node as long as the pod is on it: the pod
// leaves, and the node is offered again.
func TestPodComesBackBeforeTheClaim(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace, node := cluster.NewNamespace(t), nodes[0]
	createWithTask(t, pool, nodes)
	offered := untilTask(t, node, v1alpha1.NodeTaskOffered)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "late"}, Spec: framework.PodSpec(pool)}
	pod.Spec.NodeName = node
	must.Get(cluster.As(t).Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	claim := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"holder":"early"}}`, offered.UID)
	_, err := tasks(t).Patch(t.Context(), node, types.MergePatchType, claim, metav1.PatchOptions{}, "status")
	is.True(t, err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err), "claim node %s: %v", node, err)
	again := framework.Until(t, "the node is offered again", tasks(t), node, func(task *v1alpha1.NodeTask) bool {
		return task.UID != offered.UID || task.Status.State != v1alpha1.NodeTaskOffered
	})
	is.True(t, again.UID != offered.UID, "the worker got the node with a pod on it: %+v", again.Status)
	is.Equal(t, again.Status.Holder, "")
	_, err = cluster.As(t).Pods(namespace).Get(t.Context(), "late", metav1.GetOptions{})
	is.True(t, apierrors.IsNotFound(err), "the node is offered while pod late is on it: %v", err)
	work(t, node, `{"holder":"late"}`)
	untilTask(t, node, v1alpha1.NodeTaskClaimed)
}

// TestWorkersOfOneClass has two workers with the library for the same nodes. Whichever claims a
// node first, only that one works on it. One is restarted in the middle of its work, and continues
// it.
func TestWorkersOfOneClass(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 6, true)
	var mu sync.Mutex
	began, restarted := map[string][]string{}, false
	restart := errors.New("the worker is restarted")
	run := func(ctx context.Context, holder string, stop context.CancelCauseFunc) error {
		w, err := worker.New(worker.Config{
			Class: pool + ".example.com", Holder: holder, Client: cluster.As(t).Haulout,
			Handler: func(ctx context.Context, task *worker.Task) error {
				mu.Lock()
				began[task.NodeName] = append(began[task.NodeName], holder)
				first := !restarted
				restarted = true
				mu.Unlock()
				if first {
					stop(restart)
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return label(t, cluster.As(t), task.NodeName, kernelLabel, newKernel)
			},
		})
		if err != nil {
			return err
		}
		return w.Run(ctx)
	}
	ctx, end := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, holder := range []string{"one", "two"} {
		group.Go(func() {
			for again := true; again && ctx.Err() == nil; {
				ctx, stop := context.WithCancelCause(ctx)
				err := run(ctx, holder, stop)
				again = errors.Is(context.Cause(ctx), restart)
				stop(nil)
				if err != nil {
					t.Errorf("worker %s: %v", holder, err)
				}
			}
		})
	}
	t.Cleanup(group.Wait)
	t.Cleanup(end)
	recorder := recordNodes(t, pool)
	r := roll(t, pool, limited(maxUnavailable(3)))
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 6, Done: 6})
	neverMoreOut(t, recorder, 2, oracle.Limit{Nodes: 3})
	mu.Lock()
	defer mu.Unlock()
	twice := 0
	for _, node := range nodes {
		if holders := began[node]; len(holders) == 2 {
			twice++
			is.Equal(t, holders[1], holders[0], "the worker that continues on node "+node)
		} else {
			is.Equal(t, len(holders), 1, "works on node "+node)
		}
	}
	// The restart may have interrupted other works of that worker, too.
	is.True(t, twice >= 1 && twice <= 3, "%d works were continued after the restart", twice)
}
