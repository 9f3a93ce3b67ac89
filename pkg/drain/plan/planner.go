/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Planner plans repeatedly, and only recomputes what has changed since the previous call. It is not
// safe for concurrent use.
type Planner struct {
	// call counts the calls. State with this number is of the current call.
	call uint64
	// plans counts the parsed plans.
	plans uint64
	// maintenances and nodes are by name, groups by the identity of their maintenances and plans.
	maintenances map[string]*progress
	nodes        map[string]*nodeState
	groups       map[string]*group
	// ordered are the maintenances, oldest first.
	ordered []*progress
	// listed are the nodes in the order of the World.
	listed     []*nodeState
	components []*component
	result     Result
	// scratch is a buffer for building keys.
	scratch []byte
}

// NewPlanner returns an empty Planner.
func NewPlanner() *Planner {
	return &Planner{
		maintenances: map[string]*progress{}, nodes: map[string]*nodeState{}, groups: map[string]*group{},
		result: Result{
			Targets: map[string]Targets{}, Messages: map[string]map[string]string{}, Finished: map[string]bool{},
			FastForwarded: map[string]map[string]string{},
		},
	}
}

// Plan determines which pods are asked to leave. It returns an error for an invalid selector and
// for a maintenance with a node that is not in the World.
func Plan(world World) (Result, error) {
	return NewPlanner().Plan(world)
}

// Plan determines which pods are asked to leave, exactly as the function Plan does. After an error
// the cache is empty.
func (p *Planner) Plan(world World) (Result, error) {
	p.call++
	if err := p.plan(world); err != nil {
		*p = *NewPlanner()
		return Result{}, err
	}
	return p.result, nil
}

func (p *Planner) plan(world World) error {
	if err := p.learnNodes(world.Nodes); err != nil {
		return err
	}
	relink, err := p.learnMaintenances(world.Maintenances)
	if err != nil {
		return err
	}
	if relink {
		p.relink()
	}
	if err := p.settleNodes(relink); err != nil {
		return err
	}
	for _, m := range p.ordered {
		m.advance(p.call)
	}
	for _, g := range p.groups {
		g.update(p.call)
	}
	for _, n := range p.listed {
		n.decide(p.call)
	}
	p.result.Overrides = nil
	for _, c := range p.components {
		if c.dirty {
			c.override(p.call)
			c.publish(p.call, &p.result)
			c.describe(p.call, &p.result)
			c.dirty = false
		}
		if c.decided != nil {
			p.result.Overrides = append(p.result.Overrides, *c.decided)
		}
	}
	return nil
}

func (p *Planner) learnNodes(nodes []*Node) error {
	for i, node := range nodes {
		var n *nodeState
		if i < len(p.listed) && p.listed[i].Node == node {
			n = p.listed[i]
		} else {
			if n = p.nodes[node.Name]; n == nil {
				n = &nodeState{}
				p.nodes[node.Name] = n
			}
			if i == len(p.listed) {
				p.listed = append(p.listed, n)
			}
			p.listed[i] = n
		}
		if n.seen == p.call {
			return fmt.Errorf("node %s is listed twice", node.Name)
		}
		n.seen = p.call
		if n.Node != node {
			n.Node, n.renewed = node, true
		}
	}
	clear(p.listed[len(nodes):])
	p.listed = p.listed[:len(nodes)]
	return nil
}

// learnMaintenances updates the maintenances, and reports whether their nodes or plans have
// changed.
func (p *Planner) learnMaintenances(maintenances []Maintenance) (bool, error) {
	relink := len(p.nodes) > len(p.listed)
	for i := range maintenances {
		m := p.maintenances[maintenances[i].Name]
		if m == nil {
			m = &progress{name: maintenances[i].Name}
			p.maintenances[m.name] = m
			p.result.Messages[m.name] = map[string]string{}
			relink = true
		}
		if m.seen == p.call {
			return false, fmt.Errorf("maintenance %s is listed twice", m.name)
		}
		m.seen = p.call
		changed, err := p.learn(m, &maintenances[i])
		if err != nil {
			return false, fmt.Errorf("maintenance %s: %w", m.name, err)
		}
		relink = relink || changed
	}
	for name, m := range p.maintenances {
		if m.seen == p.call {
			continue
		}
		delete(p.maintenances, name)
		delete(p.result.Messages, name)
		delete(p.result.Finished, name)
		delete(p.result.FastForwarded, name)
		relink = true
	}
	return relink, nil
}

