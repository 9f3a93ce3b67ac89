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

package eviction

import (
	"maps"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	pdb "haulout.dev/haulout/pkg/drain/budget"
)

// budgets finds the budgets of pods. A tenant may have thousands of budgets and rewrite them all
// the time, so that neither a pod is matched with all budgets of its namespace nor a budget with
// all pods: each budget is found by one label that its pods must have.
type budgets struct {
	byNamespace map[string]*namespaceBudgets
	// matches counts how often a whole selector was matched with the labels of a pod.
	matches int
}

type namespaceBudgets struct {
	byName map[string]*knownBudget
	// byLabel has the budgets by the key and the values of the label that their pods must have;
	// unlabelled has the budgets that require no label.
	byLabel    map[string]map[string]map[string]*knownBudget
	unlabelled map[string]*knownBudget
}

type knownBudget struct {
	budget   *policyv1.PodDisruptionBudget
	selector labels.Selector
	// key and values are the label that the budget is found by; key is empty for one that asks for
	// none.
	key    string
	values []string
}

func newBudgets() *budgets {
	return &budgets{byNamespace: map[string]*namespaceBudgets{}}
}

func newKnownBudget(budget *policyv1.PodDisruptionBudget) *knownBudget {
	b := &knownBudget{budget: budget}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		// The eviction API ignores a budget with a broken selector, too.
		selector = labels.Nothing()
	}
	b.selector = selector
	if requirements, _ := selector.Requirements(); len(requirements) > 0 {
		for i := range requirements {
			// Each requirement has to be met, so that any of them will do.
			if values, exact := requirements[i].ValuesUnsorted(), requirements[i].Operator(); isExact(exact) {
				b.key, b.values = requirements[i].Key(), values
				break
			}
		}
	}
	return b
}

func isExact(operator selection.Operator) bool {
	return operator == selection.Equals || operator == selection.DoubleEquals || operator == selection.In
}

// selects reports whether the budget selects pods with the given labels.
func (b *budgets) selects(budget *knownBudget, pod labels.Set) bool {
	if budget.key != "" {
		if value, has := pod[budget.key]; !has || !slices.Contains(budget.values, value) {
			return false
		}
	}
	b.matches++
	return budget.selector.Matches(pod)
}

// match looks up the budgets of an item whose pod has the given labels, unless that is known.
func (b *budgets) match(it *item, pod labels.Set) {
	if it.matched && maps.Equal(it.labels, pod) {
		return
	}
	it.labels, it.budgets, it.matched = pod, nil, true
	ns := b.byNamespace[it.Evacuation.Namespace]
	if ns == nil {
		return
	}
	try := func(candidates map[string]*knownBudget) {
		for name, budget := range candidates {
			if b.selects(budget, pod) {
				it.budgets = append(it.budgets, name)
			}
		}
	}
	try(ns.unlabelled)
	for key, byValue := range ns.byLabel {
		if value, has := pod[key]; has {
			try(byValue[value])
		}
	}
	slices.Sort(it.budgets)
}

// of returns the budgets that select an item's pod, ordered by name.
func (b *budgets) of(it *item) []*policyv1.PodDisruptionBudget {
	ns := b.byNamespace[it.Evacuation.Namespace]
	if ns == nil || len(it.budgets) == 0 {
		return nil
	}
	matching := make([]*policyv1.PodDisruptionBudget, 0, len(it.budgets))
	for _, name := range it.budgets {
		if known := ns.byName[name]; known != nil {
			matching = append(matching, known.budget)
		}
	}
	return matching
}

// update replaces a budget by another version that selects the same pods, and reports whether it
// does.
func (b *budgets) update(budget *policyv1.PodDisruptionBudget) bool {
	ns := b.byNamespace[budget.Namespace]
	if ns == nil {
		return false
	}
	known := ns.byName[budget.Name]
	if known == nil || !apiequality.Semantic.DeepEqual(known.budget.Spec.Selector, budget.Spec.Selector) {
		return false
	}
	known.budget = budget
	return true
}

// has reports whether a budget is known.
func (b *budgets) has(namespace, name string) bool {
	ns := b.byNamespace[namespace]
	return ns != nil && ns.byName[name] != nil
}

