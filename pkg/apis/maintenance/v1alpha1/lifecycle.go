// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsEnding reports whether a maintenance releases its nodes: its stage is Complete, or it is being
// deleted.
func IsEnding(nm *NodeMaintenance) bool {
	return nm.DeletionTimestamp != nil || nm.Spec.Stage == NodeMaintenanceStageComplete
}

// IsHolding reports whether a maintenance keeps its nodes cordoned: its stage is Cordon or Drain,
// and it is not being deleted. An unknown stage, which a newer server has stored, also keeps them
// cordoned: users may be working on the nodes.
func IsHolding(nm *NodeMaintenance) bool {
	return !IsEnding(nm) && nm.Spec.Stage != NodeMaintenanceStageIdle
}

// IsKnown reports whether this version defines the stage.
func (s NodeMaintenanceStage) IsKnown() bool {
	switch s {
	case NodeMaintenanceStageIdle, NodeMaintenanceStageCordon, NodeMaintenanceStageDrain, NodeMaintenanceStageComplete:
		return true
	}
	return false
}

// IsDraining reports whether a maintenance evacuates pods: its stage is Drain, and it is not being
// deleted.
func IsDraining(nm *NodeMaintenance) bool {
	return !IsEnding(nm) && nm.Spec.Stage == NodeMaintenanceStageDrain
}

// IsPaused reports whether a maintenance is in stage Drain and spec.paused stops the drain.
func IsPaused(nm *NodeMaintenance) bool {
	return IsDraining(nm) && nm.Spec.Paused
}

// IsDone reports whether a maintenance has released all of its nodes: it is ending, and the server
// has dropped its finalizer.
func IsDone(nm *NodeMaintenance) bool {
	return IsEnding(nm) && !slices.Contains(nm.Finalizers, FinalizerMaintenanceCompletion)
}

// UncordonsOnly reports whether a maintenance went to Complete without having held its nodes. Such
// a maintenance exists only to uncordon its nodes, regardless of who cordoned them (KEP-4212,
// section "NodeMaintenance"). The API server records the stages that were entered, so the result
// does not depend on the observations of a controller.
func UncordonsOnly(nm *NodeMaintenance) bool {
	return IsEnding(nm) && !slices.ContainsFunc(nm.Status.StageStatuses, func(s StageStatus) bool {
		return s.Name != NodeMaintenanceStageIdle && s.Name != NodeMaintenanceStageComplete
	})
}

// StageEntered returns the time at which a maintenance entered a stage; the zero time if it did not
// enter the stage.
func StageEntered(nm *NodeMaintenance, stage NodeMaintenanceStage) time.Time {
	for i := range nm.Status.StageStatuses {
		if entered := &nm.Status.StageStatuses[i]; entered.Name == stage && entered.StartTimestamp != nil {
			return entered.StartTimestamp.Time
		}
	}
	return time.Time{}
}

// IsLeftAlone reports whether a maintenance lists a node in its status but does not hold it.
func IsLeftAlone(node *NodeMaintenanceNodeStatus) bool {
	return IsBeingReleased(node) || node.Reason == NodeStatusNotAuthorized || node.Reason == NodeStatusTooManyMaintenances
}

// IsBeingReleased reports whether a maintenance lists a node in its status only because the node is
// not released yet.
func IsBeingReleased(node *NodeMaintenanceNodeStatus) bool {
	return node.Reason == NodeStatusReleasing || node.Reason == NodeStatusNotReleased
}

// NodeStatusOf returns the entry of a node in the status of a maintenance; nil if there is none. It
// ignores the entry of an earlier node with the same name. The server keeps the list sorted by
// name.
func NodeStatusOf(nm *NodeMaintenance, node NodeReference) *NodeMaintenanceNodeStatus {
	i, found := slices.BinarySearchFunc(nm.Status.NodeStatuses, node.Name, func(s NodeMaintenanceNodeStatus, name string) int {
		return strings.Compare(s.NodeRef.Name, name)
	})
	for ; found && i < len(nm.Status.NodeStatuses) && nm.Status.NodeStatuses[i].NodeRef.Name == node.Name; i++ {
		if nm.Status.NodeStatuses[i].NodeRef.UID == node.UID {
			return &nm.Status.NodeStatuses[i]
		}
	}
	return nil
}

// PoolOf returns the pool through which a maintenance has taken a node of its status, "" if there
// is none. An index that is not in status.pools counts as none: the right to the node is then
// needed by name.
func PoolOf(nm *NodeMaintenance, node *NodeMaintenanceNodeStatus) string {
	if node == nil || node.PoolIndex == nil || *node.PoolIndex < 0 || int(*node.PoolIndex) >= len(nm.Status.Pools) {
		return ""
	}
	return nm.Status.Pools[*node.PoolIndex]
}

// CompareAge orders maintenances by their creation, then by name: the oldest first.
func CompareAge(a, b *NodeMaintenance) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// NotObserved returns the condition Ready of a new object. Without it, tools that wait for Ready
// take an object without conditions for ready.
func NotObserved(created metav1.Time) metav1.Condition {
	return metav1.Condition{
		Type: ConditionReady, Status: metav1.ConditionUnknown, Reason: ReasonNotObserved, LastTransitionTime: created,
		Message: "The server has not written the status since the creation of the object",
	}
}

// RequesterOf returns the name of the user who requested a maintenance; "" if unknown.
func RequesterOf(nm *NodeMaintenance) string {
	if nm.Spec.RequestedBy == nil {
		return ""
	}
	return nm.Spec.RequestedBy.Username
}
