// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PreviewEffect is the effect of a predicted problem on the pods.
// +enum
// +k8s:enum
type PreviewEffect string

const (
	// PreviewEffectNever means that the pods cannot leave until a user removes the cause.
	PreviewEffectNever PreviewEffect = "Never"
	// PreviewEffectNotNow means that the pods cannot leave now, which may change without action by
	// a user.
	PreviewEffectNotNow PreviewEffect = "NotNow"
	// PreviewEffectLost means that the pods leave, and no controller recreates them.
	PreviewEffectLost PreviewEffect = "Lost"
	// PreviewEffectUnasked means that the pods leave without a step that they ask for.
	PreviewEffectUnasked PreviewEffect = "Unasked"
	// PreviewEffectDelayed means that the pods leave, but not all at the same time.
	PreviewEffectDelayed PreviewEffect = "Delayed"
)

const (
	// ReasonNoController (preview only): no controller owns the pod, so nothing recreates it.
	ReasonNoController = "NoController"
	// ReasonJobFails (preview only): the Job of the pods fails when they are evicted, since it
	// allows no more failures.
	ReasonJobFails = "JobFails"
	// ReasonPodNominated (preview only): the pods are only nominated for the node, not bound to it,
	// so the drain does not evict them and waits for the scheduler.
	ReasonPodNominated = "PodNominated"
	// ReasonNamespaceTerminating (preview only): the namespace of the pod is being deleted. No
	// Evacuation can be created in it; its pods are deleted with the namespace.
	ReasonNamespaceTerminating = "NamespaceTerminating"
	// ReasonTurnsByOwner (preview only): no budget protects the pods, so the pods of each workload
	// are evicted in turns.
	ReasonTurnsByOwner = "TurnsByOwner"
	// ReasonEvictionResponders (preview only): the pods name eviction responders (KEP-4563), which
	// the drain does not ask.
	ReasonEvictionResponders = "EvictionResponders"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenancePreview predicts what the drain of a NodeMaintenance would do if it began now or,
// in stage Drain, what it still has to do: the waves, which evacuator removes each pod, and the
// blockers. The server computes it on request from the current state of the cluster, changes
// nothing, and does not store it. Long lists are truncated; counts always cover all objects.
type NodeMaintenancePreview struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata has the name, uid, generation and creationTimestamp of the previewed
	// NodeMaintenance.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// timestamp is the time at which the server began to read the state of the cluster.
	// +required
	// +k8s:opaqueType
	Timestamp metav1.Time `json:"timestamp" protobuf:"bytes,2,opt,name=timestamp"`

	// stage is the stage of the NodeMaintenance. In stage Complete, and while the NodeMaintenance
	// is being deleted, there are no waves.
	// +optional
	// +k8s:optional
	Stage NodeMaintenanceStage `json:"stage,omitempty" protobuf:"bytes,3,opt,name=stage,casttype=NodeMaintenanceStage"`

	// podCount is the number of pods that have to leave.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,4,opt,name=podCount"`

	// podsKeptCount is the number of pods that are kept running on purpose.
	// +optional
	PodsKeptCount int32 `json:"podsKeptCount" protobuf:"varint,5,opt,name=podsKeptCount"`

	// nodeCount is the number of selected nodes.
	// +optional
	NodeCount int32 `json:"nodeCount" protobuf:"varint,6,opt,name=nodeCount"`

	// nodesRefused is the number of selected nodes that are neither cordoned nor drained because
	// the user in spec.requestedBy is not allowed to maintain them.
	// +optional
	NodesRefused int32 `json:"nodesRefused" protobuf:"varint,7,opt,name=nodesRefused"`

	// nodesUnchecked is the number of selected nodes that the preview assumes to be allowed without
	// an authorization check. The drain itself checks every node.
	// +optional
	NodesUnchecked int32 `json:"nodesUnchecked,omitempty" protobuf:"varint,8,opt,name=nodesUnchecked"`

	// waves are the entries of the drain plan that have pods to wait for, in the order of the plan.
	// Entries without pods are omitted.
	// +optional
	// +listType=atomic
	// +k8s:optional
	Waves []PreviewWave `json:"waves,omitempty" protobuf:"bytes,9,rep,name=waves"`

	// blockers are the predicted problems, the worst first: by effect (Never, NotNow, Lost,
	// Unasked, Delayed), then by the number of pods. Budgets are evaluated for all pods of the
	// drain together. At most 200.
	// +optional
	// +listType=atomic
	// +k8s:optional
	Blockers []PreviewBlocker `json:"blockers,omitempty" protobuf:"bytes,10,rep,name=blockers"`

	// blockersOmitted is the number of blockers that are not listed.
	// +optional
	BlockersOmitted int32 `json:"blockersOmitted,omitempty" protobuf:"varint,11,opt,name=blockersOmitted"`

	// podsKept are the pods that are kept running on purpose, grouped by reason.
	// +optional
	// +listType=atomic
	PodsKept []PreviewPodsKept `json:"podsKept,omitempty" protobuf:"bytes,12,rep,name=podsKept"`

	// maintenances are the other NodeMaintenances that select some of the same nodes, sorted by
	// name, except those in stage Complete. At most 100.
	// +optional
	// +listType=atomic
	// +k8s:optional
	Maintenances []PreviewMaintenance `json:"maintenances,omitempty" protobuf:"bytes,13,rep,name=maintenances"`

	// nodes are the selected nodes, sorted by name. At most 5000.
	// +optional
	// +listType=atomic
	Nodes []PreviewNode `json:"nodes,omitempty" protobuf:"bytes,14,rep,name=nodes"`

	// nodesOmitted is the number of nodes that are not listed.
	// +optional
	NodesOmitted int32 `json:"nodesOmitted,omitempty" protobuf:"varint,15,opt,name=nodesOmitted"`

	// podsWaitingCount is the number of the pods in podCount that the plan lets complete.
	// +optional
	PodsWaitingCount int32 `json:"podsWaitingCount,omitempty" protobuf:"varint,16,opt,name=podsWaitingCount"`
}

