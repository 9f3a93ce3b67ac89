// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// works counts the works on nodes.
type works struct {
	mu     sync.Mutex
	counts map[string]int
}

// counted returns a work that is counted.
func (w *works) counted(work func(node string) v1alpha1.NodeTaskResult) func(string) v1alpha1.NodeTaskResult {
	w.counts = map[string]int{}
	return func(node string) v1alpha1.NodeTaskResult {
		w.mu.Lock()
		w.counts[node]++
		w.mu.Unlock()
		return work(node)
	}
}

// once reports the nodes on which a worker worked more or less often than once.
func (w *works) once(t *testing.T, worker string, nodes []string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, node := range nodes {
		is.Equal(t, w.counts[node], 1, "works of "+worker+" on node "+node)
	}
}

func progressingIs(r *v1alpha1.NodeMaintenanceRollout, reason, message string) bool {
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing)
	return c != nil && c.Reason == reason && strings.Contains(c.Message, message)
}

// TestTwoRolloutsAndAPerson has two rollouts over six nodes, each with a limit of four that counts
// what the others do. While each has its first node, a user cordons one more, and another one
// drains one: now four are out. The rollouts do all nodes but these two, and these when the users
// let them go.
func TestTwoRolloutsAndAPerson(t *testing.T) {
	t.Parallel() // the test mostly waits
	const most = 4
	pool, nodes := cluster.NewPool(t, 6, true)
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "web", pool, 12)
	cluster.Budget(t, namespace, "web", 3)
	recorder := cluster.Judge(t, pool, namespace)
	var kernels, disks works
	workKernel, hasKernel, passKernel := gated(t, kernels.counted(func(node string) v1alpha1.NodeTaskResult { return install(t, node) }))
	workDisk, hasDisk, passDisk := gated(t, disks.counted(func(string) v1alpha1.NodeTaskResult { return v1alpha1.NodeTaskResultDone }))
	disk := framework.Name("disk")
	runWorker(t, pool, workKernel)
	runWorker(t, disk, workDisk)
	one := roll(t, pool, limited(maxUnavailable(most)))
	taken := []string{next(t, hasKernel)}
	untilUnit(t, one.Name, v1alpha1.RolloutPhaseClaimed)
	two := roll(t, pool, limited(maxUnavailable(most)), as(disk, ""))
	taken = append(taken, next(t, hasDisk))
	is.True(t, taken[0] != taken[1], "two workers have node %s", taken[0])

	free := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool { return slices.Contains(taken, node) })
	cordoned, drains := free[0], free[1]
	cluster.MustKubectl(t, "", "cordon", cordoned)
	person := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, onNodes(drains)))
	drained(t, person.Name)
	unschedulable(t, true, drains)
	close(passKernel)
	close(passDisk)
	for _, r := range []*v1alpha1.NodeMaintenanceRollout{one, two} {
		r = rolloutUntil(t, r.Name, v1alpha1.ReasonNodesSkipped)
		is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 6, Done: 4, Skipped: 2}, r.Name)
		is.True(t, progressingIs(r, v1alpha1.ReasonNodesSkipped, cordoned) && progressingIs(r, v1alpha1.ReasonNodesSkipped, drains),
			"rollout %s names not both nodes of users: %+v", r.Name, r.Status.Conditions)
	}
	cluster.MustKubectl(t, "", "uncordon", cordoned)
	setStage(t, person.Name, v1alpha1.NodeMaintenanceStageComplete)
	for _, r := range []*v1alpha1.NodeMaintenanceRollout{one, two} {
		r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
		is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 6, Done: 6}, r.Name)
		for _, nm := range attempts(t, r.Name) {
			waitFor(t, recorder, oracle.Done(nm.Name))
		}
	}
	kernels.once(t, "one rollout", nodes)
	disks.once(t, "the other rollout", nodes)
	neverMoreOut(t, recorder, most, oracle.Limit{Nodes: most})
	keptItsPromises(t, recorder)
}

