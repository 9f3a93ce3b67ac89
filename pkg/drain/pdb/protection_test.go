// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pdb

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestIndexSelectors(t *testing.T) {
	type set = map[string]string
	labels := func(want set) *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: want} }
	expression := func(operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: operator, Values: values}}}
	}
	both := expression("NotIn", "db")
	both.MatchLabels = set{"x": "y"}
	web := set{"app": "web"}
	for name, tc := range map[string]struct {
		selector *metav1.LabelSelector
		labels   set
		want     bool
	}{
		"matchLabels, equal":              {labels(set{"app": "web"}), set{"app": "web", "x": "y"}, true},
		"matchLabels, not equal":          {labels(set{"app": "web"}), set{"app": "db"}, false},
		"matchLabels, one of two equal":   {labels(set{"app": "web", "x": "y"}), web, false},
		"In, with the value":              {expression("In", "db", "web"), web, true},
		"In, without the value":           {expression("In", "db", "api"), web, false},
		"DoesNotExist, without the label": {expression("DoesNotExist"), nil, true},
		"NotIn, with the value":           {expression("NotIn", "web"), web, false},
		"Exists, with the label":          {expression("Exists"), web, true},
		"the empty selector selects all":  {labels(nil), nil, true},
		"no selector selects none":        {nil, web, false},
		"a broken selector selects none":  {expression("Like"), web, false},
		"another label, and DoesNotExist": {both, set{"app": "web", "x": "y"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			elsewhere := budget("elsewhere", selecting(labels(nil)))
			elsewhere.Namespace = "office"
			index := NewIndex([]*policyv1.PodDisruptionBudget{
				budget("other", selecting(labels(set{"app": "other"}))), budget("web", selecting(tc.selector)), elsewhere,
			})
			is.Equal(t, len(index.Matching("shop", tc.labels)) == 1, tc.want)
			is.Equal(t, len(index.Matching("office", tc.labels)), 1, "budgets of another namespace")
			is.Equal(t, len(index.Matching("empty", tc.labels)), 0, "budgets of a namespace without any")
			is.Equal(t, index.Selects("shop", "web", tc.labels), tc.want, "Selects")
			index.Remove("shop", "web")
			index.Remove("shop", "other")
			index.Remove("office", "elsewhere")
			is.Equal(t, index.Len(), 0, "budgets after they were removed")
		})
	}
}

func TestUsesUp(t *testing.T) {
	ready := func(status corev1.ConditionStatus) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
		return pod
	}
	pending := ready(corev1.ConditionFalse)
	pending.Status.Phase = corev1.PodPending
	terminating := ready(corev1.ConditionTrue)
	terminating.DeletionTimestamp = ptr.To(metav1.Now())
	always := func(b *policyv1.PodDisruptionBudget) {
		b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
	}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	// granted adds the pod's name to the evictions in the status, with a time that is the given
	// duration ago.
	granted := func(ago time.Duration) func(*policyv1.PodDisruptionBudget) {
		return func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptedPods = map[string]metav1.Time{"web-1": metav1.NewTime(now.Add(-ago))}
		}
	}
	createdBefore := func(age time.Duration) *corev1.Pod {
		pod := ready(corev1.ConditionTrue)
		pod.CreationTimestamp = metav1.NewTime(now.Add(-age))
		return pod
	}
	short := computed(3, 3, 0)
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		budget []func(*policyv1.PodDisruptionBudget)
		want   bool
	}{
		"ready":                             {ready(corev1.ConditionTrue), nil, true},
		"pending":                           {pending, nil, false},
		"terminating":                       {terminating, nil, false},
		"evicted, but not terminating yet":  {createdBefore(time.Hour), []func(*policyv1.PodDisruptionBudget){granted(time.Second)}, false},
		"evicted, and not deleted for long": {createdBefore(time.Hour), []func(*policyv1.PodDisruptionBudget){granted(2 * time.Minute)}, true},
		"recreated after an eviction":       {createdBefore(30 * time.Second), []func(*policyv1.PodDisruptionBudget){granted(time.Minute)}, true},
		"recreated in the same second":      {createdBefore(time.Minute), []func(*policyv1.PodDisruptionBudget){granted(time.Minute)}, true},
		"not ready, and enough others are":  {ready(corev1.ConditionFalse), []func(*policyv1.PodDisruptionBudget){short}, false},
		"not ready, and too few others are": {ready(corev1.ConditionFalse), []func(*policyv1.PodDisruptionBudget){short, healthy(2)}, true},
		"not ready, with a budget that ignores it": {
			ready(corev1.ConditionFalse), []func(*policyv1.PodDisruptionBudget){short, healthy(2), always}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, UsesUp(budget("web", test.budget...), test.pod, now), test.want)
		})
	}
}

func TestRoom(t *testing.T) {
	changed := func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 }
	for name, test := range map[string]struct {
		budget []func(*policyv1.PodDisruptionBudget)
		want   int
	}{
		"that allows two":               {[]func(*policyv1.PodDisruptionBudget){computed(3, 1, 2)}, 2},
		"that has changed since":        {[]func(*policyv1.PodDisruptionBudget){computed(3, 1, 2), changed}, 0},
		"that could not be computed":    {[]func(*policyv1.PodDisruptionBudget){computed(3, 1, 2), syncFailed}, 0},
		"that allows a negative number": {[]func(*policyv1.PodDisruptionBudget){computed(3, 1, -1)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, Room(budget("web", test.budget...)), test.want)
		})
	}
}
