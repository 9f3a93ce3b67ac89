// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	class  = "flash.example.com"
	node   = "node-7"
	holder = "flasher"
)

var (
	resource  = v1alpha1.SchemeGroupVersion.WithResource("nodetasks")
	errBroken = errors.New("the image is broken")
	// errNotServed is the answer while no server serves the API.
	errNotServed = apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource.GroupResource(), node, "404 page not found", 0, true)
)

// newTaskOf returns a NodeTask that is offered.
func newTaskOf(mods ...func(*v1alpha1.NodeTask)) *v1alpha1.NodeTask {
	return build.With(&v1alpha1.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: "task-1"},
		Spec: v1alpha1.NodeTaskSpec{
			NodeUID: "node-uid", Worker: class, ProgressDeadlineSeconds: 40,
			Before: v1alpha1.NodeVersions{BootID: "boot-1"},
		},
		Status: v1alpha1.NodeTaskStatus{State: v1alpha1.NodeTaskOffered},
	}, mods...)
}

func heldBy(holder string) func(*v1alpha1.NodeTask) {
	return func(t *v1alpha1.NodeTask) { t.Status.Holder = holder }
}

func in(state v1alpha1.NodeTaskState) func(*v1alpha1.NodeTask) {
	return func(t *v1alpha1.NodeTask) { t.Status.State = state }
}

func claimed(t *v1alpha1.NodeTask) { heldBy(holder)(t); in(v1alpha1.NodeTaskClaimed)(t) }

func lost(t *v1alpha1.NodeTask) {
	heldBy(holder)(t)
	in(v1alpha1.NodeTaskFailed)(t)
	t.Status.Reason = v1alpha1.NodeTaskLost
}

// world is a Worker with a fake API, which grants a claim only when a test does.
type world struct {
	*testing.T
	api *fake.Clientset

	mu sync.Mutex
	// writes has the written statuses.
	writes []string
	// refuse is the response to writes, if it is set.
	refuse error
	// causes are the causes with which the contexts of handlers ended; calls counts the calls.
	causes chan error
	calls  int
	stop   func()
}

func newWorld(t *testing.T, handler Handler, config Config, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{T: t, api: fake.NewClientset(objects...), causes: make(chan error, 10)}
	w.api.PrependReactor("patch", "nodetasks", w.patch)
	if config.Class == "" {
		config.Class = class
	}
	config.Holder, config.Client = holder, w.api
	config.Handler = func(ctx context.Context, task *Task) error {
		w.mu.Lock()
		w.calls++
		w.mu.Unlock()
		err := handler(ctx, task)
		if ctx.Err() != nil {
			w.causes <- context.Cause(ctx)
		}
		return err
	}
	v := must.Get(New(config))(t)
	ctx, cancel := context.WithCancel(t.Context())
	watches := informertest.Count(w.api)
	done := make(chan error)
	go func() { done <- v.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.stop)
	watches.Wait(t, 0, "nodetasks")
	return w
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
		Status   json.RawMessage
	}
	if err := json.Unmarshal(patch.GetPatch(), &body); err != nil {
		return true, nil, err
	}
	stored, err := w.api.Tracker().Get(resource, "", patch.GetName())
	if err != nil {
		return true, nil, err
	}
	object := stored.(*v1alpha1.NodeTask).DeepCopy()
	if object.UID != body.Metadata.UID {
		return true, nil, apierrors.NewConflict(resource.GroupResource(), object.Name, errors.New("UID"))
	}
	before := object.Status.Holder
	if err := json.Unmarshal(body.Status, &object.Status); err != nil {
		return true, nil, err
	}
	if before != "" && object.Status.Holder != before {
		return true, nil, apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("NodeTask").GroupKind(), object.Name, nil)
	}
	w.writes = append(w.writes, string(body.Status))
	switch object.Status.Result {
	case v1alpha1.NodeTaskResultDone:
		object.Status.State = v1alpha1.NodeTaskVerifying
	case v1alpha1.NodeTaskResultFailed:
		object.Status.State, object.Status.Reason = v1alpha1.NodeTaskFailed, v1alpha1.NodeTaskWorkerFailed
	}
	return true, object, w.api.Tracker().Update(resource, object, "")
}

func (w *world) edit(mods ...func(*v1alpha1.NodeTask)) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	stored := must.Get(w.api.Tracker().Get(resource, "", node))(w)
	must.Do(w, w.api.Tracker().Update(resource, build.With(stored.(*v1alpha1.NodeTask).DeepCopy(), mods...), ""))
}

func (w *world) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

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

