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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestPodsWithoutBudgetAreEvictedInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		names, pods := podNames(10)
		w := newWorld(t,
			worldConfig{live: true, maxConcurrent: 4, pods: pods, answer: func(string) error { <-hold; return nil }})
		w.add(names...)
		w.until("four are in flight", 0, func() bool { return w.host.inFlight() == 4 })
		close(hold)
		w.until("all were sent", 0, w.sentTo(10))
		sent := w.host.sent()
		slices.Sort(sent)
		if w.host.mostEver != 4 || len(slices.Compact(sent)) != 10 {
			t.Errorf("got %d evictions in flight and %v; want 4 in flight and each pod once", w.host.mostEver, sent)
		}
		is.True(t, sent[0] == "web-0/uid-web-0", "got %s; want the pod's UID as the precondition", sent[0])
	})
}

func TestBudgetIsRespected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names, pods := podNames(10)
		w := newWorld(t, worldConfig{pods: pods, answer: success}, newBudget("web", 3))
		w.add(names...)
		w.until("three were sent", 0, w.sentTo(3))
		w.settled()
		if n := len(w.host.sent()); n != 3 {
			t.Fatalf("got %d evictions, want the 3 that the budget allows although its status has not changed yet", n)
		}

		// used is the status that the eviction API writes. The next one is the status that the
		// disruption controller writes when the replacements are ready.
		used := newBudget("web", 0, func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptedPods = map[string]metav1.Time{}
			for _, call := range w.host.sent() {
				b.Status.DisruptedPods[call[:len("web-0")]] = metav1.Now()
			}
		})
		w.updateBudget(used)
		w.settled()
		w.updateBudget(newBudget("web", 2))
		w.until("two more were sent", 0, w.sentTo(5))
		w.settled()
		is.Equal(t, len(w.host.sent()), 5, "evictions")
		if w.host.mostEver > laneCalls {
			t.Errorf("got %d evictions in flight under one budget, want at most %d", w.host.mostEver, laneCalls)
		}
	})
}

func TestClosedBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: budgetRefuses}, newPod("web-0"), newBudget("web", 0))
		w.add("web-0")
		w.settled()
		if sent := w.host.sent(); len(sent) != 0 {
			t.Fatalf("got %v, want no eviction under a closed budget", sent)
		}
		if reason := w.reason("web-0"); reason != "" {
			t.Errorf("got blocked by %s immediately, want no blocker after a short wait", reason)
		}
		w.until("the pod is blocked and was probed", 100*time.Millisecond, func() bool {
			return w.reason("web-0") == "PodDisruptionBudget" && w.state("web-0").FailedEvictions == 1
		})
		if elapsed := w.clock.Since(start); elapsed < blockedAfter {
			t.Errorf("got blocked after %s, want %s", elapsed, blockedAfter)
		}

		// The back-off of the pod ends when the budget allows a disruption.
		w.host.answer = success
		before := w.clock.Now()
		w.updateBudget(newBudget("web", 1))
		w.until("it was sent again", 0, w.sentTo(2))
		is.True(t, w.clock.Now().Equal(before), "the eviction was not sent immediately after the budget opened")
	})
}

// TestBackOffEndsWithTheNextBudgetOfAPod: a pod is refused because of one budget, and then gets the
// labels that another budget selects.
func TestBackOffEndsWithTheNextBudgetOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: budgetRefuses}, newPod("web-0"),
			newBudget("web", 0), newBudget("db", 0, forApp("db")))
		w.add("web-0")
		w.until("a probe was refused", time.Second, func() bool { return w.state("web-0").FailedEvictions == 1 })
		w.updatePod(newPod("web-0", ofApp("db")))
		w.until("it waits for the other budget", 0, func() bool { return w.laneOf("db") != nil })

		w.host.answer = success
		before := w.clock.Now()
		w.updateBudget(newBudget("db", 1, forApp("db")))
		w.until("it was sent again", 0, w.sentTo(2))
		is.True(t, w.clock.Now().Equal(before), "the eviction was not sent immediately after the budget opened")
	})
}

