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
	"testing"
	"testing/synctest"
	"time"
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
