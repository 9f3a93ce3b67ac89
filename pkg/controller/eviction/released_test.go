// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

var podsResource = corev1.SchemeGroupVersion.WithResource("pods")

// TestPodsThatDoNotServeForTheOwner: of four pods of db one may be missing.
func TestPodsThatDoNotServeForTheOwner(t *testing.T) {
	db := controlledBy("apps/v1", "StatefulSet", "db")
	released := func(p *corev1.Pod) { p.OwnerReferences, p.Labels = nil, map[string]string{"app": "debug"} }
	for name, tt := range map[string]struct {
		// change changes db-3 before the others are asked to leave.
		change func(w *world, pod *corev1.Pod)
		want   int
	}{
		"all four serve": {change: func(*world, *corev1.Pod) {}, want: 1},
		"one was released by its controller": {
			change: func(w *world, pod *corev1.Pod) { released(pod); w.updatePod(pod) },
		},
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
				w.must(w.client.Tracker().Delete(podsResource, namespace, pod.Name))
			},
		},
		"one is terminating": {change: func(w *world, pod *corev1.Pod) { stopping(pod); w.updatePod(pod) }},
		"one has failed": {
			change: func(w *world, pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed; w.updatePod(pod) },
		},
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pods := podsOf(db, 4)
				// db-3 is denied, so that the owner is known before one of its pods has left.
				w := newWorld(t, worldConfig{
					objects: []runtime.Object{statefulSet("db", 4)}, pods: pods, unprotected: 25, maxConcurrent: 50, turns: true,
					answer: func(string) error { return deniedBy("virt", 429, "not now") },
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
		})
	}
}

// TestPodsOfAnotherNamespace: a tenant creates pods that name the UID of a workload of another
// namespace as their controller's. They change nothing for that workload.
func TestPodsOfAnotherNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := podsOf(controlledBy("apps/v1", "StatefulSet", "db"), 4)
		fake := controlledBy("example.com/v1", "Foo", "db")
		for i, pod := range podsOf(fake, 12) {
			pod.Namespace, pod.Name, pod.UID = "evil", fmt.Sprintf("evil-%d", i), types.UID(fmt.Sprintf("uid-evil-%d", i))
			pods = append(pods, pod)
		}
		w := newWorld(t, worldConfig{
			objects: []runtime.Object{statefulSet("db", 4)}, pods: pods, unprotected: 25, maxConcurrent: 50, turns: true, answer: success,
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
// terminates, its replacement is the third and not a fourth one.
func TestTerminatingPodsAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		custom := controlledBy("example.com/v1", "Database", "db")
		pods := podsOf(custom, 3)
		w := newWorld(t, worldConfig{pods: pods, unprotected: 25, maxConcurrent: 50, turns: true})
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
		w.must(w.client.Tracker().Add(replacement))
		w.pass(time.Second, time.Second)
		if got := len(w.host.sent()); got != 2 {
			t.Errorf("got %d evictions after the replacement is ready, want 2", got)
		}
	})
}
