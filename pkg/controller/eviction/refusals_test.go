// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// A webhook that denies some pods delays no other pod: the queue evicts each of the other pods
// immediately, and once.
func TestDeniedPodsDelayNoOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		others, denied int
		answer         error
	}{
		"one of 600 pods, with 429":              {599, 1, deniedBy("virt", 429, "Eviction triggered evacuation of VMI")},
		"one of 600 pods, for an hour":           {599, 1, deniedFor("virt", 429, 3600, "not now")},
		"25 virtual machines among 500 pods":     {475, 25, deniedBy("virt", 429, "Eviction triggered evacuation of VMI")},
		"one of 600 pods, by a webhook's 500":    {599, 1, apierrors.NewInternalError(errors.New(`failed calling webhook "virt": EOF`))},
		"one of 600 pods, by a webhook's 503":    {599, 1, deniedBy("virt", 503, "starting")},
		"all of 500 pods, by a webhook's denial": {0, 500, deniedBy("virt", 429, "not now")},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			names, pods := podNames(tc.others)
			for i := range tc.denied {
				// The youngest pods are evicted first.
				vm := fmt.Sprintf("vm-%d", i)
				names, pods = append(names, vm), append(pods, newPod(vm, younger(time.Minute)))
			}
			w := newWorld(t, worldConfig{pods: pods, answer: func(pod string) error {
				if strings.HasPrefix(pod, "vm-") {
					return tc.answer
				}
				return nil
			},
			})
			w.add(names...)
			w.settled()
			if n := len(w.host.sent()); n != tc.others+tc.denied {
				t.Errorf("got %d evictions without any time passing, want each of %d pods tried once", n, tc.others+tc.denied)
			}
			if limit := w.queue.calls.limit; limit != 50 || !w.queue.pausedUntil.IsZero() {
				t.Errorf("got %d calls at a time and a pause until %v, want 50 and none", limit, w.queue.pausedUntil)
			}
			w.pass(10*time.Minute, time.Second)
			// The back-off is 1 s and doubles: the tries are at 0, 1, 3, 7 ... 511 s.
			is.Equal(t, strings.Count(strings.Join(w.host.sent(), " "), "/uid-vm-"), 10*tc.denied, "tries of the denied pods in ten minutes")
		})
	}
}

func TestDenialIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const words = "Eviction triggered evacuation of VMI"
		w := newWorld(t,
			worldConfig{maxConcurrent: 1, answer: func(string) error { return deniedBy("virt", 403, words) }},
			newPod("vm"))
		w.add("vm")
		w.settled()
		if got := w.state("vm"); got.Blocker != nil || !strings.Contains(got.Message, words) {
			t.Errorf("got %+v after the first answer, want the message of the webhook and no blocker", got)
		}
		w.pass(5*time.Minute-time.Second, time.Second)
		if got := w.reason("vm"); got != "" {
			t.Errorf("got blocked by %s before five minutes have passed", got)
		}
		w.pass(time.Second, time.Second)
		got := w.state("vm").Blocker
		if got == nil || got.Reason != "EvictionDenied" || !strings.Contains(got.Message, words) || strings.Contains(got.Message, "Grant") {
			t.Errorf("got %+v, want EvictionDenied with the message of the webhook and no advice about rights", got)
		}
		w.mu.Lock()
		if n := w.changes[evacuationOf("vm").Name]; n != 2 {
			t.Errorf("got %d changes reported, want two: each is a write", n)
		}
		w.mu.Unlock()

		// A new leader starts with the stored blocker and clears it when the webhook allows the
		// eviction.
		w.queue.Remove(evacuationOf("vm"))
		w.queue.Add(Request{Evacuation: evacuationOf("vm"), Pod: "vm", UID: "uid-vm", Blocker: got})
		w.settled()
		is.Equal(t, w.reason("vm"), "EvictionDenied", "after a restart")
		w.host.answer = success
		calls := len(w.host.sent())
		w.until("it is sent", time.Second, w.sentTo(calls+1))
	})
}

