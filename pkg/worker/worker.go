// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package worker is the library for workers: programs that do the work for which a maintenance
// takes nodes out of service, such as a reboot.
//
// When a node is ready for the work, the server offers it in a NodeTask with the name of the node.
// The library claims the task, waits until the server grants the claim, and calls the Handler of
// the class. The handler reports its progress, and the library sends heartbeats for it. When the
// handler returns, the library reports the result: Done or Failed.
//
// The program needs the rights of artifacts/examples/rbac-worker.yaml. The example below is
// complete, and docs/workers.md describes the protocol.
package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenanceinformers "haulout.dev/haulout/pkg/generated/informers/externalversions/maintenance/v1alpha1"
)

// The causes with which a Handler's context ends. context.Cause returns one of these, or the cause
// with which the context of Run ended.
var (
	// ErrWithdrawn means that the NodeTask was deleted: the node is taken back. The handler must
	// not do anything more on the node, and must stop what it has started there.
	ErrWithdrawn = errors.New("the task was withdrawn")
	// ErrLost means that the server has had no heartbeat for progressDeadlineSeconds and counts the
	// work as failed. A user may return the node to service at any time, so the handler must not
	// begin anything more on it. If the handler still returns nil, the library reports Done, and
	// the server verifies the node.
	ErrLost = errors.New("the worker was silent for too long")
	// ErrEnded means that the result of the task was reported by another client.
	ErrEnded = errors.New("the task has ended")
)

// Handler works on one node. The library calls it in its own goroutine when the server has granted
// the node. If the program restarts during the work, the library calls it again, so it must be
// idempotent, or Config.Finished must be set.
//
// It returns nil when the work has succeeded, and an error, which the library reports, when it has
// failed. In both cases the handler must have stopped everything that it started on the node. The
// library reports no error after the end of the context. If the handler returns the error of Report
// because the server does not answer, the library calls it again.
type Handler func(ctx context.Context, t *Task) error

// Config has the dependencies and options of a Worker.
type Config struct {
	// Class is the class of the worker: a DNS subdomain of at most 63 characters with a dot, under
	// a domain that you own. With the prefix "*." the worker has all classes that end with the
	// rest, such as "*.job.example.com".
	Class string
	// Holder identifies the worker in the NodeTask, in at most 128 bytes. It must be the same after
	// a restart of the program, which otherwise does not continue its work, and differ from that of
	// every worker that must not continue it.
	Holder string
	// Client is the client of Haulout's API.
	Client versioned.Interface
	// Handler works on a node.
	Handler Handler
	// Finished reports whether the work of a task has already succeeded, as far as the program can
	// see it. The library asks it before it calls the Handler, and when the server has counted the
	// work as failed because the worker was silent: such a task may end as Done, but its handler is
	// not called again. Nil means never.
	Finished func(ctx context.Context, t *Task) bool
	// NodeName limits the worker to one node, for a program that runs on each node; empty means all
	// nodes.
	NodeName string
	// Clock is the clock; nil means the real one.
	Clock clock.Clock
}

// Worker calls a Handler for each node that the server grants to it.
type Worker struct {
	Config

	informer maintenanceinformers.NodeTaskIndexInformer

	mu sync.Mutex
	// working has the tasks that the worker claims, or whose handler runs.
	working map[types.UID]*Task
	// done has the tasks whose result was reported while the cache may still show them as claimed.
	done     map[types.UID]struct{}
	handlers sync.WaitGroup
}

const (
	maxClass, maxHolder = 63, 128
	// resync is the interval at which all NodeTasks are processed even without an event.
	resync = 10 * time.Minute
)

