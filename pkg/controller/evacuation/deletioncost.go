// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/controller/loop"
)

// The controller restores the deletion cost of pods that the lanes or an evacuator lowered, at the
// latest when no drain asks them to leave any more. The pod has all the information, so it does not
// matter whether this process lowered the cost, or saw the deletion of the Evacuation.

// podSettled enqueues a pod whose deletion cost may have to be restored.
func (c *Controller) podSettled(pod *corev1.Pod) {
	if deletioncost.IsLowered(pod) && pod.DeletionTimestamp == nil {
		c.lowered.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	}
}

// podOfSettled enqueues the pod of an Evacuation in the same way.
func (c *Controller) podOfSettled(evacuation *maintenancev1alpha1.Evacuation) {
	if keepsLowered(evacuation) {
		return
	}
	if pod, err := c.podLister.Pods(evacuation.Namespace).Get(evacuation.Spec.PodRef.Name); err == nil {
		c.podSettled(pod)
	}
}

// keepsLowered reports whether the pod of an Evacuation still has to be the first to leave.
func keepsLowered(evacuation *maintenancev1alpha1.Evacuation) bool {
	return !protocol.IsComplete(evacuation) &&
		(!protocol.IsWithdrawn(evacuation) || evacuation.Status.EvacuationCancellationPolicy == maintenancev1alpha1.EvacuationCancellationPolicyForbid)
}

// restoreCost restores the deletion cost of a pod, unless it still has to be the first to leave.
func (c *Controller) restoreCost(ctx context.Context, key types.NamespacedName) error {
	pod, err := c.podLister.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !deletioncost.IsLowered(pod) || pod.DeletionTimestamp != nil {
		return nil
	}
	name := keyOfPod(pod).Name
	if evacuation, err := c.evacuationLister.Evacuations(key.Namespace).Get(name); err == nil && keepsLowered(evacuation) {
		return nil
	}
	// Pods and Evacuations come from two API servers, and the cache of pods may be ahead.
	evacuation, err := c.maintenance.MaintenanceV1alpha1().Evacuations(key.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the Evacuation of pod %s: %w", key, err)
	}
	if err == nil && keepsLowered(evacuation) {
		// The cache will show the Evacuation and, later, its deletion.
		return nil
	}
	if err := deletioncost.Restore(ctx, c.host, pod); err != nil {
		return fmt.Errorf("restore the deletion cost: %w", err)
	}
	return nil
}

// A pod of a ReplicaSet that waits with the evacuator of Deployments gets the lowest deletion cost,
// as one that waits in the queue of evictions does: if the Deployment is scaled down in the
// meantime, the pods that have to leave are deleted first. restoreCost restores the cost when the
// pod does not have to leave any more.

// decideCost lowers the deletion cost of a pod that has waited with the evacuator of Deployments
// for a while.
func (d *decision) decideCost(s situation) {
	since := d.status.ActiveEvacuatorSince
	if !waitsForSurge(&d.status) || since == nil || s.pod.DeletionTimestamp != nil ||
		!deletioncost.IsOfReplicaSet(s.pod) || !deletioncost.CanLower(s.pod) {
		return
	}
	if at := since.Add(deletioncost.LowerAfter); s.now.Before(at) {
		d.wakeAt(at)
		return
	}
	d.lowerCost = true
}

func waitsForSurge(status *maintenancev1alpha1.EvacuationStatus) bool {
	return status.ActiveEvacuatorClass == maintenancev1alpha1.EvacuatorClassDeployment && !status.ActiveEvacuatorCompleted
}

// pace spreads writes over time: each has its own time slot.
type pace struct {
	mu   sync.Mutex
	next time.Time
	// given are the pods that have a time slot.
	given map[types.NamespacedName]struct{}
}

// delay returns how long the write of a pod has to wait; false if it already has a time slot.
func (p *pace) delay(pod types.NamespacedName, now time.Time) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, given := p.given[pod]; given {
		return 0, false
	}
	if p.given == nil {
		p.given = map[types.NamespacedName]struct{}{}
	}
	p.given[pod] = struct{}{}
	if p.next.Before(now) {
		p.next = now
	}
	at := p.next
	p.next = at.Add(deletioncost.LowerEvery)
	return at.Sub(now), true
}

func (p *pace) done(pod types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.given, pod)
}

// lowerLater schedules the write of a pod's deletion cost after the writes before it.
func (c *Controller) lowerLater(pod *corev1.Pod, now time.Time) {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if delay, ok := c.pace.delay(key, now); ok {
		c.waiting.AddAfter(key, delay)
	}
}

// lowerCost sets the lowest deletion cost of a pod if it still waits.
func (c *Controller) lowerCost(ctx context.Context, key types.NamespacedName) error {
	defer c.pace.done(key)
	pod, err := c.podLister.Pods(key.Namespace).Get(key.Name)
	if err != nil {
		return loop.IgnoreNotFound(err)
	}
	if pod.DeletionTimestamp != nil || !deletioncost.CanLower(pod) {
		return nil
	}
	evacuation, err := c.evacuationLister.Evacuations(key.Namespace).Get(keyOfPod(pod).Name)
	if err != nil {
		return loop.IgnoreNotFound(err)
	}
	if !keepsLowered(evacuation) || !waitsForSurge(&evacuation.Status) {
		return nil
	}
	err = deletioncost.Lower(ctx, c.host, pod)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		// An admission policy refuses the write. The pod leaves without it.
		return nil
	}
	if err != nil {
		return fmt.Errorf("lower the deletion cost of a waiting pod: %w", err)
	}
	return nil
}
