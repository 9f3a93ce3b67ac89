// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pdb

import (
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Index returns the budgets of pods. A tenant may have thousands of budgets, so a pod is not
// compared with all budgets of its namespace: each budget is indexed by one label that its pods
// must have. Concurrent reads are safe as long as no goroutine writes.
type Index struct {
	byNamespace map[string]*namespaceIndex
	matched     atomic.Int64
}

type namespaceIndex struct {
	byName map[string]*indexed
	// byLabel has the budgets by the key and the value of the label that their pods must have.
	// unlabelled has the budgets that require no label.
	byLabel    map[string]map[string]map[string]*indexed
	unlabelled map[string]*indexed
}

type indexed struct {
	budget   *policyv1.PodDisruptionBudget
	selector labels.Selector
	// key and values are the label by which the budget is indexed. key is empty if the budget
	// requires no label.
	key    string
	values []string
}

// NewIndex returns an Index of the budgets. As in the Eviction API, an empty selector selects all
// pods of the namespace, and a budget without a selector or with an invalid selector selects none.
func NewIndex(budgets []*policyv1.PodDisruptionBudget) *Index {
	x := &Index{byNamespace: map[string]*namespaceIndex{}}
	for _, budget := range budgets {
		x.Set(budget)
	}
	return x
}

// Of returns the budgets that select the pod, sorted by name.
func (x *Index) Of(pod *corev1.Pod) []*policyv1.PodDisruptionBudget {
	return x.Matching(pod.Namespace, pod.Labels)
}

// Matching returns the budgets of a namespace that select pods with the given labels, sorted by
// name.
func (x *Index) Matching(namespace string, pod labels.Set) []*policyv1.PodDisruptionBudget {
	ns := x.byNamespace[namespace]
	if ns == nil {
		return nil
	}
	var matching []*policyv1.PodDisruptionBudget
	try := func(candidates map[string]*indexed) {
		for _, candidate := range candidates {
			if x.matches(candidate, pod) {
				matching = append(matching, candidate.budget)
			}
		}
	}
	try(ns.unlabelled)
	for key, byValue := range ns.byLabel {
		if value, has := pod[key]; has {
			try(byValue[value])
		}
	}
	slices.SortFunc(matching, func(a, b *policyv1.PodDisruptionBudget) int { return strings.Compare(a.Name, b.Name) })
	return matching
}

// Get returns a budget, or nil if the Index does not have it.
func (x *Index) Get(namespace, name string) *policyv1.PodDisruptionBudget {
	if known := x.get(namespace, name); known != nil {
		return known.budget
	}
	return nil
}

func (x *Index) get(namespace, name string) *indexed {
	ns := x.byNamespace[namespace]
	if ns == nil {
		return nil
	}
	return ns.byName[name]
}

// Selects reports whether the Index has the budget and the budget selects pods with the given
// labels.
func (x *Index) Selects(namespace, name string, pod labels.Set) bool {
	known := x.get(namespace, name)
	if known == nil {
		return false
	}
	if known.key != "" {
		if value, has := pod[known.key]; !has || !slices.Contains(known.values, value) {
			return false
		}
	}
	return x.matches(known, pod)
}

func (x *Index) matches(known *indexed, pod labels.Set) bool {
	x.matched.Add(1)
	return known.selector.Matches(pod)
}

// Matched returns how often a whole selector has been compared with the labels of a pod. This is
// the main cost of a lookup.
func (x *Index) Matched() int {
	return int(x.matched.Load())
}

// Update replaces a budget if the new version selects the same pods, and reports whether it did so.
func (x *Index) Update(budget *policyv1.PodDisruptionBudget) bool {
	known := x.get(budget.Namespace, budget.Name)
	if known == nil || !apiequality.Semantic.DeepEqual(known.budget.Spec.Selector, budget.Spec.Selector) {
		return false
	}
	known.budget = budget
	return true
}

// Set adds a budget, or replaces the budget with the same name.
func (x *Index) Set(budget *policyv1.PodDisruptionBudget) {
	x.Remove(budget.Namespace, budget.Name)
	ns := x.byNamespace[budget.Namespace]
	if ns == nil {
		ns = &namespaceIndex{
			byName: map[string]*indexed{}, byLabel: map[string]map[string]map[string]*indexed{}, unlabelled: map[string]*indexed{},
		}
		x.byNamespace[budget.Namespace] = ns
	}
	known := ns.newIndexed(budget)
	ns.byName[budget.Name] = known
	if known.key == "" {
		ns.unlabelled[budget.Name] = known
		return
	}
	byValue := ns.byLabel[known.key]
	if byValue == nil {
		byValue = map[string]map[string]*indexed{}
		ns.byLabel[known.key] = byValue
	}
	for _, value := range known.values {
		if byValue[value] == nil {
			byValue[value] = map[string]*indexed{}
		}
		byValue[value][budget.Name] = known
	}
}

// newIndexed parses the selector of a budget and chooses the label by which the budget is indexed.
// A pod must meet every requirement, so it can choose the label by which the fewest other budgets
// are indexed.
func (ns *namespaceIndex) newIndexed(budget *policyv1.PodDisruptionBudget) *indexed {
	known := &indexed{budget: budget}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		// The Eviction API also ignores a budget with an invalid selector.
		selector = labels.Nothing()
	}
	known.selector = selector
	requirements, _ := selector.Requirements()
	fewest := 0
	for i := range requirements {
		switch requirements[i].Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
		default:
			continue
		}
		key, values := requirements[i].Key(), requirements[i].ValuesUnsorted()
		others := 0
		for _, value := range values {
			others = max(others, len(ns.byLabel[key][value]))
		}
		if known.key == "" || others < fewest {
			known.key, known.values, fewest = key, values, others
		}
	}
	return known
}

// Remove removes a budget, if the Index has it.
func (x *Index) Remove(namespace, name string) {
	known := x.get(namespace, name)
	if known == nil {
		return
	}
	ns := x.byNamespace[namespace]
	delete(ns.byName, name)
	delete(ns.unlabelled, name)
	if byValue := ns.byLabel[known.key]; byValue != nil {
		for _, value := range known.values {
			if delete(byValue[value], name); len(byValue[value]) == 0 {
				delete(byValue, value)
			}
		}
		if len(byValue) == 0 {
			delete(ns.byLabel, known.key)
		}
	}
	if len(ns.byName) == 0 {
		delete(x.byNamespace, namespace)
	}
}

// Len returns the number of budgets.
func (x *Index) Len() int {
	n := 0
	for _, ns := range x.byNamespace {
		n += len(ns.byName)
	}
	return n
}
