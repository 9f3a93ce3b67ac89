// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestMemoryIsBounded refuses more pods than the maximum. The memory must forget the refusal that
// ends first.
func TestMemoryIsBounded(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(started)
	m := newMemory(nil)
	m.clock = clock
	uid := func(i int) types.UID { return types.UID(fmt.Sprint(i)) }
	for i := range maxRefusals + 1 {
		m.refuse(uid(i), nil)
		clock.SetTime(clock.Now().Add(time.Microsecond))
	}
	if len(m.refused) != maxRefusals || m.refused[uid(0)] != nil || m.refused[uid(maxRefusals)] == nil {
		t.Errorf("got %d refusals; the first and last: %v, %v", len(m.refused), m.refused[uid(0)], m.refused[uid(maxRefusals)])
	}
	clock.SetTime(clock.Now().Add(refusalDelay + maxRefusalDelay))
	m.refuse("new", nil)
	if len(m.refused) != 1 {
		t.Errorf("got %d expired refusals", len(m.refused)-1)
	}
	m.leaveOut("p1", "n1", nil)
	clock.SetTime(clock.Now().Add(leaveOutDelay + maxRefusalDelay))
	m.leaveOut("p2", "n1", nil)
	if len(m.leftOut) != 1 {
		t.Errorf("got candidates of %d pods, want 1", len(m.leftOut))
	}
}

// TestLeavingPodIsForgotten checks that deleted victims are forgotten. One of them is deleted
// before the gate records it, so no event follows.
func TestLeavingPodIsForgotten(t *testing.T) {
	a, b := runningPod("a", 10), runningPod("b", 10)
	w := newGateWorld(t, nil, a)
	w.addLeaving("p", a)
	w.addLeaving("p", b)
	if len(w.leaving) != 1 {
		t.Errorf("got %d victims, want 1: the other one is deleted", len(w.leaving))
	}
	must.Do(t, w.handle.client.CoreV1().Pods("shop").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	waitFor(t, "the gate has forgotten the victim", func() bool {
		w.memory.mu.Lock()
		defer w.memory.mu.Unlock()
		return len(w.leaving) == 0
	})
}

// TestAwaitsVictimsByNode checks that a pod waits only for its own victims, and only if it is
// nominated for their node.
func TestAwaitsVictimsByNode(t *testing.T) {
	pods := []*corev1.Pod{runningPod("a", 10, onNode("n1")), runningPod("b", 10, onNode("n2"))}
	w := newGateWorld(t, nil, pods...)
	w.addLeaving("p", pods[0])
	w.addLeaving("q", pods[1])
	for node, want := range map[string]bool{"n1": true, "n2": false} {
		if got := w.awaitsVictims("p", func(name string) bool { return name == node }); got != want {
			t.Errorf("nominated for %s: got %v", node, got)
		}
	}
}

// TestVictimsAreEvictedOnce makes other preemptors choose three victims again: one during its
// eviction, one whose eviction is not in the cache yet, and one that began to terminate after the
// search.
func TestVictimsAreEvictedOnce(t *testing.T) {
	leaving := runningPod("c", 10, ofClass("guarded"))
	leaving.DeletionTimestamp, leaving.Finalizers = ptr.To(metav1.NewTime(started)), []string{"example.com/hold"}
	pods := []*corev1.Pod{runningPod("a", 10, ofClass("guarded")), runningPod("b", 10), runningPod("c", 10, ofClass("guarded"))}
	w := newGateWorld(t, []*policyv1.PodDisruptionBudget{budgetOf("web", 3)}, pods[0], pods[1], leaving)
	second := preemptorOf(200)
	second.Pod.UID = "second"
	w.answer = func(string) error {
		if err := w.preemptAll(t, &fakeCandidate{victims: pods[:1]}, second); err == nil {
			t.Error("a victim was claimed twice during its eviction")
		}
		return nil
	}
	must.Do(t, w.preemptAll(t, &fakeCandidate{victims: pods[:1]}, preemptorOf(100)))
	must.Do(t, w.preemptAll(t, &fakeCandidate{victims: pods}, second))
	w.wantCalls(t, "evict a", "delete b")
	for _, uid := range []types.UID{preemptorOf(100).UID(), second.UID()} {
		is.True(t, w.awaitsVictims(uid, onAnyNode), "%s does not wait for the victim", uid)
	}
}
