// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// watchDelay is how long a change of a budget may take to reach a client that watches it, on a
	// machine that is busy. An eviction that was sent sooner has raced with the change that closed
	// the budget.
	watchDelay = 250 * time.Millisecond
	// Probes ask whether the API sees what the watch has shown. The first one comes when the budget
	// has been closed for ten seconds, and all closed budgets together get one in six; both with
	// something to spare for the clocks.
	probeAfter = 9500 * time.Millisecond
	probeEvery = 5500 * time.Millisecond
)

// Budgets is how PodDisruptionBudgets opened and closed, as a watch showed it.
type Budgets struct {
	mu     sync.Mutex
	states map[string][]budgetState
}

// budgetState is whether a budget let a pod go, since it was seen to.
type budgetState struct {
	since time.Time
	open  bool
}

// See enters an event of a budget that has just come.
func (b *Budgets) See(event watch.Event, now time.Time) {
	budget, ok := event.Object.(*policyv1.PodDisruptionBudget)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.states == nil {
		b.states = map[string][]budgetState{}
	}
	open := event.Type == watch.Deleted ||
		budget.Status.ObservedGeneration >= budget.Generation && budget.Status.DisruptionsAllowed > 0
	name := budget.Namespace + "/" + budget.Name
	states := b.states[name]
	if last := len(states) - 1; last < 0 || states[last].open != open {
		b.states[name] = append(states, budgetState{now, open})
	}
}

// closedSince returns since when a budget had let no pod go at a time; not ok if it did, or may
// have.
func (b *Budgets) closedSince(name string, at time.Time) (time.Time, bool) {
	states := b.states[name]
	for i := len(states) - 1; i >= 0; i-- {
		if !states[i].since.After(at) {
			return states[i].since, !states[i].open && at.Sub(states[i].since) >= watchDelay
		}
	}
	return time.Time{}, false
}

// SentToClosed describes the evictions that a budget refused, if the budget had let no pod go for a
// while when they were sent and they were no probes. It also returns the number of probes.
func (b *Budgets) SentToClosed(calls []Call) (found []string, probes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	byTime := slices.SortedFunc(slices.Values(calls), func(x, y Call) int { return x.Received.Compare(y.Received) })
	var lastProbe time.Time
	for _, call := range byTime {
		if call.RefusedBy == "" {
			continue
		}
		since, closed := b.closedSince(call.Namespace+"/"+call.RefusedBy, call.Received)
		if !closed {
			continue
		}
		if call.Received.Sub(since) >= probeAfter && call.Received.Sub(lastProbe) >= probeEvery {
			lastProbe = call.Received
			probes++
			continue
		}
		found = append(
			found,
			fmt.Sprintf("%s sent the eviction of pod %s/%s although budget %s had let no pod go for %v",
				call.User, call.Namespace, call.Name, call.RefusedBy, call.Received.Sub(since).Round(time.Millisecond)),
		)
	}
	return found, probes
}
