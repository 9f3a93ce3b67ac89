// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics/testutil"
)

// room is a waitingRoom in a bubble of its own time.
type room struct {
	t *testing.T
	w *waitingRoom
	h *fakeHandle
	// pods are p0, p1, ... A higher number has a higher priority.
	pods []*corev1.Pod
}

var (
	nameOfWeb = types.NamespacedName{Namespace: "shop", Name: "web"}
	nameOfDB  = types.NamespacedName{Namespace: "shop", Name: "db"}
)

// inRoom calls f with a room in which pods p0, p1, ... wait for the budget web, which allows
// nothing.
func inRoom(t *testing.T, waiters int, f func(r *room)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{budgetOf("web", 0), budgetOf("db", 0), class("c", "1")}
		r := &room{t: t}
		for i := range waiters {
			r.pods = append(r.pods, runningPod(fmt.Sprintf("p%d", i), int32(i), onNode("")))
			objects = append(objects, r.pods[i])
		}
		r.h = newFakeHandle(t, objects...)
		w, err := newWaitingRoom(t.Context(), r.h)
		if err != nil {
			t.Fatal(err)
		}
		r.w = w
		r.h.start(t)
		synctest.Wait()
		for i := range r.pods {
			r.fail(i, nameOfWeb)
		}
		f(r)
	})
}

func (r *room) waiter(i int) waiter {
	return waiter{uid: r.pods[i].UID, priority: int32(i), pods: []*corev1.Pod{r.pods[i]}}
}

// fail ends an attempt of a pod that budgets hold back.
func (r *room) fail(i int, budgets ...types.NamespacedName) {
	s := r.w.begin()
	defer r.w.end(s)
	r.w.enter(s, r.waiter(i), sets.New(budgets...))
	synctest.Wait()
}

// change stores a budget and waits until the room knows.
func (r *room) change(b *policyv1.PodDisruptionBudget) {
	r.t.Helper()
	if _, err := r.h.client.PolicyV1().PodDisruptionBudgets(b.Namespace).Update(r.t.Context(), b, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

// wantWoken compares the pods that were activated since.
func (r *room) wantWoken(want ...string) {
	r.t.Helper()
	synctest.Wait()
	if got := r.h.names(); !slices.Equal(got, want) {
		r.t.Errorf("got %q woken, want %q", got, want)
	}
}

func (r *room) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (w *waitingRoom) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiters)
}

// names returns the names of the pods that were activated since.
func (h *fakeHandle) names() []string {
	var names []string
	for len(h.activated) > 0 {
		names = append(names, <-h.activated)
	}
	slices.Sort(names)
	return names
}

func generation(n int64) budgetOption {
	return func(b *policyv1.PodDisruptionBudget) { b.Generation, b.Status.ObservedGeneration = n, n }
}

func healthyPods(current, desired int32) budgetOption {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Status.CurrentHealthy, b.Status.DesiredHealthy = current, desired
	}
}

// TestBudgetOpens wakes as many of the most important pods as the budget has room for.
func TestBudgetOpens(t *testing.T) {
	for name, test := range map[string]struct {
		before, after *policyv1.PodDisruptionBudget
		want          []string
	}{
		"by one":          {budgetOf("web", 0), budgetOf("web", 1), []string{"p3"}},
		"by two":          {budgetOf("web", 0), budgetOf("web", 2), []string{"p2", "p3"}},
		"not":             {budgetOf("web", 0), budgetOf("web", 0), nil},
		"of another name": {budgetOf("web", 0), budgetOf("db", 2), nil},
		// The most important one is tried first, and then the others.
		"with a new spec":               {budgetOf("web", 0), budgetOf("web", 0, stale), []string{"p3"}},
		"for pods that are not ready":   {budgetOf("web", 0, healthyPods(1, 2)), budgetOf("web", 0, healthyPods(2, 2)), []string{"p3"}},
		"not, one more is healthy only": {budgetOf("web", 0, healthyPods(2, 4)), budgetOf("web", 0, healthyPods(3, 4)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inRoom(t, 4, func(r *room) {
				r.change(test.before)
				if len(r.h.names()) > 0 {
					r.t.Fatal("woken before")
				}
				r.change(test.after)
				r.wantWoken(test.want...)
			})
		})
	}
}

