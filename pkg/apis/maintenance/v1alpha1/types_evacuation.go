// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// EvacuatorRole is the role of an evacuator for the pod.
// +enum
// +k8s:enum
type EvacuatorRole string

const (
	// EvacuatorRoleController is the evacuator that belongs to the pod's controller. There is at
	// most one and its priority is 10000.
	EvacuatorRoleController EvacuatorRole = "controller"
)

// EvacuationCancellationPolicy defines whether an evacuation can still be cancelled.
// +enum
// +k8s:enum
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

	// ConditionLeaving is True while the pod is stopping because its eviction was accepted or
	// another client deleted it. It is omitted before, and for the first seconds, in which most
	// pods stop. It is omitted again when the evacuation is complete.
	ConditionLeaving = "Leaving"

	// ReasonPodDeleted (Complete): the pod no longer exists.
	ReasonPodDeleted = "PodDeleted"
	// ReasonPodTerminated (Complete): the pod has Succeeded or Failed, and the kubelet has cleaned
	// up if the pod is being deleted.
	ReasonPodTerminated = "PodTerminated"
	// ReasonCancelled (Complete): the evacuator stopped after the last instigator withdrew its
	// request.
	ReasonCancelled = "Cancelled"
	// ReasonEvacuating (Ready=False): the pod has not left yet, and it is not blocked.
	ReasonEvacuating = "Evacuating"

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
	// ReasonPodStopping (Leaving, not Blocked): the pod is stopping within its grace period; the
	// message has the end.
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
	// ReasonBudgetPodsCordoned (Blocked): the pods that would make the budget allow a disruption
	// cannot run, because their nodes are cordoned.
	ReasonBudgetPodsCordoned = "BudgetPodsCordoned"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/status"

// Evacuation requests that one pod leaves its node. It is the contract between instigators, who
// request it (one finalizer each), evacuators, who can remove the pod gracefully, and the eviction
// that follows when no evacuator is left (KEP-4212, "Drain").
type Evacuation struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata. The name is "<pod UID>-<pod name>"; it may be left
	// out on creation.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec defines which pod leaves and which evacuators may remove it. Immutable.
	// +optional
	Spec EvacuationSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`

	// status is the progress of the evacuation.
	// +optional
	Status EvacuationStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// EvacuationSpec is the request. All of it is immutable.
type EvacuationSpec struct {
	// podRef identifies the pod that has to leave. The pod must exist when the Evacuation is
	// created.
	// +required
	PodRef PodReference `json:"podRef" protobuf:"bytes,1,opt,name=podRef"`

	// progressDeadlineSeconds is the time in seconds that the active evacuator may go without a
	// heartbeat before the next one becomes active. From 1 to 86400; the default is 1800.
	// +optional
	// +default=1800
	// +k8s:optional
	// +k8s:minimum=1
	// +k8s:maximum=86400
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty" protobuf:"varint,2,opt,name=progressDeadlineSeconds"`

	// evacuators are the evacuators that may remove the pod from its node. The one with the highest
	// priority becomes active first. On creation the server adds the evacuators that the pod's
	// annotations name and the built-in evacuator of the pod's owner. At most 16.
	// +optional
	// +listType=map
	// +listMapKey=evacuatorClass
	// +patchStrategy=merge
	// +patchMergeKey=evacuatorClass
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=evacuatorClass
	// +k8s:maxItems=16
	Evacuators []Evacuator `json:"evacuators,omitempty" patchStrategy:"merge" patchMergeKey:"evacuatorClass" protobuf:"bytes,3,rep,name=evacuators"`

	// nodeName is the node that the pod ran on when the Evacuation was created. Set by the server.
	// +optional
	// +k8s:optional
	NodeName string `json:"nodeName,omitempty" protobuf:"bytes,4,opt,name=nodeName"`
}

