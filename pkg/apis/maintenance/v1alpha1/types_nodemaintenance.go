// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeMaintenanceStage is a step of a maintenance. The order is Idle, Cordon, Drain, Complete
// (KEP-4212, "NodeMaintenance API").
// +enum
// +k8s:enum
type NodeMaintenanceStage string

const (
	// NodeMaintenanceStageIdle announces a maintenance. Nodes and pods are not changed.
	NodeMaintenanceStageIdle NodeMaintenanceStage = "Idle"
	// NodeMaintenanceStageCordon makes every selected node unschedulable.
	NodeMaintenanceStageCordon NodeMaintenanceStage = "Cordon"
	// NodeMaintenanceStageDrain makes every selected node unschedulable and creates Evacuations for
	// its pods, wave by wave.
	NodeMaintenanceStageDrain NodeMaintenanceStage = "Drain"
	// NodeMaintenanceStageComplete withdraws the remaining Evacuations and makes the nodes
	// schedulable again, unless another maintenance still holds them.
	NodeMaintenanceStageComplete NodeMaintenanceStage = "Complete"
)

// NodeStatusReason is the reason why the drain of a node differs from that of the other nodes.
// +enum
// +k8s:enum
type NodeStatusReason string

const (
	// NodeStatusNotAuthorized means that the requester may not maintain the node. It is neither
	// cordoned nor drained. If the requester has lost the right, or the node has another pool,
	// since the maintenance took the node, the node stays cordoned and no further pod is evacuated.
	NodeStatusNotAuthorized NodeStatusReason = "NotAuthorized"
	// NodeStatusTooManyMaintenances means that the maximum number of other maintenances holds the
	// node. This maintenance holds it after one of them has ended.
	NodeStatusTooManyMaintenances NodeStatusReason = "TooManyMaintenances"
	// NodeStatusNotCordoned means that the node is not cordoned, or that the server has not checked
	// yet whether the requester may maintain it. Its pods are not evacuated.
	NodeStatusNotCordoned NodeStatusReason = "NotCordoned"
	// NodeStatusFastForwarded means that another maintenance has drained the node further than the
	// plan of this one allows. The pods of the node are evacuated nevertheless.
	NodeStatusFastForwarded NodeStatusReason = "FastForwarded"
	// NodeStatusNodeTaskInProgress means that a worker has the node for another maintenance. Its
	// pods are not evacuated before that maintenance has released it.
	NodeStatusNodeTaskInProgress NodeStatusReason = "NodeTaskInProgress"
	// NodeStatusReleasing means that the maintenance no longer holds the node, but the server has
	// not released it yet.
	NodeStatusReleasing NodeStatusReason = "Releasing"
	// NodeStatusNotReleased means that the server cannot release a node that the maintenance no
	// longer holds.
	NodeStatusNotReleased NodeStatusReason = "NotReleased"
	// NodeStatusGone means that the node no longer exists. It joins again if it is registered under
	// the same name.
	NodeStatusGone NodeStatusReason = "NodeGone"
)

// NewNodesPolicy defines whether a maintenance takes matching nodes that are created after it left
// stage Idle.
// +enum
// +k8s:enum
type NewNodesPolicy string

const (
	// NewNodesPolicyIgnore ignores such nodes. Otherwise the maintenance would also drain, one
	// after the other, the nodes with the same labels that an autoscaler creates in response to the
	// drain.
	NewNodesPolicyIgnore NewNodesPolicy = "Ignore"
	// NewNodesPolicyJoin treats such nodes like nodes that existed before.
	NewNodesPolicyJoin NewNodesPolicy = "Join"
)

// ExcludedNodePolicy defines what the waves of a drain do while a selected node is excluded.
// +enum
// +k8s:enum
type ExcludedNodePolicy string

const (
	// ExcludedNodeContinue opens the next waves on the other nodes although an excluded node still
	// has pods of earlier waves, so that one broken node does not stop the drain of all others.
	ExcludedNodeContinue ExcludedNodePolicy = "Continue"
	// ExcludedNodeWait opens the next wave only when the pods of all earlier waves have left the
	// excluded nodes as well. No pod of these nodes is asked to leave.
	ExcludedNodeWait ExcludedNodePolicy = "Wait"
)

