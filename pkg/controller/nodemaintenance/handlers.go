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

package nodemaintenance

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

// watch marks the maintenances that an event concerns.
func (c *Controller) watch(maintenances, nodes, pods, evacuations, volumes, daemonSets, priorityClasses cache.SharedIndexInformer) error {
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{maintenances, handlerOf(both(c.maintenanceChanged, c.nodes.maintenanceChanged))},
		{nodes, handlerOf(both(c.nodeChanged, c.nodes.nodeChanged))},
		{pods, controllercache.UnpackedPods(handlerOf(c.podChanged))},
		{evacuations, handlerOf(c.evacuationChanged)},
		{volumes, handlerOf(c.volumeAttachmentChanged)},
		{daemonSets, handlerOf(c.daemonSetChanged)},
		{priorityClasses, handlerOf(c.priorityClassChanged)},
	} {
		registration, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return err
		}
		c.synced = append(c.synced, registration.HasSynced)
	}
	return nil
}

// handlerOf calls changed with the old and the new object; old is nil for a new object and the new
// one is nil for one that is gone.
func handlerOf[T any](changed func(old, new *T)) cache.ResourceEventHandler {
	cast := func(obj any) *T {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		object, _ := obj.(*T)
		return object
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(nil, cast(obj)) },
		UpdateFunc: func(old, obj any) { changed(cast(old), cast(obj)) },
		DeleteFunc: func(obj any) {
			if old := cast(obj); old != nil {
				changed(old, nil)
			}
		},
	}
}

func (c *Controller) maintenanceChanged(old, nm *maintenancev1alpha1.NodeMaintenance) {
	if nm == nil {
		// Not through selection: the others on its nodes are found before the sync forgets it.
		c.markNeighbours(old)
		c.queue.Add(old.Name)
		c.mark([]string{sweepItem})
		return
	}
	if err := c.selection.setMaintenance(nm); err != nil {
		utilruntime.HandleError(err)
	}
	if old != nil && old.UID == nm.UID && old.Spec.Stage != nm.Spec.Stage || old == nil && nm.Status.ObservedGeneration == 0 {
		c.maintenanceEvent(nm, corev1.EventTypeNormal, EventStageStarted, actionMaintain, "Stage %s", nm.Spec.Stage)
	}
	statusOnly := old != nil && old.UID == nm.UID && old.Generation == nm.Generation &&
		slices.Equal(old.Finalizers, nm.Finalizers) && old.DeletionTimestamp.Equal(nm.DeletionTimestamp) &&
		old.Status.NewestNodeTimestamp.Equal(nm.Status.NewestNodeTimestamp)
	if !statusOnly {
		c.queue.Add(nm.Name)
	}
	if old != nil && isHolding(old) != isHolding(nm) || !statusOnly || !sameTargets(old, nm) {
		// Not gathered with other events: they wait for these targets to be stored.
		c.markNeighbours(nm)
	}
	if isEnding(nm) && !slices.Contains(nm.Finalizers, maintenancev1alpha1.FinalizerMaintenanceCompletion) {
		c.mark([]string{sweepItem})
	}
}

// markNeighbours has the maintenances that share a node with nm looked at, at once.
func (c *Controller) markNeighbours(nm *maintenancev1alpha1.NodeMaintenance) {
	for _, name := range c.selection.neighbours(c.selection.nodesOf(nm.Name)) {
		if name != nm.Name {
			c.queue.Add(name)
		}
	}
}

// sameTargets says whether two states of a maintenance ask the same pods to leave.
func sameTargets(a, b *maintenancev1alpha1.NodeMaintenance) bool {
	if len(a.Status.NodeStatuses) != len(b.Status.NodeStatuses) {
		return false
	}
	for i := range a.Status.NodeStatuses {
		old, new := &a.Status.NodeStatuses[i], &b.Status.NodeStatuses[i]
		if old.NodeRef != new.NodeRef || !sameEntries(old.DrainTargets, new.DrainTargets) {
			return false
		}
	}
	return true
}

func (c *Controller) nodeChanged(old, node *corev1.Node) {
	if node == nil {
		c.cordons.forget(old)
		c.taints.forget(old)
		c.mark(c.selection.removeNode(old.Name))
		return
	}
	if old != nil && old.UID == node.UID && old.Spec.Unschedulable == node.Spec.Unschedulable && labels.Equals(old.Labels, node.Labels) &&
		sameAnnotations(old, node) &&
		drainplan.IsTainted(old) == drainplan.IsTainted(node) {
		// Nothing to look at again, but a write is only taken with the latest resource version.
		c.selection.refreshNode(node)
		return
	}
	if old != nil && old.UID != node.UID {
		c.cordons.forget(old)
		c.taints.forget(old)
	}
	if old != nil && !labels.Equals(old.Labels, node.Labels) {
		// Other DaemonSets may want to run there.
		c.views.drop(node.Name)
	}
	c.cordons.observe(node)
	touched, leaving := c.selection.setNode(node)
	c.mark(touched)
	for _, name := range leaving {
		c.queue.AddAfter(name, lingering)
	}
	if old != nil {
		c.mark(recordedNames(old))
	}
}

