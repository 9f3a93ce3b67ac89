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
)

// room is a waitingRoom in a bubble of its own time.
type room struct {
	t *testing.T
	w *waitingRoom
	h *fakeHandle
}

// inRoom calls f with a room in which pods p0, p1, ... wait for the budget web; a higher number has
// a higher priority.
func inRoom(t *testing.T, waiters int, f func(r room)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var objects []runtime.Object
		var pods []*corev1.Pod
		for i := range waiters {
			pods = append(pods, runningPod(fmt.Sprintf("p%d", i), int32(i), onNode("")))
			objects = append(objects, pods[i])
		}
		h := newFakeHandle(t, objects...)
		w, err := newWaitingRoom(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		h.start(t)
		synctest.Wait()
		for i, pod := range pods {
			w.enter(waiter{uid: pod.UID, priority: int32(i), pods: []*corev1.Pod{pod}}, sets.New(nameOfWeb))
		}
		f(room{t, w, h})
	})
}

var nameOfWeb = types.NamespacedName{Namespace: "shop", Name: "web"}

// names returns the names of the pods that were activated since.
func (h *fakeHandle) names() []string {
	names := []string{}
	for len(h.activated) > 0 {
		names = append(names, <-h.activated)
	}
	slices.Sort(names)
	return names
}

func TestBudgetOpens(t *testing.T) {
	for name, test := range map[string]struct {
		before, after *policyv1.PodDisruptionBudget
		want          []string
	}{
		"by one":          {budgetOf("web", 0), budgetOf("web", 1), []string{"p3"}},
		"by two":          {budgetOf("web", 1), budgetOf("web", 3), []string{"p2", "p3"}},
		"not":             {budgetOf("web", 1), budgetOf("web", 1), nil},
		"but closes":      {budgetOf("web", 1), budgetOf("web", 0), nil},
		"of another name": {budgetOf("db", 0), budgetOf("db", 2), nil},
		"with a new spec": {budgetOf("web", 1), budgetOf("web", 1, stale), []string{"p0", "p1", "p2", "p3"}},
		"with its status": {budgetOf("web", 2, stale), budgetOf("web", 2, func(b *policyv1.PodDisruptionBudget) {
			b.Generation, b.Status.ObservedGeneration = 2, 2
		}), []string{"p2", "p3"}},
	} {
		t.Run(name, func(t *testing.T) {
			inRoom(t, 4, func(r room) {
				t, w, h := r.t, r.w, r.h
				w.budgetChanged(test.before, test.after)
				synctest.Wait()
				if got := h.names(); !slices.Equal(got, test.want) {
					t.Errorf("got %q woken, want %q", got, test.want)
				}
			})
		})
	}
}

func TestBudgetIsDeleted(t *testing.T) {
	inRoom(t, 2, func(r room) {
		t, w, h := r.t, r.w, r.h
		w.budgetGone(budgetOf("web", 0))
		synctest.Wait()
		if got := h.names(); len(got) != 2 {
			t.Errorf("got %q woken, want both", got)
		}
	})
}

func TestThresholdChanges(t *testing.T) {
	inRoom(t, 2, func(r room) {
		t, w, h := r.t, r.w, r.h
		w.classUpdated(class("c", "1"), class("c", "1"))
		synctest.Wait()
		if got := h.names(); len(got) != 0 {
			t.Errorf("got %q woken by a class that is the same", got)
		}
		w.classUpdated(class("c", "1"), class("c", ""))
		synctest.Wait()
		if got := h.names(); len(got) != 2 {
			t.Errorf("got %q woken, want both", got)
		}
	})
}

// TestNoPodIsWokenMoreThanOnceASecond changes a budget all the time.
func TestNoPodIsWokenMoreThanOnceASecond(t *testing.T) {
	inRoom(t, 1, func(r room) {
		t, w, h := r.t, r.w, r.h
		const seconds = 10
		for range seconds * 100 {
			w.budgetChanged(budgetOf("web", 0), budgetOf("web", 1))
			<-time.After(10 * time.Millisecond)
		}
		synctest.Wait()
		if got := len(h.names()); got < seconds-1 || got > seconds+1 {
			t.Errorf("woken %d times in %d seconds", got, seconds)
		}
	})
}

// TestPodLeavesTheRoom forgets pods that found a node or were deleted.
func TestPodLeavesTheRoom(t *testing.T) {
	inRoom(t, 3, func(r room) {
		t, w, h := r.t, r.w, r.h
		bound := runningPod("p2", 2)
		if _, err := h.client.CoreV1().Pods("shop").Update(t.Context(), bound, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := h.client.CoreV1().Pods("shop").Delete(t.Context(), "p1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.budgetChanged(budgetOf("web", 0), budgetOf("web", 3))
		synctest.Wait()
		if got := h.names(); !slices.Equal(got, []string{"p0"}) {
			t.Errorf("got %q woken, want p0", got)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.waiters) != 1 {
			t.Errorf("%d pods wait, want 1", len(w.waiters))
		}
	})
}

// TestFullRoom keeps the most important pods.
func TestFullRoom(t *testing.T) {
	inRoom(t, 0, func(r room) {
		t, w := r.t, r.w
		add := func(i int, priority int32) {
			w.enter(waiter{uid: types.UID(fmt.Sprint(i)), priority: priority}, sets.New(nameOfWeb))
		}
		for i := range maxWaiting {
			add(i, 10)
		}
		add(maxWaiting, 10)
		if len(w.waiters) != maxWaiting || w.waiters[types.UID(fmt.Sprint(maxWaiting))] != nil {
			t.Error("one of equal priority has taken a place")
		}
		add(maxWaiting+1, 11)
		if len(w.waiters) != maxWaiting || w.waiters[types.UID(fmt.Sprint(maxWaiting+1))] == nil {
			t.Error("one of higher priority has no place")
		}
	})
}

// TestWakeAtATime wakes also a pod that waits for no budget.
func TestWakeAtATime(t *testing.T) {
	inRoom(t, 0, func(r room) {
		t, w, h := r.t, r.w, r.h
		pod := runningPod("later", 1, onNode(""))
		if _, err := h.client.CoreV1().Pods("shop").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.wakeAt(pod.UID, []*corev1.Pod{pod}, w.clock.Now().Add(time.Minute))
		<-time.After(59 * time.Second)
		synctest.Wait()
		if got := h.names(); len(got) != 0 {
			t.Errorf("woken too early: %q", got)
		}
		<-time.After(time.Second)
		synctest.Wait()
		if got := h.names(); !slices.Equal(got, []string{"later"}) {
			t.Errorf("got %q woken", got)
		}
	})
}
