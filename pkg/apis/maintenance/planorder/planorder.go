// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package planorder has the rules for the order of a drain plan. Defaulting, validation and
// planning share them.
package planorder

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Key is the sort key of a drain plan entry.
type Key struct {
	// Type is the pod type; an empty type counts as Default.
	Type string
	// Priority is the highest pod priority that the entry covers.
	Priority int32
	// Selector restricts the entry; nil and the empty selector match all pods.
	Selector *metav1.LabelSelector
}

// Violation is an ordering rule that an entry violates with respect to an earlier entry.
type Violation string

const (
	// TypeOrder means that the pod types are not in the order Default, DaemonSet, Static.
	TypeOrder Violation = "pod types must be in the order Default, DaemonSet, Static"
	// PriorityOrder means that the priority is lower than that of the entry before it.
	PriorityOrder Violation = "priorities must ascend within a pod type"
	// SelectorOrder means that an entry with a selector comes after the entry without a selector
	// that has the same type and priority.
	SelectorOrder Violation = "at equal pod type and priority, entries with a podSelector must come before the entry without one"
	// Duplicate means that an earlier entry has the same type, priority and selector.
	Duplicate Violation = "duplicate"
)

// TypeRank returns the position of a pod type in the order, and false for an unknown type.
func TypeRank(podType string) (int, bool) {
	switch podType {
	case "", "Default":
		return 0, true
	case "DaemonSet":
		return 1, true
	case "Static":
		return 2, true
	}
	return 0, false
}

// Check calls report for each entry that violates a rule, with the index of the earlier entry that
// it conflicts with. It skips entries with an unknown type, which validation reports separately.
func Check(plan []Key, report func(index, against int, v Violation)) {
	type identity struct {
		rank     int
		priority int32
		selector string
	}
	seen := map[identity]int{}
	last := -1
	for i, k := range plan {
		rank, known := TypeRank(k.Type)
		if !known {
			continue
		}
		id := identity{rank, k.Priority, CanonicalSelector(k.Selector)}
		if first, dup := seen[id]; dup {
			report(i, first, Duplicate)
			continue
		}
		seen[id] = i
		if last >= 0 {
			if v := violation(plan[last], k); v != "" {
				report(i, last, v)
				continue
			}
		}
		last = i
	}
}

// Ordered reports whether a plan violates no rule and has only known types.
func Ordered(plan []Key) bool {
	ok := true
	for _, k := range plan {
		if _, known := TypeRank(k.Type); !known {
			ok = false
		}
	}
	Check(plan, func(int, int, Violation) { ok = false })
	return ok
}

// Before reports whether a must precede b in a plan.
func Before(a, b Key) bool {
	return violation(b, a) != ""
}

func violation(before, after Key) Violation {
	rb, _ := TypeRank(before.Type)
	ra, _ := TypeRank(after.Type)
	switch {
	case ra != rb:
		if ra < rb {
			return TypeOrder
		}
	case after.Priority != before.Priority:
		if after.Priority < before.Priority {
			return PriorityOrder
		}
	case SelectsAll(before.Selector) && !SelectsAll(after.Selector):
		return SelectorOrder
	}
	return ""
}

// SelectsAll reports whether a selector matches all pods because it is absent or empty.
func SelectsAll(s *metav1.LabelSelector) bool {
	return s == nil || len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}

// CanonicalSelector returns a string that is equal for equivalent selectors: it does not depend on
// the order of requirements and values, nor on whether matchLabels or the operator In requires a
// label. It is empty for a selector that matches all pods.
func CanonicalSelector(s *metav1.LabelSelector) string {
	if SelectsAll(s) {
		return ""
	}
	terms := make([]string, 0, len(s.MatchLabels)+len(s.MatchExpressions))
	for k, v := range s.MatchLabels {
		terms = append(terms, term(k, string(metav1.LabelSelectorOpIn), []string{v}))
	}
	for _, e := range s.MatchExpressions {
		terms = append(terms, term(e.Key, string(e.Operator), e.Values))
	}
	slices.Sort(terms)
	return strings.Join(slices.Compact(terms), ";")
}

func term(key, operator string, values []string) string {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return key + " " + operator + " (" + strings.Join(slices.Compact(sorted), ",") + ")"
}

// SameSelector compares two selectors without canonicalizing them, which is cheap.
func SameSelector(a, b *metav1.LabelSelector) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a == b || maps.Equal(a.MatchLabels, b.MatchLabels) &&
		slices.EqualFunc(a.MatchExpressions, b.MatchExpressions, func(a, b metav1.LabelSelectorRequirement) bool {
			return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
		})
}
