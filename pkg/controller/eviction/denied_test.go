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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A webhook that denies some pods delays no other pod: the queue sends each of the others
// immediately, and once.
func TestDeniedPodsDelayNoOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		others, denied int
		answer         error
	}{
		"one of 600 pods, with 429":          {599, 1, deniedBy("virt", 429, "Eviction triggered evacuation of VMI")},
		"one of 600 pods, for an hour":       {599, 1, deniedFor("virt", 429, 3600, "not now")},
		"25 virtual machines among 500 pods": {475, 25, deniedBy("virt", 429, "Eviction triggered evacuation of VMI")},
		"one of 600 pods, by a webhook's 500": {
			599, 1, apierrors.NewInternalError(errors.New(`failed calling webhook "virt": EOF`)),
		},
		"one of 600 pods, by a webhook's 503":    {599, 1, deniedBy("virt", 503, "starting")},
		"all of 500 pods, by a webhook's denial": {0, 500, deniedBy("virt", 429, "not now")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				names, pods := podNames(tc.others)
				for i := range tc.denied {
					// The youngest pods are evicted first.
					vm := fmt.Sprintf("vm-%d", i)
					names, pods = append(names, vm), append(pods, newPod(vm, younger(time.Minute)))
				}
				w := newWorld(t, worldConfig{maxConcurrent: 50, pods: pods, answer: func(pod string) error {
					if strings.HasPrefix(pod, "vm-") {
						return tc.answer
					}
					return nil
				}})
				w.add(names...)
				w.settled()
				if n := len(w.host.sent()); n != tc.others+tc.denied {
					t.Errorf("got %d evictions without any time passing, want each of %d pods tried once", n,
						tc.others+tc.denied)
				}
				if limit := w.queue.concurrency.limit; limit != 50 || !w.queue.pausedUntil.IsZero() {
					t.Errorf("got %d calls at a time and a pause until %v, want 50 and none", limit,
						w.queue.pausedUntil)
				}
				w.pass(10*time.Minute, time.Second)
				n := 0
				for _, call := range w.host.sent() {
					if strings.HasPrefix(call, "vm-") {
						n++
					}
				}
				// 1 s, doubling: tries at 0, 1, 3, 7 ... 511 s.
				if want := 10 * tc.denied; n != want {
					t.Errorf("got %d tries of the denied pods in ten minutes, want %d", n, want)
				}
			})
		})
	}
}

func TestDenialIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const words = "Eviction triggered evacuation of VMI"
		w := newWorld(t, worldConfig{
			maxConcurrent: 1, pods: []*corev1.Pod{newPod("vm")},
			answer: func(string) error { return deniedBy("virt", 403, words) },
		})
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
		if got == nil || got.Reason != "EvictionDenied" || !strings.Contains(got.Message, words) || strings.Contains(
			got.Message, "Grant",
		) {
			t.Errorf("got %+v, want EvictionDenied with the message of the webhook and no advice about rights", got)
		}
		w.mu.Lock()
		if n := w.changes[evacuationOf("vm").Name]; n != 2 {
			t.Errorf("got %d changes reported, want two: each is a write", n)
		}
		w.mu.Unlock()

		// A new leader starts with the blocker and clears it when the webhook allows the eviction.
		w.queue.Remove(evacuationOf("vm"))
		w.queue.Add(Request{Evacuation: evacuationOf("vm"), Pod: "vm", UID: "uid-vm", Blocker: got})
		w.settled()
		if reason := w.reason("vm"); reason != "EvictionDenied" {
			t.Errorf("got %q after a restart, want EvictionDenied", reason)
		}
		w.host.answer = success
		calls := len(w.host.sent())
		w.until("it is sent", time.Second, w.sentTo(calls+1))
	})
}

func TestAnswersThatRepeatForMinutesAreBlockers(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []error
		says    string
	}{
		"timeouts":             {[]error{apierrors.NewTimeoutError("conflicts", 0)}, "no answer in time"},
		"broken connections":   {[]error{errors.New("connection reset by peer")}, "connection reset by peer"},
		"conflicts":            {[]error{apierrors.NewConflict(podResource, "web-0", errors.New("uid"))}, "no answer in time"},
		"overload":             {[]error{overloaded(1)}, "kube-apiserver answers"},
		"overload and timeout": {[]error{overloaded(1), apierrors.NewTimeoutError("conflicts", 0)}, "tried again"},
		"a namespace that is being deleted": {
			[]error{withCause(apierrors.NewForbidden(podResource, "web-0", errors.New("terminating")),
				corev1.NamespaceTerminatingCause, "shop")},
			"namespace is being deleted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := -1
				w := newWorld(t, worldConfig{maxConcurrent: 1, pods: []*corev1.Pod{newPod("web-0")}, answer: func(string) error {
					n++
					return tc.answers[n%len(tc.answers)]
				}})
				w.add("web-0")
				w.settled()
				w.pass(failingAfter-time.Second, time.Second)
				if reason := w.reason("web-0"); reason != "" {
					t.Errorf("got blocked by %s before %s", reason, failingAfter)
				}
				w.pass(time.Second, time.Second)
				if got := w.state("web-0").Blocker; got == nil || got.Reason != "EvictionError" || !strings.Contains(
					got.Message, tc.says,
				) {
					t.Errorf("got %+v after %s, want EvictionError that says %q", got, failingAfter, tc.says)
				}
			})
		})
	}
}