// New returns a Worker that does nothing before it runs. A Worker runs once.
func New(config Config) (*Worker, error) {
	name := strings.TrimPrefix(config.Class, "*.")
	switch {
	case len(validation.IsDNS1123Subdomain(name)) > 0 || !strings.Contains(name, ".") || len(name) > maxClass:
		return nil, fmt.Errorf("class %q: must be a DNS subdomain of at most %d characters with a dot, optionally after \"*.\"", config.Class, maxClass)
	case config.Holder == "" || len(config.Holder) > maxHolder:
		return nil, fmt.Errorf("holder %q: must have from 1 to %d bytes", config.Holder, maxHolder)
	case config.Client == nil || config.Handler == nil:
		return nil, errors.New("a client and a handler are required")
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	v := &Worker{Config: config, working: map[types.UID]*Task{}, done: map[types.UID]struct{}{}}
	var terms []fields.Selector
	if name == config.Class {
		terms = append(terms, fields.OneTermEqualSelector(maintenance.FieldWorker, config.Class))
	}
	if config.NodeName != "" {
		terms = append(terms, fields.OneTermEqualSelector(maintenance.FieldName, config.NodeName))
	}
	selector := fields.AndSelectors(terms...).String()
	v.informer = maintenanceinformers.NewTypedFilteredNodeTaskInformer(config.Client, resync, nil,
		func(options *metav1.ListOptions) { options.FieldSelector = selector })
	return v, nil
}

// Run calls the handler until the context ends, and returns when all handlers have returned.
// Several replicas with the same holder must not run at the same time: elect a leader, run one, or
// make the handler cope with it.
func (v *Worker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	registration, err := v.informer.AddTypedEventHandler(maintenanceinformers.NodeTaskHandlerFuncs{
		AddFunc: func(object *v1alpha1.NodeTask) { v.changed(ctx, object) },
		UpdateFunc: func(old, object *v1alpha1.NodeTask) {
			// The task of a node may have been replaced while the watch was interrupted.
			if old.UID != object.UID {
				v.gone(old)
			}
			v.changed(ctx, object)
		},
		DeleteFunc: func(deleted maintenanceinformers.DeletedNodeTask) { v.gone(deleted.OptionalObj) },
	})
	if err != nil {
		return err
	}
	var informing sync.WaitGroup
	informing.Go(func() { v.informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		klog.FromContext(ctx).Info("Worker watches", "class", v.Class)
	}
	<-ctx.Done()
	informing.Wait()
	v.handlers.Wait()
	return nil
}

// changed passes a NodeTask to its running handler, or begins with it.
func (v *Worker) changed(ctx context.Context, object *v1alpha1.NodeTask) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t := v.working[object.UID]; t != nil {
		t.observe(object)
		return
	}
	if _, over := v.done[object.UID]; over || ctx.Err() != nil || !v.concerns(object) {
		return
	}
	t := newTask(ctx, v, object)
	v.working[object.UID] = t
	v.handlers.Go(func() {
		reported := t.work()
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.working, object.UID)
		shown, _, _ := v.informer.GetStore().Get(object) // fails for no object with a name
		if task, ok := shown.(*v1alpha1.NodeTask); reported && ok && task.UID == object.UID {
			v.done[object.UID] = struct{}{}
		}
	})
}

// concerns reports whether a task is one that the worker may claim, or one of its own that has no
// result yet.
func (v *Worker) concerns(object *v1alpha1.NodeTask) bool {
	if suffix, pattern := strings.CutPrefix(v.Class, "*"); pattern &&
		(!strings.HasSuffix(object.Spec.Worker, suffix) || len(object.Spec.Worker) == len(suffix)) {
		return false
	}
	switch isOurs := object.Status.Holder == v.Holder; object.Status.State {
	case v1alpha1.NodeTaskOffered:
		return isOurs || object.Status.Holder == ""
	case v1alpha1.NodeTaskClaimed:
		return isOurs && object.Status.Result == ""
	case v1alpha1.NodeTaskFailed:
		return isOurs && isLost(object) && v.Finished != nil
	default:
		return false
	}
}

// isLost reports whether the server has counted the work as failed, although it may still end.
func isLost(object *v1alpha1.NodeTask) bool {
	return object.Status.State == v1alpha1.NodeTaskFailed && object.Status.Reason == v1alpha1.NodeTaskLost && object.Status.Result == ""
}

// gone ends the work on a NodeTask that no longer exists; nil means that it is not known which.
func (v *Worker) gone(object *v1alpha1.NodeTask) {
	if object == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.done, object.UID)
	if t := v.working[object.UID]; t != nil {
		t.end(ErrWithdrawn)
	}
}
