// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestRewrittenBudgetsCauseFewWrites: three times a second, a tenant rewrites two budgets that
// never allow an eviction. Their numbers are in the message of every pod that waits for one.
func TestRewrittenBudgetsCauseFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, seconds = 100, 60
		names, pods := podNames(count)
		for _, pod := range pods[count/2:] {
			ofApp("db")(pod)
		}
		needs := func(app string, n int32) *policyv1.PodDisruptionBudget {
			budget := needs(n, count/2)
			budget.Name, budget.UID = app, types.UID("uid-"+app)
			forApp(app)(budget)
			return budget
		}
		w := newWorld(t, worldConfig{
			answer: budgetRefuses, pods: pods, budgets: []*policyv1.PodDisruptionBudget{needs("web", count/2), needs("db", count/2)},
		})
		w.add(names...)
		w.pass(blockedAfter+time.Second, time.Second)
		for i := range int32(seconds * 10 / 3) {
			w.rewrite(needs("web", count/2+i%2), time.Second/20)
			w.rewrite(needs("db", count/2+i%2), time.Second/20)
			w.pass(time.Second/5, time.Second/5)
		}
		w.checkWrites(count, seconds*time.Second)
		w.rewrite(needs("web", count), time.Second/10)
		w.until("each pod has the last number", time.Second, func() bool {
			return !slices.ContainsFunc(names[:count/2], func(name string) bool { return !w.says(name, "minAvailable 100 of 50 pods") })
		})
	})
}

// TestBudgetsThatChangeAllTheTimeCauseFewWrites: for some minutes, a tenant changes which pods a
// budget selects, or what it allows, in ways that change the reason for which each pod waits.
func TestBudgetsThatChangeAllTheTimeCauseFewWrites(t *testing.T) {
	const count, total = 200, 10 * time.Minute
	never := func() *policyv1.PodDisruptionBudget { return needs(count, count) }
	for name, tc := range map[string]struct {
		every  time.Duration
		change func(w *world, n int)
	}{
		"a second budget with a new name comes and goes": {
			every: 5 * time.Second,
			change: func(w *world, n int) {
				w.create(newBudget(fmt.Sprintf("extra-%d", n), 0))
				w.pass(2*time.Second, time.Second)
				w.remove(fmt.Sprintf("extra-%d", n))
			},
		},
		"the only budget comes and goes": {
			every: 30 * time.Second,
			change: func(w *world, _ int) {
				w.remove("web")
				w.pass(2*time.Second, time.Second)
				w.create(never())
			},
		},
		"another budget selects the pods": {
			every: blockedAfter + time.Second,
			change: func(w *world, n int) {
				for i, name := range []string{"web", "other"} {
					budget := never()
					budget.Name, budget.UID, budget.Generation, budget.Status.ObservedGeneration = name, types.UID("uid-"+name), int64(n+2), int64(n+2)
					if n%2 == i {
						forApp("none")(budget)
					}
					if n == 0 && i == 1 {
						w.create(budget)
					} else {
						w.updateBudget(budget)
					}
				}
			},
		},
		"it opens for a second": {
			every: blockedAfter + time.Second,
			change: func(w *world, _ int) {
				open := newBudget("web", 1)
				open.Spec.MinAvailable = ptr.To(intstr.FromInt32(9))
				w.updateBudget(open)
				w.pass(time.Second, time.Second)
				w.updateBudget(never())
			},
		},
		"it opens for as long as it is closed": {
			every: 2 * (blockedAfter + time.Second),
			change: func(w *world, _ int) {
				w.updateBudget(newBudget("web", 1))
				w.pass(blockedAfter+time.Second, time.Second)
				w.updateBudget(never())
			},
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			names, pods := podNames(count)
			w := newWorld(t, worldConfig{answer: budgetRefuses, pods: pods}, never())
			// The queue is paused, so that the pods stay in their lanes.
			w.queue.pausedUntil = start.Add(time.Hour)
			w.add(names...)
			w.pass(blockedAfter+time.Second, time.Second)
			for n := range int(total / tc.every) {
				began := w.clock.Now()
				tc.change(w, n)
				w.pass(tc.every-w.clock.Since(began), time.Second)
			}
			w.checkWrites(count, total)
			w.until("each pod has the right message", time.Second, func() bool {
				return !slices.ContainsFunc(names, func(name string) bool { return !w.says(name, "PodDisruptionBudget web never allows") })
			})
			if late, most := w.clock.Since(start)-total, count*changeEvery+3*blockedAfter; late > most {
				t.Errorf("got the right messages %s later, want at most %s", late, most)
			}
		})
	}
}

