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
// verified, its kubelet is killed.
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
	signal(t, match{program: "kubelet", argument: "--hostname-override=" + drained}, syscall.SIGKILL)
	c.MustKubectl(t, "", "label", "node", drained, label+"=yes")
	t.Cleanup(func() { c.MustKubectl(t, "", "label", "node", drained, label+"-") })
	untilRolled(t, c, rollout)
	got := strings.TrimSpace(string(must.Get(os.ReadFile(file))(t)))
	begin := "begin " + drained + " 7"
	is.Equal(t, got, begin+"\n"+begin+"\nend "+drained, "work")
}
