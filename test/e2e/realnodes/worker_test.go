// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const workers = "haulout-workers"

// workTemplate is a PodTemplate whose pods write to a folder of the machine, which all nodes see.
const workTemplate = `apiVersion: v1
kind: PodTemplate
metadata: {name: work, namespace: haulout-workers}
template:
  spec:
    terminationGracePeriodSeconds: 1
    containers:
    - name: work
      image: localhost/app:dev
      args: [work, "%d"]
      env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
      securityContext: {runAsUser: 0}
      volumeMounts: [{name: data, mountPath: /data}]
    volumes: [{name: data, hostPath: {path: %q}}]
`

// testWorkers installs the worker that runs Jobs, as in docs/workers.md.
func testWorkers(t *testing.T, c *framework.Cluster) {
	t.Helper()
	overlay := t.TempDir()
	job := must.Get(filepath.Rel(overlay, filepath.Join(c.Root(), "artifacts", "worker-job")))(t)
	must.Do(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), fmt.Appendf(nil, `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
images:
- {name: haulout-worker, newName: localhost/haulout-worker, newTag: dev}
`, job), 0o600))
	c.MustKubectl(t, "", "apply", "--kustomize="+overlay)
	t.Cleanup(func() { c.MustKubectl(t, "", "delete", "--kustomize="+overlay, "--timeout=2m") })
	c.MustKubectl(t, "", "rollout", "status", "--namespace="+workers, "deployment/haulout-worker-job", "--timeout=2m")
	t.Run("both nodes, in turn", func(t *testing.T) { testWorkInTurn(t, c) })
	t.Run("power failure of a claimed node", func(t *testing.T) { testPowerFailureAtWork(t, c) })
}

// roll creates a rollout over nodes, with work that takes some seconds, and returns the file in
// which the work writes.
func roll(t *testing.T, c *framework.Cluster, seconds int, doneWhen string, nodes ...string) (rollout, file string) {
	t.Helper()
	folder := t.TempDir()
	c.MustKubectl(t, fmt.Sprintf(workTemplate, seconds, folder), "apply", "--filename=-")
	rollouts := c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
	rollout = must.Get(rollouts.Create(t.Context(), &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: framework.Name("work")},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			Stage: v1alpha1.RolloutStageRoll, NodeSelector: framework.Select(corev1.LabelHostname, nodes...),
			Template: v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{
				Worker: "work" + v1alpha1.WorkerClassJobSuffix, Parameters: map[string]string{"version": "7"}, DoneWhen: doneWhen,
			}},
		},
	}, metav1.CreateOptions{}))(t).Name
	t.Cleanup(func() { c.MustKubectl(t, "", "delete", "nodemaintenancerollouts.maintenance.haulout.dev", rollout) })
	return rollout, filepath.Join(folder, "work")
}

// untilRolled waits longer than other tests: nodes are drained one after the other.
func untilRolled(t *testing.T, c *framework.Cluster, rollout string) {
	t.Helper()
	rollouts := c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
	framework.EventuallyWithin(t, 2*framework.Timeout, "all nodes are done", func(ctx context.Context) (bool, error) {
		r, err := rollouts.Get(ctx, rollout, metav1.GetOptions{})
		return err == nil && meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete), err
	})
}