func (p *Planner) learn(m *progress, now *Maintenance) (bool, error) {
	changed := !m.created.Equal(now.Created)
	m.created = now.Created
	if m.id == 0 || !SameEntries(m.plan, now.Plan) {
		if err := m.compile(now.Plan); err != nil {
			return false, err
		}
		p.plans++
		m.id, m.stale, changed = p.plans, true, true
	}
	m.plan = now.Plan
	others := !slices.Equal(m.nodes, now.Nodes)
	if others {
		if err := p.hold(m, now.Nodes); err != nil {
			return false, err
		}
		m.nodes, m.stale, changed = slices.Clone(now.Nodes), true, true
	}
	for _, h := range m.holds {
		if h.node.seen != p.call {
			return false, fmt.Errorf("node %s is not part of the world", h.name)
		}
		before := now.Before[h.name]
		if !SameEntries(h.before, before) {
			h.node.recalled = true
		}
		h.before = before
	}
	if others || !slices.Equal(m.uncordoned, now.Uncordoned) {
		m.cordon(now.Uncordoned, p.call)
	}
	return changed, nil
}

// hold adds the nodes with the given names to the maintenance and removes the others.
func (p *Planner) hold(m *progress, names []string) error {
	sorted := slices.Sorted(slices.Values(names))
	sorted = slices.Compact(sorted)
	was := m.holds
	m.holds = make([]*hold, 0, len(sorted))
	letGo := func(h *hold) {
		delete(p.result.Messages[m.name], h.name)
		h.fastForwarded(&p.result, "")
	}
	for _, name := range sorted {
		for len(was) > 0 && was[0].name < name {
			letGo(was[0])
			was = was[1:]
		}
		if len(was) > 0 && was[0].name == name {
			m.holds = append(m.holds, was[0])
			was = was[1:]
			continue
		}
		n := p.nodes[name]
		if n == nil {
			return fmt.Errorf("node %s is not part of the world", name)
		}
		m.holds = append(m.holds, &hold{name: name, by: m, node: n, first: -1})
	}
	for _, h := range was {
		letGo(h)
	}
	return nil
}

// relink recomputes which maintenances hold each node, and the components.
func (p *Planner) relink() {
	p.ordered = p.ordered[:0]
	for _, m := range p.maintenances {
		p.ordered = append(p.ordered, m)
	}
	slices.SortFunc(p.ordered, older)
	for name, n := range p.nodes {
		n.holds = n.holds[:0]
		if n.seen != p.call {
			delete(p.nodes, name)
			delete(p.result.Targets, name)
		}
	}
	for _, m := range p.ordered {
		for _, h := range m.holds {
			h.index = len(h.node.holds)
			h.node.holds = append(h.node.holds, h)
		}
	}
	for _, n := range p.listed {
		if len(n.holds) == 0 {
			*n = nodeState{Node: n.Node, seen: n.seen, holds: n.holds}
			delete(p.result.Targets, n.Name)
		} else if n.group != nil && !n.group.isOf(n.holds) {
			n.group = nil
		}
	}
	p.components = findComponents(p.ordered)
}

// older orders maintenances by creation time, then by name.
func older(a, b *progress) int {
	return cmp.Or(a.created.Compare(b.created), strings.Compare(a.name, b.name))
}

// settleNodes updates the nodes that have changed: their group, the targets they have reached and
// the remaining pods.
func (p *Planner) settleNodes(relinked bool) error {
	regrouped := relinked
	for _, n := range p.listed {
		if len(n.holds) == 0 {
			n.renewed = false
			continue
		}
		n.fresh = n.renewed || n.recalled || n.group == nil
		if !n.fresh {
			continue
		}
		was := n.group
		if n.group == nil || n.recalled {
			if err := p.recall(n); err != nil {
				return fmt.Errorf("targets of node %s: %w", n.Name, err)
			}
			regrouped = regrouped || n.group != was
		}
		if n.renewed || n.group != was {
			n.measure()
			n.touched = p.call
		}
		n.renewed, n.recalled = false, false
	}
	if !regrouped {
		return nil
	}
	for _, n := range p.listed {
		if n.group != nil {
			n.group.used = p.call
		}
	}
	for id, g := range p.groups {
		if g.used != p.call {
			delete(p.groups, id)
		}
	}
	return nil
}
