// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/heartbeat"
)

// Progress is a report about the progress of the work.
type Progress struct {
	// Message describes the present activity for users. It is truncated to 1024 bytes.
	Message string
	// ExpectedFinish is the time at which the work is expected to be done. Until then the library
	// sends heartbeats for the handler, so the handler need not send further reports. After that
	// the library sends no heartbeats, and if the handler neither returns nor reports another time,
	// the server counts the work as failed at the deadline. If it is zero, the library sends no
	// heartbeats.
	ExpectedFinish time.Time
}

// Task is the work on one node. Its methods are safe for concurrent use.
type Task struct {
	// NodeName and NodeUID identify the node.
	NodeName string
	NodeUID  types.UID

	worker *Worker
	uid    types.UID
	// run is the context of Run. ctx is the context of the handler, and end the function that ends
	// it.
	run, ctx context.Context
	end      context.CancelCauseFunc
	// observed is a channel that wakes the goroutine that waits for a new state.
	observed chan struct{}
	// beats sends heartbeats for the handler.
	beats *heartbeat.Sender
	// claimed is the wall-clock time before the claim by this process, zero if an earlier one has
	// claimed it. The monotonic clock stands still while the machine sleeps.
	claimed time.Time

	mu     sync.Mutex
	latest *v1alpha1.NodeTask
}

func newTask(ctx context.Context, v *Worker, object *v1alpha1.NodeTask) *Task {
	t := &Task{
		NodeName: object.Name, NodeUID: object.Spec.NodeUID, worker: v, uid: object.UID, run: ctx, latest: object,
		observed: make(chan struct{}, 1),
	}
	t.beats = heartbeat.NewSender(v.Clock, func(ctx context.Context) error { return t.writeClaimed(ctx, map[string]any{}) })
	logger := klog.FromContext(ctx).WithValues("node", klog.KRef("", t.NodeName), "class", object.Spec.Worker)
	t.ctx, t.end = context.WithCancelCause(klog.NewContext(ctx, logger))
	return t
}

// endOf returns the cause for which a holder must not continue to work on a task; nil if it may.
func endOf(object *v1alpha1.NodeTask, holder string) error {
	status := &object.Status
	switch {
	case status.Holder != "" && status.Holder != holder:
		return ErrWithdrawn
	case status.State == v1alpha1.NodeTaskOffered, status.State == v1alpha1.NodeTaskClaimed && status.Result == "":
		return nil
	case isLost(object):
		return ErrLost
	}
	return ErrEnded
}

// Object returns the last known state of the NodeTask. Do not change it.
func (t *Task) Object() *v1alpha1.NodeTask {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.latest
}

// observe stores a new state of the NodeTask, and ends the handler's context if the worker must not
// continue.
func (t *Task) observe(object *v1alpha1.NodeTask) {
	t.mu.Lock()
	t.latest = object
	t.mu.Unlock()
	if why := endOf(object, t.worker.Holder); why != nil {
		t.end(why)
	}
	select {
	case t.observed <- struct{}{}:
	default:
	}
}

// Report writes the progress of the work, which is also a heartbeat. It returns an error if the
// write fails, or if the handler's context has ended. After a Report without an error, the node
// belongs to the worker for progressDeadlineSeconds, even if no other write succeeds: call it right
// before a step that must not meet a node in service.
func (t *Task) Report(ctx context.Context, p Progress) error {
	p.Message = wording.Cut(p.Message, protocol.MaxMessage)
	t.beats.Reported(p.ExpectedFinish)
	return t.writeClaimed(ctx, map[string]any{"message": p.Message, "expectedFinishTime": metav1.NewTime(p.ExpectedFinish)})
}

// HeartbeatInterval returns the time between two heartbeats, for a handler that reports itself that
// the work is alive.
func (t *Task) HeartbeatInterval() time.Duration {
	return heartbeat.Interval(time.Duration(t.Object().Spec.ProgressDeadlineSeconds) * time.Second)
}

// work claims the task, calls the handler and reports its result. It returns whether it has
// reported a result.
func (t *Task) work() (reported bool) {
	defer t.end(nil)
	logger := klog.FromContext(t.ctx)
	if !t.claim() {
		return false
	}
	if t.worker.Finished != nil && t.worker.Finished(t.ctx, t) {
		logger.Info("The work has succeeded already")
		return t.finish(nil)
	}
	if isLost(t.Object()) {
		return false
	}
	heartbeat.Persist(t.ctx, t.worker.Clock, t.confirm)
	if t.ctx.Err() != nil {
		return false
	}
	logger.Info("Work begins")
	var beating sync.WaitGroup
	beatCtx, stop := context.WithCancel(t.ctx)
	beating.Go(func() { t.beats.Run(beatCtx, t.HeartbeatInterval) })
	again := false
	err := heartbeat.PersistHandler(t.ctx, t.worker.Clock, func() error {
		if again && t.worker.Finished != nil && t.worker.Finished(t.ctx, t) {
			return nil
		}
		again = true
		return t.worker.Handler(t.ctx, t)
	})
	stop()
	beating.Wait()
	cause := context.Cause(t.ctx)
	if cause != nil && (err != nil || !errors.Is(cause, ErrLost)) {
		logger.Info("Work ends without a report", "reason", cause.Error(), "err", err)
		return false
	}
	logger.Info("Work ends", "err", err)
	return t.finish(err)
}