// TestPodLeavesWhenTheOtherBudgetIsDeleted: a change of the pod's message waits, its eviction does
// not.
func TestPodLeavesWhenTheOtherBudgetIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := blockedWorld(t, 1500, newBudget("web", 0))
		is.Equal(t, w.reason("web-0"), "PodDisruptionBudget", "the reason with one budget")
		w.host.answer = success
		for _, budget := range []string{"first", "second", "third"} {
			w.create(newBudget(budget, 0))
		}
		w.pass(blockedAfter, time.Second)
		is.True(t, w.says("web-0", "third"), "got %+v, want all budgets", w.state("web-0").Blocker)
		for _, budget := range []string{"first", "second", "third"} {
			w.remove(budget)
		}
		w.updateBudget(newBudget("web", 1))
		w.pass(blockedAfter+time.Second, time.Second)
		is.True(t, w.says("web-0", "third"), "got %+v, want no change", w.state("web-0").Blocker)
		w.queue.pausedUntil = w.clock.Now()
		w.pass(churnInterval, churnInterval)
		is.Equal(t, len(w.host.sent()), 1, "evictions")
	})
}

// TestStatesThatDoNotWait: a pod that is blocked again is reported immediately, and so is the end
// of a blocked pod, whatever has blocked it.
func TestStatesThatDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := blockedWorld(t, 1500, newBudget("web", 0))
		w.updateBudget(newBudget("web", 1))
		w.until("it is not", time.Second, func() bool { return w.reason("web-0") == "" })
		w.useUpChanges("web-0")
		w.updateBudget(newBudget("web", 0))
		w.pass(blockedAfter+time.Second, time.Second)
		is.Equal(t, w.reason("web-0"), "PodDisruptionBudget", "the reason after the budget has closed again")
		must.Do(t, w.client.Tracker().Delete(podsResource, namespace, "web-0"))
		w.settled()
		is.Equal(t, w.reason("web-0"), "", "the reason after the pod is gone")
	})
}

func TestEndOfABlockedPod(t *testing.T) {
	for reason, tc := range map[string]struct {
		answer  func(string) error
		budgets []*policyv1.PodDisruptionBudget
	}{
		"MultiplePodDisruptionBudgets": {success, []*policyv1.PodDisruptionBudget{newBudget("web", 1), newBudget("second", 1)}},
		"EvictionForbidden":            {func(string) error { return apierrors.NewForbidden(podResource, "web-0", errors.New("RBAC")) }, []*policyv1.PodDisruptionBudget{newBudget("web", 1)}},
	} {
		bubble.Run(t, reason, func(t *testing.T) {
			names, pods := podNames(1)
			w := newWorld(t, worldConfig{answer: tc.answer, pods: pods, budgets: tc.budgets})
			w.add(names...)
			w.until("it is blocked", time.Second, func() bool { return w.reason("web-0") == reason })
			w.useUpChanges("web-0")
			must.Do(t, w.client.Tracker().Delete(podsResource, namespace, "web-0"))
			w.settled()
			is.Equal(t, w.reason("web-0"), "", "the reason after the pod is gone")
		})
	}
}

// TestBudgetsThatSwapTheirPods: two budgets change one after the other, so that a pod changes from
// one to the other. It never counts as selected by both.
func TestBudgetsThatSwapTheirPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := blockedWorld(t, 1, newBudget("first", 0), newBudget("second", 0, forApp("none")))
		w.useUpChanges("web-0")
		for n := range int64(2) {
			apps, names := []string{"web", "none"}, []string{"first", "second"}
			for i := range names {
				next := (int64(i) + n + 1) % 2 // the one that selects the pod from now on
				w.updateBudget(newBudget(names[next], 0, forApp(apps[i]), generation(n+2)))
				w.settled()
			}
			w.pass(blockedAfter/2, time.Second)
			is.Equal(t, len(w.item("web-0").budgets), 1, "budgets that select the pod")
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		is.Equal(t, w.changes[evacuationOf("web-0").Name], 1, "changes reported")
	})
}

