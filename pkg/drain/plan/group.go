// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// group is the state that nodes share if the same maintenances hold them: the keys that their
// targets can have, and their limits. Keys are in the order of the status: by pod type, then the
// key for all pods of the type, then the keys with selectors in the order of the plans, oldest
// maintenance first. So all maintenances of a node have the same list.
type group struct {
	members []membership
	keys    []groupKey
	// types has the range of keys of each pod type.
	types [3]struct{ from, to int }
	// limit has, for each key, the target of the member that has progressed least. It is unreached
	// while a member must not progress.
	limit   reach
	answers map[string]*answer
	joined  reach
	scratch []byte
}

type groupKey struct {
	planKey
	// generic is the index of the key that selects all pods of the same type, or -1.
	generic int
}

func (k *groupKey) all() bool { return k.key.selector == "" }

// membership maps the keys of a group to the keys of one maintenance.
type membership struct {
	of *progress
	// entries has, for each entry of the plan, the index of its key in the group.
	entries []int
	// keys has, for each key of the group, the index of that key in the plan, or -1. generic has,
	// for each key of the group, the index in the plan of the key that selects all pods of the same
	// type, or -1.
	keys, generic []int
}

// answer is the result for nodes of a group with the same targets.
type answer struct {
	reached reach
	targets Targets
	// remarks are the messages to the members about a node on which pods have to leave. They are
	// computed when they are needed.
	remarks []*remark
}

// group returns the group of the given maintenances. otherKeys are additional keys that are not in
// any of their plans.
func (p *planning) group(holds []*hold, otherKeys []planKey) (*group, error) {
	id := p.scratch[:0]
	for _, h := range holds {
		id = binary.LittleEndian.AppendUint64(id, uint64(h.by.id))
	}
	for i := range otherKeys {
		id = append(append(id, otherKeys[i].podType...), 0)
		id = append(append(id, otherKeys[i].selector.String()...), 0)
	}
	p.scratch = id
	if g := p.groups[string(id)]; g != nil {
		return g, nil
	}
	g, err := newGroup(holds, otherKeys)
	if err != nil {
		return nil, err
	}
	p.groups[string(id)] = g
	return g, nil
}

func newGroup(holds []*hold, otherKeys []planKey) (*group, error) {
	g := &group{answers: map[string]*answer{}}
	known := map[key]int{}
	learn := func(k planKey) {
		if _, ok := known[k.key]; !ok {
			known[k.key] = len(g.keys)
			g.keys = append(g.keys, groupKey{planKey: k, generic: -1})
		}
	}
	for _, h := range holds {
		for _, k := range h.by.keys {
			learn(k)
		}
	}
	for _, k := range otherKeys {
		compiled, err := compileSelector(k.selector)
		if err != nil {
			return nil, err
		}
		k.compiled = compiled
		learn(k)
	}
	slices.SortStableFunc(g.keys, func(a, b groupKey) int {
		return cmp.Or(cmp.Compare(typeRank(a.podType), typeRank(b.podType)), compareGenericFirst(a.key, b.key))
	})
	for i := range g.keys {
		known[g.keys[i].key] = i
		types := &g.types[typeRank(g.keys[i].podType)]
		if types.to == 0 {
			types.from = i
		}
		types.to = i + 1
	}
	for i := range g.keys {
		if generic, ok := known[g.keys[i].generically()]; ok {
			g.keys[i].generic = generic
		}
	}
	for _, h := range holds {
		g.members = append(g.members, g.membership(h.by, known))
	}
	g.limit, g.joined = nowhere(len(g.keys)), nowhere(len(g.keys))
	return g, nil
}

func (g *group) membership(m *progress, known map[key]int) membership {
	s := membership{of: m, keys: make([]int, len(g.keys)), generic: make([]int, len(g.keys))}
	for i := range g.keys {
		s.keys[i], s.generic[i] = -1, -1
	}
	for i := range m.keys {
		s.keys[known[m.keys[i].key]] = i
	}
	for i := range g.keys {
		if all := g.keys[i].generic; all >= 0 {
			s.generic[i] = s.keys[all]
		}
	}
	for i := range m.entries {
		s.entries = append(s.entries, known[m.keys[m.entries[i].key].key])
	}
	return s
}

