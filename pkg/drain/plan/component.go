// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"
)

// component is a set of maintenances that share nodes, directly or through others, oldest first.
// Components do not affect each other.
type component struct {
	maintenances []*progress
}

// findComponents sorts the maintenances, which are given oldest first, into components.
func findComponents(ordered []*progress) []*component {
	var out []*component
	for _, start := range ordered {
		if start.component != nil {
			continue
		}
		c := &component{maintenances: []*progress{start}}
		start.component = c
		for i := 0; i < len(c.maintenances); i++ {
			for _, h := range c.maintenances[i].holds {
				for _, other := range h.node.holds {
					if other.by.component == nil {
						other.by.component = c
						c.maintenances = append(c.maintenances, other.by)
					}
				}
			}
		}
		slices.SortFunc(c.maintenances, older)
		out = append(out, c)
	}
	return out
}

// override resolves a contradiction between plans: if no live pod of a component is asked to leave
// although a plan covers some, the nodes of the oldest unfinished maintenance get its targets. It
// returns nil if there was no contradiction.
func (c *component) override() *Override {
	stuck := true
	for _, m := range c.maintenances {
		for _, h := range m.holds {
			stuck = stuck && !h.node.moving
		}
		stuck = stuck && !m.held()
	}
	i := slices.IndexFunc(c.maintenances, func(m *progress) bool { return !m.finished() })
	if !stuck || i < 0 {
		return nil
	}
	oldest := c.maintenances[i]
	overridden := map[string]bool{}
	for _, h := range oldest.holds {
		n := h.node
		n.take(n.group.answer(n.plain.reached, n.group.asked(h.index)))
		for _, other := range n.holds {
			if n.overrules(other) {
				overridden[other.by.name] = true
			}
		}
	}
	names := slices.AppendSeq(make([]string, 0, len(overridden)), maps.Keys(overridden))
	slices.Sort(names)
	return &Override{Followed: oldest.name, Overridden: names}
}

// overrules reports whether the override has raised a target of the node above the plan of another
// maintenance that holds the node. The node may have no such pod now, since one may be created.
func (n *nodeState) overrules(h *hold) bool {
	for k, reached := range n.answer.reached {
		if reached > n.plain.reached[k] && reached > n.group.members[h.index].at(k) {
			return true
		}
	}
	return false
}

// publish adds the targets to the result.
func (c *component) publish(result *Result) {
	for _, m := range c.maintenances {
		result.Finished[m.name] = m.finished()
		for _, h := range m.holds {
			result.Targets[h.name] = h.node.answer.targets
		}
	}
}
