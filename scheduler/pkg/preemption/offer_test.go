/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package preemption

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"haulout.dev/haulout/pkg/drain/budget"
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
	// disrupted lists an eviction of pod a that was granted so long ago.
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
		// priority is that of the pending pod; 0 means 100.
		priority int32
		victims  [][]*corev1.Pod
		budgets  []*policyv1.PodDisruptionBudget
		refused  []string
		// held are the names of the pods that are held back.
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
		"unguarded pods come out of the room first": {
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
		"not ready, and enough others are": {
			victims: [][]*corev1.Pod{{guarded("a", notReady)}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
		},
		"terminating": {
			victims: [][]*corev1.Pod{{guarded("a", terminating)}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
		},
		"evicted already": {
			victims: [][]*corev1.Pod{{guarded("a", created(time.Hour))}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0, disrupted(time.Second))},
		},
		"an earlier pod of the name was evicted": {
			victims: [][]*corev1.Pod{{guarded("a", created(30*time.Second))}},
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0, disrupted(time.Minute))},
			held:    "a",
		},
		"refused lately": {
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
		"pods of the pending pod's priority count for nothing": {
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

// TestOfferBreaksNoBudget makes random nodes and takes all that is offered together, which is the
// most that can be chosen: no budget of a guarded pod may lose more than it allows. A pod is only
// held back if its budgets have too little room for it beside what is offered.
func TestOfferBreaksNoBudget(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 0))
		apps := []string{"web", "db", "cache"}
		var budgets []*policyv1.PodDisruptionBudget
		for _, app := range apps {
			if random.IntN(4) > 0 {
				options := []budgetOption{}
				if random.IntN(8) == 0 {
					options = append(options, stale)
				}
				budgets = append(budgets, budgetOf(app, random.Int32N(4), options...))
			}
		}
		classes := []string{"", "plain", "guarded", "higher"}
		priority := []int32{50, 1000, 1500, 2000}[random.IntN(4)]
		var victims []upstream.Victim
		for i := range 1 + random.IntN(8) {
			var pods []*corev1.Pod
			for j := range 1 + random.IntN(4)/3*2 {
				pod := runningPod(fmt.Sprintf("p%d-%d", i, j), random.Int32N(60), ofClass(classes[random.IntN(4)]),
					ofApp(apps[random.IntN(3)]), startedAfter(random.IntN(5)))
				switch random.IntN(8) {
				case 0:
					notReady(pod)
				case 1:
					terminating(pod)
				}
				pods = append(pods, pod)
			}
			victims = append(victims, victim(t, pods...))
		}
		r := rulesFor(priority, budgets)
		offered, held := offer(r, victims)
		check(t, seed, r, offered, held)
	}
}

func check(t *testing.T, seed uint64, r *rules, offered, held []upstream.Victim) {
	t.Helper()
	// guards are the budgets of guarded pods that are offered, guarding those of any.
	lost, room, guards, guarding := map[string]int{}, map[string]int{}, map[string]bool{}, map[string]bool{}
	for i, v := range append(slices.Clone(offered), held...) {
		if v.Priority() >= r.priority {
			continue
		}
		for _, info := range v.Pods() {
			p := r.protectionOf(info.GetPod())
			for _, b := range p.used {
				room[b.Name] = budget.Room(b)
				guarding[b.Name] = guarding[b.Name] || p.guarded
				if i < len(offered) {
					lost[b.Name]++
					guards[b.Name] = guards[b.Name] || p.guarded
				}
			}
		}
	}
	for name, n := range lost {
		if guards[name] && n > room[name] {
			t.Errorf("seed %d: budget %s of a guarded pod loses %d and allows %d", seed, name, n, room[name])
		}
	}
	for _, v := range held {
		needed, short := map[string]int{}, false
		for _, info := range v.Pods() {
			for _, b := range r.protectionOf(info.GetPod()).used {
				needed[b.Name]++
			}
		}
		for name, n := range needed {
			short = short || guarding[name] && lost[name]+n > room[name]
		}
		if !short {
			t.Errorf("seed %d: %s is held back although its budgets have room", seed, namesOf([]upstream.Victim{v}))
		}
	}
}
