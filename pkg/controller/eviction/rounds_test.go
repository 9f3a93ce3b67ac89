// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// Whatever the answers are, the queue retries no pod while another pod that it may evict has waited
// since before the last try.
func TestNoPodIsRetriedBeforeAllOthersWereTried(t *testing.T) {
	for seed := range uint64(40) {
		bubble.Run(t, fmt.Sprintf("world %d", seed), func(t *testing.T) { checkRounds(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// roundsWorld has pods without budgets and pods whose budgets allow the eviction of all of them.
// Each step sends only a few evictions, so that the other pods wait.
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
			// Use no answer about a budget, since the pod has none.
			return answers[r.IntN(len(answers)-2)]()
		}
		return answers[r.IntN(len(answers))]()
	}}
	var names []string
	for i := range 5 + r.IntN(25) {
		app := []string{"free", "a", "b"}[r.IntN(3)]
		name := fmt.Sprintf("%s-%d", app, i)
		pod := newPod(name, younger(time.Duration(r.IntN(10))*time.Minute), costs(fmt.Sprint(r.IntN(3))), ofApp(app))
		names, cfg.pods = append(names, name), append(cfg.pods, pod)
	}
	for _, app := range []string{"a", "b"} {
		cfg.budgets = append(cfg.budgets, newBudget(app, 1000, forApp(app)))
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
			// The budgets allow a disruption again, so closed lanes open.
			for _, app := range []string{"a", "b"} {
				w.updateBudget(newBudget(app, 1000, forApp(app)))
			}
			synctest.Wait()
		}
		before := map[*item]uint64{}
		for _, it := range w.queue.items[namespace] {
			before[it] = it.tried
		}
		w.step()
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
		for _, it := range w.queue.items[namespace] {
			_, waited := waitsSince[it]
			l, budgeted := it.lane.(*budgetLane)
			if waits := it.phase == phaseWaiting && (!budgeted || l.open); !waits {
				delete(waitsSince, it)
			} else if !waited || it.tried != before[it] {
				waitsSince[it] = step
			}
		}
		w.queue.mu.Unlock()
		w.clock.Step(time.Duration(r.IntN(1500)) * time.Millisecond)
	}
	is.True(t, retries != 0, "no pod was retried: the test has checked nothing")
}

// A retry also waits for the first tries of other lanes, since all lanes share one limit.
func TestRetriesWaitForFirstTriesOfOtherLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names, pods := podNames(5)
		w := newWorld(t,
			worldConfig{maxConcurrent: 1, pods: append(pods, newPod("free", ofApp("free"))), answer: func(string) error { return overloaded(0) }},
			newBudget("web", 10))
		w.add("free")
		w.settled()
		w.add(names...)
		for range 5 {
			// The back-off of the pod without a budget ends before each step.
			w.clock.Step(maxRetryAfter)
			w.step()
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

func generation(n int64) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Generation, b.Status.ObservedGeneration = n, n }
}

// manyBudgets returns a world with n applications with one budget each, and 1,000 waiting pods: ten
// pods of each of a hundred applications.
func manyBudgets(t *testing.T, n int) *world {
	t.Helper()
	cfg := worldConfig{maxConcurrent: 1, answer: budgetRefuses}
	for i := range n {
		app := fmt.Sprintf("app-%d", i)
		cfg.budgets = append(cfg.budgets, newBudget(app, 0, forApp(app)))
	}
	var names []string
	for i := range 1000 {
		name, app := fmt.Sprintf("pod-%d", i), fmt.Sprintf("app-%d", i/10)
		names = append(names, name)
		cfg.pods = append(cfg.pods, newPod(name, ofApp(app)))
	}
	w := newWorld(t, cfg)
	w.add(names...)
	w.settled()
	return w
}

func (w *world) matches() int {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	return w.queue.budgets.Matched()
}

func TestChangeOfABudgetMatchesOnlyThePodsItConcerns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := manyBudgets(t, 2000)
		if n := w.matches(); n > 1000 {
			t.Errorf("got %d matches of 1,000 pods with 2,000 budgets, want one for each pod", n)
		}
		for _, step := range []struct {
			name   string
			change func(*policyv1.PodDisruptionBudget)
			most   int
		}{
			{"a budget that asks for another number of the same pods", generation(2), 0},
			{"a budget that selects other pods", func(b *policyv1.PodDisruptionBudget) { generation(3)(b); forApp("app-50")(b) }, 10},
			{"a budget that selects its pods again", generation(4), 10},
			{"a budget that selects no waiting pod", func(b *policyv1.PodDisruptionBudget) { generation(5)(b); forApp("none")(b) }, 0},
		} {
			before := w.matches()
			w.updateBudget(newBudget("app-7", 0, forApp("app-7"), step.change))
			w.settled()
			w.pass(churnInterval, churnInterval)
			if got := w.matches() - before; got > step.most {
				t.Errorf("%s: got %d matches, want at most %d", step.name, got, step.most)
			}
		}
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		if key := w.item("pod-70").lane.common().key; key != (laneKey{}) {
			t.Errorf("got the lane of %v, want that of pods without budget for a pod that its budget no longer selects", key)
		}
	})
}

func TestBudgetThatChangesAllTheTimeIsMatchedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := manyBudgets(t, 100)
		before := w.matches()
		for n := range int64(100) {
			value := []string{"app-7", "app-8"}[n%2]
			w.updateBudget(newBudget("app-7", 0, forApp(value), generation(n+2)))
			w.settled()
			w.pass(100*time.Millisecond, 100*time.Millisecond)
		}
		w.pass(churnInterval, churnInterval)
		if got := w.matches() - before; got > 12*10 {
			t.Errorf("got %d matches for 100 changes in ten seconds, want at most the ten pods of a selector each second", got)
		}
		if got, want := w.budgetsOf("pod-80"), []string{"app-7", "app-8"}; !slices.Equal(got, want) {
			t.Errorf("got %v for a pod that the last version selects, want %v", got, want)
		}
	})
}

// TestANewBudgetCountsImmediately adds two budgets one after the other, faster than changes are
// evaluated.
func TestANewBudgetCountsImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := manyBudgets(t, 10)
		for _, name := range []string{"first", "second"} {
			must.Do(t, w.client.Tracker().Add(newBudget(name, 0, forApp("app-7"))))
			w.settled()
		}
		if got, want := w.budgetsOf("pod-70"), []string{"app-7", "first", "second"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func (w *world) budgetsOf(pod string) []string {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	return slices.Clone(w.item(pod).budgets)
}
