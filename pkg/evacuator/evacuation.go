/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package evacuator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// defaultProgressDeadline is the default of spec.progressDeadlineSeconds.
	defaultProgressDeadline = 30 * time.Minute
	// beatsPerDeadline is how many signs of life are given within the deadline: some may get lost.
	beatsPerDeadline = 4
	// longestBeat is the most time between two of them, so that whoever looks at the evacuation
	// sees that it is worked on.
	longestBeat = time.Minute
	// firstRetry and longestRetry bound the time between attempts to write what has to be written.
	firstRetry, longestRetry = 100 * time.Millisecond, 10 * time.Second
	// maxMessage is how much status.message takes, in bytes.
	maxMessage = 1024
)

// Progress is how far an evacuation is.
type Progress struct {
	// Message says in words what happens, in at most 1024 bytes; what is beyond is cut off.
	Message string
	// ExpectedFinish is when the pod is expected to be gone. Until then the library gives signs of
	// life in the handler's name, so that the handler need not report for its own sake; after that
	// it is silent, and a handler that neither ends nor expects another time loses its turn when
	// the deadline has passed. Zero means that nothing is expected, and no signs are given.
	ExpectedFinish time.Time
}

// Evacuation is one pod's evacuation, in the hands of a Handler. Its methods may be called at the
// same time.
type Evacuation struct {
	// Namespace and PodName name the pod, and PodUID tells it from others of that name: a handler
	// that deletes it has that as a precondition.
	Namespace, PodName string
	PodUID             types.UID
	// NodeName is the node that the pod is to leave.
	NodeName string

	evacuator *Evacuator
	name      string
	uid       types.UID
	// ctx is that of the handler; end ends it.
	ctx context.Context
	end context.CancelCauseFunc
	// reported wakes who gives the signs of life.
	reported chan struct{}

	mu       sync.Mutex
	latest   *maintenancev1alpha1.Evacuation
	progress Progress
}

func newEvacuation(ctx context.Context, v *Evacuator, object *maintenancev1alpha1.Evacuation) *Evacuation {
	e := &Evacuation{
		Namespace: object.Namespace, PodName: object.Spec.PodRef.Name, PodUID: object.Spec.PodRef.UID, NodeName: object.Spec.NodeName,
		evacuator: v, name: object.Name, uid: object.UID, latest: object, reported: make(chan struct{}, 1),
	}
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(e.Namespace, e.PodName), "class", v.Class)
	e.ctx, e.end = context.WithCancelCause(klog.NewContext(ctx, logger))
	return e
}

// endOf says why a class is not to work on an Evacuation any more; nil if it is.
func endOf(object *maintenancev1alpha1.Evacuation, class string) error {
	status := &object.Status
	switch {
	case meta.IsStatusConditionTrue(status.Conditions, maintenancev1alpha1.ConditionComplete):
		if c := meta.FindStatusCondition(status.Conditions, maintenancev1alpha1.ConditionComplete); c.Reason == maintenancev1alpha1.ReasonCancelled {
			return ErrCancelled
		}
		return ErrDeparted
	case status.ActiveEvacuatorClass != class:
		return ErrTurnLost
	case status.EvacuationCancellationPolicy == maintenancev1alpha1.EvacuationCancellationPolicyForbid:
		return nil
	case object.DeletionTimestamp != nil || !protocol.HasInstigator(object.Finalizers):
		return ErrCancelled
	}
	return nil
}

// Object returns the Evacuation as it was last seen. It must not be changed.
func (e *Evacuation) Object() *maintenancev1alpha1.Evacuation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.latest
}

// observe takes in what the API says.
func (e *Evacuation) observe(object *maintenancev1alpha1.Evacuation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest = object
	if why := endOf(object, e.evacuator.Class); why != nil {
		e.end(why)
	}
}

// Report tells how far the evacuation is, which is a sign of life, too. It returns an error if that
// could not be told, or if the handler's context has ended.
func (e *Evacuation) Report(ctx context.Context, p Progress) error {
	p.Message = cut(p.Message)
	e.mu.Lock()
	e.progress = p
	e.mu.Unlock()
	select {
	case e.reported <- struct{}{}:
	default:
	}
	return e.write(ctx, map[string]any{"message": p.Message, "expectedEvacuationFinishTime": timeOf(p.ExpectedFinish)})
}

