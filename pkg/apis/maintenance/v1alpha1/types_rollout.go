// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// RolloutStage is a step of a rollout. The order is Idle, Roll, Complete.
// +enum
// +k8s:enum
type RolloutStage string

const (
	// RolloutStageIdle announces a rollout. The server counts its nodes and changes nothing.
	RolloutStageIdle RolloutStage = "Idle"
	// RolloutStageRoll takes the nodes out of service and back, a few at a time.
	RolloutStageRoll RolloutStage = "Roll"
	// RolloutStageComplete stops a rollout: no unit starts, and the units that no worker has
	// claimed are released.
	RolloutStageComplete RolloutStage = "Complete"
)

// RolloutClosedPolicy defines what happens to the running units of a rollout when its last window
// closes.
// +enum
// +k8s:enum
type RolloutClosedPolicy string

const (
	// RolloutClosedFinish lets the running units finish.
	RolloutClosedFinish RolloutClosedPolicy = "Finish"
	// RolloutClosedWithdraw releases the units that no worker has claimed. They start again in the
	// next window.
	RolloutClosedWithdraw RolloutClosedPolicy = "Withdraw"
)

// RolloutHoldScope defines what a hold stops.
// +enum
// +k8s:enum
type RolloutHoldScope string

const (
	// RolloutHoldStarts keeps further units from starting.
	RolloutHoldStarts RolloutHoldScope = "Starts"
	// RolloutHoldDrains keeps further units from starting, and pauses the drains of units that no
	// worker has claimed.
	RolloutHoldDrains RolloutHoldScope = "Drains"
)

// RolloutPhase is the state of a unit that runs.
// +enum
// +k8s:enum
type RolloutPhase string

const (
	// RolloutPhaseStarting means that the unit is announced. Its NodeMaintenance may not exist yet.
	RolloutPhaseStarting RolloutPhase = "Starting"
	// RolloutPhaseDraining means that the pods are leaving the nodes of the unit.
	RolloutPhaseDraining RolloutPhase = "Draining"
	// RolloutPhaseOffered means that nodes of the unit are offered to workers.
	RolloutPhaseOffered RolloutPhase = "Offered"
	// RolloutPhaseClaimed means that a worker may work on a node of the unit.
	RolloutPhaseClaimed RolloutPhase = "Claimed"
	// RolloutPhaseVerifying means that the work is done, and the server verifies the nodes.
	RolloutPhaseVerifying RolloutPhase = "Verifying"
	// RolloutPhaseReleasing means that the NodeMaintenance is Complete, and the server releases
	// the nodes.
	RolloutPhaseReleasing RolloutPhase = "Releasing"
	// RolloutPhaseSoaking means that the nodes are back in service, but still count as out.
	RolloutPhaseSoaking RolloutPhase = "Soaking"
	// RolloutPhaseFailed means that a node of the unit has failed. The unit stays out of service
	// until a user acts.
	RolloutPhaseFailed RolloutPhase = "Failed"
)

