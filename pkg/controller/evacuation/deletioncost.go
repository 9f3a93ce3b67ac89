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

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/deletioncost"
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
	return !isComplete(evacuation) &&
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
