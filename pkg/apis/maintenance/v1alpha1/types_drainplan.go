// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PodType classifies the pods of a node by what recreates them when they leave (KEP-4212, "Pod
// Selection").
// +enum
// +k8s:enum
type PodType string

const (
	// PodTypeDefault is every pod that is neither a DaemonSet pod nor a static pod.
	PodTypeDefault PodType = "Default"
	// PodTypeDaemonSet is a pod whose controller is a DaemonSet.
	PodTypeDaemonSet PodType = "DaemonSet"
	// PodTypeStatic is a static pod, which the API shows as a mirror pod.
	PodTypeStatic PodType = "Static"
)

// DrainBehavior defines what the drain does with the pods of an entry of the plan.
// +enum
// +k8s:enum
type DrainBehavior string

const (
	// DrainBehaviorDrain asks the pods to leave.
	DrainBehaviorDrain DrainBehavior = "Drain"
	// DrainBehaviorWaitCompleted waits until the pods have completed, and does not ask them to
	// leave. Only for pods of type Default.
	DrainBehaviorWaitCompleted DrainBehavior = "WaitCompleted"
	// DrainBehaviorSkip keeps the pods running. The drain does not wait for them.
	DrainBehaviorSkip DrainBehavior = "Skip"
)

// DrainPlanEntry is one wave of a drain: the pods of one type, up to a priority, that match a
// selector.
type DrainPlanEntry struct {
	// podSelector restricts the entry to pods with matching labels, so that some pods of a priority
	// can leave before the others. If unset, the entry covers all pods of the type.
	// +optional
	// +k8s:optional
	// +k8s:opaqueType
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty" protobuf:"bytes,1,opt,name=podSelector"`

	// podPriority is the highest spec.priority of a pod that the entry covers. A pod without a
	// priority counts as 0.
	// +required
	PodPriority int32 `json:"podPriority" protobuf:"varint,2,opt,name=podPriority"`

	// podType is the type of the pods: Default, DaemonSet or Static. The default is Default.
	// +optional
	// +default="Default"
	// +k8s:optional
	PodType PodType `json:"podType,omitempty" protobuf:"bytes,3,opt,name=podType,casttype=PodType"`

	// behavior defines what the drain does with the pods: Drain asks them to leave; WaitCompleted
	// waits until they have completed, for pods of type Default; Skip keeps them. Of the entries
	// that cover a pod, the first with a behavior decides; without one, the pod is asked to leave.
	// If several maintenances drain the node, the first of Drain, WaitCompleted and Skip applies.
	// +optional
	// +k8s:optional
	Behavior *DrainBehavior `json:"behavior,omitempty" protobuf:"bytes,4,opt,name=behavior,casttype=DrainBehavior"`

	// waitSeconds is the time in seconds after the begin of stage Drain after which pods with the
	// behavior WaitCompleted are asked to leave. Only allowed with this behavior. From 0 to
	// 2592000; 0 means no limit.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	// +k8s:maximum=2592000
	WaitSeconds *int32 `json:"waitSeconds,omitempty" protobuf:"varint,5,opt,name=waitSeconds"`
}
