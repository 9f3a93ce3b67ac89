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
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

// evacuationStep is what a pod that is asked to leave needs.
type evacuationStep int

const (
	// stepNone: its Evacuation is there, with our finalizer.
	stepNone evacuationStep = iota
	// stepCreate: it has none.
	stepCreate
	// stepAdopt: somebody else asked for it; our finalizer joins.
	stepAdopt
	// stepWait: it has one that is on its way out. When that is gone a new one is made.
	stepWait
)

// decideEvacuation says what a pod needs that is asked to leave.
func decideEvacuation(e *maintenancev1alpha1.Evacuation) evacuationStep {
	switch {
	case e == nil:
		return stepCreate
	case isOurs(e):
		return stepNone
	case e.DeletionTimestamp != nil, conditionStatus(e, maintenancev1alpha1.ConditionComplete) != "":
		return stepWait
	default:
		return stepAdopt
	}
}

// evacuationOf returns the Evacuation of a pod, or nil.
func (c *Controller) evacuationOf(pod *corev1.Pod) *maintenancev1alpha1.Evacuation {
	e, err := c.evacuationLister.Evacuations(pod.Namespace).Get(protocol.CanonicalName(pod.Name, pod.UID))
	if err != nil || e.Spec.PodRef.UID != pod.UID {
		return nil
	}
	return e
}

// evacuate asks the targeted pods of the subject's nodes to leave. It goes by the targets of a node
// only when every maintenance that drains the node has them in its status: otherwise a crash, or
// the end of the one that has, would let them fall back.
//
// DaemonSet pods are asked to leave only when the cache shows the taint that keeps the DaemonSet
// controller from replacing them.
func (c *Controller) evacuate(ctx context.Context, g *gathered, l *look) error {
	tainted := sets.New[string]()
	for _, node := range g.subject.nodes {
		if drainplan.IsTainted(node) {
			tainted.Insert(node.Name)
		}
	}
	work := slices.DeleteFunc(c.due(g, l), func(pod livePod) bool {
		return pod.plan.Type == maintenancev1alpha1.PodTypeDaemonSet && !tainted.Has(controllercache.NodeOf(pod.Pod))
	})
	return c.inRounds(ctx, g.subject.Name, len(work), func(ctx context.Context, i int) error {
		pod := work[i]
		if decideEvacuation(pod.evacuation) == stepAdopt {
			return c.adopt(ctx, g.subject.NodeMaintenance, pod)
		}
		return c.create(ctx, g.subject.NodeMaintenance, pod.Pod)
	})
}

// due returns the pods that need an Evacuation on the nodes whose targets are stored by all
// maintenances that drain them. The others of these maintenances are looked at at once.
func (c *Controller) due(g *gathered, l *look) []livePod {
	var behind sets.Set[string]
	var work []livePod
	ownToo := ownPodsAreNext(l.counts)
	for i, node := range g.subject.nodes {
		n := l.counts[i]
		if len(n.unasked) == 0 {
			continue
		}
		late := c.behind(g, node, n.targets)
		if len(late) == 0 {
			work = append(work, n.unasked...)
		}
		for _, m := range late {
			if m != g.subject {
				behind = behind.Union(sets.New(m.Name))
			}
		}
	}
	for name := range behind {
		c.queue.Add(name)
	}
	if !ownToo {
		work = slices.DeleteFunc(work, func(pod livePod) bool { return pod.own })
	}
	return work
}

// behind returns the maintenances that drain a node and have not stored its targets yet.
func (c *Controller) behind(g *gathered, node *corev1.Node, targets drainplan.Targets) []*member {
	var late []*member
	for _, name := range c.selection.maintenancesOn(node.Name) {
		if m := g.drainingOn(name, node); m != nil && !sameEntries(c.stored.nodes(m.NodeMaintenance)[refOf(node)].targets, targets.Entries) {
			late = append(late, m)
		}
	}
	return late
}

// ownPodsAreNext says whether nobody but pods of this server is left to leave.
func ownPodsAreNext(counts []*nodeCount) bool {
	for _, n := range counts {
		if n.targeted > n.targetedOwn {
			return false
		}
	}
	return true
}

// withdrawUnwanted takes our finalizer off the Evacuations of pods that nobody wants gone: their
// labels have changed, or their node is another one of the same name.
func (c *Controller) withdrawUnwanted(ctx context.Context, g *gathered, l *look) error {
	var work []*maintenancev1alpha1.Evacuation
	for i, node := range g.subject.nodes {
		for _, e := range l.counts[i].unwanted {
			if !c.wanted(e, node.Name, "") {
				work = append(work, e)
			}
		}
	}
	return inParallel(ctx, len(work), func(ctx context.Context, i int) error { return c.leave(ctx, work[i]) })
}

