// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeterms chooses the index entry (a node name or a label) under which each term of a
// node selector is stored, so that a node is compared only with the terms that may match it.
// Validation limits the cost of a selector with the same choice.
package nodeterms

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// MaxTried is the maximum number of terms of a selector that are compared with every node,
	// because they require neither a name nor a label.
	MaxTried = 50
	// maxShared is the maximum number of terms that may be indexed by the same name or label. Each
	// further term would be compared with so many nodes that it counts as compared with every node.
	maxShared = 10
)

// Place is the index entry of a term: one of its Names, one of the Values of the label Key or,
// without Values, the label Key. A term without any of these is compared with every node.
type Place struct {
	// Term is the index of the term.
	Term   int
	Names  []string
	Key    string
	Values []string
}

// Of returns the places of the terms that may match a node. It omits terms without requirements,
// which match nothing, and duplicates of earlier terms. tried is the number of terms that must be
// compared with every node, or with almost as many.
func Of(selector *corev1.NodeSelector) (places []Place, tried int) {
	if selector == nil {
		return nil, 0
	}
	seen := make(map[string]bool, len(selector.NodeSelectorTerms))
	found := map[by]int{}
	for i := range selector.NodeSelectorTerms {
		term := &selector.NodeSelectorTerms[i]
		if len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0 {
			continue
		}
		if data, err := term.Marshal(); err == nil {
			if seen[string(data)] {
				continue
			}
			seen[string(data)] = true
		}
		place, shared := best(term, found)
		place.Term = i
		for _, each := range place.by() {
			found[each]++
		}
		if len(place.by()) == 0 || shared >= maxShared {
			tried++
		}
		places = append(places, place)
	}
	return places, tried
}

// by is an index key for terms: the name of a node, or a label with or without its value.
type by struct{ name, key, value string }

func (p *Place) by() []by {
	var all []by
	for _, name := range p.Names {
		all = append(all, by{name: name})
	}
	for _, value := range p.Values {
		all = append(all, by{key: p.Key, value: "=" + value})
	}
	if p.Key != "" && len(p.Values) == 0 {
		all = append(all, by{key: p.Key})
	}
	return all
}

// best returns the place of a term that the fewest other terms share, and the number of these
// terms. A node must meet each requirement of a term, so any requirement can be the index.
func best(term *corev1.NodeSelectorTerm, found map[by]int) (place Place, shared int) {
	has := false
	consider := func(p Place) {
		most := 0
		for _, each := range p.by() {
			most = max(most, found[each])
		}
		if !has || most < shared {
			has, place, shared = true, p, most
		}
	}
	for _, r := range term.MatchFields {
		if r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn {
			consider(Place{Names: distinct(r.Values)})
		}
	}
	for _, r := range term.MatchExpressions {
		if r.Operator == corev1.NodeSelectorOpIn {
			consider(Place{Key: r.Key, Values: distinct(r.Values)})
		}
	}
	for _, r := range term.MatchExpressions {
		switch r.Operator {
		case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			consider(Place{Key: r.Key})
		}
	}
	return place, shared
}

func distinct(values []string) []string {
	sorted := slices.Sorted(slices.Values(values))
	return slices.Compact(sorted)
}
