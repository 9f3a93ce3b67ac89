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
	// EventCordonFight: a user or another controller keeps uncordoning a node during a
	// maintenance.
	EventCordonFight = "CordonFight"
	// EventTaintRestored: a user or another controller removed a taint from a node during a
	// maintenance that evicts DaemonSet pods, and the taint was added again.
	EventTaintRestored = "DrainTaintRestored"
	// EventNodeMaintenanceStarted: a maintenance begins to hold a node, and does not drain it yet.
	EventNodeMaintenanceStarted = "NodeMaintenanceStarted"
	// EventNodeDrainStarted: a maintenance begins to drain a node, and to hold it if it does not do
	// so yet.
	EventNodeDrainStarted = "NodeDrainStarted"
	// EventNodeDrained: all pods that the maintenances of a node have to drain have left it.
	EventNodeDrained = "NodeDrained"
	// EventNodeDrainResumed: a drained node has pods to drain again.
	EventNodeDrainResumed = "NodeDrainResumed"
	// EventNodeReleased: a maintenance no longer holds a node, but the node stays unschedulable, or
	// several maintenances release it at the same time. Otherwise NodeMaintenanceUncordoned is the
	// event about the release.
	EventNodeReleased = "NodeMaintenanceReleased"
	// EventNotAuthorized: a node is skipped because the requester of the maintenance may not
	// maintain it.
	EventNotAuthorized = "NotAuthorized"
	// EventForeignMarks: a node has the cordon, taints or annotations of a server with another
	// storage. This server keeps them until its flag --adopt-storage names that storage. About the
	// node.
	EventForeignMarks = "MarksOfAnotherStorage"
	// EventNotProtected: the cluster refuses the annotations that keep autoscalers from deleting a
	// held node, or their removal. The rest of the change is written.
	EventNotProtected = "NodeNotProtected"
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
