// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// onlyAttempt returns the only maintenance of a rollout, which has ended, and the reason in its
// annotation; "" if a user has completed it.
func onlyAttempt(t *testing.T, rollout string) (name, withdrawn string) {
	t.Helper()
	all := attempts(t, rollout)
	is.True(t, len(all) == 1 && v1alpha1.IsDone(&all[0]), "got %d maintenances, want one that has ended: %+v", len(all), all)
	return all[0].Name, all[0].Annotations[v1alpha1.AnnotationWithdrawn]
}

// retry lets the unit of a maintenance start again.
func retry(t *testing.T, maintenance string) {
	t.Helper()
	merge(t, "", "nodemaintenance", maintenance, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationRetried+`":"true"}}}`)
}

// TestNoWorkerClaims has a rollout without workers. The first node returns to service after the
// deadline, the rollout halts, and the other node is not disturbed.
func TestNoWorkerClaims(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 2, true)
	recorder := recordNodes(t, pool)
	r := roll(t, pool, limited(maxUnavailable(1)), func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Template.Task.ClaimDeadlineSeconds = ptr.To[int32](60)
	})
	untilOffered(t, pool)
	halted := rolloutUntil(t, r.Name, v1alpha1.ReasonHalted)
	is.Equal(t, halted.Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Failed: 1, Waiting: 1})
	unschedulable(t, false, nodes...)
	name, withdrawn := onlyAttempt(t, r.Name)
	is.Equal(t, withdrawn, string(v1alpha1.NodeTaskNoWorker))

	retry(t, name)
	finish(t, r, pool, recorder, 2)
}

// TestStuckDrainIsWithdrawn has a budget that keeps the first node from being drained. It returns
// to service after the deadline, which is no failure, and the rollout goes on with the other node.
func TestStuckDrainIsWithdrawn(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	stuckOn(t, namespace, "held", pool, nodes[0])
	// Units with fewer pods start first.
	for _, name := range []string{"a", "b"} {
		cluster.PodOn(t, namespace, name, pool, nodes[1])
	}
	recorder := cluster.Judge(t, pool, namespace)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	r := roll(t, pool, func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.ProgressDeadlineSeconds = ptr.To[int32](60) })
	is.Equal(t, untilUnit(t, r.Name, v1alpha1.RolloutPhaseDraining).Unit, nodes[0])
	framework.Until(t, "the unit is blocked", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool { return r.Status.Nodes.Blocked == 1 })
	blocked := rolloutUntil(t, r.Name, v1alpha1.ReasonNodesBlocked)
	is.Equal(t, blocked.Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Blocked: 1, Done: 1})
	is.True(t, progressingIs(blocked, v1alpha1.ReasonNodesBlocked, nodes[0]), "got the conditions %+v", blocked.Status.Conditions)
	unschedulable(t, false, nodes...)
	is.Equal(t, len(attempts(t, r.Name)), 2, "maintenances")
	keptItsPromises(t, recorder)
}

// TestUserReleasesAUnit has a user complete the maintenance of a unit while it is drained. The
// rollout does not take the node again before the user retries the unit.
func TestUserReleasesAUnit(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	stuckOn(t, namespace, "held", pool, nodes[0])
	recorder := recordNodes(t, pool)
	r := roll(t, pool)
	unit := untilUnit(t, r.Name, v1alpha1.RolloutPhaseDraining)
	setStage(t, unit.Maintenance, v1alpha1.NodeMaintenanceStageComplete)
	skipped := rolloutUntil(t, r.Name, v1alpha1.ReasonNodesSkipped)
	is.Equal(t, skipped.Status.Nodes, v1alpha1.RolloutNodes{Total: 1, Skipped: 1})
	is.True(t, progressingIs(skipped, v1alpha1.ReasonNodesSkipped, unit.Maintenance), "got the conditions %+v", skipped.Status.Conditions)
	unschedulable(t, false, nodes[0])
	name, withdrawn := onlyAttempt(t, r.Name)
	is.Equal(t, withdrawn, "", "how the server has ended the maintenance of the user")
	openBudgets(t, namespace, "held")
	retry(t, name)
	finish(t, r, pool, recorder, 1)
}

// TestFailureOutlivesItsNode has a node deleted, as by an autoscaler, after the work on it has
// failed. The rollout does not go on with the next node before a user has ended the failure. Until
// then the node takes a place in the limits of all rollouts, so the test runs alone.
func TestFailureOutlivesItsNode(t *testing.T) {
	r, pool, nodes := rollOneByOne(t)
	recorder := recordNodes(t, pool)
	work(t, nodes[0], `{"result":"Failed","message":"It does not boot"}`)
	untilHalted(t, r, nodes, v1alpha1.NodeTaskWorkerFailed)
	must.Do(t, cluster.As(t).Nodes().Delete(t.Context(), nodes[0], metav1.DeleteOptions{}))
	framework.Until(t, "only the failure of the node is left", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return r.Status.Nodes == v1alpha1.RolloutNodes{Total: 1, Waiting: 1} && progressingIs(r, v1alpha1.ReasonHalted, nodes[0])
	})
	<-time.After(quiet)
	inService(t, nodes[1])
	untilTask(t, nodes[0], v1alpha1.NodeTaskFailed)
	must.Do(t, tasks(t).Delete(t.Context(), nodes[0], metav1.DeleteOptions{}))
	finish(t, r, pool, recorder, 1)
}
