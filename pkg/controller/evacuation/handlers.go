// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

func keyOf(evacuation *v1alpha1.Evacuation) types.NamespacedName {
	return types.NamespacedName{Namespace: evacuation.Namespace, Name: evacuation.Name}
}

// keyOfPod returns the key of the Evacuation of a pod. A pod has at most one.
func keyOfPod(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: protocol.CanonicalName(pod.Name, pod.UID)}
}

func (c *Controller) watch(evacuations, nodes cache.SharedIndexInformer, pods *podcache.Pods) error {
	synced, err := podcache.AddHandlers(
		podcache.Handled{Informer: evacuations, Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { c.evacuationChanged(obj.(*v1alpha1.Evacuation)) },
			UpdateFunc: func(_, obj any) { c.evacuationChanged(obj.(*v1alpha1.Evacuation)) },
			DeleteFunc: c.evacuationGone,
		}},
		podcache.Handled{Informer: pods, Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { c.enqueueFor(obj.(*corev1.Pod)) },
			UpdateFunc: func(old, obj any) { c.podChanged(old.(*corev1.Pod), obj.(*corev1.Pod)) },
			DeleteFunc: c.podGone,
		}},
		podcache.Handled{Informer: nodes, Handler: cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(old, obj any) { c.nodeChanged(old.(*corev1.Node), obj.(*corev1.Node)) },
		}},
	)
	c.synced = append(c.synced, synced)
	return err
}

func (c *Controller) evacuationChanged(evacuation *v1alpha1.Evacuation) {
	c.reporters.note(&evacuation.Status)
	c.queue.Add(keyOf(evacuation))
}

func (c *Controller) evacuationGone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	evacuation, ok := obj.(*v1alpha1.Evacuation)
	if !ok {
		return
	}
	c.departed.Forget(evacuation.Spec.PodRef.UID)
	c.arrivals.leave(evacuation)
	c.queue.Add(keyOf(evacuation))
}

// enqueueFor enqueues the Evacuation of a pod, if there is one.
func (c *Controller) enqueueFor(pod *corev1.Pod) {
	key := keyOfPod(pod)
	if _, err := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name); err == nil {
		c.queue.Add(key)
	}
}

func (c *Controller) podChanged(old, pod *corev1.Pod) {
	if old.UID != pod.UID {
		c.enqueueFor(old)
		c.enqueueFor(pod)
		return
	}
	same := old.Status.Phase == pod.Status.Phase && old.DeletionTimestamp.Equal(pod.DeletionTimestamp) && slices.Equal(old.Finalizers, pod.Finalizers)
	if !same {
		c.enqueueFor(pod)
	}
}

func (c *Controller) podGone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		// The informer inferred the deletion from a list and did not get the event: the sync reads
		// the pod from the API server.
		if pod, ok := tombstone.Obj.(*corev1.Pod); ok {
			c.enqueueFor(pod)
		}
		return
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	key := keyOfPod(pod)
	// Record the pod only if the Evacuation still exists: otherwise no later event would remove the
	// entry.
	c.departed.Change(pod.UID, func(struct{}, bool) (struct{}, bool) {
		_, err := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
		return struct{}{}, err == nil
	})
	c.enqueueFor(pod)
}

// nodeChanged enqueues the Evacuations of a node whose kubelet becomes unreachable or reachable.
func (c *Controller) nodeChanged(old, node *corev1.Node) {
	if protocol.NodeCondition(old, corev1.NodeReady).Status == protocol.NodeCondition(node, corev1.NodeReady).Status {
		return
	}
	c.enqueueNode(node.Name)
}

// maintenanceChanged enqueues the Evacuations that a pause or its end affects. They are also
// affected by another maintenance of the node that begins or ceases to ask for their pods. All
// other changes of maintenances matter only to the deadlines, which are checked without an event.
func (c *Controller) maintenanceChanged(old, nm *v1alpha1.NodeMaintenance) {
	wasPaused, isPaused := old != nil && v1alpha1.IsPaused(old), nm != nil && v1alpha1.IsPaused(nm)
	drained, drains := old != nil && v1alpha1.IsDraining(old), nm != nil && v1alpha1.IsDraining(nm)
	if wasPaused == isPaused && drained == drains && (!drains || drainplan.SameTargets(old, nm)) {
		return
	}
	nodes := sets.New[string]()
	for _, node := range c.selection.NodesOf(cmp.Or(nm, old).Name) {
		nodes.Insert(node.Name)
	}
	if old != nil {
		// If the maintenance was deleted or narrowed, it no longer selects its former nodes.
		for i := range old.Status.NodeStatuses {
			nodes.Insert(old.Status.NodeStatuses[i].NodeRef.Name)
		}
	}
	for node := range nodes {
		if wasPaused != isPaused || c.holders.Any(node, v1alpha1.IsPaused) {
			c.enqueueNode(node)
		}
	}
}

// enqueueNode enqueues the Evacuations of a node.
func (c *Controller) enqueueNode(node string) {
	keys, err := c.evacuationIndexer.IndexKeys(podcache.EvacuationsByNode, node)
	if err != nil {
		return
	}
	for _, key := range keys {
		if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
			c.queue.Add(types.NamespacedName{Namespace: namespace, Name: name})
		}
	}
}