// quiet waits, and fails if there are other writes than the given ones.
func (w *world) quiet(d time.Duration, want ...string) {
	w.Helper()
	<-time.After(d)
	synctest.Wait()
	is.Slices(w, w.written(), want, "writes")
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
func untilEnd(ctx context.Context, _ *Task) error {
	<-ctx.Done()
	return errBroken
}

const claims = `{"holder":"flasher"}`

func TestWorkBeginsAfterTheGrant(t *testing.T) {
	for name, tt := range map[string]struct {
		returns error
		want    string
	}{
		"that succeeds":           {want: `{"expectedFinishTime":null,"result":"Done"}`},
		"that fails":              {returns: errBroken, want: `{"expectedFinishTime":null,"message":"the image is broken","result":"Failed"}`},
		"that fails with a story": {returns: errors.New(strings.Repeat("x", 2000)), want: `{"expectedFinishTime":null,"message":"` + strings.Repeat("x", 1024) + `","result":"Failed"}`},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, func(_ context.Context, task *Task) error {
				if task.NodeName != node || task.NodeUID != "node-uid" || task.Object().Spec.Before.BootID != "boot-1" {
					return fmt.Errorf("got %+v", task)
				}
				return tt.returns
			}, Config{}, newTaskOf())
			w.quiet(10*time.Minute, claims)
			is.Equal(t, w.calls, 0, "calls before the grant")
			w.edit(in(v1alpha1.NodeTaskClaimed))
			w.untilWritten(claims, `{}`, tt.want)
			w.quiet(20*time.Minute, claims, `{}`, tt.want)
			is.Equal(t, w.calls, 1, "calls of the handler")
		})
	}
}

// TestNewClaims has claims that the server grants immediately.
func TestNewClaims(t *testing.T) {
	const done = `{"expectedFinishTime":null,"result":"Done"}`
	for name, tt := range map[string]struct {
		// live changes what the API has since then, which the cache does not have yet.
		live func(*v1alpha1.NodeTask)
		// unserved is the number of reads for which the API is not served.
		unserved int
		calls    int
		want     []string
	}{
		"are as good as a heartbeat":    {live: claimed, calls: 1, want: []string{claims, done}},
		"outlive an API that is absent": {live: claimed, unserved: 2, calls: 1, want: []string{claims, done}},
		"may have ended since then":     {live: lost, want: []string{claims}},
		"may be of another task":        {live: func(t *v1alpha1.NodeTask) { claimed(t); t.UID = "task-2" }, want: []string{claims}},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, func(context.Context, *Task) error { return nil }, Config{}, newTaskOf())
			w.untilWritten(claims)
			w.api.PrependReactor("get", "nodetasks", func(clienttesting.Action) (bool, runtime.Object, error) {
				if tt.unserved--; tt.unserved >= 0 {
					return true, nil, errNotServed
				}
				return true, newTaskOf(tt.live), nil
			})
			w.edit(in(v1alpha1.NodeTaskClaimed))
			w.quiet(5*time.Minute, tt.want...)
			is.Equal(t, w.calls, tt.calls, "calls of the handler")
		})
	}
}

// wallClock is a clock whose time a test sets. Its timers run with the time of the bubble.
type wallClock struct {
	clock.RealClock
	now atomic.Pointer[time.Time]
}

func (c *wallClock) Now() time.Time { return *c.now.Load() }

// TestAgeOfClaims has claims that the server grants after a change of the wall clock.
func TestAgeOfClaims(t *testing.T) {
	const done = `{"expectedFinishTime":null,"result":"Done"}`
	// The times in a bubble have no reading of the monotonic clock.
	start := time.Now()
	must.True(t, start != start.Round(0), "the time %s has no reading of the monotonic clock", start)
	for name, tt := range map[string]struct {
		changes time.Duration
		want    []string
	}{
		"a new claim is as good as a heartbeat": {5*time.Second - 1, []string{claims, done}},
		"an old claim needs a heartbeat":        {5 * time.Second, []string{claims, `{}`, done}},
		"a claim before the machine slept":      {8 * time.Hour, []string{claims, `{}`, done}},
		"a claim before the clock was set back": {-1, []string{claims, `{}`, done}},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			set := &wallClock{}
			set.now.Store(&start)
			w := newWorld(t, func(_ context.Context, task *Task) error {
				// The monotonic clock stands still while the machine sleeps.
				is.Equal(t, task.claimed, start.Round(0), "the time of the claim")
				return nil
			}, Config{Clock: set}, newTaskOf())
			w.untilWritten(claims)
			later := start.Round(0).Add(tt.changes)
			set.now.Store(&later)
			w.edit(in(v1alpha1.NodeTaskClaimed))
			w.quiet(5*time.Minute, tt.want...)
			is.Equal(t, w.calls, 1, "calls of the handler")
		})
	}
}

