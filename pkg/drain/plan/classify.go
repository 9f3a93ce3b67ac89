// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// KeptReason is the reason why a pod is kept running on purpose; it is empty for a pod that leaves.
type KeptReason string

const (
	// KeptDaemonSet is the reason of DaemonSet pods if their evacuator is disabled.
	KeptDaemonSet KeptReason = "DaemonSet pod"
	// KeptTolerant is the reason of DaemonSet pods that tolerate our taint. They would be recreated
	// immediately after an eviction.
	KeptTolerant KeptReason = "DaemonSet pod that tolerates the drain taint"
	// KeptStatic is the reason of static pods on a node without a node agent. On a node with a node
	// agent, the reason also contains the cause (see the method KeptStatic).
	KeptStatic KeptReason = "static pod"
	// KeptBudget is the reason of DaemonSet pods whose budget has allowed no disruption for too
	// long. They are evicted if the budget allows it later.
	KeptBudget KeptReason = "DaemonSet pod whose budget allows no disruption"
	// KeptSkipped is the reason of pods that the drain plan skips. A pod is kept for this reason
	// only while the plans of all maintenances that drain its node do so.
	KeptSkipped KeptReason = "pod that the drain plan skips"
	// KeptOwn is the reason of pods of the server that were recreated on a node that a maintenance
	// holds.
	KeptOwn KeptReason = "server pod that came back"
	// KeptInTask is the reason of pods on a node that a worker has in its hands.
	KeptInTask KeptReason = "pod kept during a node task"
)

// KeptStatic returns the reason why a static pod is kept on a node with a node agent; it is empty
// for other pods.
func (r KeptReason) KeptStatic() protocol.KeptReason {
	reason, _ := strings.CutPrefix(string(r), string(KeptStatic)+" (")
	if reason == string(r) {
		return ""
	}
	return protocol.KeptReason(strings.TrimSuffix(reason, ")"))
}

// IsStatic reports whether r is the reason of a static pod.
func (r KeptReason) IsStatic() bool { return r == KeptStatic || r.KeptStatic() != "" }

// IsLive reports whether a pod runs, will run, or still uses its node. Terminating pods are live
// until they are deleted, since the kubelet still has to unmount their volumes after their
// containers have ended. A pod that only a finalizer keeps is not live.
func IsLive(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		return true
	}
	// The kubelet sets the grace period to 0 after it has cleaned up the pod.
	grace := pod.DeletionGracePeriodSeconds
	return pod.DeletionTimestamp != nil && (grace == nil || *grace > 0)
}

// TypeOf returns the type of a pod on a node with the given UID. Any user can set the mirror
// annotation, so a pod is only static if the node is its controller, too.
func TypeOf(pod *corev1.Pod, node types.UID) v1alpha1.PodType {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return v1alpha1.PodTypeDefault
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror && owner.Kind == "Node" && owner.APIVersion == "v1" && owner.UID == node {
		return v1alpha1.PodTypeStatic
	}
	if protocol.ControllerOf(pod, "DaemonSet") != nil {
		return v1alpha1.PodTypeDaemonSet
	}
	return v1alpha1.PodTypeDefault
}

// PodOf returns the fields of a pod that the planner needs, for a pod on a node with the given UID.
func PodOf(pod *corev1.Pod, node types.UID) Pod {
	p := Pod{Type: TypeOf(pod, node), Labels: pod.Labels}
	if pod.Spec.Priority != nil {
		p.Priority = *pod.Spec.Priority
	}
	return p
}

// Kept returns the reason why a pod of the given type on a node is kept running. evacuators are the
// enabled built-in evacuators.
func Kept(pod *corev1.Pod, podType v1alpha1.PodType, node *corev1.Node, evacuators sets.Set[string]) KeptReason {
	switch podType {
	case v1alpha1.PodTypeStatic:
		if !evacuators.Has(v1alpha1.EvacuatorClassKubelet) || !protocol.HasNodeAgent(node) {
			return KeptStatic
		}
		if reason := protocol.StaticPodFactsOf(node).Kept(pod.Namespace, pod.Name); reason != "" {
			return KeptReason(fmt.Sprintf("%s (%s)", KeptStatic, reason))
		}
	case v1alpha1.PodTypeDaemonSet:
		if !evacuators.Has(v1alpha1.EvacuatorClassDaemonSet) {
			return KeptDaemonSet
		}
		if toleratesDrain(pod) {
			return KeptTolerant
		}
	}
	return ""
}

// IsTainted reports whether a node has the taint that prevents new DaemonSet pods on it, regardless
// of which client added it.
func IsTainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == v1alpha1.TaintDrain && t.Effect == corev1.TaintEffectNoSchedule
	})
}

func toleratesDrain(pod *corev1.Pod) bool {
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		if t.Effect != "" && t.Effect != corev1.TaintEffectNoSchedule {
			continue
		}
		// Our taint has no value, so a toleration with the operator Equal tolerates it only without
		// a value.
		if t.Operator == corev1.TolerationOpExists && (t.Key == "" || t.Key == v1alpha1.TaintDrain) {
			return true
		}
		if (t.Operator == corev1.TolerationOpEqual || t.Operator == "") && t.Key == v1alpha1.TaintDrain && t.Value == "" {
			return true
		}
	}
	return false
}

// Siblings identifies the pods of a controller in one zone, most of which are equal but for their
// names and nodes. Kubernetes 1.35 and later give each pod the label of its node's zone, so the
// labels of the controller's other pods differ.
type Siblings struct {
	controller types.UID
	zone       string
}

// SiblingsOf returns the siblings of a pod with the given labels and controller. If controller is
// nil, these are the pods of the zone without a controller.
func SiblingsOf(labels map[string]string, controller *metav1.OwnerReference) Siblings {
	of := Siblings{zone: labels[corev1.LabelTopologyZone]}
	if controller != nil {
		of.controller = controller.UID
	}
	return of
}
