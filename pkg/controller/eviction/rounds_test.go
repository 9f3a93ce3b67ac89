// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whatever the answers, the queue retries no pod while another pod that it may evict has waited
// since before the last try.
func TestNoPodIsRetriedBeforeAllOthersWereTried(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprintf("world %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkRounds(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

// roundsWorld has pods without budgets and pods under budgets that allow all. Each step sends only
// a few evictions, so that other pods wait.
func roundsWorld(t *testing.T, r *rand.Rand) (*world, []string) {
	t.Helper()
	answers := []func() error{
		func() error { return nil }, func() error { return deniedBy("virt", 429, "not now") },
		func() error { return overloaded(1 + r.IntN(3)) },
		func() error { return apierrors.NewInternalError(errors.New("no leader")) },
		func() error { return apierrors.NewTimeoutError("conflicts", 0) },
		func() error { return apierrors.NewForbidden(podResource, "web", errors.New("RBAC")) },
		func() error { return apierrors.NewBadRequest("name") }, budgetClosed, budgetStale,
	}
	var mu sync.Mutex
	cfg := worldConfig{maxConcurrent: 1 + r.IntN(4), answer: func(pod string) error {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(pod, "free") {
			// No answer about a budget: the pod has none.
			return answers[r.IntN(len(answers)-2)]()
		}
		return answers[r.IntN(len(answers))]()
	}}
	var names []string
	for i := range 5 + r.IntN(25) {
		app := []string{"free", "a", "b"}[r.IntN(3)]
		name := fmt.Sprintf("%s-%d", app, i)
		pod := newPod(name, younger(
			time.Duration(r.IntN(10))*time.Minute,
		), costs(fmt.Sprint(r.IntN(3))), func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": app}
		})
		names, cfg.pods = append(names, name), append(cfg.pods, pod)
	}
	for _, app := range []string{"a", "b"} {
		cfg.budgets = append(cfg.budgets, newBudget(app, 1000, func(b *policyv1.PodDisruptionBudget) {
			b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		}))
	}
	return newWorld(t, cfg), names
}

func checkRounds(t *testing.T, r *rand.Rand) {
	t.Helper()
	w, names := roundsWorld(t, r)
	waitsSince, triedAt := map[*item]int{}, map[*item]int{}
	retries := 0
	for step := 1; step < 300; step++ {
		if len(names) > 0 && r.IntN(2) == 0 {
			w.add(names[0])
			names = names[1:]
		}
		if r.IntN(20) == 0 {
			// A closed lane opens again.
			for _, app := range []string{"a", "b"} {
				w.updateBudget(newBudget(app, 1000, func(b *policyv1.PodDisruptionBudget) {
					b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
				}))
			}
			synctest.Wait()
		}
		before := map[*item]uint64{}
		var calls sync.WaitGroup
		w.queue.mu.Lock()
		for _, it := range w.queue.items {
			before[it] = it.tried
		}
		w.queue.mu.Unlock()
		w.queue.step(w.Context(), &calls)
		calls.Wait()
		w.queue.mu.Lock()
		for it, tried := range before {
			if it.tried == tried {
				continue
			}
			last, again := triedAt[it], tried != 0
			for other, since := range waitsSince {
				// Each lane has its own limit: pods under different budgets do not compete.
				if again && other.lane == it.lane && other.tried == before[other] && since <= last {
					t.Fatalf("step %d: %s was tried at step %d and again, while %s has waited since step %d", step,
						it.Pod, last, other.Pod, since)
				}
			}
			if again {
				retries++
			}
			triedAt[it] = step
		}
		for _, it := range w.queue.items {
			_, waited := waitsSince[it]
			if it.phase != phaseWaiting || !it.lane.open || it.tried != before[it] {
				delete(waitsSince, it)
			}
			if it.phase == phaseWaiting && it.lane.open && (!waited || it.tried != before[it]) {
				waitsSince[it] = step
			}
		}
		w.queue.mu.Unlock()
		w.clock.Step(time.Duration(r.IntN(1500)) * time.Millisecond)
	}
	if retries == 0 {
		t.Error("no pod was retried: the test has checked nothing")
	}
}

// A retry also waits for the first tries of other lanes, where all lanes share one limit.
func TestRetriesWaitForFirstTriesOfOtherLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names, pods := podNames(5)
		w := newWorld(t, worldConfig{
			maxConcurrent: 1, pods: append(pods, newPod("free", func(p *corev1.Pod) { p.Labels = nil })),
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 10)},
			answer:  func(string) error { return overloaded(0) },
		})
		w.add("free")
		w.settled()
		w.add(names...)
		for range 5 {
			// The back-off of the pod without a budget has ended each time.
			w.clock.Step(maxRetryAfter)
			var calls sync.WaitGroup
			w.queue.step(w.Context(), &calls)
			calls.Wait()
		}
		seen := map[string]bool{}
		for _, call := range w.host.sent() {
			if seen[call] {
				t.Errorf("got %v, want each tried once before any is retried", w.host.sent())
				break
			}
			seen[call] = true
		}
	})
}
