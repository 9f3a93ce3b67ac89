// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestPodThatIsAddedAgainIsNotEvictedTwice(t *testing.T) {
	for name, test := range map[string]struct {
		// answer is the answer to the first eviction.
		answer error
		// early: the pod is added again before the answer; otherwise after it.
		early bool
		// then changes the pod before it is added again.
		then func(w *world)
		want int
	}{
		"before the API server accepts the eviction": {early: true, want: 1},
		"before the API server refuses the eviction": {
			early: true, answer: apierrors.NewForbidden(corev1.Resource("pods"), "web-0", errors.New("no")), want: 2,
		},
		"after the API server accepted the eviction": {want: 1},
		"after the API server refused the eviction": {
			answer: apierrors.NewForbidden(corev1.Resource("pods"), "web-0", errors.New("no")), want: 2,
		},
		"when the cache shows that the pod is terminating": {
			then: func(w *world) { w.updatePod(newPod("web-0", stopping)) }, want: 1,
		},
		"when the cache shows no change of the pod for a long time": {then: func(w *world) { w.pass(resendAfter, time.Second) }, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan error, 1)
				first := true
				w := newWorld(t, worldConfig{live: true, maxConcurrent: 2, pods: []*corev1.Pod{newPod("web-0")}, answer: func(string) error {
					if first {
						first = false
						return <-release
					}
					return nil
				}})
				w.add("web-0")
				w.until("it was sent", 0, w.sentTo(1))
				w.settled()
				if got := w.queue.underway.List(); len(got) != 1 || got[0].UID != "uid-web-0" {
					t.Errorf("got %v in flight, want the eviction of web-0", got)
				}
				w.queue.Remove(evacuationOf("web-0"))
				if w.state("web-0").Known || len(w.queue.underway.List()) != 1 {
					t.Errorf("got state %v and %v in flight after the removal, want no state and one in flight", w.state("web-0"), w.queue.underway.List())
				}
				if !test.early {
					release <- test.answer
					w.settled()
					// The cache does not show yet that the pod is terminating.
					if got := w.queue.underway.Has("uid-web-0"); got != (test.answer == nil) {
						t.Errorf("got in flight %t after the answer", got)
					}
				}
				if test.then != nil {
					test.then(w)
					w.settled()
					if w.queue.underway.Has("uid-web-0") {
						t.Error("the eviction is still in flight")
					}
				}
				w.add("web-0")
				w.settled()
				if test.early {
					if n := len(w.host.sent()); n != 1 {
						t.Errorf("got %d evictions while the first was in flight", n)
					}
					release <- test.answer
				}
				w.pass(30*time.Second, time.Second)
				if n := len(w.host.sent()); n != test.want {
					t.Errorf("got %d evictions, want %d", n, test.want)
				}
				w.queue.Remove(evacuationOf("web-0"))
				w.pass(2*resendAfter, time.Second)
				w.queue.mu.Lock()
				defer w.queue.mu.Unlock()
				if len(w.queue.underway.List()) > 0 || len(w.queue.sent) > 0 || len(w.queue.items) > 0 || len(w.queue.byUID) > 0 || w.queue.resting.first() != nil {
					t.Errorf("got %v sent and %v queued, want the queue to be empty", w.queue.sent, w.queue.items)
				}
			})
		})
	}
}

func TestNoEvictionAfterTheEvacuationWasWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{maxConcurrent: 1, pods: []*corev1.Pod{newPod("web-0")}, answer: success})
		w.unwanted.Store(true)
		w.add("web-0")
		w.pass(10*time.Second, time.Second)
		if got := w.host.sent(); len(got) > 0 {
			t.Errorf("got %v", got)
		}
		// The Evacuation was recreated before the queue learned that the first was deleted.
		w.unwanted.Store(false)
		w.add("web-0")
		w.until("it was sent", 0, w.sentTo(1))
	})
}
