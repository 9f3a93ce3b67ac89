// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package evacuator is the library for evacuators: programs that remove pods from their nodes
// gracefully, in their own way, before the server evicts them (KEP-4212, "Evacuator").
//
// A pod names its evacuators with annotations, see AnnotationKey. When a maintenance, or another
// instigator, requests that the pod leaves and a class becomes active, the library calls the
// class's Handler. While the handler works it reports its progress, and the library sends
// heartbeats for it; its context ends when it must stop. When the handler returns and the pod has
// not left, the next evacuator becomes active, and after the last one the server evicts the pod.
//
// The program needs the rights of artifacts/examples/rbac-evacuator.yaml.
// artifacts/examples/evacuator is a complete example, and docs/evacuators.md describes the
// protocol.
package evacuator

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenanceinformers "haulout.dev/haulout/pkg/generated/informers/externalversions/maintenance/v1alpha1"
)

// Causes of the end of a Handler's context: context.Cause returns one of these, or the cause of the
// end of Run's context.
var (
	// ErrDeparted: the pod has left. The handler has nothing more to do.
	ErrDeparted = errors.New("the pod has left")
	// ErrCancelled: no instigator requests the evacuation any more. The pod stays, and the handler
	// has to undo its work.
	ErrCancelled = errors.New("the evacuation was cancelled")
	// ErrTurnLost: another evacuator is active, because this one sent no heartbeat for too long.
	// The handler must not change the pod any longer.
	ErrTurnLost = errors.New("another evacuator is active")
)

// Handler removes one pod from its node. It is called in its own goroutine when the class becomes
// active, and again, from the beginning, when the program restarts while the class is active: it
// must be idempotent.
//
// It returns nil when it has done all it can, and an error, which is reported, when it gives up; if
// the pod still exists, the next evacuator becomes active in both cases. So a handler that has
// deleted the pod should wait with Evacuation.AwaitDeparture. A result after the end of its context
// is not reported.
type Handler func(ctx context.Context, e *Evacuation) error

// Config has the dependencies and options of an Evacuator.
type Config struct {
	// Class is the class of the evacuator: a DNS subdomain of at most 54 characters, under a domain
	// that you own.
	Class string
	// Client is the client of Haulout's API.
	Client versioned.Interface
	// Handler removes a pod from its node.
	Handler Handler
	// Namespace limits the evacuator to the pods of one namespace; empty means all namespaces,
	// which needs the rights in all of them.
	Namespace string
	// NodeName limits the evacuator to the pods of one node, for a program that runs on each node;
	// empty means all nodes.
	NodeName string
	// HandlerReportsFirst makes the library write nothing before the handler's first Report. It is
	// for a handler that may ignore an Evacuation. Without it, the library reports immediately that
	// the evacuator runs; with it, the next evacuator becomes active if the handler does not report
	// within the server's --evacuator-start-deadline.
	HandlerReportsFirst bool
	// Clock is the clock; nil means the real one.
	Clock clock.Clock
}

// AnnotationKey returns the key of the annotation with which a pod names an evacuator of the class.
// The value is its priority, from 0 to 100000: the highest becomes active first. 10000 is reserved
// for the pod's own controller, and 9900 to 10099 for classes that share its parent domain.
func AnnotationKey(class string) string {
	return v1alpha1.AnnotationEvacuatorPrefix + class
}

// Evacuator calls a Handler for each pod for which its class is active.
type Evacuator struct {
	Config

	informer cache.SharedIndexInformer

	mu sync.Mutex
	// working are the evacuations whose handler runs, or whose result is not reported yet.
	working map[types.UID]*Evacuation
	// done are the evacuations that this process has ended while the cache still shows the class as
	// active.
	done     map[types.UID]struct{}
	handlers sync.WaitGroup
}

// New returns an Evacuator that does nothing before it runs. An Evacuator runs once.
func New(config Config) (*Evacuator, error) {
	if err := protocol.CheckClass(config.Class); err != nil {
		return nil, err
	}
	if config.Client == nil || config.Handler == nil {
		return nil, errors.New("a client and a handler are required")
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	v := &Evacuator{Config: config, working: map[types.UID]*Evacuation{}, done: map[types.UID]struct{}{}}
	selector := fields.OneTermEqualSelector(maintenance.FieldActiveEvacuatorClass, config.Class)
	if config.NodeName != "" {
		selector = fields.AndSelectors(selector, fields.OneTermEqualSelector(maintenance.FieldNodeName, config.NodeName))
	}
	v.informer = maintenanceinformers.NewFilteredEvacuationInformer(config.Client, config.Namespace, resync, cache.Indexers{},
		func(options *metav1.ListOptions) { options.FieldSelector = selector.String() })
	return v, nil
}

// resync is how often all Evacuations are processed without an event.
const resync = 10 * time.Minute

// Run calls the handler until the context ends, and returns when all handlers have returned.
// Several replicas of a program must not run at the same time: elect a leader, or run one.
func (v *Evacuator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	registration, err := v.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { v.changed(ctx, obj) },
		UpdateFunc: func(_, obj any) { v.changed(ctx, obj) },
		DeleteFunc: func(obj any) { v.gone(ctx, obj) },
	})
	if err != nil {
		return err
	}
	var informing sync.WaitGroup
	informing.Go(func() { v.informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		klog.FromContext(ctx).Info("Evacuator watches", "class", v.Class)
	}
	<-ctx.Done()
	informing.Wait()
	v.handlers.Wait()
	return nil
}

// changed passes an Evacuation to its handler, or starts one.
func (v *Evacuator) changed(ctx context.Context, obj any) {
	object, ok := obj.(*v1alpha1.Evacuation)
	if !ok {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if e := v.working[object.UID]; e != nil {
		e.observe(object)
		return
	}
	if _, over := v.done[object.UID]; over || ctx.Err() != nil || endOf(object, v.Class) != nil || object.Status.ActiveEvacuatorCompleted {
		return
	}
	e := newEvacuation(ctx, v, object)
	v.working[object.UID] = e
	v.handlers.Go(func() {
		e.work()
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.working, object.UID)
		if _, shown, err := v.informer.GetStore().Get(object); err == nil && shown {
			v.done[object.UID] = struct{}{}
		}
	})
}

// gone handles an Evacuation that is no longer in the watch of this class.
func (v *Evacuator) gone(ctx context.Context, obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	object, ok := obj.(*v1alpha1.Evacuation)
	if !ok {
		return
	}
	v.mu.Lock()
	e := v.working[object.UID]
	delete(v.done, object.UID)
	v.mu.Unlock()
	if e != nil && ctx.Err() == nil {
		// Call it asynchronously: it sends a request to the API server, and the informer must not
		// wait for that.
		v.handlers.Go(e.refreshUntilKnown)
	}
}
