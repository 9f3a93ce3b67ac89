// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// packedPod is a pod in the informer's cache. A Pod takes 1,240 bytes even if most of its fields
// are unset; packedPod only has the fields that Strip keeps. Readers unpack pods.
type packedPod struct {
	metav1.ObjectMeta
	nodeName, nominatedNodeName string
	phase                       corev1.PodPhase
	priority                    *int32
	grace                       *int64
	restartPolicy               corev1.RestartPolicy
	tolerations                 []corev1.Toleration
	volumes                     []corev1.Volume
	// readySince is the time, in seconds, of a condition Ready that is True and has no other
	// content; then conditions is empty.
	readySince int64
	conditions []corev1.PodCondition
}

// pack packs a stripped pod.
func pack(pod *corev1.Pod) *packedPod {
	p := &packedPod{
		ObjectMeta: pod.ObjectMeta, nodeName: pod.Spec.NodeName, nominatedNodeName: pod.Status.NominatedNodeName, phase: pod.Status.Phase,
		priority: pod.Spec.Priority, grace: pod.Spec.TerminationGracePeriodSeconds, restartPolicy: pod.Spec.RestartPolicy, tolerations: pod.Spec.Tolerations, volumes: pod.Spec.Volumes,
		conditions: pod.Status.Conditions,
	}
	if len(p.conditions) != 1 {
		return p
	}
	if since := p.conditions[0].LastTransitionTime.Unix(); since > 0 && p.conditions[0] == plainReady(since) {
		p.readySince, p.conditions = since, nil
	}
	return p
}

// plainReady returns the time of the condition Ready if it is the only condition, as for most pods.
func plainReady(since int64) corev1.PodCondition {
	return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(since, 0)}
}

func (p *packedPod) unpack() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: p.ObjectMeta,
		Spec: corev1.PodSpec{
			NodeName: p.nodeName, Priority: p.priority, TerminationGracePeriodSeconds: p.grace, RestartPolicy: p.restartPolicy, Tolerations: p.tolerations, Volumes: p.volumes,
		},
		Status: corev1.PodStatus{Phase: p.phase, NominatedNodeName: p.nominatedNodeName, Conditions: p.conditions},
	}
	if p.readySince != 0 {
		pod.Status.Conditions = []corev1.PodCondition{plainReady(p.readySince)}
	}
	return pod
}

// unpackPod returns the pod of an object in the informer of pods, packed or not; nil if it is not a
// pod. The pod must not be changed.
func unpackPod(obj any) *corev1.Pod {
	switch o := obj.(type) {
	case *packedPod:
		return o.unpack()
	case *corev1.Pod:
		return o
	}
	return nil
}

// unpackedPods returns a handler that gets unpacked pods.
func unpackedPods(handler cache.ResourceEventHandler) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { handler.OnAdd(unpackPod(obj), initial) },
		UpdateFunc: func(old, obj any) { handler.OnUpdate(unpackPod(old), unpackPod(obj)) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				handler.OnDelete(cache.DeletedFinalStateUnknown{Key: tombstone.Key, Obj: unpackPod(tombstone.Obj)})
				return
			}
			handler.OnDelete(unpackPod(obj))
		},
	}
}

// PodLister lists the pods in the informer's cache, packed or not. The generated lister only works
// with unpacked pods.
func PodLister(indexer cache.Indexer) corelisters.PodLister {
	return podLister{indexer: indexer}
}

type podLister struct {
	indexer cache.Indexer
	corelisters.PodListerExpansion
}

func (l podLister) List(selector labels.Selector) ([]*corev1.Pod, error) {
	return unpacked(l.indexer.List(), selector), nil
}

func (l podLister) Pods(namespace string) corelisters.PodNamespaceLister {
	return podNamespaceLister{indexer: l.indexer, namespace: namespace}
}

type podNamespaceLister struct {
	indexer   cache.Indexer
	namespace string
	corelisters.PodNamespaceListerExpansion
}

func (l podNamespaceLister) List(selector labels.Selector) ([]*corev1.Pod, error) {
	objects, err := l.indexer.ByIndex(cache.NamespaceIndex, l.namespace)
	if err != nil {
		return nil, err
	}
	return unpacked(objects, selector), nil
}

func (l podNamespaceLister) Get(name string) (*corev1.Pod, error) {
	obj, exists, err := l.indexer.GetByKey(l.namespace + "/" + name)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return unpackPod(obj), nil
}

// unpacked returns the pods that match a selector, without unpacking the others.
func unpacked(objects []any, selector labels.Selector) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, obj := range objects {
		if object, err := meta.Accessor(obj); err == nil && selector.Matches(labels.Set(object.GetLabels())) {
			pods = append(pods, unpackPod(obj))
		}
	}
	return pods
}
