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
)

// TestRefusedPodIsHeldBack doubles the time after each refusal, and ends it when the budget opens.
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
		if !w.isRefused(pod.UID) {
			t.Errorf("not held back for %d s", want)
		}
		w.clock.SetTime(w.clock.Now().Add(time.Millisecond))
		if w.isRefused(pod.UID) {
			t.Errorf("held back for more than %d s", want)
		}
	}
	w.clock.SetTime(w.clock.Now().Add(maxRefusalDelay))
	refuse()
	w.clock.SetTime(w.clock.Now().Add(refusalDelay))
	if w.isRefused(pod.UID) {
		t.Error("a refusal counts that was long ago")
	}
	refuse()
	w.waiting.budgetChanged(budgetOf("db", 0), budgetOf("db", 1))
	if !w.isRefused(pod.UID) {
		t.Error("another budget has ended it")
	}
	w.waiting.budgetChanged(budgetOf("web", 0), budgetOf("web", 1))
	if w.isRefused(pod.UID) {
		t.Error("its budget has not ended it")
	}
}

// TestCandidateIsLeftOut leaves a candidate out of the searches of the pending pod whose victims
// were refused: for twice as long each time, until a budget opens.
func TestCandidateIsLeftOut(t *testing.T) {
	pods := []*corev1.Pod{runningPod("a", 10, ofClass("guarded")), preemptorOf(100).Pod}
	w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}, pods...)
	preemptor := preemptorOf(100)
	refuse := func() {
		t.Helper()
		if err := w.preemptAll(t, &fakeCandidate{victims: pods[:1]}, preemptor); err == nil {
			t.Fatal("the set was not refused")
		}
		if got := <-w.handle.activated; got != "pending" {
			t.Errorf("%s was activated", got)
		}
	}
	leftOut := func() bool { return w.isLeftOut(preemptor.UID(), "n1") }
	for _, want := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		refuse()
		w.clock.SetTime(w.clock.Now().Add(time.Duration(want)*time.Second - time.Millisecond))
		if !leftOut() {
			t.Errorf("not left out for %d s", want)
		}
		w.clock.SetTime(w.clock.Now().Add(time.Millisecond))
		if leftOut() {
			t.Errorf("left out for more than %d s", want)
		}
	}
	refuse()
	if w.isLeftOut(preemptor.UID(), "n2") {
		t.Error("another node is left out")
	}
	if w.isLeftOut("other", "n1") {
		t.Error("the node is left out for another pod")
	}
	w.waiting.budgetChanged(budgetOf("web", 0), budgetOf("web", 1))
	if leftOut() {
		t.Error("left out although its budget has opened")
	}
}
