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
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// room is a waitingRoom in a synctest bubble.
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

// inRoom calls f with a room in which pods p0, p1, ... wait for the budget web, which allows no
// disruption.
func inRoom(t *testing.T, waiters int, f func(r *room)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{budgetOf("web", 0), budgetOf("db", 0), class("c", "1"), runningPod("a", 1)}
		r := &room{t: t}
		for i := range waiters {
			r.pods = append(r.pods, runningPod(fmt.Sprintf("p%d", i), int32(i), onNode("")))
			objects = append(objects, r.pods[i])
		}
		r.h = newFakeHandle(t, objects...)
		r.w = r.newRoom()
		r.h.start(t)
		synctest.Wait()
		for i := range r.pods {
			r.fail(i, nameOfWeb)
		}
		f(r)
	})
}

func (r *room) newRoom() *waitingRoom {
	r.t.Helper()
	w := must.Get(newWaitingRoom(r.t.Context(), r.h))(r.t)
	go wait.UntilWithContext(r.t.Context(), w.tick, wakeInterval)
	return w
}

func (r *room) waiter(i int) waiter {
	return waiter{uid: r.pods[i].UID, priority: int32(i), pods: []*corev1.Pod{r.pods[i]}}
}

// heldBy returns the outcome of an attempt that found no victims because of the budgets.
func heldBy(budgets ...types.NamespacedName) outcome {
	return outcome{searched: true, restricted: true, held: heldPods{budgets: sets.New(budgets...), pods: sets.New[types.UID]("uid-a")}}
}

// try begins an attempt of a pod, and ends it with the outcome.
func (r *room) try(i int, o outcome) {
	r.w.begin(r.waiter(i))
	r.w.end(r.pods[i].UID, o)
	synctest.Wait()
}

func (r *room) fail(i int, budgets ...types.NamespacedName) { r.try(i, heldBy(budgets...)) }

// change stores objects and waits until the room has received them.
func (r *room) change(objects ...runtime.Object) {
	r.t.Helper()
	for _, object := range objects {
		var err error
		switch o := object.(type) {
		case *policyv1.PodDisruptionBudget:
			_, err = r.h.client.PolicyV1().PodDisruptionBudgets("shop").Update(r.t.Context(), o, metav1.UpdateOptions{})
		case *corev1.Pod:
			_, err = r.h.client.CoreV1().Pods("shop").Update(r.t.Context(), o, metav1.UpdateOptions{})
		case *schedulingv1.PriorityClass:
			_, err = r.h.client.SchedulingV1().PriorityClasses().Update(r.t.Context(), o, metav1.UpdateOptions{})
		}
		if err != nil {
			r.t.Fatal(err)
		}
		synctest.Wait()
	}
}

