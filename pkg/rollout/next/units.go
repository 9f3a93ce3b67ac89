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

// state is the state of a unit, as status.nodes counts its nodes.
type state int

const (
	waiting state = iota
	running
	blocked
	failed
	skipped
	done
)

// Unit is a unit of a rollout: nodes that leave and return together.
type Unit struct {
	// Name is the value of the label of the unit, or the name of its only node.
	Name string
	// Nodes are the matching nodes whose work is not done, sorted by name.
	Nodes []*Node

	state state
	// message describes for people why the unit is blocked, failed or skipped.
	message string
	// attempts is the number of its NodeMaintenances.
	attempts int
	// rank is that of its domains, see rankOf; pods is the number of its pods that have to leave.
	rank, pods int
}

// References returns the nodes for status.current.
func (u *Unit) References() []v1alpha1.NodeReference {
	refs := make([]v1alpha1.NodeReference, len(u.Nodes))
	for i, n := range u.Nodes {
		refs[i] = v1alpha1.NodeReference{Name: n.Name, UID: n.UID}
	}
	return refs
}

// unitOf returns the name of the unit of a node. isInside is true if the node left with that unit,
// which runs; the labels count after that. A node without the label joins the unit of its name.
func (d *decider) unitOf(n *Node) (name string, isInside bool) {
	if name, isInside = d.inside[n.Name]; isInside {
		return name, true
	}
	if value := n.Labels[d.Object.Spec.UnitKey]; d.Object.Spec.UnitKey != "" && value != "" {
		return value, false
	}
	return n.Name, false
}

// group makes the units of the matching nodes.
func (d *decider) group() {
	d.units = map[string]*Unit{}
	for _, m := range d.Members {
		n := d.cluster.nodes[m.Node]
		if n == nil || m.Goal == TooNew {
			continue
		}
		name, _ := d.unitOf(n)
		u := d.units[name]
		if u == nil {
			u = &Unit{Name: name}
			d.units[name] = u
		}
		if !d.isDone(n, m.Goal) {
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
	u.attempts = p.attempts
	w, isRunning := d.work[u.Name]
	switch {
	case isRunning && w.failed:
		u.state, u.message = failed, fmt.Sprintf("the work has failed (NodeMaintenance %s)", w.maintenance)
	case isRunning:
		u.state = running
	case len(u.Nodes) == 0:
		u.state = done
	case p.noWorker != "":
		u.state, u.message = failed, fmt.Sprintf("no worker has claimed it (NodeMaintenance %s)", p.noWorker)
	case p.released != "":
		u.state, u.message = skipped, fmt.Sprintf("a user has completed NodeMaintenance %s before the work was done", p.released)
	default:
		u.state = waiting
		if reason := d.skips(u); reason != "" {
			u.state, u.message = skipped, reason
		} else if retry := p.retry(); p.blocked > 0 && retry.After(d.cluster.Now) {
			u.state, u.message = blocked, fmt.Sprintf("it was withdrawn; it is tried again at %s", clock(retry))
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
	var units []*Unit
	for _, u := range d.units {
		if u.state == waiting {
			u.rank = d.rankOf(u)
			units = append(units, u)
		}
	}
	self := func(u *Unit) int {
		if slices.ContainsFunc(u.Nodes, func(n *Node) bool { return n.Name == d.cluster.ServerNode }) {
			return 1
		}
		return 0
	}
	slices.SortFunc(units, func(a, b *Unit) int {
		return cmp.Or(cmp.Compare(self(a), self(b)), cmp.Compare(a.attempts, b.attempts), cmp.Compare(a.rank, b.rank),
			cmp.Compare(a.pods, b.pods), strings.Compare(a.Name, b.Name))
	})
	return units
}

// rankOf returns 0 for a unit in domains in which the rollout is at work, 1 in those in which it
// was at work, and 2 in others. So a rollout that may be in few domains ends one before the next.
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
