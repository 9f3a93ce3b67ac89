// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package holds

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
)

// Hands are the worker that has a node in its hands, and the maintenance that it works for. No
// maintenance asks the pods of such a node to leave, and none releases it. The zero value means
// that no worker has the node.
type Hands struct {
	// Maintenance and Name are the UID and the name of the maintenance.
	Maintenance types.UID
	Name        string
	// State is Claimed, Verifying, Failed or Done.
	State v1alpha1.NodeTaskState
	// Holder identifies the worker.
	Holder string
	// HasPods is set if the node was not drained for the worker: it was offered in stage Cordon.
	HasPods bool
}

// HandsOn returns who has a node in its hands: the worker that its NodeTask was granted to or,
// once the NodeTask of finished work is deleted, the worker that a maintenance recorded, until that
// maintenance ends. task is the NodeTask of the node, or nil. If its maintenance is not among the
// maintenances, the node counts as drained for the worker.
func HandsOn(node *corev1.Node, task *v1alpha1.NodeTask, maintenances []*v1alpha1.NodeMaintenance) Hands {
	if task != nil && protocol.IsInHands(task.Status.State) {
		of := task.Spec.Maintenance
		hasPods := slices.ContainsFunc(maintenances, func(nm *v1alpha1.NodeMaintenance) bool { return nm.UID == of.UID && WorksBesidePods(nm) })
		return Hands{of.UID, of.Name, task.Status.State, task.Status.Holder, hasPods}
	}
	done := Oldest(maintenances, func(nm *v1alpha1.NodeMaintenance) bool { return v1alpha1.IsHolding(nm) && IsDone(nm, node) })
	if done == nil {
		return Hands{}
	}
	return Hands{done.UID, done.Name, v1alpha1.NodeTaskDone, TaskOf(done, node).Holder, WorksBesidePods(done)}
}

// WorksBesidePods reports whether a maintenance offers its nodes to workers without a drain.
func WorksBesidePods(nm *v1alpha1.NodeMaintenance) bool {
	return nm.Spec.Task != nil && nm.Spec.Task.Stage == v1alpha1.NodeTaskStageCordon
}

// TaskOf returns the work on a node that the status of a maintenance records, or nil.
func TaskOf(nm *v1alpha1.NodeMaintenance, node *corev1.Node) *v1alpha1.NodeMaintenanceNodeTask {
	if entry := v1alpha1.NodeStatusOf(nm, v1alpha1.NodeReference{Name: node.Name, UID: node.UID}); entry != nil {
		return entry.Task
	}
	return nil
}

// IsDone reports whether the status of a maintenance records that the work on a node is done.
func IsDone(nm *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	task := TaskOf(nm, node)
	return task != nil && task.State == v1alpha1.NodeTaskDone
}

// IsWorkedOn reports whether the worker has ended its work, well or not: the pods that belong to
// the node may come back, and nobody drains it before its release.
func IsWorkedOn(state v1alpha1.NodeTaskState) bool {
	return state == v1alpha1.NodeTaskVerifying || state == v1alpha1.NodeTaskFailed || state == v1alpha1.NodeTaskDone
}

// Keeps reports whether a NodeTask keeps its node with its maintenance, even if the maintenance
// ends: a worker may claim the node, works on it, or the result is being verified.
func Keeps(task *v1alpha1.NodeTask, maintenance types.UID) bool {
	return task != nil && task.Spec.Maintenance.UID == maintenance && protocol.DelaysRelease(StateOf(task))
}

// StateOf returns the state of a NodeTask. One without a state was created a moment ago.
func StateOf(task *v1alpha1.NodeTask) v1alpha1.NodeTaskState {
	return cmp.Or(task.Status.State, v1alpha1.NodeTaskOffered)
}

// Any reports whether a worker has the node in its hands.
func (h Hands) Any() bool { return h.State != "" }

// Stops reports whether the worker keeps a maintenance from asking pods of the node to leave. It
// does not stop the maintenance of a shutdown of a node that has all its pods: they would end
// without an eviction.
func (h Hands) Stops(nm *v1alpha1.NodeMaintenance, node string) bool {
	return h.Any() && !(h.HasPods && marks.IsShutdownOf(node, nm))
}

// LetsPodsBack reports whether the pods that belong to the node may come back although a
// maintenance drains it, see IsWorkedOn.
func (h Hands) LetsPodsBack(nm *v1alpha1.NodeMaintenance, node string) bool {
	return IsWorkedOn(h.State) && h.Stops(nm, node)
}

// Passes reports whether a maintenance that the worker stops does not wait for it: the worker works
// for this maintenance, or the maintenance announces that the machine shuts down. A reboot by the
// worker would otherwise wait for the worker itself.
func (h Hands) Passes(nm *v1alpha1.NodeMaintenance, node string) bool {
	return h.Maintenance == nm.UID || marks.IsShutdownOf(node, nm)
}