// PreviewWave is an entry of the drain plan with its pods, except those that an earlier entry
// covers.
type PreviewWave struct {
	// index is the index of the entry in spec.drainPlan, starting at 0.
	// +required
	Index int32 `json:"index" protobuf:"varint,1,opt,name=index"`

	// podType is the type of the pods.
	// +optional
	// +k8s:optional
	PodType PodType `json:"podType,omitempty" protobuf:"bytes,2,opt,name=podType,casttype=PodType"`

	// podPriority is the highest priority of a pod that the entry covers.
	// +required
	PodPriority int32 `json:"podPriority" protobuf:"varint,3,opt,name=podPriority"`

	// podSelector is the pod selector of the entry. If unset, the entry covers all pods of the
	// type.
	// +optional
	// +k8s:opaqueType
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty" protobuf:"bytes,4,opt,name=podSelector"`

	// podCount is the number of pods that the wave waits for.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,5,opt,name=podCount"`

	// podsAsked is the number of these pods that are asked to leave at the same time: now if the
	// stage is Drain, otherwise as soon as it is Drain and all nodes are cordoned. Without other
	// maintenances these are the pods of the first wave. Another maintenance on the same nodes
	// lowers the number if it is at an earlier wave, and raises it, in later waves too, if it is at
	// a later one.
	// +optional
	PodsAsked int32 `json:"podsAsked" protobuf:"varint,6,opt,name=podsAsked"`

	// podsTerminating is the number of these pods that are already terminating.
	// +optional
	PodsTerminating int32 `json:"podsTerminating,omitempty" protobuf:"varint,7,opt,name=podsTerminating"`

	// nodeCount is the number of nodes that these pods run on.
	// +optional
	NodeCount int32 `json:"nodeCount" protobuf:"varint,8,opt,name=nodeCount"`

	// evacuators counts the pods by the class that becomes active first. The class
	// eviction.maintenance.haulout.dev means the Eviction API. Sorted by the number of pods, the
	// highest first. At most 50.
	// +optional
	// +listType=atomic
	Evacuators []PreviewEvacuator `json:"evacuators,omitempty" protobuf:"bytes,9,rep,name=evacuators"`

	// nodes lists the pods by node and namespace, each sorted by name. At most 1000 pods of one
	// wave and 5000 of all waves.
	// +optional
	// +listType=atomic
	Nodes []PreviewWaveNode `json:"nodes,omitempty" protobuf:"bytes,10,rep,name=nodes"`

	// podsOmitted is the number of pods of the wave that are not listed.
	// +optional
	PodsOmitted int32 `json:"podsOmitted,omitempty" protobuf:"varint,11,opt,name=podsOmitted"`

	// podsWaiting is the number of these pods that the plan lets complete. They are not asked to
	// leave.
	// +optional
	PodsWaiting int32 `json:"podsWaiting,omitempty" protobuf:"varint,12,opt,name=podsWaiting"`
}