// TestANoteThatIsOverIsReplaced: the webhook no longer denies the eviction, and a budget refuses
// it.
func TestANoteThatIsOverIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{maxConcurrent: 1, answer: func(string) error { return deniedBy("virt", 403, "not now") }}, newPod("vm"))
		w.add("vm")
		w.settled()
		is.True(t, strings.Contains(w.state("vm").Message, "not now"), "got %q", w.state("vm").Message)
		w.host.answer = func(string) error { return budgetClosed() }
		w.until("the note of the webhook is replaced", time.Second, func() bool { return w.state("vm").Message == "The pod waits for its eviction." })
	})
}

func TestAnswersThatRepeatForMinutesAreBlockers(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []error
		says    string
	}{
		"timeouts":             {[]error{apierrors.NewTimeoutError("conflicts", 0)}, "does not respond to the eviction in time"},
		"broken connections":   {[]error{errors.New("connection reset by peer")}, "connection reset by peer"},
		"conflicts":            {[]error{apierrors.NewConflict(podResource, "web-0", errors.New("uid"))}, "does not respond to the eviction in time"},
		"overload":             {[]error{overloaded(1)}, "kube-apiserver responds"},
		"overload and timeout": {[]error{overloaded(1), apierrors.NewTimeoutError("conflicts", 0)}, "The server retries"},
		"a namespace that is being deleted": {
			[]error{withCause(apierrors.NewForbidden(podResource, "web-0", errors.New("terminating")),
				corev1.NamespaceTerminatingCause, "shop")},
			"namespace is being deleted",
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			n := -1
			w := newWorld(t, worldConfig{maxConcurrent: 1, answer: func(string) error {
				n++
				return tc.answers[n%len(tc.answers)]
			},
			}, newPod("web-0"))
			w.add("web-0")
			w.settled()
			w.pass(failingAfter-time.Second, time.Second)
			if reason := w.reason("web-0"); reason != "" {
				t.Errorf("got blocked by %s before %s", reason, failingAfter)
			}
			w.pass(time.Second, time.Second)
			if got := w.state("web-0").Blocker; got == nil || got.Reason != "EvictionError" || !strings.Contains(got.Message, tc.says) {
				t.Errorf("got %+v after %s, want EvictionError that says %q", got, failingAfter, tc.says)
			}
		})
	}
}

func TestOverloadSlowsEverythingDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names, pods := podNames(20)
		w := newWorld(t, worldConfig{maxConcurrent: 8, pods: pods, answer: func(string) error { return overloaded(3) }})
		w.add(names...)
		w.until("the first calls were refused", 0,
			func() bool { return len(w.host.sent()) >= 1 && w.host.inFlight() == 0 })
		w.settled()
		first := len(w.host.sent())
		is.True(t, first <= 8, "got %d evictions, want at most 8 before the first answer", first)
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

func TestConcurrency(t *testing.T) {
	c := concurrency{limit: 8, most: 9}
	c.good()
	c.good()
	is.True(t, c.limit == 9, "got %d after two successes, want the maximum of 9", c.limit)
	for range 9 {
		c.bad(9)
	}
	is.True(t, c.limit == 4, "got %d after nine calls sent together failed, want half the limit at that time", c.limit)
	c.good()
	c.bad(9)
	is.Equal(t, c.limit, 4, "after one more of those calls failed")
	for range 3 {
		c.bad(c.limit)
	}
	is.True(t, c.limit == 1, "got %d, want the minimum of 1", c.limit)
}

func TestOverloadOfOnePodPausesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names, pods := podNames(20)
		w := newWorld(t, worldConfig{maxConcurrent: 8, pods: pods, answer: func(pod string) error {
			if pod == "web-0" {
				return overloaded(3600)
			}
			return nil
		},
		})
		w.add(names...)
		w.settled()
		if n := len(w.host.sent()); n != 20 {
			t.Errorf("got %d evictions without any time passing, want all 20", n)
		}
		w.pass(maxRetryAfter-time.Second, time.Second)
		is.Equal(t, len(w.host.sent()), 20, "evictions before the longest Retry-After has passed")
		w.until("the eviction is retried", time.Second, w.sentTo(21))
		if got := w.clock.Since(start); got > maxRetryAfter+time.Second {
			t.Errorf("got the retry after %s, want at most %s", got, maxRetryAfter)
		}
	})
}

func TestServerErrorsSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 100
		names, pods := podNames(50)
		w := newWorld(t, worldConfig{maxConcurrent: most, pods: pods, answer: func(string) error {
			return apierrors.NewInternalError(errors.New("etcdserver: no leader"))
		},
		})
		w.add(names...)
		w.settled()
		if n, limit := len(w.host.sent()), w.queue.calls.limit; n != 50 || limit != most/2 {
			t.Errorf("got %d evictions and then %d at a time, want 50 and %d", n, limit, most/2)
		}
		for _, name := range names {
			if reason := w.reason(name); reason != "" {
				t.Fatalf("got %s blocked by %s after one answer, want none before a minute has passed", name, reason)
			}
		}
		w.until("the blocker is reported", time.Second, func() bool { return w.reason("web-0") != "" })
		if got, since := w.reason("web-0"), w.clock.Since(start); got != "EvictionError" || since < failingAfter || since > failingAfter+time.Second {
			t.Errorf("got %s after %s, want EvictionError after %s", got, since, failingAfter)
		}
		w.host.answer = success
		calls := len(w.host.sent())
		w.until("all were sent", time.Second, w.sentTo(calls+50))
	})
}

func TestPodsWithBudgetsUseHalfOfTheCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		var budgets []*policyv1.PodDisruptionBudget
		var names []string
		for i := range 30 {
			name := fmt.Sprintf("app-%d", i)
			names, pods = append(names, name), append(pods, newPod(name, ofApp(name)))
			budgets = append(budgets, newBudget(name, 1, forApp(name)))
		}
		for i := range 5 {
			name := fmt.Sprintf("free-%d", i)
			names, pods = append(names, name), append(pods, newPod(name, ofApp("free")))
		}
		hold := make(chan struct{})
		w := newWorld(t, worldConfig{
			live: true, maxConcurrent: 40, pods: pods, budgets: budgets,
			answer: func(name string) error {
				if strings.HasPrefix(name, "app-") {
					<-hold
				}
				return nil
			},
		})
		w.add(names...)
		w.until("the pods without budgets were sent", 0, w.sentTo(20+5))
		w.settled()
		if n := w.host.inFlight(); n != 20 {
			t.Errorf("got %d in flight, want half of the limit", n)
		}
		close(hold)
		w.until("all were sent", 0, w.sentTo(len(names)))
	})
}