// testWorkInTurn runs a script on both nodes. The worker's own pod has to move.
func testWorkInTurn(t *testing.T, c *framework.Cluster) {
	t.Helper()
	rollout, file := roll(t, c, 3, "", drained, other)
	untilRolled(t, c, rollout)
	lines := strings.Split(strings.TrimSpace(string(must.Get(os.ReadFile(file))(t))), "\n")
	must.True(t, len(lines) == 4, "got lines %q, want a begin and an end for each node", lines)
	first, second := other, drained
	if lines[0] == "begin "+drained+" 7" {
		first, second = drained, other
	}
	is.Slices(t, lines, []string{"begin " + first + " 7", "end " + first, "begin " + second + " 7", "end " + second}, "work")
	left := must.Get(c.As(t).Kube.BatchV1().Jobs(workers).List(t.Context(), metav1.ListOptions{}))(t)
	for i := range left.Items {
		framework.UntilGone(t, "the Job of work that is done is deleted", c.As(t).Kube.BatchV1().Jobs(workers), left.Items[i].Name)
	}
	for _, node := range []string{drained, other} {
		framework.Until(t, "the node is back in service", c.As(t).Nodes(), node, func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
	}
}

// testPowerFailureAtWork cuts the power of a node at work: the script runs again. While the node is
// verified, its kubelet is away. The node meets doneWhen, and returns only after the kubelet.
func testPowerFailureAtWork(t *testing.T, c *framework.Cluster) {
	t.Helper()
	const label = "example.com/worked"
	rollout, file := roll(t, c, 20, "'"+label+"' in node.metadata.labels", drained)
	tasks := c.As(t).Haulout.MaintenanceV1alpha1().NodeTasks()
	framework.Until(t, "the Job runs on the node", tasks, drained, func(task *v1alpha1.NodeTask) bool {
		return task.Status.State == v1alpha1.NodeTaskClaimed && strings.HasSuffix(task.Status.Message, " runs")
	})
	c.Kill(t, drained)
	must.Do(t, c.Up())
	framework.Until(t, "the work is done", tasks, drained, func(task *v1alpha1.NodeTask) bool {
		return task.Status.State == v1alpha1.NodeTaskVerifying
	})
	startKubelet := stopKubelet(t, c)
	nodeReady := func(n *corev1.Node) bool {
		return protocol.NodeCondition(n, corev1.NodeReady).Status == corev1.ConditionTrue
	}
	framework.Until(t, "the node is not Ready", c.As(t).Nodes(), drained, func(n *corev1.Node) bool { return !nodeReady(n) })
	framework.Until(t, "the server has seen it", tasks, drained, func(task *v1alpha1.NodeTask) bool {
		return task.Status.State == v1alpha1.NodeTaskVerifying && task.Status.ServerMessage == "the node is not Ready"
	})
	c.MustKubectl(t, "", "label", "node", drained, label+"=yes")
	t.Cleanup(func() { c.MustKubectl(t, "", "label", "node", drained, label+"-") })
	startKubelet()
	back := framework.Until(t, "the node is back in service", c.As(t).Nodes(), drained, func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
	is.True(t, nodeReady(back), "the node was released without its kubelet: %+v", back.Status.Conditions)
	untilRolled(t, c, rollout)
	since, done := protocol.NodeCondition(back, corev1.NodeReady).LastTransitionTime, workEnded(t, c, rollout)
	is.True(t, !done.Before(&since), "the work was done at %s, before the node was Ready again at %s", done, &since)
	got := strings.TrimSpace(string(must.Get(os.ReadFile(file))(t)))
	begin := "begin " + drained + " 7"
	is.Equal(t, got, begin+"\n"+begin+"\nend "+drained, "work")
}

// stopKubelet kills the kubelet of the node drained, and keeps the node from restarting it until
// start is called.
func stopKubelet(t *testing.T, c *framework.Cluster) (start func()) {
	t.Helper()
	held := filepath.Join((&machine{t: t, c: c, node: drained}).path(heldDir), "kubelet")
	must.Do(t, os.WriteFile(held, nil, 0o600))
	start = func() { must.Do(t, os.RemoveAll(held)) }
	t.Cleanup(start)
	signal(t, match{program: "kubelet", argument: "--hostname-override=" + drained}, syscall.SIGKILL)
	return start
}

// workEnded returns when the work on the only node of a rollout was done.
func workEnded(t *testing.T, c *framework.Cluster, rollout string) *metav1.Time {
	t.Helper()
	attempts := must.Get(c.As(t).Maintenances().List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.LabelRollout + "=" + rollout}))(t).Items
	must.True(t, len(attempts) == 1 && len(attempts[0].Status.NodeStatuses) == 1, "got maintenances %+v, want one of one node", attempts)
	task := attempts[0].Status.NodeStatuses[0].Task
	must.True(t, task != nil && task.State == v1alpha1.NodeTaskDone && task.EndTime != nil, "got task %+v, want one that is done", task)
	return task.EndTime
}