// PreviewEvacuator counts the pods of an evacuator.
type PreviewEvacuator struct {
	// evacuatorClass is the class of the evacuator. It is empty for pods that no evacuator is able
	// to remove.
	// +optional
	EvacuatorClass string `json:"evacuatorClass" protobuf:"bytes,1,opt,name=evacuatorClass"`

	// podCount is the number of pods.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,2,opt,name=podCount"`
}

// PreviewWaveNode lists the pods of a wave on one node.
type PreviewWaveNode struct {
	// name of the node.
	// +required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// podCount is the number of pods of the wave on the node.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,2,opt,name=podCount"`

	// namespaces lists these pods by namespace.
	// +optional
	// +listType=atomic
	Namespaces []PreviewWaveNamespace `json:"namespaces,omitempty" protobuf:"bytes,3,rep,name=namespaces"`
}

// PreviewWaveNamespace lists the pods of a wave on one node in one namespace.
type PreviewWaveNamespace struct {
	// name of the namespace.
	// +required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// pods are the pods in the namespace.
	// +optional
	// +listType=atomic
	Pods []PreviewPod `json:"pods,omitempty" protobuf:"bytes,2,rep,name=pods"`
}

// PreviewPod is a pod that has to leave.
type PreviewPod struct {
	// name of the pod.
	// +required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// evacuatorClasses are the classes that may remove the pod, in the order in which they become
	// active: its evacuators and, for a pod of type Default, eviction as the last one. It is empty
	// if no evacuator is able to remove the pod, or if the plan lets it complete.
	// +optional
	// +listType=atomic
	EvacuatorClasses []string `json:"evacuatorClasses,omitempty" protobuf:"bytes,2,rep,name=evacuatorClasses"`

	// blockers are the reasons of all blockers that affect the pod, the worst first.
	// +optional
	// +listType=atomic
	Blockers []string `json:"blockers,omitempty" protobuf:"bytes,3,rep,name=blockers"`

	// terminating is true if the pod is already terminating.
	// +optional
	Terminating bool `json:"terminating,omitempty" protobuf:"varint,4,opt,name=terminating"`
}

// PreviewBlocker is a predicted problem that one or more pods share.
type PreviewBlocker struct {
	// effect is the effect of the problem on the pods: Never, NotNow, Lost, Unasked or
	// Delayed.
	// +required
	// +k8s:required
	Effect PreviewEffect `json:"effect" protobuf:"bytes,1,opt,name=effect,casttype=PreviewEffect"`

	// reason identifies the problem: one of the reasons of the condition Blocked of Evacuations,
	// NoController, JobFails, PodNominated, NamespaceTerminating, TurnsByOwner, EvictionResponders
	// or WaitingForCompletion.
	// +required
	Reason string `json:"reason" protobuf:"bytes,2,opt,name=reason"`

	// message describes the problem for people, with a remedy.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,3,opt,name=message"`

	// budgets are the PodDisruptionBudgets that cause the problem.
	// +optional
	// +listType=atomic
	Budgets []PreviewBudget `json:"budgets,omitempty" protobuf:"bytes,4,rep,name=budgets"`

	// rounds is the number of groups in which a budget lets the pods leave, one group after the
	// other, if it continues to allow as many disruptions as now. The pods of a group leave
	// together; their replacements have to be ready before the next group leaves. 0 if the problem
	// does not depend on rounds.
	// +optional
	Rounds int32 `json:"rounds,omitempty" protobuf:"varint,5,opt,name=rounds"`

	// podCount is the number of affected pods.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,6,opt,name=podCount"`

	// pods are these pods, with namespace, name and node. At most 50.
	// +optional
	// +listType=atomic
	Pods []PreviewPodReference `json:"pods,omitempty" protobuf:"bytes,7,rep,name=pods"`

	// podsOmitted is the number of pods that are not listed.
	// +optional
	PodsOmitted int32 `json:"podsOmitted,omitempty" protobuf:"varint,8,opt,name=podsOmitted"`
}

