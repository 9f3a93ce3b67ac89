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

// PreviewEffect says what trouble that a preview predicts comes to.
// +enum
// +k8s:enum
type PreviewEffect string

const (
	// PreviewEffectNever means that the pods cannot leave until somebody changes what is in the
	// way.
	PreviewEffectNever PreviewEffect = "Never"
	// PreviewEffectNotNow means that as things stand the pods cannot leave, which may pass by
	// itself.
	PreviewEffectNotNow PreviewEffect = "NotNow"
	// PreviewEffectLost means that the pods leave, and nothing makes them anew.
	PreviewEffectLost PreviewEffect = "Lost"
	// PreviewEffectDelayed means that the pods leave, but not all at once.
	PreviewEffectDelayed PreviewEffect = "Delayed"
)

const (
	// ReasonNoController (preview only): no controller owns the pod, so that nothing makes it anew.
	ReasonNoController = "NoController"
	// ReasonNamespaceTerminating (preview only): the namespace of the pod is being deleted. No
	// Evacuation can be made in it; its pods leave with the namespace.
	ReasonNamespaceTerminating = "NamespaceTerminating"
	// ReasonTurnsByOwner (preview only): no budget protects the pods, so the pods of each workload
	// are evicted in turns.
	ReasonTurnsByOwner = "TurnsByOwner"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenancePreview says what the drain of a NodeMaintenance would do if it began now or, in
// stage Drain, what it still has to do: the waves, who takes each pod away, and what is in the way.
// It is worked out on request from the cluster as it is, and never stored. Nothing is touched.
// Lists are cut to what can be read; the counts are always those of everything.
type NodeMaintenancePreview struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata has the name, uid, generation and creationTimestamp of the NodeMaintenance that this
	// is about.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// timestamp is when the server began to look at the cluster.
	// +required
	// +k8s:opaqueType
	Timestamp metav1.Time `json:"timestamp" protobuf:"bytes,2,opt,name=timestamp"`

	// stage is the stage of the NodeMaintenance. In Complete and while it is being deleted nothing
	// is to come, and there are no waves.
	// +optional
	// +k8s:optional
	Stage NodeMaintenanceStage `json:"stage,omitempty" protobuf:"bytes,3,opt,name=stage,casttype=NodeMaintenanceStage"`

	// podCount is how many pods have to leave.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,4,opt,name=podCount"`

	// podsKeptCount is how many pods are left running on purpose.
	// +optional
	PodsKeptCount int32 `json:"podsKeptCount" protobuf:"varint,5,opt,name=podsKeptCount"`

	// nodeCount is how many nodes are selected.
	// +optional
	NodeCount int32 `json:"nodeCount" protobuf:"varint,6,opt,name=nodeCount"`

	// nodesRefused is how many of the nodes are left alone because the user of spec.requestedBy may
	// not delete them.
	// +optional
	NodesRefused int32 `json:"nodesRefused" protobuf:"varint,7,opt,name=nodesRefused"`

	// nodesUnchecked is how many of the nodes the preview takes for allowed without having asked.
	// The drain itself asks about each.
	// +optional
	NodesUnchecked int32 `json:"nodesUnchecked,omitempty" protobuf:"varint,8,opt,name=nodesUnchecked"`

	// waves are the entries of the drain plan that have pods to wait for, in their order. Entries
	// without pods cost no time and are left out.
	// +optional
	// +listType=atomic
	// +k8s:optional
	Waves []PreviewWave `json:"waves,omitempty" protobuf:"bytes,9,rep,name=waves"`

	// blockers are what is in the way, the worst first: by effect (Never, NotNow, Lost, Delayed),
	// then by the number of pods. Budgets are worked out for all pods of the drain together. At
	// most 200.
	// +optional
	// +listType=atomic
	// +k8s:optional
	Blockers []PreviewBlocker `json:"blockers,omitempty" protobuf:"bytes,10,rep,name=blockers"`

	// blockersOmitted is how many blockers there are beyond those listed.
	// +optional
	BlockersOmitted int32 `json:"blockersOmitted,omitempty" protobuf:"varint,11,opt,name=blockersOmitted"`

	// podsKept are the pods that are left running on purpose, by reason.
	// +optional
	// +listType=atomic
	PodsKept []PreviewPodsKept `json:"podsKept,omitempty" protobuf:"bytes,12,rep,name=podsKept"`

	// maintenances are the other NodeMaintenances on the same nodes, by name; those in stage
	// Complete are not among them. At most 100.
	// +optional
	// +listType=atomic
	// +k8s:optional
	Maintenances []PreviewMaintenance `json:"maintenances,omitempty" protobuf:"bytes,13,rep,name=maintenances"`

	// nodes are the selected nodes, by name. At most 5000.
	// +optional
	// +listType=atomic
	Nodes []PreviewNode `json:"nodes,omitempty" protobuf:"bytes,14,rep,name=nodes"`

	// nodesOmitted is how many nodes there are beyond those listed.
	// +optional
	NodesOmitted int32 `json:"nodesOmitted,omitempty" protobuf:"varint,15,opt,name=nodesOmitted"`
}