func (r *room) delete(resource, name string) {
	r.t.Helper()
	gvr := map[string]schema.GroupVersionResource{"pods": corev1.SchemeGroupVersion.WithResource("pods"), "budgets": policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")}
	must.Do(r.t, r.h.client.Tracker().Delete(gvr[resource], "shop", name))
	synctest.Wait()
}

// wantWoken compares the pods that were activated since the last call.
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

// waiting returns the budgets for which each pod or group waits.
func (w *waitingRoom) waiting() map[types.UID]sets.Set[types.NamespacedName] {
	w.mu.Lock()
	defer w.mu.Unlock()
	budgets := map[types.UID]sets.Set[types.NamespacedName]{}
	for uid, each := range w.waiters {
		if len(each.budgets) > 0 {
			budgets[uid] = each.budgets
		}
	}
	return budgets
}

// names returns the names of the pods that were activated since the last call.
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

// TestOpenings changes a budget, a pod or a class. The room must activate as many of the most
// important pods as the budget allows disruptions, or the most important one if the budget may no
// longer protect a pod.
func TestOpenings(t *testing.T) {
	failed := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }
	labelled := func(pod *corev1.Pod) { pod.Labels["more"] = "" }
	for name, test := range map[string]struct {
		// before is created first and activates no pod.
		before, after runtime.Object
		want          []string
	}{
		"by one":                            {budgetOf("web", 0), budgetOf("web", 1), []string{"p3"}},
		"by two":                            {budgetOf("web", 0), budgetOf("web", 2), []string{"p2", "p3"}},
		"not":                               {budgetOf("web", 0), budgetOf("web", 0), nil},
		"of another name":                   {budgetOf("web", 0), budgetOf("db", 2), nil},
		"with a new spec":                   {budgetOf("web", 0), budgetOf("web", 0, stale), []string{"p3"}},
		"enough healthy pods":               {budgetOf("web", 0, healthyPods(1, 2)), budgetOf("web", 0, healthyPods(2, 2)), []string{"p3"}},
		"one more healthy pod, but too few": {budgetOf("web", 0, healthyPods(2, 4)), budgetOf("web", 0, healthyPods(3, 4)), nil},
		"a pod has other labels":            {runningPod("a", 1), runningPod("a", 1, ofApp("other")), []string{"p3"}},
		"a pod is not ready":                {runningPod("a", 1), runningPod("a", 1, notReady), []string{"p3"}},
		"a pod has failed":                  {runningPod("a", 1), runningPod("a", 1, failed), []string{"p3"}},
		"a pod is terminating":              {runningPod("a", 1), runningPod("a", 1, notReady, terminating), nil},
		"a pod is as before":                {runningPod("a", 1), runningPod("a", 1, startedAfter(1)), nil},
		"a pod has more labels and still needs its budget": {runningPod("a", 1), runningPod("a", 1, labelled), nil},
		"a threshold changes":                              {class("c", "1"), class("c", ""), []string{"p3"}},
		"a threshold is as before":                         {class("c", "1"), class("c", "1"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inRoom(t, 4, func(r *room) {
				r.change(test.before)
				r.wantWoken()
				r.change(test.after)
				r.wantWoken(test.want...)
			})
		})
	}
}

// TestStatusBecomesCurrent updates the status of a budget after its spec has changed. A pod that
// was activated because of the new spec is activated again only after wakeInterval.
func TestStatusBecomesCurrent(t *testing.T) {
	inRoom(t, 3, func(r *room) {
		r.change(budgetOf("web", 2, stale))
		r.wantWoken("p2")
		r.fail(2, nameOfWeb)
		r.wantWoken("p1")
		r.change(budgetOf("web", 2, generation(2)))
		r.wantWoken()
		r.after(wakeInterval)
		r.wantWoken("p2")
	})
}

// TestBudgetMoves checks that another pod is activated when the budget allows a further disruption,
// and none after the budget allows no disruption again.
func TestBudgetMoves(t *testing.T) {
	inRoom(t, 3, func(r *room) {
		r.change(budgetOf("web", 1))
		r.wantWoken("p2")
		r.change(budgetOf("web", 2))
		r.wantWoken("p1")
		r.change(budgetOf("web", 0))
		r.fail(2, nameOfWeb)
		r.fail(1, nameOfWeb)
		r.after(trialTimeout)
		r.wantWoken()
		r.change(budgetOf("web", 1))
		r.wantWoken("p2")
	})
}

