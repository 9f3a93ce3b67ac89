// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeMaintenanceStage is a step of a maintenance.
type NodeMaintenanceStage string

// The stages of a maintenance, in their order.
const (
	NodeMaintenanceStageIdle     NodeMaintenanceStage = "Idle"
	NodeMaintenanceStageCordon   NodeMaintenanceStage = "Cordon"
	NodeMaintenanceStageDrain    NodeMaintenanceStage = "Drain"
	NodeMaintenanceStageComplete NodeMaintenanceStage = "Complete"
)

// PodType classifies the pods of a node by the component that recreates them when they leave.
type PodType string

// The types of pods in a drain plan.
const (
	PodTypeDefault   PodType = "Default"
	PodTypeDaemonSet PodType = "DaemonSet"
	PodTypeStatic    PodType = "Static"
)

// NewNodesPolicy defines whether a maintenance also selects matching nodes that are created after
// it has left stage Idle.
type NewNodesPolicy string

// The policies for new nodes.
const (
	NewNodesPolicyIgnore NewNodesPolicy = "Ignore"
	NewNodesPolicyJoin   NewNodesPolicy = "Join"
)

// ExcludedNodePolicy defines what the waves of a drain do while a selected node is excluded.
type ExcludedNodePolicy string

// The policies for excluded nodes.
const (
	ExcludedNodeContinue ExcludedNodePolicy = "Continue"
	ExcludedNodeWait     ExcludedNodePolicy = "Wait"
)

// DrainBehavior defines what the drain does with the pods of an entry of the plan.
type DrainBehavior string

// The behaviors of an entry; an empty one says nothing.
const (
	DrainBehaviorDrain         DrainBehavior = "Drain"
	DrainBehaviorWaitCompleted DrainBehavior = "WaitCompleted"
	DrainBehaviorSkip          DrainBehavior = "Skip"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenance takes a set of nodes out of service and returns them to service.
type NodeMaintenance struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   NodeMaintenanceSpec
	Status NodeMaintenanceStatus
}

// NodeMaintenanceSpec is the desired state of a NodeMaintenance.
type NodeMaintenanceSpec struct {
	NodeSelector   *corev1.NodeSelector
	Stage          NodeMaintenanceStage
	DrainPlan      []DrainPlanEntry
	Reason         string
	RequestedBy    *authenticationv1.UserInfo
	NewNodes       NewNodesPolicy
	Paused         bool
	OnExcludedNode ExcludedNodePolicy
	Task           *NodeMaintenanceTask
}

// NodeMaintenanceTask is the work on each node of a maintenance.
type NodeMaintenanceTask struct {
	Worker                  string
	Stage                   NodeTaskStage
	Parameters              map[string]string
	DoneWhen                string
	ClaimDeadlineSeconds    *int32
	ProgressDeadlineSeconds *int32
	VerifyDeadlineSeconds   *int32
}

// NodeStatusReason is the reason why the drain of a node differs from that of the other nodes.
type NodeStatusReason string

// DrainPlanEntry is one wave of a drain.
type DrainPlanEntry struct {
	PodSelector *metav1.LabelSelector
	PodPriority int32
	PodType     PodType
	Behavior    *DrainBehavior
	WaitSeconds *int32
}

// NodeMaintenanceStatus is the observed state of a NodeMaintenance, and the progress of the drain.
type NodeMaintenanceStatus struct {
	ObservedGeneration    int64
	StageStatuses         []StageStatus
	NodeStatuses          []NodeMaintenanceNodeStatus
	Conditions            []metav1.Condition
	LastProgressTimestamp *metav1.Time
	NewestNodeTimestamp   *metav1.Time
	Waves                 []NodeMaintenanceWave
	Nodes                 int32
	PodsGone              int32
	Pause                 *NodeMaintenancePause
	Pools                 []string
}

// NodeMaintenancePause describes who has paused a drain.
type NodeMaintenancePause struct {
	By    string
	Since metav1.Time
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
	PodsWaiting           *int32
	Task                  *NodeMaintenanceNodeTask
	PoolIndex             *int32
}

// NodeMaintenanceNodeTask is the state of the work on one node of a maintenance.
type NodeMaintenanceNodeTask struct {
	State     NodeTaskState
	Holder    string
	StartTime *metav1.Time
	EndTime   *metav1.Time
	Message   string
	Reason    NodeTaskReason
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenanceList is a list of NodeMaintenances.
type NodeMaintenanceList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []NodeMaintenance
}
