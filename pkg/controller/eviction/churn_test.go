// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pdb "haulout.dev/haulout/pkg/drain/budget"
)

func selects(key, value string) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
}

func generation(n int64) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Generation, b.Status.ObservedGeneration = n, n }
}

// manyBudgets is a namespace with n applications that have a budget each, and 1,000 waiting pods:
// ten of each of a hundred applications.
func manyBudgets(t *testing.T, n int) *world {
	t.Helper()
	cfg := worldConfig{maxConcurrent: 1, answer: func(string) error { return budgetClosed() }}
	for i := range n {
		app := fmt.Sprintf("app-%d", i)
		cfg.budgets = append(cfg.budgets, newBudget(app, 0, selects("app", app)))
	}
	var names []string
	for i := range 1000 {
		name, app := fmt.Sprintf("pod-%d", i), fmt.Sprintf("app-%d", i/10)
		names = append(names, name)
		cfg.pods = append(cfg.pods, newPod(name, func(p *corev1.Pod) { p.Labels = map[string]string{"app": app} }))
	}
	w := newWorld(t, cfg)
	w.add(names...)
	w.settled()
	return w
}

func (w *world) matches() int {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	return w.queue.budgets.Matched()
}

func TestChangeOfABudgetMatchesOnlyThePodsItConcerns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := manyBudgets(t, 2000)
		if n := w.matches(); n > 1000 {
			t.Errorf("got %d matches of 1,000 pods with 2,000 budgets, want one for each pod", n)
		}
		for _, step := range []struct {
			name   string
			change func(*policyv1.PodDisruptionBudget)
			most   int
		}{
			{"a budget that asks for another number of the same pods", generation(2), 0},
			{
				"a budget that selects other pods",
				func(b *policyv1.PodDisruptionBudget) { generation(3)(b); selects("app", "app-50")(b) }, 10,
			},
			{"a budget that selects its pods again", generation(4), 10},
			{
				"a budget that selects no waiting pod",
				func(b *policyv1.PodDisruptionBudget) { generation(5)(b); selects("app", "none")(b) }, 0,
			},
		} {
			before := w.matches()
			w.updateBudget(newBudget("app-7", 0, selects("app", "app-7"), step.change))
			w.settled()
			w.pass(churnInterval, churnInterval)
			if got := w.matches() - before; got > step.most {
				t.Errorf("%s: got %d matches, want at most %d", step.name, got, step.most)
			}
		}
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		if l := w.queue.items[evacuationOf("pod-70")].lane; l != w.queue.free {
			t.Errorf("got the lane of %v, want no lane for a pod that its budget no longer selects", l.budgetName)
		}
	})
}

func TestBudgetThatChangesAllTheTimeIsMatchedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := manyBudgets(t, 100)
		before := w.matches()
		for n := range int64(100) {
			value := []string{"app-7", "app-8"}[n%2]
			w.updateBudget(newBudget("app-7", 0, selects("app", value), generation(n+2)))
			w.settled()
			w.pass(100*time.Millisecond, 100*time.Millisecond)
		}
		w.pass(churnInterval, churnInterval)
		if got := w.matches() - before; got > 12*10 {
			t.Errorf(
				"got %d matches for 100 changes in ten seconds, want at most the ten pods of a selector each second",
				got,
			)
		}
		if got, want := w.budgetsOf("pod-80"), []string{"app-7", "app-8"}; !slices.Equal(got, want) {
			t.Errorf("got %v for a pod that the last version selects, want %v", got, want)
		}
	})
}

// TestANewBudgetCountsImmediately adds two budgets one after the other, faster than changes are
// evaluated.
func TestANewBudgetCountsImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := manyBudgets(t, 10)
		for _, name := range []string{"first", "second"} {
			w.createBudget(newBudget(name, 0, selects("app", "app-7")))
			w.settled()
		}
		if got, want := w.budgetsOf("pod-70"), []string{"app-7", "first", "second"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func (w *world) budgetsOf(pod string) []string {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	return slices.Clone(w.queue.items[evacuationOf(pod)].budgets)
}

func TestBudgetsOfAPod(t *testing.T) {
	in := func(values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values}
	}
	is := func(operator metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: "app", Operator: operator, Values: values}
	}
	for name, tc := range map[string]struct {
		selector *metav1.LabelSelector
		labels   map[string]string
		want     bool
	}{
		"matchLabels, equal": {
			&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			map[string]string{"app": "web", "x": "y"}, true,
		},
		"matchLabels, not equal": {
			&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, map[string]string{"app": "db"}, false,
		},
		"matchLabels, one of two equal": {
			&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "x": "y"}},
			map[string]string{"app": "web"}, false,
		},
		"In, with the value": {
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("db", "web")}},
			map[string]string{"app": "web"}, true,
		},
		"In, without the value": {
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("db", "api")}},
			map[string]string{"app": "web"}, false,
		},
		"DoesNotExist, with the label": {
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{is("DoesNotExist")}}, nil, true,
		},
		"NotIn, with the value": {
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{is("NotIn", "web")}},
			map[string]string{"app": "web"}, false,
		},
		"Exists, with the label": {
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{is("Exists")}},
			map[string]string{"app": "web"}, true,
		},
		"the empty selector selects all": {&metav1.LabelSelector{}, nil, true},
		"no selector selects none":       {nil, map[string]string{"app": "web"}, false},
		"a broken selector selects none": {
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{is("Like")}},
			map[string]string{"app": "web"}, false,
		},
		"matchLabels with another label, and DoesNotExist": {&metav1.LabelSelector{
			MatchLabels:      map[string]string{"x": "y"},
			MatchExpressions: []metav1.LabelSelectorRequirement{is("NotIn", "db")},
		}, map[string]string{"app": "web", "x": "y"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := pdb.NewIndex([]*policyv1.PodDisruptionBudget{
				newBudget("other", 1, selects("app", "other")),
				newBudget("web", 1, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = tc.selector }),
			})
			q := &Queue{budgets: b}
			it := &item{Request: Request{Evacuation: evacuationOf("web-0")}}
			q.matchBudgets(it, tc.labels)
			if got := len(q.budgetsOf(it)) == 1; got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if got := b.Selects(namespace, "web", tc.labels); got != tc.want {
				t.Errorf("got Selects %v, want %v", got, tc.want)
			}
			b.Remove(namespace, "web")
			b.Remove(namespace, "other")
			if b.Len() != 0 {
				t.Errorf("got %d budgets after they were deleted, want none", b.Len())
			}
		})
	}
}
