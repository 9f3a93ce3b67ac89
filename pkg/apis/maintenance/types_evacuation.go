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

	// ReasonPodDeleted (Complete): the pod no longer exists.
	ReasonPodDeleted = "PodDeleted"
	// ReasonPodTerminated (Complete): the pod has Succeeded or Failed.
	ReasonPodTerminated = "PodTerminated"
	// ReasonCancelled (Complete): the evacuator stopped after the last instigator withdrew its
	// request.
	ReasonCancelled = "Cancelled"

	// ReasonPodDisruptionBudget (Blocked): the pod's budget currently allows no disruption.
	ReasonPodDisruptionBudget = "PodDisruptionBudget"
	// ReasonPodDisruptionBudgetSyncFailed (Blocked): the disruption controller cannot compute the
	// budget, which therefore never allows a disruption.
	ReasonPodDisruptionBudgetSyncFailed = "PodDisruptionBudgetSyncFailed"
	// ReasonTooManyDisruptedPods (Blocked): the budget's status is negative or lists too many
	// disrupted pods, so the API server refuses every eviction.
	ReasonTooManyDisruptedPods = "TooManyDisruptedPods"
	// ReasonMultiplePodDisruptionBudgets (Blocked): several budgets select the pod, which the
	// eviction API refuses.
	ReasonMultiplePodDisruptionBudgets = "MultiplePodDisruptionBudgets"
	// ReasonUnhealthyPodsHoldBudget (Blocked): pods that are not ready use up the budget.
	ReasonUnhealthyPodsHoldBudget = "UnhealthyPodsHoldBudget"
	// ReasonEvacuatorNotProgressing (Blocked): the active evacuator has not reported for a while.
	ReasonEvacuatorNotProgressing = "EvacuatorNotProgressing"
	// ReasonPodTerminating (Blocked): the pod is terminating and its grace period has passed.
	ReasonPodTerminating = "PodTerminating"
	// ReasonPodWaits (not Blocked): it is the pod's turn to be evicted, but it waits for other pods
	// of its workload, or its eviction is refused for now; the message has the cause.
	ReasonPodWaits = "PodWaits"
	// ReasonPodStopping (not Blocked): the pod is stopping within its grace period; the message has
	// the end.
	ReasonPodStopping = "PodStopping"
	// ReasonLongGracePeriod (Blocked): the pod has been stopping within its grace period for longer
	// than --long-grace.
	ReasonLongGracePeriod = "LongGracePeriod"
	// ReasonPodFinalizer (Blocked): a finalizer prevents the deletion of the pod.
	ReasonPodFinalizer = "PodFinalizer"
	// ReasonNodeUnreachable (Blocked): the kubelet that has to stop the pod does not respond.
	ReasonNodeUnreachable = "NodeUnreachable"
	// ReasonNoEvacuator (Blocked): no evacuator is able to remove the pod.
	ReasonNoEvacuator = "NoEvacuator"
	// ReasonRecreated (Blocked): a controller keeps recreating such pods on the node.
	ReasonRecreated = "Recreated"
	// ReasonEvictionForbidden (Blocked): the server is not allowed to evict the pod.
	ReasonEvictionForbidden = "EvictionForbidden"
	// ReasonEvictionDenied (Blocked): an admission webhook or an admission policy refuses the
	// eviction; the message quotes it.
	ReasonEvictionDenied = "EvictionDenied"
	// ReasonEvictionError (Blocked): the eviction fails for another reason; the message quotes it.
	ReasonEvictionError = "EvictionError"
	// ReasonSurgePending (Blocked): the replacement of the pod is not available after the surge
	// timeout.
	ReasonSurgePending = "SurgePending"
	// ReasonReplicaFailure (Blocked): no pod of the Deployment can be created, so there is no
	// replacement for this one; the message quotes the error.
	ReasonReplicaFailure = "ReplicaFailure"
	// ReasonEvacuationHeld (Blocked): the Evacuation is being deleted, but has a finalizer that is
	// not from an instigator; the message names it.
	ReasonEvacuationHeld = "EvacuationHeld"
	// ReasonBudgetsHoldEachOther (Blocked): two drains wait for each other: the pods of each drain
	// use up the budget for the pods of the other one.
	ReasonBudgetsHoldEachOther = "BudgetsHoldEachOther"
	// ReasonBudgetPodsCordoned (Blocked): the pods that would make the budget allow a disruption
	// cannot run, because their nodes are cordoned.
	ReasonBudgetPodsCordoned = "BudgetPodsCordoned"
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
