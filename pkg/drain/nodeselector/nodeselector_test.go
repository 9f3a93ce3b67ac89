// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeselector

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var left = metav1.NewTime(time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC))

func node(name string, age time.Duration, pairs ...string) *corev1.Node {
	labels := map[string]string{corev1.LabelHostname: name}
	for i := 0; i < len(pairs); i += 2 {
		labels[pairs[i]] = pairs[i+1]
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(left.Add(-age)),
	}}
}

func requirement(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
}

func labelTerm(r ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: r}
}

func nameTerm(name string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		requirement("metadata.name", corev1.NodeSelectorOpIn, name)}}
}

func selector(terms ...corev1.NodeSelectorTerm) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: terms}
}

func TestNewNodes(t *testing.T) {
	blue := labelTerm(requirement("pool", corev1.NodeSelectorOpIn, "blue"))
	created := node("n", -time.Second, "pool", "blue")
	tests := map[string]struct {
		selector    *corev1.NodeSelector
		newest      *metav1.Time
		policy      v1alpha1.NewNodesPolicy
		held        string
		node        *corev1.Node
		wantMatch   bool
		wantIgnored bool
	}{
		"a node that was created later is ignored": {
			selector: selector(blue), newest: &left, policy: v1alpha1.NewNodesPolicyIgnore, node: created,
			wantIgnored: true,
		},
		"no policy means Ignore": {selector: selector(blue), newest: &left, node: created, wantIgnored: true},
		"a node that was created later joins with Join": {
			selector: selector(blue), newest: &left, policy: v1alpha1.NewNodesPolicyJoin, node: created,
			wantMatch: true,
		},
		"no node is new before the maintenance left Idle": {
			selector: selector(blue), policy: v1alpha1.NewNodesPolicyIgnore, node: created, wantMatch: true},
		"the newest node itself is not new": {
			selector: selector(blue), newest: &left, policy: v1alpha1.NewNodesPolicyIgnore,
			node: node("n", 0, "pool", "blue"), wantMatch: true,
		},
		"a new node that does not match is not counted as ignored": {
			selector: selector(blue), newest: &left, policy: v1alpha1.NewNodesPolicyIgnore,
			node: node("n", -time.Second),
		},
		"a new node that is named by metadata.name joins": {
			selector: selector(nameTerm("n")), newest: &left, policy: v1alpha1.NewNodesPolicyIgnore, node: created,
			wantMatch: true,
		},
		"a new node that is named by its hostname joins": {
			selector: selector(labelTerm(requirement(corev1.LabelHostname, corev1.NodeSelectorOpIn, "m", "n"))),
			newest:   &left, policy: v1alpha1.NewNodesPolicyIgnore, node: created, wantMatch: true},
		"a new node that a later term names joins": {
			selector: selector(blue, labelTerm(requirement("pool", corev1.NodeSelectorOpExists)), nameTerm("n")),
			newest:   &left, policy: v1alpha1.NewNodesPolicyIgnore, node: created, wantMatch: true},
		"a term that names another node does not help": {
			selector: selector(blue, nameTerm("m")), newest: &left, policy: v1alpha1.NewNodesPolicyIgnore,
			node: created, wantIgnored: true,
		},
		"a term that names it but asks for another pool does not help": {
			selector: selector(blue, labelTerm(requirement(corev1.LabelHostname, corev1.NodeSelectorOpIn, "n"),
				requirement("pool", corev1.NodeSelectorOpIn, "green"))),
			newest: &left, policy: v1alpha1.NewNodesPolicyIgnore, node: created, wantIgnored: true},
		"to exclude a node by its hostname does not name the others": {
			selector: selector(labelTerm(requirement(corev1.LabelHostname, corev1.NodeSelectorOpNotIn, "m"))),
			newest:   &left, policy: v1alpha1.NewNodesPolicyIgnore, node: created, wantIgnored: true},
		"a new node under a name that is held joins": {
			selector: selector(blue), newest: &left, policy: v1alpha1.NewNodesPolicyIgnore, held: "n", node: created,
			wantMatch: true,
		},
		"a held node that does not match is not selected": {
			selector: selector(blue), newest: &left, policy: v1alpha1.NewNodesPolicyIgnore, held: "n",
			node: node("n", time.Hour),
		},
		"no selector matches no node": {node: created},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			nm := &v1alpha1.NodeMaintenance{
				Spec:   v1alpha1.NodeMaintenanceSpec{NodeSelector: tt.selector, NewNodes: tt.policy},
				Status: v1alpha1.NodeMaintenanceStatus{NewestNodeTimestamp: tt.newest},
			}
			if tt.held != "" {
				nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{
					{NodeRef: v1alpha1.NodeReference{Name: tt.held, UID: "old"}},
				}
			}
			s := must.Get(Of(nm))(t)
			if selected, ignored := s.Decide(tt.node); selected != tt.wantMatch || ignored != tt.wantIgnored {
				t.Errorf("got selected %t, ignored %t, want %t, %t", selected, ignored, tt.wantMatch, tt.wantIgnored)
			}
		})
	}
}

