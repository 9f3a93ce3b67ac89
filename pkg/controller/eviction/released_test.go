// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var podsResource = corev1.SchemeGroupVersion.WithResource("pods")

// TestPodsThatDoNotServeForTheOwner: one of the four pods of db may be missing.
func TestPodsThatDoNotServeForTheOwner(t *testing.T) {
	db := controlledBy("apps/v1", "StatefulSet", "db")
	released := func(p *corev1.Pod) { p.OwnerReferences, p.Labels = nil, map[string]string{"app": "debug"} }
	for name, tt := range map[string]struct {
		// change changes db-3 before the evictions of the other pods are requested.
		change func(w *world, pod *corev1.Pod)
		want   int
	}{
		"all four serve":                     {change: func(*world, *corev1.Pod) {}, want: 1},
		"one was released by its controller": {change: func(w *world, pod *corev1.Pod) { released(pod); w.updatePod(pod) }},
		"one was adopted by another controller": {
			change: func(w *world, pod *corev1.Pod) {
				pod.OwnerReferences = []metav1.OwnerReference{controlledBy("apps/v1", "StatefulSet", "kv")}
				w.updatePod(pod)
			},
		},
		"one was released and deleted": {
			change: func(w *world, pod *corev1.Pod) {
				released(pod)
				w.updatePod(pod)
				must.Do(w, w.client.Tracker().Delete(podsResource, namespace, pod.Name))
			},
		},
		"one is terminating": {change: func(w *world, pod *corev1.Pod) { stopping(pod); w.updatePod(pod) }},
		"one has failed":     {change: func(w *world, pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed; w.updatePod(pod) }},
		"one was released and has come back": {
			change: func(w *world, pod *corev1.Pod) {
				free := pod.DeepCopy()
				released(free)
				w.updatePod(free)
				synctest.Wait()
				w.updatePod(pod)
			},
			want: 1,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			pods := podsOf(db, 4)
			// The eviction of db-3 is denied, so the queue reads the owner before one of its pods
			// has left.
			w := newWorld(t, worldConfig{
				objects: []runtime.Object{statefulSet("db", 4)}, pods: pods, unprotected: 25, turns: true, answer: func(string) error { return deniedBy("virt", 429, "not now") },
			})
			w.add("db-3")
			w.settled()
			w.queue.Remove(evacuationOf("db-3"))
			tt.change(w, pods[3].DeepCopy())
			w.settled()
			w.host.answer = func(pod string) error { return w.client.Tracker().Delete(podsResource, namespace, pod) }
			before := len(w.host.sent())
			w.add("db-0", "db-1", "db-2")
			w.settled()
			if got := w.host.sent()[before:]; len(got) != tt.want {
				t.Errorf("got evictions %v, want %d", got, tt.want)
			}
		})
	}
}

// TestPodsOfAnotherNamespace: a tenant creates pods whose controller has the UID of a workload of
// another namespace. They do not change how that workload is treated.
func TestPodsOfAnotherNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := podsOf(controlledBy("apps/v1", "StatefulSet", "db"), 4)
		fake := controlledBy("example.com/v1", "Foo", "db")
		for i, pod := range podsOf(fake, 12) {
			pod.Namespace, pod.Name, pod.UID = "evil", fmt.Sprintf("evil-%d", i), types.UID(fmt.Sprintf("uid-evil-%d", i))
			pods = append(pods, pod)
		}
		w := newWorld(t, worldConfig{
			objects: []runtime.Object{statefulSet("db", 4)}, pods: pods, unprotected: 25, turns: true, answer: success,
		})
		evil := types.NamespacedName{Namespace: "evil", Name: "uid-evil-0-evil-0"}
		w.queue.Add(Request{Evacuation: evil, Pod: "evil-0", UID: "uid-evil-0"})
		w.add("db-0", "db-1", "db-2", "db-3")
		w.settled()
		sent := map[bool]int{}
		for _, call := range w.host.sent() {
			sent[call[:2] == "db"]++
		}
		if sent[true] != 1 {
			t.Errorf("got evictions %v, want one of db", w.host.sent())
		}
	})
}

