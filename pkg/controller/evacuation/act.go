// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/loop"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// act applies a decision: it withdraws evictions that must not be sent any more, then writes the
// status, and then takes the actions that depend on the new status. If the status cannot be written
// for a while, act releases the Evacuation nevertheless, unless its cancellation is forbidden.
func (c *Controller) act(ctx context.Context, s situation, d decision) error {
	key := keyOf(s.evacuation)
	if !d.evict {
		c.evictions.Remove(key)
	}
	evacuation, err := c.writeStatus(ctx, s, d)
	if err != nil {
		if d.release == releaseAll && s.failure != "" && d.status.EvacuationCancellationPolicy != v1alpha1.EvacuationCancellationPolicyForbid {
			err = errors.Join(err, c.releaseUnwritten(ctx, s, d))
		}
		return loop.IgnoreNotFound(err)
	}
	wrote := evacuation != s.evacuation
	if wrote && d.silent != "" {
		c.reporters.wasSilent(d.silent, s.now)
	}
	if wrote {
		// Send the events now: if a later step fails, the next sync does not decide on these events
		// again.
		c.send(evacuation, d.events)
	}
	if d.evict {
		deployment, notReplaced := "", ""
		if s.pod != nil {
			deployment, notReplaced = c.notReplaced(s.pod)
		}
		c.evictions.Add(eviction.Request{
			Evacuation: key, Pod: evacuation.Spec.PodRef.Name, UID: evacuation.Spec.PodRef.UID,
			ReplacedFirst: isEvacuator(evacuation, v1alpha1.EvacuatorClassDeployment), Deployment: deployment, NotReplaced: notReplaced,
			FailedEvictions: evacuation.Status.FailedEvictionCounter, Blocker: blockerOf(&evacuation.Status),
		})
	}
	if d.release != releaseNone {
		if err := c.releaseEvacuation(ctx, evacuation, d.release); err != nil {
			return loop.IgnoreNotFound(err)
		}
	}
	if !wrote {
		c.send(evacuation, d.events)
	}
	if !d.wake.IsZero() {
		c.queue.AddAfter(key, d.wake.Sub(s.now))
	}
	return nil
}

// writeStatus writes the desired status if it differs, and returns the Evacuation with that status.
func (c *Controller) writeStatus(ctx context.Context, s situation, d decision) (*v1alpha1.Evacuation, error) {
	before := &s.evacuation.Status
	if equality.Semantic.DeepEqual(*before, d.status) {
		return s.evacuation, nil
	}
	evacuation := s.evacuation.DeepCopy()
	evacuation.Status = d.status
	evacuation, err := c.maintenance.MaintenanceV1alpha1().Evacuations(evacuation.Namespace).UpdateStatus(ctx, evacuation, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	logger := klog.FromContext(ctx)
	if protocol.IsComplete(evacuation) {
		logger.V(2).Info("Evacuation is complete", "pod", klog.KRef(evacuation.Namespace, evacuation.Spec.PodRef.Name))
		evacuationsCompleted.WithLabelValues(meta.FindStatusCondition(evacuation.Status.Conditions, v1alpha1.ConditionComplete).Reason).Inc()
		if s.pod == nil || !drainplan.IsLive(s.pod) {
			evacuationDuration.Observe(s.now.Sub(evacuation.CreationTimestamp.Time).Seconds())
		}
	} else if before.ActiveEvacuatorClass != d.status.ActiveEvacuatorClass {
		if before.ActiveEvacuatorClass != "" {
			evacuationHandovers.Inc()
		}
		logger.V(2).Info("The next evacuator is active", "from", before.ActiveEvacuatorClass, "to", d.status.ActiveEvacuatorClass)
	}
	return evacuation, nil
}

// releaseUnwritten releases an Evacuation although its status cannot be written. The status comes
// first, so that a watcher gets the last one. But writes have failed for a while, and the server
// refuses evictions by other clients while the Evacuation of the pod exists.
func (c *Controller) releaseUnwritten(ctx context.Context, s situation, d decision) error {
	if err := c.releaseEvacuation(ctx, s.evacuation, d.release); err != nil {
		return loop.IgnoreNotFound(err)
	}
	// The Evacuation is no longer blocked.
	c.send(s.evacuation, slices.DeleteFunc(d.events, func(e event) bool { return e.reason == EventBlocked }))
	return nil
}

// releaseEvacuation removes the finalizers that are to be released and deletes the Evacuation. Both
// writes fail if the Evacuation has changed since the decision, so that a new instigator is not
// overlooked. The deletion does not wait for dependents: with a finalizer on a dependent, a user
// could keep the Evacuation forever.
func (c *Controller) releaseEvacuation(ctx context.Context, evacuation *v1alpha1.Evacuation, which release) error {
	client := c.maintenance.MaintenanceV1alpha1().Evacuations(evacuation.Namespace)
	if which == releaseRawEviction {
		return c.releaseRawEviction(ctx, evacuation)
	}
	kept := slices.DeleteFunc(slices.Clone(evacuation.Finalizers), func(finalizer string) bool {
		_, isInstigator := protocol.IsInstigatorFinalizer(finalizer)
		return isInstigator || which == releaseDue
	})
	if len(kept) != len(evacuation.Finalizers) {
		released := evacuation.DeepCopy()
		released.Finalizers = kept
		updated, err := client.Update(ctx, released, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		evacuation = updated
	}
	if evacuation.DeletionTimestamp != nil {
		return nil
	}
	return client.Delete(ctx, evacuation.Name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: ptr.To(evacuation.UID), ResourceVersion: ptr.To(evacuation.ResourceVersion)},
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
}
