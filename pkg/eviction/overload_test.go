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

package eviction

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

func TestOverloadSlowsEverythingDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names, pods := podNames(20)
		w := newWorld(t, worldConfig{maxConcurrent: 8, pods: pods, answer: func(string) error { return overloaded(3) }})
		w.add(names...)
		w.until("the first calls were refused", 0, func() bool { return len(w.host.sent()) >= 1 && w.host.inFlight() == 0 })
		w.settled()
		first := len(w.host.sent())
		if first > 8 {
			t.Errorf("got %d evictions, want at most 8 before the first answer", first)
		}
		w.host.answer = success
		w.pass(2900*time.Millisecond, 100*time.Millisecond)
		if n := len(w.host.sent()); n != first {
			t.Errorf("got %d evictions during the pause, want none", n-first)
		}
		w.until("all were sent after the pause", 100*time.Millisecond, w.sentTo(first+20))
		if failed := w.state("web-0").FailedEvictions; failed != 0 {
			t.Errorf("got %d failed evictions, want overload not to count", failed)
		}
	})
}

func TestSlowAnswersAreOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		names, pods := podNames(60)
		w := newWorld(t, worldConfig{live: true, maxConcurrent: 8, pods: pods, answer: func(string) error { <-hold; return nil }})
		limit := func(n int) func() bool {
			return func() bool {
				w.queue.mu.Lock()
				defer w.queue.mu.Unlock()
				return w.queue.window.limit == n
			}
		}
		w.add(names...)
		w.until("the first are in flight", 0, func() bool { return w.host.inFlight() == 8 })
		w.clock.Step(slowAnswer)
		for range 8 {
			hold <- struct{}{}
		}
		w.until("half as many as before are in flight", 0, func() bool { return limit(4)() && w.host.inFlight() == 4 })
		close(hold)
		w.until("quick answers have undone that", 0, limit(8))
	})
}

func TestWindow(t *testing.T) {
	w := window{limit: 4, ceiling: 5, patience: 2}
	for range 8 {
		w.good()
	}
	if w.limit != 5 {
		t.Errorf("got %d after eight good answers, want 5", w.limit)
	}
	sent := start
	w.bad(sent, start.Add(time.Second))
	w.bad(sent, start.Add(2*time.Second))
	if w.limit != 2 {
		t.Errorf("got %d after two bad answers to calls sent together, want 2", w.limit)
	}
	w.bad(start.Add(3*time.Second), start.Add(4*time.Second))
	w.bad(start.Add(5*time.Second), start.Add(6*time.Second))
	if w.limit != 1 {
		t.Errorf("got %d, want never less than 1", w.limit)
	}
}

func TestWindowDoublesUntilTheFirstBadAnswer(t *testing.T) {
	w := window{limit: 4, ceiling: 20, doubling: 20, patience: 1}
	good := func(answers, want int) {
		t.Helper()
		for range answers {
			w.good()
		}
		if w.limit != want {
			t.Errorf("got %d after %d good answers more, want %d", w.limit, answers, want)
		}
	}
	good(4, 8)
	good(8, 16)
	good(100, 20)
	w.bad(start, start.Add(time.Second))
	good(10, 11)
	good(11, 12)
	w.restart(8, start.Add(2*time.Second))
	if w.limit != 8 {
		t.Errorf("got %d after a restart, want 8", w.limit)
	}
	good(8, 10)
	w.bad(start.Add(3*time.Second), start.Add(4*time.Second))
	w.restart(8, start.Add(4*time.Second+forgetTroubleAfter))
	if w.limit != 5 {
		t.Errorf("got %d, want a restart not to undo what bad answers did", w.limit)
	}
	good(5, 10)
}

func TestQuickAnswersSendMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 2*firstCalls + 20
		hold := make(chan struct{})
		names, pods := podNames(8 * firstCalls)
		w := newWorld(t, worldConfig{live: true, maxConcurrent: most, pods: pods, answer: func(string) error { <-hold; return nil }})
		flying := func(n int) func() bool { return func() bool { return w.host.inFlight() == n } }
		w.add(names[:len(names)-firstCalls-1]...)
		w.until("as many as at first are in flight", 0, flying(firstCalls))
		for range firstCalls {
			hold <- struct{}{}
		}
		w.until("twice as many are", 0, flying(2*firstCalls))
		for range 2 * firstCalls {
			hold <- struct{}{}
		}
		w.until("as many as may be are", 0, flying(most))
		close(hold)
		w.until("all were answered", 0, func() bool { return len(w.host.sent()) == len(names)-firstCalls-1 && w.host.inFlight() == 0 })
		w.settled()

		hold = make(chan struct{})
		defer close(hold)
		w.add(names[len(names)-firstCalls-1:]...)
		w.until("the next begin like the first", 0, flying(firstCalls))
		w.settled()
		if w.host.inFlight() != firstCalls {
			t.Errorf("got %d in flight, want %d", w.host.inFlight(), firstCalls)
		}
	})
}

func TestTrickleProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		defer close(hold)
		names, pods := podNames(2*firstCalls + 1)
		w := newWorld(t, worldConfig{live: true, maxConcurrent: 4 * firstCalls, pods: pods, answer: func(name string) error {
			if name == "web-0" {
				<-hold
			}
			return nil
		}})
		for n, name := range names {
			w.add(name)
			w.until("it was sent", 0, w.sentTo(n+1))
			w.until("it was answered, unless it is the first", 0, func() bool { return w.host.inFlight() == 1 })
		}
		w.settled()
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		if w.queue.window.limit != firstCalls {
			t.Errorf("got %d calls that may be in flight, want %d as long as there never were that many", w.queue.window.limit, firstCalls)
		}
	})
}

func TestPodsWithBudgetsTakeNoMoreSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		var budgets []*policyv1.PodDisruptionBudget
		var names []string
		for i := range budgetedCalls + 10 {
			name := fmt.Sprintf("app-%d", i)
			labels := map[string]string{"app": name}
			names, pods = append(names, name), append(pods, newPod(name, func(p *corev1.Pod) { p.Labels = labels }))
			budgets = append(budgets, newBudget(name, 1, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector.MatchLabels = labels }))
		}
		for i := range 5 {
			name := fmt.Sprintf("free-%d", i)
			names, pods = append(names, name), append(pods, newPod(name, func(p *corev1.Pod) { p.Labels = nil }))
		}
		hold := make(chan struct{})
		w := newWorld(t, worldConfig{live: true, maxConcurrent: 200, pods: pods, budgets: budgets, answer: func(name string) error {
			if strings.HasPrefix(name, "app-") {
				<-hold
			}
			return nil
		}})
		w.add(names...)
		w.until("those without budgets were sent", 0, w.sentTo(budgetedCalls+5))
		w.settled()
		if n := w.host.inFlight(); n != budgetedCalls {
			t.Errorf("got %d in flight, want %d", n, budgetedCalls)
		}
		close(hold)
		w.until("all were sent", 0, w.sentTo(len(names)))
	})
}