// TestTerminatingPodsAreNotCounted: a workload of unknown size has three pods. While one of them
// terminates, its replacement counts as the third pod and not as the fourth.
func TestTerminatingPodsAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		custom := controlledBy("example.com/v1", "Database", "db")
		pods := podsOf(custom, 3)
		w := newWorld(t, worldConfig{pods: pods, unprotected: 25, turns: true})
		w.host.answer = func(name string) error {
			pod, err := w.client.Tracker().Get(podsResource, namespace, name)
			if err != nil {
				return err
			}
			leaving := pod.(*corev1.Pod).DeepCopy()
			stopping(leaving)
			w.updatePod(leaving)
			return nil
		}
		w.add("db-0", "db-1", "db-2")
		w.settled()
		if got := len(w.host.sent()); got != 1 {
			t.Fatalf("got %d evictions, want 1", got)
		}
		replacement := podsOf(custom, 4)[3]
		must.Do(w, w.client.Tracker().Add(replacement))
		w.pass(time.Second, time.Second)
		is.Equal(t, len(w.host.sent()), 2, "evictions after the replacement is ready")
	})
}

func TestPodThatIsAddedAgainIsNotEvictedTwice(t *testing.T) {
	for name, test := range map[string]struct {
		// answer is the answer to the first eviction.
		answer error
		// early is set if the pod is requested again before the answer, and not after it.
		early bool
		// then changes the pod before it is requested again.
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
		"when the pod is terminating in the cache":                  {then: func(w *world) { w.updatePod(newPod("web-0", stopping)) }, want: 1},
		"when the pod does not change in the cache for a long time": {then: func(w *world) { w.pass(resendAfter, time.Second) }, want: 2},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			release := make(chan error, 1)
			first := true
			w := newWorld(t, worldConfig{live: true, maxConcurrent: 2, answer: func(string) error {
				if first {
					first = false
					return <-release
				}
				return nil
			},
			}, newPod("web-0"))
			w.add("web-0")
			w.until("it was sent", 0, w.sentTo(1))
			w.settled()
			if got := w.queue.cfg.InFlight.List(); len(got) != 1 || got[0].UID != "uid-web-0" {
				t.Errorf("got %v in flight, want the eviction of web-0", got)
			}
			w.queue.Remove(evacuationOf("web-0"))
			if w.state("web-0").Known || len(w.queue.cfg.InFlight.List()) != 1 {
				t.Errorf("got state %v and %v in flight after the removal, want no state and one in flight", w.state("web-0"), w.queue.cfg.InFlight.List())
			}
			if !test.early {
				release <- test.answer
				w.settled()
				// The cached pod is not terminating yet.
				if got := w.queue.cfg.InFlight.Has("uid-web-0"); got != (test.answer == nil) {
					t.Errorf("got in flight %t after the answer", got)
				}
			}
			if test.then != nil {
				test.then(w)
				w.settled()
				is.True(t, !w.queue.cfg.InFlight.Has("uid-web-0"), "the eviction is still in flight")
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
			is.Equal(t, len(w.host.sent()), test.want, "evictions")
			w.queue.Remove(evacuationOf("web-0"))
			w.pass(2*resendAfter, time.Second)
			w.queue.mu.Lock()
			defer w.queue.mu.Unlock()
			if len(w.queue.cfg.InFlight.List()) > 0 || len(w.queue.items) > 0 || len(w.queue.byUID) > 0 || w.queue.resting.first() != nil {
				t.Errorf("got %v queued, want the queue to be empty", w.queue.byUID)
			}
		})
	}
}

func TestNoEvictionAfterTheEvacuationWasWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{maxConcurrent: 1, answer: success}, newPod("web-0"))
		w.unwanted.Store(true)
		w.add("web-0")
		w.pass(10*time.Second, time.Second)
		if got := w.host.sent(); len(got) > 0 {
			t.Errorf("got %v", got)
		}
		// The Evacuation is recreated before the queue processes its deletion.
		w.unwanted.Store(false)
		w.add("web-0")
		w.until("it was sent", 0, w.sentTo(1))
	})
}

// TestRequestWhileTheEvacuationIsFoundWithdrawn: the pod is requested again after Wanted has
// returned false, and before the queue has processed that.
func TestRequestWhileTheEvacuationIsFoundWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: success}, newPod("web-0"))
		wanted := false
		w.queue.cfg.Wanted = func(r Request) bool {
			if !wanted {
				wanted = true
				w.queue.Add(r)
				return false
			}
			return true
		}
		w.add("web-0")
		w.settled()
		is.Equal(t, len(w.host.sent()), 1, "evictions without an event of the pod")
	})
}
