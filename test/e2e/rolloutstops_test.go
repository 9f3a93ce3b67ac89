// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// openFor returns a single window that opened in the past and closes after a time, which is rounded
// to seconds.
func openFor(length time.Duration) v1alpha1.RolloutWindow {
	const lasts = time.Hour
	start := metav1.NewTime(time.Now().Add(length - lasts).Truncate(time.Second))
	return v1alpha1.RolloutWindow{Start: &start, Duration: metav1.Duration{Duration: lasts}}
}

// setRollout changes a field of the spec of a rollout.
func setRollout(t *testing.T, name, field string, value any) {
	t.Helper()
	patch := must.Get(json.Marshal(map[string]any{"spec": map[string]any{field: value}}))(t)
	must.Get(rollouts(t).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}

// untilUnit waits until the only unit of a rollout that runs has a phase.
func untilUnit(t *testing.T, name string, phase v1alpha1.RolloutPhase) v1alpha1.RolloutUnit {
	t.Helper()
	r := framework.Until(t, "a unit of "+name+" is "+string(phase), rollouts(t), name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return len(r.Status.Current) == 1 && r.Status.Current[0].Phase == phase
	})
	return r.Status.Current[0]
}

// openBudgets lets the budgets of pods of stuckOn allow their evictions.
func openBudgets(t *testing.T, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		must.Get(cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace).Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"spec":{"maxUnavailable":1}}`), metav1.PatchOptions{}))(t)
	}
}

// windowCloses returns a rollout over two nodes whose window closes while a budget keeps the first
// one from being drained, and the unit of that node.
func windowCloses(t *testing.T, policy v1alpha1.RolloutClosedPolicy) (r *v1alpha1.NodeMaintenanceRollout, unit v1alpha1.RolloutUnit, namespace string) {
	t.Helper()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace = cluster.NewNamespace(t)
	for i, node := range nodes {
		stuckOn(t, namespace, []string{"first", "second"}[i], pool, node)
	}
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	r = roll(t, pool, func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Windows, r.Spec.WhenClosed = []v1alpha1.RolloutWindow{openFor(30 * time.Minute)}, policy
	})
	unit = untilUnit(t, r.Name, v1alpha1.RolloutPhaseDraining)
	unschedulable(t, true, unit.Unit)
	// Nothing but the clock tells the server that this window closes.
	setRollout(t, r.Name, "windows", []v1alpha1.RolloutWindow{openFor(3 * time.Second)})
	return rolloutUntil(t, r.Name, v1alpha1.ReasonOutsideWindow), unit, namespace
}

// TestRolloutWithdrawsWhenItsWindowCloses has a drain that is under way when the window closes. The
// node returns to service, and leaves again in the window that a user opens with the plugin.
func TestRolloutWithdrawsWhenItsWindowCloses(t *testing.T) {
	t.Parallel() // the test mostly waits
	r, unit, namespace := windowCloses(t, v1alpha1.RolloutClosedWithdraw)
	unschedulable(t, false, unit.Unit)
	r = framework.Until(t, "no unit runs", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool { return len(r.Status.Current) == 0 })
	is.True(t, r.Status.Window != nil && !r.Status.Window.Open && r.Status.Window.Until == nil, "got the window %+v, want a closed one", r.Status.Window)
	withdrawn := must.Get(cluster.As(t).Maintenances().Get(t.Context(), unit.Maintenance, metav1.GetOptions{}))(t)
	is.True(t, v1alpha1.IsDone(withdrawn) && withdrawn.Annotations[v1alpha1.AnnotationWithdrawn] != "", "the maintenance of %s was not withdrawn: %+v", unit.Unit, withdrawn.ObjectMeta)
	is.Equal(t, len(attempts(t, r.Name)), 1, "maintenances")
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Waiting: 2})
	evacuating(t, namespace, 0)

	user := framework.Name("operator")
	cluster.Grant(t, user,
		rule(v1alpha1.GroupName, "nodemaintenancerollouts", "", "get", "patch"), rule(v1alpha1.GroupName, "workers", "", "assign"),
		rule("", "nodes", "", "get", "list", "delete"),
	)
	openBudgets(t, namespace, "first", "second")
	newShell(t, user).run(t, 0, "rollout run-now "+r.Name+" --for=2h", r.Name+" opened")
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Done: 2})
	is.Equal(t, len(attempts(t, r.Name)), 3, "maintenances, one of which was withdrawn")
}

// TestRolloutFinishesWhenItsWindowCloses has a drain that is under way when the window closes. It
// goes on, and no other one begins until the next window. A hold that ends by itself delays the
// first one.
func TestRolloutFinishesWhenItsWindowCloses(t *testing.T) {
	t.Parallel() // the test mostly waits
	r, unit, namespace := windowCloses(t, v1alpha1.RolloutClosedFinish)
	is.True(t, len(r.Status.Current) == 1 && r.Status.Current[0].Maintenance == unit.Maintenance, "got the units %+v, want %s", r.Status.Current, unit.Maintenance)
	openBudgets(t, namespace, "first", "second")
	r = framework.Until(t, "the unit has finished", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return r.Status.Nodes.Done == 1 && len(r.Status.Current) == 0
	})
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Done: 1, Waiting: 1})
	is.Equal(t, len(attempts(t, r.Name)), 1, "maintenances")

	until := metav1.NewTime(time.Now().Add(3 * time.Second).Truncate(time.Second))
	setRollout(t, r.Name, "holds", []v1alpha1.RolloutHold{
		{Name: "now", Until: &until}, {Name: "tomorrow", From: ptr.To(metav1.NewTime(time.Now().Add(24 * time.Hour)))},
	})
	setRollout(t, r.Name, "windows", []v1alpha1.RolloutWindow{openFor(30 * time.Minute)})
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Done: 2})
	for _, nm := range attempts(t, r.Name) {
		is.True(t, nm.Name == unit.Maintenance || !nm.CreationTimestamp.Before(&until), "%s was created at %s, and the hold ended at %s", nm.Name, nm.CreationTimestamp, until)
	}
}

// TestHoldStopsDrains holds a rollout with `stops: Drains` while a budget keeps a pod from leaving.
// When the budget is gone, the server evicts the pod of another maintenance, but not this one until
// the hold is removed.
func TestHoldStopsDrains(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	stuckOn(t, namespace, "held", pool, nodes[0])
	stuckOn(t, namespace, "beside", pool, nodes[1])
	recorder := cluster.Judge(t, pool, namespace)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	r := roll(t, pool, func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes[0])
	})
	evacuating(t, namespace, 1)
	setRollout(t, r.Name, "holds", []v1alpha1.RolloutHold{{Name: "power", Reason: "test", Stops: v1alpha1.RolloutHoldDrains}})
	unit := untilUnit(t, r.Name, v1alpha1.RolloutPhaseDraining)
	untilPaused(t, unit.Maintenance)
	rolloutUntil(t, r.Name, v1alpha1.ReasonHeld)
	evacuating(t, namespace, 0)
	held := time.Now()

	other := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, onNodes(nodes[1])))
	evacuating(t, namespace, 1)
	openBudgets(t, namespace, "held", "beside")
	drained(t, other.Name)
	setStage(t, other.Name, v1alpha1.NodeMaintenanceStageComplete)
	pods := must.Get(podsOn(t.Context(), t, nodes[0]))(t)
	is.True(t, len(pods) == 1 && pods[0].DeletionTimestamp == nil, "got %d pods on node %s, want the one whose drain is held", len(pods), nodes[0])
	unschedulable(t, true, nodes[0])

	resumed := time.Now()
	setRollout(t, r.Name, "holds", nil)
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 1, Done: 1})
	is.Equal(t, len(attempts(t, r.Name)), 1, "maintenances")
	keptItsPromises(t, recorder)
	notEvictedBetween(t, recorder, pods, held, resumed)
}

// TestClaimedNodesAreKept has a worker that has its node when the rollout or the maintenance should
// end or stop. The worker keeps the node until its work is verified, and so does a pod that came
// too late, although another maintenance drains the node meanwhile.
func TestClaimedNodesAreKept(t *testing.T) {
	t.Parallel() // the test mostly waits
	for sentence, stop := range map[string]func(t *testing.T, rollout, maintenance string){
		"the rollout is stopped": func(t *testing.T, rollout, _ string) {
			t.Helper()
			setRollout(t, rollout, "stage", v1alpha1.RolloutStageComplete)
			rolloutUntil(t, rollout, v1alpha1.ReasonStopped)
		},
		"the rollout is deleted": func(t *testing.T, rollout, maintenance string) {
			t.Helper()
			must.Do(t, rollouts(t).Delete(t.Context(), rollout, metav1.DeleteOptions{}))
			framework.Until(t, maintenance+" is being deleted", cluster.As(t).Maintenances(), maintenance, func(nm *v1alpha1.NodeMaintenance) bool {
				return nm.DeletionTimestamp != nil
			})
		},
		"a user completes its maintenance": func(t *testing.T, _, maintenance string) {
			t.Helper()
			setStage(t, maintenance, v1alpha1.NodeMaintenanceStageComplete)
		},
		"a user deletes its maintenance": func(t *testing.T, _, maintenance string) {
			t.Helper()
			must.Do(t, cluster.As(t).Maintenances().Delete(t.Context(), maintenance, metav1.DeleteOptions{}))
		},
		"the window closes": func(t *testing.T, rollout, _ string) {
			t.Helper()
			setRollout(t, rollout, "windows", []v1alpha1.RolloutWindow{openFor(-time.Minute)})
			rolloutUntil(t, rollout, v1alpha1.ReasonOutsideWindow)
		},
		"a hold stops drains": func(t *testing.T, rollout, _ string) {
			t.Helper()
			setRollout(t, rollout, "holds", []v1alpha1.RolloutHold{{Name: "power", Stops: v1alpha1.RolloutHoldDrains}})
			rolloutUntil(t, rollout, v1alpha1.ReasonHeld)
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			pool, _ := cluster.NewPool(t, 1, true)
			namespace := cluster.NewNamespace(t)
			recorder := cluster.Judge(t, pool, namespace)
			work, claimed, pass := gated(t, func(string) v1alpha1.NodeTaskResult { return v1alpha1.NodeTaskResultDone })
			runWorker(t, pool, work)
			r := roll(t, pool, func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.WhenClosed = v1alpha1.RolloutClosedWithdraw })
			node := next(t, claimed)
			unit := untilUnit(t, r.Name, v1alpha1.RolloutPhaseClaimed)
			task := untilTask(t, node, v1alpha1.NodeTaskClaimed)
			cluster.PodOn(t, namespace, "late", pool, node)
			other := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
			stop(t, r.Name, unit.Maintenance)
			<-time.After(quiet)
			cluster.Remove(t, other.Name)
			close(pass)
			is.Equal(t, untilTask(t, node, v1alpha1.NodeTaskVerifying).UID, task.UID, "UID of the task")
			unschedulable(t, true, node)
			is.Equal(t, install(t, node), v1alpha1.NodeTaskResultDone)
			framework.UntilGone(t, "the task of finished work is deleted", tasks(t), node)
			unschedulable(t, false, node)
			must.Get(cluster.As(t).Pods(namespace).Get(t.Context(), "late", metav1.GetOptions{}))(t)
			keptItsPromises(t, recorder)
		})
	}
}