// TestBackOffWithoutItsBudget: the owner of a pod deletes the budget that refused it, or adds a
// second one for a moment. The pod waits for about a minute after the last answer at most, and is
// not asked more often than that.
func TestBackOffWithoutItsBudget(t *testing.T) {
	const refused, otherBudgetRest = 9, firstRest << otherBudgetFailures
	for name, tc := range map[string]struct {
		answer func(string) error
		then   func(*world)
		rest   time.Duration
	}{
		"the budget is deleted": {budgetRefuses, func(w *world) { w.remove("web") }, otherBudgetRest},
		"the budget comes and goes": {
			budgetRefuses, func(w *world) {
				for range int(otherBudgetRest/(2*churnInterval)) - 1 {
					w.remove("web")
					w.pass(churnInterval, churnInterval)
					w.create(newBudget("web", 0))
					w.pass(churnInterval, churnInterval)
				}
				w.remove("web")
			}, otherBudgetRest,
		},
		"a webhook refuses, and a second budget comes and goes": {
			func(string) error { return deniedBy("w", 403, "no") }, func(w *world) {
				w.create(newBudget("second", 1))
				w.pass(churnInterval, churnInterval)
				w.remove("second")
			}, firstRest << (refused - 1),
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			allowed := int32(0)
			if tc.rest != otherBudgetRest {
				allowed = 1
			}
			w := newWorld(t, worldConfig{answer: tc.answer}, newPod("web-0"), newBudget("web", allowed))
			w.add("web-0")
			w.until("it was refused", time.Second, w.sentTo(refused))
			answered := w.clock.Now()
			w.until("it is blocked", time.Second, func() bool { return w.reason("web-0") != "" })
			told := *w.state("web-0").Blocker
			w.host.answer = success
			tc.then(w)
			if allowed == 1 {
				is.Equal(t, *w.state("web-0").Blocker, told, "the blocker")
			} else {
				is.Equal(t, w.item("web-0").failures, otherBudgetFailures, "failures that count")
			}
			w.pass(tc.rest-w.clock.Since(answered)-time.Second, time.Second)
			is.Equal(t, len(w.host.sent()), refused, "evictions before the end of the back-off")
			w.pass(2*time.Second, time.Second)
			is.Equal(t, len(w.host.sent()), refused+1, "evictions")
		})
	}
}

// TestRefusalOfOneBudgetIsNotThatOfTheNext: the status of a budget is invalid, and the pod then
// gets the labels that another budget selects.
func TestRefusalOfOneBudgetIsNotThatOfTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: func(string) error { return tooManyDisrupted() }}, newPod("web-0"),
			newBudget("web", 1, oneMayGo, allHealthy), newBudget("db", 0, oneMayGo, allHealthy, forApp("db")))
		w.add("web-0")
		w.until("it is blocked", time.Second, func() bool { return w.reason("web-0") == "TooManyDisruptedPods" })
		w.queue.pausedUntil = start.Add(time.Hour)
		w.updatePod(newPod("web-0", ofApp("db")))
		w.until("it is blocked by the other budget", time.Second, func() bool { return w.says("web-0", "PodDisruptionBudget db allows") })
	})
}

// TestProbeOfAPodThatFinishes: the API server would delete a pod that has finished since, whatever
// its budget allows.
func TestProbeOfAPodThatFinishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: func(pod string) error {
			return apierrors.NewConflict(corev1.Resource("pods"), pod, errors.New("the pod has changed"))
		}}, newPod("web-0"), newBudget("web", 0))
		w.add("web-0")
		w.until("a probe was sent", time.Second, w.sentTo(1))
		is.Equal(t, w.host.versions[0], "1", "the version that a probe expects")
		is.Equal(t, w.state("web-0").FailedEvictions, int32(0), "failed evictions")

		w.host.answer = success
		w.updateBudget(newBudget("web", 1))
		w.until("the eviction was sent", time.Second, w.sentTo(2))
		is.Equal(t, w.host.versions[1], "", "the version that an eviction expects")
	})
}