// Forbid says that there is no way back: from now on the evacuation is not called off, and the
// handler has to bring it to its end. It returns an error if that could not be said, because the
// evacuation has been called off in time, for example: then the way back has to be taken.
func (e *Evacuation) Forbid(ctx context.Context) error {
	return e.write(ctx, map[string]any{"evacuationCancellationPolicy": maintenancev1alpha1.EvacuationCancellationPolicyForbid})
}

// Allow takes Forbid back.
func (e *Evacuation) Allow(ctx context.Context) error {
	return e.write(ctx, map[string]any{"evacuationCancellationPolicy": maintenancev1alpha1.EvacuationCancellationPolicyAllow})
}

// AwaitDeparture waits until the pod has left, and returns nil then. It returns the cause if the
// evacuation comes to another end first.
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

// work calls the handler and reports its end.
func (e *Evacuation) work() {
	logger := klog.FromContext(e.ctx)
	logger.Info("Evacuation begins", "node", e.NodeName)
	var beating sync.WaitGroup
	beatCtx, stop := context.WithCancel(e.ctx)
	beating.Go(func() { e.beat(beatCtx) })
	// Whoever passes turns on learns at once that somebody is there.
	if err := e.write(e.ctx, map[string]any{}); err != nil && e.ctx.Err() == nil {
		logger.Error(err, "Evacuation could not be reported")
	}
	err := e.evacuator.Handler(e.ctx, e)
	stop()
	beating.Wait()
	defer e.end(nil)
	if cause := context.Cause(e.ctx); cause != nil {
		logger.Info("Evacuation ends", "reason", cause.Error())
		return
	}
	status := map[string]any{"activeEvacuatorCompleted": true}
	if err != nil {
		status["message"] = cut(e.evacuator.Class + " gives up: " + err.Error())
	}
	logger.Info("Evacuation ends, and the pod is still there", "error", err)
	e.persist(func() error { return e.write(e.ctx, status) })
}

// beat gives signs of life until the context ends.
func (e *Evacuation) beat(ctx context.Context) {
	interval := e.interval()
	timer := e.evacuator.Clock.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.reported:
			// That was one.
			timer.Reset(interval)
			continue
		case <-timer.C():
		}
		e.mu.Lock()
		isExpected := e.evacuator.Clock.Now().Before(e.progress.ExpectedFinish)
		e.mu.Unlock()
		if isExpected {
			if err := e.write(ctx, map[string]any{}); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "No sign of life could be given, will try again")
			}
		}
		timer.Reset(interval)
	}
}

func (e *Evacuation) interval() time.Duration {
	deadline := defaultProgressDeadline
	if seconds := e.Object().Spec.ProgressDeadlineSeconds; seconds != nil {
		deadline = time.Duration(*seconds) * time.Second
	}
	return min(deadline/beatsPerDeadline, longestBeat)
}

// write changes the status, on the condition that it is this class's turn on this very object. If
// it is not, the handler's context ends. Any write is a sign of life, also one that changes
// nothing.
func (e *Evacuation) write(ctx context.Context, status map[string]any) error {
	if cause := context.Cause(e.ctx); cause != nil {
		return cause
	}
	// The API refuses it if the turn is another's.
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
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		if refreshErr := e.refresh(ctx); refreshErr != nil {
			return errors.Join(err, refreshErr)
		}
		if cause := context.Cause(e.ctx); cause != nil {
			return cause
		}
	}
	return fmt.Errorf("write the status of evacuation %s/%s: %w", e.Namespace, e.name, err)
}

// refresh asks the API what has become of the Evacuation.
func (e *Evacuation) refresh(ctx context.Context) error {
	object, err := e.evacuator.Client.MaintenanceV1alpha1().Evacuations(e.Namespace).Get(ctx, e.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && object.UID != e.uid:
		// One whose pod has left is kept for a while and seen before it goes.
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

// persist tries until it succeeds or the handler's context ends.
func (e *Evacuation) persist(try func() error) {
	pause := firstRetry
	for e.ctx.Err() == nil {
		err := try()
		if err == nil || e.ctx.Err() != nil {
			return
		}
		klog.FromContext(e.ctx).Error(err, "The API does not answer as it should, will try again", "pause", pause)
		select {
		case <-e.ctx.Done():
		case <-e.evacuator.Clock.After(pause):
		}
		pause = min(2*pause, longestRetry)
	}
}

// timeOf is a time as it is written, nil for none.
func timeOf(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return metav1.NewTime(t).UTC().Format(time.RFC3339)
}

// cut shortens a message to what the API takes, between two characters.
func cut(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage], "")
}
