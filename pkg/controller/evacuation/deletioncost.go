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

// Pods whose deletion cost was lowered, be it by the lanes or by an evacuator, get it back here, at
// the latest, when they are not asked to leave any more. All there is to know stands on the pod, so
// that it does not matter whether this process lowered it, or saw the Evacuation go.

// podSettled has a pod looked at whose deletion cost may have to be restored.
func (c *Controller) podSettled(pod *corev1.Pod) {
	if deletioncost.IsLowered(pod) && pod.DeletionTimestamp == nil {
		c.lowered.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	}
}

// podOfSettled does so for the pod of an Evacuation.
func (c *Controller) podOfSettled(evacuation *maintenancev1alpha1.Evacuation) {
	if keepsLowered(evacuation) {
		return
	}
	if pod, err := c.podLister.Pods(evacuation.Namespace).Get(evacuation.Spec.PodRef.Name); err == nil {
		c.podSettled(pod)
	}
}

// keepsLowered says whether an Evacuation still wants its pod to be the first to go.
func keepsLowered(evacuation *maintenancev1alpha1.Evacuation) bool {
	return !isComplete(evacuation) &&
		(!protocol.IsWithdrawn(evacuation) || evacuation.Status.EvacuationCancellationPolicy == maintenancev1alpha1.EvacuationCancellationPolicyForbid)
}

// restoreCost gives a pod its deletion cost back, unless it still is to be the first to go.
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
	// Two clusters are watched here, and the pod may be ahead.
	evacuation, err := c.maintenance.MaintenanceV1alpha1().Evacuations(key.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("see whether pod %s is still asked to leave: %w", key, err)
	}
	if err == nil && keepsLowered(evacuation) {
		// The cache will show it, and its end.
		return nil
	}
	if err := deletioncost.Restore(ctx, c.host, pod); err != nil {
		return fmt.Errorf("restore the deletion cost: %w", err)
	}
	return nil
}