// TestStatusBecomesCurrent opens a budget whose spec has changed before.
func TestStatusBecomesCurrent(t *testing.T) {
	inRoom(t, 3, func(r *room) {
		r.change(budgetOf("web", 2, stale))
		for i := 2; i >= 0; i-- {
			r.wantWoken(fmt.Sprintf("p%d", i))
			r.fail(i, nameOfWeb)
		}
		r.change(budgetOf("web", 2, generation(2)))
		r.after(wakeInterval)
		r.wantWoken("p1", "p2")
	})
}

func TestBudgetCloses(t *testing.T) {
	inRoom(t, 2, func(r *room) {
		r.change(budgetOf("web", 1))
		r.wantWoken("p1")
		r.change(budgetOf("web", 0))
		r.fail(1, nameOfWeb)
		r.after(trialTimeout)
		r.wantWoken()
		r.change(budgetOf("web", 1))
		r.wantWoken("p1")
	})
}

// TestNextIsTried wakes the next pod when the one before it did not use the budget up.
func TestNextIsTried(t *testing.T) {
	for name, test := range map[string]struct {
		// end is how the attempt of the most important pod ends.
		end func(r *room)
		// want is woken after wait.
		wait time.Duration
		want []string
	}{
		"it needs more room":               {func(r *room) { r.fail(2, nameOfWeb) }, 0, []string{"p1"}},
		"another budget holds it up":       {func(r *room) { r.fail(2, nameOfDB) }, 0, []string{"p1"}},
		"it fits nowhere":                  {func(r *room) { r.w.leave(r.pods[2].UID) }, 0, []string{"p1"}},
		"it was not searched for":          {func(r *room) { r.w.stay(r.pods[2].UID) }, 0, []string{"p1"}},
		"it fits by now":                   {func(r *room) { r.w.podUpdated(r.pods[2], runningPod("p2", 2)) }, 0, []string{"p1"}},
		"it is gone":                       {func(r *room) { r.w.podGone(r.pods[2]) }, 0, []string{"p1"}},
		"it makes no attempt":              {func(*room) {}, trialTimeout, []string{"p1"}},
		"it makes no attempt so far":       {func(*room) {}, trialTimeout - time.Millisecond, nil},
		"it has victims of another budget": {func(r *room) { r.w.leaveWithVictims(r.pods[2].UID) }, settleTime, []string{"p1"}},
		"it has victims of the budget": {func(r *room) {
			r.w.leaveWithVictims(r.pods[2].UID)
			r.change(budgetOf("web", 0))
		}, settleTime, nil},
		"it has victims, and the budget is late": {func(r *room) { r.w.leaveWithVictims(r.pods[2].UID) }, settleTime - time.Millisecond, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inRoom(t, 3, func(r *room) {
				r.change(budgetOf("web", 1))
				r.wantWoken("p2")
				test.end(r)
				r.after(test.wait)
				r.wantWoken(test.want...)
			})
		})
	}
}

