// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/mergepatch"
)

// maxAsked is the maximum number of pods that one maintenance asks to leave at the same time. An
// Evacuation takes some 50 KB of the server's memory until it ends, so if the pods of 5,000 nodes
// were all asked and none could leave, the server would end for lack of memory, again and again.
const maxAsked = 20000

// evacuationStep is the next step for a pod that is asked to leave.
type evacuationStep int

const (
	// stepNone: the pod has an Evacuation with our finalizer.
	stepNone evacuationStep = iota
	// stepCreate: the pod has no Evacuation.
	stepCreate
	// stepAdopt: another instigator has created the Evacuation; our finalizer is to be added.
	stepAdopt
	// stepWait: the Evacuation is complete or being deleted. The controller creates a new one after
	// its deletion.
	stepWait
)

func decideEvacuation(pod *nodestate.Pod) evacuationStep {
	switch e := pod.Evacuation; {
	case e == nil:
		return stepCreate
	case pod.Ours:
		return stepNone
	case e.DeletionTimestamp != nil, nodestate.TrueReason(e, v1alpha1.ConditionComplete) != "":
		return stepWait
	default:
		return stepAdopt
	}
}

// evacuate requests the Evacuations of the targeted pods on the subject's nodes. It waits until
// every maintenance that drains a node has stored the targets of the node. Otherwise the targets
// could fall back after a crash, or when the only maintenance that has stored them ends.
//
// DaemonSet pods are asked to leave only when the cached node has the taint that prevents the
// DaemonSet controller from replacing them.
func (c *Controller) evacuate(ctx context.Context, f *facts, d *decision) error {
	work, behind := due(f, d)
	for name := range behind {
		if name != f.subject.Name {
			c.queue.Add(name)
		}
	}
	work = slices.DeleteFunc(work, func(pod *nodestate.Pod) bool { return c.hasToWait(f.subject.Name, pod) })
	c.neverTriedFirst(work)
	work = work[:min(len(work), max(0, maxAsked-asked(d.counts)))]
	return c.inRounds(ctx, f.subject.Name, len(work), func(ctx context.Context, i int) error {
		pod := work[i]
		if decideEvacuation(pod) == stepAdopt {
			return c.adopt(ctx, f.subject.NodeMaintenance, pod)
		}
		return c.create(ctx, f.subject.NodeMaintenance, pod)
	})
}

// asked counts the pods that have been asked to leave and have not left.
func asked(counts []*nodeCount) int {
	n := 0
	for _, count := range counts {
		n += count.targeted - len(count.unasked)
	}
	return n
}

// hasToWait reports whether it is too early to request the Evacuation of a pod again. If so, it
// enqueues the maintenance for the time of the next request.
func (c *Controller) hasToWait(maintenance string, pod *nodestate.Pod) bool {
	last := c.state.Requests.Of(pod.UID)
	wait := last.Until.Sub(c.clock.Now())
	if wait <= 0 || decideEvacuation(pod) == stepAdopt && last.Failures == 0 {
		// The Evacuation has lost our finalizer: add it again now.
		return false
	}
	c.queue.AddAfter(maintenance, wait)
	return true
}

// neverTriedFirst sorts pods by the time of their last request, and pods without a request first.
// Otherwise requests that hang could use up roundTime in every sync, and requests for other pods
// would never be sent.
func (c *Controller) neverTriedFirst(work []*nodestate.Pod) {
	tried := make(map[types.UID]time.Time)
	for _, pod := range work {
		if at := c.state.Requests.Of(pod.UID).Tried; !at.IsZero() {
			tried[pod.UID] = at
		}
	}
	if len(tried) > 0 {
		slices.SortStableFunc(work, func(a, b *nodestate.Pod) int { return tried[a.UID].Compare(tried[b.UID]) })
	}
}

// due returns the pods to request an Evacuation for. These are the pods on the nodes whose targets
// all draining maintenances have stored. behind has the maintenances that have not stored the
// targets yet.
func due(f *facts, d *decision) (work []*nodestate.Pod, behind sets.Set[string]) {
	waiting := sets.New[string]()
	for i, node := range f.subject.inside {
		if len(d.counts[i].unasked) > 0 {
			waiting.Insert(node.Name)
		}
	}
	behind = sets.New[string]()
	ownToo, drainers := ownPodsAreNext(d.counts), f.drainers(waiting)
	for i, node := range f.subject.inside {
		n, late := d.counts[i], false
		for _, m := range drainers[node.Name] {
			if !drainplan.SameEntries(holds.Stored(m.NodeMaintenance, node), n.targets.Entries) {
				behind.Insert(m.Name)
				late = true
			}
		}
		if late {
			continue
		}
		for _, pod := range n.unasked {
			if (ownToo || !pod.Own) && (pod.Plan.Type != v1alpha1.PodTypeDaemonSet || drainplan.IsTainted(node)) {
				work = append(work, pod)
			}
		}
	}
	return work, behind
}

// ownPodsAreNext reports whether all other targeted pods have left, so that the pods of this server
// can be asked to leave.
func ownPodsAreNext(counts []*nodeCount) bool {
	for _, n := range counts {
		if n.targeted > n.targetedOwn {
			return false
		}
	}
	return true
}

