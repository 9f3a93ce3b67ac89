// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Owners finds the owners of pods. Each method returns nil for an object that does not exist, and
// an error only if the lookup fails.
type Owners interface {
	// ReplicaSet returns the ReplicaSet with its selector and owner references.
	ReplicaSet(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error)
	// Deployment returns the Deployment with its selector and, if set, the annotation that disables
	// its surge.
	Deployment(ctx context.Context, namespace, name string) (*appsv1.Deployment, error)
	// DaemonSet returns the DaemonSet with its selector.
	DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error)
	// Node returns the node with its conditions.
	Node(ctx context.Context, name string) (*corev1.Node, error)
}

// BuiltInClasses are the classes of the evacuators that pods get because of their owner, without an
// annotation: those of the server and that of the node agents, which acts only on nodes that have
// one.
var BuiltInClasses = []string{v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet}

// BuiltIn is the built-in evacuator of a pod, as its owner determines it. The zero value means that
// there is none.
type BuiltIn struct {
	// Class is the class of the evacuator.
	Class string
	// Deployment is the name of the Deployment. It is set for the class of Deployments, and if the
	// Deployment has opted out.
	Deployment string
	// OptedOut is set if there is no class because the pod's Deployment has the annotation that
	// disables its surge.
	OptedOut bool
}

// BuiltInOf returns the built-in evacuator of a pod, among the enabled ones. A user who can write a
// pod can set any owner, so the owner has to exist with that UID and has to select the pod. A
// static pod only has an evacuator on a node with a node agent. BuiltInOf reads the metadata of the
// pod and the name of its node.
func BuiltInOf(ctx context.Context, pod *corev1.Pod, on sets.Set[string], owners Owners) (BuiltIn, error) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return BuiltIn{}, nil
	}
	switch kind := GroupKindOf(owner); {
	case kind == AppsKind("ReplicaSet") && on.Has(v1alpha1.EvacuatorClassDeployment):
		deployment, err := deploymentOf(ctx, pod, owner, owners)
		switch {
		case err != nil || deployment == nil:
			return BuiltIn{}, err
		case deployment.Annotations[v1alpha1.AnnotationSurge] == v1alpha1.SurgeDisabled:
			// The Deployment has opted out, so its evacuator would decline.
			return BuiltIn{Deployment: deployment.Name, OptedOut: true}, nil
		}
		return BuiltIn{Class: v1alpha1.EvacuatorClassDeployment, Deployment: deployment.Name}, nil
	case kind == AppsKind("DaemonSet") && on.Has(v1alpha1.EvacuatorClassDaemonSet):
		daemonSet, err := owners.DaemonSet(ctx, pod.Namespace, owner.Name)
		if err != nil || daemonSet == nil || daemonSet.UID != owner.UID || !selects(daemonSet.Spec.Selector, pod) {
			return BuiltIn{}, err
		}
		return BuiltIn{Class: v1alpha1.EvacuatorClassDaemonSet}, nil
	case kind == corev1.SchemeGroupVersion.WithKind("Node").GroupKind() && on.Has(v1alpha1.EvacuatorClassKubelet):
		if _, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; !isMirror || pod.Spec.NodeName != owner.Name {
			return BuiltIn{}, nil
		}
		node, err := owners.Node(ctx, owner.Name)
		if err != nil || node == nil || node.UID != owner.UID || !HasNodeAgent(node) {
			return BuiltIn{}, err
		}
		return BuiltIn{Class: v1alpha1.EvacuatorClassKubelet}, nil
	}
	return BuiltIn{}, nil
}

// ControllerOf returns the controller of an object if it is of the given kind of the group apps, or
// nil.
func ControllerOf(object metav1.Object, kind string) *metav1.OwnerReference {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == kind && GroupKindOf(owner).Group == appsv1.GroupName {
		return owner
	}
	return nil
}

// GroupKindOf returns the group and the kind of an owner. They are empty if its version is invalid:
// the API server accepts such owner references, which refer to nothing.
func GroupKindOf(owner *metav1.OwnerReference) schema.GroupKind {
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return schema.GroupKind{}
	}
	return version.WithKind(owner.Kind).GroupKind()
}

// AppsKind returns a kind of the group apps.
func AppsKind(kind string) schema.GroupKind {
	return appsv1.SchemeGroupVersion.WithKind(kind).GroupKind()
}

// deploymentOf returns the Deployment that owns a pod through the ReplicaSet in owner, or nil if
// there is none.
func deploymentOf(ctx context.Context, pod *corev1.Pod, owner *metav1.OwnerReference, owners Owners) (*appsv1.Deployment, error) {
	replicaSet, err := owners.ReplicaSet(ctx, pod.Namespace, owner.Name)
	if err != nil || replicaSet == nil || replicaSet.UID != owner.UID || !selects(replicaSet.Spec.Selector, pod) {
		return nil, err
	}
	if owner = ControllerOf(replicaSet, "Deployment"); owner == nil {
		return nil, nil
	}
	deployment, err := owners.Deployment(ctx, pod.Namespace, owner.Name)
	if err != nil || deployment == nil || deployment.UID != owner.UID || !selects(deployment.Spec.Selector, pod) {
		return nil, err
	}
	return deployment, nil
}

// selects reports whether a selector matches a pod; an invalid selector matches none.
func selects(selector *metav1.LabelSelector, pod *corev1.Pod) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(pod.Labels))
}
