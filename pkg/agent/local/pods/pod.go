// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package pods provides the pods of this node without the API server: it keeps a copy of them on
// disk and reads the manifests of the kubelet's static pods.
package pods

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	annotationConfigHash   = "kubernetes.io/config.hash"
	annotationConfigSource = "kubernetes.io/config.source"
	sourceAPI              = "api"
)

// Pod has the data that the agent needs to end a pod without the API server, and that the container
// runtime does not have.
type Pod struct {
	// UID is the UID in the API; for a static pod, the UID of its mirror pod. It is empty if the
	// static pod is only known from its manifest.
	UID types.UID `json:"uid,omitempty"`
	// ConfigHash is the UID of a static pod in the kubelet and the container runtime.
	ConfigHash string `json:"configHash,omitempty"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Priority   int32  `json:"priority"`
	// Static is true for a pod whose manifest comes from a file or a URL.
	Static bool `json:"static,omitempty"`
	// Finished is true for a pod in phase Succeeded or Failed.
	Finished bool `json:"finished,omitempty"`
	// Sidecars are the names of the init containers that run until the pod ends, in the order in
	// which they are started.
	Sidecars    []string        `json:"sidecars,omitempty"`
	GracePeriod metav1.Duration `json:"gracePeriod"`
}

// IsStatic reports whether a pod with these annotations is a static pod or the mirror pod of one.
func IsStatic(annotations map[string]string) bool {
	if _, mirror := annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	source, found := annotations[annotationConfigSource]
	return found && source != sourceAPI
}

// UnknownPriority returns the priority of a pod if only its namespace is known: the lowest priority
// or, in namespace kube-system, the priority of class system-cluster-critical. If the pods of
// kube-system ended first, the node would have no network, for example, while later buckets end.
func UnknownPriority(namespace string) int32 {
	if namespace == metav1.NamespaceSystem {
		return v1alpha1.SystemClusterCritical
	}
	return math.MinInt32
}

// newPod returns the stored part of a pod from the API or from a manifest.
func newPod(pod *corev1.Pod) Pod {
	p := Pod{
		UID:       pod.UID,
		Namespace: pod.Namespace,
		Name:      pod.Name,
		Priority:  PriorityOf(pod),
		Static:    IsStatic(pod.Annotations),
		Finished:  pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
	}
	if p.Static {
		p.ConfigHash = cmp.Or(pod.Annotations[corev1.MirrorPodAnnotationKey], pod.Annotations[annotationConfigHash])
	}
	grace := GraceSeconds(pod)
	if pod.DeletionGracePeriodSeconds != nil {
		grace = *pod.DeletionGracePeriodSeconds
	}
	p.GracePeriod.Duration = time.Duration(min(max(grace, 0), math.MaxInt32)) * time.Second
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			p.Sidecars = append(p.Sidecars, c.Name)
		}
	}
	return p
}

// PriorityOf returns the priority of a pod. A manifest often has only the priority class, without
// the number. The kubelet then uses priority 0 and ends the node's most important pods first
// (kubernetes/kubernetes issues 113940 and 133442).
func PriorityOf(pod *corev1.Pod) int32 {
	switch {
	case pod.Spec.Priority != nil:
		return *pod.Spec.Priority
	case pod.Spec.PriorityClassName == "system-cluster-critical":
		return v1alpha1.SystemClusterCritical
	case pod.Spec.PriorityClassName == "system-node-critical":
		return v1alpha1.SystemNodeCritical
	}
	return 0
}

// GraceSeconds returns the grace period of a pod's spec.
func GraceSeconds(pod *corev1.Pod) int64 {
	return ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
}

// Index finds pods by UID or name.
type Index struct {
	byUID  map[string]Pod
	byName map[types.NamespacedName]Pod
}

// NewIndex returns an index of pods.
func NewIndex(pods []Pod) Index {
	i := Index{byUID: make(map[string]Pod, len(pods)), byName: make(map[types.NamespacedName]Pod, len(pods))}
	for _, p := range pods {
		uid := string(p.UID)
		if p.Static {
			uid = p.ConfigHash
		}
		// Any user can write the hash of a static pod: it must not hide the UID of another pod.
		if other, found := i.byUID[uid]; uid != "" && (!found || other.Static && (!p.Static || other.Priority < p.Priority)) {
			i.byUID[uid] = p
		}
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		if other, found := i.byName[name]; !found || other.Priority < p.Priority {
			i.byName[name] = p
		}
	}
	return i
}

// Find returns the pod with a UID of the container runtime. If none has it, Find returns the pod
// with the name: the manifest of a static pod does not have the UID, and a newer pod of a
// StatefulSet has the priority of the older one.
func (i Index) Find(uid types.UID, namespace, name string) (Pod, bool) {
	if p, found := i.byUID[string(uid)]; found {
		return p, true
	}
	p, found := i.byName[types.NamespacedName{Namespace: namespace, Name: name}]
	return p, found
}

// merge adds the static pods of manifests to the pods from the API. If a static pod has a mirror
// pod, and so is in both lists, the result has only the mirror pod: it has the priority that the
// API server derived from its class.
func merge(fromAPI, manifests []Pod) []Pod {
	merged := slices.Clone(fromAPI)
	mirrors := make(map[types.NamespacedName]int)
	for i, p := range merged {
		if p.Static {
			mirrors[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = i
		}
	}
	for _, m := range manifests {
		i, found := mirrors[types.NamespacedName{Namespace: m.Namespace, Name: m.Name}]
		if !found {
			merged = append(merged, m)
			continue
		}
		merged[i].Priority = max(merged[i].Priority, m.Priority)
	}
	slices.SortFunc(merged, compare)
	return merged
}

func compare(a, b Pod) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(string(a.UID), string(b.UID)))
}
