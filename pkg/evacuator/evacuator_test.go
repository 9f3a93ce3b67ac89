// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	class = "flush.example.com"
	name  = "uid-1-db-0"
)

var (
	start     = informertest.Start
	resource  = v1alpha1.SchemeGroupVersion.WithResource("evacuations")
	errBroken = errors.New("disk is full")
)

// newEvacuationOf returns an Evacuation for which the evacuator is active.
func newEvacuationOf(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	return build.With(&v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: "evacuation-1",
			Finalizers: []string{v1alpha1.FinalizerInstigatorNodeMaintenance},
		},
		Spec: v1alpha1.EvacuationSpec{
			PodRef: v1alpha1.PodReference{Name: "db-0", UID: "uid-1"}, NodeName: "node-7",
			ProgressDeadlineSeconds: ptr.To[int32](40),
		},
		Status: v1alpha1.EvacuationStatus{ActiveEvacuatorClass: class},
	}, mods...)
}

func complete(reason string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		e.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: reason},
		}
	}
}

func withdrawn(e *v1alpha1.Evacuation) { e.Finalizers = nil }

func turnOf(class string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorClass = class }
}

// world is an Evacuator with a fake API.
type world struct {
	*testing.T
	api *fake.Clientset

	mu sync.Mutex
	// writes has the written statuses, without the class, which is in all of them.
	writes []string
	// refuse is the response to writes, if it is set.
	refuse error
	// causes are the causes with which the contexts of handlers ended; calls counts the calls.
	causes chan error
	calls  int
	stop   func()
	// quiet is the value of the option HandlerReportsFirst.
	quiet bool
}

func newWorld(t *testing.T, handler Handler, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{T: t, api: fake.NewClientset(objects...), causes: make(chan error, 10)}
	w.api.PrependReactor("patch", "evacuations", w.patch)
	w.start(handler)
	return w
}

// start runs an Evacuator until the test ends or stop is called.
func (w *world) start(handler Handler) {
	w.Helper()
	v := must.Get(New(Config{
		Class:               class,
		Client:              w.api,
		HandlerReportsFirst: w.quiet,
		Handler: func(ctx context.Context, e *Evacuation) error {
			w.mu.Lock()
			w.calls++
			w.mu.Unlock()
			err := handler(ctx, e)
			if ctx.Err() != nil {
				w.causes <- context.Cause(ctx)
			}
			return err
		},
	}))(w)
	ctx, cancel := context.WithCancel(w.Context())
	watches := informertest.Count(w.api)
	done := make(chan error)
	go func() { done <- v.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(w.stop)
	watches.Wait(w.T, 0, "evacuations")
}

// patch responds as Haulout's API does.
func (w *world) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	patch := action.(clienttesting.PatchAction)
	if patch.GetSubresource() != "status" {
		return true, nil, fmt.Errorf("patch of subresource %q", patch.GetSubresource())
	}
	if w.refuse != nil {
		return true, nil, w.refuse
	}
	var body struct {
		Metadata struct{ UID types.UID }
		Status   map[string]any
	}
	if err := json.Unmarshal(patch.GetPatch(), &body); err != nil {
		return true, nil, err
	}
	stored, err := w.api.Tracker().Get(resource, patch.GetNamespace(), patch.GetName())
	if err != nil {
		return true, nil, err
	}
	object := stored.(*v1alpha1.Evacuation).DeepCopy()
	if object.UID != body.Metadata.UID {
		return true, nil, apierrors.NewConflict(resource.GroupResource(), object.Name, errors.New("UID"))
	}
	if body.Status["activeEvacuatorClass"] != object.Status.ActiveEvacuatorClass {
		return true, nil, apierrors.NewInvalid(
			v1alpha1.SchemeGroupVersion.WithKind("Evacuation").GroupKind(), object.Name, nil,
		)
	}
	delete(body.Status, "activeEvacuatorClass")
	text, err := json.Marshal(body.Status)
	if err != nil {
		return true, nil, err
	}
	w.writes = append(w.writes, string(text))
	if policy, ok := body.Status["evacuationCancellationPolicy"].(string); ok {
		object.Status.EvacuationCancellationPolicy = v1alpha1.EvacuationCancellationPolicy(policy)
	}
	if body.Status["activeEvacuatorCompleted"] == true {
		object.Status.ActiveEvacuatorCompleted = true
	}
	return true, object, w.api.Tracker().Update(resource, object, object.Namespace)
}

func (w *world) edit(mod func(*v1alpha1.Evacuation)) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	stored := must.Get(w.api.Tracker().Get(resource, "shop", name))(w)
	object := stored.(*v1alpha1.Evacuation).DeepCopy()
	mod(object)
	must.Do(w, w.api.Tracker().Update(resource, object, object.Namespace))
}

