// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/eventref"
)

// Reasons of the events of this controller.
const (
	// EventCordoned: a node was made unschedulable.
	EventCordoned = "NodeMaintenanceCordoned"
	// EventUncordoned: a node was made schedulable again.
	EventUncordoned = "NodeMaintenanceUncordoned"
	// EventCordonRestored: a user or another controller made a node schedulable during a
	// maintenance, and the node was made unschedulable again.
	EventCordonRestored = "CordonRestored"
	// EventCordonFight: a user or another controller keeps making a node schedulable during a
	// maintenance.
	EventCordonFight = "CordonFight"
	// EventTaintRestored: a user or another controller removed the taint from a node during a
	// maintenance that keeps DaemonSet pods away, and the taint was added again.
	EventTaintRestored = "DrainTaintRestored"
	// EventNodeMaintenanceStarted: a maintenance holds a node from now on.
	EventNodeMaintenanceStarted = "NodeMaintenanceStarted"
	// EventNodeDrainStarted: a maintenance drains a node from now on.
	EventNodeDrainStarted = "NodeDrainStarted"
	// EventNodeDrained: no pod is left on a node that the maintenances that drain it cover.
	EventNodeDrained = "NodeDrained"
	// EventNodeDrainResumed: a node was drained and is not any more.
	EventNodeDrainResumed = "NodeDrainResumed"
	// EventNodeReleased: a maintenance holds a node no longer.
	EventNodeReleased = "NodeMaintenanceReleased"
	// EventNotAuthorized: a node is left alone because the requester of the maintenance may not
	// delete it.
	EventNotAuthorized = "NotAuthorized"
	// EventForeignMarks: a node was left in maintenance by a server with another storage; what it
	// wrote there stays until --adopt-storage names it. About the node.
	EventForeignMarks = "MarksOfAnotherStorage"
)

const (
	actionMaintain = "Maintain"
	actionCordon   = "Cordon"
	actionUncordon = "Uncordon"
	actionTaint    = "Taint"
	actionDrain    = "Drain"
	actionComplete = "Complete"
)

func (c *Controller) nodeEvent(node *corev1.Node, nm *v1alpha1.NodeMaintenance, eventType, reason, action, format string, args ...any) {
	c.recorder.Eventf(eventref.Node(node), eventref.NodeMaintenance(nm), eventType, reason, action, "%s", eventref.Note(format, args...))
}