func TestBlockers(t *testing.T) {
	tests := map[string]struct {
		// pod is the pod to evict; nil means newPod("web-0").
		pod     *corev1.Pod
		budgets []*policyv1.PodDisruptionBudget
		answer  func(string) error
		want    string
		// calls is the number of evictions before the queue reports the blocker. failed is the
		// number of these evictions that count as failed.
		calls  int
		failed int32
	}{
		"several budgets, in the cache": {
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 5), newBudget("other", 5)},
			want:    "MultiplePodDisruptionBudgets",
		},
		"a budget whose controller reports SyncFailed": {
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 0, func(b *policyv1.PodDisruptionBudget) {
				b.Status.Conditions = []metav1.Condition{{
					Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
					Reason: policyv1.SyncFailedReason, Message: "no controller",
				}}
			})},
			want: "PodDisruptionBudgetSyncFailed", calls: 1, failed: 1,
		},
		"a budget whose status is negative": {
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", -1)}, want: "TooManyDisruptedPods", calls: 1,
			failed: 1,
		},
		"a budget whose status is negative in the API server only": {
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 1)},
			answer:  func(string) error { return tooManyDisrupted() }, want: "TooManyDisruptedPods", calls: 1,
		},
		"a budget whose status is older than its spec": {
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 5, func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 })},
			want:    "PodDisruptionBudget", calls: 1, failed: 1,
		},
		"a budget with fewer healthy pods than desired, through no eviction": {
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 0, withHealthy(8))},
			want:    "UnhealthyPodsHoldBudget", calls: 1, failed: 1,
		},
		"a pod that is not ready, under such a budget": {
			pod:     newPod("web-0", notReady),
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 0, withHealthy(8))},
			want:    "UnhealthyPodsHoldBudget", calls: 1, failed: 1,
		},
		"a budget with as many healthy pods as desired": {
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 0)}, want: "PodDisruptionBudget", calls: 1,
			failed: 1,
		},
		"the server may not evict": {
			answer: func(string) error { return apierrors.NewForbidden(podResource, "web-0", fmt.Errorf("RBAC")) },
			want:   "EvictionForbidden", calls: 1,
		},
		"an error": {answer: func(string) error { return apierrors.NewBadRequest("name") }, want: "EvictionError", calls: 1},
		"several budgets, in the API server only": {
			answer: func(string) error { return severalBudgetsError() }, want: "MultiplePodDisruptionBudgets", calls: 1,
		},
	}
	for name, tc := range tests {
		bubble.Run(t, name, func(t *testing.T) {
			answer := tc.answer
			if answer == nil {
				answer = func(string) error { return budgetClosed() }
			}
			pod := tc.pod
			if pod == nil {
				pod = newPod("web-0")
			}
			w := newWorld(t, worldConfig{budgets: tc.budgets, answer: answer}, pod)
			w.add("web-0")
			w.settled()
			w.until("it is blocked", 10*time.Millisecond, func() bool { return w.reason("web-0") != "" })
			is.Equal(t, w.reason("web-0"), tc.want)
			is.Equal(t, len(w.host.sent()), tc.calls, "evictions")
			if failed := w.state("web-0").FailedEvictions; failed != tc.failed {
				t.Errorf("got %d failed evictions, want %d", failed, tc.failed)
			}

			// The pod is evicted, although the stored blocker is missing.
			w.host.answer = success
			for _, budget := range tc.budgets[min(1, len(tc.budgets)):] {
				must.Do(w, w.client.PolicyV1().PodDisruptionBudgets(namespace).Delete(w.Context(), budget.Name, metav1.DeleteOptions{}))
			}
			if len(tc.budgets) > 0 {
				w.updateBudget(newBudget(tc.budgets[0].Name, 5))
			}
			calls := len(w.host.sent())
			w.until("it was sent", 100*time.Millisecond, w.sentTo(calls+1))
		})
	}
}

// A budget that is used up has the same status between two evictions as with a pod that never
// becomes ready. Only the time that has passed distinguishes the two cases.
func TestUnhealthyPodsAreDistinguishedFromStartingPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{maxConcurrent: 1, answer: budgetRefuses}, newPod("web-0"), newBudget("web", 0))
		w.add("web-0")
		w.settled()
		w.pass(blockedAfter+time.Second, time.Second)
		if got := w.reason("web-0"); got != "PodDisruptionBudget" {
			t.Fatalf("got %q after %s, want PodDisruptionBudget", got, blockedAfter)
		}
		w.pass(steadyAfter-blockedAfter-2*time.Second, time.Second)
		is.Equal(t, w.reason("web-0"), "PodDisruptionBudget", "before a minute has passed")
		w.pass(2*time.Second, time.Second)
		is.Equal(t, w.reason("web-0"), "UnhealthyPodsHoldBudget", "after a minute")
		// The number of healthy pods changes, because another pod becomes unhealthy.
		w.updateBudget(newBudget("web", 0, withHealthy(8)))
		w.until("the budget was seen", 0, func() bool {
			return w.laneOf("web").budget.Status.CurrentHealthy == 8
		})
		is.Equal(t, w.reason("web-0"), "UnhealthyPodsHoldBudget", "with one more missing")
		w.updateBudget(newBudget("web", 0, func(b *policyv1.PodDisruptionBudget) { b.Status.ExpectedPods = 9 }))
		w.until("all pods are healthy", reviewAfter, func() bool { return w.reason("web-0") == "PodDisruptionBudget" })
	})
}