// TestWaitsWhileTheQueueGrowsAndShrinks: a wait does not become shorter when the queue grows, and
// longer ones end when it shrinks.
func TestWaitsWhileTheQueueGrowsAndShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const few = 100
		names, pods := podNames(1500)
		w := newWorld(t, worldConfig{answer: success, pods: pods}, needs(10, 10))
		w.queue.pausedUntil = start.Add(time.Hour)
		w.add(names[:few]...)
		w.until("it is blocked", time.Second, func() bool { return w.says("web-0", "never allows") })
		w.useUpChanges("web-0")
		w.rewrite(needs(11, 10), time.Second/10)
		w.pass(few*changeEvery/2, time.Second)
		w.add(names[few:]...)
		w.pass(few*changeEvery/2-2*time.Second, time.Second)
		is.True(t, w.says("web-0", "minAvailable 10"), "got %+v, want the old number", w.state("web-0").Blocker)
		w.until("the number has changed", time.Second, func() bool { return w.says("web-0", "minAvailable 11") })

		w.useUpChanges("web-0")
		w.rewrite(needs(12, 10), time.Second/10)
		w.pass(2*reviewAfter, time.Second)
		for _, name := range names[1:] {
			w.queue.Remove(evacuationOf(name))
		}
		w.pass(changeCheck, time.Second)
		is.True(t, w.says("web-0", "minAvailable 12"), "got %+v, want the new number", w.state("web-0").Blocker)
	})
}

// TestMessageFollowsABudgetThatNeverOpened: a budget that never allows an eviction is repaired, and
// then allows none because its pods are not healthy. The message must not repeat that it never
// allows one.
func TestMessageFollowsABudgetThatNeverOpened(t *testing.T) {
	const never, computed = "never allows", "its status has not been computed"
	for name, tc := range map[string]struct {
		then   func(*world)
		want   string
		writes int
	}{
		"it stays closed": {
			then: func(w *world) { w.rewrite(newBudget("web", 0, oneMayGo), time.Second/10) },
			want: "10 pods are healthy", writes: 2,
		},
		"it opens for a moment": {
			then: func(w *world) {
				w.rewrite(newBudget("web", 1, oneMayGo), time.Second/10)
				w.until("it opens", 0, func() bool { return w.isOpen("web") })
				w.updateBudget(newBudget("web", 0, oneMayGo))
				w.until("it closes", 0, func() bool { return !w.isOpen("web") })
			},
			want: "10 pods are healthy", writes: 3,
		},
		"its status is not computed": {
			then: func(w *world) { w.updateBudget(newBudget("web", 0, oneMayGo, notComputed)) },
			want: computed, writes: 2,
		},
		"its status is computed after seconds": {
			then: func(w *world) { w.rewrite(newBudget("web", 0, oneMayGo), blockedAfter/2) },
			want: "10 pods are healthy", writes: 2,
		},
		"its status is computed late": {
			then: func(w *world) { w.rewrite(newBudget("web", 0, oneMayGo), 2*blockedAfter) },
			want: "10 pods are healthy", writes: 3,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := blockedWorld(t, 1, needs(10, 10))
			is.True(t, w.says("web-0", never), "got %+v, want %q in it", w.state("web-0").Blocker, never)
			tc.then(w)
			w.until("the message follows", time.Second, func() bool { return w.says("web-0", tc.want) })
			w.mu.Lock()
			defer w.mu.Unlock()
			is.Equal(t, w.changes[evacuationOf("web-0").Name], tc.writes, "changes reported")
		})
	}
}

// TestChangeOfABlockerThatWaits: a blocker may be changed again only after a minute.
func TestChangeOfABlockerThatWaits(t *testing.T) {
	const pods = int(time.Minute / changeEvery)
	for name, tc := range map[string]struct {
		pods    int
		budgets []*policyv1.PodDisruptionBudget
		then    func(*world)
		want    string
	}{
		"its reason": {
			pods: pods, budgets: []*policyv1.PodDisruptionBudget{needs(10, 10)},
			then: func(w *world) { w.create(newBudget("second", 0)) },
			want: "second",
		},
		"its budget": {
			pods: pods, budgets: []*policyv1.PodDisruptionBudget{needs(10, 10), newBudget("db", 0, allHealthy, forApp("db"))},
			then: func(w *world) { w.updatePod(newPod("web-0", ofApp("db"))) },
			want: "PodDisruptionBudget db",
		},
		"what its budget allows": {
			pods: pods, budgets: []*policyv1.PodDisruptionBudget{needs(10, 10)},
			then: func(w *world) { w.rewrite(newBudget("web", 0, oneMayGo, allHealthy), time.Second/10) },
			want: "PodDisruptionBudget web allows",
		},
		"the message of its budget": {
			pods: pods / changesInARow, budgets: []*policyv1.PodDisruptionBudget{needs(10, 10)},
			then: func(w *world) { w.rewrite(needs(11, 10), time.Second/10) },
			want: "minAvailable 11",
		},
		"the names of its budgets": {
			pods: pods / changesInARow, budgets: []*policyv1.PodDisruptionBudget{needs(10, 10), newBudget("second", 0)},
			then: func(w *world) { w.create(newBudget("third", 0)) },
			want: "third",
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := blockedWorld(t, tc.pods, tc.budgets...)
			w.useUpChanges("web-0")
			told := *w.state("web-0").Blocker
			tc.then(w)
			w.pass(time.Minute-2*time.Second, time.Second)
			is.Equal(t, *w.state("web-0").Blocker, told, "the blocker before the minute has passed")
			w.pass(3*time.Second, time.Second)
			is.True(t, w.says("web-0", tc.want), "got %+v, want %q in it", w.state("web-0").Blocker, tc.want)
		})
	}
}

