// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/rollout/window"
)

// The worlds of rollouts have the numbers, the windows and the texts that the server writes: they
// come from next.Decide.

// decided sets the status of a rollout as the server does. It decides from the spec, the units of
// the status, and attempts that have ended. Of status.nodes it reads how many nodes there are, how
// many of them, the last ones, meet doneWhen, and how many of the others were blocked a moment ago,
// or are cordoned by other users.
func decided(r *v1alpha1.NodeMaintenanceRollout, attempts ...*v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenanceRollout {
	if r.Status.ObservedGeneration == 0 {
		return r
	}
	facts := next.Facts{
		Now: now, MaxUnavailablePercent: 100, Exists: func(string) bool { return true }, Rollouts: []*v1alpha1.NodeMaintenanceRollout{r},
	}
	for i := range r.Status.Current {
		unit := &r.Status.Current[i]
		for _, node := range unit.Nodes {
			facts.Tasks = append(facts.Tasks, task(node.Name, v1alpha1.NodeTaskState(unit.Phase), "", "", func(t *v1alpha1.NodeTask) { t.Spec.Maintenance.Name = unit.Maintenance }))
		}
	}
	given, members, nodes := r.Status.Nodes, []next.Member(nil), []next.Node(nil)
	for i := range given.Total {
		name := fmt.Sprintf("node-%03d", i+1)
		node, member := nodeOfRollout(name), next.Member{Node: name, Goal: next.GoalUnmet}
		switch {
		case i >= given.Total-given.Done:
			member.Goal = next.GoalMet
		case slices.ContainsFunc(r.Status.Current, func(u v1alpha1.RolloutUnit) bool {
			return slices.ContainsFunc(u.Nodes, func(n v1alpha1.NodeReference) bool { return n.Name == name })
		}):
		case given.Blocked > 0:
			given.Blocked--
			attempts = append(attempts, attempt(name, 2, next.WithdrawnBlocked))
		case given.Skipped > 0:
			given.Skipped--
			node.Spec.Unschedulable = true
		}
		nodes, members = append(nodes, next.NewNode(node, nil, now)), append(members, member)
	}
	facts.Nodes = next.NewNodes(nodes)
	d := next.Decide(next.NewCluster(facts), &next.Rollout{Object: r, Members: members, Attempts: attempts})
	if len(d.Start) > 0 {
		panic("the server would start unit " + d.Start[0].Name)
	}
	r.Status.Nodes, r.Status.Window = d.Nodes, nil
	if windows, err := window.At(r.Spec.Windows, now); err != nil {
		panic(err)
	} else if len(r.Spec.Windows) > 0 {
		r.Status.Window = &v1alpha1.RolloutWindowStatus{Open: windows.Open}
		if !windows.Until.IsZero() {
			r.Status.Window.Until = new(metav1.NewTime(windows.Until))
		}
	}
	progressing := metav1.Condition{
		Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: d.Reason, Message: d.Message,
		LastTransitionTime: before(8 * time.Minute),
	}
	if d.Reason == v1alpha1.ReasonRolling || d.Reason == v1alpha1.ReasonNoNodes {
		progressing.Status = metav1.ConditionTrue
	}
	r.Status.Conditions = []metav1.Condition{progressing}
	return r
}

// rackFails stops a rollout over racks after the work on the second node of a rack has failed.
func rackFails(r *v1alpha1.NodeMaintenanceRollout) {
	stopped(r)
	u := &r.Status.Current[0]
	u.Unit, u.Maintenance = "rack-7", "kernel-6-12-rack-7-1"
	u.Nodes, u.Message = append(u.Nodes, v1alpha1.NodeReference{Name: "node-003", UID: "node-003"}), "node node-003: "+u.Message
}

// nextDay returns a rollout outside its window, with a unit whose drain was blocked in the night.
func nextDay() []runtime.Object {
	nm := attempt("node-005", 1, next.WithdrawnBlocked)
	nm.CreationTimestamp = before(10 * time.Hour)
	nm.Status.StageStatuses[len(nm.Status.StageStatuses)-1].StartTimestamp = new(before(9 * time.Hour))
	return withAttempts(rollout(closed, func(r *v1alpha1.NodeMaintenanceRollout) { r.CreationTimestamp = before(12 * time.Hour) }), nm)
}

// nodeOfRollout returns a node that is in service.
func nodeOfRollout(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: before(24 * time.Hour)},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: before(24 * time.Hour),
		}}},
	}
}
