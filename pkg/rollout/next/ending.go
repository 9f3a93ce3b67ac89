// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/window"
)

// Ending is how the rollout completes the maintenance of a unit.
type Ending struct {
	// Now is true if the rollout has to complete the maintenance.
	Now bool
	// Withdrawn is the value of the annotation of that write; "" if the work on all nodes is done.
	Withdrawn string
	// Next is the time at which the drain is withdrawn if it does not move; zero if at none.
	Next time.Time
}

// EndOf decides whether the maintenance of a unit ends. open is true if a window is open. A unit
// that a worker has claimed, or may have claimed, or that has failed, only ends when its work is
// done.
func EndOf(c *Cluster, r *Rollout, unit *v1alpha1.RolloutUnit, nm *v1alpha1.NodeMaintenance, open bool) Ending {
	if v1alpha1.IsEnding(nm) {
		return Ending{}
	}
	done, left := c.progressOf(unit, nm)
	switch spec := &r.Object.Spec; {
	case left == 0 && done == 0:
		return Ending{Now: true, Withdrawn: WithdrawnGone}
	case left == 0 && done < len(unit.Nodes):
		return Ending{Now: true, Withdrawn: WithdrawnDone}
	case left == 0:
		return Ending{Now: true}
	case slices.ContainsFunc(c.tasksOf(unit, nm), IsKept):
		return Ending{}
	case spec.Stage != v1alpha1.RolloutStageRoll:
		return Ending{Now: true, Withdrawn: WithdrawnStopped}
	case !r.hasAny(unit):
		return Ending{Now: true, Withdrawn: WithdrawnGone}
	case !open && spec.WhenClosed == v1alpha1.RolloutClosedWithdraw:
		return Ending{Now: true, Withdrawn: WithdrawnClosed}
	}
	at := c.stalledAt(r.Object, unit, nm)
	if at.IsZero() || at.After(c.Now) {
		return Ending{Next: at}
	}
	return Ending{Now: true, Withdrawn: WithdrawnBlocked}
}

// progressOf returns the number of nodes of a unit whose work is done, and of those whose work is
// not done. A node that does not exist, or that a user has taken out of the maintenance, is neither
// of them, unless it has a task of the maintenance.
func (c *Cluster) progressOf(unit *v1alpha1.RolloutUnit, nm *v1alpha1.NodeMaintenance) (done, left int) {
	records := map[string]v1alpha1.NodeTaskState{}
	for i := range nm.Status.NodeStatuses {
		status := &nm.Status.NodeStatuses[i]
		records[status.NodeRef.Name] = ptr.Deref(status.Task, v1alpha1.NodeMaintenanceNodeTask{}).State
	}
	isCurrent := nm.Status.ObservedGeneration == nm.Generation
	for i := range unit.Nodes {
		name := unit.Nodes[i].Name
		task := c.tasks[name]
		switch state, selected := records[name]; {
		case state == v1alpha1.NodeTaskDone:
			done++
		case state == v1alpha1.NodeTaskGone:
		case task != nil && task.Spec.Maintenance.Name == nm.Name, c.Nodes.byName[name] != nil && (selected || !isCurrent):
			left++
		}
	}
	return done, left
}

// tasksOf returns the NodeTasks with which a maintenance offers the nodes of a unit.
func (c *Cluster) tasksOf(unit *v1alpha1.RolloutUnit, nm *v1alpha1.NodeMaintenance) []*v1alpha1.NodeTask {
	var tasks []*v1alpha1.NodeTask
	for i := range unit.Nodes {
		if task := c.tasks[unit.Nodes[i].Name]; task != nil && task.Spec.Maintenance.Name == nm.Name {
			tasks = append(tasks, task)
		}
	}
	return tasks
}

// IsKept reports whether the server may not take a task back: a worker has the node, may have it,
// or has failed on it.
func IsKept(task *v1alpha1.NodeTask) bool {
	state := task.Status.State
	return state != v1alpha1.NodeTaskDone && (state != v1alpha1.NodeTaskOffered || task.Status.Holder != "")
}

// hasAny reports whether a node of a unit still matches.
func (r *Rollout) hasAny(unit *v1alpha1.RolloutUnit) bool {
	return slices.ContainsFunc(r.Members, func(m Member) bool {
		return slices.ContainsFunc(unit.Nodes, func(n v1alpha1.NodeReference) bool { return n.Name == m.Node })
	})
}

// stalledAt returns the time at which a drain has not moved for the deadline, or at which no node
// was offered for that long although its pods have left, or need not leave; zero if no such time
// runs. The offer of a drained node may first wait for its volumes. A drain that waits for pods to
// complete moves. An offer has a deadline of its own.
func (c *Cluster) stalledAt(r *v1alpha1.NodeMaintenanceRollout, unit *v1alpha1.RolloutUnit, nm *v1alpha1.NodeMaintenance) time.Time {
	progressing := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
	drained := ptr.Deref(meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained), metav1.Condition{})
	isDrained := drained.Status == metav1.ConditionTrue
	isReady := isDrained || nm.Spec.Stage == v1alpha1.NodeMaintenanceStageCordon
	if nm.Spec.Paused || isReady && len(c.tasksOf(unit, nm)) > 0 ||
		progressing != nil && progressing.Reason == v1alpha1.ReasonProgressWaitingForCompletion {
		return time.Time{}
	}
	since := window.Latest(v1alpha1.StageEntered(nm, nm.Spec.Stage), window.Latest(timeOf(nm.Status.LastProgressTimestamp), drained.LastTransitionTime.Time))
	if since.IsZero() {
		return time.Time{}
	}
	if isDrained {
		since = since.Add(protocol.VolumePatience)
	}
	return since.Add(time.Duration(ptr.Deref(r.Spec.ProgressDeadlineSeconds, 3600)) * time.Second)
}
