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

package evacuation

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// BuiltInClasses are the evacuators that pods get by their owner, without an annotation.
var BuiltInClasses = []string{v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet}

// builtInEvacuator is what a pod's owner says about who evacuates it. Its zero value stands for nobody.
type builtInEvacuator struct {
	class string
	// deployment is the name of the Deployment, for that class.
	deployment string
}

// builtInFor returns the built-in evacuator of a pod. Anybody who may write a pod can give it any owner, so the owner has to exist, with
// that UID, and has to select the pod.
func (p *Plugin) builtInFor(ctx context.Context, pod *corev1.Pod) (builtInEvacuator, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return builtInEvacuator{}, nil
	}
	groupVersion, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		// A reference that nothing can be found with; the API server lets such pods exist.
		return builtInEvacuator{}, nil
	}
	switch kind := groupVersion.WithKind(owner.Kind).GroupKind(); {
	case kind == appsKind("ReplicaSet") && p.builtIn.Has(v1alpha1.EvacuatorClassDeployment):
		deployment, err := p.deploymentOf(ctx, pod, owner)
		if err != nil || deployment == "" {
			return builtInEvacuator{}, err
		}
		return builtInEvacuator{class: v1alpha1.EvacuatorClassDeployment, deployment: deployment}, nil
	case kind == appsKind("DaemonSet") && p.builtIn.Has(v1alpha1.EvacuatorClassDaemonSet):
		daemonSet, err := p.client.AppsV1().DaemonSets(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if is, err := found(daemonSet, err, owner); err != nil || !is || !selects(daemonSet.Spec.Selector, pod) {
			return builtInEvacuator{}, err
		}
		return builtInEvacuator{class: v1alpha1.EvacuatorClassDaemonSet}, nil
	case kind == corev1.SchemeGroupVersion.WithKind("Node").GroupKind() && p.builtIn.Has(v1alpha1.EvacuatorClassKubelet):
		if _, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; !isMirror || pod.Spec.NodeName != owner.Name {
			return builtInEvacuator{}, nil
		}
		node, err := p.client.CoreV1().Nodes().Get(ctx, owner.Name, metav1.GetOptions{})
		if is, err := found(node, err, owner); err != nil || !is {
			return builtInEvacuator{}, err
		}
		return builtInEvacuator{class: v1alpha1.EvacuatorClassKubelet}, nil
	}
	return builtInEvacuator{}, nil
}

func appsKind(kind string) schema.GroupKind {
	return appsv1.SchemeGroupVersion.WithKind(kind).GroupKind()
}

// deploymentOf returns the name of the Deployment that owns a pod through the ReplicaSet in owner, and "" if there is none.
func (p *Plugin) deploymentOf(ctx context.Context, pod *corev1.Pod, owner *metav1.OwnerReference) (string, error) {
	replicaSet, err := p.client.AppsV1().ReplicaSets(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if is, err := found(replicaSet, err, owner); err != nil || !is || !selects(replicaSet.Spec.Selector, pod) {
		return "", err
	}
	owner = metav1.GetControllerOf(replicaSet)
	if owner == nil || owner.Kind != "Deployment" {
		return "", nil
	}
	if groupVersion, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || groupVersion.Group != appsv1.GroupName {
		return "", nil
	}
	deployment, err := p.client.AppsV1().Deployments(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if is, err := found(deployment, err, owner); err != nil || !is || !selects(deployment.Spec.Selector, pod) {
		return "", err
	}
	return deployment.Name, nil
}

// found says whether what was read is the very object that a reference means.
func found(object metav1.Object, err error, reference *metav1.OwnerReference) (bool, error) {
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("get %s %s from the host cluster: %w", reference.Kind, reference.Name, err))
	}
	return object.GetUID() == reference.UID, nil
}

// selects says whether a selector matches a pod; one that cannot be read matches none.
func selects(selector *metav1.LabelSelector, pod *corev1.Pod) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(pod.Labels))
}