// TestRolloutsWithOppositeGoals has two rollouts of which each undoes what the other one has done.
// Both are held until a user completes one of them. A cordoned node keeps the first one from being
// complete: a complete rollout has nothing to hold.
func TestRolloutsWithOppositeGoals(t *testing.T) {
	t.Parallel() // the test mostly waits
	const oldKernel = "6.1"
	pool, nodes := cluster.NewPool(t, 2, true)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	cluster.MustKubectl(t, "", "cordon", nodes[1])
	up := roll(t, pool, limited(maxUnavailable(2))) // the cordoned node takes one place
	rolloutUntil(t, up.Name, v1alpha1.ReasonNodesSkipped)

	back := framework.Name("back")
	runWorker(t, back, func(node string) v1alpha1.NodeTaskResult {
		if err := label(t, cluster.As(t), node, kernelLabel, oldKernel); err != nil {
			t.Errorf("label node %s: %v", node, err)
			return v1alpha1.NodeTaskResultFailed
		}
		return v1alpha1.NodeTaskResultDone
	})
	down := roll(t, pool, limited(maxUnavailable(2)), as(back, labelled(kernelLabel, oldKernel)))
	for name, other := range map[string]string{up.Name: down.Name, down.Name: up.Name} {
		framework.Until(t, name+" is held because of "+other, rollouts(t), name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
			return progressingIs(r, v1alpha1.ReasonHeld, other)
		})
	}
	cluster.MustKubectl(t, "", "uncordon", nodes[1])
	setRollout(t, up.Name, "stage", v1alpha1.RolloutStageComplete)
	r := rolloutUntil(t, down.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Done: 2})
	for _, node := range nodes {
		is.Equal(t, theNode(t, node).Labels[kernelLabel], oldKernel, "kernel of node "+node)
	}
}

// TestRolloutGoesOnAfterAFailure has a rollout that may have one failed unit, and a node that a
// user exempts from rollouts. The units soak after their return, and keep their places meanwhile.
func TestRolloutGoesOnAfterAFailure(t *testing.T) {
	t.Parallel() // the test mostly waits
	const soak = 10
	pool, nodes := cluster.NewPool(t, 4, true)
	failing, exempt := nodes[0], nodes[3]
	merge(t, "", "node", exempt, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationSkipRollouts+`":""}}}`)
	recorder := recordNodes(t, pool)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult {
		if node == failing {
			return v1alpha1.NodeTaskResultFailed
		}
		return install(t, node)
	})
	r := roll(t, pool, limited(maxUnavailable(2)), func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.MaxFailed, r.Spec.SoakSeconds = 1, soak })
	r = framework.Until(t, "two nodes are done beside the failed one", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return r.Status.Nodes == v1alpha1.RolloutNodes{Total: 4, Done: 2, Failed: 1, Skipped: 1} && len(r.Status.Current) == 1
	})
	is.True(t, r.Status.Current[0].Unit == failing && r.Status.Current[0].Phase == v1alpha1.RolloutPhaseFailed, "got the units %+v, want the failed one", r.Status.Current)
	unschedulable(t, true, failing)
	unschedulable(t, false, nodes[1:]...)
	waitFor(t, recorder, oracle.PutBack([]string{failing}))
	log, err := recorder.Log()
	// Of the soak time, the oracle requires what is certain although events are late.
	found, out := oracle.Outages(log, oracle.Limit{Nodes: 2, Soak: soak / 2 * time.Second})
	framework.Accept(t, found, err)
	is.Equal(t, out, 2, "nodes out of service: the failed one, and one more")
	for o, node := range oracle.Each[*corev1.Node](log) {
		is.True(t, node.Name != exempt || !node.Spec.Unschedulable, "node %s was out of service at %s, although a user exempts it", exempt, o.Seen)
	}
}
