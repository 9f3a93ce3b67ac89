// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/eventref"
)

// Reasons of the events of this controller.
const (
	// EventNotAuthorized: a node is skipped because the requester of the maintenance may not
	// maintain it. The event of the maintenance says whether later waves wait for the pods of the
	// node (spec.onExcludedNode).
	EventNotAuthorized = "NotAuthorized"
	// EventNodeExcluded: the drain goes on without a selected node: too many other maintenances
	// hold it, a worker has it for another maintenance, or it cannot be kept unschedulable. The
	// event says whether later waves wait for the pods of the node (spec.onExcludedNode).
	EventNodeExcluded = "NodeExcluded"
	// EventFastForwarded: when a maintenance joined, another maintenance had already drained a node
	// further than the plan of the new one.
	EventFastForwarded = "DrainFastForwarded"
	// EventOrderOverridden: the plans of two maintenances contradict each other, and the nodes are
	// drained in the order of the older plan.
	EventOrderOverridden = "DrainOrderOverridden"
	// EventDrainBlocked: every pod that is asked to leave is blocked. The event is sent when the
	// condition Drained begins to report it.
	EventDrainBlocked = "DrainBlocked"
	// EventStageStarted: a maintenance entered a stage. Those of a rollout do not send it. About
	// the NodeMaintenance.
	EventStageStarted = "StageStarted"
	// EventWaveStarted: the pods of the next entry of the drain plan are asked to leave, or may
	// complete.
	EventWaveStarted = "WaveStarted"
	// EventDrainPaused: a user or a program has paused the maintenance, or has created it paused.
	EventDrainPaused = "DrainPaused"
	// EventDrainResumed: a user or a program has resumed the maintenance.
	EventDrainResumed = "DrainResumed"
	// EventDrainForecast: a drain begins, and the preview finds pods that cannot leave, will not be
	// recreated or need a long time. The maintenances of a rollout do not send it.
	EventDrainForecast = "DrainForecast"
	// EventDrainedNoLonger: the condition Drained is no longer True. It is not sent if no selected
	// node exists any more.
	EventDrainedNoLonger = "DrainedNoLonger"
	// EventNotProgressing: the condition Progressing became False: the maintenance makes no
	// progress, or an operation that it needs keeps failing. One event is sent for each text.
	EventNotProgressing = "NotProgressing"
	// EventDrained: the condition Drained became True. The maintenances of a rollout do not send
	// it. About the NodeMaintenance.
	EventDrained = "Drained"
	// EventCompleted: all changes of the maintenance to nodes were undone. The maintenances of a
	// rollout do not send it. About the NodeMaintenance.
	EventCompleted = "Completed"
	// EventSuperseded: the maintenance of a shutdown of a node was completed because the node has
	// shut down for the maintenance of a later shutdown, or has been deleted.
	EventSuperseded = "Superseded"
	// EventStatusTooLarge: the status is too large to be stored, even without messages.
	EventStatusTooLarge = "StatusTooLarge"
	// EventStatusNotWritten: the status could not be written for a minute, for example because a
	// policy or a webhook refuses it. One event is sent for each text.
	EventStatusNotWritten = "StatusNotWritten"
)

const (
	actionMaintain = "Maintain"
	actionDrain    = "Drain"
	actionComplete = "Complete"
)

func (c *Controller) nodeEvent(node *corev1.Node, nm *v1alpha1.NodeMaintenance, eventType, reason, action, format string, args ...any) {
	c.recorder.Eventf(eventref.Node(node), eventref.NodeMaintenance(nm), eventType, reason, action, "%s", eventref.Note(format, args...))
}

// stageEvent emits an event about a step of a maintenance that its status records as well. The user
// of a rollout reads the events of the rollout and of its nodes, so its maintenances emit none.
func (c *Controller) stageEvent(nm *v1alpha1.NodeMaintenance, reason, action, note string) {
	if protocol.RolloutOf(nm) == nil {
		c.maintenanceEvent(nm, corev1.EventTypeNormal, reason, action, "%s", note)
	}
}

func (c *Controller) maintenanceEvent(nm *v1alpha1.NodeMaintenance, eventType, reason, action, format string, args ...any) {
	c.recorder.Eventf(eventref.NodeMaintenance(nm), nil, eventType, reason, action, "%s", eventref.Note(format, args...))
}
