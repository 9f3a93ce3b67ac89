// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Scheduler has what JudgePreemption must know about a scheduler.
type Scheduler struct {
	// User is the user name of the scheduler.
	User string
	// Threshold is the lowest priority of a pod for which the scheduler may break budgets.
	Threshold int32
	// PriorityFor returns the priority of the pod for which a victim was deleted.
	PriorityFor func(victim string) int32
}

// Preemption describes the effects of a scheduler's calls on the budgets of guarded pods.
type Preemption struct {
	// Evicted is the number of guarded pods that were evicted.
	Evicted int
	// Deleted is the number of guarded pods that were deleted although their budget allowed no
	// disruption.
	Deleted int
	// DeletedBelow is the part of Deleted that was for pending pods below the threshold.
	DeletedBelow int
	// Broken has the names of the budgets that deletions have broken.
	Broken sets.Set[string]
	// BrokenBelow has the names of the budgets that deletions for pending pods below the threshold
	// have broken.
	BrokenBelow sets.Set[string]
	// Found describes what the scheduler must not do.
	Found []string
}

// guardedLoss is the loss of a pod that a budget guards.
type guardedLoss struct {
	Loss

	budget string
}

// JudgePreemption judges the granted calls of a scheduler.
func JudgePreemption(log Log, scheduler Scheduler) Preemption {
	losses := map[string]guardedLoss{}
	for _, h := range HealthOf(log) {
		for _, loss := range h.Losses {
			losses[loss.Pod] = guardedLoss{loss, h.Name}
		}
	}
	// The Eviction API has counted these pods as disruptions of their budgets. If the scheduler
	// ends during an eviction, the API may count a pod and not delete it; a later deletion of this
	// pod then breaks no budget.
	counted := sets.New[string]()
	for _, pdb := range Each[*policyv1.PodDisruptionBudget](log) {
		for pod := range pdb.Status.DisruptedPods {
			counted.Insert(pod)
		}
	}
	// The kubelet also deletes the evicted pods, at the end of their grace periods.
	calls := slices.DeleteFunc(slices.Clone(log.Calls), func(c Call) bool { return c.User != scheduler.User })
	p := Preemption{Broken: sets.New[string](), BrokenBelow: sets.New[string](), Found: EvictedTwice(log)}
	for i := range calls {
		call := &calls[i]
		lost, guarded := losses[call.Name]
		if !guarded {
			continue
		}
		switch {
		case call.Evicted():
			p.evicted(call, lost, calls, losses)
		case call.Deleted() && !counted.Has(call.Name):
			p.deleted(call, lost, scheduler)
		}
	}
	return p
}

func (p *Preemption) evicted(call *Call, lost guardedLoss, calls []Call, losses map[string]guardedLoss) {
	p.Evicted++
	// The Eviction API may not yet know about a deletion that came shortly before this eviction.
	unknown := slices.ContainsFunc(calls, func(c Call) bool {
		other, ok := losses[c.Name]
		return ok && c.Deleted() && c.Name != call.Name && other.budget == lost.budget && !other.Seen.After(lost.Seen) &&
			lost.Seen.Sub(other.Seen) < disruptionLag
	})
	if lost.Healthy < lost.Floor && !unknown {
		p.Found = append(p.Found, fmt.Sprintf("the eviction of pod %s left %d healthy pods of budget %s, %d are needed",
			call.Name, lost.Healthy, lost.budget, lost.Floor))
	}
}

func (p *Preemption) deleted(call *Call, lost guardedLoss, scheduler Scheduler) {
	priority := scheduler.PriorityFor(call.Name)
	if priority < scheduler.Threshold {
		p.Found = append(p.Found, fmt.Sprintf("the guarded pod %s was deleted for a pod of priority %d, after %v of health",
			call.Name, priority, lost.Age))
	}
	if lost.Healthy >= lost.Floor {
		return
	}
	p.Deleted++
	p.Broken.Insert(lost.budget)
	if priority < scheduler.Threshold {
		p.DeletedBelow++
		p.BrokenBelow.Insert(lost.budget)
	}
}