const (
	// ConditionDrained is the condition of a NodeMaintenance that reports whether all pods that its
	// plan covers have left all selected nodes (KEP-4212, "Status"). It is True only in stage
	// Drain.
	ConditionDrained = "Drained"

	// ReasonDrainComplete (Drained=True): no pod that the plan covers is left on any selected node.
	ReasonDrainComplete = "DrainComplete"
	// ReasonDrainCompleteWithPodsLeft (Drained=True): like DrainComplete, but some pods were kept
	// running on purpose; the message names them.
	ReasonDrainCompleteWithPodsLeft = "DrainCompleteWithPodsLeft"
	// ReasonDrainInProgress (Drained=False): pods are leaving.
	ReasonDrainInProgress = "DrainInProgress"
	// ReasonDrainBlocked (Drained=False): every pod that should leave now is blocked; the message
	// names the worst blockers.
	ReasonDrainBlocked = "DrainBlocked"
	// ReasonNotAuthorized (Drained=False): the user in spec.requestedBy is not allowed to maintain
	// a selected node, which is therefore neither cordoned nor drained.
	ReasonNotAuthorized = "NotAuthorized"
	// ReasonNotRequested (Drained=False): the maintenance is not in stage Drain.
	ReasonNotRequested = "NotRequested"
	// ReasonNoNodes (Drained=False, Ready=False, Progressing=True): the selector matches no node.
	ReasonNoNodes = "NoNodesSelected"
	// ReasonNodeNotCordoned (Drained=False): the server cannot keep a selected node unschedulable,
	// and excludes it from the waves; the message names it.
	ReasonNodeNotCordoned = "NodeNotCordoned"
	// ReasonTooManyMaintenances (Drained=False): the maximum number of other maintenances holds a
	// selected node, so this one does not hold it; the message names it.
	ReasonTooManyMaintenances = "TooManyMaintenances"
	// ReasonNodeTaskInProgress (Drained=False): a worker works on a selected node for another
	// maintenance, so no pod of the node is asked to leave; the message names node and worker.
	ReasonNodeTaskInProgress = "NodeTaskInProgress"

	// ConditionProgressing is the condition of a NodeMaintenance that reports whether the
	// maintenance makes progress. The reasons are listed in their order of precedence: the
	// condition has the first one that applies.
	ConditionProgressing = "Progressing"

	// ReasonProgressComplete (Progressing=True or, if a node cannot be released, False): the stage
	// is Complete; the message reports how many nodes still have to be released.
	ReasonProgressComplete = "Complete"
	// ReasonProgressNotRequested (Progressing=True): the drain is not requested in this stage.
	ReasonProgressNotRequested = "NotRequested"
	// ReasonProgressDrained (Progressing=True): no pod is left to evacuate in stage Drain.
	ReasonProgressDrained = "Drained"
	// ReasonProgressBlocked (Progressing=False): every pod that should leave now is blocked.
	ReasonProgressBlocked = "Blocked"
	// ReasonProgressStalled (Progressing=False): the maintenance has made no progress for longer
	// than the server's --stall-timeout.
	ReasonProgressStalled = "Stalled"
	// ReasonProgressSyncFailed (Progressing=False, or True if other nodes make progress): a request
	// to the API fails; the message has the object, the error and the time of the first failure. Of
	// a NodeMaintenanceRollout: the server cannot decide about it.
	ReasonProgressSyncFailed = "SyncFailed"
	// ReasonProgressWaitingForCompletion (Progressing=True): only pods are left that the plan lets
	// complete; the message has their number.
	ReasonProgressWaitingForCompletion = "WaitingForCompletion"
	// ReasonProgressWaiting (Progressing=True): no pod is asked to leave; every node waits for
	// other nodes, for other maintenances or for a cordon.
	ReasonProgressWaiting = "Waiting"
	// ReasonProgressDraining (Progressing=True): pods are leaving.
	ReasonProgressDraining = "Draining"

	// ReasonPaused (Progressing=False, Drained=False): spec.paused stops the drain; the message
	// names the user who paused it. It comes after Drained and before Blocked. An Evacuation that
	// only paused maintenances request has it in the condition Blocked, which is False.
	ReasonPaused = "Paused"

	// ConditionReady is the condition of all kinds but NodeTask, for tools that know no other, such
	// as Flux, Helm and `kubectl wait`. A NodeMaintenance is ready when its stage is reached: Idle
	// immediately, Cordon when all nodes are cordoned, Drain when they are drained, Complete when
	// they are released. An Evacuation is ready when its pod is gone or has terminated. A
	// NodeMaintenanceRollout is ready in stage Idle immediately, in stage Roll when every matching
	// node is done, and in stage Complete when no unit runs.
	ConditionReady = "Ready"
	// ConditionStalled is True on a NodeMaintenance while Progressing is False with the reason
	// Stalled, on an Evacuation that was cancelled, and on a NodeMaintenanceRollout that is halted.
	// Such tools report a failure then.
	ConditionStalled = "Stalled"
	// ReasonNotObserved (Ready=Unknown): the server has not written the status since the creation
	// of the object.
	ReasonNotObserved = "NotObserved"
	// ReasonIdle (Ready=True): the maintenance is announced. Stage Idle changes nothing.
	ReasonIdle = "Idle"
	// ReasonCordoned (Ready=True): all nodes are cordoned, in stage Cordon.
	ReasonCordoned = "Cordoned"
	// ReasonCordoning (Ready=False): some nodes are not cordoned yet, in stage Cordon.
	ReasonCordoning = "Cordoning"

	// ConditionNodeMessagesOmitted is True while the status has no messages for individual nodes,
	// because it would be too large with them.
	ConditionNodeMessagesOmitted = "NodeMessagesOmitted"
	// ReasonStatusTooLarge (NodeMessagesOmitted=True): the status would exceed the size limit of
	// the storage.
	ReasonStatusTooLarge = "StatusTooLarge"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:method=GetPreview,verb=get,subresource=preview,result=NodeMaintenancePreview
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/status"

// NodeMaintenance takes a set of nodes out of service and returns them to service (KEP-4212,
// "NodeMaintenance API").
type NodeMaintenance struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec defines which nodes are under maintenance, the stage to reach, and the order in which
	// the pods leave.
	// +optional
	Spec NodeMaintenanceSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`

	// status is the observed state. Written by the Haulout server.
	// +optional
	Status NodeMaintenanceStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// NodeMaintenanceSpec is the desired state of a NodeMaintenance.
type NodeMaintenanceSpec struct {
	// nodeSelector selects the nodes under maintenance. At least one term is required and no term
	// may be empty. It can be changed in the stages Idle, Cordon and Drain: a node that no longer
	// matches is released, and a node that starts to match joins, except for new nodes (see
	// newNodes). At most 1,000 requirements and 10,000 values in total, and 50 terms that are tried
	// on every node: those without a requirement with In, Exists, Gt or Lt, and the eleventh and
	// further ones that the same name or label finds.
	// +required
	// +k8s:required
	// +k8s:opaqueType
	NodeSelector *corev1.NodeSelector `json:"nodeSelector,omitempty" protobuf:"bytes,1,opt,name=nodeSelector"`

	// stage is the stage that the maintenance has to reach: Idle, Cordon, Drain or Complete. A new
	// object can start at any stage; after that the stage only moves forward (Idle to any, Cordon
	// to Drain or Complete, Drain to Complete). Deleting an object that is not Idle moves it to
	// Complete. The default is Idle.
	// +optional
	// +default="Idle"
	// +k8s:optional
	Stage NodeMaintenanceStage `json:"stage,omitempty" protobuf:"bytes,2,opt,name=stage,casttype=NodeMaintenanceStage"`

	// drainPlan is the list of waves in which pods are asked to leave in stage Drain, first entry
	// first. The wave of an entry opens when the pods of all earlier entries have left every
	// selected node. The order of pod types is Default, DaemonSet, Static. Within a type,
	// priorities ascend. With the same type and priority, entries with a selector come before the
	// entry without one. Duplicates are refused. The server adds twelve entries (the priorities
	// 1000000000, 2000000000, 2000001000 and 2147483647 of each type) in their places. At most 100
	// other entries. Immutable.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	DrainPlan []DrainPlanEntry `json:"drainPlan,omitempty" protobuf:"bytes,3,rep,name=drainPlan"`

	// reason describes for people why the nodes are under maintenance. The messages of Evacuations,
	// node conditions and events repeat it. At most 1024 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=1024
	Reason string `json:"reason,omitempty" protobuf:"bytes,4,opt,name=reason"`

	// requestedBy is the user who last set or changed the nodeSelector or advanced the stage. The
	// server changes a node only if this user may maintain it. Set by the server; the value in a
	// client's request is ignored.
	// +optional
	// +k8s:optional
	// +k8s:opaqueType
	RequestedBy *authenticationv1.UserInfo `json:"requestedBy,omitempty" protobuf:"bytes,5,opt,name=requestedBy"`

	// newNodes defines whether a matching node that was created after the maintenance left stage
	// Idle joins the maintenance: Ignore or Join. A node that existed before and starts to match
	// always joins, and so does a node that the selector names by metadata.name or by the label
	// kubernetes.io/hostname. It can be changed as long as nodeSelector can. The default is Ignore.
	// +optional
	// +default="Ignore"
	// +k8s:optional
	NewNodes NewNodesPolicy `json:"newNodes,omitempty" protobuf:"bytes,6,opt,name=newNodes,casttype=NewNodesPolicy"`

	// paused stops the drain, in any stage before Complete: the server creates no Evacuation and
	// sends no eviction for this maintenance. It withdraws the Evacuations whose evacuator has not
	// begun. Nodes stay cordoned. In the stages Idle and Cordon it has no effect before stage Drain
	// begins, except that the server offers no node to a worker, and withdraws the offers of nodes
	// that no worker has. It can be changed until stage Complete, by the users who may change the
	// stage.
	// +optional
	// +k8s:optional
	Paused bool `json:"paused,omitempty" protobuf:"varint,7,opt,name=paused"`

	// onExcludedNode defines whether the waves wait for the pods of a selected node that the server
	// cannot drain, because the requester may not maintain it, too many other maintenances hold it,
	// or it cannot be kept unschedulable: Continue or Wait. With Continue, pods of later waves
	// leave the other nodes although pods of earlier waves are left on the excluded node. With
	// Wait, they stay. In both cases the condition Drained is False. It can be changed until stage
	// Complete. Unset means Continue.
	// +optional
	// +k8s:optional
	OnExcludedNode ExcludedNodePolicy `json:"onExcludedNode,omitempty" protobuf:"bytes,8,opt,name=onExcludedNode,casttype=ExcludedNodePolicy"`

	// task is the work on each node, for which the server offers the nodes to workers. When it is
	// done on all nodes, a rollout completes the maintenance; one that a user has made is completed
	// by a user. If unset, users also do the work. Immutable.
	// +optional
	// +k8s:optional
	Task *NodeMaintenanceTask `json:"task,omitempty" protobuf:"bytes,9,opt,name=task"`
}

// NodeMaintenanceStatus is the observed state of a NodeMaintenance. It also stores the progress of
// the drain: after a restart the server continues from here.
type NodeMaintenanceStatus struct {
	// observedGeneration is the metadata.generation that this status reflects.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	ObservedGeneration int64 `json:"observedGeneration,omitempty" protobuf:"varint,1,opt,name=observedGeneration"`

	// stageStatuses lists the stages that were entered, in order. The server adds an entry in the
	// request that changes the stage.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	// +k8s:unique=map
	// +k8s:listMapKey=name
	StageStatuses []StageStatus `json:"stageStatuses,omitempty" protobuf:"bytes,2,rep,name=stageStatuses"`

	// nodeStatuses has one entry for each selected node, sorted by name.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	NodeStatuses []NodeMaintenanceNodeStatus `json:"nodeStatuses,omitempty" protobuf:"bytes,3,rep,name=nodeStatuses"`

	// conditions are the conditions of the maintenance: Drained reports whether the nodes are empty
	// of pods that the plan covers, Progressing reports whether the maintenance makes progress.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=type
	// +k8s:eachVal=+k8s:opaqueType
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,4,rep,name=conditions"`

	// lastProgressTimestamp is the time of the last progress in stage Drain: more pods than ever
	// before have left a node, or are about to because an evacuator reported or a pod was
	// terminating within its grace period, of which at most --long-grace counts; a wave opened; or
	// nodes came or went. The end of a pause counts as progress in every stage. Unset before stage
	// Drain otherwise.
	// +optional
	// +k8s:opaqueType
	LastProgressTimestamp *metav1.Time `json:"lastProgressTimestamp,omitempty" protobuf:"bytes,5,opt,name=lastProgressTimestamp"`

	// newestNodeTimestamp is the metadata.creationTimestamp of the newest node in the cluster when
	// the maintenance left stage Idle. Nodes that were created later are new nodes, see
	// spec.newNodes.
	// +optional
	// +k8s:opaqueType
	NewestNodeTimestamp *metav1.Time `json:"newestNodeTimestamp,omitempty" protobuf:"bytes,6,opt,name=newestNodeTimestamp"`

	// waves has one element for each entry of spec.drainPlan that has or had pods on the nodes
	// since the drain began, in the order of the entries. It is written with the counters of the
	// nodes and stays after stage Drain. At most 112.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	// +k8s:maxItems=112
	Waves []NodeMaintenanceWave `json:"waves,omitempty" protobuf:"bytes,7,rep,name=waves"`

	// nodes is the number of nodes of the maintenance. After stage Complete has begun, it is their
	// number at that time.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	Nodes int32 `json:"nodes,omitempty" protobuf:"varint,8,opt,name=nodes"`

	// podsGone is the number of pods that have left the nodes since the drain began. A pod that
	// comes back no longer counts, so the number may decrease. It stays after stage Drain.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsGone int32 `json:"podsGone,omitempty" protobuf:"varint,9,opt,name=podsGone"`

	// pause is who set spec.paused, and when. The server writes it in the request that sets
	// spec.paused, and removes it in the one that clears it.
	// +optional
	// +k8s:optional
	Pause *NodeMaintenancePause `json:"pause,omitempty" protobuf:"bytes,10,opt,name=pause"`

	// pools are the pools through which the maintenance has taken its nodes, sorted by name, each
	// of them once: nodeStatuses[].poolIndex refers to them. At most 63 bytes each.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	// +k8s:unique=set
	// +k8s:eachVal=+k8s:maxBytes=63
	Pools []string `json:"pools,omitempty" protobuf:"bytes,11,rep,name=pools"`
}

