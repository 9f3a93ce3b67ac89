// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestBlockers(t *testing.T) {
	tests := map[string]struct {
		// pod is newPod("web-0") if nil.
		pod     *corev1.Pod
		budgets []*policyv1.PodDisruptionBudget
		answer  func(string) error
		want    string
		// calls is how many evictions the queue sends before it reports the blocker, failed how
		// many of them count as failed.
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
			budgets: []*policyv1.PodDisruptionBudget{
				newBudget("web", 5, func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 }),
			},
			want: "PodDisruptionBudget", calls: 1, failed: 1,
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
		"an error": {
			answer: func(string) error { return apierrors.NewBadRequest("name") }, want: "EvictionError", calls: 1,
		},
		"several budgets, in the API server only": {
			answer: func(string) error { return severalBudgetsError() }, want: "MultiplePodDisruptionBudgets", calls: 1,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := tc.answer
				if answer == nil {
					answer = func(string) error { return budgetClosed() }
				}
				pod := tc.pod
				if pod == nil {
					pod = newPod("web-0")
				}
				w := newWorld(t,
					worldConfig{maxConcurrent: 50, pods: []*corev1.Pod{pod}, budgets: tc.budgets, answer: answer})
				w.add("web-0")
				w.settled()
				w.until("it is blocked", 10*time.Millisecond, func() bool { return w.reason("web-0") != "" })
				if got := w.reason("web-0"); got != tc.want {
					t.Errorf("got %s, want %s", got, tc.want)
				}
				if n := len(w.host.sent()); n != tc.calls {
					t.Errorf("got %d evictions, want %d", n, tc.calls)
				}
				if failed := w.state("web-0").FailedEvictions; failed != tc.failed {
					t.Errorf("got %d failed evictions, want %d", failed, tc.failed)
				}

				// Without its blocker the pod is evicted.
				w.host.answer = success
				for _, budget := range tc.budgets[min(1, len(tc.budgets)):] {
					w.must(w.client.PolicyV1().PodDisruptionBudgets(namespace).Delete(w.Context(), budget.Name,
						metav1.DeleteOptions{}))
				}
				if len(tc.budgets) > 0 {
					w.updateBudget(newBudget(tc.budgets[0].Name, 5))
				}
				calls := len(w.host.sent())
				w.until("it was sent", 100*time.Millisecond, w.sentTo(calls+1))
			})
		})
	}
}

// A budget at its limit has the same status between two evictions and when a pod never becomes
// ready. Only the time that has passed tells them apart.
func TestUnhealthyPodsAreDistinguishedFromStartingPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{
			maxConcurrent: 1, pods: []*corev1.Pod{newPod("web-0")},
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 0)},
			answer:  func(string) error { return budgetClosed() },
		})
		w.add("web-0")
		w.settled()
		w.pass(blockedAfter+time.Second, time.Second)
		if got := w.reason("web-0"); got != "PodDisruptionBudget" {
			t.Fatalf("got %q after %s, want PodDisruptionBudget", got, blockedAfter)
		}
		w.pass(steadyAfter-blockedAfter-2*time.Second, time.Second)
		if got := w.reason("web-0"); got != "PodDisruptionBudget" {
			t.Errorf("got %q before a minute has passed, want PodDisruptionBudget", got)
		}
		w.pass(2*time.Second, time.Second)
		if got := w.reason("web-0"); got != "UnhealthyPodsHoldBudget" {
			t.Errorf("got %q after a minute, want UnhealthyPodsHoldBudget", got)
		}
		// Pods move again, but one healthy pod more is missing.
		w.updateBudget(newBudget("web", 0, withHealthy(8)))
		w.until("the budget was seen", 0, func() bool {
			w.queue.mu.Lock()
			defer w.queue.mu.Unlock()
			return w.queue.items[evacuationOf("web-0")].lane.budget.Status.CurrentHealthy == 8
		})
		if got := w.reason("web-0"); got != "UnhealthyPodsHoldBudget" {
			t.Errorf("got %q with one more missing, want UnhealthyPodsHoldBudget", got)
		}
		w.updateBudget(newBudget("web", 0, func(b *policyv1.PodDisruptionBudget) { b.Status.ExpectedPods = 9 }))
		w.until("all pods are healthy", 0, func() bool { return w.reason("web-0") == "PodDisruptionBudget" })
	})
}
