// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"maps"
	"reflect"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"

	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// maxSiblings is the maximum number of groups of siblings whose latest pod is remembered. After an
// entry was evicted, the next pod of the group does not share its parts and takes more memory.
const maxSiblings = 30000

// sharing makes pods share equal parts. This is safe because objects in the cache of an informer
// are never changed.
type sharing struct {
	// latest has the parts of the latest pod, by siblings.
	latest *lru.Cache
}

func newSharing() *sharing {
	return &sharing{latest: lru.New(maxSiblings)}
}

// share replaces parts of a pod with the parts of its latest sibling, if they are equal.
func (s *sharing) share(pod *corev1.Pod) {
	pod.Namespace = once(pod.Namespace)
	pod.Spec.NodeName = once(pod.Spec.NodeName)
	pod.Status.Phase = once(pod.Status.Phase)
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		c.Type, c.Status, c.Reason, c.Message = once(c.Type), once(c.Status), once(c.Reason), once(c.Message)
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return
	}
	of := drainplan.SiblingsOf(pod.Labels, owner)
	if sibling, ok := s.latest.Get(of); ok {
		shareParts(pod, sibling.(*parts))
	}
	s.latest.Add(of, &parts{
		labels: pod.Labels, owners: pod.OwnerReferences, tolerations: pod.Spec.Tolerations, finalizers: pod.Finalizers, annotations: pod.Annotations,
		priority: pod.Spec.Priority, grace: pod.Spec.TerminationGracePeriodSeconds, volumes: pod.Spec.Volumes,
	})
}

// parts has the parts of a pod that its siblings may share.
type parts struct {
	labels, annotations map[string]string
	owners              []metav1.OwnerReference
	tolerations         []corev1.Toleration
	finalizers          []string
	volumes             []corev1.Volume
	priority            *int32
	grace               *int64
}

func shareParts(pod *corev1.Pod, p *parts) {
	if maps.Equal(pod.Labels, p.labels) {
		pod.Labels = p.labels
	}
	if maps.Equal(pod.Annotations, p.annotations) {
		pod.Annotations = p.annotations
	}
	if reflect.DeepEqual(pod.OwnerReferences, p.owners) {
		pod.OwnerReferences = p.owners
	}
	if reflect.DeepEqual(pod.Spec.Tolerations, p.tolerations) {
		pod.Spec.Tolerations = p.tolerations
	}
	if reflect.DeepEqual(pod.Spec.Volumes, p.volumes) {
		pod.Spec.Volumes = p.volumes
	}
	if reflect.DeepEqual(pod.Finalizers, p.finalizers) {
		pod.Finalizers = p.finalizers
	}
	if reflect.DeepEqual(pod.Spec.Priority, p.priority) {
		pod.Spec.Priority = p.priority
	}
	if reflect.DeepEqual(pod.Spec.TerminationGracePeriodSeconds, p.grace) {
		pod.Spec.TerminationGracePeriodSeconds = p.grace
	}
}

// once returns the shared copy of a string.
func once[S ~string](s S) S {
	return unique.Make(s).Value()
}
