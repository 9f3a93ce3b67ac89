// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeterms

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func requirement(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

func labelsTerm(requirements ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: requirements}
}

func TestTriedTerms(t *testing.T) {
	const in, notIn, exists, doesNotExist, gt = corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists,
		corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt
	own := func(i int) string { return fmt.Sprintf("own-%d", i) }
	for name, tt := range map[string]struct {
		term          func(i int) corev1.NodeSelectorTerm
		places, tried int
	}{
		"each lists a node by its name": {
			term: func(i int) corev1.NodeSelectorTerm {
				return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{requirement("metadata.name", in, own(i))}}
			}, places: 500,
		},
		"each excludes a node by its name": {
			term: func(i int) corev1.NodeSelectorTerm {
				return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{requirement("metadata.name", notIn, own(i))}}
			}, places: 500, tried: 500,
		},
		"each has a label value of its own": {
			term: func(i int) corev1.NodeSelectorTerm { return labelsTerm(requirement("rack", in, own(i))) }, places: 500,
		},
		"each has a label value of its own behind one that all share": {
			term: func(i int) corev1.NodeSelectorTerm {
				return labelsTerm(requirement("zone", in, "a"), requirement("rack", in, own(i)))
			}, places: 500,
		},
		"each has a label of its own": {
			term: func(i int) corev1.NodeSelectorTerm { return labelsTerm(requirement(own(i), exists)) }, places: 500,
		},
		"each lacks a label of its own": {
			term: func(i int) corev1.NodeSelectorTerm { return labelsTerm(requirement(own(i), doesNotExist)) }, places: 500, tried: 500,
		},
		"each lacks the same label": {
			term: func(int) corev1.NodeSelectorTerm { return labelsTerm(requirement("a", doesNotExist)) }, places: 1, tried: 1,
		},
		"each compares the same label with another number": {
			term: func(i int) corev1.NodeSelectorTerm {
				return labelsTerm(requirement("kubernetes.io/hostname", gt, fmt.Sprint(i)))
			},
			// At most ten terms (maxShared) may be indexed by one label. The other 490 count as
			// compared with every node.
			places: 500, tried: 490,
		},
		"all share a label value and differ in what they exclude": {
			term: func(i int) corev1.NodeSelectorTerm {
				return labelsTerm(requirement("kubernetes.io/os", in, "linux"), requirement("rack", notIn, own(i)))
			}, places: 500, tried: 490,
		},
		"all are empty": {term: func(int) corev1.NodeSelectorTerm { return corev1.NodeSelectorTerm{} }},
	} {
		t.Run(name, func(t *testing.T) {
			selector := &corev1.NodeSelector{}
			for i := range 500 {
				selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, tt.term(i))
			}
			places, tried := Of(selector)
			if len(places) != tt.places || tried != tt.tried {
				t.Errorf("got %d places and %d terms that are tried, want %d and %d", len(places), tried, tt.places, tt.tried)
			}
		})
	}
}
