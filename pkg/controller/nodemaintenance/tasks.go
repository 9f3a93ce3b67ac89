// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"cmp"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// A worker that has a node in its hands (docs/decisions/0062-nodes-in-hands.md) keeps all
// maintenances from asking pods of the node to leave. For the maintenance of the worker, and for
// the shutdown of the node, the node counts as drained; for all others it is outside the waves.

// describeHands returns a phrase about the worker that has a node.
func describeHands(h holds.Hands) string {
	switch h.State {
	case v1alpha1.NodeTaskClaimed:
		return fmt.Sprintf("worker %q works on it for NodeMaintenance %s", h.Holder, h.Name)
	case v1alpha1.NodeTaskVerifying:
		return fmt.Sprintf("worker %q has worked on it for NodeMaintenance %s, and the node is being verified", h.Holder, h.Name)
	case v1alpha1.NodeTaskFailed:
		return fmt.Sprintf("the work on it for NodeMaintenance %s has failed", h.Name)
	default:
		return fmt.Sprintf("the work on it for NodeMaintenance %s is done, and it is not released yet", h.Name)
	}
}

// countInHands counts the pods of a node that a worker has: all of them stay.
func countInHands(view *nodestate.View, covered drainplan.Targets) *nodeCount {
	n := &nodeCount{keptStatic: map[protocol.KeptReason]int{}}
	for i := range view.Pods {
		pod := &view.Pods[i]
		if pod.Kept != "" || covered.First(pod.Plan) >= 0 {
			n.addKept(pod, cmp.Or(pod.Kept, drainplan.KeptInTask))
		}
	}
	return n
}

// describeWork returns a text about the work on the nodes that exist, "" before the drain. A
// rollout completes its maintenances; those made by hand are completed by users, who may want to
// look at the nodes before.
func describeWork(nm *v1alpha1.NodeMaintenance, nodes []v1alpha1.NodeMaintenanceNodeStatus) string {
	left, done := 0, 0
	for i := range nodes {
		switch task := nodes[i].Task; {
		case task == nil && nodes[i].Reason == v1alpha1.NodeStatusGone, task != nil && task.State == v1alpha1.NodeTaskGone:
		case task == nil || task.State != v1alpha1.NodeTaskDone:
			left++
		default:
			done++
		}
	}
	switch {
	case left == 0 && done > 0:
		return "The work on all nodes is done; they return to service when the maintenance is completed"
	case left > 0 && nm.Spec.Task != nil && v1alpha1.IsDraining(nm):
		return fmt.Sprintf("The work is done on %d of %s", done, wording.Count(left+done, "node"))
	}
	return ""
}

// taskEntry returns the entry of the status about the work on a node. gone is set if the node does
// not exist.
func (f *facts) taskEntry(node string, before *v1alpha1.NodeMaintenanceNodeTask, gone bool) *v1alpha1.NodeMaintenanceNodeTask {
	task := f.tasks[node]
	switch {
	case task != nil:
		return copyTask(task, before)
	case before == nil:
		return nil
	case before.State == v1alpha1.NodeTaskDone, before.State == v1alpha1.NodeTaskGone:
		return before
	case gone && protocol.IsInHands(before.State):
		after := *before
		after.State, after.Reason, after.EndTime, after.Message = v1alpha1.NodeTaskGone, "", &metav1.Time{Time: f.now}, "The node is gone"
		return &after
	case !v1alpha1.IsEnding(f.subject.NodeMaintenance):
		// The task was withdrawn, or a user has taken the node back: it is drained and offered
		// again.
		return nil
	case before.State == v1alpha1.NodeTaskFailed:
		return before
	case before.State == v1alpha1.NodeTaskOffered && f.subject.Annotations[v1alpha1.AnnotationWithdrawn] == string(v1alpha1.NodeTaskNoWorker):
		return &v1alpha1.NodeMaintenanceNodeTask{
			State: v1alpha1.NodeTaskFailed, Reason: v1alpha1.NodeTaskNoWorker, EndTime: &metav1.Time{Time: f.now}, Message: "No worker has claimed the node",
		}
	}
	return nil
}

func copyTask(task *v1alpha1.NodeTask, before *v1alpha1.NodeMaintenanceNodeTask) *v1alpha1.NodeMaintenanceNodeTask {
	status := &task.Status
	entry := &v1alpha1.NodeMaintenanceNodeTask{State: holds.StateOf(task), Reason: status.Reason}
	if !protocol.IsInHands(entry.State) {
		return entry
	}
	entry.Holder = status.Holder
	if before != nil {
		entry.StartTime = before.StartTime
	}
	switch entry.State {
	case v1alpha1.NodeTaskClaimed:
		entry.StartTime = status.StateTime
	case v1alpha1.NodeTaskDone, v1alpha1.NodeTaskFailed:
		entry.EndTime = status.StateTime
		entry.Message = status.ServerMessage
	}
	entry.Message = drainplan.Fit(entry.Message, protocol.MaxTaskMessage)
	return entry
}

// taskBefore returns what the status has about the work on a node, even if the node was registered
// again since then, as a worker does that reinstalls the node.
func (f *facts) taskBefore(ref v1alpha1.NodeReference) *v1alpha1.NodeMaintenanceNodeTask {
	nm := f.subject.NodeMaintenance
	if entry := v1alpha1.NodeStatusOf(nm, ref); entry != nil {
		return entry.Task
	}
	if f.tasks[ref.Name] == nil {
		return nil
	}
	for i := range nm.Status.NodeStatuses {
		if entry := &nm.Status.NodeStatuses[i]; entry.NodeRef.Name == ref.Name {
			return entry.Task
		}
	}
	return nil
}

// isStopped reports whether a worker has a node, so that a maintenance asks none of its pods to
// leave.
func (c *Controller) isStopped(nm *v1alpha1.NodeMaintenance, name string) bool {
	node, err := c.nodeLister.Get(name)
	return err == nil && c.state.HandsOn(node).Stops(nm, name)
}

// onlyWorkersAreLeft reports whether the drain only waits for workers that have its other nodes.
func (m *member) onlyWorkersAreLeft(left *remainder) bool {
	if left.covered > 0 {
		return false
	}
	waits := false
	for i := range m.nodes {
		switch outside := m.nodes[i].outside; {
		case outside == nil:
		case outside.reason != v1alpha1.NodeStatusNodeTaskInProgress:
			return false
		default:
			waits = true
		}
	}
	return waits
}
