// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package planorder

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/testing/is"
)

func labels(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		plan []Key
		want []string
	}{
		"an empty plan": {},
		"no rule violated": {
			plan: []Key{
				{"", -5, nil}, {"Default", 10, labels("a")}, {"Default", 10, labels("b")}, {"Default", 10, nil},
				{"Default", 20, nil},
				{"DaemonSet", 5, nil}, {"Static", 1, nil},
			},
		},
		"a type out of order": {
			plan: []Key{{"Static", 1, nil}, {"DaemonSet", 2, nil}}, want: []string{"1 against 0: " + string(TypeOrder)},
		},
		"a descending priority": {
			plan: []Key{{"Default", 20, nil}, {"Default", 10, nil}},
			want: []string{"1 against 0: " + string(PriorityOrder)},
		},
		"a lower priority with the next type": {plan: []Key{{"Default", 20, nil}, {"DaemonSet", 10, nil}}},
		"a selector behind the entry without": {
			plan: []Key{{"Default", 10, nil}, {"Default", 10, labels("a")}},
			want: []string{"1 against 0: " + string(SelectorOrder)},
		},
		"an empty selector is none": {
			plan: []Key{{"Default", 10, &metav1.LabelSelector{}}, {"Default", 10, labels("a")}},
			want: []string{"1 against 0: " + string(SelectorOrder)},
		},
		"a duplicate with a different form of the selector": {
			plan: []Key{
				{Type: "Default", Priority: 10, Selector: labels("a")},
				{Type: "Default", Priority: 10, Selector: labels("b")},
				{
					Priority: 10,
					Selector: &metav1.LabelSelector{
						MatchExpressions: []metav1.LabelSelectorRequirement{
							{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "a"}},
						},
					},
				},
			},
			want: []string{"2 against 0: " + string(Duplicate)},
		},
		"one mistake is reported once: later entries are compared with the last entry in order": {
			plan: []Key{{"Default", 20, nil}, {"Default", 10, nil}, {"Default", 30, nil}, {"Default", 5, nil}},
			want: []string{"1 against 0: " + string(PriorityOrder), "3 against 2: " + string(PriorityOrder)},
		},
		"an unknown type is skipped": {plan: []Key{{"Static", 20, nil}, {"Bare", 10, nil}, {"Static", 30, nil}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			Check(test.plan, func(index, against int, v Violation) {
				got = append(got, fmt.Sprintf("%d against %d: %s", index, against, v))
			})
			is.Slices(t, got, test.want)
			unknown := slices.ContainsFunc(test.plan, func(k Key) bool { return k.Type == "Bare" })
			if ordered := Ordered(test.plan); ordered != (len(test.want) == 0 && !unknown) {
				t.Errorf("Ordered returns %v", ordered)
			}
		})
	}
}

func TestBefore(t *testing.T) {
	for name, test := range map[string]struct {
		a, b Key
		want bool
	}{
		"a lower priority":                        {Key{"Default", 1, nil}, Key{"Default", 2, nil}, true},
		"a higher priority":                       {Key{"Default", 2, nil}, Key{"Default", 1, nil}, false},
		"an earlier type":                         {Key{"Default", 2, nil}, Key{"Static", 1, nil}, true},
		"a later type":                            {Key{"Static", 1, nil}, Key{"", 2, nil}, false},
		"with a selector":                         {Key{"Default", 1, labels("a")}, Key{"Default", 1, nil}, true},
		"without a selector":                      {Key{"Default", 1, nil}, Key{"Default", 1, labels("a")}, false},
		"two selectors, in one order":             {Key{"Default", 1, labels("a")}, Key{"Default", 1, labels("b")}, false},
		"two selectors, in the other order":       {Key{"Default", 1, labels("b")}, Key{"Default", 1, labels("a")}, false},
		"equal entries, neither before the other": {Key{"Default", 1, nil}, Key{"Default", 1, nil}, false},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, Before(test.a, test.b), test.want)
		})
	}
}

func TestCanonicalSelector(t *testing.T) {
	in := func(key string, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values}
	}
	same := []*metav1.LabelSelector{
		{
			MatchLabels:      map[string]string{"a": "1"},
			MatchExpressions: []metav1.LabelSelectorRequirement{in("b", "2", "3")},
		},
		{
			MatchLabels:      map[string]string{"a": "1"},
			MatchExpressions: []metav1.LabelSelectorRequirement{in("b", "3", "2", "3")},
		},
		{MatchExpressions: []metav1.LabelSelectorRequirement{in("b", "3", "2"), in("a", "1")}},
		{
			MatchLabels:      map[string]string{"a": "1"},
			MatchExpressions: []metav1.LabelSelectorRequirement{in("b", "3", "2"), in("a", "1")},
		},
	}
	for i, s := range same {
		if got, want := CanonicalSelector(s), CanonicalSelector(same[0]); got != want {
			t.Errorf("selector %d is %q, want %q", i, got, want)
		}
	}
	different := []*metav1.LabelSelector{
		nil, same[0], labels("a"), labels("b"),
		{MatchExpressions: []metav1.LabelSelectorRequirement{in("app", "a", "b")}},
		{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a", "b"}},
			},
		},
		{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}},
		{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpDoesNotExist},
			},
		},
	}
	seen := map[string]int{}
	for i, s := range different {
		if first, ok := seen[CanonicalSelector(s)]; ok {
			t.Errorf("selectors %d and %d are both %q", first, i, CanonicalSelector(s))
		}
		seen[CanonicalSelector(s)] = i
	}
	if got := CanonicalSelector(&metav1.LabelSelector{}); got != "" {
		t.Errorf("the empty selector is %q, want it like none", got)
	}
}
