// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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
	// ReasonJobFails (preview only): the Job of the pods fails when they are evicted, since it
	// allows no more failures.
	ReasonJobFails = "JobFails"
	// ReasonPodNominated (preview only): the pods are only nominated for the node, not bound to it,
	// so the drain does not evict them and waits for the scheduler.
	ReasonPodNominated = "PodNominated"
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

	Timestamp metav1.Time

	Stage NodeMaintenanceStage

	PodCount int32

	PodsKeptCount int32

	NodeCount int32

	NodesRefused int32

	NodesUnchecked int32

	Waves []PreviewWave

	Blockers []PreviewBlocker

	BlockersOmitted int32

	PodsKept []PreviewPodsKept

	Maintenances []PreviewMaintenance

	Nodes []PreviewNode

	NodesOmitted int32
}

// PreviewWave is an entry of the drain plan with its pods, except those that an earlier entry
// covers.
type PreviewWave struct {
	Index           int32
	PodType         PodType
	PodPriority     int32
	PodSelector     *metav1.LabelSelector
	PodCount        int32
	PodsAsked       int32
	PodsTerminating int32
	NodeCount       int32
	Evacuators      []PreviewEvacuator
	Nodes           []PreviewWaveNode
	PodsOmitted     int32
}

// PreviewEvacuator counts the pods of an evacuator.
type PreviewEvacuator struct {
	EvacuatorClass string
	PodCount       int32
}

// PreviewWaveNode lists the pods of a wave on one node.
type PreviewWaveNode struct {
	Name       string
	PodCount   int32
	Namespaces []PreviewWaveNamespace
}

// PreviewWaveNamespace lists the pods of a wave on one node in one namespace.
type PreviewWaveNamespace struct {
	Name string
	Pods []PreviewPod
}

// PreviewPod is a pod that has to leave.
type PreviewPod struct {
	Name             string
	EvacuatorClasses []string
	Blockers         []string
	Terminating      bool
}

// PreviewBlocker is a predicted problem that one or more pods share.
type PreviewBlocker struct {
	Effect      PreviewEffect
	Reason      string
	Message     string
	Budgets     []PreviewBudget
	Rounds      int32
	PodCount    int32
	Pods        []PreviewPodReference
	PodsOmitted int32
}

// PreviewBudget is the state of a PodDisruptionBudget when the preview was computed.
type PreviewBudget struct {
	Namespace          string
	Name               string
	DisruptionsAllowed int32
}

// PreviewPodReference identifies a pod and its node.
type PreviewPodReference struct {
	Namespace string
	Name      string
	Node      string
}

// PreviewPodsKept lists pods that are kept running for the same reason.
type PreviewPodsKept struct {
	Reason      string
	PodCount    int32
	Pods        []PreviewPodReference
	PodsOmitted int32
}

// PreviewMaintenance is another NodeMaintenance that selects some of the same nodes.
type PreviewMaintenance struct {
	Name               string
	Stage              NodeMaintenanceStage
	NodeCount          int32
	NodesFastForwarded int32
}

// PreviewNode is a selected node.
type PreviewNode struct {
	Name     string
	UID      types.UID
	Refused  bool
	PodCount int32
	PodsKept int32
	Message  string
}
