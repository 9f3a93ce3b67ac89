// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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

// PodType classifies the pods of a node by what recreates them when they leave (KEP-4212, "Pod
// Selection").
type PodType string

const (
	// PodTypeDefault is every pod that is neither a DaemonSet pod nor a static pod.
	PodTypeDefault PodType = "Default"
	// PodTypeDaemonSet is a pod whose controller is a DaemonSet.
	PodTypeDaemonSet PodType = "DaemonSet"
	// PodTypeStatic is a static pod, which the API shows as a mirror pod.
	PodTypeStatic PodType = "Static"
)

// NewNodesPolicy defines whether a maintenance takes matching nodes that are created after it left
// stage Idle.
type NewNodesPolicy string

const (
	// NewNodesPolicyIgnore ignores such nodes. Otherwise the maintenance would also drain, one
	// after the other, the nodes with the same labels that an autoscaler creates in response to the
	// drain.
	NewNodesPolicyIgnore NewNodesPolicy = "Ignore"
	// NewNodesPolicyJoin treats such nodes like nodes that existed before.
	NewNodesPolicyJoin NewNodesPolicy = "Join"
)

const (
	// ConditionDrained is the condition of a NodeMaintenance that reports whether all pods that its
	// plan covers have left all selected nodes (KEP-4212, "Status"). It is True only in stage
	// Drain.
	ConditionDrained = "Drained"

	// ReasonDrainInProgress (Drained=False): pods are leaving.
	ReasonDrainInProgress = "DrainInProgress"

	// ConditionProgressing is the condition of a NodeMaintenance that reports whether the
	// maintenance makes progress.
	ConditionProgressing = "Progressing"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenance takes a set of nodes out of service and returns them to service (KEP-4212,
// "NodeMaintenance API").
type NodeMaintenance struct {
	metav1.TypeMeta
	// metadata is the standard object metadata.
	metav1.ObjectMeta

	Spec NodeMaintenanceSpec

	Status NodeMaintenanceStatus
}

// NodeMaintenanceSpec is the desired state of a NodeMaintenance.
type NodeMaintenanceSpec struct {
	NodeSelector *corev1.NodeSelector
	Stage        NodeMaintenanceStage
	DrainPlan    []DrainPlanEntry
	Reason       string
	RequestedBy  *authenticationv1.UserInfo
	NewNodes     NewNodesPolicy
}

// NodeStatusReason is the reason why the drain of a node differs from that of the other nodes.
type NodeStatusReason string

const (
	// NodeStatusNotAuthorized means that the requester may not delete the node.
	NodeStatusNotAuthorized NodeStatusReason = "NotAuthorized"
	// NodeStatusTooManyMaintenances means that the maximum number of other maintenances holds the
	// node.
	NodeStatusTooManyMaintenances NodeStatusReason = "TooManyMaintenances"
	// NodeStatusNotCordoned means that the node is not cordoned.
	NodeStatusNotCordoned NodeStatusReason = "NotCordoned"
	// NodeStatusFastForwarded means that another maintenance has taken the node further.
	NodeStatusFastForwarded NodeStatusReason = "FastForwarded"
	// NodeStatusReleasing means that the server has not released the node yet.
	NodeStatusReleasing NodeStatusReason = "Releasing"
	// NodeStatusNotReleased means that the server cannot release the node.
	NodeStatusNotReleased NodeStatusReason = "NotReleased"
	// NodeStatusGone means that the node no longer exists.
	NodeStatusGone NodeStatusReason = "NodeGone"
)

// DrainPlanEntry is one wave of a drain: the pods of one type, up to a priority, that match a
// selector.
type DrainPlanEntry struct {
	PodSelector *metav1.LabelSelector
	PodPriority int32
	PodType     PodType
}

// NodeMaintenanceStatus is the observed state of a NodeMaintenance. It also stores the progress of
// the drain: after a restart the server continues from here.
type NodeMaintenanceStatus struct {
	ObservedGeneration    int64
	StageStatuses         []StageStatus
	NodeStatuses          []NodeMaintenanceNodeStatus
	Conditions            []metav1.Condition
	LastProgressTimestamp *metav1.Time
	NewestNodeTimestamp   *metav1.Time
	Waves                 []NodeMaintenanceWave
}

// NodeMaintenanceWave is the progress of an entry of the drain plan.
type NodeMaintenanceWave struct {
	Entry     int32
	PodsPeak  int32
	PodsLeft  int32
	StartTime *metav1.Time
	EndTime   *metav1.Time
}

// StageStatus records when a stage was entered.
type StageStatus struct {
	Name           NodeMaintenanceStage
	StartTimestamp *metav1.Time
}

// NodeReference identifies one node.
type NodeReference struct {
	Name string
	UID  types.UID
}

// NodeMaintenanceNodeStatus is the state of one node of a maintenance.
type NodeMaintenanceNodeStatus struct {
	NodeRef               NodeReference
	DrainTargets          []DrainPlanEntry
	DrainMessage          string
	PodsPendingEvacuation int32
	PodsEvacuating        int32
	PodsBlocked           int32
	PodsKept              int32
	PodsPeak              int32
	PodsGonePeak          int32
	Reason                NodeStatusReason
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenanceList is a list of NodeMaintenances.
type NodeMaintenanceList struct {
	metav1.TypeMeta
	// metadata is the standard list metadata.
	metav1.ListMeta

	Items []NodeMaintenance
}
