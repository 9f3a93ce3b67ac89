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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// EvacuatorRole says what an evacuator is to the pod.
// +enum
// +k8s:enum
type EvacuatorRole string

const (
	// EvacuatorRoleController is the evacuator that belongs to the pod's controller. There is at
	// most one and its priority is 10000.
	EvacuatorRoleController EvacuatorRole = "controller"
)

// EvacuationCancellationPolicy says whether an evacuation may still be called off.
// +enum
// +k8s:enum
type EvacuationCancellationPolicy string

const (
	// EvacuationCancellationPolicyAllow lets the instigators call the evacuation off.
	EvacuationCancellationPolicyAllow EvacuationCancellationPolicy = "Allow"
	// EvacuationCancellationPolicyForbid is set by an evacuator that has passed the point of no
	// return: the pod will go.
	EvacuationCancellationPolicyForbid EvacuationCancellationPolicy = "Forbid"
)

const (
	// ConditionComplete is True when the evacuation is over: the pod is gone or has terminated, or
	// the request was cancelled.
	ConditionComplete = "Complete"
	// ConditionBlocked is True while something keeps the pod from leaving; reason and message say
	// what and what can be done.
	ConditionBlocked = "Blocked"

	// ReasonPodDeleted (Complete): the pod is gone from the API.
	ReasonPodDeleted = "PodDeleted"
	// ReasonPodTerminated (Complete): the pod has Succeeded or Failed.
	ReasonPodTerminated = "PodTerminated"
	// ReasonCancelled (Complete): the evacuator gave up after the last instigator had withdrawn.
	ReasonCancelled = "Cancelled"

	// ReasonPodDisruptionBudget (Blocked): the budget of the pod allows no disruption now.
	ReasonPodDisruptionBudget = "PodDisruptionBudget"
	// ReasonPodDisruptionBudgetSyncFailed (Blocked): the budget cannot be computed and so never
	// allows a disruption.
	ReasonPodDisruptionBudgetSyncFailed = "PodDisruptionBudgetSyncFailed"
	// ReasonTooManyDisruptedPods (Blocked): the status of the budget is in a state in which the API
	// server refuses every eviction.
	ReasonTooManyDisruptedPods = "TooManyDisruptedPods"
	// ReasonMultiplePodDisruptionBudgets (Blocked): several budgets select the pod, which the
	// eviction API refuses.
	ReasonMultiplePodDisruptionBudgets = "MultiplePodDisruptionBudgets"
	// ReasonUnhealthyPodsHoldBudget (Blocked): pods that are not ready use up the budget.
	ReasonUnhealthyPodsHoldBudget = "UnhealthyPodsHoldBudget"
	// ReasonEvacuatorNotProgressing (Blocked): the active evacuator has not reported for a while.
	ReasonEvacuatorNotProgressing = "EvacuatorNotProgressing"
	// ReasonPodTerminating (Blocked): the pod was asked to stop and its grace period has passed.
	ReasonPodTerminating = "PodTerminating"
	// ReasonPodFinalizer (Blocked): a finalizer holds the pod.
	ReasonPodFinalizer = "PodFinalizer"
	// ReasonNodeUnreachable (Blocked): the kubelet that would stop the pod does not answer.
	ReasonNodeUnreachable = "NodeUnreachable"
	// ReasonNoEvacuator (Blocked): nothing that is able to remove the pod answers for it.
	ReasonNoEvacuator = "NoEvacuator"
	// ReasonRecreated (Blocked): something keeps putting such pods back on the node.
	ReasonRecreated = "Recreated"
	// ReasonEvictionForbidden (Blocked): the server is not allowed to evict the pod.
	ReasonEvictionForbidden = "EvictionForbidden"
	// ReasonEvictionDenied (Blocked): an admission webhook or an admission policy refuses the
	// eviction; the message quotes it.
	ReasonEvictionDenied = "EvictionDenied"
	// ReasonEvictionError (Blocked): the eviction fails for another reason; the message quotes it.
	ReasonEvictionError = "EvictionError"
	// ReasonSurgePending (Blocked): the pod that is to replace this one is not available after the
	// surge timeout.
	ReasonSurgePending = "SurgePending"
	// ReasonEvacuationHeld (Blocked): the Evacuation is being deleted and a finalizer that is not
	// an instigator's holds it; the message names it.
	ReasonEvacuationHeld = "EvacuationHeld"
	// ReasonBudgetsHoldEachOther (Blocked): two drains wait for each other's pods, because each
	// holds the budget of the other one's.
	ReasonBudgetsHoldEachOther = "BudgetsHoldEachOther"
	// ReasonBudgetPodsCordoned (Blocked): the pods that would free the budget cannot run, because
	// their nodes are cordoned.
	ReasonBudgetPodsCordoned = "BudgetPodsCordoned"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/status"

// Evacuation asks one pod to leave its node: the contract between those who ask (instigators, one
// finalizer each), those who can do it gracefully (evacuators) and the eviction that follows when
// no evacuator is left (KEP-4212, "Drain").
type Evacuation struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata. The name is "<pod UID>-<pod name>"; it may be left
	// out on creation.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec says which pod leaves and who may help. Immutable once created.
	// +optional
	Spec EvacuationSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`

	// status is how far the evacuation is.
	// +optional
	Status EvacuationStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// EvacuationSpec is the request. It is immutable as a whole.
type EvacuationSpec struct {
	// podRef identifies the pod that is to leave. It must exist when the Evacuation is created.
	// +required
	PodRef PodReference `json:"podRef" protobuf:"bytes,1,opt,name=podRef"`

	// progressDeadlineSeconds is how long the active evacuator may be silent before the next one
	// takes over, in seconds. 1 to 86400; the default is 1800.
	// +optional
	// +default=1800
	// +k8s:optional
	// +k8s:minimum=1
	// +k8s:maximum=86400
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty" protobuf:"varint,2,opt,name=progressDeadlineSeconds"`

	// evacuators are those who may take the pod off its node, highest priority first. On creation
	// the server adds those that the pod's annotations name and those that are built in for its
	// owner. At most 16.
	// +optional
	// +listType=map
	// +listMapKey=evacuatorClass
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=evacuatorClass
	// +k8s:maxItems=16
	Evacuators []Evacuator `json:"evacuators,omitempty" protobuf:"bytes,3,rep,name=evacuators"`

	// nodeName is the node that the pod ran on when the Evacuation was created. Set by the server.
	// +optional
	// +k8s:optional
	NodeName string `json:"nodeName,omitempty" protobuf:"bytes,4,opt,name=nodeName"`
}

