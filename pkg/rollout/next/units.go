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

	// past is the result of its attempts, and work is what runs; nil if nothing does.
	past past
	work *work
	// isMatched is true if a matching node is in the unit.
	isMatched bool
	state     state
	// message describes for people why the unit is blocked, failed or skipped.
	message string
	// turn is -1 if the unit is unsettled, and 1 if the server runs on one of its nodes. rank is
	// that of its domains, see rankOf.
	// pods is the number of its pods that have to leave.
	turn, rank, pods int
}

// References returns the nodes for status.current.
func (u *Unit) References() []v1alpha1.NodeReference {
	refs := make([]v1alpha1.NodeReference, len(u.Nodes))
	for i, n := range u.Nodes {
		refs[i] = v1alpha1.NodeReference{Name: n.Name, UID: n.UID}
	}
	return refs
}

// unit returns the unit of a name.
func (d *decider) unit(name string) *Unit {
	u := d.byName[name]
	if u == nil {
		u = &Unit{Name: name}
		d.byName[name] = u
	}
	return u
}

// unitOf returns the name of the unit of a node that is not inside a unit that runs. A node without
// the label joins the unit of its name.
func (d *decider) unitOf(n *Node) string {
	if key := d.Object.Spec.UnitKey; key != "" && n.Labels[key] != "" {
		return n.Labels[key]
	}
	return n.Name
}

// group makes the units of the matching nodes. A node that left with a unit stays in it until that
// ends, whatever its labels are.
func (d *decider) group() {
	d.members = make([]member, 0, len(d.Members))
	for _, of := range d.Members {
		n := d.cluster.Nodes.byName[of.Node]
		if n == nil {
			continue
		}
		d.wake(n.readyBy)
		m := member{
			Node: n, isTooNew: of.Goal == TooNew, isOut: d.cluster.isOut(n), isWorkedOn: of.IsDone, isDone: of.IsDone || of.Goal == GoalMet,
		}
		switch u, isInside := d.inside[n.Name]; {
		case m.isTooNew:
		case isInside:
			m.unit, m.isInside = u, true
		case m.isDone:
			m.unit = d.byName[d.unitOf(n)]
		default:
			m.unit = d.unit(d.unitOf(n))
		}
		if u := m.unit; u != nil && !u.isMatched {
			u.isMatched = true
			d.units = append(d.units, u)
		}
		if m.unit != nil && !m.isDone {
			m.unit.Nodes = append(m.unit.Nodes, n)
		}
		d.members = append(d.members, m)
	}
	for _, u := range d.units {
		slices.SortFunc(u.Nodes, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	}
}

// classify sets the state of a unit.
func (d *decider) classify(u *Unit) {
	switch p := &u.past; {
	case u.work != nil && u.work.failed:
		u.state, u.message = failed, fmt.Sprintf("the work has failed (NodeMaintenance %s)", u.work.maintenance)
	case u.work != nil:
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
func (d *decider) waits(u *Unit) string {
	for _, n := range u.Nodes {
		if why := d.cluster.waitsFor(n); why != "" {
			return fmt.Sprintf("node %s %s", n.Name, why)
		}
	}
	return ""
}

// order returns the units that may start, in the order in which they have to.
func (d *decider) order() []*Unit {
	var units []*Unit
	for _, u := range d.units {
		if u.state == waiting {
			u.rank, u.pods = d.rankOf(u), d.podsOf(u)
			_, isUnsettled := d.Unsettled[u.Name]
			switch {
			case isUnsettled:
				u.turn = -1
			case slices.ContainsFunc(u.Nodes, func(n *Node) bool { return n.Name == d.cluster.ServerNode }):
				u.turn = 1
			}
			units = append(units, u)
		}
	}
	slices.SortFunc(units, func(a, b *Unit) int {
		return cmp.Or(cmp.Compare(a.turn, b.turn), d.FailedStarts[a.Name].Compare(d.FailedStarts[b.Name]), cmp.Compare(a.past.attempts, b.past.attempts),
			cmp.Compare(a.rank, b.rank), cmp.Compare(a.pods, b.pods), strings.Compare(a.Name, b.Name))
	})
	return units
}

func (d *decider) podsOf(u *Unit) int {
	pods := 0
	for _, n := range u.Nodes {
		if d.cluster.Pods != nil {
			pods += d.cluster.Pods(n.Name)
		}
	}
	return pods
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
