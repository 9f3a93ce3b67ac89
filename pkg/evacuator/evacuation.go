// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/heartbeat"
)

// Progress is a report about the progress of an evacuation.
type Progress struct {
	// Message describes the present activity for users. It is truncated to 1024 bytes.
	Message string
	// ExpectedFinish is the time at which the pod is expected to be gone. Until then the library
	// sends heartbeats for the handler, so the handler need not send further reports. After that
	// the library sends no heartbeats, and if the handler neither returns nor reports another time,
	// the next evacuator becomes active at the deadline. If it is zero, the library sends no
	// heartbeats.
	ExpectedFinish time.Time
}

// Evacuation is one pod's evacuation by a Handler. Its methods are safe for concurrent use.
type Evacuation struct {
	// Namespace, PodName and PodUID identify the pod: a handler that deletes it should use the UID
	// as a precondition.
	Namespace, PodName string
	PodUID             types.UID
	// NodeName is the node that the pod must leave.
	NodeName string

	evacuator *Evacuator
	name      string
	uid       types.UID
	// ctx is the context of the handler; end is the function that ends it.
	ctx context.Context
	end context.CancelCauseFunc
	// beats sends heartbeats for the handler.
	beats *heartbeat.Sender

	mu     sync.Mutex
	latest *v1alpha1.Evacuation
}

func newEvacuation(ctx context.Context, v *Evacuator, object *v1alpha1.Evacuation) *Evacuation {
	e := &Evacuation{
		Namespace: object.Namespace, PodName: object.Spec.PodRef.Name, PodUID: object.Spec.PodRef.UID, NodeName: object.Spec.NodeName,
		evacuator: v, name: object.Name, uid: object.UID, latest: object,
	}
	e.beats = heartbeat.NewSender(v.Clock, func(ctx context.Context) error { return e.write(ctx, map[string]any{}) })
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(e.Namespace, e.PodName), "class", v.Class)
	e.ctx, e.end = context.WithCancelCause(klog.NewContext(ctx, logger))
	return e
}

// endOf returns the cause for which a class must not continue to work on an Evacuation; nil if it
// may.
func endOf(object *v1alpha1.Evacuation, class string) error {
	status := &object.Status
	switch {
	case protocol.IsComplete(object):
		if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionComplete); c.Reason == v1alpha1.ReasonCancelled {
			return ErrCancelled
		}
		return ErrDeparted
	case status.ActiveEvacuatorClass != class:
		return ErrTurnLost
	case status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid:
		return nil
	case protocol.IsWithdrawn(object):
		return ErrCancelled
	}
	return nil
}

// Object returns the last known state of the Evacuation. Do not change it.
func (e *Evacuation) Object() *v1alpha1.Evacuation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.latest
}

// observe stores a new state of the Evacuation, and ends the handler's context if the class must
// not continue.
func (e *Evacuation) observe(object *v1alpha1.Evacuation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest = object
	if why := endOf(object, e.evacuator.Class); why != nil {
		e.end(why)
	}
}

// Report writes the progress of the evacuation, which is also a heartbeat. It returns an error if
// the write fails, or if the handler's context has ended.
func (e *Evacuation) Report(ctx context.Context, p Progress) error {
	p.Message = wording.Cut(p.Message, protocol.MaxMessage)
	e.beats.Reported(p.ExpectedFinish)
	return e.write(ctx, map[string]any{"message": p.Message, "expectedEvacuationFinishTime": metav1.NewTime(p.ExpectedFinish)})
}

// Forbid forbids the cancellation of the evacuation, so that the handler must finish it. It returns
// an error if the write fails, for example because the evacuation was already withdrawn. In that
// case the handler must stop and undo its work.
func (e *Evacuation) Forbid(ctx context.Context) error {
	return e.write(ctx, map[string]any{"evacuationCancellationPolicy": v1alpha1.EvacuationCancellationPolicyForbid})
}

// Allow reverts Forbid.
func (e *Evacuation) Allow(ctx context.Context) error {
	return e.write(ctx, map[string]any{"evacuationCancellationPolicy": v1alpha1.EvacuationCancellationPolicyAllow})
}

// AwaitDeparture waits until the pod has left, and then returns nil. If the evacuation ends in
// another way first, it returns the cause.
func (e *Evacuation) AwaitDeparture(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-e.ctx.Done():
		ctx = e.ctx
	}
	if cause := context.Cause(ctx); !errors.Is(cause, ErrDeparted) {
		return cause
	}
	return nil
}

