// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// rawEvictionExpiry returns the time at which the request of an eviction ends, unless the pod is
// evicted again. It returns the zero time if there is no such request, or if the pod leaves
// already: clients do not evict a terminating pod again.
func (s situation) rawEvictionExpiry() time.Time {
	if !protocol.IsForEviction(s.evacuation) || protocol.IsWithdrawn(s.evacuation) || s.pod == nil || s.pod.DeletionTimestamp != nil || !drainplan.IsLive(s.pod) {
		return time.Time{}
	}
	return protocol.EvictionAsked(s.evacuation).Add(s.rawEvictionTTL)
}

// isRawEvictionOver reports whether the client that wanted to evict the pod has given up. A user
// who interrupts `kubectl drain` does not expect that pods leave an hour later.
func (s situation) isRawEvictionOver() bool {
	expiry := s.rawEvictionExpiry()
	return !expiry.IsZero() && !s.now.Before(expiry)
}

// decideRawEvictionOver ends the request of an eviction. The next decision depends on the other
// instigators: without one, the evacuation is cancelled.
func (d *decision) decideRawEvictionOver(s situation) {
	d.release = releaseRawEviction
	asked := protocol.EvictionAsked(s.evacuation)
	d.events = append(d.events, event{corev1.EventTypeNormal, EventRawEvictionExpired, actionCancel, fmt.Sprintf(
		"No client has tried to evict pod %s since %s (%s ago), so the eviction no longer requests its evacuation.",
		s.evacuation.Spec.PodRef.Name, asked.UTC().Format(time.RFC3339), duration.HumanDuration(s.now.Sub(asked)))})
}

// wakeForRawEviction reconciles the Evacuation when the request of an eviction ends.
func (d *decision) wakeForRawEviction(s situation) {
	if expiry := s.rawEvictionExpiry(); s.now.Before(expiry) {
		d.wakeAt(expiry)
	}
}

// releaseRawEviction removes the finalizer that an eviction has added. The write fails if the
// Evacuation has changed since the decision, so that a new eviction is not overlooked.
func (c *Controller) releaseRawEviction(ctx context.Context, evacuation *v1alpha1.Evacuation) error {
	released := evacuation.DeepCopy()
	released.Finalizers = slices.DeleteFunc(released.Finalizers, func(finalizer string) bool {
		return finalizer == v1alpha1.FinalizerInstigatorRawEviction
	})
	_, err := c.maintenance.MaintenanceV1alpha1().Evacuations(evacuation.Namespace).Update(ctx, released, metav1.UpdateOptions{})
	if err == nil {
		rawEvictionsExpired.Inc()
	}
	return err
}