// TestEachIsTriedOnce has all pods fail: each opening tries each of them once.
func TestEachIsTriedOnce(t *testing.T) {
	for name, open := range map[string]func(r *room){
		"a room that is too small": func(r *room) { r.change(budgetOf("web", 1)) },
		"a new spec":               func(r *room) { r.change(budgetOf("web", 0, stale)) },
		"a PriorityClass":          func(r *room) { r.w.classUpdated(class("c", "1"), class("c", "")) },
		"the end of the budget":    func(r *room) { r.w.budgetGone(budgetOf("web", 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			inRoom(t, 3, func(r *room) {
				open(r)
				for i := 2; i >= 0; i-- {
					r.wantWoken(fmt.Sprintf("p%d", i))
					r.fail(i, nameOfWeb)
				}
				r.after(time.Minute)
				r.wantWoken()
			})
		})
	}
}

// TestSecondOpening wakes another pod if the first one is still to be tried.
func TestSecondOpening(t *testing.T) {
	inRoom(t, 3, func(r *room) {
		r.change(budgetOf("web", 1))
		r.wantWoken("p2")
		r.change(budgetOf("web", 2))
		r.wantWoken("p1")
	})
}

// TestBudgetOpensDuringTheSearch wakes a pod whose search has read the budget before.
func TestBudgetOpensDuringTheSearch(t *testing.T) {
	for name, test := range map[string]struct {
		opens func(r *room)
		want  []string
	}{
		"its budget":      {func(r *room) { r.change(budgetOf("web", 1)) }, []string{"p0"}},
		"a PriorityClass": {func(r *room) { r.w.classUpdated(class("c", "1"), class("c", "")) }, []string{"p0"}},
		"another budget":  {func(r *room) { r.change(budgetOf("db", 1)) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inRoom(t, 1, func(r *room) {
				r.w.leave(r.pods[0].UID)
				s := r.w.begin()
				test.opens(r)
				r.wantWoken()
				r.w.enter(s, r.waiter(0), sets.New(nameOfWeb))
				r.w.end(s)
				r.wantWoken(test.want...)
			})
		})
	}
}

// TestPodIsFreed wakes pods when a pod on a node no longer needs the budget.
func TestPodIsFreed(t *testing.T) {
	running := runningPod("a", 1)
	for name, test := range map[string]struct {
		later *corev1.Pod
		want  []string
	}{
		"it has other labels":                 {runningPod("a", 1, ofApp("other")), []string{"p0"}},
		"it is not ready":                     {runningPod("a", 1, notReady), []string{"p0"}},
		"it has failed":                       {runningPod("a", 1, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }), []string{"p0"}},
		"it is terminating":                   {runningPod("a", 1, notReady, terminating), nil},
		"it is as before":                     {runningPod("a", 1, startedAfter(1)), nil},
		"it has more labels and needs it yet": {runningPod("a", 1, func(pod *corev1.Pod) { pod.Labels["more"] = "" }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inRoom(t, 1, func(r *room) {
				r.w.podUpdated(running, test.later)
				r.wantWoken(test.want...)
			})
		})
	}
}

func TestThresholdChanges(t *testing.T) {
	inRoom(t, 1, func(r *room) {
		r.w.classUpdated(class("c", "1"), class("c", "1"))
		r.wantWoken()
		r.w.classUpdated(class("c", "1"), class("c", ""))
		r.wantWoken("p0")
	})
}

// TestNoPodIsWokenMoreThanOnceASecond changes a budget all the time, and has the pod fail.
func TestNoPodIsWokenMoreThanOnceASecond(t *testing.T) {
	inRoom(t, 1, func(r *room) {
		const seconds = 10
		woken := 0
		for range seconds * 20 {
			r.change(budgetOf("web", 1))
			r.change(budgetOf("web", 0))
			if n := len(r.h.names()); n > 0 {
				woken += n
				r.fail(0, nameOfWeb)
			}
			r.after(50 * time.Millisecond)
		}
		if woken < seconds-1 || woken > seconds+1 {
			r.t.Errorf("woken %d times in %d seconds", woken, seconds)
		}
	})
}

// TestPodLeavesTheRoom forgets pods that found a node or were deleted.
func TestPodLeavesTheRoom(t *testing.T) {
	inRoom(t, 3, func(r *room) {
		pods := r.h.client.CoreV1().Pods("shop")
		if _, err := pods.Update(r.t.Context(), runningPod("p2", 2), metav1.UpdateOptions{}); err != nil {
			r.t.Fatal(err)
		}
		if err := pods.Delete(r.t.Context(), "p1", metav1.DeleteOptions{}); err != nil {
			r.t.Fatal(err)
		}
		r.change(budgetOf("web", 3))
		r.wantWoken("p0")
		if got := r.w.size(); got != 1 {
			r.t.Errorf("%d pods wait, want 1", got)
		}
		// Their searches end after they are gone.
		r.fail(1, nameOfWeb)
		r.fail(2, nameOfWeb)
		if got := r.w.size(); got != 1 {
			r.t.Errorf("%d pods wait, want 1", got)
		}
	})
}

