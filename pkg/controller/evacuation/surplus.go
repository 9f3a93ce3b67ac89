// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
)

const (
	// minCompleted is how many complete Evacuations of a namespace are kept for the TTL, even if
	// the namespace has fewer pods.
	minCompleted = 100
	// surplusCheck is how often the complete Evacuations of a namespace are counted at most.
	surplusCheck = time.Second
)

// isSurplus reports whether, according to the last count, a complete Evacuation is deleted before
// the end of its TTL. It also enqueues the next count of the namespace. All Evacuations that are
// synced before it share that count: the queue has the key of the namespace once.
func (c *Controller) isSurplus(evacuation *v1alpha1.Evacuation) bool {
	c.queue.AddAfter(types.NamespacedName{Namespace: evacuation.Namespace}, surplusCheck)
	surplus, _ := c.surplus.Get(evacuation.Namespace)
	return surplus.Has(evacuation.UID)
}

// findSurplus finds the surplus complete Evacuations of a namespace and enqueues the new ones. A
// quota of pods does not limit the Evacuations of deleted pods, so a namespace keeps as many as it
// has pods, and at least minCompleted. The oldest others are surplus.
func (c *Controller) findSurplus(namespace string) error {
	oldest, err := c.oldestComplete(namespace)
	if err != nil {
		return err
	}
	before, _ := c.surplus.Get(namespace)
	surplus := make(sets.Set[types.UID], len(oldest))
	for _, e := range oldest {
		surplus.Insert(e.UID)
	}
	c.surplus.Change(namespace, func(sets.Set[types.UID], bool) (sets.Set[types.UID], bool) { return surplus, len(surplus) > 0 })
	if len(oldest) > 0 {
		// Count again until they are gone: the deletion of an Evacuation does not enqueue the
		// namespace.
		c.queue.AddAfter(types.NamespacedName{Namespace: namespace}, loop.Resync)
	}
	for _, e := range oldest {
		// Evacuations of the previous count are in the queue, or wait for their backoff.
		if !before.Has(e.UID) {
			c.queue.Add(keyOf(e))
		}
	}
	return nil
}

// oldestComplete returns the surplus complete Evacuations of a namespace, the oldest first.
func (c *Controller) oldestComplete(namespace string) ([]*v1alpha1.Evacuation, error) {
	objects, err := c.evacuationIndexer.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil || len(objects) <= minCompleted {
		return nil, err
	}
	var complete []*v1alpha1.Evacuation
	for _, object := range objects {
		if e, ok := object.(*v1alpha1.Evacuation); ok && protocol.IsComplete(e) {
			complete = append(complete, e)
		}
	}
	excess := len(complete) - max(minCompleted, c.pods.Count(namespace))
	if excess <= 0 {
		return nil, nil
	}
	completed := func(e *v1alpha1.Evacuation) time.Time {
		return meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionComplete).LastTransitionTime.Time
	}
	slices.SortFunc(complete, func(a, b *v1alpha1.Evacuation) int {
		return cmp.Or(completed(a).Compare(completed(b)), cmp.Compare(a.Name, b.Name))
	})
	return complete[:excess], nil
}
