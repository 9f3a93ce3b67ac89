// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// IsEnding reports whether a maintenance releases its nodes: its stage is Complete, or it is being
// deleted.
func IsEnding(nm *NodeMaintenance) bool {
	return nm.DeletionTimestamp != nil || nm.Spec.Stage == NodeMaintenanceStageComplete
}

// IsHolding reports whether a maintenance keeps its nodes cordoned: stage Cordon or Drain, and not
// being deleted. A stage that this version does not know, which a newer server has stored, keeps
// them cordoned, too: people may be at work on the nodes.
func IsHolding(nm *NodeMaintenance) bool {
	return !IsEnding(nm) && nm.Spec.Stage != NodeMaintenanceStageIdle
}

// IsKnown reports whether this version knows the stage.
func (s NodeMaintenanceStage) IsKnown() bool {
	switch s {
	case NodeMaintenanceStageIdle, NodeMaintenanceStageCordon, NodeMaintenanceStageDrain, NodeMaintenanceStageComplete:
		return true
	}
	return false
}

// IsDraining reports whether a maintenance asks pods to leave: stage Drain, and not being deleted.
func IsDraining(nm *NodeMaintenance) bool {
	return !IsEnding(nm) && nm.Spec.Stage == NodeMaintenanceStageDrain
}

// IsDone reports whether a maintenance has released everything: it is ending, and the server has
// dropped its finalizer.
func IsDone(nm *NodeMaintenance) bool {
	return IsEnding(nm) && !slices.Contains(nm.Finalizers, FinalizerMaintenanceCompletion)
}

// UncordonsOnly reports whether a maintenance went to Complete without having held its nodes. Such
// a maintenance exists only to uncordon its nodes, regardless of who cordoned them (KEP-4212,
// section "NodeMaintenance"). The API server stores the stages that were entered, so this does not
// depend on what a controller saw.
func UncordonsOnly(nm *NodeMaintenance) bool {
	return IsEnding(nm) && !slices.ContainsFunc(nm.Status.StageStatuses, func(s StageStatus) bool {
		return s.Name != NodeMaintenanceStageIdle && s.Name != NodeMaintenanceStageComplete
	})
}

// StageEntered returns when a maintenance entered a stage, the zero time if it did not.
func StageEntered(nm *NodeMaintenance, stage NodeMaintenanceStage) time.Time {
	for i := range nm.Status.StageStatuses {
		if entered := &nm.Status.StageStatuses[i]; entered.Name == stage && entered.StartTimestamp != nil {
			return entered.StartTimestamp.Time
		}
	}
	return time.Time{}
}

// IsLeftAlone reports whether a node is in the status of a maintenance that takes no hold of it.
func IsLeftAlone(node *NodeMaintenanceNodeStatus) bool {
	return IsBeingReleased(node) || node.Reason == NodeStatusNotAuthorized || node.Reason == NodeStatusTooManyMaintenances
}

// IsBeingReleased reports whether a node is in the status of a maintenance only because it is not
// released yet.
func IsBeingReleased(node *NodeMaintenanceNodeStatus) bool {
	return node.Reason == NodeStatusReleasing || node.Reason == NodeStatusNotReleased
}

// NodeStatusOf returns what the status of a maintenance says of a node, nil if it says nothing. A
// node that was registered again under the same name is another one. The server keeps the list
// sorted by name.
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

// CompareAge orders maintenances by their creation, then by name: the oldest first.
func CompareAge(a, b *NodeMaintenance) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// RequesterOf returns the name of the user who requested a maintenance, "" if it is not known.
func RequesterOf(nm *NodeMaintenance) string {
	if nm.Spec.RequestedBy == nil {
		return ""
	}
	return nm.Spec.RequestedBy.Username
}
