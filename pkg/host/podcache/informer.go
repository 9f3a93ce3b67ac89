// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// packedPod is a pod in the cache of the informer. A corev1.Pod takes 1,240 bytes even if most of
// its fields are not set. packedPod has only the fields that Strip keeps. Readers unpack pods.
type packedPod struct {
	metav1.ObjectMeta
	nodeName, nominatedNodeName string
	phase                       corev1.PodPhase
	priority                    *int32
	grace                       *int64
	restartPolicy               corev1.RestartPolicy
	tolerations                 []corev1.Toleration
	volumes                     []corev1.Volume
	// rare is nil for most pods.
	rare *rareParts
	// readySince is set if the only condition of the pod is Ready=True with no other content than a
	// transition time. It is that time in seconds, and conditions is then empty.
	readySince int64
	conditions []corev1.PodCondition
}

// rareParts has the parts of a pod that few pods have.
type rareParts struct {
	nodeSelector map[string]string
	responders   []corev1.EvictionResponder
}

func pack(pod *corev1.Pod) *packedPod {
	p := &packedPod{
		ObjectMeta: pod.ObjectMeta, nodeName: pod.Spec.NodeName, nominatedNodeName: pod.Status.NominatedNodeName, phase: pod.Status.Phase,
		priority: pod.Spec.Priority, grace: pod.Spec.TerminationGracePeriodSeconds, restartPolicy: pod.Spec.RestartPolicy, tolerations: pod.Spec.Tolerations, volumes: pod.Spec.Volumes,
		conditions: pod.Status.Conditions,
	}
	if len(pod.Spec.NodeSelector) > 0 || len(pod.Spec.EvictionResponders) > 0 {
		p.rare = &rareParts{nodeSelector: pod.Spec.NodeSelector, responders: pod.Spec.EvictionResponders}
	}
	if len(p.conditions) != 1 {
		return p
	}
	if since := p.conditions[0].LastTransitionTime.Unix(); since > 0 && p.conditions[0] == plainReady(since) {
		p.readySince, p.conditions = since, nil
	}
	return p
}

// plainReady returns the condition Ready as most pods have it: True, with a transition time and no
// other content.
func plainReady(since int64) corev1.PodCondition {
	return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(since, 0)}
}

func (p *packedPod) unpack() *corev1.Pod {
	pod := &corev1.Pod{}
	p.unpackInto(pod)
	return pod
}

// unpackInto overwrites a pod with the packed one.
func (p *packedPod) unpackInto(pod *corev1.Pod) {
	*pod = corev1.Pod{
		ObjectMeta: p.ObjectMeta,
		Spec: corev1.PodSpec{
			NodeName: p.nodeName, Priority: p.priority, TerminationGracePeriodSeconds: p.grace, RestartPolicy: p.restartPolicy, Tolerations: p.tolerations, Volumes: p.volumes,
		},
		Status: corev1.PodStatus{Phase: p.phase, NominatedNodeName: p.nominatedNodeName, Conditions: p.conditions},
	}
	if p.readySince != 0 {
		pod.Status.Conditions = []corev1.PodCondition{plainReady(p.readySince)}
	}
	if p.rare != nil {
		pod.Spec.NodeSelector, pod.Spec.EvictionResponders = p.rare.nodeSelector, p.rare.responders
	}
}

// node returns what NodeOf returns for the unpacked pod. Each change of a pod calls it twice. Strip
// has removed the nominations of pods with scheduling gates.
func (p *packedPod) node() string {
	if p.nodeName == "" && p.phase == corev1.PodPending {
		return p.nominatedNodeName
	}
	return p.nodeName
}

// unpackPod returns the pod for an object from the informer of pods, packed or not. It returns nil
// if the object is not a pod. The caller must not change the pod.
func unpackPod(obj any) *corev1.Pod {
	switch o := obj.(type) {
	case *packedPod:
		return o.unpack()
	case *corev1.Pod:
		return o
	}
	return nil
}

// unpackedPods returns a handler that unpacks pods for another handler.
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

// PodLister returns a lister of the pods in the cache of the informer, packed or not. The generated
// lister works only with unpacked pods.
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

// unpacked returns the pods that match a selector. It unpacks only these pods.
func unpacked(objects []any, selector labels.Selector) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, obj := range objects {
		if object, err := meta.Accessor(obj); err == nil && selector.Matches(labels.Set(object.GetLabels())) {
			pods = append(pods, unpackPod(obj))
		}
	}
	return pods
}

// HandlerOf returns a handler that calls changed with the old and the new state of an object. The
// old state is nil for a new object, and the new state is nil for a deleted object. If an object
// was deleted and recreated with the same name while the informer was not connected, changed is
// called once for each of the two objects. T is the type that the informer stores.
func HandlerOf[T any](changed func(old, new *T)) cache.ResourceEventHandler {
	cast := func(obj any) *T {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		object, _ := obj.(*T)
		return object
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { changed(nil, cast(obj)) },
		UpdateFunc: func(old, obj any) {
			if isAnother(old, obj) {
				changed(cast(old), nil)
				changed(nil, cast(obj))
				return
			}
			changed(cast(old), cast(obj))
		},
		DeleteFunc: func(obj any) {
			if old := cast(obj); old != nil {
				changed(old, nil)
			}
		},
	}
}

// isAnother reports whether two states belong to different objects with the same name.
func isAnother(old, obj any) bool {
	before, err := meta.Accessor(old)
	if err != nil {
		return false
	}
	now, err := meta.Accessor(obj)
	return err == nil && before.GetUID() != now.GetUID()
}

// Handled is an informer, or Pods, with the handler for its events.
type Handled struct {
	Informer interface {
		AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
	}
	Handler cache.ResourceEventHandler
}

// AddHandlers adds handlers to informers. It returns a function that reports whether each handler
// has received all objects of the initial list of its informer.
func AddHandlers(all ...Handled) (cache.InformerSynced, error) {
	var synced []cache.InformerSynced
	for _, h := range all {
		registration, err := h.Informer.AddEventHandler(h.Handler)
		if err != nil {
			return nil, err
		}
		synced = append(synced, registration.HasSynced)
	}
	return func() bool {
		return !slices.ContainsFunc(synced, func(hasSynced cache.InformerSynced) bool { return !hasSynced() })
	}, nil
}
