// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// controlPlaneLabels are the labels of Nodes that run a part of a control plane in common
// distributions.
var controlPlaneLabels = []string{
	"node-role.kubernetes.io/control-plane",
	"node-role.kubernetes.io/master",
	"node-role.kubernetes.io/etcd",
	"node-role.kubernetes.io/controlplane",
	"node-role.kubernetes.io/api-server",
}

// IsControlPlane reports whether a Node has a control plane label.
func IsControlPlane(node *corev1.Node) bool {
	return node != nil && slices.ContainsFunc(controlPlaneLabels, func(label string) bool {
		_, ok := node.Labels[label]
		return ok
	})
}

// RunsControlPlane reports whether a Node has a control plane label, or its agent has published
// that kube-apiserver or etcd runs as a static pod on it, in this boot or an earlier one: an
// installer need not set a label. Only the limits of rollouts use it. A node can publish that
// falsely, so it must not decide about rights.
func RunsControlPlane(node *corev1.Node) bool {
	if node == nil || IsControlPlane(node) {
		return node != nil
	}
	published := node.Annotations[v1alpha1.AnnotationKeptStaticPods]
	var kept KeptStaticPods
	return strings.Contains(published, `"controlPlane"`) && json.Unmarshal([]byte(published), &kept) == nil && kept.ControlPlane
}

// KeptReason is the reason why a drain keeps a static pod running although its node has an agent;
// empty if the drain stops the pod.
type KeptReason string

const (
	// KeptControlPlane is the reason for all static pods of a control-plane node, and for static
	// pods on other nodes that run a control-plane component.
	KeptControlPlane KeptReason = "ControlPlaneNode"
	// KeptServesAPI is the reason for static pods through which the kubelet of the node may reach
	// the API server.
	KeptServesAPI KeptReason = "ServesTheAPI"
	// KeptByConfiguration is the reason for static pods that are kept according to the agent's
	// configuration.
	KeptByConfiguration KeptReason = "KeptByConfiguration"
	// KeptUndecided is the reason for static pods whose purpose the agent cannot determine.
	KeptUndecided KeptReason = "Undecided"
	// KeptUnpublished is the reason for all static pods of a node whose agent has not published the
	// list of kept pods in this boot.
	KeptUnpublished KeptReason = "NotPublished"
)

const (
	// MaxKeptStaticPods is the maximum number of names in the annotation.
	MaxKeptStaticPods = 64
	// everyPod stands for all static pods of the node.
	everyPod = "*"
)

// KeptStaticPods is the value of the annotation with which a node agent publishes the static pods
// that it keeps running. The server must not trust the value, since a node writes it: the value can
// keep a pod on that node and let it count as a control-plane node for rollouts, but cannot cause
// the evacuation of a pod.
type KeptStaticPods struct {
	// BootID is status.nodeInfo.bootID of the Node.
	BootID string `json:"bootID"`
	// ControlPlane is true if kube-apiserver or etcd runs on the node as a static pod.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// Pods has the reasons by <namespace>/<name>; "*" stands for all static pods of the node.
	Pods map[string]KeptReason `json:"pods,omitempty"`
}

// EncodeKeptStaticPods returns the value of the annotation for pods by <namespace>/<name>. If there
// are more than MaxKeptStaticPods, the value stands for all static pods of the node. The result is
// deterministic.
func EncodeKeptStaticPods(bootID string, controlPlane bool, pods map[string]KeptReason) string {
	kept := KeptStaticPods{BootID: bootID, ControlPlane: controlPlane, Pods: pods}
	if len(pods) > MaxKeptStaticPods {
		first := slices.Min(slices.Collect(maps.Keys(pods)))
		kept.Pods = map[string]KeptReason{everyPod: pods[first]}
	}
	text, err := json.Marshal(kept)
	if err != nil {
		panic(err) // cannot fail: the value has only strings
	}
	return string(text)
}

// StaticPodFacts has the data of a Node about its static pods. Nodes with equal facts keep the same
// pods.
type StaticPodFacts struct {
	hasAgent, isControlPlane bool
	bootID, published        string
}

// StaticPodFactsOf returns the facts of a Node. It reads the labels, Haulout's annotations, the
// conditions and status.nodeInfo.bootID of the Node.
func StaticPodFactsOf(node *corev1.Node) StaticPodFacts {
	f := StaticPodFacts{hasAgent: HasNodeAgent(node), isControlPlane: IsControlPlane(node)}
	if node != nil {
		f.bootID, f.published = node.Status.NodeInfo.BootID, node.Annotations[v1alpha1.AnnotationKeptStaticPods]
	}
	return f
}

// Kept returns the reason why a static pod of the node is kept, provided that the node has an
// agent. The labels of the Node take precedence over the annotation of the agent. If the annotation
// cannot be read, the pod is kept.
func (f StaticPodFacts) Kept(namespace, name string) KeptReason {
	if f.isControlPlane {
		return KeptControlPlane
	}
	var kept KeptStaticPods
	if json.Unmarshal([]byte(f.published), &kept) != nil || kept.BootID != f.bootID {
		return KeptUnpublished
	}
	for _, key := range []string{everyPod, namespace + "/" + name} {
		if reason, ok := kept.Pods[key]; ok {
			return reason.orUndecided()
		}
	}
	return ""
}

// orUndecided replaces an unknown reason with KeptUndecided: reasons are shown to users, and a node
// can write any text.
func (r KeptReason) orUndecided() KeptReason {
	switch r {
	case KeptControlPlane, KeptServesAPI, KeptByConfiguration:
		return r
	}
	return KeptUndecided
}