// TestOneFailureIsNoBlocker: the pod waits for its next try for longer than the time after which
// repeated failures are reported.
func TestOneFailureIsNoBlocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: func(string) error { return apierrors.NewInternalError(errors.New("no leader")) }},
			newPod("web-0"), newBudget("web", 1))
		w.add("web-0")
		w.until("it failed", 0, w.sentTo(1))
		w.queue.pausedUntil = start.Add(time.Hour)
		w.pass(2*failingAfter, time.Second)
		is.Equal(t, w.reason("web-0"), "", "the reason")
	})
}

// TestCorrectedBudgetEndsItsRefusal: the status of a budget is invalid and then corrected.
func TestCorrectedBudgetEndsItsRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: func(string) error { return tooManyDisrupted() }}, newPod("web-0"), newBudget("web", -1))
		w.add("web-0")
		w.until("it is blocked", time.Second, func() bool { return w.reason("web-0") == "TooManyDisruptedPods" })
		w.queue.pausedUntil = start.Add(time.Hour)
		w.updateBudget(newBudget("web", 1))
		w.until("it is no longer", time.Second, func() bool { return w.reason("web-0") != "TooManyDisruptedPods" })
	})
}

// TestDenialIsReportedInTime: nothing else happens at the time from which a denied pod counts as
// blocked, and its note may not change yet.
func TestDenialIsReportedInTime(t *testing.T) {
	for name, tc := range map[string]struct {
		budget *policyv1.PodDisruptionBudget
		others int
	}{
		"a budget that has been closed for long": {budget: newBudget("db", 0, forApp("db"), oneMayGo, allHealthy)},
		"a large queue":                          {budget: newBudget("db", 1, forApp("db")), others: 1500},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			names, pods := podNames(tc.others)
			w := newWorld(t, worldConfig{
				answer: func(pod string) error {
					if pod == "db-0" {
						return deniedBy("guard", 403, "not now")
					}
					return budgetClosed()
				},
				pods: append(pods, newPod("db-0", ofApp("db"))), budgets: []*policyv1.PodDisruptionBudget{tc.budget},
			}, newBudget("web", 0))
			w.queue.cfg.Policy.DeniedAfter = 90 * time.Second
			w.add(append(names, "db-0")...)
			w.useUpChanges("db-0")
			w.until("it was denied", time.Second, func() bool { return !w.item("db-0").deniedSince.IsZero() })
			w.queue.pausedUntil = start.Add(time.Hour)
			w.pass(88*time.Second, time.Second)
			is.True(t, w.reason("db-0") != "EvictionDenied", "it counts as denied too early")
			w.pass(3*time.Second, time.Second)
			is.Equal(t, w.reason("db-0"), "EvictionDenied", "the reason")
		})
	}
}

// TestRemedyIsUpdated checks that the message about a budget that never allows an eviction follows
// what the last request says about the Deployment of the pod, and that other messages stay.
func TestRemedyIsUpdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := newBudget("web", 0, func(b *policyv1.PodDisruptionBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(0)) })
		w := newWorld(t, worldConfig{answer: budgetRefuses}, newPod("web-0"), never)
		request := Request{Evacuation: evacuationOf("web-0"), Pod: "web-0", UID: "uid-web-0", ReplacedFirst: true, Deployment: "web"}
		sent := 0
		for _, why := range []string{"has the annotation surge: Disabled", "", "is paused", "is paused"} {
			request.NotReplaced = why
			w.queue.Add(request)
			w.until("the pod is blocked", time.Second, func() bool { return w.reason("web-0") == "PodDisruptionBudget" })
			want := v1alpha1.AnnotationSurge + ": " + v1alpha1.SurgeAlways
			if why != "" {
				want = "(Deployment web " + why + ")"
			}
			w.until("the message says "+want, time.Second, func() bool { return w.says("web-0", want) })
			if sent == 0 {
				sent = len(w.host.sent())
			}
			is.Equal(t, len(w.host.sent()), sent, "evictions, since a repeated request causes none")
		}
	})
}
