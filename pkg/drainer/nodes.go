// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package drainer

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// ForNodes returns a maintenance of the named nodes, for Cordon and Drain. Its name begins with
// that of the first node, and the server adds the rest. A program that has to find its maintenance
// again after a restart sets a name of its own.
func ForNodes(first string, more ...string) *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{GenerateName: first + "-"},
		Spec:       v1alpha1.NodeMaintenanceSpec{NodeSelector: SelectNames(append([]string{first}, more...)...)},
	}
}

// SelectNames returns a selector of the named nodes, each of them once.
func SelectNames(names ...string) *corev1.NodeSelector {
	selector := &corev1.NodeSelector{}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
		})
	}
	return selector
}

var operators = map[selection.Operator]corev1.NodeSelectorOperator{
	selection.Equals: corev1.NodeSelectorOpIn, selection.DoubleEquals: corev1.NodeSelectorOpIn, selection.In: corev1.NodeSelectorOpIn,
	selection.NotEquals: corev1.NodeSelectorOpNotIn, selection.NotIn: corev1.NodeSelectorOpNotIn,
	selection.Exists: corev1.NodeSelectorOpExists, selection.DoesNotExist: corev1.NodeSelectorOpDoesNotExist,
	selection.GreaterThan: corev1.NodeSelectorOpGt, selection.LessThan: corev1.NodeSelectorOpLt,
}

// ErrMatchesAll is the error of SelectLabels about a selector that matches every node.
var ErrMatchesAll = errors.New("an empty selector matches every node")

// SelectLabels returns a selector of the nodes with labels, from a text such as
// "pool=blue,zone in (a,b)". Nodes that get the labels later join the maintenance.
func SelectLabels(text string) (*corev1.NodeSelector, error) {
	parsed, err := labels.Parse(text)
	if err != nil {
		return nil, err
	}
	requirements, _ := parsed.Requirements()
	var term corev1.NodeSelectorTerm
	for _, r := range requirements {
		requirement := corev1.NodeSelectorRequirement{Key: r.Key(), Operator: operators[r.Operator()]}
		if r.Operator() != selection.Exists && r.Operator() != selection.DoesNotExist {
			requirement.Values = r.ValuesUnsorted()
			slices.Sort(requirement.Values)
		}
		term.MatchExpressions = append(term.MatchExpressions, requirement)
	}
	if len(term.MatchExpressions) == 0 {
		return nil, ErrMatchesAll
	}
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}, nil
}
