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

package maintenance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PreviewEffect says what trouble that a preview predicts comes to.
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
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenancePreview says what the drain of a NodeMaintenance would do if it began now or, in
// stage Drain, what it still has to do: the waves, who takes each pod away, and what is in the way.
// It is worked out on request from the cluster as it is, and never stored. Nothing is touched.
// Lists are cut to what can be read; the counts are always those of everything.
type NodeMaintenancePreview struct {
	metav1.TypeMeta
	// metadata has the name, uid, generation and creationTimestamp of the NodeMaintenance that this
	// is about.
	metav1.ObjectMeta

	// timestamp is when the server began to look at the cluster.
	Timestamp metav1.Time

	// stage is the stage of the NodeMaintenance. In Complete and while it is being deleted nothing
	// is to come, and there are no waves.
	Stage NodeMaintenanceStage

	// podCount is how many pods have to leave.
	PodCount int32

	// podsKeptCount is how many pods are left running on purpose.
	PodsKeptCount int32

	// nodeCount is how many nodes are selected.
	NodeCount int32

	// nodesRefused is how many of the nodes are left alone because the user of spec.requestedBy may
	// not delete them.
	NodesRefused int32

	// nodesUnchecked is how many of the nodes the preview takes for allowed without having asked.
	// The drain itself asks about each.
	NodesUnchecked int32

	// waves are the entries of the drain plan that have pods to wait for, in their order. Entries
	// without pods cost no time and are left out.
	Waves []PreviewWave

	// blockers are what is in the way, the worst first: by effect (Never, NotNow, Lost, Delayed),
	// then by the number of pods. Budgets are worked out for all pods of the drain together. At
	// most 200.
	Blockers []PreviewBlocker

	// blockersOmitted is how many blockers there are beyond those listed.
	BlockersOmitted int32

	// podsKept are the pods that are left running on purpose, by reason.
	PodsKept []PreviewPodsKept

	// maintenances are the other NodeMaintenances on the same nodes, by name; those in stage
	// Complete are not among them. At most 100.
	Maintenances []PreviewMaintenance

	// nodes are the selected nodes, by name. At most 5000.
	Nodes []PreviewNode

	// nodesOmitted is how many nodes there are beyond those listed.
	NodesOmitted int32
}

// PreviewWave is an entry of the drain plan with the pods that it is the first to cover.
type PreviewWave struct {
	// index is the place of the entry in spec.drainPlan, from 0.
	Index int32

	// podType is the type of the pods.
	PodType PodType

	// podPriority is the highest priority of a pod that the entry covers.
	PodPriority int32

	// podSelector is what else the entry asks of a pod.
	PodSelector *metav1.LabelSelector

	// podCount is how many pods the wave waits for.
	PodCount int32

	// podsAsked is how many of them are asked to leave at once: in stage Drain now, before that as
	// soon as the maintenance drains and all its nodes are cordoned. Without other maintenances
	// these are the pods of the first wave. A maintenance on the same nodes that has come less far
	// makes it less; one that has come further makes it more, in later waves, too.
	PodsAsked int32

	// podsTerminating is how many of them have been told to stop already.
	PodsTerminating int32

	// nodeCount is how many nodes they are on.
	NodeCount int32

	// evacuators counts the pods by who has the first turn; the class
	// eviction.maintenance.haulout.dev stands for the Eviction API. The most pods come first. At
	// most 50.
	Evacuators []PreviewEvacuator

	// nodes has the pods by node and namespace, each in the order of their names. At most 1000 pods
	// of a wave and 5000 of all waves.
	Nodes []PreviewWaveNode

	// podsOmitted is how many pods the wave has beyond those listed.
	PodsOmitted int32
}

// PreviewEvacuator counts the pods of an evacuator.
type PreviewEvacuator struct {
	// evacuatorClass is the class of the evacuator; it is empty for pods that nothing is able to
	// take away.
	EvacuatorClass string

	// podCount is how many pods it is.
	PodCount int32
}