// set takes in a budget that is new or selects other pods than before.
func (b *budgets) set(budget *policyv1.PodDisruptionBudget) *knownBudget {
	b.remove(budget.Namespace, budget.Name)
	ns := b.byNamespace[budget.Namespace]
	if ns == nil {
		ns = &namespaceBudgets{
			byName: map[string]*knownBudget{}, byLabel: map[string]map[string]map[string]*knownBudget{}, unlabelled: map[string]*knownBudget{},
		}
		b.byNamespace[budget.Namespace] = ns
	}
	known := newKnownBudget(budget)
	ns.byName[budget.Name] = known
	if known.key == "" {
		ns.unlabelled[budget.Name] = known
		return known
	}
	byValue := ns.byLabel[known.key]
	if byValue == nil {
		byValue = map[string]map[string]*knownBudget{}
		ns.byLabel[known.key] = byValue
	}
	for _, value := range known.values {
		if byValue[value] == nil {
			byValue[value] = map[string]*knownBudget{}
		}
		byValue[value][budget.Name] = known
	}
	return known
}

func (b *budgets) remove(namespace, name string) {
	ns := b.byNamespace[namespace]
	if ns == nil || ns.byName[name] == nil {
		return
	}
	known := ns.byName[name]
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
		delete(b.byNamespace, namespace)
	}
}

// churnInterval is the least time between two evaluations of the changed budgets of a namespace.
// The first change is evaluated immediately.
const churnInterval = time.Second

// churn is what has changed about the budgets of a namespace.
type churn struct {
	// next is when the changes may be evaluated.
	next time.Time
	// changed are the budgets that are new or may select other pods than before, by name; nil for
	// one that is gone.
	changed map[string]*policyv1.PodDisruptionBudget
}

// budgetChanged takes in an event of a budget; budget is nil for one that is gone. A change that
// leaves the selector alone concerns its lane alone and is never put off.
func (q *Queue) budgetChanged(namespace, name string, budget *policyv1.PodDisruptionBudget) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.wake()
	c := q.churn[namespace]
	if c != nil {
		if _, pending := c.changed[name]; pending {
			c.changed[name] = budget
			return
		}
	}
	if budget != nil && q.budgets.update(budget) {
		q.budgetObserved(budget, q.clock.Now())
		return
	}
	if !q.stepped || budget != nil && !q.budgets.has(namespace, name) {
		// Pods must not seem to have no budget, or one of two, until the changes of the namespace
		// are evaluated. A budget that is removed and created again finds its removal pending, so
		// this happens once for each name.
		q.applyBudget(namespace, name, budget, q.clock.Now())
		return
	}
	if c == nil {
		c = &churn{changed: map[string]*policyv1.PodDisruptionBudget{}}
		q.churn[namespace] = c
	}
	c.changed[name] = budget
}

// applyBudgets moves the items that changed budgets select, or selected.
func (q *Queue) applyBudgets(now time.Time) {
	for namespace, c := range q.churn {
		if now.Before(c.next) {
			continue
		}
		if len(c.changed) == 0 {
			delete(q.churn, namespace)
			continue
		}
		for name, budget := range c.changed {
			q.applyBudget(namespace, name, budget, now)
		}
		clear(c.changed)
		c.next = now.Add(churnInterval)
	}
}

func (q *Queue) applyBudget(namespace, name string, budget *policyv1.PodDisruptionBudget, now time.Time) {
	var known *knownBudget
	if budget == nil {
		q.budgets.remove(namespace, name)
	} else {
		known = q.budgets.set(budget)
		q.budgetObserved(budget, now)
	}
	for it := range q.inNamespace[namespace] {
		if !it.matched {
			continue
		}
		at, was := slices.BinarySearch(it.budgets, name)
		is := known != nil && q.budgets.selects(known, it.labels)
		switch {
		case !was && !is:
			continue
		case was && !is:
			it.budgets = slices.Delete(it.budgets, at, at+1)
		case is && !was:
			it.budgets = slices.Insert(it.budgets, at, name)
		}
		if it.phase != phaseInFlight && it.phase != phaseAccepted {
			q.place(it, now)
		}
	}
}

// explain says why a budget lets a pod not go and what can be done. steady says that its pods have
// been as they are for a while.
func explain(budget *policyv1.PodDisruptionBudget, ready, steady bool) *Blocker {
	refusal, held := pdb.HeldByUnhealthy(budget, ready, steady)
	if !held {
		refusal = pdb.Explain(budget)
	}
	b := Blocker(refusal)
	return &b
}

func tooManyDisruptedPods(what string) *Blocker {
	b := Blocker(pdb.TooManyDisruptedPods(what))
	return &b
}

func severalBudgets(matching []*policyv1.PodDisruptionBudget) *Blocker {
	b := Blocker(pdb.ExplainSeveral(matching))
	return &b
}
