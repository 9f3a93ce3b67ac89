/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
	// NodeMaintenanceStageIdle announces a maintenance; no node and no pod is touched.
	NodeMaintenanceStageIdle NodeMaintenanceStage = "Idle"
	// NodeMaintenanceStageCordon makes every selected node unschedulable.
	NodeMaintenanceStageCordon NodeMaintenanceStage = "Cordon"
	// NodeMaintenanceStageDrain makes every selected node unschedulable and asks its pods to leave,
	// wave by wave, with Evacuations.
	NodeMaintenanceStageDrain NodeMaintenanceStage = "Drain"
	// NodeMaintenanceStageComplete withdraws the Evacuations that are still open and makes the
	// nodes schedulable again, unless another maintenance still holds them.
	NodeMaintenanceStageComplete NodeMaintenanceStage = "Complete"
)

// PodType sorts the pods of a node by what brings them back when they go (KEP-4212, "Pod
// Selection").
// +enum
// +k8s:enum
type PodType string

const (
	// PodTypeDefault is every pod that is neither a DaemonSet pod nor a static pod.
	PodTypeDefault PodType = "Default"
	// PodTypeDaemonSet is a pod whose controller is a DaemonSet.
	PodTypeDaemonSet PodType = "DaemonSet"
	// PodTypeStatic is a static pod, seen through its mirror pod.
	PodTypeStatic PodType = "Static"
)

// NewNodesPolicy decides whether a maintenance takes nodes that are created after it left stage
// Idle.
// +enum
// +k8s:enum
type NewNodesPolicy string

const (
	// NewNodesPolicyIgnore leaves such nodes alone, though they match: an autoscaler that answers a
	// drain with new nodes of the same label would otherwise feed them to the maintenance one after
	// the other.
	NewNodesPolicyIgnore NewNodesPolicy = "Ignore"
	// NewNodesPolicyJoin takes such nodes as it takes those that were there.
	NewNodesPolicyJoin NewNodesPolicy = "Join"
)

