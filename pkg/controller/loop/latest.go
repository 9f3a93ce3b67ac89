// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// latestSize is the maximum number of written objects that are kept until the informer has them. If
// more are written at the same time, the oldest are dropped. The next write of a dropped object
// fails with a conflict and is decided again.
const latestSize = 10000

// Latest returns the objects of an informer, or the newer states of them that this process has
// written and that the informer does not have yet. Its content may be lost: the next write then
// fails with a conflict. Latest is safe for concurrent use.
type Latest[T runtime.Object] struct {
	objects cache.MutationCache
}

// NewLatest creates a Latest for the store of an informer.
func NewLatest[T runtime.Object](store cache.Store) Latest[T] {
	return Latest[T]{objects: cache.NewIntegerResourceVersionMutationCacheWithOptions(klog.Background(), store, cache.MutationCacheOptions{MaxCacheSize: latestSize})}
}

// Get returns an object by its key in the informer.
func (l Latest[T]) Get(key string) (object T, exists bool) {
	found, _, _ := l.objects.GetByKey(key) // the store of an informer never fails
	object, exists = found.(T)
	return object, exists
}

// Wrote records the object that the API returned for a write of this process.
func (l Latest[T]) Wrote(object T) { l.objects.Mutation(object) }

// All returns the objects of an informer. list is the method List of its lister.
func All[T any](list func(labels.Selector) ([]T, error)) []T {
	all, _ := list(labels.Everything()) // the store of an informer never fails
	return all
}
