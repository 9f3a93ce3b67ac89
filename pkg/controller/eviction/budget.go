// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"maps"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/drain/pdb"
)

// matchBudgets looks up the budgets of an item whose pod has the given labels, unless that is
// known. A tenant may rewrite budgets all the time, so that the names are kept with the item.
func (q *Queue) matchBudgets(it *item, pod labels.Set) {
	if it.matched && maps.Equal(it.labels, pod) {
		return
	}
	it.labels, it.budgets, it.matched = pod, nil, true
	for _, budget := range q.budgets.Matching(it.Evacuation.Namespace, pod) {
		it.budgets = append(it.budgets, budget.Name)
	}
}

// budgetsOf returns the budgets that select an item's pod, ordered by name.
func (q *Queue) budgetsOf(it *item) []*policyv1.PodDisruptionBudget {
	if len(it.budgets) == 0 {
		return nil
	}
	matching := make([]*policyv1.PodDisruptionBudget, 0, len(it.budgets))
	for _, name := range it.budgets {
		if budget := q.budgets.Get(it.Evacuation.Namespace, name); budget != nil {
			matching = append(matching, budget)
		}
	}
	return matching
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
	if budget != nil && q.budgets.Update(budget) {
		q.budgetObserved(budget, q.clock.Now())
		return
	}
	if !q.stepped || budget != nil && q.budgets.Get(namespace, name) == nil {
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
	if budget == nil {
		q.budgets.Remove(namespace, name)
	} else {
		q.budgets.Set(budget)
		q.budgetObserved(budget, now)
	}
	for it := range q.inNamespace[namespace] {
		if !it.matched {
			continue
		}
		at, was := slices.BinarySearch(it.budgets, name)
		is := q.budgets.Selects(namespace, name, it.labels)
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

// explain says why a budget lets a pod not go and what can be done. owner is what the pod belongs
// to; steady says that the budget's pods have been as they are for a while.
func explain(budget *policyv1.PodDisruptionBudget, owner pdb.Owner, ready, steady bool) *Blocker {
	refusal, held := pdb.HeldByUnhealthy(budget, ready, steady)
	if !held {
		refusal = pdb.Explain(budget, owner)
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