const (
	// ConditionDrained is the condition of a NodeMaintenance that says whether all pods that its
	// plan covers have left all selected nodes (KEP-4212, "Status"). It is True only in stage
	// Drain.
	ConditionDrained = "Drained"

	// ReasonDrainComplete (Drained=True): no pod that the plan covers is left on any selected node.
	ReasonDrainComplete = "DrainComplete"
	// ReasonDrainCompleteWithPodsLeft (Drained=True): as DrainComplete, but some pods were left
	// running on purpose; the message names them.
	ReasonDrainCompleteWithPodsLeft = "DrainCompleteWithPodsLeft"
	// ReasonDrainInProgress (Drained=False): pods are leaving.
	ReasonDrainInProgress = "DrainInProgress"
	// ReasonDrainBlocked (Drained=False): no pod is able to leave; the message names the worst
	// blockers.
	ReasonDrainBlocked = "DrainBlocked"
	// ReasonNotAuthorized (Drained=False): a selected node may not be deleted by the user of
	// spec.requestedBy, so it is left alone.
	ReasonNotAuthorized = "NotAuthorized"
	// ReasonNotRequested (Drained=False): the maintenance is not in stage Drain.
	ReasonNotRequested = "NotRequested"
	// ReasonNoNodes (Drained=False): the selector matches no node.
	ReasonNoNodes = "NoNodesSelected"
	// ReasonNodeNotCordoned (Drained=False): a selected node cannot be kept unschedulable, so it is
	// outside the waves; the message names it.
	ReasonNodeNotCordoned = "NodeNotCordoned"

	// ConditionProgressing is the condition of a NodeMaintenance that reports whether it moves on.
	// The reasons are listed in the order in which they apply: the first one that holds is shown.
	ConditionProgressing = "Progressing"

	// ReasonProgressComplete (Progressing=True or, while nodes are still to be released, with the
	// message naming them): stage Complete.
	ReasonProgressComplete = "Complete"
	// ReasonProgressNotRequested (Progressing=True): the stage asks no pod to leave.
	ReasonProgressNotRequested = "NotRequested"
	// ReasonProgressDrained (Progressing=True): nothing is left to do in stage Drain.
	ReasonProgressDrained = "Drained"
	// ReasonProgressBlocked (Progressing=False): every pod that is asked to leave is blocked.
	ReasonProgressBlocked = "Blocked"
	// ReasonProgressStalled (Progressing=False): nothing has moved for longer than the server's
	// --stall-timeout.
	ReasonProgressStalled = "Stalled"
	// ReasonProgressSyncFailed (Progressing=False, or True if something else moves): a write or a
	// question fails; the message has the object, the error, and since when.
	ReasonProgressSyncFailed = "SyncFailed"
	// ReasonProgressWaiting (Progressing=True): every node waits for other nodes or for other
	// maintenances.
	ReasonProgressWaiting = "Waiting"
	// ReasonProgressDraining (Progressing=True): pods are leaving.
	ReasonProgressDraining = "Draining"

	// ConditionNodeMessagesOmitted is True while the status has no messages for single nodes,
	// because it would be too large with them.
	ConditionNodeMessagesOmitted = "NodeMessagesOmitted"
	// ReasonStatusTooLarge (NodeMessagesOmitted=True): the status would not fit into storage.
	ReasonStatusTooLarge = "StatusTooLarge"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:method=GetPreview,verb=get,subresource=preview,result=NodeMaintenancePreview
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/status"

// NodeMaintenance takes a set of nodes out of service and puts them back (KEP-4212,
// "NodeMaintenance API").
type NodeMaintenance struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec says which nodes are under maintenance, how far it has been ordered, and in which order
	// their pods leave.
	// +optional
	Spec NodeMaintenanceSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`

	// status is what has been done. Only the Haulout server writes it.
	// +optional
	Status NodeMaintenanceStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// NodeMaintenanceSpec is the wanted state of a NodeMaintenance.
type NodeMaintenanceSpec struct {
	// nodeSelector selects the nodes under maintenance. At least one term is needed and no term may
	// be empty. It may change in the stages Idle, Cordon and Drain: a node that no longer matches
	// is released, a node that matches late joins, but for new nodes (see newNodes). At most 1,000
	// requirements and 10,000 values in all.
	// +required
	// +k8s:required
	// +k8s:opaqueType
	NodeSelector *corev1.NodeSelector `json:"nodeSelector,omitempty" protobuf:"bytes,1,opt,name=nodeSelector"`

	// stage is how far the maintenance is ordered to go: Idle, Cordon, Drain or Complete. A new
	// object may start at any stage; later the stage only moves forward (Idle to any, Cordon to
	// Drain or Complete, Drain to Complete). Deleting an object that is not Idle moves it to
	// Complete. The default is Idle.
	// +optional
	// +default="Idle"
	// +k8s:optional
	Stage NodeMaintenanceStage `json:"stage,omitempty" protobuf:"bytes,2,opt,name=stage,casttype=NodeMaintenanceStage"`

	// drainPlan is the order in which pods are asked to leave in stage Drain, first entry first. An
	// entry opens when the entries before it have left every selected node. Pod types stand in the
	// order Default, DaemonSet, Static; priorities ascend within a type; at equal type and priority
	// entries with a selector stand before the one without. Duplicates are refused. Twelve entries
	// (the priorities 1000000000, 2000000000, 2000001000 and 2147483647 of each type) are added
	// where they belong. At most 100 own entries. Immutable once created.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	DrainPlan []DrainPlanEntry `json:"drainPlan,omitempty" protobuf:"bytes,3,rep,name=drainPlan"`

	// reason tells people why: it is carried into the messages of Evacuations, node conditions and
	// events. At most 1024 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=1024
	Reason string `json:"reason,omitempty" protobuf:"bytes,4,opt,name=reason"`

	// requestedBy is the user of the last request that set or changed the nodeSelector or advanced
	// the stage. Every node is authorized against this user before it is touched. It is set by the
	// server; what a client sends is dropped.
	// +optional
	// +k8s:optional
	// +k8s:opaqueType
	RequestedBy *authenticationv1.UserInfo `json:"requestedBy,omitempty" protobuf:"bytes,5,opt,name=requestedBy"`

	// newNodes decides what becomes of a node that matches and was created after the maintenance
	// left stage Idle: Ignore leaves it alone, Join takes it. Nodes that existed and are labelled
	// later always join, and so does a node that the selector names by metadata.name or by the
	// label kubernetes.io/hostname. It may change as long as nodeSelector may. The default is
	// Ignore.
	// +optional
	// +default="Ignore"
	// +k8s:optional
	NewNodes NewNodesPolicy `json:"newNodes,omitempty" protobuf:"bytes,6,opt,name=newNodes,casttype=NewNodesPolicy"`
}

// DrainPlanEntry is one wave of a drain: the pods of a type, up to a priority, that match a
// selector.
type DrainPlanEntry struct {
	// podSelector narrows the entry to pods with matching labels, so that some pods of a priority
	// can leave before the others. Absent means all pods of the type.
	// +optional
	// +k8s:optional
	// +k8s:opaqueType
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty" protobuf:"bytes,1,opt,name=podSelector"`

	// podPriority is the highest spec.priority of a pod that the entry covers; a pod without one
	// counts as 0.
	// +required
	PodPriority int32 `json:"podPriority" protobuf:"varint,2,opt,name=podPriority"`

	// podType is the type of the pods: Default, DaemonSet or Static. The default is Default.
	// +optional
	// +default="Default"
	// +k8s:optional
	PodType PodType `json:"podType,omitempty" protobuf:"bytes,3,opt,name=podType,casttype=PodType"`
}

