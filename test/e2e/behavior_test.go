// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// behaving returns an entry of a drain plan for the pods of an app. Its pods stay in the wave of
// their priority.
func behaving(app string, behavior v1alpha1.DrainBehavior, waitSeconds ...int32) v1alpha1.DrainPlanEntry {
	e := v1alpha1.DrainPlanEntry{
		PodPriority: v1alpha1.MaxPodPriority, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, Behavior: &behavior,
	}
	for _, seconds := range waitSeconds {
		e.WaitSeconds = &seconds
	}
	return e
}

func planned(entries ...v1alpha1.DrainPlanEntry) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.DrainPlan = entries }
}

// untilWaiting waits until a maintenance only waits for a number of pods to complete.
func untilWaiting(t *testing.T, name string, pods int32) {
	t.Helper()
	nm := framework.Until(t, "only waits for pods to complete", cluster.As(t).Maintenances(), name, func(nm *v1alpha1.NodeMaintenance) bool {
		return conditionIs(nm.Status.Conditions, v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonProgressWaitingForCompletion)
	})
	is.Equal(t, ptr.Deref(nm.Status.NodeStatuses[0].PodsWaiting, 0), pods, "waiting pods")
}

// TestPodsThatStay drains a node on which a pod may complete and another one is kept.
func TestPodsThatStay(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	for _, name := range []string{"job", "cache", "web"} {
		cluster.PodOn(t, namespace, name, pool, nodes[0])
	}
	recorder := cluster.Judge(t, pool, namespace)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain,
		planned(behaving("cache", v1alpha1.DrainBehaviorSkip), behaving("job", v1alpha1.DrainBehaviorWaitCompleted))))
	pods := cluster.As(t).Pods(namespace)
	framework.UntilGone(t, "has left", pods, "web")
	untilWaiting(t, nm.Name, 1)
	evacuating(t, namespace, 1) // the one of the pod that has left
	preview := must.Get(cluster.As(t).Maintenances().GetPreview(t.Context(), nm.Name, metav1.GetOptions{}))(t)
	is.True(t, preview.PodsWaitingCount == 1 && preview.PodsKeptCount == 1 && preview.PodCount == 1, "got the preview %+v", preview)

	must.Get(pods.Patch(t.Context(), "job", types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"))(t)
	out := drained(t, nm.Name)
	is.True(t, conditionIs(out.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft),
		"got the conditions %+v", out.Status.Conditions)
	is.Equal(t, out.Status.NodeStatuses[0].PodsKept, int32(1), "kept pods")
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	waitFor(t, recorder, oracle.PutBack(nil, nm.Name))
	found, err := recorder.Verdict(oracle.Rules{Server: serverUser})
	framework.Accept(t, found, err)
}

// TestTheStrictestPlanDecides drains a node whose pods may complete: one within a few seconds, and
// one without a limit, until another maintenance drains the node.
func TestTheStrictestPlanDecides(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	for _, name := range []string{"short", "long"} {
		cluster.PodOn(t, namespace, name, pool, nodes[0])
	}
	recorder := cluster.Judge(t, pool, namespace)
	first := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain,
		planned(behaving("long", v1alpha1.DrainBehaviorWaitCompleted), behaving("short", v1alpha1.DrainBehaviorWaitCompleted, 5))))
	pods := cluster.As(t).Pods(namespace)
	framework.UntilGone(t, "has left after its wait", pods, "short")
	untilWaiting(t, first.Name, 1)
	second := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	drained(t, first.Name)
	drained(t, second.Name)
	_, err := pods.Get(t.Context(), "long", metav1.GetOptions{})
	is.True(t, apierrors.IsNotFound(err), "the pod after the drain: %v", err)
	for _, name := range []string{first.Name, second.Name} {
		setStage(t, name, v1alpha1.NodeMaintenanceStageComplete)
	}
	waitFor(t, recorder, oracle.PutBack(nil, first.Name, second.Name))
	found, err := recorder.Verdict(oracle.Rules{Server: serverUser})
	framework.Accept(t, found, err)
}

// TestRolloutWaitsForJobs has a rollout whose plan keeps a pod and lets another one complete, which
// takes longer than the deadline for the progress of the drain. The drain is not withdrawn.
func TestRolloutWaitsForJobs(t *testing.T) {
	t.Parallel() // the test mostly waits
	const deadline = 60
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	for _, name := range []string{"job", "cache", "web"} {
		cluster.PodOn(t, namespace, name, pool, nodes[0])
	}
	recorder := cluster.Judge(t, pool, namespace)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	r := roll(t, pool, func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.ProgressDeadlineSeconds = ptr.To[int32](deadline)
		r.Spec.Template.DrainPlan = []v1alpha1.DrainPlanEntry{
			behaving("cache", v1alpha1.DrainBehaviorSkip), behaving("job", v1alpha1.DrainBehaviorWaitCompleted),
		}
	})
	pods := cluster.As(t).Pods(namespace)
	framework.UntilGone(t, "has left", pods, "web")
	unit := untilUnit(t, r.Name, v1alpha1.RolloutPhaseDraining)
	untilWaiting(t, unit.Maintenance, 1)
	<-time.After((deadline + 10) * time.Second)
	untilWaiting(t, unit.Maintenance, 1)
	must.Get(pods.Patch(t.Context(), "job", types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"))(t)
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 1, Done: 1})
	is.Equal(t, len(attempts(t, r.Name)), 1, "maintenances")
	must.Get(pods.Get(t.Context(), "cache", metav1.GetOptions{}))(t)
	keptItsPromises(t, recorder)
}