func (w *world) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

// until waits for a condition. It advances the time of the synctest bubble by a step whenever all
// goroutines are blocked.
func (w *world) until(what string, step time.Duration, condition func() bool) {
	w.Helper()
	if !informertest.Until(step, condition) {
		w.Fatalf("it never came to pass that %s; writes: %v", what, w.written())
	}
}

func (w *world) untilWritten(want ...string) {
	w.Helper()
	w.until(fmt.Sprintf("%v were written", want), 0, func() bool { return slices.Equal(w.written(), want) })
}

func (w *world) wantCause(want error) {
	w.Helper()
	select {
	case got := <-w.causes:
		if !errors.Is(got, want) {
			w.Errorf("the handler's context ended with %v, want %v", got, want)
		}
	case <-time.After(20 * time.Second):
		w.Fatalf("the handler's context has not ended, want %v", want)
	}
}

// untilEnd is a handler that only waits for the end of its context.
func untilEnd(ctx context.Context, _ *Evacuation) error {
	<-ctx.Done()
	return errBroken
}

func TestEndOfAHandlerIsReported(t *testing.T) {
	for name, tc := range map[string]struct {
		returns error
		want    string
	}{
		"that has done all it can": {want: `{"activeEvacuatorCompleted":true}`},
		"that gives up": {
			returns: errBroken,
			want:    `{"activeEvacuatorCompleted":true,"message":"flush.example.com gives up: disk is full"}`,
		},
		"that reports a long message": {
			returns: errors.New(strings.Repeat("x", 2000)),
			want: `{"activeEvacuatorCompleted":true,"message":"flush.example.com gives up: ` +
				strings.Repeat("x", 1024-28) + `"}`,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, func(_ context.Context, e *Evacuation) error {
				if e.PodName != "db-0" || e.PodUID != "uid-1" || e.Namespace != "shop" || e.NodeName != "node-7" ||
					e.Object().Name != "uid-1-db-0" {
					return fmt.Errorf("got %+v", e)
				}
				return tc.returns
			}, newEvacuationOf())
			w.untilWritten(`{}`, tc.want)
			w.edit(turnOf("b.example.com"))
			w.stop()
			is.Equal(t, w.calls, 1, "calls of the handler")
		})
	}
}

// TestUnansweredReportsEndNoWork: the server restarts while the handler reports.
func TestUnansweredReportsEndNoWork(t *testing.T) {
	for name, tc := range map[string]struct {
		refuse error
		want   string
	}{
		"the server does not answer": {refuse: apierrors.NewServiceUnavailable("starting"), want: `{"activeEvacuatorCompleted":true}`},
		"the report is invalid": {
			refuse: apierrors.NewBadRequest("no"),
			want:   `{"activeEvacuatorCompleted":true,"message":"flush.example.com gives up: write the status of evacuation shop/uid-1-db-0: no"}`,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			var w *world
			refuse := func(err error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.refuse = err
			}
			begin := make(chan struct{})
			calls := 0
			w = newWorld(t, func(ctx context.Context, e *Evacuation) error {
				if calls++; calls > 1 {
					return nil
				}
				<-begin
				refuse(tc.refuse)
				time.AfterFunc(time.Minute, func() { refuse(nil) })
				return e.Report(ctx, Progress{Message: "flushing"})
			}, newEvacuationOf())
			w.untilWritten(`{}`)
			close(begin)
			w.until("the end was reported", time.Second, func() bool { return slices.Contains(w.written(), tc.want) })
		})
	}
}

func TestHandlersContextEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		happens func(*world)
		cause   error
	}{
		"when the pod has left": {
			happens: func(w *world) { w.edit(complete(v1alpha1.ReasonPodDeleted)) }, cause: ErrDeparted,
		},
		"when the pod has terminated": {
			happens: func(w *world) { w.edit(complete(v1alpha1.ReasonPodTerminated)) }, cause: ErrDeparted,
		},
		"when no instigator requests it any longer": {happens: func(w *world) { w.edit(withdrawn) }, cause: ErrCancelled},
		"when it is completed as cancelled": {
			happens: func(w *world) { w.edit(complete(v1alpha1.ReasonCancelled)) }, cause: ErrCancelled,
		},
		"when it is being deleted": {
			happens: func(w *world) {
				w.edit(func(e *v1alpha1.Evacuation) { e.DeletionTimestamp = &metav1.Time{Time: start} })
			},
			cause: ErrCancelled,
		},
		"when it is gone": {
			happens: func(w *world) {
				must.Do(w, w.api.Tracker().Delete(resource, "shop", name))
			},
			cause: ErrCancelled,
		},
		"when another evacuator is active": {happens: func(w *world) { w.edit(turnOf("b.example.com")) }, cause: ErrTurnLost},
		"when the program is stopped":      {happens: func(w *world) { w.stop() }, cause: context.Canceled},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, untilEnd, newEvacuationOf())
			w.untilWritten(`{}`)
			tc.happens(w)
			w.wantCause(tc.cause)
			w.stop()
			if got := w.written(); len(got) != 1 {
				t.Errorf("got %v, want nothing to be written after the end", got)
			}
		})
	}
}

