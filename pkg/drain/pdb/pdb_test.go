// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pdb

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func budget(name string, modifiers ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	return build.With(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 1}}, modifiers...)
}

func maxUnavailable(s string) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.Parse(s)) }
}

func minAvailable(s string) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = ptr.To(intstr.Parse(s)) }
}

// computed sets the status that the disruption controller would set.
func computed(expected, desired, allowed int32) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Status = policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: b.Generation, ExpectedPods: expected, DesiredHealthy: desired,
			CurrentHealthy: desired + allowed, DisruptionsAllowed: allowed,
		}
	}
}

func healthy(pods int32) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy = pods }
}

func syncFailed(b *policyv1.PodDisruptionBudget) {
	b.Status.Conditions = []metav1.Condition{{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: "no scale",
	}}
}

func selecting(selector *metav1.LabelSelector) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = selector }
}

func TestNeverAllows(t *testing.T) {
	type modifiers = []func(*policyv1.PodDisruptionBudget)
	changed := func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 }
	for name, test := range map[string]struct {
		budget modifiers
		// want is the reason. It is empty for a budget that allows evictions.
		want string
	}{
		"maxUnavailable 0":                   {budget: modifiers{maxUnavailable("0"), computed(3, 3, 0)}, want: "maxUnavailable 0"},
		"maxUnavailable 0, not computed yet": {budget: modifiers{maxUnavailable("0")}, want: "maxUnavailable 0"},
		"maxUnavailable 0%":                  {budget: modifiers{maxUnavailable("0%"), computed(3, 3, 0)}, want: "maxUnavailable 0%"},
		"maxUnavailable 0 with surplus pods": {budget: modifiers{maxUnavailable("0"), computed(3, 3, 1)}},
		"maxUnavailable 0 whose surplus is out of date": {
			budget: modifiers{maxUnavailable("0"), computed(3, 3, 1), changed}, want: "maxUnavailable 0",
		},
		"maxUnavailable 1":                                {budget: modifiers{maxUnavailable("1"), computed(3, 2, 1)}},
		"maxUnavailable 1 that is used up":                {budget: modifiers{maxUnavailable("1"), computed(3, 2, 0)}},
		"maxUnavailable 1%, which rounds up to one":       {budget: modifiers{maxUnavailable("1%"), computed(3, 2, 0)}},
		"maxUnavailable 1 of a Deployment scaled to zero": {budget: modifiers{maxUnavailable("1"), computed(0, 0, 0)}},
		"minAvailable 100%":                               {budget: modifiers{minAvailable("100%"), computed(3, 3, 0)}, want: "minAvailable 100%"},
		"minAvailable 100%, not computed yet":             {budget: modifiers{minAvailable("100%")}, want: "minAvailable 100%"},
		"minAvailable 50% of one pod, which rounds up to one": {
			budget: modifiers{minAvailable("50%"), computed(1, 1, 0)}, want: "minAvailable 50% of 1 pods",
		},
		"minAvailable 50% of two pods": {budget: modifiers{minAvailable("50%"), computed(2, 1, 0)}},
		"minAvailable 3 of 3": {
			budget: modifiers{minAvailable("3"), computed(3, 3, 0)}, want: "minAvailable 3 of 3 pods",
		},
		"minAvailable 4 of 3": {
			budget: modifiers{minAvailable("4"), computed(3, 4, 0)}, want: "minAvailable 4 of 3 pods",
		},
		"minAvailable 2 of 3":              {budget: modifiers{minAvailable("2"), computed(3, 2, 0)}},
		"minAvailable 3, not computed yet": {budget: modifiers{minAvailable("3")}},
		"minAvailable 3 of 3, changed since then": {
			budget: modifiers{minAvailable("3"), computed(3, 3, 0), changed},
		},
		"minAvailable 0": {budget: modifiers{minAvailable("0"), computed(3, 0, 3)}},
		"no limit":       {budget: modifiers{computed(0, 0, 0)}, want: "neither minAvailable nor maxUnavailable"},
		"maxUnavailable 1 of pods without a controller": {
			budget: modifiers{maxUnavailable("1"), computed(0, 0, 0), healthy(2)},
			want:   "it counts none of its pods, which have no controller",
		},
		"maxUnavailable 1 of pods without a controller, changed since then": {
			budget: modifiers{maxUnavailable("1"), computed(0, 0, 0), healthy(2), changed},
		},
		"a budget that cannot be computed": {
			budget: modifiers{maxUnavailable("1"), syncFailed}, want: "it cannot be computed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, never := NeverAllows(budget("web", test.budget...))
			is.True(t, got == test.want && never == (test.want != ""), "got %q, %v, want %q", got, never, test.want)
		})
	}
}