// Of the reasons of other kinds, a NodeMaintenanceRollout has ReasonNoNodes, ReasonNotAuthorized
// and ReasonProgressSyncFailed.
const (
	// ReasonRolling (Progressing=True, Complete=False, Ready=False of a NodeMaintenanceRollout):
	// units run, or the next one is about to start.
	ReasonRolling = "Rolling"
	// ReasonRolloutComplete (Progressing=False, Complete=True, Ready=True of a
	// NodeMaintenanceRollout): every matching node is done, and no unit has failed.
	ReasonRolloutComplete = "Complete"
	// ReasonStopped (Progressing=False of a NodeMaintenanceRollout): the stage is Complete, but not
	// all matching nodes are done.
	ReasonStopped = "Stopped"
	// ReasonHalted (Progressing=False, Stalled=True of a NodeMaintenanceRollout): more units have
	// failed than spec.maxFailed allows, so no further unit starts; or only failed units are left.
	ReasonHalted = "Halted"
	// ReasonHeld (Progressing=False of a NodeMaintenanceRollout): a hold of spec.holds keeps units
	// from starting, or a user has paused a drain; the message names the hold and its user.
	ReasonHeld = "Held"
	// ReasonOutsideWindow (Progressing=False of a NodeMaintenanceRollout): no window is open.
	ReasonOutsideWindow = "OutsideWindow"
	// ReasonAtLimit (Progressing=False of a NodeMaintenanceRollout): a limit keeps the next unit
	// from starting, and no unit runs; the message names the nodes that are out.
	ReasonAtLimit = "AtLimit"
	// ReasonNodesBlocked (Progressing=False of a NodeMaintenanceRollout): only units that were
	// withdrawn are left. They start again later.
	ReasonNodesBlocked = "NodesBlocked"
	// ReasonNodesSkipped (Progressing=False of a NodeMaintenanceRollout): only nodes that the
	// rollout skips are left; the message names them with the reasons.
	ReasonNodesSkipped = "NodesSkipped"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/status"

// NodeMaintenanceRollout takes all matching nodes out of service and back, a few at a time. It
// creates a NodeMaintenance for each unit, which is a node, or all nodes with the same value of a
// label.
type NodeMaintenanceRollout struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata. The name has at most 63 characters.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec defines which nodes the rollout takes out of service, what happens to each, and how many
	// may be out at the same time.
	// +optional
	Spec NodeMaintenanceRolloutSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`

	// status is the observed state. Written by the Haulout server.
	// +optional
	Status NodeMaintenanceRolloutStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// NodeMaintenanceRolloutSpec is the desired state of a NodeMaintenanceRollout. All fields but
// unitKey and template can be changed until stage Complete.
type NodeMaintenanceRolloutSpec struct {
	// nodeSelector selects the nodes of the rollout, with the same limits as the selector of a
	// NodeMaintenance. Nodes join and leave by their labels. A node that was created after stage
	// Idle joins only if template.task.doneWhen is set and false for it.
	// +required
	// +k8s:required
	// +k8s:opaqueType
	NodeSelector *corev1.NodeSelector `json:"nodeSelector,omitempty" protobuf:"bytes,1,opt,name=nodeSelector"`

	// stage is the stage that the rollout has to reach: Idle, Roll or Complete. It only moves
	// forward. The default is Idle.
	// +optional
	// +default="Idle"
	// +k8s:optional
	Stage RolloutStage `json:"stage,omitempty" protobuf:"bytes,2,opt,name=stage,casttype=RolloutStage"`

	// unitKey is the key of the label whose value names the unit of a node: nodes with the same
	// value leave and return together. At most 64 nodes. A node without the label is a unit of its
	// own. If unset, every node is. Immutable.
	// +optional
	// +k8s:optional
	// +k8s:format=k8s-label-key
	UnitKey string `json:"unitKey,omitempty" protobuf:"bytes,3,opt,name=unitKey"`

	// limits define how many nodes or domains may be out of service at the same time. A unit starts
	// only if all limits allow it. maxUnavailable counts all nodes that are out, for whatever
	// reason, and maxDomains the units of this rollout. At most 8. The default is one node at a
	// time.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	// +k8s:maxItems=8
	Limits []RolloutLimit `json:"limits,omitempty" protobuf:"bytes,4,rep,name=limits"`

	// windows are the times at which units may start. If unset, they may always start. At most 16.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	// +k8s:maxItems=16
	Windows []RolloutWindow `json:"windows,omitempty" protobuf:"bytes,5,rep,name=windows"`

	// whenClosed defines what happens to running units when the last open window closes: Finish or
	// Withdraw. A unit that a worker has claimed finishes in any case. The default is Finish.
	// +optional
	// +default="Finish"
	// +k8s:optional
	WhenClosed RolloutClosedPolicy `json:"whenClosed,omitempty" protobuf:"bytes,6,opt,name=whenClosed,casttype=RolloutClosedPolicy"`

	// holds keep the rollout from starting units until all of them are removed or have ended. A
	// user who may not maintain the nodes of the rollout can add holds, and remove their own. At
	// most 16.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=name
	// +k8s:maxItems=16
	Holds []RolloutHold `json:"holds,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,7,rep,name=holds"`

	// progressDeadlineSeconds is the time in seconds after which a unit is withdrawn, to be tried
	// again later, whose drain does not move, or which has no pod left to drain and cannot be
	// offered to a worker. From 60 to 604800; the default is 3600. A drain that waits for pods to
	// complete moves.
	// +optional
	// +default=3600
	// +k8s:optional
	// +k8s:minimum=60
	// +k8s:maximum=604800
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty" protobuf:"varint,8,opt,name=progressDeadlineSeconds"`

	// soakSeconds is the time in seconds for which the nodes of a unit still count as out after
	// they have returned to service. From 0 to 86400; the default is 0.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	// +k8s:maximum=86400
	SoakSeconds int32 `json:"soakSeconds,omitempty" protobuf:"varint,9,opt,name=soakSeconds"`

	// maxFailed is the number of failed units with which the rollout continues. With one more, no
	// further unit starts. From 0 to 1000; the default is 0.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	// +k8s:maximum=1000
	MaxFailed int32 `json:"maxFailed,omitempty" protobuf:"varint,10,opt,name=maxFailed"`

	// template defines the NodeMaintenances of the units. Immutable.
	// +required
	Template RolloutTemplate `json:"template" protobuf:"bytes,11,opt,name=template"`

	// requestedBy is the user who last changed the spec, other than by changes of holds alone. The
	// server changes a node only if this user may maintain it. Set by the server; the value in a
	// client's request is ignored.
	// +optional
	// +k8s:optional
	// +k8s:opaqueType
	RequestedBy *authenticationv1.UserInfo `json:"requestedBy,omitempty" protobuf:"bytes,12,opt,name=requestedBy"`
}