// request sends a request for the Evacuation of a pod, if the maintenance still drains its node. A
// failed request is retried later. After two failures the status of the node reports the error.
func (c *Controller) request(ctx context.Context, nm *v1alpha1.NodeMaintenance, pod *nodestate.Pod, send func(context.Context) error) error {
	err := c.state.Requests.Do(pod, func() error {
		if !c.isStillDraining(nm, pod.Node) {
			return nodestate.ErrNotRequested
		}
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		err := send(bounded)
		if err != nil && ctx.Err() != nil {
			// This process stops or is no longer the leader.
			return nodestate.InconclusiveError{Err: ctx.Err()}
		}
		return err
	})
	last := c.state.Requests.Of(pod.UID)
	if err != nil && (last.Terminating || last.Failures > 0) {
		c.queue.AddAfter(nm.Name, last.Until.Sub(c.clock.Now()))
	}
	if err != nil && last.Failures == 2 {
		c.queue.AddAfter(nm.Name, debounce)
	}
	return err
}

// create creates the Evacuation of a pod. It ignores errors that concern this pod alone.
func (c *Controller) create(ctx context.Context, nm *v1alpha1.NodeMaintenance, pod *nodestate.Pod) error {
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  pod.Namespace,
			Name:       protocol.CanonicalName(pod.Name, pod.UID),
			Finalizers: []string{v1alpha1.FinalizerInstigatorNodeMaintenance},
			// If the pod has no evacuator, no later write of the Evacuation names the maintenance.
			Annotations: map[string]string{v1alpha1.AnnotationLeavesFor: protocol.Mention(nm)},
		},
		Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}},
	}
	isAboutPod := func(err error) bool {
		return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsGone(err)
	}
	err := c.request(ctx, nm, pod, func(ctx context.Context) error {
		_, err := c.maintenance.MaintenanceV1alpha1().Evacuations(pod.Namespace).Create(ctx, e, metav1.CreateOptions{FieldManager: fieldManager})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		if current, getErr := c.podLister.Pods(pod.Namespace).Get(pod.Name); isAboutPod(err) && (getErr != nil || current.UID != pod.UID) {
			// The pod has just been deleted.
			return nodestate.ErrNotRequested
		}
		return err
	})
	switch {
	case err == nil:
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The pods are deleted together with the namespace. The status counts and names them.
		return nil
	case isAboutPod(err):
		klog.FromContext(ctx).V(2).Info("Evacuation was not accepted", "pod", klog.KRef(pod.Namespace, pod.Name), "reason", err.Error())
		return nil
	}
	// The Evacuation may exist although the request failed.
	return fmt.Errorf("create the evacuation of pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// isStillDraining reports whether, according to the caches, a maintenance drains and selects a
// node, and is not paused, and no worker stops it. It is called after the request was recorded.
// The node controller reads the same caches before it reads the recorded requests. So either it
// waits for this request, or this check prevents the request.
func (c *Controller) isStillDraining(nm *v1alpha1.NodeMaintenance, node string) bool {
	cached := holds.Index{On: c.selection.MaintenancesOn, Get: c.maintenanceLister.Get}
	return !c.isStopped(nm, node) && cached.Any(node, func(now *v1alpha1.NodeMaintenance) bool {
		return now.UID == nm.UID && v1alpha1.IsDraining(now) && !v1alpha1.IsPaused(now)
	})
}

// adopt adds our finalizer to a pod's Evacuation. A refusal is reported for the pod and does not
// make the sync of the maintenance fail.
func (c *Controller) adopt(ctx context.Context, nm *v1alpha1.NodeMaintenance, pod *nodestate.Pod) error {
	e := pod.Evacuation
	err := c.request(ctx, nm, pod, func(ctx context.Context) error {
		err := c.setFinalizers(ctx, e, append(slices.Clone(e.Finalizers), v1alpha1.FinalizerInstigatorNodeMaintenance))
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		err = fmt.Errorf("join evacuation %s/%s: %w", e.Namespace, e.Name, err)
		if apierrors.IsConflict(err) {
			// The cached Evacuation was outdated.
			return nodestate.InconclusiveError{Err: err}
		}
		return err
	})
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		klog.FromContext(ctx).V(2).Info("Evacuation cannot be joined", "pod", klog.KRef(pod.Namespace, pod.Name), "reason", err.Error())
		return nil
	}
	return err
}

func (c *Controller) setFinalizers(ctx context.Context, e *v1alpha1.Evacuation, finalizers []string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := mergepatch.IfUnchanged(ctx, c.maintenance.MaintenanceV1alpha1().Evacuations(e.Namespace).Patch, e,
		map[string]any{"finalizers": finalizers}, nil, metav1.PatchOptions{FieldManager: fieldManager})
	return err
}

// wanted reports whether the stored targets of a maintenance for the node cover the pod of an
// Evacuation, its plan drains the pod, and no worker stops it. A kept pod is not wanted. The
// exception is a pod that is kept because of its budget, since the budget may allow a disruption
// later. A paused maintenance only wants Evacuations that have begun.
func (c *Controller) wanted(e *v1alpha1.Evacuation, nodeName string) bool {
	node, err := c.nodeLister.Get(nodeName)
	if err != nil {
		return false
	}
	pod, hands := c.state.PodOf(e), c.state.HandsOn(node)
	// A pod that is not in the cache may be terminating.
	begun := hasBegun(e, pod == nil || pod.DeletionTimestamp != nil)
	if pod != nil {
		if kept := c.state.Classify(pod, node).Kept; kept != "" && kept != drainplan.KeptBudget {
			return false
		}
	}
	return c.holders.Any(nodeName, func(nm *v1alpha1.NodeMaintenance) bool {
		if hands.Stops(nm, nodeName) || v1alpha1.IsPaused(nm) && !begun {
			return false
		}
		if pod == nil {
			// The pod is not in the cache, so the targets cannot be compared with it.
			return holds.Targeting(node)(nm)
		}
		covers, err := holds.Covers(nm, pod, node, c.clock.Now())
		return err == nil && covers
	})
}
