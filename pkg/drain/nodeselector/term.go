// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeselector

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// term is a compiled term of a selector. Terms are ORed, and the requirements of a term are ANDed.
// Package nodeaffinity returns the same results but builds the fields of a node for each term.
type term struct {
	// named is set if the term lists nodes by metadata.name or by their hostname label.
	named        bool
	requirements []labels.Requirement
	names        []nameRequirement
}

// nameRequirement is a requirement on the field metadata.name, with its only value.
type nameRequirement struct {
	name string
	// not is set if the node must have another name.
	not bool
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// newTerm compiles a term. For an invalid term it returns the error of package nodeaffinity.
func newTerm(source *corev1.NodeSelectorTerm) (*term, error) {
	if _, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{*source}}); err != nil {
		return nil, err
	}
	t := &term{named: lists(source.MatchFields, metav1.ObjectNameField) || lists(source.MatchExpressions, corev1.LabelHostname)}
	for _, r := range source.MatchExpressions {
		requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err != nil {
			return nil, err
		}
		t.requirements = append(t.requirements, *requirement)
	}
	for _, r := range source.MatchFields {
		if r.Key != metav1.ObjectNameField {
			return nil, fmt.Errorf("field %q cannot select nodes, use %s", r.Key, metav1.ObjectNameField)
		}
		t.names = append(t.names, nameRequirement{name: r.Values[0], not: r.Operator == corev1.NodeSelectorOpNotIn})
	}
	return t, nil
}

func (t *term) matches(name string, set labels.Set) bool {
	for _, r := range t.names {
		if (r.name == name) == r.not {
			return false
		}
	}
	for i := range t.requirements {
		if !t.requirements[i].Matches(set) {
			return false
		}
	}
	return true
}

// lists reports whether a requirement has the key and the operator In.
func lists(requirements []corev1.NodeSelectorRequirement, key string) bool {
	return slices.ContainsFunc(requirements, func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == key && r.Operator == corev1.NodeSelectorOpIn
	})
}