// RolloutTemplate defines the NodeMaintenances of a rollout.
type RolloutTemplate struct {
	// reason describes for people why the nodes are under maintenance. At most 1024 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=1024
	Reason string `json:"reason,omitempty" protobuf:"bytes,1,opt,name=reason"`

	// drainPlan is the list of waves in which pods are asked to leave, see spec.drainPlan of
	// NodeMaintenance. The server completes it in the NodeMaintenances, not here.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	DrainPlan []DrainPlanEntry `json:"drainPlan,omitempty" protobuf:"bytes,2,rep,name=drainPlan"`

	// task is the work on each node.
	// +required
	// +k8s:required
	Task *NodeMaintenanceTask `json:"task,omitempty" protobuf:"bytes,3,opt,name=task"`
}

// RolloutLimit limits the nodes or the domains that are out of service at the same time. Exactly
// one of maxUnavailable and maxDomains is set.
type RolloutLimit struct {
	// maxUnavailable is the number of nodes that may be out, or a percentage of the matching nodes,
	// from 1% to 100%, rounded down but at least 1. With topologyKey it applies to each domain.
	// +optional
	// +k8s:optional
	// +k8s:opaqueType
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty" protobuf:"bytes,1,opt,name=maxUnavailable"`

	// maxDomains is the number of domains of topologyKey in which units of this rollout may run or
	// soak. From 1 to 100.
	// +optional
	// +k8s:optional
	// +k8s:minimum=1
	// +k8s:maximum=100
	MaxDomains *int32 `json:"maxDomains,omitempty" protobuf:"varint,2,opt,name=maxDomains"`

	// topologyKey is the key of the label whose value is the domain of a node. All nodes without
	// the label are one domain. Required with maxDomains.
	// +optional
	// +k8s:optional
	// +k8s:format=k8s-label-key
	TopologyKey string `json:"topologyKey,omitempty" protobuf:"bytes,3,opt,name=topologyKey"`
}