// PodReference identifies one pod in the namespace of the Evacuation.
type PodReference struct {
	// name of the pod.
	// +required
	// +k8s:required
	// +k8s:format=k8s-long-name
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// uid of the pod. A pod that is recreated with the same name is a different pod.
	// +required
	// +k8s:required
	UID types.UID `json:"uid" protobuf:"bytes,2,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
}

// Evacuator is a component that may remove a pod from its node.
type Evacuator struct {
	// evacuatorClass names the evacuator: a DNS subdomain of at most 54 characters.
	// +required
	// +k8s:required
	// +k8s:format=k8s-long-name
	// +k8s:maxLength=54
	EvacuatorClass string `json:"evacuatorClass" protobuf:"bytes,1,opt,name=evacuatorClass"`

	// priority defines the order in which evacuators become active, the highest first. From 0 to
	// 100000. 10000 is reserved for the pod's controller, and 9900 to 10099 for classes that share
	// its parent domain.
	// +required
	// +k8s:optional
	// +k8s:minimum=0
	// +k8s:maximum=100000
	Priority int32 `json:"priority" protobuf:"varint,2,opt,name=priority"`

	// role is "controller" for the evacuator of the pod's controller, whose priority is 10000. It
	// is empty for all other evacuators.
	// +optional
	// +k8s:optional
	Role EvacuatorRole `json:"role,omitempty" protobuf:"bytes,3,opt,name=role,casttype=EvacuatorRole"`
}

// EvacuationStatus is the progress of an evacuation.
type EvacuationStatus struct {
	// activeEvacuatorClass is the class of the active evacuator, or
	// eviction.maintenance.haulout.dev once no evacuator is left. It starts at the highest priority
	// and only moves down. Written by the Haulout server.
	// +optional
	// +k8s:optional
	ActiveEvacuatorClass string `json:"activeEvacuatorClass,omitempty" protobuf:"bytes,1,opt,name=activeEvacuatorClass"`

	// activeEvacuatorCompleted is true when the active evacuator has finished its work. If the pod
	// still exists, the next evacuator becomes active. Written by the active evacuator.
	// +optional
	ActiveEvacuatorCompleted bool `json:"activeEvacuatorCompleted" protobuf:"varint,2,opt,name=activeEvacuatorCompleted"`

	// evacuationProgressTimestamp is the time of the last heartbeat of the active evacuator. Unset
	// before its first one. Set by the server.
	// +optional
	// +k8s:opaqueType
	EvacuationProgressTimestamp *metav1.Time `json:"evacuationProgressTimestamp,omitempty" protobuf:"bytes,3,opt,name=evacuationProgressTimestamp"`

	// expectedEvacuationFinishTime is the time at which the active evacuator expects the pod to be
	// gone. Written by the active evacuator.
	// +optional
	// +k8s:opaqueType
	ExpectedEvacuationFinishTime *metav1.Time `json:"expectedEvacuationFinishTime,omitempty" protobuf:"bytes,4,opt,name=expectedEvacuationFinishTime"`

	// evacuationCancellationPolicy is Forbid while the active evacuator can no longer stop. The
	// default is Allow. Written by the active evacuator; the server resets it to Allow when the
	// next evacuator becomes active.
	// +optional
	// +default="Allow"
	// +k8s:optional
	EvacuationCancellationPolicy EvacuationCancellationPolicy `json:"evacuationCancellationPolicy,omitempty" protobuf:"bytes,5,opt,name=evacuationCancellationPolicy,casttype=EvacuationCancellationPolicy"`

	// failedEvictionCounter counts the calls of the Eviction API that were refused because of a
	// budget. It never decreases. Written by the Haulout server.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	FailedEvictionCounter int32 `json:"failedEvictionCounter" protobuf:"varint,6,opt,name=failedEvictionCounter"`

	// message describes the state of the evacuation for people. Programs do not read it. At most
	// 1024 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=1024
	Message string `json:"message,omitempty" protobuf:"bytes,7,opt,name=message"`

	// conditions are the conditions Complete, Blocked, Leaving, Ready and Stalled. Written by the
	// Haulout server.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=type
	// +k8s:eachVal=+k8s:opaqueType
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,8,rep,name=conditions"`

	// activeEvacuatorSince is the time at which the active evacuator became active. Written by the
	// Haulout server.
	// +optional
	// +k8s:opaqueType
	ActiveEvacuatorSince *metav1.Time `json:"activeEvacuatorSince,omitempty" protobuf:"bytes,9,opt,name=activeEvacuatorSince"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EvacuationList is a list of Evacuations.
type EvacuationList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// items are the Evacuations.
	Items []Evacuation `json:"items" protobuf:"bytes,2,rep,name=items"`
}
