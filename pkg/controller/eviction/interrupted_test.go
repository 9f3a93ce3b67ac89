// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
)

func granting(pod string, at time.Time) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Status.DisruptedPods = map[string]metav1.Time{pod: metav1.NewTime(at)}
	}
}

func TestInterruptedEvictionIsFinished(t *testing.T) {
	cases := map[string]struct {
		budget *policyv1.PodDisruptionBudget
		pods   []*corev1.Pod
		later  func(w *world)
		want   []string
	}{
		"once, and of no other pod, when the pod of a granted eviction stays": {
			budget: newBudget("web", 0, granting("web-0", start)),
			pods:   []*corev1.Pod{newPod("web-0"), newPod("web-1")}, want: []string{"finish web-0/uid-web-0"},
		},
		"not if the grant is about to expire": {
			budget: newBudget("web", 0, granting("web-0", start.Add(-interruptedUntil))),
			pods:   []*corev1.Pod{newPod("web-0")},
		},
		"not if the clock of the API server is five minutes ahead, so that the age is not known": {
			budget: newBudget("web", 0, granting("web-0", start.Add(5*time.Minute))),
			pods:   []*corev1.Pod{newPod("web-0")},
		},
		"not if the clock of the API server is five minutes behind": {
			budget: newBudget("web", 0, granting("web-0", start.Add(-5*time.Minute))),
			pods:   []*corev1.Pod{newPod("web-0", younger(-time.Hour))},
		},
		"not if the grant was for an earlier pod of that name": {
			budget: newBudget("web", 0, granting("web-0", start.Add(-2*time.Second))),
			pods:   []*corev1.Pod{newPod("web-0", younger(time.Hour))},
		},
		"not if the API server withdraws the grant meanwhile": {
			budget: newBudget("web", 0, granting("web-0", start)), pods: []*corev1.Pod{newPod("web-0")},
			later: func(w *world) {
				w.updateBudget(newBudget("web", 0))
				w.until("the cache shows it", 0, func() bool { return len(w.laneOf("web").budget.Status.DisruptedPods) == 0 })
			},
		},
		"not if the pod terminates meanwhile": {
			budget: newBudget("web", 0, granting("web-0", start)), pods: []*corev1.Pod{newPod("web-0")},
			later: func(w *world) {
				w.updatePod(newPod("web-0", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} }))
				w.until("the cache shows it", 0, func() bool {
					pod, err := w.queue.pods.Pods(namespace).Get("web-0")
					return err == nil && pod.DeletionTimestamp != nil
				})
			},
		},
	}
	for name, c := range cases {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t,
				worldConfig{pods: c.pods, answer: func(string) error { t.Error("the queue sent an eviction under a closed budget"); return nil }},
				c.budget)
			for _, pod := range c.pods {
				w.add(pod.Name)
			}
			w.pass(interruptedAfter-time.Second, 500*time.Millisecond)
			if sent := w.host.sent(); len(sent) != 0 {
				t.Fatalf("got %v immediately, want the queue to wait for an eviction that may be in flight", sent)
			}
			if c.later != nil {
				c.later(w)
			}
			w.pass(4*time.Second, 500*time.Millisecond)
			is.Slices(t, w.host.sent(), c.want)
		})
	}
}

func TestFinishingEndsBeforeTheDisruptionControllerForgetsTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t,
			worldConfig{answer: func(string) error { t.Error("the queue sent an eviction under a closed budget"); return nil }},
			newPod("web-0"), newBudget("web", 0, granting("web-0", start)))
		// The disruption controller removes a grant after two minutes. Allow for a difference of
		// ten seconds between two clocks.
		const forgotten = 2*time.Minute - 10*time.Second
		var hung time.Duration
		w.host.finish = func(ctx context.Context) error {
			begun := time.Now()
			<-ctx.Done()
			hung = time.Since(begun)
			return ctx.Err()
		}
		w.add("web-0")
		w.pass(interruptedAfter+time.Second, 500*time.Millisecond)
		if hung == 0 || interruptedUntil+hung > forgotten {
			t.Errorf("a call that hangs ended after %s, want at most %s", hung, forgotten-interruptedUntil)
		}
	})
}

func TestCallOutlivesItsQueueForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		call, done := untilFinished(ctx)
		defer done()
		stop()
		stopped := time.Now()
		select {
		case <-call.Done():
		case <-time.After(callTimeout):
			t.Fatal("the call outlives its queue without an end")
		}
		if took := time.Since(stopped); took != finishGrace {
			t.Errorf("the call ended %s after its queue, want %s", took, finishGrace)
		}
	})
}

func TestCallEndsWithItsAnswer(t *testing.T) {
	call, done := untilFinished(t.Context())
	done()
	if !errors.Is(call.Err(), context.Canceled) {
		t.Errorf("got error %v, want %v", call.Err(), context.Canceled)
	}
}
