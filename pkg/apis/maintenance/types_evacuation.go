// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// EvacuatorRole is the role of an evacuator for the pod.
type EvacuatorRole string

const (
	// EvacuatorRoleController is the evacuator that belongs to the pod's controller. There is at
	// most one and its priority is 10000.
	EvacuatorRoleController EvacuatorRole = "controller"
)

// EvacuationCancellationPolicy defines whether an evacuation can still be cancelled.
type EvacuationCancellationPolicy string

const (
	// EvacuationCancellationPolicyAllow allows the instigators to cancel the evacuation.
	EvacuationCancellationPolicyAllow EvacuationCancellationPolicy = "Allow"
	// EvacuationCancellationPolicyForbid is set by an evacuator that can no longer stop: the pod
	// will leave.
	EvacuationCancellationPolicyForbid EvacuationCancellationPolicy = "Forbid"
)

const (
	// ConditionComplete is True when the evacuation is over: the pod is gone or has terminated, or
	// the request was cancelled.
	ConditionComplete = "Complete"
	// ConditionBlocked is True while the pod cannot leave. The reason and the message name the
	// cause and a remedy.
	ConditionBlocked = "Blocked"

	// ReasonPodStopping (not Blocked): the pod is stopping within its grace period; the message has
	// the end.
	ReasonPodStopping = "PodStopping"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Evacuation requests that one pod leaves its node. It is the contract between instigators, who
// request it (one finalizer each), evacuators, who can remove the pod gracefully, and the eviction
// that follows when no evacuator is left (KEP-4212, "Drain").
type Evacuation struct {
	metav1.TypeMeta
	// metadata is the standard object metadata. The name is "<pod UID>-<pod name>"; it may be left
	// out on creation.
	metav1.ObjectMeta

	Spec EvacuationSpec

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
	// metadata is the standard list metadata.
	metav1.ListMeta

	Items []Evacuation
}
