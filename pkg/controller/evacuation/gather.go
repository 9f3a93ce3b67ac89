// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

// gather reads all inputs of the decision about an Evacuation.
func (c *Controller) gather(ctx context.Context, evacuation *v1alpha1.Evacuation) (situation, error) {
	s := situation{
		evacuation:   evacuation,
		eviction:     c.evictions.State(keyOf(evacuation)),
		servingSince: c.servingSince, completedTTL: c.completedTTL, startDeadline: c.startDeadline,
		surgeTimeout: protocol.DefaultSurgeTimeout, budgetPatience: c.budgetPatience, longGrace: c.longGrace, rawEvictionTTL: c.rawEvictionTTL,
		now: c.clock.Now(),
	}
	if failure, _ := c.failures.Of(keyOf(evacuation)); failure != nil {
		s.failure = failure.Text
	}
	if protocol.IsComplete(evacuation) {
		s.surplus = c.isSurplus(evacuation)
		return s, nil
	}
	pod, err := c.pod(ctx, evacuation)
	if err != nil || pod == nil {
		return s, err
	}
	s.pod = pod
	s.seen = c.reporters.among(evacuation.Spec.Evacuators)
	// Admission reports an invalid annotation.
	s.podStartDeadline, _ = protocol.StartDeadlineOf(pod.Annotations)
	node, err := c.nodeLister.Get(pod.Spec.NodeName)
	if err != nil && !apierrors.IsNotFound(err) {
		return s, err
	}
	s.podType = podTypeOf(pod, node)
	if s.podType == v1alpha1.PodTypeDefault {
		c.arrivals.add(pod, func() bool {
			_, err := c.evacuationLister.Evacuations(evacuation.Namespace).Get(evacuation.Name)
			return err == nil
		})
	}
	if s.comebacks, err = c.comebacks(evacuation, pod); err != nil {
		return s, err
	}
	s.pausedBy = c.pausedBy(evacuation, pod)
	s.nodeUnreachable = protocol.NodeCondition(node, corev1.NodeReady).Status == corev1.ConditionUnknown
	switch class := evacuation.Status.ActiveEvacuatorClass; class {
	case v1alpha1.EvacuatorClassDeployment:
		s.surgeTimeout, s.standing = c.surgeTimeout(pod), c.standing(pod, class)
	case v1alpha1.EvacuatorClassEviction:
		if isEvacuator(evacuation, v1alpha1.EvacuatorClassDeployment) {
			s.standing = c.standing(pod, class)
		}
	}
	s.standoff = c.standoff(ctx, pod, s.eviction, s.now)
	if node == nil || !s.waitsForDrain(evacuation.Status.ActiveEvacuatorClass) && !isDeadButHeld(evacuation) {
		return s, nil
	}
	s.replaced = s.podType == v1alpha1.PodTypeDaemonSet && isReplaced(pod, node)
	by, err := c.askedBy(pod)
	s.targeted = by != nil
	return s, err
}

// isReplaced reports whether the DaemonSet would immediately recreate an evicted pod on the node.
func isReplaced(pod *corev1.Pod, node *corev1.Node) bool {
	builtIn := sets.New(v1alpha1.EvacuatorClassDaemonSet)
	return !drainplan.IsTainted(node) || drainplan.Kept(pod, v1alpha1.PodTypeDaemonSet, node, builtIn) != ""
}

// comebacks counts how often the pod was recreated on its node. It returns zero for terminating
// pods, and for pods that are older than all Evacuations that may still exist.
func (c *Controller) comebacks(evacuation *v1alpha1.Evacuation, pod *corev1.Pod) (comebacks, error) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || evacuation.CreationTimestamp.Sub(pod.CreationTimestamp.Time) > c.completedTTL {
		return comebacks{}, nil
	}
	objects, err := c.evacuationIndexer.ByIndex(podcache.EvacuationsByNode, pod.Spec.NodeName)
	if err != nil {
		return comebacks{}, err
	}
	evacuations := make([]*v1alpha1.Evacuation, 0, len(objects))
	for _, object := range objects {
		if e, ok := object.(*v1alpha1.Evacuation); ok {
			evacuations = append(evacuations, e)
		}
	}
	return c.arrivals.count(pod, evacuations, c.clock.Now()), nil
}

// pod returns the Evacuation's pod, or nil if the pod certainly no longer exists. A pod that is
// missing in the cache may still exist: Evacuations come from another API server, so the cache of
// pods may be older.
func (c *Controller) pod(ctx context.Context, evacuation *v1alpha1.Evacuation) (*corev1.Pod, error) {
	ref := evacuation.Spec.PodRef
	pod, err := c.podLister.Pods(evacuation.Namespace).Get(ref.Name)
	if err == nil && pod.UID == ref.UID {
		return pod, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if _, departed := c.departed.Get(ref.UID); departed {
		return nil, nil
	}
	pod, err = c.host.CoreV1().Pods(evacuation.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check whether pod %s exists: %w", ref.Name, err)
	}
	if pod.UID != ref.UID {
		return nil, nil
	}
	return pod, nil
}

func podTypeOf(pod *corev1.Pod, node *corev1.Node) v1alpha1.PodType {
	if node != nil {
		return drainplan.TypeOf(pod, node.UID)
	}
	// Without its node, a mirror pod cannot be distinguished from a fake mirror pod. Treat it as a
	// mirror pod, which is not evicted.
	var claimed types.UID
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		claimed = owner.UID
	}
	return drainplan.TypeOf(pod, claimed)
}

// pausedBy returns the maintenance whose pause keeps the pod of an Evacuation, or nil. It reads the
// cache alone, so it is known as soon as a new leader has the maintenances.
func (c *Controller) pausedBy(evacuation *v1alpha1.Evacuation, pod *corev1.Pod) *v1alpha1.NodeMaintenance {
	if protocol.IsWithdrawn(evacuation) || !protocol.OnlyMaintenancesDecide(evacuation) {
		return nil
	}
	node, err := c.nodeLister.Get(pod.Spec.NodeName)
	if err != nil {
		return nil // no maintenance selects the node, and the Evacuation is withdrawn
	}
	return holds.PausedBy(pod, node, c.holders.Which(node.Name, v1alpha1.IsDraining), c.clock.Now())
}

// stays reports whether the drain plans of all maintenances that drain the node of a pod let it
// complete or keep it.
func (c *Controller) stays(pod *corev1.Pod) bool {
	node, err := c.nodeLister.Get(pod.Spec.NodeName)
	return err == nil && holds.Stays(pod, node, c.holders.Which(node.Name, v1alpha1.IsDraining), c.clock.Now())
}

// askedBy returns the maintenance that drains the pod from its node now, or nil.
func (c *Controller) askedBy(pod *corev1.Pod) (*v1alpha1.NodeMaintenance, error) {
	node, err := c.nodeLister.Get(pod.Spec.NodeName)
	if err != nil {
		return nil, loop.IgnoreNotFound(err)
	}
	draining, err := c.draining()
	if err != nil {
		return nil, err
	}
	return holds.AskedBy(pod, node, draining, c.clock.Now())
}
