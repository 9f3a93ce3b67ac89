// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// State is the state of a unit.
type State string

// The states of a unit, as status.nodes counts its nodes.
const (
	StateWaiting State = "Waiting"
	StateRunning State = "Running"
	StateBlocked State = "Blocked"
	StateFailed  State = "Failed"
	StateSkipped State = "Skipped"
	StateDone    State = "Done"
)

// Unit is a unit of a rollout: nodes that leave and return together.
type Unit struct {
	// Name is the value of the label of the unit, or the name of its only node.
	Name string
	// Nodes are the matching nodes whose work is not done, sorted by name.
	Nodes []*Node
	// State is the state of the unit. Message describes for people why it is Blocked, Failed or
	// Skipped, or why it waits for more than a place.
	State   State
	Message string
	// Attempts is the number of its NodeMaintenances.
	Attempts int

	total int // of its matching nodes
	rank  int // of its domains: first those in which the rollout is at work
	pods  int
}

// References returns the nodes for status.current.
func (u *Unit) References() []v1alpha1.NodeReference {
	refs := make([]v1alpha1.NodeReference, len(u.Nodes))
	for i, n := range u.Nodes {
		refs[i] = v1alpha1.NodeReference{Name: n.Name, UID: n.UID}
	}
	return refs
}

// UnitOf returns the name of the unit of a node.
func UnitOf(r *v1alpha1.NodeMaintenanceRollout, node string, labels map[string]string) string {
	if value := labels[r.Spec.UnitKey]; r.Spec.UnitKey != "" && value != "" {
		return value
	}
	return node
}

// group makes the units of the matching nodes.
func (d *decider) group() {
	d.units = map[string]*Unit{}
	for _, m := range d.Members {
		n := d.cluster.nodes[m.Node]
		if n == nil {
			continue
		}
		name := UnitOf(d.Object, n.Name, n.Labels)
		u := d.units[name]
		if u == nil {
			u = &Unit{Name: name}
			d.units[name] = u
		}
		u.total++
		if _, done := d.history.done[n.UID]; !done && m.Goal != GoalMet {
			u.Nodes = append(u.Nodes, n)
			u.pods += n.Pods
		}
	}
	for _, u := range d.units {
		slices.SortFunc(u.Nodes, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	}
}

// classify sets the state of a unit.
func (d *decider) classify(u *Unit) {
	p := d.history.units[u.Name]
	if p == nil {
		p = &past{}
	}
	u.Attempts = p.attempts
	at, isRunning := d.running[u.Name]
	switch {
	case isRunning && at.failed:
		u.State, u.Message = StateFailed, fmt.Sprintf("the work has failed (NodeMaintenance %s)", at.maintenance)
	case isRunning:
		u.State = StateRunning
	case len(u.Nodes) == 0:
		u.State = StateDone
	case p.noWorker != "":
		u.State, u.Message = StateFailed, fmt.Sprintf("no worker has claimed it (NodeMaintenance %s)", p.noWorker)
	case p.released != "":
		u.State, u.Message = StateSkipped, fmt.Sprintf("a user has completed NodeMaintenance %s before the work was done", p.released)
	default:
		u.State, u.Message = StateWaiting, ""
		if reason := d.skips(u); reason != "" {
			u.State, u.Message = StateSkipped, reason
		} else if retry := p.retry(); p.blocked > 0 && retry.After(d.cluster.Now) {
			u.State, u.Message = StateBlocked, fmt.Sprintf("its drain did not move; it is tried again at %s", clock(retry))
			d.wake(retry)
		}
	}
}

// skips returns why a unit is skipped until a user acts; "" if it is not.
func (d *decider) skips(u *Unit) string {
	if len(u.Nodes) > protocol.MaxUnitNodes {
		return fmt.Sprintf("it has %d nodes; allowed: %d", len(u.Nodes), protocol.MaxUnitNodes)
	}
	for _, n := range u.Nodes {
		if n.skip != "" {
			return fmt.Sprintf("node %s %s", n.Name, n.skip)
		}
	}
	for _, l := range d.limits {
		if reason := l.excludes(u); reason != "" {
			return reason
		}
	}
	return ""
}

// waits returns why a unit cannot start yet although all limits allow it; "" if it can.
func (u *Unit) waits() string {
	for _, n := range u.Nodes {
		if n.wait != "" {
			return fmt.Sprintf("node %s %s", n.Name, n.wait)
		}
	}
	return ""
}

// order returns the units that may start, in the order in which they have to.
func (d *decider) order() []*Unit {
	var waiting []*Unit
	for _, u := range d.units {
		if u.State == StateWaiting {
			u.rank = d.rankOf(u)
			waiting = append(waiting, u)
		}
	}
	self := func(u *Unit) int {
		if slices.ContainsFunc(u.Nodes, func(n *Node) bool { return n.Name == d.cluster.ServerNode }) {
			return 1
		}
		return 0
	}
	slices.SortFunc(waiting, func(a, b *Unit) int {
		return cmp.Or(cmp.Compare(self(a), self(b)), cmp.Compare(a.Attempts, b.Attempts), cmp.Compare(a.rank, b.rank),
			cmp.Compare(a.pods, b.pods), strings.Compare(a.Name, b.Name))
	})
	return waiting
}

// rankOf returns 0 for a unit in domains in which the rollout is at work, 1 in those in which it was
// at work, and 2 in others. So a rollout that may be in few domains ends one before the next.
func (d *decider) rankOf(u *Unit) int {
	rank := 0
	for _, l := range d.limits {
		if l.maxDomains == 0 {
			continue
		}
		for _, n := range u.Nodes {
			domain := n.Labels[l.key]
			switch {
			case l.open[domain]:
			case l.begun[domain]:
				rank = max(rank, 1)
			default:
				rank = 2
			}
		}
	}
	return rank
}
