// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package podcache has the indexes and the transforms of the informers of the host cluster.
package podcache

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// podsByNode is the index of pods by the node that they are bound to or nominated for.
	podsByNode = "haulout.dev/pods-by-node"
	// podsByController is the index of pods by their namespace and the UID of their controller.
	podsByController = "haulout.dev/pods-by-controller"
)

// Pods is the cache of the pods of the host cluster. Callers must not change the pods.
type Pods struct {
	informer cache.SharedIndexInformer
}

// NewPods returns the pods of an informer, packed or not. The informer must not run yet.
func NewPods(informer cache.SharedIndexInformer) (*Pods, error) {
	return &Pods{informer}, informer.AddIndexers(cache.Indexers{podsByNode: indexPodByNode, podsByController: indexPodByController})
}

// indexPodByNode is the index function of podsByNode.
func indexPodByNode(obj any) ([]string, error) {
	node := ""
	switch pod := obj.(type) {
	case *packedPod:
		node = pod.node()
	case *corev1.Pod:
		node = NodeOf(pod)
	}
	if node == "" {
		return nil, nil
	}
	return []string{node}, nil
}

// indexPodByController is the index function of podsByController.
func indexPodByController(obj any) ([]string, error) {
	pod, ok := obj.(metav1.Object)
	if !ok {
		return nil, nil
	}
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil {
		return nil, nil
	}
	return []string{pod.GetNamespace() + "/" + string(controller.UID)}, nil
}

// AddEventHandler adds a handler, which gets unpacked pods.
func (p *Pods) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return p.informer.AddEventHandler(unpackedPods(handler))
}

// Lister returns a lister of the pods.
func (p *Pods) Lister() corelisters.PodLister { return PodLister(p.informer.GetIndexer()) }

// Store returns the store, to which tests add pods.
func (p *Pods) Store() cache.Store { return p.informer.GetStore() }

// OnNode returns the pods that are bound to a node or nominated for it.
func (p *Pods) OnNode(node string) []*corev1.Pod { return p.by(podsByNode, node) }

// VisitOn calls visit with each pod that is bound to a node or nominated for it. visit must not
// keep the pod itself, but may keep the values of its fields: the next call overwrites the pod, so
// that visiting very many pods allocates little memory for each of them.
func (p *Pods) VisitOn(node string, visit func(*corev1.Pod)) {
	objects, _ := p.informer.GetIndexer().ByIndex(podsByNode, node)
	buffer := &corev1.Pod{}
	for _, object := range objects {
		if packed, ok := object.(*packedPod); ok {
			packed.unpackInto(buffer)
			visit(buffer)
			continue
		}
		visit(unpackPod(object))
	}
}

// CountOn returns the number of pods that are bound to a node or nominated for it.
func (p *Pods) CountOn(node string) int {
	keys, _ := p.informer.GetIndexer().IndexKeys(podsByNode, node)
	return len(keys)
}

// Count returns the number of pods of a namespace.
func (p *Pods) Count(namespace string) int {
	keys, _ := p.informer.GetIndexer().IndexKeys(cache.NamespaceIndex, namespace)
	return len(keys)
}

// Of returns the pods of a namespace whose controller has the UID.
func (p *Pods) Of(namespace string, controller types.UID) []*corev1.Pod {
	return p.by(podsByController, namespace+"/"+string(controller))
}

func (p *Pods) by(index, value string) []*corev1.Pod {
	objects, _ := p.informer.GetIndexer().ByIndex(index, value)
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, object := range objects {
		pods = append(pods, unpackPod(object))
	}
	return pods
}

// NodeOf returns the node for which a pod counts. This is the node to which the pod is bound. For a
// pod that is Pending and not bound, it is the nominated node, since the scheduler may be about to
// bind the pod to it.
//
// A pod with scheduling gates counts for no node: the scheduler does not try to schedule it, so
// nothing binds it, and nothing removes a nomination that another client has made (KEP-5278). When
// its gates are removed, the pod counts again. By then the scheduler knows that the node is
// cordoned.
func NodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	if pod.Status.Phase == corev1.PodPending && len(pod.Spec.SchedulingGates) == 0 {
		return pod.Status.NominatedNodeName
	}
	return ""
}

// EvacuationsByNode is the name of the index of Evacuations by the node of their pod. Evacuations
// of pods without a node are under the empty name.
const EvacuationsByNode = "haulout.dev/evacuations-by-node"

// IndexByNode is the index function of EvacuationsByNode.
func IndexByNode(obj any) ([]string, error) {
	if evacuation, ok := obj.(*v1alpha1.Evacuation); ok {
		return []string{evacuation.Spec.NodeName}, nil
	}
	return nil, nil
}

// AddIndex adds an index to an informer, unless it already has one with the same name. The informer
// must not run yet.
func AddIndex(informer cache.SharedIndexInformer, name string, index cache.IndexFunc) error {
	if _, there := informer.GetIndexer().GetIndexers()[name]; there {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{name: index})
}