// NodeMaintenanceStatus is the observed state of a NodeMaintenance. It is also the memory of the
// drain: after a restart the server goes on from here.
type NodeMaintenanceStatus struct {
	// observedGeneration is the metadata.generation that this status answers to.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	ObservedGeneration int64 `json:"observedGeneration,omitempty" protobuf:"varint,1,opt,name=observedGeneration"`

	// stageStatuses lists the stages that were entered, in the order they were, written by the API
	// server together with the stage itself.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	StageStatuses []StageStatus `json:"stageStatuses,omitempty" protobuf:"bytes,2,rep,name=stageStatuses"`

	// nodeStatuses has one entry for each selected node, ordered by name.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	NodeStatuses []NodeMaintenanceNodeStatus `json:"nodeStatuses,omitempty" protobuf:"bytes,3,rep,name=nodeStatuses"`

	// conditions are the conditions of the maintenance: Drained reports whether the nodes are empty
	// of pods that the plan covers, Progressing whether the maintenance moves on.
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

	// lastProgressTimestamp is when something last moved in stage Drain: a pod left, a wave opened,
	// an evacuator reported, or a pod was terminating within its grace period. Unset before stage
	// Drain.
	// +optional
	// +k8s:opaqueType
	LastProgressTimestamp *metav1.Time `json:"lastProgressTimestamp,omitempty" protobuf:"bytes,5,opt,name=lastProgressTimestamp"`

	// newestNodeTimestamp is the newest metadata.creationTimestamp of any node when the maintenance
	// left stage Idle. Nodes that were created later are new to it, see spec.newNodes.
	// +optional
	// +k8s:opaqueType
	NewestNodeTimestamp *metav1.Time `json:"newestNodeTimestamp,omitempty" protobuf:"bytes,6,opt,name=newestNodeTimestamp"`
}

// StageStatus says when a stage was entered.
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

// NodeReference names one node, for its whole life.
type NodeReference struct {
	// name of the node.
	// +required
	// +k8s:required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// uid of the node. A node that is deleted and created again under the same name is a new node.
	// +optional
	UID types.UID `json:"uid,omitempty" protobuf:"bytes,2,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
}

// NodeMaintenanceNodeStatus is the state of one node of a maintenance.
type NodeMaintenanceNodeStatus struct {
	// nodeRef identifies the node.
	// +required
	NodeRef NodeReference `json:"nodeRef" protobuf:"bytes,1,opt,name=nodeRef"`

	// drainTargets are the pods of the node that are asked to leave now: one entry for each pod
	// type and selector, with the highest priority reached. They belong to the node, not to the
	// maintenance: all maintenances that drain the node show the same. They never cover less than
	// before while the node is held.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:listType=atomic
	DrainTargets []DrainPlanEntry `json:"drainTargets,omitempty" protobuf:"bytes,2,rep,name=drainTargets"`

	// drainMessage says what the drain of this node does or waits for. At most 128 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=128
	DrainMessage string `json:"drainMessage,omitempty" protobuf:"bytes,3,opt,name=drainMessage"`

	// podsPendingEvacuation counts the pods of the node that the plan covers and that have no
	// Evacuation yet.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsPendingEvacuation int32 `json:"podsPendingEvacuation" protobuf:"varint,4,opt,name=podsPendingEvacuation"`

	// podsEvacuating counts the pods of the node that have an Evacuation.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsEvacuating int32 `json:"podsEvacuating" protobuf:"varint,5,opt,name=podsEvacuating"`

	// podsBlocked counts the pods that are asked to leave and cannot: their Evacuation has the
	// condition Blocked, or no Evacuation could be created for them twice.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsBlocked int32 `json:"podsBlocked,omitempty" protobuf:"varint,6,opt,name=podsBlocked"`

	// podsKept counts the pods that are kept running on purpose: DaemonSet pods that would come
	// straight back or whose budget stays closed, static pods of a node that has no agent, and pods
	// of this server that came back.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsKept int32 `json:"podsKept,omitempty" protobuf:"varint,7,opt,name=podsKept"`

	// podsPeak is the most pods that were pending and evacuating on the node at one time since the
	// drain began. What is missing of it now has left, also when the Evacuations that tell of it
	// are gone. 0 before the drain.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	PodsPeak int32 `json:"podsPeak,omitempty" protobuf:"varint,8,opt,name=podsPeak"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenanceList is a list of NodeMaintenances.
type NodeMaintenanceList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// items are the maintenances.
	Items []NodeMaintenance `json:"items" protobuf:"bytes,2,rep,name=items"`
}