func TestTasksThatAreNotTheWorkers(t *testing.T) {
	other := func(worker string) func(*v1alpha1.NodeTask) {
		return func(t *v1alpha1.NodeTask) { t.Spec.Worker = worker }
	}
	for name, tt := range map[string]struct {
		class string
		task  *v1alpha1.NodeTask
		want  []string
	}{
		"claimed by another worker":      {task: newTaskOf(heldBy("b"), in(v1alpha1.NodeTaskClaimed))},
		"held by another worker":         {task: newTaskOf(heldBy("b"))},
		"being verified":                 {task: newTaskOf(claimed, in(v1alpha1.NodeTaskVerifying))},
		"failed":                         {task: newTaskOf(claimed, in(v1alpha1.NodeTaskFailed))},
		"silent for too long":            {task: newTaskOf(lost)},
		"of another class":               {class: "*.job.example.com", task: newTaskOf(other("x.work.example.com"))},
		"of a pattern's parent":          {class: "*.job.example.com", task: newTaskOf(other(".job.example.com"))},
		"of a pattern":                   {class: "*.job.example.com", task: newTaskOf(other("x.job.example.com")), want: []string{claims}},
		"its own from before a restart":  {task: newTaskOf(claimed), want: []string{`{}`}},
		"offered and not yet granted it": {task: newTaskOf(heldBy(holder))},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, untilEnd, Config{Class: tt.class}, tt.task)
			w.quiet(20*time.Minute, tt.want...)
		})
	}
}

func TestHandlersContextEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		happens func(*world)
		want    error
	}{
		"when the task is deleted": {
			func(w *world) { must.Do(w, w.api.Tracker().Delete(resource, "", node)) }, ErrWithdrawn,
		},
		"when the task is replaced": {
			func(w *world) {
				w.edit(func(t *v1alpha1.NodeTask) { t.UID, t.Status = "task-2", v1alpha1.NodeTaskStatus{} })
			}, ErrWithdrawn,
		},
		"when the server counts it as lost": {func(w *world) { w.edit(lost) }, ErrLost},
		"when another client reports": {
			func(w *world) { w.edit(in(v1alpha1.NodeTaskVerifying)) }, ErrEnded,
		},
		"when the program ends": {func(w *world) { w.stop() }, context.Canceled},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, untilEnd, Config{}, newTaskOf(claimed))
			w.untilWritten(`{}`)
			tt.happens(w)
			w.wantCause(tt.want)
			w.quiet(20*time.Minute, `{}`) // no result
		})
	}
}

// TestCacheIsOld begins with a task that only the cache still shows as claimed.
func TestCacheIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, untilEnd, Config{}, newTaskOf(claimed))
		w.untilWritten(`{}`)
		w.wantNoneAfter(func() {
			w.api.PrependReactor("patch", "nodetasks", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, newTaskOf(lost, func(t *v1alpha1.NodeTask) { t.UID = "task-2" }), nil
			})
			must.Do(t, w.api.Tracker().Delete(resource, "", node))
			must.Do(t, w.api.Tracker().Create(resource, newTaskOf(claimed, func(t *v1alpha1.NodeTask) { t.UID = "task-2" }), ""))
		})
	})
}

// wantNoneAfter fails if a handler is called after something happens.
func (w *world) wantNoneAfter(happens func()) {
	w.Helper()
	before := w.calls
	happens()
	<-time.After(20 * time.Minute)
	synctest.Wait()
	is.Equal(w, w.calls, before, "calls of the handler")
}

func TestLateResult(t *testing.T) {
	const done = `{"expectedFinishTime":null,"result":"Done"}`
	for name, tt := range map[string]struct {
		object   *v1alpha1.NodeTask
		handler  Handler
		finished bool
		loses    bool
		want     []string
		calls    int
	}{
		"a handler that succeeds nevertheless reports Done": {
			object: newTaskOf(claimed), loses: true, calls: 1, want: []string{`{}`, done},
			handler: func(ctx context.Context, _ *Task) error { <-ctx.Done(); return nil },
		},
		"a handler that fails reports nothing": {object: newTaskOf(claimed), handler: untilEnd, loses: true, calls: 1, want: []string{`{}`}},
		"work that has finished is Done":       {object: newTaskOf(lost), finished: true, want: []string{done}},
		"work that has not finished stays":     {object: newTaskOf(lost)},
		"after a restart":                      {object: newTaskOf(claimed), finished: true, want: []string{done}},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, tt.handler, Config{Finished: func(context.Context, *Task) bool { return tt.finished }}, tt.object)
			if tt.loses {
				w.untilWritten(`{}`)
				w.edit(lost)
			}
			w.quiet(25*time.Minute, tt.want...)
			is.Equal(t, w.calls, tt.calls, "calls of the handler")
		})
	}
}