func (c *Controller) create(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, pod *corev1.Pod) error {
	if wait := c.requested.wait(pod.UID); wait > 0 {
		c.queue.AddAfter(nm.Name, wait)
		return nil
	}
	// Before the request, lest the event outrun the memory of it. The cache will show it; until
	// then nobody tries again.
	c.requested.remember(pod)
	e := &maintenancev1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  pod.Namespace,
			Name:       protocol.CanonicalName(pod.Name, pod.UID),
			Finalizers: []string{maintenancev1alpha1.FinalizerInstigatorNodeMaintenance},
			// Of a pod without an evacuator no later write of the status could name the
			// maintenance.
			Annotations: map[string]string{maintenancev1alpha1.AnnotationLeavesFor: protocol.Mention(nm)},
		},
		Spec: maintenancev1alpha1.EvacuationSpec{PodRef: maintenancev1alpha1.PodReference{Name: pod.Name, UID: pod.UID}},
	}
	_, err := c.maintenance.MaintenanceV1alpha1().Evacuations(pod.Namespace).Create(ctx, e, metav1.CreateOptions{FieldManager: fieldManager})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The namespace takes its pods along. The status counts and names them.
		c.requested.refuse(pod.UID)
		c.views.drop(controllercache.NodeOf(pod))
		c.queue.AddAfter(nm.Name, requestPatience)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err), apierrors.IsGone(err):
		// Most likely the pod has just gone: its event is under way, or has been. If not, it is
		// tried again.
		if current, err := c.podLister.Pods(pod.Namespace).Get(pod.Name); err != nil || current.UID != pod.UID {
			c.requested.forget(pod.UID)
			return nil
		}
		klog.FromContext(ctx).V(2).Info("Evacuation was not accepted", "pod", klog.KObj(pod), "reason", err.Error())
		c.creationFailed(nm, pod, err)
		c.queue.AddAfter(nm.Name, requestPatience)
		return nil
	default:
		// It may have been created all the same.
		c.requested.retry(pod.UID)
		c.creationFailed(nm, pod, err)
		return fmt.Errorf("create the evacuation of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
}

// creationFailed notes why a pod has no Evacuation with our finalizer. After the second time its
// node shows it.
func (c *Controller) creationFailed(nm *maintenancev1alpha1.NodeMaintenance, pod *corev1.Pod, err error) {
	if c.requested.failed(pod.UID, err) {
		c.views.drop(controllercache.NodeOf(pod))
		c.queue.AddAfter(nm.Name, debounce)
	}
}

// adopt joins the instigators of a pod's Evacuation. What keeps being refused is a blocker of the
// pod and not an error of the whole maintenance.
func (c *Controller) adopt(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, pod livePod) error {
	e := pod.evacuation
	if wait := c.requested.wait(pod.UID); wait > 0 && c.requested.failure(pod.UID) != "" {
		c.queue.AddAfter(nm.Name, wait)
		return nil
	}
	c.requested.remember(pod.Pod)
	finalizers := append(slices.Clone(e.Finalizers), maintenancev1alpha1.FinalizerInstigatorNodeMaintenance)
	err := c.setFinalizers(ctx, e, finalizers)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	err = fmt.Errorf("join evacuation %s/%s: %w", e.Namespace, e.Name, err)
	if apierrors.IsConflict(err) {
		// The cache was behind. That tells nothing about the Evacuation.
		return err
	}
	c.creationFailed(nm, pod.Pod, err)
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		klog.FromContext(ctx).V(2).Info("Evacuation cannot be joined", "pod", klog.KObj(pod.Pod), "reason", err.Error())
		c.queue.AddAfter(nm.Name, requestPatience)
		return nil
	}
	return err
}

func (c *Controller) setFinalizers(ctx context.Context, e *maintenancev1alpha1.Evacuation, finalizers []string) error {
	patch, err := finalizerPatch(e, finalizers)
	if err != nil {
		return err
	}
	_, err = c.maintenance.MaintenanceV1alpha1().Evacuations(e.Namespace).Patch(ctx, e.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	return err
}

// finalizerPatch sets the finalizers of an object, on the condition that it is in the state it was
// read in.
func finalizerPatch(obj metav1.Object, finalizers []string) ([]byte, error) {
	if finalizers == nil {
		finalizers = []string{}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": obj.GetUID(), "resourceVersion": obj.GetResourceVersion(), "finalizers": finalizers,
	}})
}

// isUnwanted says whether nobody wants the pod of an eviction gone that is, or was, on one of the
// nodes.
func (c *Controller) isUnwanted(r eviction.Request, nodes sets.Set[string]) bool {
	if e, err := c.evacuationLister.Evacuations(r.Evacuation.Namespace).Get(r.Evacuation.Name); err == nil && !protocol.IsWithdrawn(e) {
		return false
	}
	pod, err := c.podLister.Pods(r.Evacuation.Namespace).Get(r.Pod)
	return err == nil && pod.UID == r.UID && nodes.Has(controllercache.NodeOf(pod))
}

// located is an Evacuation with the node that its pod counts for.
type located struct {
	*maintenancev1alpha1.Evacuation
	node string
}

func isOurs(e *maintenancev1alpha1.Evacuation) bool {
	return slices.Contains(e.Finalizers, maintenancev1alpha1.FinalizerInstigatorNodeMaintenance)
}

