// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// fakeHandle implements the part of the scheduler that the gate and the waiting room use.
type fakeHandle struct {
	fwk.Handle
	client    *fake.Clientset
	informers informers.SharedInformerFactory
	recorder  *events.FakeRecorder
	// api is the client for the code under test. If it is nil, the code uses client.
	api clientset.Interface
	// unbound has the pods that wait in Permit.
	unbound map[types.UID]bool
	// nominated has the nominated nodes of pods.
	nominated map[types.UID]string
	// activated receives the name of each activated pod.
	activated chan string
}

type unboundPod struct{ fwk.WaitingPod }

func (h *fakeHandle) ClientSet() clientset.Interface {
	if h.api != nil {
		return h.api
	}
	return h.client
}

func (h *fakeHandle) NominatedPodsForNode(node string) []fwk.PodInfo {
	var infos []fwk.PodInfo
	for uid, name := range h.nominated {
		if name == node {
			infos = append(infos, &framework.PodInfo{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}})
		}
	}
	return infos
}

func (h *fakeHandle) SharedInformerFactory() informers.SharedInformerFactory { return h.informers }
func (h *fakeHandle) EventRecorder() events.EventRecorderLogger              { return h.recorder }
func (h *fakeHandle) GetPodInPreBind(types.UID) fwk.PodInPreBind             { return nil }

func (h *fakeHandle) GetWaitingPod(uid types.UID) fwk.WaitingPod {
	if h.unbound[uid] {
		return unboundPod{}
	}
	return nil
}

func (h *fakeHandle) Activate(_ klog.Logger, pods map[string]*corev1.Pod) {
	for _, pod := range pods {
		h.activated <- pod.Name
	}
}

func newFakeHandle(t *testing.T, objects ...runtime.Object) *fakeHandle {
	t.Helper()
	client := fake.NewClientset(objects...)
	return &fakeHandle{
		client:    client,
		informers: informers.NewSharedInformerFactory(client, 0),
		recorder:  events.NewFakeRecorder(100),
		unbound:   map[types.UID]bool{},
		nominated: map[types.UID]string{},
		activated: make(chan string, 1000),
	}
}

func (h *fakeHandle) start(t *testing.T) {
	t.Helper()
	h.informers.StartWithContext(t.Context())
	h.informers.WaitForCacheSyncWithContext(t.Context())
	t.Cleanup(h.informers.Shutdown)
}

type fakeCandidate struct {
	upstream.Candidate
	victims []*corev1.Pod
}

func (c *fakeCandidate) Victims() *extenderv1.Victims { return &extenderv1.Victims{Pods: c.victims} }
func (c *fakeCandidate) Name() string                 { return "n1" }

type fakePreemptor struct {
	upstream.ExecutorPreemptor
	*corev1.Pod
}

func (p fakePreemptor) UID() types.UID        { return p.Pod.UID }
func (p fakePreemptor) SchedulerName() string { return "default-scheduler" }
func (p fakePreemptor) Obj() runtime.Object   { panic("the recorder does not know upstream's type") }
func (p fakePreemptor) Pods() map[string]*corev1.Pod {
	return map[string]*corev1.Pod{p.Pod.Name: p.Pod}
}
func (p fakePreemptor) Priority() int32      { return *p.Pod.Spec.Priority }
func (p fakePreemptor) Type() string         { return "pod" }
func (p fakePreemptor) GetName() string      { return p.Pod.Name }
func (p fakePreemptor) GetNamespace() string { return p.Pod.Namespace }

// gateWorld is a gate that records its calls: "evict a", "delete b".
type gateWorld struct {
	*gate
	handle *fakeHandle
	clock  *testingclock.FakePassiveClock

	mu    sync.Mutex
	calls []string
	// answer returns the response to the eviction of a pod, asked the response to a dry run. If
	// asked is nil, answer returns both responses.
	answer, asked func(pod string) error
}

func (w *gateWorld) called(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, what)
}