// PreviewWave is an entry of the drain plan with the pods that it is the first to cover.
type PreviewWave struct {
	// index is the place of the entry in spec.drainPlan, from 0.
	// +required
	Index int32 `json:"index" protobuf:"varint,1,opt,name=index"`

	// podType is the type of the pods.
	// +optional
	// +k8s:optional
	PodType PodType `json:"podType,omitempty" protobuf:"bytes,2,opt,name=podType,casttype=PodType"`

	// podPriority is the highest priority of a pod that the entry covers.
	// +required
	PodPriority int32 `json:"podPriority" protobuf:"varint,3,opt,name=podPriority"`

	// podSelector is what else the entry asks of a pod.
	// +optional
	// +k8s:opaqueType
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty" protobuf:"bytes,4,opt,name=podSelector"`

	// podCount is how many pods the wave waits for.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,5,opt,name=podCount"`

	// podsAsked is how many of them are asked to leave at once: in stage Drain now, before that as
	// soon as the maintenance drains and all its nodes are cordoned. Without other maintenances
	// these are the pods of the first wave. A maintenance on the same nodes that has come less far
	// makes it less; one that has come further makes it more, in later waves, too.
	// +optional
	PodsAsked int32 `json:"podsAsked" protobuf:"varint,6,opt,name=podsAsked"`

	// podsTerminating is how many of them have been told to stop already.
	// +optional
	PodsTerminating int32 `json:"podsTerminating,omitempty" protobuf:"varint,7,opt,name=podsTerminating"`

	// nodeCount is how many nodes they are on.
	// +optional
	NodeCount int32 `json:"nodeCount" protobuf:"varint,8,opt,name=nodeCount"`

	// evacuators counts the pods by who has the first turn; the class
	// eviction.maintenance.haulout.dev stands for the Eviction API. The most pods come first. At
	// most 50.
	// +optional
	// +listType=atomic
	Evacuators []PreviewEvacuator `json:"evacuators,omitempty" protobuf:"bytes,9,rep,name=evacuators"`

	// nodes has the pods by node and namespace, each in the order of their names. At most 1000 pods
	// of a wave and 5000 of all waves.
	// +optional
	// +listType=atomic
	Nodes []PreviewWaveNode `json:"nodes,omitempty" protobuf:"bytes,10,rep,name=nodes"`

	// podsOmitted is how many pods the wave has beyond those listed.
	// +optional
	PodsOmitted int32 `json:"podsOmitted,omitempty" protobuf:"varint,11,opt,name=podsOmitted"`
}

// PreviewEvacuator counts the pods of an evacuator.
type PreviewEvacuator struct {
	// evacuatorClass is the class of the evacuator; it is empty for pods that nothing is able to
	// take away.
	// +optional
	EvacuatorClass string `json:"evacuatorClass" protobuf:"bytes,1,opt,name=evacuatorClass"`

	// podCount is how many pods it is.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,2,opt,name=podCount"`
}

// PreviewWaveNode is the pods of a wave on a node.
type PreviewWaveNode struct {
	// name of the node.
	// +required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// podCount is how many pods of the wave are on the node.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,2,opt,name=podCount"`

	// namespaces has these pods by namespace.
	// +optional
	// +listType=atomic
	Namespaces []PreviewWaveNamespace `json:"namespaces,omitempty" protobuf:"bytes,3,rep,name=namespaces"`
}

// PreviewWaveNamespace is the pods of a wave on a node in a namespace.
type PreviewWaveNamespace struct {
	// name of the namespace.
	// +required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// pods of the namespace.
	// +optional
	// +listType=atomic
	Pods []PreviewPod `json:"pods,omitempty" protobuf:"bytes,2,rep,name=pods"`
}

// PreviewPod is a pod that has to leave.
type PreviewPod struct {
	// name of the pod.
	// +required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// evacuatorClasses are who takes the pod away: its evacuators in the order of their turns and,
	// for a pod of type Default, eviction at last. It is empty if nothing is able to.
	// +optional
	// +listType=atomic
	EvacuatorClasses []string `json:"evacuatorClasses,omitempty" protobuf:"bytes,2,rep,name=evacuatorClasses"`

	// blockers are the reasons of all blockers that the pod is among, the worst first.
	// +optional
	// +listType=atomic
	Blockers []string `json:"blockers,omitempty" protobuf:"bytes,3,rep,name=blockers"`

	// terminating says that the pod has been told to stop already.
	// +optional
	Terminating bool `json:"terminating,omitempty" protobuf:"varint,4,opt,name=terminating"`
}