// TestNextIsTried activates the next pod if the previous one did not use up the disruptions that
// the budget allows.
func TestNextIsTried(t *testing.T) {
	found := outcome{searched: true, found: true, restricted: true}
	for name, test := range map[string]struct {
		// end changes the attempt of the most important pod, or its result.
		end func(r *room)
		// want has the pods that the room must activate at the end of the duration wait.
		wait time.Duration
		want []string
	}{
		"it needs more disruptions": {func(r *room) { r.fail(2, nameOfWeb) }, 0, []string{"p1"}},
		"the next one has failed before": {func(r *room) {
			r.fail(1, nameOfWeb)
			r.fail(2, nameOfWeb)
		}, 0, []string{"p0"}},
		"another budget prevents it":             {func(r *room) { r.fail(2, nameOfDB) }, 0, []string{"p1"}},
		"it fits on no node":                     {func(r *room) { r.try(2, outcome{searched: true, restricted: true}) }, 0, []string{"p1"}},
		"it did not search":                      {func(r *room) { r.try(2, outcome{}) }, 0, []string{"p1"}},
		"it may exceed budgets":                  {func(r *room) { r.try(2, outcome{searched: true, found: true}) }, 0, []string{"p1"}},
		"it was scheduled":                       {func(r *room) { r.change(runningPod("p2", 2)) }, wakeInterval, []string{"p1"}},
		"it was deleted":                         {func(r *room) { r.delete("pods", "p2") }, wakeInterval, []string{"p1"}},
		"it makes no attempt":                    {func(*room) {}, trialTimeout, []string{"p1"}},
		"it makes no attempt before the timeout": {func(*room) {}, trialTimeout - time.Millisecond, nil},
		"it has victims of another budget":       {func(r *room) { r.try(2, found) }, settleTime, []string{"p1"}},
		"it has victims of the budget": {func(r *room) {
			r.try(2, found)
			r.change(budgetOf("web", 0))
		}, settleTime, nil},
		"it has victims, and the budget is not updated yet": {func(r *room) { r.try(2, found) }, settleTime - time.Millisecond, nil},
		"its victims were refused": {func(r *room) {
			r.try(2, found)
			r.w.wakeAt(r.waiter(2), time.Now().Add(time.Minute))
		}, wakeInterval, []string{"p1"}},
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

// TestEachIsTriedOnce fails the attempts of all pods. Each change must activate each pod once.
func TestEachIsTriedOnce(t *testing.T) {
	for name, open := range map[string]func(r *room){
		"too few allowed disruptions": func(r *room) { r.change(budgetOf("web", 1)) },
		"a new spec":                  func(r *room) { r.change(budgetOf("web", 0, stale)) },
		"a PriorityClass":             func(r *room) { r.change(class("c", "")) },
		"the deletion of the budget":  func(r *room) { r.delete("budgets", "web") },
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

// TestBudgetOpensDuringTheSearch changes a budget after a search has read it. The pod must be
// activated after the search.
func TestBudgetOpensDuringTheSearch(t *testing.T) {
	for name, test := range map[string]struct {
		opens runtime.Object
		want  []string
	}{
		"its budget":      {budgetOf("web", 1), []string{"p0"}},
		"a PriorityClass": {class("c", ""), []string{"p0"}},
		"another budget":  {budgetOf("db", 1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inRoom(t, 1, func(r *room) {
				r.try(0, outcome{searched: true})
				r.w.begin(r.waiter(0))
				r.change(test.opens)
				r.after(wakeInterval)
				r.wantWoken()
				r.w.end(r.pods[0].UID, heldBy(nameOfWeb))
				r.wantWoken(test.want...)
			})
		})
	}
}

// TestNoPodIsWokenMoreThanOnceASecond changes a budget continuously while the attempts of the pod
// fail.
func TestNoPodIsWokenMoreThanOnceASecond(t *testing.T) {
	inRoom(t, 1, func(r *room) {
		const seconds = 10
		woken := 0
		for range seconds * 20 {
			r.change(budgetOf("web", 1), budgetOf("web", 0))
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

// TestPodLeavesTheRoom checks that the room forgets pods after they were scheduled or deleted, even
// if their searches end later.
func TestPodLeavesTheRoom(t *testing.T) {
	inRoom(t, 3, func(r *room) {
		r.change(runningPod("p2", 2))
		r.delete("pods", "p1")
		for range 2 {
			r.after(wakeInterval)
			if got := len(r.w.waiting()); got != 1 {
				r.t.Errorf("%d pods wait, want 1", got)
			}
			r.fail(1, nameOfWeb)
			r.fail(2, nameOfWeb)
		}
		r.after(wakeInterval)
		r.change(budgetOf("web", 3))
		r.wantWoken("p0")
	})
}

// TestGroupLeavesTheRoom checks that the room forgets a group when none of its pods is pending.
func TestGroupLeavesTheRoom(t *testing.T) {
	inRoom(t, 2, func(r *room) {
		r.try(0, outcome{searched: true})
		r.try(1, outcome{searched: true})
		r.w.begin(waiter{uid: "uid-of-group", priority: 5, pods: r.pods})
		r.w.end("uid-of-group", heldBy(nameOfWeb))
		for i, leave := range []func(){func() { r.change(runningPod("p0", 0)) }, func() { r.delete("pods", "p1") }} {
			leave()
			r.after(wakeInterval)
			if got := len(r.w.waiting()); got != 1-i {
				r.t.Errorf("%d groups wait while %d pods are pending", got, 1-i)
			}
		}
	})
}

// TestGauge checks that the gauge is the sum of the waiters of all profiles.
func TestGauge(t *testing.T) {
	registerMetrics()
	value := func() float64 {
		v := must.Get(testutil.GetGaugeMetricValue(waitingPods))(t)
		return v
	}
	before := value()
	inRoom(t, 2, func(r *room) {
		want := func(want float64) {
			r.t.Helper()
			r.after(wakeInterval)
			if got := value() - before; got != want {
				r.t.Errorf("the gauge has %v, want %v", got, want)
			}
		}
		first, second := r.w, r.newRoom()
		want(2)
		r.w = second
		r.fail(0, nameOfWeb)
		want(3)
		r.try(0, outcome{searched: true})
		r.w = first
		r.delete("pods", "p1")
		want(1)
		r.try(0, outcome{searched: true})
		want(0)
	})
}

// TestFullRoom checks that a full room keeps the most important pods.
func TestFullRoom(t *testing.T) {
	inRoom(t, 0, func(r *room) {
		pods := r.h.informers.Core().V1().Pods().Informer().GetIndexer()
		for i := range maxWaiting + 10 {
			pod := runningPod(fmt.Sprint(i), int32(i%maxWaiting), onNode(""))
			must.Do(r.t, pods.Add(pod))
			r.w.begin(waiter{uid: pod.UID, priority: *pod.Spec.Priority, pods: []*corev1.Pod{pod}})
			r.w.end(pod.UID, heldBy(nameOfWeb))
		}
		r.after(wakeInterval)
		waiting := r.w.waiting()
		for i := range maxWaiting + 10 {
			// Check only priorities from 10: the room drops ten pods, and there are two pods of
			// each priority from 0 to 9.
			if important := i%maxWaiting >= 10; important && !waiting[types.UID(fmt.Sprintf("uid-%d", i))].Has(nameOfWeb) {
				r.t.Errorf("pod %d is not in the room", i)
			}
		}
		is.True(r.t, len(waiting) == maxWaiting, "%d pods wait, want %d", len(waiting), maxWaiting)
	})
}

// TestWakeAtATime checks that pods are activated when refusals end, whether or not they wait for a
// budget.
func TestWakeAtATime(t *testing.T) {
	for name, wait := range map[string]func(r *room){
		"its victims": func(r *room) {
			r.try(0, outcome{searched: true})
			r.w.wakeAt(r.waiter(0), time.Now().Add(refusalDelay))
		},
		"a refused pod": func(r *room) {
			r.w.refuse("uid-a", nil)
			r.fail(0, nameOfWeb)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRoom(t, 1, func(r *room) {
				wait(r)
				r.after(refusalDelay - time.Second)
				r.wantWoken()
				r.after(time.Second)
				r.wantWoken("p0")
				r.after(time.Minute)
				r.wantWoken()
			})
		})
	}
}
