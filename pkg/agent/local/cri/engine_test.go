// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/shutdown"
	agentstate "haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	// slow is the maximum delay on a busy machine.
	slow = 1500 * time.Millisecond
)

// node is an engine with its dependencies.
type node struct {
	*fakeRuntime
	engine  *Engine
	kubelet *fakeKubelet
	known   *podList

	mu    sync.Mutex
	calls []progress
	// stopAfter is the bucket after which next returns false.
	stopAfter int
}

// progress has the arguments of a call of next.
type progress struct {
	Bucket int
	Done   bool
	Killed []string
}

func newNode(t *testing.T, table buckets.Table, specs ...podSpec) *node {
	t.Helper()
	n := &node{fakeRuntime: newFake(t), kubelet: &fakeKubelet{}, known: &podList{}, stopAfter: math.MaxInt}
	n.known.add(n.add(specs...)...)
	n.engine = n.newEngine(t, table)
	n.serve(t)
	return n
}

func (n *node) newEngine(t *testing.T, table buckets.Table) *Engine {
	t.Helper()
	e, err := New(Config{Endpoint: func() string { return n.endpoint }, Table: table, Pods: n.known.Pods, Kubelet: n.kubelet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// tableOf returns a table whose buckets all have the same time.
func tableOf(period time.Duration, priorities ...int32) buckets.Table {
	var t buckets.Table
	for _, p := range priorities {
		t = append(t, buckets.Bucket{Priority: p, Period: period})
	}
	return t
}

func (n *node) next(local agentstate.Local, killed []agentstate.KilledPod) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := progress{Bucket: local.Bucket, Done: local.Done}
	for _, k := range killed {
		p.Killed = append(p.Killed, k.Name)
	}
	slices.Sort(p.Killed)
	n.calls = append(n.calls, p)
	return local.Bucket <= n.stopAfter
}

func (n *node) reported() []progress {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

func (n *node) allKilled() []string {
	var all []string
	for _, p := range n.reported() {
		all = append(all, p.Killed...)
	}
	slices.Sort(all)
	return all
}

func (n *node) end(t *testing.T) {
	t.Helper()
	must.Do(t, n.engine.End(t.Context(), agentstate.Local{}, time.Time{}, n.next))
}

func (n *node) stops() []string {
	var names []string
	for _, e := range n.happened(stopAsked) {
		names = append(names, e.pod)
	}
	return names
}

func TestPodsEndBucketByBucket(t *testing.T) {
	t.Parallel()
	table := tableOf(20*time.Second, 0, 1000, 2000000000)
	static := newPod("etcd-n1", 2000001000, namespace("kube-system"), ends(100*time.Millisecond))
	static.static = true
	dns := newPod("dns", 0, namespace("kube-system"), unknown)
	n := newNode(t, table,
		static, dns,
		newPod("db", 1500, ends(200*time.Millisecond)), newPod("negative", -5), newPod("web", 999, ends(150*time.Millisecond)),
		newPod("stranger", 5000, unknown))
	n.end(t)

	buckets := map[string]int{"negative": 0, "web": 0, "stranger": 0, "db": 1, "dns": 2, "etcd-n1": 2}
	if got := n.stops(); len(got) != len(buckets) {
		t.Errorf("stopped %v, want each of %v once", got, buckets)
	}
	for _, before := range n.happened(exited) {
		for _, after := range n.happened(stopAsked) {
			if buckets[before.pod] < buckets[after.pod] && after.at.Before(before.at) {
				t.Errorf("%s was stopped before %s had ended", after.pod, before.pod)
			}
		}
	}
	if n.kubelet.stopped.IsZero() || n.kubelet.stopped.After(n.happened(stopAsked)[0].at) {
		t.Error("the kubelet was not stopped before the pods")
	}
	want := []progress{
		{Bucket: 1, Killed: []string{"negative", "stranger", "web"}}, {Bucket: 2, Killed: []string{"db"}}, {Bucket: 3, Done: true, Killed: []string{"dns"}},
	}
	if diff := cmp.Diff(want, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	if got := len(n.happened(sandboxStop)); got != 6 {
		t.Errorf("stopped %d sandboxes, want 6", got)
	}
}

func TestEmptyBucketsAreSkipped(t *testing.T) {
	t.Parallel()
	table := tableOf(time.Hour, 0, 10, 20, 30)
	n := newNode(t, table, newPod("web", 10))
	n.end(t)
	want := []progress{{Bucket: 2, Killed: []string{"web"}}, {Bucket: 4, Done: true}}
	if diff := cmp.Diff(want, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestABucketDoesNotWaitLongerThanItsPeriod(t *testing.T) {
	t.Parallel()
	table := buckets.Table{{Priority: 0, Period: 500 * time.Millisecond}, {Priority: 1000, Period: 20 * time.Second}}
	n := newNode(t, table, newPod("stubborn", 0, ends(-1)), newPod("db", 1000, ends(2500*time.Millisecond)))
	n.end(t)
	stubborn, db := n.of(t, stopAsked, "stubborn"), n.of(t, stopAsked, "db")
	if waited := db.at.Sub(stubborn.at); waited < 400*time.Millisecond || waited > 500*time.Millisecond+slow {
		t.Errorf("the second bucket began %s after the first one, want 500ms", waited)
	}
	if killed := n.of(t, exited, "stubborn").at; killed.After(n.of(t, exited, "db").at) {
		t.Error("the container that ignores the signal was not killed while the second bucket ended")
	}
	want := []progress{{Bucket: 1}, {Bucket: 2, Done: true, Killed: []string{"db", "stubborn"}}}
	if diff := cmp.Diff(want, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestAContainerThatIgnoresTheSignalIsKilledInItsBucket(t *testing.T) {
	t.Parallel()
	table := tableOf(2*time.Second, 0, 1000)
	n := newNode(t, table, newPod("stubborn", 0, ends(-1)), newPod("last", 1000, ends(-1)))
	began := time.Now()
	n.end(t)
	if took := time.Since(began); took > 4*time.Second+2*slow {
		t.Errorf("took %s, want 4s", took)
	}
	if got, want := n.allKilled(), []string{"last", "stubborn"}; !slices.Equal(got, want) {
		t.Errorf("killed %v, want %v", got, want)
	}
	if timeout := n.of(t, stopAsked, "stubborn").timeout; timeout != 2*time.Second {
		t.Errorf("timeout is %s, want 2s", timeout)
	}
}

func TestAPodThatAppearsMeanwhileEndsInItsTurn(t *testing.T) {
	t.Parallel()
	table := tableOf(20*time.Second, 0, 1000, 2000)
	n := newNode(t, table, newPod("a", 0, ends(300*time.Millisecond)), newPod("b", 1000, ends(300*time.Millisecond)))
	var once sync.Once
	n.onStop = func(string) {
		once.Do(func() { n.known.add(n.add(newPod("late-a", 0), newPod("late-c", 2000))...) })
	}
	n.end(t)
	want := []progress{
		{Bucket: 1, Killed: []string{"a", "late-a"}}, {Bucket: 2, Killed: []string{"b"}}, {Bucket: 3, Done: true, Killed: []string{"late-c"}},
	}
	if diff := cmp.Diff(want, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestTheRuntimeDiesAndComesBack(t *testing.T) {
	t.Parallel()
	table := tableOf(20*time.Second, 0, 1000)
	n := newNode(t, table, newPod("a", 0, ends(500*time.Millisecond), preStop(execHook("flush"))), newPod("b", 1000))
	var once sync.Once
	n.onStop = func(string) {
		once.Do(func() {
			go func() {
				n.die()
				if err := n.start(); err != nil {
					t.Error(err)
				}
			}()
		})
	}
	n.end(t)
	if got, want := n.allKilled(), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("killed %v, want %v", got, want)
	}
	is.True(t, !n.of(t, stopAsked, "b").at.Before(n.of(t, exited, "a").at), "b was stopped before a had ended")
	if got := len(n.happened("exec [flush]")); got != 1 {
		t.Errorf("the hook ran %d times, want once", got)
	}
}

func TestTheRuntimeIsDownAtFirst(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(500*time.Millisecond, 0, 1000), newPod("a", 0), newPod("b", 1000))
	n.die()
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		done <- n.engine.End(t.Context(), agentstate.Local{}, began.Add(time.Minute), n.next)
	}()
	// The deadline is so late that the bucket would have more time than its period.
	eventually(t, "the period of the bucket is over", func() bool { return time.Since(began) > 800*time.Millisecond })
	n.serve(t)
	must.Do(t, <-done)
	want := []progress{{Bucket: 1, Killed: []string{"a"}}, {Bucket: 2, Done: true, Killed: []string{"b"}}}
	if diff := cmp.Diff(want, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

// On a machine without a runtime, the engine must not wait for it, and must not stop the kubelet.
func TestTheRuntimeNeverAnswers(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no.sock")
	for name, deadline := range map[string]time.Duration{"without a deadline": 0, "with a far deadline": 28 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &node{fakeRuntime: &fakeRuntime{endpoint: "unix://" + missing}, kubelet: &fakeKubelet{}, known: &podList{}}
				engine := n.newEngine(t, tableOf(time.Minute, 0, 1000))
				began, end := time.Now(), time.Time{}
				if deadline > 0 {
					end = began.Add(deadline)
				}
				err := engine.End(t.Context(), agentstate.Local{}, end, n.next)
				if !errors.Is(err, shutdown.ErrNothingToEnd) || !strings.Contains(err.Error(), missing) {
					t.Errorf("got error %v, want ErrNothingToEnd with the endpoint", err)
				}
				if took := time.Since(began); took < runtimePatience || took > runtimePatience+retryInterval+callTimeout {
					t.Errorf("took %s, want %s", took, runtimePatience)
				}
				if n.kubelet.stops != 0 || len(n.reported()) != 0 {
					t.Errorf("the kubelet was stopped %d times, reported %v, want neither", n.kubelet.stops, n.reported())
				}
			})
		})
	}
}

// The runtime fails permanently after the agent has stopped the kubelet.
func TestTheRuntimeIsLostInTheMiddle(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(100*time.Millisecond, 0, 1000), newPod("a", 0, ends(-1)), newPod("b", 1000))
	n.engine.patience = 100 * time.Millisecond
	n.onStop = func(string) { go n.die() }
	if err := n.engine.End(t.Context(), agentstate.Local{}, time.Time{}, n.next); !errors.Is(err, shutdown.ErrNothingToEnd) {
		t.Errorf("got error %v, want %v", err, shutdown.ErrNothingToEnd)
	}
}

// The agent may find the endpoint in the kubelet's configuration after it has read its own
// configuration, and the two can differ.
func TestEndpointIsAskedBeforeEachConnection(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(20*time.Second, 0), newPod("a", 0))
	right := n.endpoint
	var asked atomic.Int32
	engine := must.Get(New(Config{Table: tableOf(20*time.Second, 0), Pods: n.known.Pods, Kubelet: n.kubelet, Endpoint: func() string {
		if asked.Add(1) == 1 {
			return "unix://" + filepath.Join(t.TempDir(), "no.sock")
		}
		return right
	}}))(t)
	defer engine.Close()
	must.Do(t, engine.End(t.Context(), agentstate.Local{}, time.Time{}, n.next))
	if got, want := n.allKilled(), []string{"a"}; !slices.Equal(got, want) {
		t.Errorf("killed %v, want %v", got, want)
	}
}

// Another program starts the kubelet again while a pod ends.
func TestAKubeletThatComesBackIsStopped(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(20*time.Second, 0), newPod("a", 0, ends(1500*time.Millisecond)))
	n.end(t)
	if n.kubelet.stops < 2 {
		t.Errorf("the kubelet was stopped %d times, want again while the pod ended", n.kubelet.stops)
	}
}

func TestNextStopsBetweenBuckets(t *testing.T) {
	t.Parallel()
	table := tableOf(20*time.Second, 0, 1000)
	n := newNode(t, table, newPod("a", 0), newPod("b", 1000))
	n.stopAfter = 0
	n.end(t)
	if got, want := n.stops(), []string{"a"}; !slices.Equal(got, want) {
		t.Errorf("stopped %v, want %v", got, want)
	}
	if diff := cmp.Diff([]progress{{Bucket: 1, Killed: []string{"a"}}}, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	must.Do(t, n.engine.Resume(t.Context()))
	if n.kubelet.starts != 1 {
		t.Errorf("the kubelet was started %d times, want once", n.kubelet.starts)
	}
}

func TestNextStopsWhileAPodIsKilled(t *testing.T) {
	t.Parallel()
	table := buckets.Table{{Priority: 0, Period: 300 * time.Millisecond}, {Priority: 1000, Period: 20 * time.Second}}
	n := newNode(t, table, newPod("stubborn", 0, ends(-1)), newPod("b", 1000))
	n.stopAfter = 0
	n.end(t)
	want := []progress{{Bucket: 1}, {Bucket: 1, Killed: []string{"stubborn"}}}
	if diff := cmp.Diff(want, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestResumeAfterACrash(t *testing.T) {
	t.Parallel()
	table := tableOf(20*time.Second, 0, 1000, 2000)
	early := newPod("ended-before", 1000, inState(runtimeapi.ContainerState_CONTAINER_EXITED), func(s *podSpec) {
		s.notReady, s.containers[0].finished = true, time.Now().Add(-time.Hour)
	})
	n := newNode(t, table, newPod("a", 0), newPod("b-quick", 1000), newPod("b-slow", 1000, ends(time.Second)), newPod("c", 2000), early)

	// The first agent is killed when one of two pods of the second bucket has ended.
	var stored agentstate.Local
	ctx, crash := context.WithCancel(t.Context())
	defer crash()
	started, ended := time.Now(), make(chan error, 1)
	go func() {
		ended <- n.engine.End(ctx, agentstate.Local{Started: started}, time.Time{}, func(l agentstate.Local, _ []agentstate.KilledPod) bool {
			if ctx.Err() == nil {
				stored = l
			}
			return true
		})
	}()
	eventually(t, "b-quick has ended and b-slow got the stop request", func() bool {
		return len(n.happened(sandboxStop)) == 2 && len(n.stops()) == 3
	})
	crash()
	err := <-ended
	must.True(t, errors.Is(err, context.Canceled), "got error %v, want that the context was cancelled", err)
	if diff := cmp.Diff(agentstate.Local{Started: started, Bucket: 1}, stored); diff != "" {
		t.Fatalf("stored progress (-want +got):\n%s", diff)
	}

	n.engine = n.newEngine(t, table)
	must.Do(t, n.engine.End(t.Context(), stored, time.Time{}, n.next))
	want := []progress{{Bucket: 2, Killed: []string{"b-quick", "b-slow"}}, {Bucket: 3, Done: true, Killed: []string{"c"}}}
	if diff := cmp.Diff(want, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	stopped := map[string]int{}
	for _, name := range n.stops() {
		stopped[name]++
	}
	// The first agent may have sent a second stop request before it was killed.
	if stopped["b-slow"] < 2 {
		t.Errorf("the pod that had not ended got %d stop requests, want one more from the second agent", stopped["b-slow"])
	}
	delete(stopped, "b-slow")
	if diff := cmp.Diff(map[string]int{"a": 1, "b-quick": 1, "c": 1}, stopped); diff != "" {
		t.Errorf("times stopped (-want +got):\n%s", diff)
	}
}

func TestAFinishedRunIsNotRepeated(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(time.Second, 0), newPod("a", 0))
	must.Do(t, n.engine.End(t.Context(), agentstate.Local{Bucket: 1, Done: true}, time.Time{}, n.next))
	if n.kubelet.stops != 0 || len(n.stops()) != 0 {
		t.Errorf("stopped the kubelet %d times and pods %v, want neither", n.kubelet.stops, n.stops())
	}
}

func TestAShorterTableEndsAllPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(20*time.Second, 0), newPod("a", 0))
	must.Do(t, n.engine.End(t.Context(), agentstate.Local{Started: time.Now(), Bucket: 4}, time.Time{}, n.next))
	if got, want := n.allKilled(), []string{"a"}; !slices.Equal(got, want) {
		t.Errorf("killed %v, want %v", got, want)
	}
}

func TestSandboxesThatCannotBeStopped(t *testing.T) {
	t.Parallel()
	n := newNode(t, buckets.Table{{Priority: 0, Period: 800 * time.Millisecond}, {Priority: 1000, Period: 20 * time.Second}},
		newPod("no-network", 0), newPod("hanging", 0), newPod("b", 1000))
	n.stuck["no-network"] = status.Error(codes.Unknown, "failed to destroy network")
	n.hangs["hanging"] = true
	n.end(t)
	if got, want := n.allKilled(), []string{"b", "hanging", "no-network"}; !slices.Equal(got, want) {
		t.Errorf("killed %v, want %v", got, want)
	}
	if waited := n.of(t, stopAsked, "b").at.Sub(n.of(t, stopAsked, "hanging").at); waited > 800*time.Millisecond+slow {
		t.Errorf("the second bucket began after %s, want 800ms", waited)
	}
	tried := map[string]int{}
	for _, e := range n.happened(sandboxStop) {
		tried[e.pod]++
	}
	if diff := cmp.Diff(map[string]int{"b": 1, "hanging": 1, "no-network": 1}, tried); diff != "" {
		t.Errorf("times that a sandbox was stopped (-want +got):\n%s", diff)
	}
}

func TestAnInterruptedRunReportsWhatHasEnded(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(time.Minute, 0, 1000), newPod("quick", 0), newPod("slow", 0, ends(-1)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.engine.End(ctx, agentstate.Local{}, time.Time{}, n.next) }()
	eventually(t, "quick has ended and slow got the stop request", func() bool {
		return len(n.happened(sandboxStop)) == 1 && len(n.happened(stopAsked)) == 2
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want that the context was cancelled", err)
	}
	if diff := cmp.Diff([]progress{{Bucket: 0, Killed: []string{"quick"}}}, n.reported()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestTheKubeletCannotBeStopped(t *testing.T) {
	t.Parallel()
	broken := errors.New("no bus")
	n := newNode(t, tableOf(time.Minute, 0), newPod("a", 0))
	n.kubelet.stopErr = broken
	if err := n.engine.End(t.Context(), agentstate.Local{}, time.Time{}, n.next); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
	if got := n.stops(); len(got) != 0 {
		t.Errorf("stopped %v, which the kubelet would restart", got)
	}
}

func TestResume(t *testing.T) {
	t.Parallel()
	broken := errors.New("no bus")
	n := newNode(t, tableOf(time.Minute, 0))
	n.kubelet.runErr = broken
	if err := n.engine.Resume(t.Context()); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
	n.engine.config.Final = true
	if err := n.engine.Resume(t.Context()); !errors.Is(err, shutdown.ErrFinal) {
		t.Errorf("got error %v, want %v", err, shutdown.ErrFinal)
	}
	if n.kubelet.starts != 1 {
		t.Errorf("the kubelet was started %d times, want once", n.kubelet.starts)
	}
}

// A kubelet that cannot be stopped would restart the pods, so the engine ends no pods.
func TestAKubeletThatCannotBeStoppedIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(time.Minute, 0), newPod("a", 0))
	n.engine.config.Problem = func() string { return "it is a part of k3s" }
	err := n.engine.End(t.Context(), agentstate.Local{}, time.Time{}, n.next)
	if !errors.Is(err, shutdown.ErrNothingToEnd) || !strings.Contains(err.Error(), "k3s") {
		t.Errorf("got error %v, want %v with the problem", err, shutdown.ErrNothingToEnd)
	}
	if err := errors.Join(n.engine.End(t.Context(), agentstate.Local{Done: true}, time.Time{}, n.next), n.engine.Resume(t.Context())); err != nil {
		t.Error(err)
	}
	if got := n.stops(); len(got) != 0 || n.kubelet.stops+n.kubelet.starts != 0 {
		t.Errorf("stopped %v, the kubelet was stopped %d times and started %d times, want nothing", got, n.kubelet.stops, n.kubelet.starts)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := Config{Endpoint: func() string { return "unix:///run/x.sock" }, Table: buckets.Table{{}}, Pods: (&podList{}).Pods, Kubelet: &fakeKubelet{}}
	for name, change := range map[string]func(*Config){
		"no table":   func(c *Config) { c.Table = nil },
		"no pods":    func(c *Config) { c.Pods = nil },
		"no kubelet": func(c *Config) { c.Kubelet = nil },
		"no place":   func(c *Config) { c.Endpoint = nil },
	} {
		config := good
		change(&config)
		if _, err := New(config); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}