func TestProbeThatIsRefusedWhileItsBudgetOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan error)
		w := newWorld(t, worldConfig{live: true, maxConcurrent: 1, answer: func(string) error { return <-answers }},
			newPod("web-0"), newBudget("web", 0))
		w.add("web-0")
		w.until("a probe was sent", time.Second, w.sentTo(1))
		w.updateBudget(newBudget("web", 1))
		w.until("the opening was seen", 0, func() bool { return w.isOpen("web") })
		answers <- budgetClosed()
		w.until("the eviction is sent immediately", 0, w.sentTo(2))
		answers <- nil
	})
}

func TestBlockedStaysThroughAShortOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: success}, newPod("web-0"), newBudget("web", 0, oneMayGo))
		// The queue is paused, so that the pod stays in its lane.
		w.queue.pausedUntil = start.Add(time.Hour)
		w.add("web-0")
		w.until("it is blocked", time.Second, func() bool { return w.reason("web-0") != "" })
		told := w.state("web-0").Blocker.Message
		for version := range 5 {
			w.updateBudget(newBudget("web", 1, oneMayGo))
			w.until("it opens", 0, func() bool { return w.isOpen("web") })
			w.pass(blockedAfter/2, time.Second)
			w.updateBudget(newBudget("web", 0, oneMayGo,
				func(b *policyv1.PodDisruptionBudget) { b.Status.ExpectedPods = int32(10 + version) }))
			w.until("it closes", 0, func() bool { return !w.isOpen("web") })
			w.pass(blockedAfter/2, time.Second)
		}
		if got := w.state("web-0").Blocker; got == nil || got.Message != told {
			t.Errorf("got %+v, want the same blocker: every change is a write", got)
		}
		w.updateBudget(newBudget("web", 1, oneMayGo))
		w.until("it stays open", time.Second, func() bool { return w.reason("web-0") == "" })
		w.mu.Lock()
		defer w.mu.Unlock()
		is.Equal(t, w.changes[evacuationOf("web-0").Name], 2, "changes reported")
	})
}

// closedBudgets returns a world in which n pods are requested, one after the other. Each pod has
// its own budget, which allows no disruption.
func closedBudgets(t *testing.T, n int, every time.Duration) *world {
	t.Helper()
	cfg := worldConfig{answer: budgetRefuses}
	var names []string
	for i := range n {
		name := fmt.Sprintf("web-%d", i)
		names = append(names, name)
		cfg.pods = append(cfg.pods, newPod(name, ofApp(name)))
		cfg.budgets = append(cfg.budgets, newBudget(name, 0, forApp(name)))
	}
	w := newWorld(t, cfg)
	for _, name := range names {
		w.add(name)
		w.pass(every, every)
	}
	return w
}

func TestProbesOfClosedBudgetsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := closedBudgets(t, 20, 0)
		w.pass(10*time.Minute, 500*time.Millisecond)
		if n := len(w.host.sent()); n == 0 || n > 101 {
			t.Errorf("got %d probes of 20 closed budgets in ten minutes, want some, and at most ten a minute", n)
		}
	})
}

// TestEachClosedBudgetIsProbed: more probes are due than probeInterval allows, and no event arrives
// when a budget begins to allow a disruption.
func TestEachClosedBudgetIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budgets = 200
		w := closedBudgets(t, budgets, 7*time.Second)
		for range 2 {
			before := len(w.host.sent())
			w.pass(2*time.Hour, time.Second)
			probed := map[string]bool{}
			for _, call := range w.host.sent()[before:] {
				probed[call] = true
			}
			is.Equal(t, len(probed), budgets, "budgets probed within two hours")
		}
	})
}

func TestStaleCacheCausesOneRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// According to the cache the budget allows three evictions. According to the API server it
		// allows none.
		names, pods := podNames(10)
		w := newWorld(t, worldConfig{pods: pods, answer: budgetRefuses}, newBudget("web", 3))
		w.add(names...)
		w.until("one was refused", 0, func() bool { return len(w.host.sent()) > 0 && w.host.inFlight() == 0 })
		w.settled()
		if n := len(w.host.sent()); n != 1 {
			t.Errorf("got %d evictions, want 1: the first refusal closes the lane", n)
		}
		w.updateBudget(newBudget("web", 3))
		w.until("the next version of the status opens it again", 0, w.sentTo(2))
	})
}

func TestStaleBudgetIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: budgetLags}, newPod("web-0"), newBudget("web", 1))
		w.add("web-0")
		w.until("it was refused", 0, func() bool { return len(w.host.sent()) > 0 && w.host.inFlight() == 0 })
		w.settled()
		if n, failed := len(w.host.sent()), w.state("web-0").FailedEvictions; n != 1 || failed != 0 {
			t.Errorf("got %d evictions and %d failed ones, want 1 and 0", n, failed)
		}
		w.host.answer = success
		w.updateBudget(newBudget("web", 1))
		w.until("the status has caught up", 0, w.sentTo(2))
	})
}

func TestPodsThatBypassTheirBudget(t *testing.T) {
	closed := func(mods ...func(*policyv1.PodDisruptionBudget)) []*policyv1.PodDisruptionBudget {
		return []*policyv1.PodDisruptionBudget{newBudget("web", 0, mods...)}
	}
	tests := map[string]struct {
		pod     *corev1.Pod
		budgets []*policyv1.PodDisruptionBudget
	}{
		"a pod that is not ready, while the budget is healthy": {newPod("web-0", notReady), closed()},
		"a pod that is not ready, with unhealthyPodEvictionPolicy AlwaysAllow": {newPod("web-0",
			notReady), closed(func(b *policyv1.PodDisruptionBudget) {
			b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
			b.Status.CurrentHealthy = 3
		})},
		"a pending pod": {newPod("web-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), closed()},
		"a pending pod with several budgets": {
			newPod("web-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
			append(closed(), newBudget("other", 0)),
		},
		"a pod that only an invalid selector could match": {newPod("web-0"), closed(func(b *policyv1.PodDisruptionBudget) {
			b.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}
		})},
	}
	for name, tc := range tests {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, worldConfig{budgets: tc.budgets, answer: success}, tc.pod)
			w.add("web-0")
			w.until("it was sent", 0, w.sentTo(1))
		})
	}
}

func TestPodIsReadAfterAnUnknownAnswer(t *testing.T) {
	unknown := func(string) error { return apierrors.NewTimeoutError("conflicts", 10) }
	tests := map[string]struct {
		live      func(w *world)
		wantCalls int
	}{
		"the pod is gone": {
			live: func(w *world) {
				must.Do(w, w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), namespace, "web-0"))
			}, wantCalls: 1,
		},
		"the pod has not changed": {live: func(*world) {}, wantCalls: 2},
	}
	for name, tc := range tests {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, worldConfig{maxConcurrent: 1, answer: unknown},
				newPod("web-0"), newPod("web-1", younger(-time.Minute)))
			w.host.answer = func(pod string) error {
				if pod == "web-0" {
					tc.live(w)
					return unknown(pod)
				}
				return nil
			}
			w.add("web-0", "web-1")
			w.until("the other was sent", 100*time.Millisecond,
				func() bool { return slices.Contains(w.host.sent(), "web-1/uid-web-1") })
			w.host.answer = success
			w.pass(10*time.Second, 100*time.Millisecond)
			is.Equal(t, strings.Count(strings.Join(w.host.sent(), " "), "web-0/uid-web-0"), tc.wantCalls, "evictions")
		})
	}
}

func TestOnlyThePodWithTheUIDIsEvicted(t *testing.T) {
	names := map[string]*corev1.Pod{
		"a pod of the same name with another UID": newPod("web-0", func(p *corev1.Pod) { p.UID = "another" }),
		"a pod that is terminating": newPod("web-0", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.NewTime(start)), []string{"example.com/x"}
		}),
		"a pod that has ended": newPod("web-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	}
	for name, pod := range names {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, worldConfig{maxConcurrent: 1, answer: success}, pod, newPod("web-1"))
			w.add("web-0", "web-1")
			w.until("the other was sent", 0, w.sentTo(1))
			w.settled()
			if got := w.host.sent(); !slices.Equal(got, []string{"web-1/uid-web-1"}) {
				t.Errorf("got %v, want only web-1", got)
			}
		})
	}
}

func TestAcceptedIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{maxConcurrent: 1, answer: success}, newPod("web-0"))
		w.add("web-0")
		w.until("it was sent", 0, w.sentTo(1))
		w.settled()
		w.add("web-0")
		w.updatePod(newPod("web-0", notReady))
		w.pass(50*time.Second, time.Second)
		is.Equal(t, len(w.host.sent()), 1, "evictions")
		w.until("the eviction is sent again, as the cache shows no change of the pod", time.Second, w.sentTo(2))
	})
}

func TestRemovedIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{maxConcurrent: 1, answer: success},
			newPod("web-0"), newPod("web-1"), newBudget("web", 0))
		w.add("web-0", "web-1")
		w.settled()
		w.queue.Remove(evacuationOf("web-0"))
		is.True(t, !w.state("web-0").Known, "the queue still knows a pod that was removed")
		w.updateBudget(newBudget("web", 2))
		w.until("the other was sent", 0, w.sentTo(1))
		w.settled()
		if got := w.host.sent(); !slices.Equal(got, []string{"web-1/uid-web-1"}) {
			t.Errorf("got %v, want only web-1", got)
		}
	})
}

func TestRestartKeepsBlocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{maxConcurrent: 1, answer: success}, newPod("web-0"), newBudget("web", 0, oneMayGo, allHealthy))
		w.queue.pausedUntil = start.Add(time.Hour)
		was := &Blocker{Reason: "PodDisruptionBudget", Message: "as it was"}
		w.queue.Add(Request{Evacuation: evacuationOf("web-0"), Pod: "web-0", UID: "uid-web-0", FailedEvictions: 4, Blocker: was})
		w.settled()
		if got := w.state("web-0"); got.Blocker == nil || *got.Blocker != *was || got.FailedEvictions != 4 {
			t.Errorf("got %+v, want the blocker and the count of the Evacuation", got)
		}
		w.mu.Lock()
		is.True(t, len(w.changes) == 0, "got %v, want no change to be reported", w.changes)
		w.mu.Unlock()
		// The budget may have changed while there was no leader.
		w.pass(blockedAfter+time.Second, time.Second)
		is.True(t, w.says("web-0", "9 of 9 pods"), "got %+v, want the message to describe the budget", w.state("web-0").Blocker)
	})
}

func TestLanesAlternate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		var budgets []*policyv1.PodDisruptionBudget
		for _, app := range []string{"a", "b"} {
			for i := range 3 {
				pods = append(pods, newPod(fmt.Sprintf("%s-%d", app, i), ofApp(app)))
			}
			budgets = append(budgets, newBudget(app, 3, forApp(app)))
		}
		gate := make(chan struct{})
		w := newWorld(t, worldConfig{live: true, maxConcurrent: 1, pods: append(pods,
			newPod("gate", func(p *corev1.Pod) { p.Labels = nil })), budgets: budgets, answer: func(string) error { <-gate; return nil }})
		w.add("gate")
		w.until("the gate is in flight", 0, func() bool { return w.host.inFlight() == 1 })
		w.add("a-0", "a-1", "a-2", "b-0", "b-1", "b-2")
		close(gate)
		w.until("all were sent", 0, w.sentTo(7))
		var apps string
		for _, call := range w.host.sent()[1:] {
			apps += call[:1]
		}
		is.True(t, apps == "ababab" || apps == "bababa", "got %s, want the lanes to alternate", apps)
	})
}

func TestSlowCallDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		names, pods := podNames(laneCalls + 4)
		w := newWorld(t, worldConfig{live: true, pods: pods, answer: func(string) error { <-hold; return nil }},
			newBudget("web", laneCalls+4))
		defer close(hold)
		w.add(names...)
		w.until("the first is in flight", 0, func() bool { return w.host.inFlight() == 1 })
		w.until("others are in flight", 10*time.Millisecond, func() bool { return w.host.inFlight() == laneCalls })
		if elapsed := w.clock.Since(start); elapsed < (laneCalls-1)*asleepAfter {
			t.Errorf("got %d calls in flight after %s, want one more each %s", laneCalls, elapsed, asleepAfter)
		}
		if w.host.mostEver > laneCalls {
			t.Errorf("got %d evictions in flight under one budget, want at most %d", w.host.mostEver, laneCalls)
		}
	})
}
