// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
)

// relistInterval is the time between two requests to a server that does not answer.
const relistInterval = 100 * time.Millisecond

// Resource describes the objects of one resource to watch.
type Resource struct {
	// Client reads the resource. Name is the plural name of the resource.
	Client cache.Getter
	Name   string
	// Namespace is the namespace of the objects; "" for all namespaces.
	Namespace string
	// MayRestart is set if the server of the resource may restart and lose events. The differences
	// from the new state are then passed on as events. Otherwise lost events are an error.
	MayRestart bool
	// See is called for each event, in order. The first events add the existing objects. relisted
	// is set if earlier events of the object may have been lost.
	See func(event watch.Event, relisted bool)
	// Fail is called with the error that ends the watch. It is not called when the context ends.
	Fail func(error)
}

type follower struct {
	Resource
	listWatch *cache.ListWatch
	// known has the existing objects of a resource whose server may restart.
	known map[types.UID]runtime.Object
}

// Follow lists the objects and watches them until the context ends. Unlike an informer it skips no
// event: a rule may be broken in a single intermediate state.
func Follow(ctx context.Context, r Resource) error {
	f := &follower{
		Resource: r, known: map[types.UID]runtime.Object{},
		listWatch: cache.NewListWatchFromClient(r.Client, r.Name, r.Namespace, fields.Everything()),
	}
	version, err := f.list(ctx, false)
	if err != nil {
		return fmt.Errorf("list %s: %w", r.Name, err)
	}
	// Fail receives each permanent error. Logs of temporary errors would only fill the output of
	// tests.
	ctx = klog.NewContext(ctx, klog.Logger{})
	go f.run(ctx, version)
	return nil
}

func (f *follower) run(ctx context.Context, version string) {
	for {
		err := f.watch(ctx, version)
		if ctx.Err() != nil {
			return
		}
		if !f.MayRestart {
			f.Fail(fmt.Errorf("watch %s, events may be missing: %w", f.Name, err))
			return
		}
		err = wait.PollUntilContextCancel(ctx, relistInterval, true, func(ctx context.Context) (bool, error) {
			version, err = f.list(ctx, true)
			return err == nil, nil
		})
		if err != nil {
			return
		}
	}
}

// watch passes events on until the server no longer has the next ones.
func (f *follower) watch(ctx context.Context, version string) error {
	watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, version, f.listWatch)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		switch event.Type {
		case watch.Error:
			return apierrors.FromObject(event.Object)
		case watch.Added, watch.Modified, watch.Deleted:
			if err := f.tell(event, false); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("the watch ended")
}

// list passes on the differences between the listed and the known objects as events, and returns
// the version of the list.
func (f *follower) list(ctx context.Context, relisted bool) (version string, err error) {
	list, err := f.listWatch.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return "", err
	}
	gone := make(map[types.UID]runtime.Object, len(f.known))
	for uid, object := range f.known {
		gone[uid] = object
	}
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return "", err
		}
		event := watch.Event{Type: watch.Added, Object: object}
		if known, ok := gone[accessor.GetUID()]; ok {
			delete(gone, accessor.GetUID())
			if sameVersion(known, accessor) {
				continue
			}
			event.Type = watch.Modified
		}
		if err := f.tell(event, relisted); err != nil {
			return "", err
		}
	}
	for _, object := range gone {
		if err := f.tell(watch.Event{Type: watch.Deleted, Object: object}, relisted); err != nil {
			return "", err
		}
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return "", err
	}
	return accessor.GetResourceVersion(), nil
}

func sameVersion(known runtime.Object, now metav1.Object) bool {
	accessor, err := meta.Accessor(known)
	return err == nil && accessor.GetResourceVersion() == now.GetResourceVersion()
}

func (f *follower) tell(event watch.Event, relisted bool) error {
	if f.MayRestart {
		accessor, err := meta.Accessor(event.Object)
		if err != nil {
			return err
		}
		if event.Type == watch.Deleted {
			delete(f.known, accessor.GetUID())
		} else {
			f.known[accessor.GetUID()] = event.Object
		}
	}
	f.See(event, relisted)
	return nil
}