// find returns the index of an entry's key, or -1. Statuses list their entries in the order of the
// keys, so the search begins after the index of the previous entry.
func (g *group) find(e *v1alpha1.DrainPlanEntry, after int) int {
	for i := range g.keys {
		k := (after + 1 + i) % len(g.keys)
		if g.keys[k].podType == e.PodType && planorder.SameSelector(g.keys[k].planKey.selector, e.PodSelector) {
			return k
		}
	}
	wanted := entryKey(e)
	return slices.IndexFunc(g.keys, func(k groupKey) bool { return k.key == wanted })
}

// own returns the target of a member's plan for a key of that plan.
func (s *membership) own(k int) int64 {
	if at := s.keys[k]; at >= 0 {
		return s.of.own[at]
	}
	return unreached
}

// at returns the target of a member's plan for any key of the group. If the plan does not have the
// key, this is the target for all pods of the type.
func (s *membership) at(k int) int64 {
	if own := s.own(k); own != unreached {
		return own
	}
	if at := s.generic[k]; at >= 0 {
		return s.of.own[at]
	}
	return unreached
}

// setLimit computes the limit from the members that do not wait for excluded nodes, if there are
// any: a maintenance waits on its own nodes, and must not keep those of others.
func (g *group) setLimit() {
	held := slices.ContainsFunc(g.members, func(s membership) bool { return s.of.held() })
	for k := range g.keys {
		g.limit[k] = unreached
		if held {
			continue
		}
		listed, lowest := false, int64(math.MaxInt64)
		for i := range g.members {
			if !g.limits(i) {
				continue
			}
			lowest = min(lowest, g.members[i].at(k))
			// A key is listed only if a plan has the key itself, since at may return the target for
			// all pods of the type.
			listed = listed || g.members[i].own(k) != unreached
		}
		if listed {
			g.limit[k] = lowest
		}
	}
}

// limits reports whether a member limits the nodes of the group.
func (g *group) limits(member int) bool {
	return !g.members[member].of.waitsOutside ||
		!slices.ContainsFunc(g.members, func(s membership) bool { return !s.of.waitsOutside })
}

// answer combines the targets that a node has reached with further targets, such as the limit.
// Nodes that have reached the same targets get the same answer.
func (g *group) answer(before, further reach) *answer {
	id := g.scratch[:0]
	for k := range g.keys {
		g.joined[k] = max(before[k], further[k])
		// A selector reaches at least the priority of the key for all pods of its type, which comes
		// first.
		if all := g.keys[k].generic; all >= 0 && g.joined[k] != unreached {
			g.joined[k] = max(g.joined[k], g.joined[all])
		}
		id = binary.LittleEndian.AppendUint64(id, uint64(g.joined[k]))
	}
	g.scratch = id
	if a := g.answers[string(id)]; a != nil {
		return a
	}
	a := &answer{reached: slices.Clone(g.joined), targets: Targets{Entries: []v1alpha1.DrainPlanEntry{}}}
	for k, priority := range a.reached {
		if priority == unreached {
			continue
		}
		e := v1alpha1.DrainPlanEntry{PodType: g.keys[k].podType, PodPriority: int32(priority)}
		if !g.keys[k].all() {
			e.PodSelector = g.keys[k].planKey.selector
		}
		a.targets.Entries = append(a.targets.Entries, e)
		a.targets.selectors = append(a.targets.selectors, g.keys[k].compiled)
	}
	g.answers[string(id)] = a
	return a
}

// asked returns the targets of a member's plan, by key of the group.
func (g *group) asked(member int) reach {
	r := nowhere(len(g.keys))
	for k := range r {
		r[k] = g.members[member].own(k)
	}
	return r
}

// moves reports whether a pod is asked to leave. lowest has the lowest priority of the pods by key.
func (a *answer) moves(lowest []int64) bool {
	for k, priority := range a.reached {
		if lowest[k] <= priority {
			return true
		}
	}
	return false
}
