// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// RolloutStage is a step of a rollout.
type RolloutStage string

// The stages of a rollout, in their order.
const (
	RolloutStageIdle     RolloutStage = "Idle"
	RolloutStageRoll     RolloutStage = "Roll"
	RolloutStageComplete RolloutStage = "Complete"
)

// RolloutClosedPolicy defines what happens to running units when the last window closes.
type RolloutClosedPolicy string

// RolloutHoldScope defines what a hold stops.
type RolloutHoldScope string

// RolloutPhase is the state of a unit that runs.
type RolloutPhase string

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenanceRollout takes all matching nodes out of service and back, a few at a time.
type NodeMaintenanceRollout struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   NodeMaintenanceRolloutSpec
	Status NodeMaintenanceRolloutStatus
}

// NodeMaintenanceRolloutSpec is the desired state of a NodeMaintenanceRollout.
type NodeMaintenanceRolloutSpec struct {
	NodeSelector            *corev1.NodeSelector
	Stage                   RolloutStage
	UnitKey                 string
	Limits                  []RolloutLimit
	Windows                 []RolloutWindow
	WhenClosed              RolloutClosedPolicy
	Holds                   []RolloutHold
	ProgressDeadlineSeconds *int32
	SoakSeconds             int32
	MaxFailed               int32
	Template                RolloutTemplate
	RequestedBy             *authenticationv1.UserInfo
}

// RolloutTemplate defines the NodeMaintenances of a rollout.
type RolloutTemplate struct {
	Reason    string
	DrainPlan []DrainPlanEntry
	Task      *NodeMaintenanceTask
}

// RolloutLimit limits the nodes or the domains that are out of service at the same time.
type RolloutLimit struct {
	MaxUnavailable *intstr.IntOrString
	MaxDomains     *int32
	TopologyKey    string
}

// RolloutWindow is a time at which units may start.
type RolloutWindow struct {
	Schedule string
	Start    *metav1.Time
	Duration metav1.Duration
	TimeZone string
}

// RolloutHold keeps a rollout from starting units.
type RolloutHold struct {
	Name   string
	Reason string
	Stops  RolloutHoldScope
	From   *metav1.Time
	Until  *metav1.Time
	By     string
	Since  *metav1.Time
}

// NodeMaintenanceRolloutStatus is the observed state of a NodeMaintenanceRollout.
type NodeMaintenanceRolloutStatus struct {
	ObservedGeneration  int64
	Nodes               RolloutNodes
	Current             []RolloutUnit
	Window              *RolloutWindowStatus
	Conditions          []metav1.Condition
	NewestNodeTimestamp *metav1.Time
}

// RolloutNodes counts the matching nodes of a rollout.
type RolloutNodes struct {
	Total   int32
	Done    int32
	Waiting int32
	Running int32
	Blocked int32
	Failed  int32
	Skipped int32
}

// RolloutUnit is a unit that runs, soaks or has failed.
type RolloutUnit struct {
	Unit        string
	Maintenance string
	Nodes       []NodeReference
	Phase       RolloutPhase
	Since       metav1.Time
	Message     string
}

// RolloutWindowStatus is the state of the windows of a rollout.
type RolloutWindowStatus struct {
	Open  bool
	Until *metav1.Time
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenanceRolloutList is a list of NodeMaintenanceRollouts.
type NodeMaintenanceRolloutList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []NodeMaintenanceRollout
}