// Eviction returns the eviction of the pod, for a handler that evicts it itself. Its annotation
// makes Haulout leave the decision to the budgets: otherwise an eviction of a pod with evacuators
// may be refused until its evacuators are done. With its precondition, it never evicts another pod
// of the same name.
func (e *Evacuation) Eviction() *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, Name: e.PodName, Annotations: map[string]string{v1alpha1.AnnotationEvictNow: e.evacuator.Class},
		},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(e.PodUID))},
	}
}

func (e *Evacuation) work() {
	logger := klog.FromContext(e.ctx)
	logger.Info("Evacuation begins", "node", e.NodeName)
	var beating sync.WaitGroup
	beatCtx, stop := context.WithCancel(e.ctx)
	beating.Go(func() { e.beats.Run(beatCtx, e.interval) })
	if !e.evacuator.HandlerReportsFirst {
		// Report immediately, so that the server knows that the evacuator runs.
		report := func() error { return e.write(beatCtx, map[string]any{}) }
		if err := report(); err != nil && e.ctx.Err() == nil {
			logger.Error(err, "Cannot report on the Evacuation, will retry")
			beating.Go(func() {
				heartbeat.Persist(beatCtx, e.evacuator.Clock, func() error {
					if err := report(); answer.IsTemporary(err) {
						return err
					}
					return nil
				})
			})
		}
	}
	err := heartbeat.PersistHandler(e.ctx, e.evacuator.Clock, func() error { return e.evacuator.Handler(e.ctx, e) })
	stop()
	beating.Wait()
	defer e.end(nil)
	if cause := context.Cause(e.ctx); cause != nil {
		logger.Info("Evacuation ends", "reason", cause.Error())
		return
	}
	status := map[string]any{"activeEvacuatorCompleted": true}
	if err != nil {
		status["message"] = wording.Cut(e.evacuator.Class+" gives up: "+err.Error(), protocol.MaxMessage)
	}
	logger.Info("Evacuation ends, but the pod still exists", "error", err)
	e.persist(func() error { return e.write(e.ctx, status) })
}

func (e *Evacuation) interval() time.Duration {
	deadline := protocol.Turn{Reported: true}.Patience(e.Object().Spec.ProgressDeadlineSeconds, 0)
	return heartbeat.Interval(deadline)
}

// write changes the status, provided that this class is active on this object. Otherwise it ends
// the context of the handler. Every write is a heartbeat, even if the status does not change.
func (e *Evacuation) write(ctx context.Context, status map[string]any) error {
	if cause := context.Cause(e.ctx); cause != nil {
		return cause
	}
	// The API server refuses the write if another class is active.
	status["activeEvacuatorClass"] = e.evacuator.Class
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": e.uid}, "status": status})
	if err != nil {
		return err
	}
	client := e.evacuator.Client.MaintenanceV1alpha1().Evacuations(e.Namespace)
	object, err := client.Patch(ctx, e.name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		e.observe(object)
		return nil
	}
	if answer.ObjectGone(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		if refreshErr := e.refresh(ctx); refreshErr != nil {
			return errors.Join(err, refreshErr)
		}
		if cause := context.Cause(e.ctx); cause != nil {
			return cause
		}
	}
	return heartbeat.NewWriteError(ctx, fmt.Errorf("write the status of evacuation %s/%s: %w", e.Namespace, e.name, err))
}

// refresh reads the Evacuation from the API server.
func (e *Evacuation) refresh(ctx context.Context) error {
	object, err := e.evacuator.Client.MaintenanceV1alpha1().Evacuations(e.Namespace).Get(ctx, e.name, metav1.GetOptions{})
	switch {
	case answer.ObjectGone(err) || err == nil && object.UID != e.uid:
		// The server keeps an Evacuation for a while after its pod has left, so a missing
		// Evacuation was withdrawn.
		e.end(ErrCancelled)
	case err != nil:
		return err
	default:
		e.observe(object)
	}
	return nil
}

func (e *Evacuation) refreshUntilKnown() {
	e.persist(func() error { return e.refresh(e.ctx) })
}

// persist retries until it succeeds or the handler's context ends.
func (e *Evacuation) persist(try func() error) {
	heartbeat.Persist(e.ctx, e.evacuator.Clock, try)
}