// RolloutWindow is a time at which units may start. Exactly one of schedule and start is set.
type RolloutWindow struct {
	// schedule is a cron expression with five fields: the times at which the window opens.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=256
	Schedule string `json:"schedule,omitempty" protobuf:"bytes,1,opt,name=schedule"`

	// start is the time at which the window opens once.
	// +optional
	// +k8s:opaqueType
	Start *metav1.Time `json:"start,omitempty" protobuf:"bytes,2,opt,name=start"`

	// duration is the time for which the window stays open, from 1m to 168h.
	// +required
	// +k8s:opaqueType
	Duration metav1.Duration `json:"duration" protobuf:"bytes,3,opt,name=duration"`

	// timeZone is the IANA name of the time zone of schedule. When the clocks change, the window
	// opens as a CronJob with this schedule would start. The default is UTC.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=64
	TimeZone string `json:"timeZone,omitempty" protobuf:"bytes,4,opt,name=timeZone"`
}

// RolloutHold keeps a rollout from starting units.
type RolloutHold struct {
	// name identifies the hold: a DNS label.
	// +required
	// +k8s:required
	// +k8s:format=k8s-short-name
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// reason describes the hold for people. At most 256 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=256
	Reason string `json:"reason,omitempty" protobuf:"bytes,2,opt,name=reason"`

	// stops defines what the hold stops: Starts or Drains. The default is Starts.
	// +optional
	// +default="Starts"
	// +k8s:optional
	Stops RolloutHoldScope `json:"stops,omitempty" protobuf:"bytes,3,opt,name=stops,casttype=RolloutHoldScope"`

	// from is the time from which the hold applies. If unset, it applies immediately.
	// +optional
	// +k8s:opaqueType
	From *metav1.Time `json:"from,omitempty" protobuf:"bytes,4,opt,name=from"`

	// until is the time until which the hold applies. If unset, it applies until it is removed.
	// +optional
	// +k8s:opaqueType
	Until *metav1.Time `json:"until,omitempty" protobuf:"bytes,5,opt,name=until"`

	// by is the name of the user who added or last changed the hold. Set by the server; the value
	// in a client's request is ignored.
	// +optional
	// +k8s:optional
	By string `json:"by,omitempty" protobuf:"bytes,6,opt,name=by"`

	// since is the time of the request that added or last changed the hold. Set by the server; the
	// value in a client's request is ignored.
	// +optional
	// +k8s:opaqueType
	Since *metav1.Time `json:"since,omitempty" protobuf:"bytes,7,opt,name=since"`
}

// NodeMaintenanceRolloutStatus is the observed state of a NodeMaintenanceRollout.
type NodeMaintenanceRolloutStatus struct {
	// observedGeneration is the metadata.generation that this status reflects.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	ObservedGeneration int64 `json:"observedGeneration,omitempty" protobuf:"varint,1,opt,name=observedGeneration"`

	// nodes counts the matching nodes by their state.
	// +optional
	Nodes RolloutNodes `json:"nodes,omitempty" protobuf:"bytes,2,opt,name=nodes"`

	// current are the units that run, soak or have failed. The server adds a unit before it creates
	// its NodeMaintenance. At most 200 units with 2000 nodes together.
	// +optional
	// +listType=map
	// +listMapKey=unit
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=unit
	// +k8s:maxItems=200
	Current []RolloutUnit `json:"current,omitempty" protobuf:"bytes,3,rep,name=current"`

	// window is the state of the windows. Unset if the rollout has none.
	// +optional
	// +k8s:optional
	Window *RolloutWindowStatus `json:"window,omitempty" protobuf:"bytes,4,opt,name=window"`

	// conditions are the conditions of the rollout: Progressing reports whether units run or start,
	// Complete whether every matching node is done and no unit has failed. Ready is for tools that
	// know no other: it is True when the stage is reached. Stalled is True while the rollout is
	// halted.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=type
	// +k8s:eachVal=+k8s:opaqueType
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,5,rep,name=conditions"`

	// newestNodeTimestamp is the metadata.creationTimestamp of the newest node in the cluster when
	// the rollout left stage Idle. Nodes that were created later are new nodes, see
	// spec.nodeSelector.
	// +optional
	// +k8s:opaqueType
	NewestNodeTimestamp *metav1.Time `json:"newestNodeTimestamp,omitempty" protobuf:"bytes,6,opt,name=newestNodeTimestamp"`
}

