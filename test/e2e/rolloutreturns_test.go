// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/test/e2e/framework"
)

// networkTaint is a taint as of the Node Readiness Controller, which keeps pods off a node until
// its network works.
const networkTaint = v1alpha1.TaintReadinessPrefix + "network"

// noNetworkTaint also keeps the pods of the network off a node.
const noNetworkTaint = "e2e.haulout.dev/no-network"

// heartbeat is the interval at which a kubelet of a test reports the condition Ready.
const heartbeat = 5 * time.Second

// kubelet plays the kubelet of a node that kwok does not simulate. The node is Ready while a pod of
// the namespace runs on it, as if that were its network plugin.
type kubelet struct {
	framework.Clients
	namespace, node string
	// ready is the reported status since the time since, and reported the time of the last report.
	ready           corev1.ConditionStatus
	since, reported time.Time
}

// runKubelet plays the kubelet of a node until the test ends.
func runKubelet(t *testing.T, namespace, node string) {
	t.Helper()
	k := &kubelet{Clients: cluster.As(t), namespace: namespace, node: node}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ticker := time.Tick(200 * time.Millisecond); ctx.Err() == nil; <-ticker {
			_ = k.sync(ctx) // the next round repeats what has failed
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// sync starts and ends the pods of the node, and reports whether the node is Ready.
func (k *kubelet) sync(ctx context.Context) error {
	pods, err := k.Pods(k.namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + k.node})
	if err != nil {
		return err
	}
	ready := corev1.ConditionFalse
	for i := range pods.Items {
		switch pod := &pods.Items[i]; {
		case pod.DeletionTimestamp != nil:
			err = k.Pods(k.namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
				GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
			})
		case pdb.IsReady(pod):
			ready = corev1.ConditionTrue
		default:
			_, err = k.Pods(k.namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType,
				[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
		}
		if err != nil {
			return err
		}
	}
	now := time.Now()
	if ready != k.ready {
		k.ready, k.since, k.reported = ready, now, time.Time{}
	}
	if now.Sub(k.reported) < heartbeat {
		return nil
	}
	if err := writeReady(ctx, k.Clients, k.node, k.ready, k.since, now); err != nil {
		return err
	}
	k.reported = now
	return nil
}

// untilReady waits until the condition Ready of a node has a status.
func untilReady(t *testing.T, node string, want corev1.ConditionStatus) {
	t.Helper()
	framework.Until(t, "node "+node+" has Ready "+string(want), cluster.As(t).Nodes(), node, func(n *corev1.Node) bool {
		return protocol.NodeCondition(n, corev1.NodeReady).Status == want
	})
}

// TestNodesReturnWhenTheyAreReady has a node that is Ready only while a pod of a DaemonSet runs on
// it. The pod does not tolerate the drain taint, so it is away while the worker has the node. It
// cannot return immediately after the work, so the node is not Ready. When it is, it stays out of
// service until a taint of the Node Readiness Controller is gone.
func TestNodesReturnWhenTheyAreReady(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 1, false)
	node, namespace := nodes[0], cluster.NewNamespace(t)
	runKubelet(t, namespace, node)
	daemonSet(t, namespace, pool, "network", 1, func(spec *corev1.PodSpec) {
		for _, key := range []string{corev1.TaintNodeNotReady, networkTaint} {
			spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
		}
	})
	untilReady(t, node, corev1.ConditionTrue)
	work, claimed, pass := gated(t, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	runWorker(t, pool, work)
	r := roll(t, pool)

	is.Equal(t, next(t, claimed), node)
	daemonPods(t, namespace, "network", 0)
	untilReady(t, node, corev1.ConditionFalse)
	cluster.MustKubectl(t, "", "taint", "node", node, noNetworkTaint+":NoSchedule")
	close(pass)
	framework.Until(t, "the node is not Ready", tasks(t), node, func(task *v1alpha1.NodeTask) bool {
		return task.Status.State == v1alpha1.NodeTaskVerifying && task.Status.ServerMessage == "the node is not Ready"
	})
	<-time.After(quiet)
	unschedulable(t, true, node)
	untilReady(t, node, corev1.ConditionFalse)

	cluster.MustKubectl(t, "", "taint", "node", node, networkTaint+":NoSchedule")
	cluster.MustKubectl(t, "", "taint", "node", node, noNetworkTaint+"-")
	framework.Until(t, "only the taint keeps the node out of service", tasks(t), node, func(task *v1alpha1.NodeTask) bool {
		return task.Status.State == v1alpha1.NodeTaskVerifying && strings.Contains(task.Status.ServerMessage, v1alpha1.TaintReadinessPrefix)
	})
	daemonPods(t, namespace, "network", 1)
	untilReady(t, node, corev1.ConditionTrue)
	unschedulable(t, true, node)

	cluster.MustKubectl(t, "", "taint", "node", node, networkTaint+"-")
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 1, Done: 1})
	unschedulable(t, false, node)
}
