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
)

func TestOverloadSlowsEverythingDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names, pods := podNames(20)
		w := newWorld(t, worldConfig{maxConcurrent: 8, pods: pods, answer: func(string) error { return overloaded(3) }})
		w.add(names...)
		w.until("the first calls were refused", 0,
			func() bool { return len(w.host.sent()) >= 1 && w.host.inFlight() == 0 })
		w.settled()
		first := len(w.host.sent())
		if first > 8 {
			t.Errorf("got %d evictions, want at most 8 before the first answer", first)
		}
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
	if c.limit != 9 {
		t.Errorf("got %d after two successes, want the maximum of 9", c.limit)
	}
	for range 9 {
		c.bad(9)
	}
	if c.limit != 4 {
		t.Errorf("got %d after nine calls sent together failed, want half the limit at that time", c.limit)
	}
	c.good()
	c.bad(9)
	if c.limit != 4 {
		t.Errorf("got %d after one more of those calls failed, want 4", c.limit)
	}
	for range 3 {
		c.bad(c.limit)
	}
	if c.limit != 1 {
		t.Errorf("got %d, want the minimum of 1", c.limit)
	}
}

func TestOverloadOfOnePodPausesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names, pods := podNames(20)
		w := newWorld(t, worldConfig{maxConcurrent: 8, pods: pods, answer: func(pod string) error {
			if pod == "web-0" {
				return overloaded(3600)
			}
			return nil
		}})
		w.add(names...)
		w.settled()
		if n := len(w.host.sent()); n != 20 {
			t.Errorf("got %d evictions without any time passing, want all 20", n)
		}
		w.pass(maxRetryAfter-time.Second, time.Second)
		if n := len(w.host.sent()); n != 20 {
			t.Errorf("got %d evictions before the longest Retry-After has passed, want 20", n)
		}
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
		}})
		w.add(names...)
		w.settled()
		if n, limit := len(w.host.sent()), w.queue.concurrency.limit; n != 50 || limit != most/2 {
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
			labels := map[string]string{"app": name}
			names, pods = append(names, name), append(pods, newPod(name, func(p *corev1.Pod) { p.Labels = labels }))
			budgets = append(budgets,
				newBudget(name, 1, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector.MatchLabels = labels }))
		}
		for i := range 5 {
			name := fmt.Sprintf("free-%d", i)
			names, pods = append(names, name), append(pods, newPod(name, func(p *corev1.Pod) { p.Labels = nil }))
		}
		hold := make(chan struct{})
		w := newWorld(t, worldConfig{live: true, maxConcurrent: 40, pods: pods, budgets: budgets, answer: func(name string) error {
			if strings.HasPrefix(name, "app-") {
				<-hold
			}
			return nil
		}})
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
