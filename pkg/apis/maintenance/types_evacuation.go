// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// EvacuatorRole is the role of an evacuator for the pod.
type EvacuatorRole string

// EvacuatorRoleController is the only role.
const EvacuatorRoleController EvacuatorRole = "controller"

// EvacuationCancellationPolicy defines whether an evacuation can still be cancelled.
type EvacuationCancellationPolicy string

// The cancellation policies are the following.
const (
	EvacuationCancellationPolicyAllow  EvacuationCancellationPolicy = "Allow"
	EvacuationCancellationPolicyForbid EvacuationCancellationPolicy = "Forbid"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Evacuation requests that one pod leave its node.
type Evacuation struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   EvacuationSpec
	Status EvacuationStatus
}

// EvacuationSpec is the request. All of it is immutable.
type EvacuationSpec struct {
	PodRef                  PodReference
	ProgressDeadlineSeconds *int32
	Evacuators              []Evacuator
	NodeName                string
}

// PodReference identifies one pod in the namespace of the Evacuation.
type PodReference struct {
	Name string
	UID  types.UID
}

// Evacuator is a component that may remove a pod from its node.
type Evacuator struct {
	EvacuatorClass string
	Priority       int32
	Role           EvacuatorRole
}

// EvacuationStatus is the progress of an evacuation.
type EvacuationStatus struct {
	ActiveEvacuatorClass         string
	ActiveEvacuatorCompleted     bool
	EvacuationProgressTimestamp  *metav1.Time
	ExpectedEvacuationFinishTime *metav1.Time
	EvacuationCancellationPolicy EvacuationCancellationPolicy
	FailedEvictionCounter        int32
	Message                      string
	Conditions                   []metav1.Condition
	ActiveEvacuatorSince         *metav1.Time
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EvacuationList is a list of Evacuations.
type EvacuationList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []Evacuation
}