// PreviewWaveNode is the pods of a wave on a node.
type PreviewWaveNode struct {
	// name of the node.
	Name string

	// podCount is how many pods of the wave are on the node.
	PodCount int32

	// namespaces has these pods by namespace.
	Namespaces []PreviewWaveNamespace
}

// PreviewWaveNamespace is the pods of a wave on a node in a namespace.
type PreviewWaveNamespace struct {
	// name of the namespace.
	Name string

	// pods of the namespace.
	Pods []PreviewPod
}

// PreviewPod is a pod that has to leave.
type PreviewPod struct {
	// name of the pod.
	Name string

	// evacuatorClasses are who takes the pod away: its evacuators in the order of their turns and,
	// for a pod of type Default, eviction at last. It is empty if nothing is able to.
	EvacuatorClasses []string

	// blockers are the reasons of all blockers that the pod is among, the worst first.
	Blockers []string

	// terminating says that the pod has been told to stop already.
	Terminating bool
}

// PreviewBlocker is trouble that some pods have in common.
type PreviewBlocker struct {
	// effect says what it comes to: Never, NotNow, Lost or Delayed.
	Effect PreviewEffect

	// reason is what it is: one of the reasons of the condition Blocked of Evacuations,
	// NoController or NamespaceTerminating.
	Reason string

	// message says in words what is in the way, and what can be done.
	Message string

	// budgets are the PodDisruptionBudgets behind it.
	Budgets []PreviewBudget

	// rounds is into how many groups a budget breaks the pods up, one after the other, if it goes
	// on to allow what it allows now. The pods of a group leave together; their replacements have
	// to be ready before the next. 0 if it has nothing to do with rounds.
	Rounds int32

	// podCount is how many pods it concerns.
	PodCount int32

	// pods are these pods, by namespace, name and node. At most 50.
	Pods []PreviewPodReference

	// podsOmitted is how many pods there are beyond those listed.
	PodsOmitted int32
}

// PreviewBudget is a PodDisruptionBudget as it was read.
type PreviewBudget struct {
	// namespace of the budget.
	Namespace string

	// name of the budget.
	Name string

	// disruptionsAllowed is how many evictions it allows now.
	DisruptionsAllowed int32
}

// PreviewPodReference names a pod and where it is.
type PreviewPodReference struct {
	// namespace of the pod.
	Namespace string

	// name of the pod.
	Name string

	// node is where the pod runs.
	Node string
}

// PreviewPodsKept is pods that are left running for the same reason.
type PreviewPodsKept struct {
	// reason says in words why: "DaemonSet pod", "DaemonSet pod that tolerates the drain taint" or
	// "static pod".
	Reason string

	// podCount is how many pods it is.
	PodCount int32

	// pods are these pods, by namespace, name and node. At most 50.
	Pods []PreviewPodReference

	// podsOmitted is how many pods there are beyond those listed.
	PodsOmitted int32
}

// PreviewMaintenance is another NodeMaintenance on some of the same nodes.
type PreviewMaintenance struct {
	// name of the maintenance.
	Name string

	// stage of the maintenance. While one is in Drain, each of its nodes follows the plan of the
	// one that has come least far there.
	Stage NodeMaintenanceStage

	// nodeCount is how many of the nodes it selects, too.
	NodeCount int32

	// nodesFastForwarded is on how many of these nodes it has come further than the plan of the
	// previewed maintenance would, so that the drain of these goes on from there.
	NodesFastForwarded int32
}

// PreviewNode is a selected node.
type PreviewNode struct {
	// name of the node.
	Name string

	// uid of the node.
	UID types.UID

	// refused says that the user of spec.requestedBy may not delete the node, so that it is neither
	// cordoned nor drained.
	Refused bool

	// podCount is how many pods have to leave the node; 0 if it is refused.
	PodCount int32

	// podsKept is how many pods are left running on the node on purpose.
	PodsKept int32

	// message is the drainMessage that the node's status would have first in stage Drain: it names
	// other maintenances that hold the drain of the node back or have taken it further. In stage
	// Drain it is that of now.
	Message string
}
