// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// planning is the state of a call of Plan. Nodes share the groups and limits, which are computed
// once.
type planning struct {
	// ordered are the maintenances, the oldest first.
	ordered []*progress
	// listed are the nodes in the order of the world, and nodes are the same nodes by name.
	listed []*nodeState
	nodes  map[string]*nodeState
	// groups has the groups by their maintenances and additional keys.
	groups  map[string]*group
	scratch []byte
}

// Plan decides which pods are asked to leave. It fails if a selector cannot be parsed, or if a
// maintenance names a node that is not in the world.
func Plan(world World) (Result, error) {
	p := &planning{nodes: make(map[string]*nodeState, len(world.Nodes)), groups: map[string]*group{}}
	return p.plan(world)
}

func (p *planning) plan(world World) (Result, error) {
	if err := p.addNodes(world.Nodes); err != nil {
		return Result{}, err
	}
	if err := p.addMaintenances(world.Maintenances); err != nil {
		return Result{}, err
	}
	if err := p.measureNodes(); err != nil {
		return Result{}, err
	}
	for _, m := range p.ordered {
		m.advance()
	}
	for _, g := range p.groups {
		g.setLimit()
	}
	for _, n := range p.listed {
		n.decide()
	}
	result := Result{
		Targets: make(map[string]Targets, len(p.listed)), Messages: make(map[string]map[string]string, len(p.ordered)),
		Finished: make(map[string]bool, len(p.ordered)), FastForwarded: map[string]map[string]string{},
	}
	for _, c := range findComponents(p.ordered) {
		if decided := c.override(); decided != nil {
			result.Overrides = append(result.Overrides, *decided)
		}
		c.publish(&result)
		c.describe(&result, world.Subject)
	}
	return result, nil
}

func (p *planning) addNodes(nodes []*Node) error {
	states := make([]nodeState, len(nodes))
	p.listed = make([]*nodeState, len(nodes))
	for i, node := range nodes {
		if p.nodes[node.Name] != nil {
			return fmt.Errorf("node %s is listed twice", node.Name)
		}
		states[i].Node = node
		p.listed[i], p.nodes[node.Name] = &states[i], &states[i]
	}
	return nil
}

// addMaintenances compiles the plans and links each maintenance with its nodes.
func (p *planning) addMaintenances(maintenances []Maintenance) error {
	names := make(map[string]bool, len(maintenances))
	for i := range maintenances {
		name := maintenances[i].Name
		if names[name] {
			return fmt.Errorf("maintenance %s is listed twice", name)
		}
		names[name] = true
		m, err := p.newProgress(&maintenances[i])
		if err != nil {
			return fmt.Errorf("maintenance %s: %w", name, err)
		}
		p.ordered = append(p.ordered, m)
	}
	slices.SortFunc(p.ordered, older)
	for i, m := range p.ordered {
		m.id = i
		for _, h := range m.holds {
			h.index = len(h.node.holds)
			h.node.holds = append(h.node.holds, h)
		}
	}
	return nil
}

func (p *planning) newProgress(now *Maintenance) (*progress, error) {
	m := &progress{name: now.Name, created: now.Created, isHeld: len(now.Uncordoned) > 0}
	if err := m.compile(now.Plan); err != nil {
		return nil, err
	}
	names := slices.Compact(slices.Sorted(slices.Values(now.Nodes)))
	for _, name := range slices.Compact(slices.Sorted(slices.Values(now.Excluded))) {
		node := p.nodes[name]
		if node == nil {
			return nil, fmt.Errorf("excluded node %s is not part of the world", name)
		}
		m.excluded = append(m.excluded, node.Node)
	}
	uncordoned := slices.Sorted(slices.Values(now.Uncordoned))
	holds := make([]hold, len(names))
	m.holds = make([]*hold, len(names))
	for i, name := range names {
		node := p.nodes[name]
		if node == nil {
			return nil, fmt.Errorf("node %s is not part of the world", name)
		}
		holds[i] = hold{name: name, by: m, node: node, before: now.Before[name]}
		_, holds[i].uncordoned = slices.BinarySearch(uncordoned, name)
		m.holds[i] = &holds[i]
	}
	return m, nil
}

// older orders maintenances by creation time, then by name.
func older(a, b *progress) int {
	return cmp.Or(a.created.Compare(b.created), strings.Compare(a.name, b.name))
}

// measureNodes finds, for each node that a maintenance holds, its group, the targets that it has
// reached, and its remaining pods.
func (p *planning) measureNodes() error {
	for _, n := range p.listed {
		if len(n.holds) == 0 {
			continue
		}
		if err := p.recall(n); err != nil {
			return fmt.Errorf("targets of node %s: %w", n.Name, err)
		}
		n.measure()
	}
	return nil
}

// component is a set of maintenances that share nodes, directly or through further maintenances,
// the oldest first. Components do not affect each other.
type component struct {
	maintenances []*progress
}

// findComponents groups the maintenances, which are ordered from the oldest, into components.
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
// although a plan covers some, the nodes of the oldest unfinished maintenance get the targets of
// its plan. A maintenance that waits for excluded nodes is not stuck. override returns nil if there
// was no contradiction.
func (c *component) override() *Override {
	stuck := true
	for _, m := range c.maintenances {
		for _, h := range m.holds {
			stuck = stuck && !h.node.moving
		}
		stuck = stuck && !m.held()
	}
	i := slices.IndexFunc(c.maintenances, func(m *progress) bool { return !m.finished() && !m.waitsOutside })
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
// maintenance that holds the node. It does not matter whether the node has such a pod now, since
// one may be created.
func (n *nodeState) overrules(h *hold) bool {
	for k, reached := range n.answer.reached {
		if reached > n.plain.reached[k] && reached > n.group.members[h.index].at(k) {
			return true
		}
	}
	return false
}

func (c *component) publish(result *Result) {
	for _, m := range c.maintenances {
		result.Finished[m.name] = m.finished()
		for _, h := range m.holds {
			result.Targets[h.name] = h.node.answer.targets
		}
	}
}