// TestMessageThatIsFalseGoes: a message that a budget never allows an eviction does not stay as
// long as others when the budget allows one.
func TestMessageThatIsFalseGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := blockedWorld(t, 1, needs(10, 10))
		is.True(t, w.says("web-0", "never allows"), "got %+v, want that it never allows one", w.state("web-0").Blocker)
		w.updateBudget(newBudget("web", 1, oneMayGo))
		w.pass(reviewAfter, reviewAfter)
		is.True(t, w.state("web-0").Blocker == nil, "got %+v, want no blocker", w.state("web-0").Blocker)
	})
}

// TestMessageOfAFlappingBudget: a budget that never allowed an eviction is changed, or another one
// is responsible, and then it opens for a moment again and again. The message disappears, since it
// is false.
func TestMessageOfAFlappingBudget(t *testing.T) {
	for name, change := range map[string]func(*world){
		"it was changed": func(*world) {},
		"a former evacuator has left the message": func(w *world) {
			w.queue.Remove(evacuationOf("web-0"))
			w.queue.Add(Request{
				Evacuation: evacuationOf("web-0"), Pod: "web-0", UID: "uid-web-0",
				Blocker: &Blocker{Reason: "SurgePending", Message: "no node has room"},
			})
		},
		"the pod has other labels": func(w *world) {
			w.updatePod(newPod("web-0", ofApp("db")))
			w.until("it waits for the other budget", 0, func() bool { return w.laneOf("db") != nil })
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := blockedWorld(t, 1, needs(10, 10), newBudget("db", 1, oneMayGo, forApp("db")))
			is.True(t, w.says("web-0", "never allows"), "got %+v, want that it never allows one", w.state("web-0").Blocker)
			change(w)
			for n := range int32(6) {
				for _, name := range []string{"web", "db"} {
					w.updateBudget(newBudget(name, (n+1)%2, oneMayGo, forApp(name)))
				}
				w.until("the queue sees it", 0, func() bool {
					return !slices.ContainsFunc([]string{"web", "db"}, func(name string) bool {
						return w.laneOf(name) != nil && w.isOpen(name) != (n%2 == 0)
					})
				})
				w.pass(blockedAfter/2, time.Second)
			}
			is.True(t, w.state("web-0").Blocker == nil, "got %+v, want no blocker", w.state("web-0").Blocker)
		})
	}
}

// TestNewLeaderKeepsMessages: the budget of a blocked pod opens for a moment after a change of the
// leader.
func TestNewLeaderKeepsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := func(allowed int32) *policyv1.PodDisruptionBudget {
			return newBudget("web", allowed, oneMayGo, allHealthy)
		}
		told := *blockedWorld(t, 1, budget(0)).state("web-0").Blocker
		w := newWorld(t, worldConfig{answer: budgetRefuses, pods: []*corev1.Pod{newPod("web-0")}}, budget(0))
		w.queue.pausedUntil = start.Add(time.Hour)
		w.queue.Add(Request{Evacuation: evacuationOf("web-0"), Pod: "web-0", UID: "uid-web-0", Blocker: &told})
		for _, allowed := range []int32{0, 1, 0} {
			w.updateBudget(budget(allowed))
			w.pass(blockedAfter/2, time.Second)
		}
		w.pass(2*blockedAfter, time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		is.Equal(t, w.changes[evacuationOf("web-0").Name], 0, "changes reported")
	})
}

