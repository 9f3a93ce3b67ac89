// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"haulout.dev/haulout/pkg/testing/is"
)

// TestRefusedPodIsHeldBack checks that the delay doubles after each refusal, and ends when the
// budget allows a disruption.
func TestRefusedPodIsHeldBack(t *testing.T) {
	pod := runningPod("a", 10, ofClass("guarded"))
	w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}, pod)
	w.answer = func(string) error { return apierrors.NewInternalError(errors.New("broken")) }
	refuse := func() {
		t.Helper()
		if err := w.preemptAll(t, &fakeCandidate{victims: []*corev1.Pod{pod}}, preemptorOf(100)); err == nil {
			t.Fatal("the eviction was not refused")
		}
	}
	for _, want := range []int{10, 20, 40, 80, 160, 300, 300} {
		refuse()
		w.clock.SetTime(w.clock.Now().Add(time.Duration(want)*time.Second - time.Millisecond))
		is.True(t, w.isRefused(pod.UID), "the refusal ended before %d s", want)
		w.clock.SetTime(w.clock.Now().Add(time.Millisecond))
		is.True(t, !w.isRefused(pod.UID), "the refusal lasted longer than %d s", want)
	}
	w.clock.SetTime(w.clock.Now().Add(maxRefusalDelay))
	refuse()
	w.clock.SetTime(w.clock.Now().Add(refusalDelay))
	is.True(t, !w.isRefused(pod.UID), "an expired refusal is in effect")
	refuse()
	w.waiting.budgetChanged(budgetOf("db", 0), budgetOf("db", 1))
	is.True(t, w.isRefused(pod.UID), "another budget has ended the refusal")
	w.waiting.budgetChanged(budgetOf("web", 0), budgetOf("web", 1))
	is.True(t, !w.isRefused(pod.UID), "the budget of the pod has not ended the refusal")
}

// TestCandidateIsLeftOut checks that the pending pod does not try a node again after an eviction
// there was refused. The delay doubles each time, and ends when a budget allows a disruption.
func TestCandidateIsLeftOut(t *testing.T) {
	pods := []*corev1.Pod{runningPod("a", 10, ofClass("guarded")), preemptorOf(100).Pod}
	w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}, pods...)
	preemptor := preemptorOf(100)
	refuse := func() {
		t.Helper()
		if err := w.preemptAll(t, &fakeCandidate{victims: pods[:1]}, preemptor); err == nil {
			t.Fatal("the set of victims was not refused")
		}
		if got := <-w.handle.activated; got != "pending" {
			t.Errorf("%s was activated", got)
		}
	}
	leftOut := func() bool { return w.isLeftOut(preemptor.UID(), "n1") }
	for _, want := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		refuse()
		w.clock.SetTime(w.clock.Now().Add(time.Duration(want)*time.Second - time.Millisecond))
		is.True(t, leftOut(), "the node was excluded for less than %d s", want)
		w.clock.SetTime(w.clock.Now().Add(time.Millisecond))
		is.True(t, !leftOut(), "the node was excluded for more than %d s", want)
	}
	refuse()
	is.True(t, !w.isLeftOut(preemptor.UID(), "n2"), "another node is excluded, too")
	is.True(t, !w.isLeftOut("other", "n1"), "the node is also excluded for another pod")
	w.waiting.budgetChanged(budgetOf("web", 0), budgetOf("web", 1))
	is.True(t, !leftOut(), "the node is excluded although the budget allows a disruption")
}

// TestDoubtfulVictimsLeaveFirst checks the order of evictions: after dry runs that succeed, a
// refusal is most likely for a pod that was refused before, and then for a pod whose budget has
// little room.
func TestDoubtfulVictimsLeaveFirst(t *testing.T) {
	budgets := []*policyv1.PodDisruptionBudget{budgetOf("web", 9), budgetOf("db", 1)}
	web, db := runningPod("web", 10, ofClass("guarded")), runningPod("db", 10, ofClass("guarded"), ofApp("db"))
	again := runningPod("again", 10, ofClass("guarded"))
	w := newGateWorld(t, budgets, web, db, again)
	w.asked = func(string) error { return nil }
	w.answer = func(pod string) error {
		if pod == "web" {
			return nil
		}
		return apierrors.NewInternalError(errors.New("broken"))
	}
	attempt := func(victims ...*corev1.Pod) {
		t.Helper()
		w.calls = nil
		if err := w.preemptAll(t, &fakeCandidate{victims: victims}, preemptorOf(100)); err == nil {
			t.Fatal("the eviction was not refused")
		}
		w.clock.SetTime(w.clock.Now().Add(refusalDelay))
	}
	attempt(web, db)
	w.wantCalls(t, "ask db", "ask web", "evict db")
	attempt(again)
	attempt(web, again)
	w.wantCalls(t, "ask again", "ask web", "evict again")
}