// PreviewBudget is the state of a PodDisruptionBudget when the preview was computed.
type PreviewBudget struct {
	// namespace of the budget.
	// +required
	Namespace string `json:"namespace" protobuf:"bytes,1,opt,name=namespace"`

	// name of the budget.
	// +required
	Name string `json:"name" protobuf:"bytes,2,opt,name=name"`

	// disruptionsAllowed is the number of evictions that the budget allowed.
	// +optional
	DisruptionsAllowed int32 `json:"disruptionsAllowed" protobuf:"varint,3,opt,name=disruptionsAllowed"`
}

// PreviewPodReference identifies a pod and its node.
type PreviewPodReference struct {
	// namespace of the pod.
	// +required
	Namespace string `json:"namespace" protobuf:"bytes,1,opt,name=namespace"`

	// name of the pod.
	// +required
	Name string `json:"name" protobuf:"bytes,2,opt,name=name"`

	// node is the name of the node that the pod runs on.
	// +required
	Node string `json:"node" protobuf:"bytes,3,opt,name=node"`
}

// PreviewPodsKept lists pods that are kept running for the same reason.
type PreviewPodsKept struct {
	// reason describes for people why the pods are kept: "DaemonSet pod", "DaemonSet pod that
	// tolerates the drain taint", "static pod" or "pod that the drain plan skips".
	// +required
	Reason string `json:"reason" protobuf:"bytes,1,opt,name=reason"`

	// podCount is the number of pods.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,2,opt,name=podCount"`

	// pods are these pods, with namespace, name and node. At most 50.
	// +optional
	// +listType=atomic
	Pods []PreviewPodReference `json:"pods,omitempty" protobuf:"bytes,3,rep,name=pods"`

	// podsOmitted is the number of pods that are not listed.
	// +optional
	PodsOmitted int32 `json:"podsOmitted,omitempty" protobuf:"varint,4,opt,name=podsOmitted"`
}

// PreviewMaintenance is another NodeMaintenance that selects some of the same nodes.
type PreviewMaintenance struct {
	// name of the maintenance.
	// +required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// stage of the maintenance. A node that several maintenances in stage Drain select follows the
	// plan of the one that is at the earliest wave there.
	// +optional
	// +k8s:optional
	Stage NodeMaintenanceStage `json:"stage,omitempty" protobuf:"bytes,2,opt,name=stage,casttype=NodeMaintenanceStage"`

	// nodeCount is the number of nodes that both maintenances select.
	// +optional
	NodeCount int32 `json:"nodeCount" protobuf:"varint,3,opt,name=nodeCount"`

	// nodesFastForwarded is the number of these nodes on which the other maintenance is already at
	// a later wave than the previewed maintenance would be. The drain of these nodes continues from
	// there.
	// +optional
	NodesFastForwarded int32 `json:"nodesFastForwarded,omitempty" protobuf:"varint,4,opt,name=nodesFastForwarded"`
}

// PreviewNode is a selected node.
type PreviewNode struct {
	// name of the node.
	// +required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// uid of the node.
	// +optional
	UID types.UID `json:"uid,omitempty" protobuf:"bytes,2,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`

	// refused is true if the user in spec.requestedBy is not allowed to maintain the node, which is
	// therefore neither cordoned nor drained.
	// +optional
	Refused bool `json:"refused,omitempty" protobuf:"varint,3,opt,name=refused"`

	// podCount is the number of pods that have to leave the node. 0 if the node is refused.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,4,opt,name=podCount"`

	// podsKept is the number of pods that are kept running on the node on purpose.
	// +optional
	PodsKept int32 `json:"podsKept,omitempty" protobuf:"varint,5,opt,name=podsKept"`

	// message is the first drainMessage that the node's status would have in stage Drain, or its
	// current one in stage Drain. It names other maintenances that delay the drain of the node or
	// have already advanced it.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,6,opt,name=message"`

	// podsWaiting is the number of the pods in podCount that the plan lets complete.
	// +optional
	PodsWaiting int32 `json:"podsWaiting,omitempty" protobuf:"varint,7,opt,name=podsWaiting"`
}