// RolloutNodes counts the matching nodes of a rollout. Every node has exactly one of the states
// after total.
type RolloutNodes struct {
	// total is the number of matching nodes.
	// +optional
	Total int32 `json:"total" protobuf:"varint,1,opt,name=total"`
	// done is the number of nodes that need no work any more.
	// +optional
	Done int32 `json:"done" protobuf:"varint,2,opt,name=done"`
	// waiting is the number of nodes whose unit has not started yet.
	// +optional
	Waiting int32 `json:"waiting" protobuf:"varint,3,opt,name=waiting"`
	// running is the number of nodes whose unit runs.
	// +optional
	Running int32 `json:"running" protobuf:"varint,4,opt,name=running"`
	// blocked is the number of nodes whose unit was withdrawn and is tried again later.
	// +optional
	Blocked int32 `json:"blocked" protobuf:"varint,5,opt,name=blocked"`
	// failed is the number of nodes whose unit has failed.
	// +optional
	Failed int32 `json:"failed" protobuf:"varint,6,opt,name=failed"`
	// skipped is the number of nodes that the rollout does not touch, because another user or
	// program has made them unschedulable, for example.
	// +optional
	Skipped int32 `json:"skipped" protobuf:"varint,7,opt,name=skipped"`
}

// RolloutUnit is a unit that runs, soaks or has failed.
type RolloutUnit struct {
	// unit is the name of the unit: the value of the label spec.unitKey, or the name of the node.
	// +required
	// +k8s:required
	Unit string `json:"unit" protobuf:"bytes,1,opt,name=unit"`

	// maintenance is the name of the NodeMaintenance of the unit.
	// +required
	// +k8s:required
	Maintenance string `json:"maintenance" protobuf:"bytes,2,opt,name=maintenance"`

	// nodes are the nodes of the unit, sorted by name. At most 64.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	// +k8s:maxItems=64
	Nodes []NodeReference `json:"nodes,omitempty" protobuf:"bytes,3,rep,name=nodes"`

	// phase is what happens to the unit. If its nodes differ, it is that of the node that has the
	// most work left; Failed if a node has failed.
	// +required
	// +k8s:required
	Phase RolloutPhase `json:"phase" protobuf:"bytes,4,opt,name=phase,casttype=RolloutPhase"`

	// since is the time at which the phase began.
	// +required
	// +k8s:opaqueType
	Since metav1.Time `json:"since" protobuf:"bytes,5,opt,name=since"`

	// message describes for people what the unit waits for. At most 128 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=128
	Message string `json:"message,omitempty" protobuf:"bytes,6,opt,name=message"`
}

// RolloutWindowStatus is the state of the windows of a rollout.
type RolloutWindowStatus struct {
	// open is true while units may start.
	// +optional
	Open bool `json:"open" protobuf:"varint,1,opt,name=open"`

	// until is the time at which the last open window closes or, if none is open, at which the next
	// one opens. Unset if no window opens any more.
	// +optional
	// +k8s:opaqueType
	Until *metav1.Time `json:"until,omitempty" protobuf:"bytes,2,opt,name=until"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenanceRolloutList is a list of NodeMaintenanceRollouts.
type NodeMaintenanceRolloutList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// items are the NodeMaintenanceRollouts.
	Items []NodeMaintenanceRollout `json:"items" protobuf:"bytes,2,rep,name=items"`
}
