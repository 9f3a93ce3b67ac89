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

package maintenance

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeMaintenanceStage is a step of a maintenance. The order is Idle, Cordon, Drain, Complete
// (KEP-4212, "NodeMaintenance API").
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
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenance takes a set of nodes out of service and puts them back (KEP-4212,
// "NodeMaintenance API").
type NodeMaintenance struct {
	metav1.TypeMeta
	// metadata is the standard object metadata.
	metav1.ObjectMeta

	// spec says which nodes are under maintenance, how far it has been ordered, and in which order
	// their pods leave.
	Spec NodeMaintenanceSpec

	// status is what has been done. Only the Haulout server writes it.
	Status NodeMaintenanceStatus
}

// NodeMaintenanceSpec is the wanted state of a NodeMaintenance.
type NodeMaintenanceSpec struct {
	// nodeSelector selects the nodes under maintenance. At least one term is needed and no term may
	// be empty. It may change in the stages Idle, Cordon and Drain: a node that no longer matches
	// is released, a node that matches late joins, but for new nodes (see newNodes). At most 1,000
	// requirements and 10,000 values in all.
	NodeSelector *corev1.NodeSelector

	// stage is how far the maintenance is ordered to go: Idle, Cordon, Drain or Complete. A new
	// object may start at any stage; later the stage only moves forward (Idle to any, Cordon to
	// Drain or Complete, Drain to Complete). Deleting an object that is not Idle moves it to
	// Complete. The default is Idle.
	Stage NodeMaintenanceStage

	// drainPlan is the order in which pods are asked to leave in stage Drain, first entry first. An
	// entry opens when the entries before it have left every selected node. Pod types stand in the
	// order Default, DaemonSet, Static; priorities ascend within a type; at equal type and priority
	// entries with a selector stand before the one without. Duplicates are refused. Twelve entries
	// (the priorities 1000000000, 2000000000, 2000001000 and 2147483647 of each type) are added
	// where they belong. At most 100 own entries. Immutable once created.
	DrainPlan []DrainPlanEntry

	// reason tells people why: it is carried into the messages of Evacuations, node conditions and
	// events. At most 1024 bytes.
	Reason string

	// requestedBy is the user of the last request that set or changed the nodeSelector or advanced
	// the stage. Every node is authorized against this user before it is touched. It is set by the
	// server; what a client sends is dropped.
	RequestedBy *authenticationv1.UserInfo

	// newNodes decides what becomes of a node that matches and was created after the maintenance
	// left stage Idle: Ignore leaves it alone, Join takes it. Nodes that existed and are labelled
	// later always join, and so does a node that the selector names by metadata.name or by the
	// label kubernetes.io/hostname. It may change as long as nodeSelector may. The default is
	// Ignore.
	NewNodes NewNodesPolicy
}

// DrainPlanEntry is one wave of a drain: the pods of a type, up to a priority, that match a
// selector.
type DrainPlanEntry struct {
	// podSelector narrows the entry to pods with matching labels, so that some pods of a priority
	// can leave before the others. Absent means all pods of the type.
	PodSelector *metav1.LabelSelector

	// podPriority is the highest spec.priority of a pod that the entry covers; a pod without one
	// counts as 0.
	PodPriority int32

	// podType is the type of the pods: Default, DaemonSet or Static. The default is Default.
	PodType PodType
}

// NodeMaintenanceStatus is the observed state of a NodeMaintenance. It is also the memory of the
// drain: after a restart the server goes on from here.
type NodeMaintenanceStatus struct {
	// observedGeneration is the metadata.generation that this status answers to.
	ObservedGeneration int64

	// stageStatuses lists the stages that were entered, in the order they were, written by the API
	// server together with the stage itself.
	StageStatuses []StageStatus

	// nodeStatuses has one entry for each selected node, ordered by name.
	NodeStatuses []NodeMaintenanceNodeStatus

	// conditions are the conditions of the maintenance: Drained reports whether the nodes are empty
	// of pods that the plan covers, Progressing whether the maintenance moves on.
	Conditions []metav1.Condition

	// lastProgressTimestamp is when something last moved in stage Drain: a pod left, a wave opened,
	// an evacuator reported, or a pod was terminating within its grace period. Unset before stage
	// Drain.
	LastProgressTimestamp *metav1.Time

	// newestNodeTimestamp is the newest metadata.creationTimestamp of any node when the maintenance
	// left stage Idle. Nodes that were created later are new to it, see spec.newNodes.
	NewestNodeTimestamp *metav1.Time
}

// StageStatus says when a stage was entered.
type StageStatus struct {
	// name is the stage.
	Name NodeMaintenanceStage

	// startTimestamp is the time of the request that entered the stage.
	StartTimestamp *metav1.Time
}

// NodeReference names one node, for its whole life.
type NodeReference struct {
	// name of the node.
	Name string

	// uid of the node. A node that is deleted and created again under the same name is a new node.
	UID types.UID
}

// NodeMaintenanceNodeStatus is the state of one node of a maintenance.
type NodeMaintenanceNodeStatus struct {
	// nodeRef identifies the node.
	NodeRef NodeReference

	// drainTargets are the pods of the node that are asked to leave now: one entry for each pod
	// type and selector, with the highest priority reached. They belong to the node, not to the
	// maintenance: all maintenances that drain the node show the same. They never cover less than
	// before while the node is held.
	DrainTargets []DrainPlanEntry

	// drainMessage says what the drain of this node does or waits for. At most 128 bytes.
	DrainMessage string

	// podsPendingEvacuation counts the pods of the node that the plan covers and that have no
	// Evacuation yet.
	PodsPendingEvacuation int32

	// podsEvacuating counts the pods of the node that have an Evacuation.
	PodsEvacuating int32

	// podsBlocked counts the pods that are asked to leave and cannot: their Evacuation has the
	// condition Blocked, or no Evacuation could be created for them twice.
	PodsBlocked int32

	// podsKept counts the pods that are kept running on purpose: DaemonSet pods that would come
	// straight back or whose budget stays closed, static pods of a node that has no agent, and pods
	// of this server that came back.
	PodsKept int32

	// podsPeak is the most pods that were pending and evacuating on the node at one time since the
	// drain began. What is missing of it now has left, also when the Evacuations that tell of it
	// are gone. 0 before the drain.
	PodsPeak int32
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenanceList is a list of NodeMaintenances.
type NodeMaintenanceList struct {
	metav1.TypeMeta
	// metadata is the standard list metadata.
	metav1.ListMeta

	// items are the maintenances.
	Items []NodeMaintenance
}