func newGateWorld(t *testing.T, budgets []*policyv1.PodDisruptionBudget, pods ...*corev1.Pod) *gateWorld {
	t.Helper()
	objects := make([]runtime.Object, 0, len(pods))
	for _, pod := range pods {
		objects = append(objects, pod)
	}
	handle := newFakeHandle(t, objects...)
	watches := informertest.Count(handle.client)
	w := &gateWorld{handle: handle, clock: testingclock.NewFakePassiveClock(started), answer: func(string) error { return nil }}
	waiting := must.Get(newWaitingRoom(t.Context(), handle))(t)
	original := func(_ context.Context, _ upstream.Candidate, _ upstream.ExecutorPreemptor, victim *corev1.Pod, _ string) (bool, error) {
		w.called("delete " + victim.Name)
		return false, nil
	}
	w.gate = newGate(handle, func(priority int32) (*rules, error) {
		r := rulesFor(priority, budgets)
		r.refused = w.gate.isRefused
		return r, nil
	}, original, waiting)
	w.gate.clock = w.clock
	w.gate.evictPod = func(_ context.Context, eviction *policyv1.Eviction) error {
		dryRun := slices.Equal(eviction.DeleteOptions.DryRun, []string{metav1.DryRunAll})
		if dryRun {
			w.called("ask " + eviction.Name)
		} else {
			w.called("evict " + eviction.Name)
		}
		uid := eviction.DeleteOptions.Preconditions.UID
		if *uid != types.UID("uid-"+eviction.Name) || eviction.Annotations[evictNowAnnotation] != "preemption" {
			t.Errorf("got the eviction %+v", eviction)
		}
		if dryRun && w.asked != nil {
			return w.asked(eviction.Name)
		}
		return w.answer(eviction.Name)
	}
	registerMetrics()
	handle.start(t)
	watches.Wait(t, 0, "pods", "poddisruptionbudgets", "priorityclasses")
	return w
}

