// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
)

// Verdict judges what was recorded so far, given the names of the nodes that a user has
// cordoned.
func (r *Recorder) Verdict(rules Rules, cordoned ...string) ([]string, error) {
	calls, err := r.Calls()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return nil, r.failed
	}
	found, err := r.history.OutOfOrder(calls, rules)
	if err != nil {
		return nil, err
	}
	found = append(found, r.history.WentBack()...)
	found = append(found, r.history.NotPutBack(cordoned...)...)
	found = append(found, EvictedTwice(calls)...)
	if !rules.SeesLate {
		toClosed, _ := r.budgets.SentToClosed(calls)
		found = append(found, toClosed...)
	}
	if rules.Server != "" {
		unasked, err := r.history.Unasked(calls, rules.Server)
		if err != nil {
			return nil, err
		}
		found = append(found, unasked...)
	}
	found = append(found, r.history.LeftOver()...)
	if !rules.BudgetsMove {
		found = append(found, r.books.Broken()...)
	}
	return found, nil
}

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

// ourPrefix starts the names of what Haulout writes on nodes.
const ourPrefix = "maintenance.haulout.dev/"

// nodeConditions are the conditions about maintenances (KEP-4212, "Node Conditions").
var nodeConditions = sets.New[corev1.NodeConditionType]("MaintenancePlanned", "MaintenanceInProgress",
	"DrainInProgress", "Drained")

// NotPutBack describes what maintenances have left behind on nodes, given the names of the nodes
// that a user had cordoned.
func (h *History) NotPutBack(cordoned ...string) []string {
	var found []string
	for _, n := range h.nodes {
		if n.gone.at == never {
			found = append(found, LeftOn(n.last, slices.Contains(cordoned, n.last.Name))...)
		}
	}
	slices.Sort(found)
	return found
}

// LeftOn describes what maintenances have left behind on a node that is in none; cordoned is
// whether a user has cordoned it.
func LeftOn(node *corev1.Node, cordoned bool) []string {
	var found []string
	switch {
	case node.Spec.Unschedulable && !cordoned:
		found = append(found, fmt.Sprintf("node %s is not schedulable", node.Name))
	case !node.Spec.Unschedulable && cordoned:
		found = append(found, fmt.Sprintf("node %s is schedulable, although another user had cordoned it", node.Name))
	}
	for name := range node.Annotations {
		if strings.HasPrefix(name, ourPrefix) {
			found = append(found, fmt.Sprintf("node %s has the annotation %s", node.Name, name))
		}
	}
	for _, taint := range node.Spec.Taints {
		if strings.HasPrefix(taint.Key, ourPrefix) {
			found = append(found, fmt.Sprintf("node %s has the taint %s", node.Name, taint.Key))
		}
	}
	for _, condition := range node.Status.Conditions {
		if nodeConditions.Has(condition.Type) && condition.Status == corev1.ConditionTrue {
			found = append(found, fmt.Sprintf("node %s has the condition %s", node.Name, condition.Type))
		}
	}
	return found
}

// LeftOver describes the Evacuations that are still there.
func (h *History) LeftOver() []string {
	var found []string
	for _, e := range h.evacuations {
		if !e.gone {
			found = append(
				found,
				fmt.Sprintf("Evacuation %s/%s is still there: finalizers %v, deleted %t, conditions %v",
					e.Namespace, e.Name, e.Finalizers, e.DeletionTimestamp != nil, e.Status.Conditions),
			)
		}
	}
	slices.Sort(found)
	return found
}

// stopTime is how long a server may take to learn that a maintenance is over. An eviction that it
// has sent may also be on its way.
const stopTime = 3 * time.Second

// Unasked describes the evictions that server was granted of pods on nodes which no maintenance
// drained when kube-apiserver received the call, nor shortly before.
func (h *History) Unasked(calls []Call, server string) ([]string, error) {
	dockets, err := h.dockets(Rules{})
	if err != nil {
		return nil, err
	}
	nodes := h.nodesByName()
	var found []string
	for i := range calls {
		call := &calls[i]
		pod := h.pods[call.UID]
		if !call.Evicted() || call.User != server || pod == nil {
			continue
		}
		asked := false
		for _, d := range dockets {
			asked = asked || d.asksFor(nodes[pod.Spec.NodeName], call.Received)
		}
		if !asked {
			found = append(found, fmt.Sprintf("pod %s/%s on node %s was evicted at %s, and no maintenance drained the node",
				pod.Namespace, pod.Name, pod.Spec.NodeName, call.Received.UTC().Format("15:04:05.000")))
		}
	}
	return found, nil
}

// asksFor reports whether the maintenance drained one of some nodes at a time or shortly before.
func (d *docket) asksFor(nodes []*nodeRecord, at time.Time) bool {
	for i, state := range d.states {
		if !state.draining {
			continue
		}
		over := d.gone
		if i+1 < len(d.states) {
			over = &d.states[i+1].stamp
		}
		// A state may have come some time before it was seen, but not before the object.
		if at.Before(d.last.CreationTimestamp.Time) || over != nil && at.After(over.seen.Add(stopTime)) {
			continue
		}
		for _, node := range nodes {
			if _, named := state.targets[node.last.UID]; named || d.joined(node, state.at) != nil {
				return true
			}
		}
	}
	return false
}
