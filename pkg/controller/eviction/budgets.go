// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"haulout.dev/haulout/pkg/drain/pdb"
)

// matchBudgets returns the budgets that protect an item's pod, ordered by name. The item caches the
// names of the budgets that select it, since a tenant may change budgets very often.
func (q *Queue) matchBudgets(it *item, pod *corev1.Pod) (matching []*policyv1.PodDisruptionBudget) {
	if !it.matched || !maps.Equal(it.labels, pod.Labels) {
		it.labels, it.budgets, it.matched = pod.Labels, nil, true
		for _, budget := range q.budgets.Of(pod) {
			it.budgets = append(it.budgets, budget.Name)
		}
	}
	for _, name := range it.budgets {
		if budget := q.budgets.Get(pod.Namespace, name); budget != nil && pdb.Holds(pod) {
			matching = append(matching, budget)
		}
	}
	return matching
}

// churnInterval is the shortest time between two evaluations of the changed budgets of a namespace.
// The first change is evaluated immediately.
const churnInterval = time.Second

// churn has the pending changes of the budgets of a namespace.
type churn struct {
	// next is the time from which the changes may be evaluated.
	next time.Time
	// changed has, by name, the budgets that are new or may select other pods than before. The
	// value is nil for a deleted budget.
	changed map[string]*policyv1.PodDisruptionBudget
}

// budgetChanged handles an event of a budget. A change that keeps the selector affects only the
// lane of the budget and is never delayed.
func (q *Queue) budgetChanged(old, budget *policyv1.PodDisruptionBudget) {
	name := pdb.NameOf(cmp.Or(budget, old))
	q.mu.Lock()
	defer q.unlock()
	defer q.wake()
	c := q.churn[name.Namespace]
	if c == nil {
		c = &churn{changed: map[string]*policyv1.PodDisruptionBudget{}}
	}
	if _, pending := c.changed[name.Name]; !pending {
		if budget != nil && q.budgets.Update(budget) {
			q.budgetObserved(budget, q.cfg.Clock.Now())
			return
		}
		if !q.stepped || budget != nil && q.budgets.Get(name.Namespace, name.Name) == nil {
			// A new budget is evaluated immediately. Otherwise its pods would be treated as if they
			// had no budget, or only one of two. If a budget is deleted and recreated, both events
			// are evaluated together, since the deletion is still pending. So a tenant can cause at
			// most one immediate evaluation per name.
			q.apply(name.Namespace, map[string]*policyv1.PodDisruptionBudget{name.Name: budget}, q.cfg.Clock.Now())
			return
		}
	}
	c.changed[name.Name] = budget
	q.churn[name.Namespace] = c
}

// applyBudgets evaluates the pending changes that are due.
func (q *Queue) applyBudgets(now time.Time) {
	for namespace, c := range q.churn {
		if now.Before(c.next) {
			continue
		}
		if len(c.changed) == 0 {
			delete(q.churn, namespace)
			continue
		}
		q.apply(namespace, c.changed, now)
		clear(c.changed)
		c.next = now.Add(churnInterval)
	}
}

// apply moves the items of a namespace which the changed budgets select that did not, or the other
// way round. It updates all budgets first, so that a pod that changes from one to another never has
// both.
func (q *Queue) apply(namespace string, changed map[string]*policyv1.PodDisruptionBudget, now time.Time) {
	for name, budget := range changed {
		if budget == nil {
			q.budgets.Remove(namespace, name)
		} else {
			q.budgets.Set(budget)
			q.budgetObserved(budget, now)
		}
	}
	for _, it := range q.items[namespace] {
		moved := false
		for name := range changed {
			at, was := slices.BinarySearch(it.budgets, name)
			is := q.budgets.Selects(namespace, name, it.labels)
			switch {
			case was && !is:
				it.budgets = slices.Delete(it.budgets, at, at+1)
			case is && !was:
				it.budgets = slices.Insert(it.budgets, at, name)
			}
			moved = moved || was != is
		}
		if moved && !it.isSent() {
			q.place(it, now)
		}
	}
}

// budgetObserved passes a budget to its lane. If the budget allows a disruption, budgetObserved
// ends the back-off of the pods that it had refused.
func (q *Queue) budgetObserved(budget *policyv1.PodDisruptionBudget, now time.Time) {
	l, ok := q.lanes[laneKey{NamespacedName: pdb.NameOf(budget)}].(*budgetLane)
	if !ok || !l.observe(budget, now) || !l.refused {
		return
	}
	l.refused = false
	for it := range l.members {
		if it.phase == phaseResting && it.restsForBudget {
			it.endRest()
			q.place(it, now)
		}
	}
}