// NodeMaintenancePause describes who has paused a drain.
type NodeMaintenancePause struct {
	// by is the name of the user who set spec.paused. At most 1024 bytes, cut if it is longer.
	// +required
	// +k8s:required
	// +k8s:maxBytes=1024
	By string `json:"by" protobuf:"bytes,1,opt,name=by"`

	// since is the time of the request that set spec.paused.
	// +required
	// +k8s:opaqueType
	Since metav1.Time `json:"since" protobuf:"bytes,2,opt,name=since"`
}

// NodeMaintenanceWave is the progress of an entry of the drain plan.
type NodeMaintenanceWave struct {
	// entry is the index of the entry in spec.drainPlan, starting at 0.
	// +required
	Entry int32 `json:"entry" protobuf:"varint,1,opt,name=entry"`

	// podsPeak is the highest number of pods of the entry that were on the nodes at one time since
	// the drain began. podsPeak minus podsLeft is the number of pods that have left.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsPeak int32 `json:"podsPeak" protobuf:"varint,2,opt,name=podsPeak"`

	// podsLeft is the number of pods of the entry that have not left.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsLeft int32 `json:"podsLeft" protobuf:"varint,3,opt,name=podsLeft"`

	// startTime is the time at which the evacuation of the entry's pods began, or the wait for
	// their completion. Unset before.
	// +optional
	// +k8s:opaqueType
	StartTime *metav1.Time `json:"startTime,omitempty" protobuf:"bytes,4,opt,name=startTime"`

	// endTime is the time at which the last pod of the entry had left. Unset while pods are left.
	// +optional
	// +k8s:opaqueType
	EndTime *metav1.Time `json:"endTime,omitempty" protobuf:"bytes,5,opt,name=endTime"`
}

