// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// HandlerOf calls changed with the old and the new state of an object. Old is nil for a new object,
// and the new one is nil for a deleted one. An object that was deleted and made again under its
// name while the informer was not connected is a deleted and a new one. T is the type that the
// informer stores.
func HandlerOf[T any](changed func(old, new *T)) cache.ResourceEventHandler {
	cast := func(obj any) *T {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		object, _ := obj.(*T)
		return object
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { changed(nil, cast(obj)) },
		UpdateFunc: func(old, obj any) {
			if isAnother(old, obj) {
				changed(cast(old), nil)
				changed(nil, cast(obj))
				return
			}
			changed(cast(old), cast(obj))
		},
		DeleteFunc: func(obj any) {
			if old := cast(obj); old != nil {
				changed(old, nil)
			}
		},
	}
}

// isAnother reports whether two states are of two objects of one name.
func isAnother(old, obj any) bool {
	before, err := meta.Accessor(old)
	if err != nil {
		return false
	}
	now, err := meta.Accessor(obj)
	return err == nil && before.GetUID() != now.GetUID()
}

// Handled is an informer, or Pods, and the handler of its events.
type Handled struct {
	Informer interface {
		AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
	}
	Handler cache.ResourceEventHandler
}

// AddHandlers adds handlers to informers. It returns what reports whether each has had all that its
// informer had when it started.
func AddHandlers(all ...Handled) ([]cache.InformerSynced, error) {
	var synced []cache.InformerSynced
	for _, h := range all {
		registration, err := h.Informer.AddEventHandler(h.Handler)
		if err != nil {
			return nil, err
		}
		synced = append(synced, registration.HasSynced)
	}
	return synced, nil
}