// PodReference names one pod, for its whole life, in the namespace of the Evacuation.
type PodReference struct {
	// name of the pod.
	// +required
	// +k8s:required
	// +k8s:format=k8s-long-name
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// uid of the pod. A pod that is created again under the same name is another pod.
	// +required
	// +k8s:required
	UID types.UID `json:"uid" protobuf:"bytes,2,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
}

// Evacuator is somebody who may take a pod off its node.
type Evacuator struct {
	// evacuatorClass names the evacuator: a DNS subdomain of at most 54 characters.
	// +required
	// +k8s:required
	// +k8s:format=k8s-long-name
	// +k8s:maxLength=54
	EvacuatorClass string `json:"evacuatorClass" protobuf:"bytes,1,opt,name=evacuatorClass"`

	// priority decides who acts first, the highest first. 0 to 100000; 10000 is the pod's
	// controller, 9900 to 10099 are kept for classes that share its parent domain.
	// +required
	// +k8s:optional
	// +k8s:minimum=0
	// +k8s:maximum=100000
	Priority int32 `json:"priority" protobuf:"varint,2,opt,name=priority"`

	// role is "controller" for the evacuator of the pod's controller (priority 10000) and empty for
	// others.
	// +optional
	// +k8s:optional
	Role EvacuatorRole `json:"role,omitempty" protobuf:"bytes,3,opt,name=role,casttype=EvacuatorRole"`
}

// EvacuationStatus is how far an evacuation is.
type EvacuationStatus struct {
	// activeEvacuatorClass is the evacuator whose turn it is, or eviction.maintenance.haulout.dev
	// once all are spent. Written by the Haulout server; it starts at the highest priority and only
	// moves down.
	// +optional
	// +k8s:optional
	ActiveEvacuatorClass string `json:"activeEvacuatorClass,omitempty" protobuf:"bytes,1,opt,name=activeEvacuatorClass"`

	// activeEvacuatorCompleted is set by the active evacuator when it has done all it can. If the
	// pod still exists the next one takes over.
	// +optional
	ActiveEvacuatorCompleted bool `json:"activeEvacuatorCompleted" protobuf:"varint,2,opt,name=activeEvacuatorCompleted"`

	// evacuationProgressTimestamp is when the active evacuator last reported; unset until it has.
	// Stamped by the server.
	// +optional
	// +k8s:opaqueType
	EvacuationProgressTimestamp *metav1.Time `json:"evacuationProgressTimestamp,omitempty" protobuf:"bytes,3,opt,name=evacuationProgressTimestamp"`

	// expectedEvacuationFinishTime is when the active evacuator expects the pod to be gone. Written
	// by the active evacuator.
	// +optional
	// +k8s:opaqueType
	ExpectedEvacuationFinishTime *metav1.Time `json:"expectedEvacuationFinishTime,omitempty" protobuf:"bytes,4,opt,name=expectedEvacuationFinishTime"`

	// evacuationCancellationPolicy is Forbid while the active evacuator cannot stop any more. The
	// default is Allow. Written by the active evacuator; it falls back to Allow when the next one
	// takes over.
	// +optional
	// +default="Allow"
	// +k8s:optional
	EvacuationCancellationPolicy EvacuationCancellationPolicy `json:"evacuationCancellationPolicy,omitempty" protobuf:"bytes,5,opt,name=evacuationCancellationPolicy,casttype=EvacuationCancellationPolicy"`

	// failedEvictionCounter counts the calls of the eviction API that were refused because of a
	// budget. It never falls.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	FailedEvictionCounter int32 `json:"failedEvictionCounter" protobuf:"varint,6,opt,name=failedEvictionCounter"`

	// message is for people: what happens to the pod. No program reads it. At most 1024 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=1024
	Message string `json:"message,omitempty" protobuf:"bytes,7,opt,name=message"`

	// conditions are Complete and Blocked.
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

	// activeEvacuatorSince is when the active evacuator got its turn. Written by the Haulout server
	// alone.
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

	// items are the evacuations.
	Items []Evacuation `json:"items" protobuf:"bytes,2,rep,name=items"`
}
