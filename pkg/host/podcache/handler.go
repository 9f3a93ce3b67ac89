// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// HandlerOf returns a handler that calls changed with the old and the new state of an object. The
// old state is nil for a new object, and the new state is nil for a deleted one. If an object was
// deleted and recreated with the same name while the informer was not connected, changed is called
// once for each of the two objects. T is the type that the informer stores.
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

// isAnother reports whether two states are those of different objects with the same name.
func isAnother(old, obj any) bool {
	before, err := meta.Accessor(old)
	if err != nil {
		return false
	}
	now, err := meta.Accessor(obj)
	return err == nil && before.GetUID() != now.GetUID()
}

// Handled is an informer, or Pods, with the handler for its events.
type Handled struct {
	Informer interface {
		AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
	}
	Handler cache.ResourceEventHandler
}

// AddHandlers adds handlers to informers. It returns functions that report whether each handler has
// received all objects of the initial list of its informer.
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