// TestWorkIsNotRepeatedAfterAnUnansweredReport: the server restarts while the handler reports its
// last step.
func TestWorkIsNotRepeatedAfterAnUnansweredReport(t *testing.T) {
	for name, refuse := range map[string]error{
		"no replica is ready": apierrors.NewServiceUnavailable("it starts"), "the API is not registered": errNotServed,
	} {
		bubble.Run(t, name, func(t *testing.T) {
			begin, finished := make(chan *world, 1), atomic.Bool{}
			w := newWorld(t, func(ctx context.Context, task *Task) error {
				w := <-begin
				w.mu.Lock()
				w.refuse = refuse
				w.mu.Unlock()
				time.AfterFunc(time.Minute, func() {
					w.mu.Lock()
					w.refuse = nil
					w.mu.Unlock()
				})
				finished.Store(true)
				return task.Report(ctx, Progress{Message: "1 of 1"})
			}, Config{Finished: func(context.Context, *Task) bool { return finished.Load() }}, newTaskOf(claimed))
			w.api.Lock() // the worker has begun
			w.api.PrependReactor("get", "nodetasks", func(clienttesting.Action) (bool, runtime.Object, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.refuse != nil, nil, w.refuse
			})
			w.api.Unlock()
			begin <- w
			w.quiet(5*time.Minute, `{}`, `{"expectedFinishTime":null,"result":"Done"}`)
			is.Equal(t, w.calls, 1, "calls of the handler")
		})
	}
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(ctx context.Context, task *Task) error {
			is.Equal(t, task.HeartbeatInterval(), 10*time.Second, "a quarter of the deadline")
			must.Do(t, task.Report(ctx, Progress{Message: "1 of 2", ExpectedFinish: time.Now().Add(25 * time.Second)}))
			<-ctx.Done()
			return nil
		}, Config{}, newTaskOf(claimed))
		w.quiet(5*time.Minute, `{}`, `{"expectedFinishTime":"2000-01-01T00:00:25Z","message":"1 of 2"}`, `{}`, `{}`)
	})
}

func TestReportAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(chan error, 1)
		w := newWorld(t, func(ctx context.Context, task *Task) error {
			<-ctx.Done()
			got <- task.Report(context.WithoutCancel(ctx), Progress{Message: "late"})
			return errBroken
		}, Config{}, newTaskOf(claimed))
		w.untilWritten(`{}`)
		w.edit(lost)
		is.Equal(t, <-got, ErrLost)
		w.quiet(time.Minute, `{}`)
	})
}

func TestRefusedClaims(t *testing.T) {
	for name, tt := range map[string]struct {
		refuse error
		// meanwhile is what happens before writes are accepted again.
		meanwhile func(*v1alpha1.NodeTask)
		want      []string
	}{
		"a claim is repeated until it is possible": {
			refuse:    apierrors.NewForbidden(resource.GroupResource(), node, errors.New("no")),
			meanwhile: func(*v1alpha1.NodeTask) {}, want: []string{claims},
		},
		"a worker that comes second does nothing": {
			refuse:    apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("NodeTask").GroupKind(), node, nil),
			meanwhile: heldBy("b"),
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, untilEnd, Config{})
			w.refuse = tt.refuse
			must.Do(t, w.api.Tracker().Create(resource, newTaskOf(), ""))
			w.quiet(time.Minute)
			w.edit(tt.meanwhile)
			w.mu.Lock()
			w.refuse = nil
			w.mu.Unlock()
			w.quiet(time.Minute, tt.want...)
		})
	}
}

func TestNew(t *testing.T) {
	valid := Config{Class: class, Holder: holder, Client: fake.NewClientset(), Handler: untilEnd}
	for want, change := range map[string]func(*Config){
		`class "flash"`:   func(c *Config) { c.Class = "flash" },
		`class "*.Flash.`: func(c *Config) { c.Class = "*.Flash.example.com" },
		`class "x`:        func(c *Config) { c.Class = strings.Repeat("x", 60) + ".example.com" },
		`holder ""`:       func(c *Config) { c.Holder = "" },
		"128":             func(c *Config) { c.Holder = strings.Repeat("x", 129) },
		"a handler":       func(c *Config) { c.Handler = nil },
		"a client":        func(c *Config) { c.Client = nil },
	} {
		config := valid
		change(&config)
		_, err := New(config)
		is.True(t, err != nil && strings.Contains(err.Error(), want), "got error %v, want one with %q", err, want)
	}
	must.Get(New(valid))(t)
}
