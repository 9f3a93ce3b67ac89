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

// PreviewEffect is the effect of a predicted problem on the pods.
type PreviewEffect string

const (
	// PreviewEffectNever means that the pods cannot leave until a user removes the cause.
	PreviewEffectNever PreviewEffect = "Never"
	// PreviewEffectNotNow means that the pods cannot leave now, which may change without action by
	// a user.
	PreviewEffectNotNow PreviewEffect = "NotNow"
	// PreviewEffectLost means that the pods leave, and no controller recreates them.
	PreviewEffectLost PreviewEffect = "Lost"
	// PreviewEffectDelayed means that the pods leave, but not all at the same time.
	PreviewEffectDelayed PreviewEffect = "Delayed"
)

const (
	// ReasonNoController (preview only): no controller owns the pod, so nothing recreates it.
	ReasonNoController = "NoController"
	// ReasonNamespaceTerminating (preview only): the namespace of the pod is being deleted. No
	// Evacuation can be created in it; its pods are deleted with the namespace.
	ReasonNamespaceTerminating = "NamespaceTerminating"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeMaintenancePreview predicts what the drain of a NodeMaintenance would do if it began now or,
// in stage Drain, what it still has to do: the waves, which evacuator removes each pod, and the
// blockers. The server computes it on request from the current state of the cluster, changes
// nothing, and does not store it. Long lists are truncated; counts always cover all objects.
type NodeMaintenancePreview struct {
	metav1.TypeMeta
	// metadata has the name, uid, generation and creationTimestamp of the previewed
	// NodeMaintenance.
	metav1.ObjectMeta

	// timestamp is the time at which the server began to read the state of the cluster.
	Timestamp metav1.Time

	// stage is the stage of the NodeMaintenance. In stage Complete, and while the NodeMaintenance
	// is being deleted, there are no waves.
	Stage NodeMaintenanceStage

	// podCount is the number of pods that have to leave.
	PodCount int32

	// podsKeptCount is the number of pods that are kept running on purpose.
	PodsKeptCount int32

	// nodeCount is the number of selected nodes.
	NodeCount int32

	// nodesRefused is the number of selected nodes that are neither cordoned nor drained because
	// the user in spec.requestedBy is not allowed to delete them.
	NodesRefused int32

	// nodesUnchecked is the number of selected nodes that the preview assumes to be allowed without
	// an authorization check. The drain itself checks every node.
	NodesUnchecked int32

	// waves are the entries of the drain plan that have pods to wait for, in the order of the plan.
	// Entries without pods are omitted.
	Waves []PreviewWave

	// blockers are the predicted problems, the worst first: by effect (Never, NotNow, Lost,
	// Delayed), then by the number of pods. Budgets are evaluated for all pods of the drain
	// together. At most 200.
	Blockers []PreviewBlocker

	// blockersOmitted is the number of blockers that are not listed.
	BlockersOmitted int32

	// podsKept are the pods that are kept running on purpose, grouped by reason.
	PodsKept []PreviewPodsKept

	// maintenances are the other NodeMaintenances that select some of the same nodes, sorted by
	// name, except those in stage Complete. At most 100.
	Maintenances []PreviewMaintenance

	// nodes are the selected nodes, sorted by name. At most 5000.
	Nodes []PreviewNode

	// nodesOmitted is the number of nodes that are not listed.
	NodesOmitted int32
}

// PreviewWave is an entry of the drain plan with the pods that it covers and no earlier entry does.
type PreviewWave struct {
	// index is the index of the entry in spec.drainPlan, starting at 0.
	Index int32

	// podType is the type of the pods.
	PodType PodType

	// podPriority is the highest priority of a pod that the entry covers.
	PodPriority int32

	// podSelector is the pod selector of the entry. If unset, the entry covers all pods of the
	// type.
	PodSelector *metav1.LabelSelector

	// podCount is the number of pods that the wave waits for.
	PodCount int32

	// podsAsked is the number of these pods that are asked to leave at the same time: in stage
	// Drain now, before that as soon as the maintenance is in stage Drain and all its nodes are
	// cordoned. Without other maintenances these are the pods of the first wave. Another
	// maintenance on the same nodes lowers the number if it is at an earlier wave, and raises it,
	// in later waves too, if it is at a later one.
	PodsAsked int32

	// podsTerminating is the number of these pods that are already terminating.
	PodsTerminating int32

	// nodeCount is the number of nodes that these pods run on.
	NodeCount int32

	// evacuators counts the pods by the class that becomes active first. The class
	// eviction.maintenance.haulout.dev means the Eviction API. Sorted by the number of pods, the
	// highest first. At most 50.
	Evacuators []PreviewEvacuator

	// nodes lists the pods by node and namespace, each sorted by name. At most 1000 pods of one
	// wave and 5000 of all waves.
	Nodes []PreviewWaveNode

	// podsOmitted is the number of pods of the wave that are not listed.
	PodsOmitted int32
}

// PreviewEvacuator counts the pods of an evacuator.
type PreviewEvacuator struct {
	// evacuatorClass is the class of the evacuator. It is empty for pods that no evacuator is able
	// to remove.
	EvacuatorClass string

	// podCount is the number of pods.
	PodCount int32
}

// PreviewWaveNode lists the pods of a wave on one node.
type PreviewWaveNode struct {
	// name of the node.
	Name string

	// podCount is the number of pods of the wave on the node.
	PodCount int32

	// namespaces lists these pods by namespace.
	Namespaces []PreviewWaveNamespace
}

// PreviewWaveNamespace lists the pods of a wave on one node in one namespace.
type PreviewWaveNamespace struct {
	// name of the namespace.
	Name string

	// pods are the pods in the namespace.
	Pods []PreviewPod
}

// PreviewPod is a pod that has to leave.
type PreviewPod struct {
	// name of the pod.
	Name string

	// evacuatorClasses are the classes that may remove the pod, in the order in which they become
	// active: its evacuators and, for a pod of type Default, eviction as the last one. It is empty
	// if no evacuator is able to remove the pod.
	EvacuatorClasses []string

	// blockers are the reasons of all blockers that affect the pod, the worst first.
	Blockers []string

	// terminating is true if the pod is already terminating.
	Terminating bool
}

// PreviewBlocker is a predicted problem that one or more pods share.
type PreviewBlocker struct {
	// effect is the effect of the problem on the pods: Never, NotNow, Lost or Delayed.
	Effect PreviewEffect

	// reason identifies the problem: one of the reasons of the condition Blocked of Evacuations,
	// NoController, NamespaceTerminating or TurnsByOwner.
	Reason string

	// message describes the problem for people, with a remedy.
	Message string

	// budgets are the PodDisruptionBudgets that cause the problem.
	Budgets []PreviewBudget

	// rounds is the number of groups in which a budget lets the pods leave, one group after the
	// other, if it continues to allow as many disruptions as now. The pods of a group leave
	// together; their replacements have to be ready before the next group leaves. 0 if the problem
	// does not depend on rounds.
	Rounds int32

	// podCount is the number of affected pods.
	PodCount int32

	// pods are these pods, with namespace, name and node. At most 50.
	Pods []PreviewPodReference

	// podsOmitted is the number of pods that are not listed.
	PodsOmitted int32
}

// PreviewBudget is the state of a PodDisruptionBudget when the preview was computed.
type PreviewBudget struct {
	// namespace of the budget.
	Namespace string

	// name of the budget.
	Name string

	// disruptionsAllowed is the number of evictions that the budget allowed.
	DisruptionsAllowed int32
}

// PreviewPodReference identifies a pod and its node.
type PreviewPodReference struct {
	// namespace of the pod.
	Namespace string

	// name of the pod.
	Name string

	// node is the name of the node that the pod runs on.
	Node string
}

// PreviewPodsKept lists pods that are kept running for the same reason.
type PreviewPodsKept struct {
	// reason describes for people why the pods are kept: "DaemonSet pod", "DaemonSet pod that
	// tolerates the drain taint" or "static pod".
	Reason string

	// podCount is the number of pods.
	PodCount int32

	// pods are these pods, with namespace, name and node. At most 50.
	Pods []PreviewPodReference

	// podsOmitted is the number of pods that are not listed.
	PodsOmitted int32
}

// PreviewMaintenance is another NodeMaintenance that selects some of the same nodes.
type PreviewMaintenance struct {
	// name of the maintenance.
	Name string

	// stage of the maintenance. A node that several maintenances in stage Drain select follows the
	// plan of the one that is at the earliest wave there.
	Stage NodeMaintenanceStage

	// nodeCount is the number of nodes that both maintenances select.
	NodeCount int32

	// nodesFastForwarded is the number of these nodes on which the other maintenance is already at
	// a later wave than the previewed maintenance would be. The drain of these nodes continues from
	// there.
	NodesFastForwarded int32
}

// PreviewNode is a selected node.
type PreviewNode struct {
	// name of the node.
	Name string

	// uid of the node.
	UID types.UID

	// refused is true if the user in spec.requestedBy is not allowed to delete the node, which is
	// therefore neither cordoned nor drained.
	Refused bool

	// podCount is the number of pods that have to leave the node. 0 if the node is refused.
	PodCount int32

	// podsKept is the number of pods that are kept running on the node on purpose.
	PodsKept int32

	// message is the first drainMessage that the node's status would have in stage Drain, or its
	// current one in stage Drain. It names other maintenances that delay the drain of the node or
	// have already advanced it.
	Message string
}
