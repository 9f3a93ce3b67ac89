// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/loop"
)

// noteOutcome reports, once per text, an error that prevents the reconciliation of an Evacuation,
// and records whether it took long. A conflict is neither a failure nor a success.
func (c *Controller) noteOutcome(ctx context.Context, key types.NamespacedName, err error, tookLong bool) {
	if err == nil {
		c.failures.Forget(key)
		c.hung.Delete(key)
		return
	}
	if ctx.Err() != nil || loop.IsOnlyConflict(err) {
		return
	}
	if tookLong {
		c.hung.Store(key, nil)
	} else {
		c.hung.Delete(key)
	}
	c.failures.Note(key, "", protocol.OneLine(err.Error(), protocol.MaxMessage/2))
	failure, _ := c.failures.Of(key)
	if failure == nil || !c.failures.Tell(key, failure.Text) {
		return
	}
	evacuation, err := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
	if err != nil {
		if apierrors.IsNotFound(err) {
			c.failures.Forget(key)
			c.hung.Delete(key)
		}
		return
	}
	c.send(evacuation, []event{{corev1.EventTypeWarning, EventBlocked, actionEvacuate,
		fmt.Sprintf("Evacuation of pod %s failed and will be retried: %s", evacuation.Spec.PodRef.Name, failure.Text)}})
}

// hangs reports whether the last reconciliation of an Evacuation took long before it failed.
func (c *Controller) hangs(key types.NamespacedName) bool {
	_, hung := c.hung.Load(key)
	return hung
}

// notReleased returns the blocker of a withdrawn Evacuation whose finalizers cannot be removed.
func notReleased(failure string) *eviction.Blocker {
	return &eviction.Blocker{
		Reason: maintenancev1alpha1.ReasonEvictionError,
		Message: fmt.Sprintf("The Evacuation is cancelled and cannot be released: %s. The server retries. "+
			"Check which policy or webhook refuses the writes of the server.", failure),
	}
}
