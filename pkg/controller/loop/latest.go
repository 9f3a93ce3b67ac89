// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// latestSize is how many objects are kept that an informer does not show yet. Where more are
// written at the same time the oldest are forgotten: their next write meets a conflict and is
// decided again.
const latestSize = 10000

// Latest returns the objects of an informer, or newer states of them that this process has written
// and the informer does not show yet. It is the one store of own writes: drop it, and the next
// write meets a conflict. It is safe for concurrent use.
type Latest[T runtime.Object] struct {
	objects cache.MutationCache
}

// NewLatest makes a Latest over the store of an informer.
func NewLatest[T runtime.Object](store cache.Store) Latest[T] {
	return Latest[T]{objects: cache.NewIntegerResourceVersionMutationCacheWithOptions(klog.Background(), store, cache.MutationCacheOptions{MaxCacheSize: latestSize})}
}

// Get returns an object by its key, as the informer names it.
func (l Latest[T]) Get(key string) (object T, exists bool, err error) {
	found, exists, err := l.objects.GetByKey(key)
	if err != nil || !exists {
		return object, false, err
	}
	object, ok := found.(T)
	return object, ok, nil
}

// Wrote notes what the API returned for a write of this process.
func (l Latest[T]) Wrote(object T) { l.objects.Mutation(object) }