// PreviewBlocker is trouble that some pods have in common.
type PreviewBlocker struct {
	// effect says what it comes to: Never, NotNow, Lost or Delayed.
	// +required
	// +k8s:required
	Effect PreviewEffect `json:"effect" protobuf:"bytes,1,opt,name=effect,casttype=PreviewEffect"`

	// reason is what it is: one of the reasons of the condition Blocked of Evacuations,
	// NoController or NamespaceTerminating.
	// +required
	Reason string `json:"reason" protobuf:"bytes,2,opt,name=reason"`

	// message says in words what is in the way, and what can be done.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,3,opt,name=message"`

	// budgets are the PodDisruptionBudgets behind it.
	// +optional
	// +listType=atomic
	Budgets []PreviewBudget `json:"budgets,omitempty" protobuf:"bytes,4,rep,name=budgets"`

	// rounds is into how many groups a budget breaks the pods up, one after the other, if it goes
	// on to allow what it allows now. The pods of a group leave together; their replacements have
	// to be ready before the next. 0 if it has nothing to do with rounds.
	// +optional
	Rounds int32 `json:"rounds,omitempty" protobuf:"varint,5,opt,name=rounds"`

	// podCount is how many pods it concerns.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,6,opt,name=podCount"`

	// pods are these pods, by namespace, name and node. At most 50.
	// +optional
	// +listType=atomic
	Pods []PreviewPodReference `json:"pods,omitempty" protobuf:"bytes,7,rep,name=pods"`

	// podsOmitted is how many pods there are beyond those listed.
	// +optional
	PodsOmitted int32 `json:"podsOmitted,omitempty" protobuf:"varint,8,opt,name=podsOmitted"`
}

// PreviewBudget is a PodDisruptionBudget as it was read.
type PreviewBudget struct {
	// namespace of the budget.
	// +required
	Namespace string `json:"namespace" protobuf:"bytes,1,opt,name=namespace"`

	// name of the budget.
	// +required
	Name string `json:"name" protobuf:"bytes,2,opt,name=name"`

	// disruptionsAllowed is how many evictions it allows now.
	// +optional
	DisruptionsAllowed int32 `json:"disruptionsAllowed" protobuf:"varint,3,opt,name=disruptionsAllowed"`
}

// PreviewPodReference names a pod and where it is.
type PreviewPodReference struct {
	// namespace of the pod.
	// +required
	Namespace string `json:"namespace" protobuf:"bytes,1,opt,name=namespace"`

	// name of the pod.
	// +required
	Name string `json:"name" protobuf:"bytes,2,opt,name=name"`

	// node is where the pod runs.
	// +required
	Node string `json:"node" protobuf:"bytes,3,opt,name=node"`
}

// PreviewPodsKept is pods that are left running for the same reason.
type PreviewPodsKept struct {
	// reason says in words why: "DaemonSet pod", "DaemonSet pod that tolerates the drain taint" or
	// "static pod".
	// +required
	Reason string `json:"reason" protobuf:"bytes,1,opt,name=reason"`

	// podCount is how many pods it is.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,2,opt,name=podCount"`

	// pods are these pods, by namespace, name and node. At most 50.
	// +optional
	// +listType=atomic
	Pods []PreviewPodReference `json:"pods,omitempty" protobuf:"bytes,3,rep,name=pods"`

	// podsOmitted is how many pods there are beyond those listed.
	// +optional
	PodsOmitted int32 `json:"podsOmitted,omitempty" protobuf:"varint,4,opt,name=podsOmitted"`
}

// PreviewMaintenance is another NodeMaintenance on some of the same nodes.
type PreviewMaintenance struct {
	// name of the maintenance.
	// +required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// stage of the maintenance. While one is in Drain, each of its nodes follows the plan of the
	// one that has come least far there.
	// +optional
	// +k8s:optional
	Stage NodeMaintenanceStage `json:"stage,omitempty" protobuf:"bytes,2,opt,name=stage,casttype=NodeMaintenanceStage"`

	// nodeCount is how many of the nodes it selects, too.
	// +optional
	NodeCount int32 `json:"nodeCount" protobuf:"varint,3,opt,name=nodeCount"`

	// nodesFastForwarded is on how many of these nodes it has come further than the plan of the
	// previewed maintenance would, so that the drain of these goes on from there.
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

	// refused says that the user of spec.requestedBy may not delete the node, so that it is neither
	// cordoned nor drained.
	// +optional
	Refused bool `json:"refused,omitempty" protobuf:"varint,3,opt,name=refused"`

	// podCount is how many pods have to leave the node; 0 if it is refused.
	// +optional
	PodCount int32 `json:"podCount" protobuf:"varint,4,opt,name=podCount"`

	// podsKept is how many pods are left running on the node on purpose.
	// +optional
	PodsKept int32 `json:"podsKept,omitempty" protobuf:"varint,5,opt,name=podsKept"`

	// message is the drainMessage that the node's status would have first in stage Drain: it names
	// other maintenances that hold the drain of the node back or have taken it further. In stage
	// Drain it is that of now.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,6,opt,name=message"`
}