// StageStatus records when a stage was entered.
type StageStatus struct {
	// name is the stage.
	// +required
	// +k8s:required
	Name NodeMaintenanceStage `json:"name" protobuf:"bytes,1,opt,name=name,casttype=NodeMaintenanceStage"`

	// startTimestamp is the time of the request that entered the stage.
	// +optional
	// +k8s:opaqueType
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty" protobuf:"bytes,2,opt,name=startTimestamp"`
}

// NodeReference identifies one node.
type NodeReference struct {
	// name of the node.
	// +required
	// +k8s:required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// uid of the node. A node that is recreated with the same name is a different node.
	// +optional
	UID types.UID `json:"uid,omitempty" protobuf:"bytes,2,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
}

// NodeMaintenanceNodeStatus is the state of one node of a maintenance.
type NodeMaintenanceNodeStatus struct {
	// nodeRef identifies the node.
	// +required
	NodeRef NodeReference `json:"nodeRef" protobuf:"bytes,1,opt,name=nodeRef"`

	// drainTargets select the pods of the node that are asked to leave now: one entry for each pod
	// type and selector, with the highest priority reached. They are a property of the node: all
	// maintenances that drain the node have the same targets. While a maintenance holds the node,
	// the targets never cover fewer pods than before.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	DrainTargets []DrainPlanEntry `json:"drainTargets,omitempty" protobuf:"bytes,2,rep,name=drainTargets"`

	// drainMessage describes what the drain of this node does or waits for. At most 128 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=128
	DrainMessage string `json:"drainMessage,omitempty" protobuf:"bytes,3,opt,name=drainMessage"`

	// podsPendingEvacuation is the number of pods on the node that the plan covers and that have no
	// Evacuation yet.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsPendingEvacuation int32 `json:"podsPendingEvacuation" protobuf:"varint,4,opt,name=podsPendingEvacuation"`

	// podsEvacuating is the number of pods on the node that have an Evacuation.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsEvacuating int32 `json:"podsEvacuating" protobuf:"varint,5,opt,name=podsEvacuating"`

	// podsBlocked is the number of pods that should leave but cannot: their Evacuation has the
	// condition Blocked, or the server failed twice to create their Evacuation.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsBlocked int32 `json:"podsBlocked,omitempty" protobuf:"varint,6,opt,name=podsBlocked"`

	// podsKept is the number of pods that are kept running on purpose: DaemonSet pods that would be
	// recreated immediately or whose budget allows no disruption, static pods of a node without a
	// node agent, pods that the plan skips, and pods of this server that were recreated on the
	// node.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsKept int32 `json:"podsKept,omitempty" protobuf:"varint,7,opt,name=podsKept"`

	// podsPeak is the highest sum of podsPendingEvacuation and podsEvacuating since the drain of
	// the node began. podsPeak minus the current sum is the number of pods that have left, even
	// after their Evacuations were deleted. 0 before the drain.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsPeak int32 `json:"podsPeak,omitempty" protobuf:"varint,8,opt,name=podsPeak"`

	// podsGonePeak is the highest number of pods that had left the node at one time, which is
	// podsPeak minus podsPendingEvacuation minus podsEvacuating, since drainTargets of the node
	// last changed. Only a higher number counts as progress of the drain: a pod that leaves the
	// node and is recreated on it does not count. 0 before the drain.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsGonePeak int32 `json:"podsGonePeak,omitempty" protobuf:"varint,9,opt,name=podsGonePeak"`

	// reason is the reason why the drain of the node differs from that of the other nodes, for
	// programs: drainMessage is for people and is omitted if the status becomes too large. It is
	// empty in stage Idle, and if the drain of the node does not differ: NotAuthorized,
	// TooManyMaintenances, NotCordoned, FastForwarded, NodeTaskInProgress, Releasing, NotReleased
	// or NodeGone.
	// +optional
	// +k8s:optional
	Reason NodeStatusReason `json:"reason,omitempty" protobuf:"bytes,10,opt,name=reason,casttype=NodeStatusReason"`

	// Field 11 and the name pool cannot be used again: earlier servers store a string in them, and
	// later ones an int32.
	// Pool string `json:"pool,omitempty" protobuf:"bytes,11,opt,name=pool"`

	// podsWaiting is the number of pods on the node that the plan lets complete (WaitCompleted).
	// podsPendingEvacuation counts them too. Unset if there are none.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsWaiting *int32 `json:"podsWaiting,omitempty" protobuf:"varint,12,opt,name=podsWaiting"`

	// task is the state of the work on the node, with spec.task. It stays after stage Complete.
	// +optional
	// +k8s:optional
	Task *NodeMaintenanceNodeTask `json:"task,omitempty" protobuf:"bytes,13,opt,name=task"`

	// poolIndex is the index in status.pools of the value of the node's pool label (--pool-label of
	// the server) when the maintenance took the node, starting at 0. It is set if the right of the
	// requester to maintain the node came from this pool. The right to this pool is sufficient to
	// release the node, even if the node has another pool now.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PoolIndex *int32 `json:"poolIndex,omitempty" protobuf:"varint,14,opt,name=poolIndex"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenanceList is a list of NodeMaintenances.
type NodeMaintenanceList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// items are the NodeMaintenances.
	Items []NodeMaintenance `json:"items" protobuf:"bytes,2,rep,name=items"`
}