// TestIndexAgreesWithNodeAffinity compares the index with the matcher of Kubernetes.
func TestIndexAgreesWithNodeAffinity(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	matched := 0
	for range 3000 {
		spec := &corev1.NodeSelector{}
		for range 1 + random.IntN(4) {
			var term corev1.NodeSelectorTerm
			for range random.IntN(3) {
				key := pick("a", "b", corev1.LabelHostname)
				switch random.IntN(5) {
				case 0:
					term.MatchExpressions = append(term.MatchExpressions,
						requirement(key, corev1.NodeSelectorOpIn, pick("1", "2", "n1"), pick("1", "2", "n2")))
				case 1:
					term.MatchExpressions = append(term.MatchExpressions,
						requirement(key, corev1.NodeSelectorOpNotIn, pick("1", "2", "n1")))
				case 2:
					term.MatchExpressions = append(term.MatchExpressions, requirement(key, corev1.NodeSelectorOpExists))
				case 3:
					term.MatchExpressions = append(term.MatchExpressions,
						requirement(key, corev1.NodeSelectorOpDoesNotExist))
				case 4:
					term.MatchExpressions = append(term.MatchExpressions,
						requirement(key, corev1.NodeSelectorOpGt, pick("0", "1")))
				}
			}
			if random.IntN(4) == 0 {
				op := []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn}[random.IntN(2)]
				term.MatchFields = []corev1.NodeSelectorRequirement{requirement("metadata.name", op, pick("n1", "n2"))}
			}
			spec.NodeSelectorTerms = append(spec.NodeSelectorTerms, term)
		}
		reference := must.Get(nodeaffinity.NewNodeSelector(spec))(t)
		s := must.Get(New(spec, nil, v1alpha1.NewNodesPolicyIgnore))(t)
		for _, n := range []*corev1.Node{
			node("n1", 0), node("n1", 0, "a", "1"), node("n2", 0, "a", "2", "b", "1"),
			{ObjectMeta: metav1.ObjectMeta{Name: "n3"}},
		} {
			want := reference.Match(n)
			if got, _ := s.Decide(n); got != want {
				t.Fatalf("node %s %v, selector %+v: got %v, want %v", n.Name, n.Labels, spec, got, want)
			}
			if want {
				matched++
			}
		}
	}
	is.True(t, matched != 0, "no selector matched: nothing was compared")
}

func TestManyTermsCostFewEvaluations(t *testing.T) {
	terms := make([]corev1.NodeSelectorTerm, 0, 26_000)
	for i := range cap(terms) {
		terms = append(terms, labelTerm(requirement(fmt.Sprintf("k%d", i), corev1.NodeSelectorOpExists)))
	}
	s := must.Get(New(selector(terms...), nil, v1alpha1.NewNodesPolicyIgnore))(t)
	n := node("n", time.Hour, "k7", "x", "k11", "y")
	evaluated := 0
	for range s.candidates(n) {
		evaluated++
	}
	is.True(t, evaluated == 2, "got %d of 26,000 terms evaluated for a node with two of the labels", evaluated)
	with, _ := s.Decide(n)
	without, _ := s.Decide(node("m", time.Hour))
	is.True(t, with && !without, "the node with the labels is to match, the one without is not")
}

// countedContext is a context that ends after a number of calls of Err.
type countedContext struct {
	context.Context
	left int
}

func (c *countedContext) Err() error {
	if c.left--; c.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func TestSelectStopsWithItsContext(t *testing.T) {
	s := must.Get(New(selector(labelTerm(requirement("pool", corev1.NodeSelectorOpIn, "blue"))), &left,
		v1alpha1.NewNodesPolicyIgnore))(t)
	nodes := []*corev1.Node{
		node("a", 0, "pool", "blue"), node("b", 0), node("c", -time.Hour, "pool", "blue"), node("d", 0, "pool", "blue"),
	}
	selected, ignored, err := s.Select(t.Context(), nodes)
	if err != nil || ignored != 1 || len(selected) != 2 || selected[0].Name != "a" || selected[1].Name != "d" {
		t.Errorf("got %v, %d ignored, error %v; want a and d, 1 ignored", selected, ignored, err)
	}
	if _, _, err := s.Select(&countedContext{t.Context(), 2}, nodes); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v with a context that ends after two nodes", err)
	}
}

func TestUnreadableSelectorIsAnError(t *testing.T) {
	if _, err := New(selector(labelTerm(requirement("a", "Around", "1"))), nil,
		v1alpha1.NewNodesPolicyIgnore); err == nil {
		t.Error("got no error for an operator that does not exist")
	}
}

// TestTermsWithoutAnIndexAreCheap covers terms that must be evaluated for every node. A stored
// selector may have more of them than validation allows today.
func TestTermsWithoutAnIndexAreCheap(t *testing.T) {
	labelled := node("n", 0)
	var same, excluding, missing []corev1.NodeSelectorTerm
	for i := range 1000 {
		key := fmt.Sprintf("k%d", i)
		labelled.Labels[key] = "x"
		same = append(same, labelTerm(requirement("k0", corev1.NodeSelectorOpDoesNotExist)))
		missing = append(missing, labelTerm(requirement(key, corev1.NodeSelectorOpDoesNotExist)))
		excluding = append(excluding, labelTerm(requirement("k0", corev1.NodeSelectorOpNotIn, "x", key)))
	}
	for name, tt := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		tried int
	}{
		"the same term a thousand times": {same, 1},
		"terms of DoesNotExist":          {missing, 1000},
		"terms of NotIn":                 {excluding, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			s := must.Get(New(selector(tt.terms...), nil, v1alpha1.NewNodesPolicyIgnore))(t)
			tried := 0
			for range s.candidates(labelled) {
				tried++
			}
			is.Equal(t, tried, tt.tried, "terms tried")
			// The labels and fields of the node must be built once, and not for each term.
			if n := testing.AllocsPerRun(10, func() { s.Decide(labelled) }); n > 10 {
				t.Errorf("got %.0f allocations for a node, want at most 10", n)
			}
			if selected, _ := s.Decide(labelled); selected {
				t.Error("got the node selected")
			}
		})
	}
}