// claim claims the task and waits until the server has granted or withdrawn it. It returns whether
// the task is the worker's.
func (t *Task) claim() bool {
	isOffered := func() bool {
		status := t.Object().Status
		return status.State == v1alpha1.NodeTaskOffered && status.Holder == ""
	}
	heartbeat.Persist(t.ctx, t.worker.Clock, func() error {
		if !isOffered() {
			return nil
		}
		t.claimed = t.worker.Clock.Now().Round(0)
		return t.write(t.ctx, map[string]any{"holder": t.worker.Holder})
	})
	for {
		object := t.Object()
		if object.Status.State != v1alpha1.NodeTaskOffered {
			// The context of a lost task has ended.
			return t.run.Err() == nil && !errors.Is(context.Cause(t.ctx), ErrWithdrawn) && object.Status.Holder == t.worker.Holder
		}
		select {
		case <-t.observed:
		case <-t.ctx.Done():
			return false
		}
	}
}

// maxClaimAge is the maximum age of a claim that is as good as a heartbeat.
const maxClaimAge = 5 * time.Second

// confirm confirms that the node still belongs to the worker: the cache may be older than the end
// of the claim. A read is sufficient after a new claim. In all other cases a heartbeat confirms it,
// so that the node belongs to the worker for the whole deadline.
func (t *Task) confirm() error {
	if age := t.worker.Clock.Now().Sub(t.claimed); age >= 0 && age < maxClaimAge {
		return t.refresh(t.ctx)
	}
	return t.writeClaimed(t.ctx, map[string]any{})
}

// finish reports the result of the handler. It retries until it succeeds, the program ends, or the
// task is not the worker's any more, and returns whether it has succeeded.
func (t *Task) finish(failure error) (reported bool) {
	status := map[string]any{"result": v1alpha1.NodeTaskResultDone, "expectedFinishTime": nil}
	if failure != nil {
		status["result"] = v1alpha1.NodeTaskResultFailed
		status["message"] = wording.Cut(failure.Error(), protocol.MaxMessage)
	}
	heartbeat.Persist(t.run, t.worker.Clock, func() error {
		lost := isLost(t.Object())
		switch {
		case errors.Is(context.Cause(t.ctx), ErrWithdrawn), lost && failure != nil, !lost && endOf(t.Object(), t.worker.Holder) != nil:
			return nil
		}
		err := t.write(t.run, status)
		reported = err == nil
		return err
	})
	return reported
}

// writeClaimed changes the status of a task that is claimed. It returns the cause if the handler's
// context has ended, also by this write.
func (t *Task) writeClaimed(ctx context.Context, status map[string]any) error {
	if cause := context.Cause(t.ctx); cause != nil {
		return cause
	}
	err := t.write(ctx, status)
	if cause := context.Cause(t.ctx); cause != nil {
		return cause
	}
	return err
}

// write changes the status. Every write is a heartbeat, even if the status does not change.
func (t *Task) write(ctx context.Context, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": t.uid}, "status": status})
	if err != nil {
		return err
	}
	client := t.worker.Client.MaintenanceV1alpha1().NodeTasks()
	object, err := client.Patch(ctx, t.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		t.observe(object)
		return nil
	}
	if answer.ObjectGone(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		if refreshErr := t.refresh(ctx); refreshErr != nil {
			return errors.Join(err, refreshErr)
		}
	}
	return heartbeat.NewWriteError(ctx, fmt.Errorf("write the status of the NodeTask %s: %w", t.NodeName, err))
}

// refresh reads the NodeTask from the API server.
func (t *Task) refresh(ctx context.Context) error {
	object, err := t.worker.Client.MaintenanceV1alpha1().NodeTasks().Get(ctx, t.NodeName, metav1.GetOptions{})
	switch {
	case answer.ObjectGone(err) || err == nil && object.UID != t.uid:
		t.end(ErrWithdrawn)
	case err != nil:
		return err
	default:
		t.observe(object)
	}
	return nil
}
