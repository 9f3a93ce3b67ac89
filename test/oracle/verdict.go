// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Rules are what the Verdict on a log depends on.
type Rules struct {
	// Running are the types of pods that are left running on purpose: no wave waits for them and
	// they must not be asked to leave.
	Running []v1alpha1.PodType
	// Server is the user of the server. If it is set, each of its evictions needs a maintenance
	// that asked for it.
	Server string
	// SeesLate means that the server may be cut off from the cluster for a while. Then it may send
	// evictions to a budget without knowing that it is closed.
	SeesLate bool
}

// Verdict describes what maintenances did wrong, given the names of the nodes that a user has
// cordoned.
func Verdict(log Log, rules Rules, cordoned ...string) []string {
	found := slices.Concat(
		outOfOrder(log, rules.Running...), wentBack(log), notPutBack(log, cordoned...), EvictedTwice(log), leftOver(log),
		brokenBudgets(log),
	)
	if !rules.SeesLate {
		toClosed, _ := SentToClosed(log)
		found = append(found, toClosed...)
	}
	if rules.Server != "" {
		found = append(found, unasked(log, rules.Server)...)
	}
	return found
}

const (
	// watchDelay is the time that a change of a budget may take to reach a client that watches it,
	// on a busy machine. An eviction that was sent sooner has raced with the change that closed the
	// budget.
	watchDelay = 250 * time.Millisecond
	// Probes ask whether a budget that the watch shows as closed is closed. The first one comes ten
	// seconds after it was closed, and all closed budgets together get one in six seconds; both
	// less a tolerance for the clocks.
	probeAfter = 9500 * time.Millisecond
	probeEvery = 5500 * time.Millisecond
)

// budgetState is whether a budget let a pod go, since it was seen to.
type budgetState struct {
	since time.Time
	open  bool
}

// budgetStates returns the states of the budgets, by namespace and name.
func budgetStates(log Log) map[string][]budgetState {
	states := map[string][]budgetState{}
	for o, pdb := range Each[*policyv1.PodDisruptionBudget](log) {
		open := o.Type == watch.Deleted ||
			pdb.Status.ObservedGeneration >= pdb.Generation && pdb.Status.DisruptionsAllowed > 0
		name := pdb.Namespace + "/" + pdb.Name
		if last := len(states[name]) - 1; last < 0 || states[name][last].open != open {
			states[name] = append(states[name], budgetState{o.Seen, open})
		}
	}
	return states
}

// closedSince returns when a budget was closed that lets no pod go at a time; not ok if it does, or
// may.
func closedSince(states []budgetState, at time.Time) (time.Time, bool) {
	for _, s := range slices.Backward(states) {
		if !s.since.After(at) {
			return s.since, !s.open && at.Sub(s.since) >= watchDelay
		}
	}
	return time.Time{}, false
}

// SentToClosed describes the evictions that a budget refused, if the budget had let no pod go for a
// while when they were sent and they were no probes. It also returns the number of probes.
func SentToClosed(log Log) (found []string, probes int) {
	states := budgetStates(log)
	byTime := slices.SortedFunc(slices.Values(log.Calls), func(x, y Call) int { return x.Received.Compare(y.Received) })
	var lastProbe time.Time
	for _, call := range byTime {
		if call.RefusedBy == "" {
			continue
		}
		since, closed := closedSince(states[call.Namespace+"/"+call.RefusedBy], call.Received)
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

// notPutBack describes what maintenances have left behind on nodes, given the names of the nodes
// that a user had cordoned.
func notPutBack(log Log, cordoned ...string) []string {
	var found []string
	for _, n := range historyOf(log).nodes {
		if n.gone.at == never {
			found = append(found, LeftOn(n.last, slices.Contains(cordoned, n.last.Name))...)
		}
	}
	slices.Sort(found)
	return found
}

// LeftOn describes what maintenances have left behind on a node without a maintenance; cordoned
// means that a user has cordoned it.
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

// leftOver describes the Evacuations that still exist.
func leftOver(log Log) []string {
	var found []string
	for _, e := range historyOf(log).evacuations {
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

// stopTime is the time that a server may take to learn that a maintenance is over. An eviction that
// it has sent may also be under way.
const stopTime = 3 * time.Second

// unasked describes the granted evictions by a user of pods on nodes that no maintenance drained
// when kube-apiserver received the call, or shortly before.
func unasked(log Log, user string) []string {
	h := historyOf(log)
	dockets, err := h.dockets(nil)
	if err != nil {
		return []string{err.Error()}
	}
	nodes := h.nodesByName()
	var found []string
	for i := range log.Calls {
		call := &log.Calls[i]
		pod := h.pods[call.UID]
		if !call.Evicted() || call.User != user || pod == nil {
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
	return found
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