// sameAnnotations reports whether two states of a node have the same annotations of ours.
func sameAnnotations(a, b *corev1.Node) bool {
	return !slices.ContainsFunc(ourAnnotations, func(key string) bool { return a.Annotations[key] != b.Annotations[key] })
}

// recordedNames returns the maintenances that a node named. One that it does not name any more may
// have been waiting for that.
func recordedNames(node *corev1.Node) []string {
	names := sets.KeySet(ownersOf(node)).Union(sets.KeySet(taintersOf(node))).Union(sets.KeySet(recordOf(node).Maintenances))
	return sets.List(names)
}

// both calls two handlers one after the other.
func both[T any](first, second func(old, new *T)) func(old, new *T) {
	return func(old, new *T) {
		first(old, new)
		second(old, new)
	}
}

func (c *Controller) podChanged(old, pod *corev1.Pod) {
	for _, p := range []*corev1.Pod{old, pod} {
		if p != nil {
			c.views.drop(controllercache.NodeOf(p))
		}
	}
	if old != nil && pod != nil && samePod(old, pod) {
		return
	}
	if pod == nil {
		c.requested.forget(old.UID)
	}
	if old != nil && pod != nil && controllercache.NodeOf(old) != controllercache.NodeOf(pod) {
		c.markIfStray(c.evacuationOf(pod))
	}
	for _, p := range []*corev1.Pod{old, pod} {
		if p != nil {
			c.markNode(controllercache.NodeOf(p))
		}
	}
}

// samePod says whether nothing has changed that this controller reads.
func samePod(a, b *corev1.Pod) bool {
	return a.UID == b.UID && controllercache.NodeOf(a) == controllercache.NodeOf(b) && a.Status.Phase == b.Status.Phase &&
		labels.Equals(a.Labels, b.Labels) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

func (c *Controller) evacuationChanged(old, evacuation *maintenancev1alpha1.Evacuation) {
	latest := evacuation
	if latest == nil {
		latest = old
	}
	node := c.nodeOf(latest)
	c.views.drop(node)
	if evacuation == nil || isOurs(evacuation) {
		c.requested.forget(latest.Spec.PodRef.UID)
	}
	if old != nil && evacuation != nil && sameEvacuation(old, evacuation) {
		return
	}
	c.markIfStray(evacuation)
	c.markNode(node)
	if old != nil && isOurs(old) && (evacuation == nil || !isOurs(evacuation)) {
		// The node may be waiting to be released.
		c.nodes.enqueueConditions(node)
	}
}

// markIfStray has an Evacuation withdrawn that is, or has become, nobody's wish. A leader that does
// not know yet that it is none may have made it.
func (c *Controller) markIfStray(e *maintenancev1alpha1.Evacuation) {
	if e != nil && c.isStray(e, "") {
		c.mark([]string{sweepItem})
	}
}

// sameEvacuation says whether nothing has changed that this controller reads.
func sameEvacuation(a, b *maintenancev1alpha1.Evacuation) bool {
	return a.UID == b.UID && slices.Equal(a.Finalizers, b.Finalizers) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		conditionStatus(a, maintenancev1alpha1.ConditionComplete) == conditionStatus(b, maintenancev1alpha1.ConditionComplete) &&
		conditionStatus(a, maintenancev1alpha1.ConditionBlocked) == conditionStatus(b, maintenancev1alpha1.ConditionBlocked)
}

func conditionStatus(e *maintenancev1alpha1.Evacuation, conditionType string) string {
	for i := range e.Status.Conditions {
		if e.Status.Conditions[i].Type == conditionType && e.Status.Conditions[i].Status == metav1.ConditionTrue {
			return e.Status.Conditions[i].Reason
		}
	}
	return ""
}

func (c *Controller) markNode(node string) {
	if names := c.selection.maintenancesOn(node); len(names) > 0 {
		c.mark(names)
		c.nodes.enqueueConditions(node)
	}
}

// rightsKnown enqueues a node and its maintenances: the authorizer has answered a question about
// the node.
func (c *Controller) rightsKnown(node string) {
	c.nodes.enqueue(node)
	c.markNode(node)
}

// mark has maintenances looked at soon. An item that waits already keeps its time, so that a stream
// of events cannot put it off.
func (c *Controller) mark(names []string) {
	for _, name := range names {
		c.queue.AddAfter(name, c.costs.debounce(name))
	}
}
