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

// Package nodeselection determines the nodes that a NodeMaintenance selects. It is the only place
// that evaluates spec.newNodes, so that admission, previews and controllers agree on the selection.
package nodeselection

import (
	"context"
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Selector matches nodes. It is immutable and safe for concurrent use.
type Selector struct {
	newest *metav1.Time
	policy v1alpha1.NewNodesPolicy
	held   func(name string) bool

	// Each term is in exactly one of these indexes, under a value that a node must have to match
	// it. With a thousand terms, only a few have to be evaluated for a node.
	byName  map[string][]*term
	byValue map[label][]*term
	byKey   map[string][]*term
	rest    []*term
}

type label struct{ key, value string }

// term is one of the terms of a selector, which are ORed.
type term struct {
	// named: the term lists nodes by metadata.name or by their hostname label.
	named   bool
	matcher *nodeaffinity.NodeSelector
}

// New returns a Selector. A nil selector matches no node. newest is status.newestNodeTimestamp:
// with the policy Ignore, nodes that were created later are ignored unless the selector names them.
// Without newest no node is ignored.
func New(selector *corev1.NodeSelector, newest *metav1.Time, policy v1alpha1.NewNodesPolicy) (*Selector, error) {
	s := &Selector{
		newest: newest, policy: policy, held: func(string) bool { return false },
		byName: map[string][]*term{}, byValue: map[label][]*term{}, byKey: map[string][]*term{},
	}
	if selector == nil {
		return s, nil
	}
	for i := range selector.NodeSelectorTerms {
		if err := s.add(&selector.NodeSelectorTerms[i]); err != nil {
			return nil, fmt.Errorf("nodeSelectorTerms[%d]: %w", i, err)
		}
	}
	return s, nil
}

// Of returns the Selector of a maintenance as it is stored. The nodes in its status stay selected
// as long as they match, whenever they were created, and so does a node that is registered again
// under one of their names.
func Of(nm *v1alpha1.NodeMaintenance) (*Selector, error) {
	s, err := New(nm.Spec.NodeSelector, nm.Status.NewestNodeTimestamp, nm.Spec.NewNodes)
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool, len(nm.Status.NodeStatuses))
	for i := range nm.Status.NodeStatuses {
		names[nm.Status.NodeStatuses[i].NodeRef.Name] = true
	}
	return s.Holding(func(name string) bool { return names[name] }), nil
}

// Holding returns a copy of the Selector that does not treat nodes with held names as new. The copy
// shares the index, so it is cheap.
func (s *Selector) Holding(held func(name string) bool) *Selector {
	out := *s
	out.held = held
	return &out
}

// Decide reports whether the node is selected, or matches the selector but is ignored because it is
// new.
func (s *Selector) Decide(node *corev1.Node) (selected, ignored bool) {
	matches, isNew := s.decide(node)
	return matches && !isNew, matches && isNew
}

// Select returns the nodes that match, in their order, and how many are ignored because they are
// new. It returns the error of the context when that ends.
func (s *Selector) Select(ctx context.Context, nodes []*corev1.Node) (selected []*corev1.Node, ignored int, err error) {
	for _, node := range nodes {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		isSelected, isIgnored := s.Decide(node)
		switch {
		case isIgnored:
			ignored++
		case isSelected:
			selected = append(selected, node)
		}
	}
	return selected, ignored, nil
}

// decide reports whether the node matches the selector, and if so whether it is ignored.
func (s *Selector) decide(node *corev1.Node) (matches, ignored bool) {
	if node == nil {
		return false, false
	}
	isNew := s.isNew(node)
	for t := range s.candidates(node) {
		// For an old node the first match decides; for a new one, a later term may name it.
		if matches && !t.named {
			continue
		}
		if !t.matcher.Match(node) {
			continue
		}
		if !isNew || t.named {
			return true, false
		}
		matches = true
	}
	return matches, matches
}

func (s *Selector) isNew(node *corev1.Node) bool {
	// The default is Ignore, even for an object without defaults.
	return s.policy != v1alpha1.NewNodesPolicyJoin && s.newest != nil &&
		node.CreationTimestamp.After(s.newest.Time) && !s.held(node.Name)
}

// candidates are the terms that may match the node.
func (s *Selector) candidates(node *corev1.Node) iter.Seq[*term] {
	return func(yield func(*term) bool) {
		lists := func(terms []*term) bool {
			for _, t := range terms {
				if !yield(t) {
					return false
				}
			}
			return true
		}
		if !lists(s.byName[node.Name]) {
			return
		}
		for key, value := range node.Labels {
			if !lists(s.byValue[label{key, value}]) || !lists(s.byKey[key]) {
				return
			}
		}
		lists(s.rest)
	}
}

func (s *Selector) add(source *corev1.NodeSelectorTerm) error {
	matcher, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{*source}})
	if err != nil {
		return err
	}
	if len(source.MatchExpressions) == 0 && len(source.MatchFields) == 0 {
		// Such a term matches no node.
		return nil
	}
	t := &term{matcher: matcher, named: lists(source.MatchFields, metav1.ObjectNameField) || lists(source.MatchExpressions, corev1.LabelHostname)}
	for _, r := range source.MatchFields {
		if r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn {
			for _, name := range r.Values {
				s.byName[name] = append(s.byName[name], t)
			}
			return nil
		}
	}
	for _, r := range source.MatchExpressions {
		if r.Operator == corev1.NodeSelectorOpIn {
			s.addByValue(r, t)
			return nil
		}
	}
	for _, r := range source.MatchExpressions {
		switch r.Operator {
		case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			s.byKey[r.Key] = append(s.byKey[r.Key], t)
			return nil
		}
	}
	s.rest = append(s.rest, t)
	return nil
}

func (s *Selector) addByValue(r corev1.NodeSelectorRequirement, t *term) {
	seen := make(map[string]bool, len(r.Values))
	for _, value := range r.Values {
		if !seen[value] {
			seen[value] = true
			at := label{r.Key, value}
			s.byValue[at] = append(s.byValue[at], t)
		}
	}
}

func lists(requirements []corev1.NodeSelectorRequirement, key string) bool {
	for _, r := range requirements {
		if r.Key == key && r.Operator == corev1.NodeSelectorOpIn {
			return true
		}
	}
	return false
}
