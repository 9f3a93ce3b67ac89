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
	// minCompleted is the number of complete Evacuations that every namespace may keep for the TTL,
	// even if it has fewer pods.
	minCompleted = 100
	// surplusCheck is the minimum interval between two counts of the complete Evacuations of a
	// namespace.
	surplusCheck = time.Second
)

// isSurplus reports whether, according to the last count, a complete Evacuation is to be deleted
// before the end of its TTL. It also enqueues the next count of the namespace. The key of the
// namespace is in the queue only once, so all Evacuations that are synced before the next count
// share it.
func (c *Controller) isSurplus(evacuation *v1alpha1.Evacuation) bool {
	c.queue.AddAfter(types.NamespacedName{Namespace: evacuation.Namespace}, surplusCheck)
	surplus, _ := c.surplus.Get(evacuation.Namespace)
	return surplus.Has(evacuation.UID)
}

// findSurplus finds the surplus complete Evacuations of a namespace and enqueues the new ones. A
// quota for pods does not limit the Evacuations of deleted pods. So a namespace keeps as many
// complete Evacuations as it has pods, and at least minCompleted. All older ones are surplus.
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
		// Count again until they are deleted: the deletion of an Evacuation does not enqueue the
		// namespace.
		c.queue.AddAfter(types.NamespacedName{Namespace: namespace}, loop.Resync)
	}
	for _, e := range oldest {
		// Surplus Evacuations of the previous count are already in the queue, or wait for their
		// backoff.
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