// preemptAll works like upstream's executor: it preempts all victims but the last in parallel, and
// the last one only if none has failed.
func (w *gateWorld) preemptAll(t *testing.T, c *fakeCandidate, preemptor fakePreemptor) error {
	t.Helper()
	var group sync.WaitGroup
	errs := make([]error, len(c.victims))
	for i, victim := range c.victims[:len(c.victims)-1] {
		group.Go(func() { _, errs[i] = w.preempt(t.Context(), c, preemptor, victim, Name) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := w.preempt(t.Context(), c, preemptor, c.victims[len(c.victims)-1], Name)
	return err
}

func preemptorOf(priority int32) fakePreemptor {
	return fakePreemptor{Pod: runningPod("pending", priority, onNode(""))}
}

// wantCalls compares the calls. The order is: dry runs in any order, then evictions, then the calls
// of upstream in any order.
func (w *gateWorld) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	got := slices.Clone(w.calls)
	first := func(from int, letter byte) int {
		for from < len(got) && got[from][0] == letter {
			from++
		}
		return from
	}
	asked := first(0, 'a')
	slices.Sort(got[:asked])
	slices.Sort(got[first(asked, 'e'):])
	is.True(t, slices.Equal(got, want), "got the calls %q, want %q", got, want)
}

func TestGate(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	closed := apierrors.NewTooManyRequests("no", 0)
	closed.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods"}}
	for name, test := range map[string]struct {
		allowed  int32
		priority int32
		answers  map[string]error
		asked    map[string]error
		unbound  []string
		// calls are the calls for the guarded pods a and c, and the unguarded pods b and d.
		calls []string
		fails bool
		// event is a part of the last event.
		event string
	}{
		"within the budget, guarded pods leave first": {
			allowed: 4,
			calls:   []string{"ask a", "ask c", "evict a", "evict c", "delete b", "delete d"},
		},
		"with the priority of the threshold, upstream deletes all pods": {
			priority: 1000,
			calls:    []string{"delete a", "delete b", "delete c", "delete d"},
		},
		"a set that exceeds the budget is refused without calls": {allowed: 3, fails: true, event: "PodDisruptionBudget web allows no further disruption"},
		"if a budget refuses, all pods stay":                     {allowed: 4, asked: map[string]error{"a": closed}, calls: []string{"ask a", "ask c"}, fails: true, event: "no"},
		"if a webhook refuses, all pods stay": {
			allowed: 4,
			asked:   map[string]error{"c": apierrors.NewForbidden(pods, "c", errors.New("by a webhook"))},
			calls:   []string{"ask a", "ask c"},
			fails:   true,
			event:   "by a webhook",
		},
		"if a budget refuses after the dry runs, the other pods stay": {
			allowed: 4,
			answers: map[string]error{"c": closed},
			calls:   []string{"ask a", "ask c", "evict a", "evict c"},
			fails:   true,
			event:   "no",
		},
		"after an error in a dry run, all pods stay": {
			allowed: 4,
			asked:   map[string]error{"a": apierrors.NewInternalError(errors.New("broken"))},
			calls:   []string{"ask a", "ask c"},
			fails:   true,
			event:   "broken",
		},
		"a pod that is missing in a dry run does not stop the others": {
			allowed: 4,
			asked:   map[string]error{"a": apierrors.NewNotFound(pods, "a")},
			calls:   []string{"ask a", "ask c", "evict a", "evict c", "delete b", "delete d"},
		},
		"an error stops the preemption": {
			allowed: 4,
			answers: map[string]error{"a": apierrors.NewInternalError(errors.New("broken"))},
			calls:   []string{"ask a", "ask c", "evict a"},
			fails:   true,
			event:   "broken",
		},
		"a missing pod counts as evicted": {
			allowed: 4,
			answers: map[string]error{"a": apierrors.NewNotFound(pods, "a")},
			calls:   []string{"ask a", "ask c", "evict a", "evict c", "delete b", "delete d"},
		},
		"a pod that changed during its eviction counts as refused": {
			allowed: 4,
			answers: map[string]error{"a": apierrors.NewConflict(pods, "a", errors.New("changed"))},
			calls:   []string{"ask a", "ask c", "evict a"},
			fails:   true,
			event:   "changed",
		},
		"upstream deletes a pod that is not bound yet": {
			allowed: 4,
			unbound: []string{"a"},
			calls:   []string{"evict c", "delete a", "delete b", "delete d"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			victims := []*corev1.Pod{
				runningPod("a", 10, ofClass("guarded")),
				runningPod("b", 10),
				runningPod("c", 10, ofClass("guarded")),
				runningPod("d", 10),
			}
			w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", test.allowed)}, victims...)
			w.answer = func(pod string) error { return test.answers[pod] }
			w.asked = func(pod string) error { return test.asked[pod] }
			for _, name := range test.unbound {
				w.handle.unbound[types.UID("uid-"+name)] = true
			}
			if test.priority == 0 {
				test.priority = 100
			}
			err := w.preemptAll(t, &fakeCandidate{victims: victims}, preemptorOf(test.priority))
			is.True(t, (err != nil) == test.fails, "got error %v", err)
			w.wantCalls(t, test.calls...)
			w.wantLastEvent(t, test.event)
		})
	}
}

// TestStartingVictim makes a victim ready after it was chosen. The Eviction API refuses its
// eviction before the scheduler's cache shows the change, so the other victims must stay, too.
func TestStartingVictim(t *testing.T) {
	closed := apierrors.NewTooManyRequests("no", 0)
	closed.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods"}}
	for name, test := range map[string]struct {
		priority int32
		answer   error
		calls    []string
	}{
		"the victim is still starting":                             {100, nil, []string{"evict a", "delete b"}},
		"the victim is ready, and its budget allows no disruption": {100, closed, []string{"evict a"}},
		"the priority reaches the threshold":                       {1000, closed, []string{"delete a", "delete b"}},
	} {
		t.Run(name, func(t *testing.T) {
			starting := runningPod("a", 10, ofClass("guarded"), notReady)
			starting.Status.Phase = corev1.PodPending
			victims := []*corev1.Pod{starting, runningPod("b", 10, ofApp("db"))}
			w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}, victims...)
			w.answer = func(string) error { return test.answer }
			err := w.preemptAll(t, &fakeCandidate{victims: victims}, preemptorOf(test.priority))
			if refused := len(test.calls) == 1; refused != (err != nil) {
				t.Errorf("got the error %v", err)
			}
			w.wantCalls(t, test.calls...)
		})
	}
}

