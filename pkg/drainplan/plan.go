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

package drainplan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// nodeState is one node of at least one maintenance in the course of planning.
type nodeState struct {
	*Node
	// maintenances are those that drain the node, oldest first.
	maintenances []*progress
	words        *vocabulary
	// before is what the statuses say the node has reached.
	before reach
	// reached is the answer.
	reached reach
	targets Targets
	// moving says whether a live pod is asked to leave.
	moving bool
}

// planner carries one call of Plan.
type planner struct {
	// maintenances are sorted oldest first, nodes by name.
	maintenances []*progress
	byName       map[string]*nodeState
	nodes        []*nodeState
}

// Plan says which pods are asked to leave. It fails for a selector that cannot be parsed and for a maintenance that names a node which the
// world does not have.
func Plan(world World) (Result, error) {
	p, err := newPlanner(world)
	if err != nil {
		return Result{}, err
	}
	for _, n := range p.nodes {
		n.reached = n.join(n.before, n.limit())
	}
	if err := p.compile(); err != nil {
		return Result{}, err
	}
	overrides, err := p.override()
	if err != nil {
		return Result{}, err
	}
	result := Result{Targets: make(map[string]Targets, len(p.nodes)), Finished: map[string]bool{}, Overrides: overrides}
	for _, n := range p.nodes {
		result.Targets[n.Name] = n.targets
	}
	for _, m := range p.maintenances {
		result.Finished[m.Name] = m.finished()
	}
	p.describe(&result)
	return result, nil
}

func newPlanner(world World) (*planner, error) {
	p := &planner{byName: map[string]*nodeState{}}
	all := make(map[string]*Node, len(world.Nodes))
	for i := range world.Nodes {
		all[world.Nodes[i].Name] = &world.Nodes[i]
	}
	for i := range world.Maintenances {
		m, err := newProgress(&world.Maintenances[i])
		if err != nil {
			return nil, err
		}
		p.maintenances = append(p.maintenances, m)
	}
	slices.SortFunc(p.maintenances, older)
	for _, m := range p.maintenances {
		for _, name := range m.Nodes {
			node, ok := all[name]
			if !ok {
				return nil, fmt.Errorf("maintenance %s: node %s is not part of the world", m.Name, name)
			}
			n := p.byName[name]
			if n == nil {
				n = &nodeState{Node: node, words: newVocabulary(), before: reach{}}
				p.byName[name] = n
				p.nodes = append(p.nodes, n)
			}
			n.maintenances = append(n.maintenances, m)
		}
		m.advance(all)
	}
	slices.SortFunc(p.nodes, func(a, b *nodeState) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range p.nodes {
		n.recall()
	}
	return p, nil
}

// older orders maintenances by creation time, then by name.
func older(a, b *progress) int {
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
}

// recall learns the node's keys and joins what the statuses say.
func (n *nodeState) recall() {
	for _, m := range n.maintenances {
		for i, e := range m.entries {
			n.words.learn(e.key, m.Plan[i].PodSelector)
		}
	}
	// Keys that no plan of the present knows come last, whichever status they stand in, in an order that does not depend on it.
	var strangers []maintenancev1alpha1.DrainPlanEntry
	for _, m := range n.maintenances {
		for _, e := range m.before(n.Name) {
			k := entryKey(&e)
			n.before.raise(k, e.PodPriority)
			if _, known := n.words.place[k]; !known {
				strangers = append(strangers, e)
			}
		}
	}
	slices.SortStableFunc(strangers, func(a, b maintenancev1alpha1.DrainPlanEntry) int {
		return strings.Compare(entryKey(&a).selector, entryKey(&b).selector)
	})
	for i := range strangers {
		n.words.learn(entryKey(&strangers[i]), strangers[i].PodSelector)
	}
}

// limit returns, key by key, what the maintenance that has come least far asks for; nothing while one of them is held.
func (n *nodeState) limit() reach {
	limit := reach{}
	if slices.ContainsFunc(n.maintenances, (*progress).held) {
		return limit
	}
	for k := range n.words.place {
		lowest, ok := int32(0), true
		for i, m := range n.maintenances {
			priority, reached := m.at(k)
			if !reached {
				ok = false
				break
			}
			if i == 0 || priority < lowest {
				lowest = priority
			}
		}
		// A key is listed if a plan lists it, not merely because the type of another plan's selector is reached.
		if ok && slices.ContainsFunc(n.maintenances, func(m *progress) bool { _, own := m.own[k]; return own }) {
			limit[k] = lowest
		}
	}
	return limit
}

func (n *nodeState) join(a, b reach) reach {
	joined := make(reach, max(len(a), len(b)))
	for _, r := range []reach{a, b} {
		for k, priority := range r {
			joined.raise(k, priority)
		}
	}
	joined.normalize()
	return joined
}

// compile writes the answer down and looks which nodes have pods that are asked to leave.
func (p *planner) compile() error {
	for _, n := range p.nodes {
		if err := n.compile(); err != nil {
			return err
		}
	}
	return nil
}

func (n *nodeState) compile() error {
	targets, err := CompileTargets(n.words.entries(n.reached))
	if err != nil {
		return fmt.Errorf("targets of node %s: %w", n.Name, err)
	}
	n.targets = targets
	n.moving = targets.CoverAny(n.Pods)
	return nil
}

// override lets something move where plans contradict each other: in a connected component in which no live pod is asked to leave although
// some are covered by a plan, the oldest maintenance gets what it wants on its nodes.
func (p *planner) override() ([]Override, error) {
	var out []Override
	for _, component := range p.components() {
		stuck := !slices.ContainsFunc(component, func(m *progress) bool {
			return m.held() || slices.ContainsFunc(m.Nodes, func(name string) bool { return p.byName[name].moving })
		})
		i := slices.IndexFunc(component, func(m *progress) bool { return !m.finished() })
		if !stuck || i < 0 {
			continue
		}
		oldest := component[i]
		overridden := map[string]bool{}
		for _, name := range oldest.Nodes {
			n := p.byName[name]
			n.reached = n.join(n.reached, oldest.own)
			if err := n.compile(); err != nil {
				return nil, err
			}
			for _, m := range n.maintenances {
				if m != oldest && n.moving {
					overridden[m.Name] = true
				}
			}
		}
		out = append(out, Override{Followed: oldest.Name, Overridden: sortedKeys(overridden)})
	}
	return out, nil
}

// components returns the maintenances that share nodes, directly or through others, oldest first.
func (p *planner) components() [][]*progress {
	var out [][]*progress
	seen := map[*progress]bool{}
	for _, start := range p.maintenances {
		if seen[start] {
			continue
		}
		seen[start] = true
		component := []*progress{start}
		for i := 0; i < len(component); i++ {
			for _, name := range component[i].Nodes {
				for _, m := range p.byName[name].maintenances {
					if !seen[m] {
						seen[m] = true
						component = append(component, m)
					}
				}
			}
		}
		slices.SortFunc(component, older)
		out = append(out, component)
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