// unseenEvacuationsOn returns, from the API, the Evacuations that were asked for a moment ago and
// that the cache does not show yet.
func (c *Controller) unseenEvacuationsOn(ctx context.Context, nodes sets.Set[string]) (map[types.NamespacedName]located, error) {
	var mu sync.Mutex
	out := map[types.NamespacedName]located{}
	requests := c.requested.on(nodes)
	err := inParallel(ctx, len(requests), func(ctx context.Context, i int) error {
		request := requests[i]
		e, err := c.maintenance.MaintenanceV1alpha1().Evacuations(request.evacuation.Namespace).Get(ctx, request.evacuation.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && !isOurs(e) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read evacuation %s: %w", request.evacuation, err)
		}
		mu.Lock()
		defer mu.Unlock()
		out[request.evacuation] = located{e, request.node}
		return nil
	})
	return out, err
}

// ourEvacuationsOn returns the Evacuations with our finalizer of pods that count for a node, those
// that are only nominated for it included.
func (c *Controller) ourEvacuationsOn(node string) []*maintenancev1alpha1.Evacuation {
	return slices.DeleteFunc(slices.Concat(c.evacuationsIn(node), c.evacuationsWithoutNode()), func(e *maintenancev1alpha1.Evacuation) bool {
		return !isOurs(e) || c.nodeOf(e) != node
	})
}

// evacuationsWithoutNode returns the Evacuations of pods that were on no node when they were asked
// for.
func (c *Controller) evacuationsWithoutNode() []*maintenancev1alpha1.Evacuation {
	return c.evacuationsIn("")
}

// evacuationsIn returns the Evacuations whose spec has the given node.
func (c *Controller) evacuationsIn(node string) []*maintenancev1alpha1.Evacuation {
	objects, err := c.evacuationIndexer.ByIndex(controllercache.EvacuationsByNode, node)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("list evacuations by node from the cache: %w", err))
	}
	out := make([]*maintenancev1alpha1.Evacuation, len(objects))
	for i := range objects {
		out[i] = objects[i].(*maintenancev1alpha1.Evacuation)
	}
	return out
}

// isStray says whether an Evacuation bears our finalizer although no maintenance, other than the
// one of the given UID, looks after the node that its pod counts for.
func (c *Controller) isStray(e *maintenancev1alpha1.Evacuation, except types.UID) bool {
	if !isOurs(e) {
		return false
	}
	if node := c.nodeOf(e); node != "" {
		return !c.isLookedAfter(node, except)
	}
	// The pod was nominated for a node and is not any more. One that is not known is gone, which
	// ends the Evacuation, or not yet in the cache.
	return c.podOf(e) != nil
}

// nodeOf returns the node that an Evacuation is about, or "" if that is not known.
func (c *Controller) nodeOf(e *maintenancev1alpha1.Evacuation) string {
	if e.Spec.NodeName != "" {
		return e.Spec.NodeName
	}
	if pod := c.podOf(e); pod != nil {
		return controllercache.NodeOf(pod)
	}
	return ""
}

func (c *Controller) podOf(e *maintenancev1alpha1.Evacuation) *corev1.Pod {
	pod, err := c.podLister.Pods(e.Namespace).Get(e.Spec.PodRef.Name)
	if err != nil || pod.UID != e.Spec.PodRef.UID {
		return nil
	}
	return pod
}

// wanted says whether a maintenance, other than the one of the given UID, has the pod of an
// Evacuation within the stored targets of its node.
func (c *Controller) wanted(e *maintenancev1alpha1.Evacuation, nodeName string, except types.UID) bool {
	node, err := c.nodeLister.Get(nodeName)
	if err != nil {
		return false
	}
	pod := c.podOf(e)
	for _, name := range c.selection.maintenancesOn(nodeName) {
		nm, err := c.get(name)
		if err != nil || nm.UID == except || !isDraining(nm) {
			continue
		}
		entries := c.stored.nodes(nm)[refOf(node)].targets
		// Of a pod that is gone nobody can say more than that its node is drained.
		if len(entries) > 0 && pod == nil {
			return true
		}
		if targets, err := drainplan.CompileTargets(entries); err == nil && pod != nil && targets.Cover(drainplan.PodOf(pod, node.UID)) {
			return true
		}
	}
	return false
}

// leave takes our finalizer off an Evacuation and, where nobody else asks for it and nothing
// forbids it, deletes it. One whose evacuator cannot stop any more is left to it.
func (c *Controller) leave(ctx context.Context, e *maintenancev1alpha1.Evacuation) error {
	rest := slices.DeleteFunc(slices.Clone(e.Finalizers), func(f string) bool {
		return f == maintenancev1alpha1.FinalizerInstigatorNodeMaintenance
	})
	if err := c.setFinalizers(ctx, e, rest); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("withdraw from evacuation %s/%s: %w", e.Namespace, e.Name, err)
	}
	if protocol.HasInstigator(rest) || e.DeletionTimestamp != nil ||
		e.Status.EvacuationCancellationPolicy == maintenancev1alpha1.EvacuationCancellationPolicyForbid {
		return nil
	}
	err := c.maintenance.MaintenanceV1alpha1().Evacuations(e.Namespace).Delete(ctx, e.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(e.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete evacuation %s/%s: %w", e.Namespace, e.Name, err)
	}
	return nil
}