func (w *gateWorld) wantLastEvent(t *testing.T, want string) {
	t.Helper()
	last := ""
	for len(w.handle.recorder.Events) > 0 {
		last = <-w.handle.recorder.Events
	}
	if want != "" && !strings.Contains(last, EventRefused) || !strings.Contains(last, want) {
		t.Errorf("got the last event %q, want one with %q", last, want)
	}
}

// TestEvictedPodIsMarked checks the condition by which upstream recognizes victims.
func TestEvictedPodIsMarked(t *testing.T) {
	pod := runningPod("a", 10, ofClass("guarded"))
	w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}, pod)
	must.Do(t, w.preemptAll(t, &fakeCandidate{victims: []*corev1.Pod{pod}}, preemptorOf(100)))
	now := must.Get(w.handle.client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{}))(t)
	for _, condition := range now.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Reason == corev1.PodReasonPreemptionByScheduler {
			return
		}
	}
	t.Errorf("got the conditions %+v", now.Status.Conditions)
}

func onAnyNode(string) bool { return true }

// TestPodWaitsForItsVictims checks that no further victims are evicted for a pod before one of its
// victims is deleted.
func TestPodWaitsForItsVictims(t *testing.T) {
	pod := runningPod("a", 10, ofClass("guarded"))
	w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}, pod)
	preemptor := preemptorOf(100)
	must.True(t, !w.awaitsVictims(preemptor.UID(), onAnyNode), "the pod waits before the eviction")
	must.Do(t, w.preemptAll(t, &fakeCandidate{victims: []*corev1.Pod{pod}}, preemptor))
	is.True(t, w.awaitsVictims(preemptor.UID(), onAnyNode), "the pod is eligible although its victim still exists")
	must.Do(t, w.handle.client.CoreV1().Pods("shop").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	waitFor(t, "the pod is eligible", func() bool { return !w.awaitsVictims(preemptor.UID(), onAnyNode) })
}

// TestPartOfTheVictimsIsEvicted refuses the eviction of the second of two victims after successful
// dry runs. The pending pod may look for other victims while the first one is terminating, but only
// after a delay. The delay doubles at the second refusal.
func TestPartOfTheVictimsIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := []*corev1.Pod{
			runningPod("a", 10, ofClass("guarded")), runningPod("b", 10, ofClass("guarded")),
			runningPod("c", 10, ofClass("guarded")), runningPod("d", 10, ofClass("guarded")),
		}
		w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 4)}, append(pods, preemptorOf(100).Pod)...)
		w.gate.clock = clock.RealClock{}
		go wait.UntilWithContext(t.Context(), w.waiting.tick, wakeInterval)
		w.asked = func(string) error { return nil }
		w.answer = func(pod string) error {
			if pod == "b" || pod == "d" {
				return apierrors.NewInternalError(errors.New("broken"))
			}
			return nil
		}
		uid := preemptorOf(100).UID()
		for i, delay := range []time.Duration{time.Second, 2 * time.Second} {
			if err := w.preemptAll(t, &fakeCandidate{victims: pods[2*i : 2*i+2]}, preemptorOf(100)); err == nil {
				t.Fatal("the eviction was not refused")
			}
			is.True(t, !w.awaitsVictims(uid, onAnyNode), "the pod waits for a victim of a failed preemption")
			<-time.After(delay - time.Millisecond)
			if !w.isLeftOut(uid, "n2") || len(w.handle.activated) > 0 {
				t.Errorf("attempt %d: the pod may try another node before %s have passed", i, delay)
			}
			<-time.After(time.Millisecond)
			synctest.Wait()
			if w.isLeftOut(uid, "n2") || len(w.handle.activated) != 1 || <-w.handle.activated != "pending" {
				t.Errorf("attempt %d: the pending pod is not tried again after %s", i, delay)
			}
		}
		w.calls = slices.DeleteFunc(w.calls, func(call string) bool { return strings.HasPrefix(call, "ask ") })
		w.wantCalls(t, "evict a", "evict b", "evict c", "evict d")
		now := must.Get(w.handle.client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{}))(t)
		for _, condition := range now.Status.Conditions {
			is.True(t, condition.Type != corev1.DisruptionTarget, "upstream would wait for the victim: %+v", condition)
		}
	})
}