// TestWithdrawnCallChangesNoReport: the client no longer wants an eviction when the budget opens.
// What is reported stays until the client removes the request or repeats it.
func TestWithdrawnCallChangesNoReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := blockedWorld(t, 1, newBudget("web", 0))
		told, item := *w.state("web-0").Blocker, w.item("web-0")
		w.unwanted.Store(true)
		w.queue.pausedUntil = w.clock.Now()
		w.updateBudget(newBudget("web", 1))
		w.until("the call was withdrawn", 0, func() bool { return item.phase == phaseParked })
		is.Equal(t, *w.state("web-0").Blocker, told, "the blocker")
		is.Equal(t, len(w.host.sent()), 0, "evictions")
		w.unwanted.Store(false)
		w.add("web-0")
		w.until("it was sent", 0, w.sentTo(1))
	})
}

func TestMessageNamesTheNextBudgetOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := blockedWorld(t, 1, newBudget("web", 0, oneMayGo, allHealthy), newBudget("db", 0, oneMayGo, allHealthy, forApp("db")))
		is.True(t, w.says("web-0", "PodDisruptionBudget web allows"), "got %+v, want budget web", w.state("web-0").Blocker)
		w.updatePod(newPod("web-0", ofApp("db")))
		w.until("the message names the other budget", time.Second, func() bool { return w.says("web-0", "PodDisruptionBudget db allows") })
	})
}

// blockedWorld returns a world in which n pods are requested and web-0 is blocked. The queue is
// paused, so that the pods stay in their lanes.
func blockedWorld(t *testing.T, n int, budgets ...*policyv1.PodDisruptionBudget) *world {
	t.Helper()
	names, pods := podNames(n)
	w := newWorld(t, worldConfig{answer: budgetRefuses, pods: pods, budgets: budgets})
	w.queue.pausedUntil = start.Add(time.Hour)
	w.add(names...)
	w.until("web-0 is blocked", time.Second, func() bool { return w.reason("web-0") != "" })
	return w
}

// needs returns a budget that requires a number of pods, of which there are expected.
func needs(pods, expected int32) *policyv1.PodDisruptionBudget {
	return newBudget("web", 0, func(b *policyv1.PodDisruptionBudget) {
		b.Spec.MinAvailable = ptr.To(intstr.FromInt32(pods))
		b.Status.DesiredHealthy, b.Status.ExpectedPods, b.Status.CurrentHealthy = pods, expected, expected
	})
}

// useUpChanges makes the next change of a pod wait.
func (w *world) useUpChanges(pod string) {
	it, now := w.item(pod), w.clock.Now()
	w.queue.changeAt(it, &judgement{}, now) // sets the limit
	it.changes.ReserveN(now, int(it.changes.TokensAt(now)))
}

// checkWrites checks the number of writes of the states of n pods in a time.
func (w *world) checkWrites(n int, in time.Duration) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	writes := 0
	for _, changes := range w.changes {
		writes += changes
	}
	// Each pod becomes blocked, changes once and is blocked again without a wait.
	if most := 3*n + int(in/changeEvery); writes > most {
		w.Errorf("got %d writes of %d pods in %s, want at most %d", writes, n, in, most)
	}
}

// TestReviewsOfALane: pods become blocked at different times, and one review looks at all of them.
func TestReviewsOfALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, apart = 200, 10 * time.Millisecond
		names, pods := podNames(count)
		w := newWorld(t, worldConfig{answer: budgetRefuses, pods: pods}, newBudget("web", 0))
		for _, name := range names {
			w.add(name)
			w.pass(apart, apart)
		}
		reviews := map[time.Time]bool{}
		for range int((blockedAfter + reviewInterval) / apart) {
			w.pass(apart, apart)
			reviews[w.laneOf("web").reviewedAt] = true
		}
		is.Equal(t, w.reason(names[count-1]), "PodDisruptionBudget", "the reason of the last pod")
		if most := int(blockedAfter/reviewInterval) + 3; len(reviews) > most {
			t.Errorf("the lane was reviewed %d times, want at most %d", len(reviews), most)
		}
	})
}

func notComputed(b *policyv1.PodDisruptionBudget) { b.Generation++ }

// rewrite changes a budget, and its status after a time, as the disruption controller does.
func (w *world) rewrite(budget *policyv1.PodDisruptionBudget, after time.Duration) {
	w.Helper()
	changed := budget.DeepCopy()
	notComputed(changed)
	w.updateBudget(changed)
	w.pass(after, min(after, time.Second))
	w.updateBudget(budget)
	w.settled()
}

// says reports whether the blocker of a pod has a text in its message.
func (w *world) says(pod, text string) bool {
	blocker := w.state(pod).Blocker
	return blocker != nil && strings.Contains(blocker.Message, text)
}
