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

// Rules has the facts outside a log on which the Verdict depends.
type Rules struct {
	// Running has the types of pods that are kept running on purpose: no wave waits for them, and
	// they must not be asked to leave.
	Running []v1alpha1.PodType
	// Server is the user name of the server. If it is set, each eviction by this user needs a
	// maintenance that requested it, and no worker that has the node. Users must not make nodes
	// schedulable that a worker has.
	Server string
	// SeesLate is set if the server may lose the connection to the cluster for a while. It may then
	// request evictions although it would find in the budget that no disruption is allowed.
	SeesLate bool
}

// Verdict describes the rules that maintenances broke, given the names of the nodes that a user has
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
		found = append(found, inHands(log, rules.Server)...)
	}
	return found
}

const (
	// watchDelay is the time that a change of a budget may take to reach a watching client on a
	// busy machine. The server may request an eviction that the budget forbids within that time.
	watchDelay = 250 * time.Millisecond
	// schedulerDelay is the same time for a scheduler, which decides about all victims before it
	// sends their evictions.
	schedulerDelay = time.Second
	// A probe is an eviction to check a budget that allows no disruption according to the watch.
	// The first probe of a budget comes after ten seconds. All such budgets together get one probe
	// in six seconds. Both times include a tolerance for the clocks.
	probeAfter = 9500 * time.Millisecond
	probeEvery = 5500 * time.Millisecond
)

// SchedulerUser is the user name of kube-scheduler and of haulout-scheduler.
const SchedulerUser = "system:kube-scheduler"

// budgetState records whether a budget allowed a disruption, and since when.
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

// closedSince returns the time since which a budget has allowed no disruption. ok is false if the
// budget allows one, or may allow one, since the change may take the given time to reach a client.
func closedSince(states []budgetState, at time.Time, delay time.Duration) (time.Time, bool) {
	for _, s := range slices.Backward(states) {
		if !s.since.After(at) {
			return s.since, !s.open && at.Sub(s.since) >= delay
		}
	}
	return time.Time{}, false
}

// SentToClosed describes the refused evictions that were requested although the budget had allowed
// no disruption for a while, except probes. It also returns the number of probes.
func SentToClosed(log Log) (found []string, probes int) {
	states := budgetStates(log)
	byTime := slices.SortedFunc(slices.Values(log.Calls), func(x, y Call) int { return x.Received.Compare(y.Received) })
	var lastProbe time.Time
	for _, call := range byTime {
		if call.RefusedBy == "" {
			continue
		}
		delay := watchDelay
		if call.User == SchedulerUser {
			delay = schedulerDelay
		}
		since, closed := closedSince(states[call.Namespace+"/"+call.RefusedBy], call.Received, delay)
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
			fmt.Sprintf("%s sent the eviction of pod %s/%s although budget %s had allowed no disruption for %v",
				call.User, call.Namespace, call.Name, call.RefusedBy, call.Received.Sub(since).Round(time.Millisecond)),
		)
	}
	return found, probes
}

// ourPrefix is the prefix of the names of the labels, annotations and taints of Haulout.
const ourPrefix = "maintenance.haulout.dev/"

// forAutoscalers are the annotations that Haulout adds to held nodes so that no autoscaler deletes
// them.
var forAutoscalers = sets.New("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")

// nodeConditions are the conditions about maintenances (KEP-4212, "Node Conditions").
var nodeConditions = sets.New[corev1.NodeConditionType]("MaintenancePlanned", "MaintenanceInProgress",
	"DrainInProgress", "Drained")

// notPutBack describes the remains of maintenances on nodes, given the names of the nodes that a
// user had cordoned.
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

// LeftOn describes the remains of maintenances on a node without a maintenance. cordoned is set if
// a user has cordoned the node.
func LeftOn(node *corev1.Node, cordoned bool) []string {
	var found []string
	switch {
	case node.Spec.Unschedulable && !cordoned:
		found = append(found, fmt.Sprintf("node %s is not schedulable", node.Name))
	case !node.Spec.Unschedulable && cordoned:
		found = append(found, fmt.Sprintf("node %s is schedulable, although another user had cordoned it", node.Name))
	}
	for name := range node.Annotations {
		if strings.HasPrefix(name, ourPrefix) || forAutoscalers.Has(name) {
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
				fmt.Sprintf("Evacuation %s/%s still exists: finalizers %v, deleted %t, conditions %v",
					e.Namespace, e.Name, e.Finalizers, e.DeletionTimestamp != nil, e.Status.Conditions),
			)
		}
	}
	slices.Sort(found)
	return found
}

// stopTime is the time that a server may take to stop evictions after the end of a maintenance,
// including the time of a request that it has already sent.
const stopTime = 3 * time.Second

// unasked describes the granted evictions by a user for which no maintenance drained the node when
// kube-apiserver received the call, or shortly before. A paused maintenance asks no pod to leave.
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
			found = append(found, fmt.Sprintf("pod %s/%s on node %s was evicted at %s, and no maintenance drained the node without a pause",
				pod.Namespace, pod.Name, pod.Spec.NodeName, call.Received.UTC().Format("15:04:05.000")))
		}
	}
	return found
}

// asksFor reports whether the maintenance drained one of the nodes at a time or shortly before, and
// was not paused.
func (d *docket) asksFor(nodes []*nodeRecord, at time.Time) bool {
	for i, state := range d.states {
		if !state.draining || state.paused {
			continue
		}
		over := d.gone
		if i+1 < len(d.states) {
			over = &d.states[i+1].stamp
		}
		// A state may have begun before the Recorder received it, but not before the object was
		// created.
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