// TestSeveralBudgets checks that a set of victims is refused without calls if several budgets
// select one of the victims. This is possible if an extender adds the victim, or if the second
// budget is new.
func TestSeveralBudgets(t *testing.T) {
	all := budgetOf("all", 5, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} })
	victims := []*corev1.Pod{runningPod("a", 10, ofClass("guarded")), runningPod("b", 10, ofApp("other"))}
	w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 5), all}, victims...)
	if err := w.preemptAll(t, &fakeCandidate{victims: victims}, preemptorOf(100)); err == nil {
		t.Error("the set of victims was not refused")
	}
	w.wantCalls(t)
	w.wantLastEvent(t, "The pod is selected by the PodDisruptionBudgets all, web")
}

// TestRunsEnd checks that a candidate is forgotten at the end of its run, and that a later call
// returns an error.
func TestRunsEnd(t *testing.T) {
	pods := []*corev1.Pod{runningPod("a", 10, ofClass("guarded")), runningPod("b", 10, ofClass("guarded"))}
	w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 2)}, pods...)
	ctx, cancel := context.WithCancel(t.Context())
	c := &fakeCandidate{victims: pods}
	must.Get(w.preempt(ctx, c, preemptorOf(100), pods[0], Name))(t)
	cancel()
	waitFor(t, "the gate has forgotten the run", func() bool {
		w.gate.mu.Lock()
		defer w.gate.mu.Unlock()
		return len(w.runs) == 0
	})
	if _, err := w.preempt(ctx, c, preemptorOf(100), pods[1], Name); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	w.wantCalls(t, "ask a", "ask b", "evict a", "evict b")
}

// TestNoAnswer checks that an eviction without a response counts as a refusal after the timeout.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := runningPod("a", 10, ofClass("guarded"))
		w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}, pod)
		w.evictPod = func(ctx context.Context, _ *policyv1.Eviction) error {
			<-ctx.Done()
			return ctx.Err()
		}
		begun := time.Now()
		err := w.preemptAll(t, &fakeCandidate{victims: []*corev1.Pod{pod}}, preemptorOf(100))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != evictionTimeout {
			t.Errorf("got error %v after %s", err, time.Since(begun))
		}
		is.True(t, w.isRefused(pod.UID), "the victim is not held back")
	})
}

// TestLastVictimIsGoneBeforeItsTurn deletes the last victim before the executor calls the gate for
// it. The gate must activate the pending pod, because the queue has dropped the deletion event.
func TestLastVictimIsGoneBeforeItsTurn(t *testing.T) {
	pods := []*corev1.Pod{runningPod("a", 10, ofClass("guarded")), runningPod("b", 10, ofClass("guarded"))}
	w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 2)}, pods...)
	c, preemptor := &fakeCandidate{victims: pods}, preemptorOf(100)
	must.Get(w.preempt(t.Context(), c, preemptor, pods[0], Name))(t)
	w.wantCalls(t, "ask a", "ask b", "evict a", "evict b")
	must.Do(t, w.handle.client.CoreV1().Pods("shop").Delete(t.Context(), "b", metav1.DeleteOptions{}))
	waitFor(t, "the lister shows the deletion", func() bool { return w.isLeaving(pods[1]) })
	is.True(t, len(w.handle.activated) == 0, "activated too early")
	must.Get(w.preempt(t.Context(), c, preemptor, pods[1], Name))(t)
	is.True(t, len(w.handle.activated) == 1, "not activated")
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("timeout: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}