func TestMatching(t *testing.T) {
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	budgets := []*policyv1.PodDisruptionBudget{budget("web", selecting(web)), budget("all", selecting(&metav1.LabelSelector{}))}
	x := NewIndex(budgets)
	names := func(pod labels.Set) (names []string) {
		for _, b := range x.Matching("shop", pod) {
			names = append(names, b.Name)
		}
		return names
	}
	if got, want := names(labels.Set{"app": "web"}), []string{"all", "web"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := names(nil), []string{"all"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	newer := budget("all", selecting(&metav1.LabelSelector{}))
	newer.Generation = 2
	if !x.Update(newer) || x.Get("shop", "all") != newer {
		t.Errorf("got the old version after an update that selects the same pods")
	}
	other := budget("all", selecting(web))
	is.True(t, !x.Update(other), "got an update for a version that selects other pods, want false")
	x.Set(other)
	if got := names(nil); got != nil {
		t.Errorf("got %q after the change of the selector, want none", got)
	}
	x.Remove("shop", "web")
	if got, want := names(labels.Set{"app": "web"}), []string{"all"}; !slices.Equal(got, want) {
		t.Errorf("got %q after the other budget was deleted, want %q", got, want)
	}
	for _, b := range budgets {
		x.Remove("shop", b.Name)
	}
	if x.Len() != 0 || len(x.byNamespace) != 0 {
		t.Errorf("got %d budgets after all were deleted", x.Len())
	}
}

// TestLookUpIsCheapAmongManyBudgets covers a tenant with 5,000 budgets that share two labels and
// differ in the third.
func TestLookUpIsCheapAmongManyBudgets(t *testing.T) {
	x := NewIndex(nil)
	app := func(i int) labels.Set {
		return labels.Set{"a-team": "y", "app": fmt.Sprintf("app-%d", i), "tier": "x"}
	}
	for i := range 5000 {
		x.Set(budget(fmt.Sprintf("app-%d", i), selecting(&metav1.LabelSelector{MatchLabels: app(i)})))
	}
	for i := range 100 {
		if got := x.Matching("shop", app(50*i)); len(got) != 1 || got[0].Name != app(50 * i)["app"] {
			t.Fatalf("got %d budgets of app-%d, want its own", len(got), 50*i)
		}
	}
	if n := x.Matched(); n > 200 {
		t.Errorf("got %d selectors matched for 100 pods, want two each at most", n)
	}
}

func TestHolds(t *testing.T) {
	now := metav1.NewTime(time.Unix(0, 0))
	for name, test := range map[string]struct {
		pod  corev1.Pod
		want bool
	}{
		"running":   {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}, true},
		"unknown":   {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodUnknown}}, true},
		"pending":   {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}}, false},
		"succeeded": {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, false},
		"failed":    {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}, false},
		"terminating": {
			pod: corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now},
				Status:     corev1.PodStatus{Phase: corev1.PodRunning},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, Holds(&test.pod), test.want)
		})
	}
}

func TestHeldByUnhealthy(t *testing.T) {
	always := func(b *policyv1.PodDisruptionBudget) {
		b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
	}
	for name, tc := range map[string]struct {
		healthy, desired, expected int32
		mod                        func(*policyv1.PodDisruptionBudget)
		ready, steady, want        bool
		says                       string
	}{
		"a pod that is not ready, in a budget that has too few": {
			healthy: 3, desired: 4, expected: 5, want: true, says: "2 of 5 pods are missing or not ready",
		},
		"a pod that is not ready, in a budget that has enough": {healthy: 4, desired: 4, expected: 5},
		"a pod that is not ready, under AlwaysAllow":           {healthy: 3, desired: 4, expected: 5, mod: always},
		"a pod that is not ready, in a budget that never allows": {
			healthy: 4, desired: 5, expected: 5, want: true, says: "AlwaysAllow",
		},
		"a ready pod, in a budget that has too few": {
			healthy: 3, desired: 4, expected: 5, ready: true, want: true, says: "PodDisruptionBudget web",
		},
		"a ready pod, in a budget that has too few, under AlwaysAllow": {
			healthy: 3, desired: 4, expected: 5, ready: true, mod: always, want: true, says: "Get them ready.",
		},
		"a ready pod, in a budget that has just enough": {healthy: 4, desired: 4, expected: 5, ready: true},
		"a ready pod, in a budget that has had just enough for a while": {
			healthy: 4, desired: 4, expected: 5, ready: true, steady: true, want: true, says: "1 of 5",
		},
		"a ready pod, in a budget that never allows its eviction": {
			healthy: 4, desired: 5, expected: 5, ready: true, steady: true,
		},
		"a ready pod, in a budget whose pods are all healthy": {
			healthy: 5, desired: 5, expected: 5, ready: true, steady: true,
		},
		"a budget whose status is that of another spec": {
			healthy: 3, desired: 4, expected: 5, mod: func(b *policyv1.PodDisruptionBudget) { b.Generation++ },
		},
		"a budget with more evictions than the API server accepts": {
			healthy: 3, desired: 4, expected: 5,
			mod: func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed = -1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 1},
				Status: policyv1.PodDisruptionBudgetStatus{
					ObservedGeneration: 1, CurrentHealthy: tc.healthy, DesiredHealthy: tc.desired,
					ExpectedPods: tc.expected,
				},
			}
			if tc.mod != nil {
				tc.mod(b)
			}
			got, held := HeldByUnhealthy(b, tc.ready, tc.steady)
			if held != tc.want || held != (tc.says != "") || !strings.Contains(got.Message, tc.says) {
				t.Errorf("got %v and %q, want %v and %q", held, got.Message, tc.want, tc.says)
			}
		})
	}
}

// TestExplainSeveral: a tenant may create thousands of budgets that select the same pods.
func TestExplainSeveral(t *testing.T) {
	for n, want := range map[int]string{
		2:    "PodDisruptionBudgets b-0, b-1, and the",
		10:   "b-8, b-9, and the",
		5000: "b-8, b-9, and 4990 more, and the",
	} {
		var matching []*policyv1.PodDisruptionBudget
		for i := range n {
			matching = append(matching, budget(fmt.Sprintf("b-%d", i)))
		}
		got := ExplainSeveral(matching).Message
		is.True(t, strings.Contains(got, want), "%d budgets: got %q, want %q in it", n, got, want)
	}
}