func TestDepartureIsAwaited(t *testing.T) {
	for name, tc := range map[string]struct {
		happens func(*v1alpha1.Evacuation)
		want    error
	}{
		"the pod leaves":                   {complete(v1alpha1.ReasonPodDeleted), nil},
		"the evacuation is cancelled":      {withdrawn, ErrCancelled},
		"another evacuator becomes active": {turnOf("b.example.com"), ErrTurnLost},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			got := make(chan error, 1)
			w := newWorld(t, func(ctx context.Context, e *Evacuation) error {
				err := e.AwaitDeparture(ctx)
				got <- err
				return err
			}, newEvacuationOf())
			w.untilWritten(`{}`)
			w.edit(tc.happens)
			if err := <-got; !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	bubble.Run(t, "until its own context ends", func(t *testing.T) {
		got := make(chan error, 1)
		newWorld(t, func(ctx context.Context, e *Evacuation) error {
			ctx, cancel := context.WithTimeoutCause(ctx, time.Nanosecond, errBroken)
			defer cancel()
			got <- e.AwaitDeparture(ctx)
			return nil
		}, newEvacuationOf())
		if err := <-got; !errors.Is(err, errBroken) {
			t.Errorf("got %v, want %v", err, errBroken)
		}
	})
}

func TestForbiddenEvacuationsAreNotCalledOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(ctx context.Context, e *Evacuation) error {
			if err := e.Forbid(ctx); err != nil {
				return err
			}
			return e.AwaitDeparture(ctx)
		}, newEvacuationOf())
		w.untilWritten(`{}`, `{"evacuationCancellationPolicy":"Forbid"}`)
		w.edit(withdrawn)
		w.edit(complete(v1alpha1.ReasonPodDeleted))
		w.wantCause(ErrDeparted)
	})
}

func TestForbiddenEvacuationsAreTakenUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, untilEnd, newEvacuationOf(withdrawn, func(e *v1alpha1.Evacuation) {
			e.Status.EvacuationCancellationPolicy = v1alpha1.EvacuationCancellationPolicyForbid
		}))
		w.untilWritten(`{}`)
	})
}

func TestSignsOfLifeAreGivenWhileSomethingIsExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const expected = `{"expectedEvacuationFinishTime":"2000-01-01T00:01:00Z","message":"flushing"}`
		w := newWorld(t, func(ctx context.Context, e *Evacuation) error {
			if err := e.Report(ctx, Progress{Message: "flushing", ExpectedFinish: start.Add(time.Minute)}); err != nil {
				return err
			}
			return e.AwaitDeparture(ctx)
		}, newEvacuationOf())
		w.untilWritten(`{}`, expected)
		// A heartbeat is expected after each quarter of the deadline of 40 seconds, until the
		// expected finish a minute later.
		w.until("it has been given signs", 250*time.Millisecond, func() bool {
			return time.Since(start) > 2*time.Minute
		})
		signs := w.written()[2:]
		if len(signs) < 4 || len(signs) > 6 || slices.ContainsFunc(signs, func(s string) bool { return s != `{}` }) {
			t.Errorf("got the signs %v, want one each ten seconds for a minute", signs)
		}
	})
}

func TestWithoutExpectationThereAreNoSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, untilEnd, newEvacuationOf())
		w.untilWritten(`{}`)
		w.until("time has gone by", 250*time.Millisecond, func() bool { return time.Since(start) > 2*time.Minute })
		w.untilWritten(`{}`)
	})
}

func TestLateReportsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, proceed := make(chan struct{}), make(chan struct{})
		got := make(chan error, 1)
		w := newWorld(t, func(_ context.Context, e *Evacuation) error {
			close(begun)
			<-proceed
			// The context of the handler may have ended already, because of an event of the
			// informer.
			got <- e.Report(t.Context(), Progress{Message: "late"})
			return nil
		}, newEvacuationOf())
		<-begun
		w.edit(turnOf("b.example.com"))
		close(proceed)
		if err := <-got; !errors.Is(err, ErrTurnLost) {
			t.Errorf("got %v, want %v", err, ErrTurnLost)
		}
	})
}

func TestCompletionIsTriedUntilItIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := newWorld(t, func(context.Context, *Evacuation) error { <-release; return nil }, newEvacuationOf())
		w.untilWritten(`{}`)
		w.mu.Lock()
		w.refuse = apierrors.NewInternalError(errors.New("no"))
		w.mu.Unlock()
		close(release)
		w.until("some time has gone by", 100*time.Millisecond, func() bool {
			return time.Since(start) > 10*time.Second
		})
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		w.until("it was reported", 100*time.Millisecond, func() bool {
			return slices.Equal(w.written(), []string{`{}`, `{"activeEvacuatorCompleted":true}`})
		})
	})
}

func TestWorkIsTakenUpAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, untilEnd, newEvacuationOf())
		w.untilWritten(`{}`)
		w.stop()
		w.start(untilEnd)
		w.untilWritten(`{}`, `{}`)
	})
}

func TestOthersAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := func(name string, mods ...func(*v1alpha1.Evacuation)) runtime.Object {
			e := newEvacuationOf(mods...)
			e.Name, e.UID = name, types.UID(name)
			return e
		}
		w := newWorld(t, untilEnd, other("a", turnOf("b.example.com")), other("b", withdrawn),
			other("c", complete(v1alpha1.ReasonPodDeleted)),
			other("d", func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorCompleted = true }),
			newEvacuationOf())
		w.untilWritten(`{}`)
		w.stop()
		is.Equal(t, w.calls, 1, "calls of the handler")
	})
}

func TestBadConfigs(t *testing.T) {
	client := fake.NewClientset()
	for name, tc := range map[string]struct {
		config Config
		want   string
	}{
		"no class":                     {Config{Client: client, Handler: untilEnd}, `class ""`},
		"a class that is not a domain": {Config{Class: "Flush", Client: client, Handler: untilEnd}, `class "Flush"`},
		"a class that is too long":     {Config{Class: strings.Repeat("a", 55), Client: client, Handler: untilEnd}, "54"},
		"the class of eviction": {
			config: Config{Class: v1alpha1.EvacuatorClassEviction, Client: client, Handler: untilEnd},
			want:   "eviction",
		},
		"no client":  {Config{Class: class, Handler: untilEnd}, "client"},
		"no handler": {Config{Class: class, Client: client}, "handler"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(tc.config); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestEvacuatorOfANodeWatchesThatNodeAlone(t *testing.T) {
	for name, tc := range map[string]struct{ nodeName, want string }{
		"all nodes": {"", "status.activeEvacuatorClass=flush.example.com"},
		"one node":  {"node-7", "status.activeEvacuatorClass=flush.example.com,spec.nodeName=node-7"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			api := fake.NewClientset()
			var mu sync.Mutex
			var got []string
			api.PrependReactor("list", "evacuations", func(action clienttesting.Action) (bool, runtime.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, action.(clienttesting.ListActionImpl).ListOptions.FieldSelector)
				return false, nil, nil
			})
			watches := informertest.Count(api)
			v := must.Get(New(Config{Class: class, Client: api, Handler: untilEnd, NodeName: tc.nodeName}))(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- v.Run(ctx) }()
			watches.Wait(t, 0, "evacuations")
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(got) == 0 || slices.ContainsFunc(got, func(s string) bool { return s != tc.want }) {
				t.Errorf("got lists with the field selectors %q, want %q", got, tc.want)
			}
		})
	}
}

func TestHandlerMayLeaveTheStatusAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, api: fake.NewClientset(newEvacuationOf()), causes: make(chan error, 10), quiet: true}
		w.api.PrependReactor("patch", "evacuations", w.patch)
		speak := make(chan struct{})
		w.start(func(ctx context.Context, e *Evacuation) error {
			select {
			case <-speak:
			case <-ctx.Done():
				return nil
			}
			if err := e.Report(ctx, Progress{Message: "first"}); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
		w.until("some time has gone by", time.Second, func() bool { return time.Since(start) > 10*time.Minute })
		w.untilWritten()
		close(speak)
		w.untilWritten(`{"expectedEvacuationFinishTime":null,"message":"first"}`)
	})
}

func TestAnnotationKey(t *testing.T) {
	is.Equal(t, AnnotationKey(class), "evacuation.coordination.k8s.io/priority_flush.example.com")
}

// TestEvictionsOfHandlersAreMarked checks the eviction that a handler sends itself.
func TestEvictionsOfHandlersAreMarked(t *testing.T) {
	e := &Evacuation{Namespace: "shop", PodName: "db-1", PodUID: "uid-1", evacuator: &Evacuator{Config: Config{Class: "a.example.com"}}}
	got := e.Eviction()
	if got.Namespace != "shop" || got.Name != "db-1" || got.Annotations[v1alpha1.AnnotationEvictNow] != "a.example.com" {
		t.Errorf("got the eviction %+v", got)
	}
	if p := got.DeleteOptions.Preconditions; p == nil || p.UID == nil || *p.UID != "uid-1" {
		t.Errorf("got the preconditions %+v", p)
	}
}