// TestGroupLeavesTheRoom forgets a group when none of its pods is pending.
func TestGroupLeavesTheRoom(t *testing.T) {
	inRoom(t, 2, func(r *room) {
		r.w.leave(r.pods[0].UID)
		r.w.leave(r.pods[1].UID)
		s := r.w.begin()
		r.w.enter(s, waiter{uid: "uid-of-group", priority: 5, pods: r.pods}, sets.New(nameOfWeb))
		r.w.end(s)
		r.w.podUpdated(r.pods[0], runningPod("p0", 0))
		if got := r.w.size(); got != 1 {
			r.t.Errorf("%d groups wait while a pod is pending, want 1", got)
		}
		r.w.podGone(r.pods[1])
		if got := r.w.size(); got != 0 || len(r.w.ofPod) != 0 {
			r.t.Errorf("%d groups wait with %d pods, want none", got, len(r.w.ofPod))
		}
	})
}

// TestGauge adds the rooms of all profiles up.
func TestGauge(t *testing.T) {
	value := func() float64 {
		v, err := testutil.GetGaugeMetricValue(waitingPods)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	registerMetrics()
	before := value()
	inRoom(t, 2, func(r *room) {
		second, err := newWaitingRoom(r.t.Context(), r.h)
		if err != nil {
			r.t.Fatal(err)
		}
		if got := value() - before; got != 2 {
			r.t.Errorf("the gauge has %v, want 2", got)
		}
		s := second.begin()
		second.enter(s, r.waiter(0), sets.New(nameOfWeb))
		second.end(s)
		if got := value() - before; got != 3 {
			r.t.Errorf("the gauge has %v, want 3", got)
		}
		second.leavePod(r.pods[1].UID)
		second.leave(r.pods[0].UID)
		r.w.leave(r.pods[0].UID)
		r.w.leave(r.pods[1].UID)
		if got := value() - before; got != 0 {
			r.t.Errorf("the gauge has %v, want 0", got)
		}
	})
}

// TestFullRoom keeps the most important pods.
func TestFullRoom(t *testing.T) {
	inRoom(t, 0, func(r *room) {
		pods := r.h.informers.Core().V1().Pods().Informer().GetIndexer()
		add := func(i int, priority int32) {
			pod := runningPod(fmt.Sprint(i), priority, onNode(""))
			if err := pods.Add(pod); err != nil {
				r.t.Fatal(err)
			}
			s := r.w.begin()
			defer r.w.end(s)
			r.w.enter(s, waiter{uid: pod.UID, priority: priority, pods: []*corev1.Pod{pod}}, sets.New(nameOfWeb))
		}
		uid := func(i int) types.UID { return types.UID(fmt.Sprintf("uid-%d", i)) }
		for i := range maxWaiting {
			add(i, 10)
		}
		add(maxWaiting, 10)
		if r.w.size() != maxWaiting || r.w.waiters[uid(maxWaiting)] != nil {
			r.t.Error("one of equal priority has taken a place")
		}
		add(maxWaiting+1, 11)
		if r.w.size() != maxWaiting || r.w.waiters[uid(maxWaiting+1)] == nil || len(r.w.ofPod) != maxWaiting {
			r.t.Error("one of higher priority has no place")
		}
	})
}

// TestWakeAtATime wakes also a pod that waits for no budget.
func TestWakeAtATime(t *testing.T) {
	inRoom(t, 1, func(r *room) {
		r.w.leave(r.pods[0].UID)
		r.w.wakeAt(r.pods[0].UID, r.pods, r.w.clock.Now().Add(time.Minute))
		r.after(59 * time.Second)
		r.wantWoken()
		r.after(time.Second)
		r.wantWoken("p0")
	})
}
