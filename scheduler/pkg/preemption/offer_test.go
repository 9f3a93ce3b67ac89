// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

func namesOf(victims []upstream.Victim) string {
	var names []string
	for _, pod := range podsOf(victims) {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestOffer(t *testing.T) {
	guarded := func(name string, options ...podOption) *corev1.Pod {
		return runningPod(name, 10, append([]podOption{ofClass("guarded")}, options...)...)
	}
	all := budgetOf("all", 5, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} })
	// disrupted adds pod a to disruptedPods at a time in the past.
	disrupted := func(ago time.Duration) budgetOption {
		return func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptedPods = map[string]metav1.Time{"a": metav1.NewTime(clockTime.Add(-ago))}
		}
	}
	created := func(ago time.Duration) podOption {
		return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(clockTime.Add(-ago)) }
	}
	failed := func(b *policyv1.PodDisruptionBudget) {
		b.Status.Conditions = []metav1.Condition{{
			Type:   policyv1.DisruptionAllowedCondition,
			Status: metav1.ConditionFalse,
			Reason: policyv1.SyncFailedReason,
		}}
	}
	for name, test := range map[string]struct {
		// priority is the priority of the pending pod; 0 means 100.
		priority int32
		victims  [][]*corev1.Pod
		budgets  []*policyv1.PodDisruptionBudget
		refused  []string
		// held has the names of the held-back pods.
		held string
	}{
		"a budget without room": {
			victims: [][]*corev1.Pod{{guarded("a")}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
			held:    "a",
		},
		"a budget with room for one holds back the pod that runs longer": {
			victims: [][]*corev1.Pod{{guarded("a")}, {guarded("b", startedAfter(1))}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)},
			held:    "a",
		},
		"a budget with room for all": {
			victims: [][]*corev1.Pod{{guarded("a")}, {guarded("b")}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 2)},
		},
		"a priority that reaches the threshold": {
			priority: 1000,
			victims:  [][]*corev1.Pod{{guarded("a")}},
			budgets:  []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
		},
		"a priority just below the threshold": {
			priority: 999,
			victims:  [][]*corev1.Pod{{guarded("a")}},
			budgets:  []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
			held:     "a",
		},
		"no budget": {victims: [][]*corev1.Pod{{guarded("a")}}},
		"a class without a threshold": {
			victims: [][]*corev1.Pod{{runningPod("a", 10, ofClass("plain"))}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
		},
		"a pod without a class": {
			victims: [][]*corev1.Pod{{runningPod("a", 10)}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
		},
		"unguarded pods use the room first": {
			victims: [][]*corev1.Pod{{guarded("a")}, {runningPod("b", 10)}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)},
			held:    "a",
		},
		"unguarded pods leave room": {
			victims: [][]*corev1.Pod{{guarded("a")}, {runningPod("b", 10)}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 2)},
		},
		"several budgets": {
			victims: [][]*corev1.Pod{{guarded("a")}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 5), all},
			held:    "a",
		},
		"a selector of all pods": {
			victims: [][]*corev1.Pod{{guarded("a", ofApp("db"))}, {guarded("b", ofApp("db"))}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("all", 1, func(b *policyv1.PodDisruptionBudget) {
				b.Spec.Selector = &metav1.LabelSelector{}
			})},
			held: "b",
		},
		"a status of an earlier spec": {
			victims: [][]*corev1.Pod{{guarded("a")}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 5, stale)},
			held:    "a",
		},
		"a status that could not be computed": {
			victims: [][]*corev1.Pod{{guarded("a")}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 5, failed)},
			held:    "a",
		},
		"not ready, with enough other healthy pods": {
			victims: [][]*corev1.Pod{{guarded("a", notReady)}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
		},
		"terminating": {
			victims: [][]*corev1.Pod{{guarded("a", terminating)}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
		},
		"the eviction was already granted": {
			victims: [][]*corev1.Pod{{guarded("a", created(time.Hour))}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0, disrupted(time.Second))},
		},
		"an earlier pod of the same name was evicted": {
			victims: [][]*corev1.Pod{{guarded("a", created(30*time.Second))}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0, disrupted(time.Minute))},
			held:    "a",
		},
		"the eviction was refused recently": {
			victims: [][]*corev1.Pod{{guarded("a")}, {guarded("b", startedAfter(1))}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)},
			refused: []string{"b"},
			held:    "b",
		},
		"a group is offered as a whole": {
			victims: [][]*corev1.Pod{{guarded("a"), guarded("b")}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 2)},
		},
		"a group is held back as a whole": {
			victims: [][]*corev1.Pod{{guarded("a"), guarded("b")}, {guarded("c")}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)},
			held:    "a b",
		},
		"pods of the pending pod's priority are ignored": {
			victims: [][]*corev1.Pod{{runningPod("a", 100)}, {guarded("b")}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.priority == 0 {
				test.priority = 100
			}
			var victims []upstream.Victim
			for _, pods := range test.victims {
				victims = append(victims, victim(t, pods...))
			}
			offered, held := offer(rulesFor(test.priority, test.budgets, test.refused...), victims)
			if got := namesOf(held); got != test.held {
				t.Errorf("got %q held back, want %q", got, test.held)
			}
			if len(offered)+len(held) != len(victims) {
				t.Errorf("got %d offered and %d held back of %d victims", len(offered), len(held), len(victims))
			}
		})
	}
}

// TestHeldBudgets checks that a preemptor waits for all budgets that may end the protection of a
// victim.
func TestHeldBudgets(t *testing.T) {
	budgets := []*policyv1.PodDisruptionBudget{budgetOf("web", 1), budgetOf("db", 0)}
	for name, test := range map[string]struct {
		pods []*corev1.Pod
		want []string
	}{
		"its own": {[]*corev1.Pod{runningPod("a", 10, ofClass("guarded"))}, []string{"web"}},
		"also the budget of an unguarded pod of the group": {[]*corev1.Pod{runningPod("a", 10, ofClass("guarded")), runningPod("b", 10, ofApp("db"))}, []string{"db", "web"}},
	} {
		held := rulesFor(100, budgets).heldOf(test.pods)
		var got []string
		for b := range held.budgets {
			got = append(got, b.Name)
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) || len(held.pods) != 1 {
			t.Errorf("%s: got the budgets %q and %d pods", name, got, len(held.pods))
		}
	}
}
