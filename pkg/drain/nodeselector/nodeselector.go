// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeselector determines the nodes that a NodeMaintenance selects. It is the only place
// that evaluates spec.newNodes, so that admission, previews and controllers agree on the selection.
package nodeselector

import (
	"context"
	"fmt"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/apis/maintenance/nodeterms"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Selector matches nodes. It is immutable and safe for concurrent use.
type Selector struct {
	newest *metav1.Time
	policy v1alpha1.NewNodesPolicy
	held   func(name string) bool

	// Each term is in exactly one of these indexes, under a value that a node must have to match
	// it. So only a few of a thousand terms have to be evaluated for a node. keys are the keys of
	// the labels in byValue and byKey: most selectors have one, and nodes have many.
	keys    []string
	byName  map[string][]*term
	byValue map[label][]*term
	byKey   map[string][]*term
	rest    []*term
}

type label struct{ key, value string }

// Match is how a node matches the terms of a Selector.
type Match int

const (
	// NoMatch means that no term matches.
	NoMatch Match = iota
	// MatchByOthers means that a term matches, but no matching term names the node.
	MatchByOthers
	// MatchByName means that a matching term lists nodes by metadata.name or by their hostname
	// label.
	MatchByName
)

// New returns a Selector. A nil selector matches no node. newest is status.newestNodeTimestamp.
// With the policy Ignore, nodes that were created later are ignored unless the selector names them.
// Without newest, no node is ignored.
func New(selector *corev1.NodeSelector, newest *metav1.Time, policy v1alpha1.NewNodesPolicy) (*Selector, error) {
	s := &Selector{
		newest: newest, policy: policy, held: func(string) bool { return false },
		byName: map[string][]*term{}, byValue: map[label][]*term{}, byKey: map[string][]*term{},
	}
	if selector == nil {
		return s, nil
	}
	places, _ := nodeterms.Of(selector)
	for i := range places {
		at := places[i].Term
		if err := s.add(&selector.NodeSelectorTerms[at], &places[i]); err != nil {
			return nil, fmt.Errorf("nodeSelectorTerms[%d]: %w", at, err)
		}
	}
	return s, nil
}

// Of returns the Selector of a stored maintenance. A node in its status stays selected as long as
// it matches, regardless of its creation time. The same applies to a node that is registered again
// under the same name.
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

// Holding returns a copy of the Selector that does not treat a node as new if held returns true for
// its name. The copy is cheap, since it shares the index.
func (s *Selector) Holding(held func(name string) bool) *Selector {
	out := *s
	out.held = held
	return &out
}

// Decide reports whether the node is selected, and whether it matches the selector but is ignored
// because it is too new.
func (s *Selector) Decide(node *corev1.Node) (selected, ignored bool) {
	return s.Judge(node, s.Match(node))
}

// Match evaluates the terms for a node. It costs much more than Judge, and its result does not
// depend on the argument of Holding.
func (s *Selector) Match(node *corev1.Node) Match {
	if node == nil {
		return NoMatch
	}
	result, isYoung, set := NoMatch, s.isYoung(node), labels.Set(node.Labels)
	for t := range s.candidates(node) {
		// For an old node the first match is sufficient. For a new node, a later term may name it.
		if result != NoMatch && !t.named || !t.matches(node.Name, set) {
			continue
		}
		if t.named {
			return MatchByName
		}
		if result = MatchByOthers; !isYoung {
			return result
		}
	}
	return result
}

// Judge returns the same as Decide for a node whose Match is known.
func (s *Selector) Judge(node *corev1.Node, match Match) (selected, ignored bool) {
	switch {
	case match == NoMatch:
		return false, false
	case match == MatchByName || !s.isYoung(node) || s.held(node.Name):
		return true, false
	}
	return false, true
}

// Select returns the matching nodes in the order of nodes, and the number of nodes that are ignored
// because they are too new. It fails if the context ends.
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

// isYoung reports whether the node is too new, regardless of the argument of Holding.
func (s *Selector) isYoung(node *corev1.Node) bool {
	// The default policy is Ignore. The object may come without defaults.
	return s.policy != v1alpha1.NewNodesPolicyJoin && s.newest != nil && node.CreationTimestamp.After(s.newest.Time)
}

// candidates returns the terms that may match the node.
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
		if len(s.keys) > len(node.Labels) {
			for key, value := range node.Labels {
				if !lists(s.byValue[label{key, value}]) || !lists(s.byKey[key]) {
					return
				}
			}
		} else {
			for _, key := range s.keys {
				value, has := node.Labels[key]
				if has && (!lists(s.byValue[label{key, value}]) || !lists(s.byKey[key])) {
					return
				}
			}
		}
		lists(s.rest)
	}
}

func (s *Selector) add(source *corev1.NodeSelectorTerm, place *nodeterms.Place) error {
	t, err := newTerm(source)
	if err != nil {
		return err
	}
	if len(place.Names) == 0 && place.Key != "" && !slices.Contains(s.keys, place.Key) {
		s.keys = append(s.keys, place.Key)
	}
	switch {
	case len(place.Names) > 0:
		for _, name := range place.Names {
			s.byName[name] = append(s.byName[name], t)
		}
	case len(place.Values) > 0:
		for _, value := range place.Values {
			at := label{place.Key, value}
			s.byValue[at] = append(s.byValue[at], t)
		}
	case place.Key != "":
		s.byKey[place.Key] = append(s.byKey[place.Key], t)
	default:
		s.rest = append(s.rest, t)
	}
	return nil
}

// Newest returns the newest creation time of nodes, or nil if there are none.
func Newest(nodes []*corev1.Node) *metav1.Time {
	var newest *metav1.Time
	for _, node := range nodes {
		if newest == nil || newest.Before(&node.CreationTimestamp) {
			newest = node.CreationTimestamp.DeepCopy()
		}
	}
	return newest
}
