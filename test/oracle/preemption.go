// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Scheduler is what JudgePreemption has to know.
type Scheduler struct {
	// User sends the calls of the scheduler.
	User string
	// Threshold is the priority from which on a pod may break the budgets of guarded pods.
	Threshold int32
	// PriorityFor returns the priority of the pod for which a victim was deleted.
	PriorityFor func(victim string) int32
}

// Preemption is what the calls of a scheduler did to the budgets of guarded pods.
type Preemption struct {
	// Evicted counts the guarded pods that were evicted, Deleted the pods that were deleted
	// although their budget had no room, DeletedBelow those of them for a pod below the threshold.
	Evicted, Deleted, DeletedBelow int
	// Broken are the budgets that deletions have broken, BrokenBelow those that deletions for a pod
	// below the threshold have broken.
	Broken, BrokenBelow sets.Set[string]
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
	// The Eviction API has allowed these pods to go, and has counted the budget down. If the
	// scheduler dies within an eviction, the API may do so without the deletion; then a later
	// deletion of the pod breaks no budget.
	counted := sets.New[string]()
	for _, pdb := range Each[*policyv1.PodDisruptionBudget](log) {
		for pod := range pdb.Status.DisruptedPods {
			counted.Insert(pod)
		}
	}
	p := Preemption{Broken: sets.New[string](), BrokenBelow: sets.New[string](), Found: EvictedTwice(log)}
	for i := range log.Calls {
		call := &log.Calls[i]
		lost, guarded := losses[call.Name]
		if !guarded || call.User != scheduler.User {
			continue
		}
		switch {
		case call.Evicted():
			p.evicted(call, lost, log.Calls, losses)
		case call.Deleted() && !counted.Has(call.Name):
			p.deleted(call, lost, scheduler)
		}
	}
	return p
}

func (p *Preemption) evicted(call *Call, lost guardedLoss, calls []Call, losses map[string]guardedLoss) {
	p.Evicted++
	// The Eviction API may not know of a deletion shortly before.
	unknown := slices.ContainsFunc(calls, func(c Call) bool {
		other, ok := losses[c.Name]
		return ok && c.Deleted() && other.budget == lost.budget && !other.Seen.After(lost.Seen) &&
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
