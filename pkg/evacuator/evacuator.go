// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package evacuator is the library for evacuators: programs that remove pods from their nodes
// gracefully, in their own way, before the server evicts them (KEP-4212, "Evacuator").
//
// A pod names its evacuators with annotations, see AnnotationKey. When a maintenance, or another
// instigator, requests that the pod leave, and the class becomes active, the library calls the
// Handler of the class. The handler reports its progress, and the library sends heartbeats for it.
// The context of the handler ends when it must stop. If the pod has not left when the handler
// returns, the next evacuator becomes active. After the last evacuator, the server evicts the pod.
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

// The causes with which a Handler's context ends. context.Cause returns one of these, or the cause
// with which the context of Run ended.
var (
	// ErrDeparted means that the pod has left. The handler need not do anything more.
	ErrDeparted = errors.New("the pod has left")
	// ErrCancelled means that no instigator requests the evacuation any longer. The pod stays, and
	// the handler must undo its work.
	ErrCancelled = errors.New("the evacuation was cancelled")
	// ErrTurnLost means that another evacuator is active, because this one sent no heartbeat for
	// too long. The handler must not change the pod any longer.
	ErrTurnLost = errors.New("another evacuator is active")
)

// Handler removes one pod from its node. The library calls it in its own goroutine when the class
// becomes active. If the program restarts while the class is active, the library calls it again, so
// it must be idempotent.
//
// It returns nil when it has done all it can. It returns an error, which the library reports, when
// it gives up. In both cases, the next evacuator becomes active if the pod still exists. So a
// handler that has deleted the pod should wait with Evacuation.AwaitDeparture. The library does not
// report a result after the end of the context. If the handler returns the error of a method of the
// Evacuation, such as Report, because the server does not answer, the library calls it again.
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
	// for a handler that may ignore an Evacuation: the next evacuator becomes active if the handler
	// does not report within the time that the server gives to first reports: 5 minutes, or
	// spec.progressDeadlineSeconds if the class has reported for another pod before. Without this
	// option, the library reports immediately that the evacuator runs.
	HandlerReportsFirst bool
	// Clock is the clock; nil means the real one.
	Clock clock.Clock
}

// AnnotationKey returns the key of the annotation with which a pod names an evacuator of the class.
// The value is the priority of the evacuator, from 0 to 100000: the evacuator with the highest
// priority becomes active first. 10000 is reserved for the pod's own controller, and 9900 to 10099
// for classes that share its parent domain.
func AnnotationKey(class string) string {
	return v1alpha1.AnnotationEvacuatorPrefix + class
}

// Evacuator calls a Handler for each pod for which its class is active.
type Evacuator struct {
	Config

	informer maintenanceinformers.EvacuationIndexInformer

	mu sync.Mutex
	// working has the evacuations whose handler runs, or whose result is not reported yet.
	working map[types.UID]*Evacuation
	// done has the evacuations that this process has ended while the cache still shows the class as
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
	v.informer = maintenanceinformers.NewTypedFilteredEvacuationInformer(config.Client, config.Namespace, resync, nil,
		func(options *metav1.ListOptions) { options.FieldSelector = selector.String() })
	return v, nil
}

// resync is the interval at which all Evacuations are processed even without an event.
const resync = 10 * time.Minute

// Run calls the handler until the context ends, and returns when all handlers have returned.
// Several replicas of a program must not run at the same time: elect a leader, or run one.
func (v *Evacuator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	registration, err := v.informer.AddTypedEventHandler(maintenanceinformers.EvacuationHandlerFuncs{
		AddFunc:    func(object *v1alpha1.Evacuation) { v.changed(ctx, object) },
		UpdateFunc: func(_, object *v1alpha1.Evacuation) { v.changed(ctx, object) },
		DeleteFunc: func(deleted maintenanceinformers.DeletedEvacuation) { v.gone(ctx, deleted.OptionalObj) },
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

// changed passes an Evacuation to its running handler, or starts a handler.
func (v *Evacuator) changed(ctx context.Context, object *v1alpha1.Evacuation) {
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

// gone handles an Evacuation that is no longer in the watch of this class; nil means that it is not
// known which.
func (v *Evacuator) gone(ctx context.Context, object *v1alpha1.Evacuation) {
	if object == nil {
		return
	}
	v.mu.Lock()
	e := v.working[object.UID]
	delete(v.done, object.UID)
	v.mu.Unlock()
	if e != nil && ctx.Err() == nil {
		// Run this in a goroutine: it sends a request to the API server, for which the informer
		// must not wait.
		v.handlers.Go(e.refreshUntilKnown)
	}
}
