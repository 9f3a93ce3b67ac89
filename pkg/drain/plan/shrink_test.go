// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// shrink removes every part of a script that is not needed for the failure. It returns the smaller
// script with its violation.
func shrink(s script, v *violation, against func() planner) (script, *violation) {
	fails := func(candidate script) bool {
		found := run(candidate, against())
		if found == nil || found.property != v.property {
			return false
		}
		s, v = candidate, found
		return true
	}
	for size := s.size() + 1; s.size() < size; {
		size = s.size()
		for chunk := len(s.steps) / 2; chunk > 0; chunk /= 2 {
			for at := len(s.steps) - chunk; at >= 0; at -= chunk {
				if at+chunk <= len(s.steps) {
					fails(s.with(slices.Delete(slices.Clone(s.steps), at, at+chunk)))
				}
			}
		}
		for at := range s.steps {
			shrinkStep(at, func() step { return s.steps[at] }, func(smaller step) bool {
				steps := slices.Clone(s.steps)
				steps[at] = smaller
				return fails(s.with(steps))
			})
		}
		if s.slow {
			fast := s
			fast.slow = false
			fails(fast)
		}
	}
	return s, v
}

// with returns the script with other steps.
func (s script) with(steps []step) script {
	s.steps = steps
	return s
}

// shrinkStep removes pods, nodes and entries from a step.
func shrinkStep(at int, now func() step, try func(step) bool) {
	for i := len(now().pods) - 1; i >= 0; i-- {
		smaller := now()
		if smaller.do == podIsDeleted || smaller.do == podIsRelabelled {
			break
		}
		smaller.pods = slices.Delete(slices.Clone(smaller.pods), i, i+1)
		try(smaller)
	}
	for i := len(now().nodes) - 1; i >= 0; i-- {
		smaller := now()
		smaller.nodes = slices.Delete(slices.Clone(smaller.nodes), i, i+1)
		try(smaller)
	}
	for i := len(now().plan) - 1; i >= 0; i-- {
		smaller := now()
		smaller.plan = slices.Delete(slices.Clone(smaller.plan), i, i+1)
		try(smaller)
	}
}

// keepingPods returns a faulty planner that keeps nodes between calls, and does not notice that
// pods have left a node while the UID of the node is the same.
func keepingPods() planner {
	nodes := map[string]*Node{}
	return func(w World) (Result, error) {
		w.Nodes = slices.Clone(w.Nodes)
		for i, n := range w.Nodes {
			if before := nodes[n.Name]; before != nil && before.UID == n.UID && len(before.Pods) > len(n.Pods) {
				w.Nodes[i] = before
			}
			nodes[n.Name] = w.Nodes[i]
		}
		return Plan(w)
	}
}

// with returns the world with the maintenances changed.
func (w World) with(change func(*Maintenance)) World {
	w.Maintenances = slices.Clone(w.Maintenances)
	for i := range w.Maintenances {
		change(&w.Maintenances[i])
	}
	return w
}

// swap replaces the targets of a result with those of another result.
func swap(result Result, of Result) Result {
	result.Targets = of.Targets
	return result
}

func planOf(w World) Result {
	result, err := Plan(w)
	if err != nil {
		panic(err)
	}
	return result
}

// TestPropertiesFindFaultsOfThePlanner adds likely faults to the planner, and checks that the
// random worlds find each of them and that the printed script is short.
func TestPropertiesFindFaultsOfThePlanner(t *testing.T) {
	breaking := func(breaks func(World, Result) Result) func() planner {
		return func() planner {
			return func(w World) (Result, error) {
				result, err := Plan(w)
				if err != nil {
					return Result{}, err
				}
				return breaks(w, result), nil
			}
		}
	}
	for name, test := range map[string]struct {
		against  func() planner
		property string
	}{
		"a maintenance does not wait for its other nodes": {
			against: breaking(func(w World, result Result) Result {
				targets := map[string]Targets{}
				for _, n := range w.Nodes {
					alone := planOf(w.with(func(m *Maintenance) {
						m.Nodes = slices.DeleteFunc(slices.Clone(m.Nodes),
							func(name string) bool { return name != n.Name })
					}))
					if t, ok := alone.Targets[n.Name]; ok {
						targets[n.Name] = t
					}
				}
				result.Targets = targets
				return result
			}),
			property: "order",
		},
		"the maintenance with the latest entry limits the node": {
			against: breaking(func(w World, result Result) Result {
				targets := maps.Clone(result.Targets)
				for i := range w.Maintenances {
					alone := planOf(World{Maintenances: w.Maintenances[i : i+1], Nodes: w.Nodes})
					for node, t := range alone.Targets {
						joined := slices.Concat(targets[node].Entries, t.Entries)
						targets[node], _ = CompileTargets(ordered(joined))
					}
				}
				result.Targets = targets
				return result
			}),
			property: "order",
		},
		"the planner ignores the statuses": {
			against: breaking(func(w World, result Result) Result {
				return swap(result, planOf(w.with(func(m *Maintenance) { m.Before = nil })))
			}),
			property: "no backtracking",
		},
		"the planner uses the status of only one maintenance": {
			against: breaking(func(w World, result Result) Result {
				return swap(result, planOf(w.with(func(m *Maintenance) {
					if m.Name != w.Maintenances[0].Name {
						m.Before = nil
					}
				})))
			}),
			property: "independence",
		},
		"the planner does not resolve contradictions": {
			against: breaking(func(w World, result Result) Result {
				if len(result.Overrides) > 0 {
					result.Targets = maps.Clone(result.Targets)
					for _, m := range w.Maintenances {
						for _, n := range m.Nodes {
							result.Targets[n] = beforeOf(w, n)
						}
					}
				}
				return result
			}),
			property: "progress",
		},
		"the planner does not report the contradictions that it resolves": {
			against: breaking(func(_ World, result Result) Result {
				result.Overrides = nil
				return result
			}),
			property: "order",
		},
		"the planner does not report a fast-forward": {
			against: breaking(func(_ World, result Result) Result {
				result.FastForwarded = map[string]map[string]string{}
				return result
			}),
			property: "order",
		},
		"a wave opens before all nodes are cordoned": {
			against: breaking(func(w World, result Result) Result {
				return swap(result, planOf(w.with(func(m *Maintenance) { m.Uncordoned = nil })))
			}),
			property: "order",
		},
		"one component stops another one": {
			against: breaking(func(w World, result Result) Result {
				for _, m := range w.Maintenances {
					if len(m.Uncordoned) > 0 {
						return swap(result, planOf(w.with(func(m *Maintenance) { m.Uncordoned = m.Nodes })))
					}
				}
				return result
			}),
			property: "minimality",
		},
		"the planner ignores that pods have left": {against: keepingPods, property: "progress"},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range uint64(1000) {
				s := writeScript(rand.New(rand.NewPCG(i, 1)))
				v := run(s, test.against())
				if v == nil || v.property != test.property {
					continue
				}
				small, found := shrink(s, v, test.against)
				steps, pods, entries := small.count()
				t.Logf("world %d, shrunk from %d to %d:\n%s%v", i, s.size(), small.size(), small, found)
				if steps > 7 || pods > 3 || entries > 3 {
					t.Errorf("got %d steps, %d pods and %d entries, want at most 7, 3 and 3", steps, pods, entries)
				}
				return
			}
			t.Errorf("the fault was not found in 1000 worlds")
		})
	}
}

func (s script) count() (steps, pods, entries int) {
	for _, step := range s.steps {
		pods += len(step.pods)
		entries += len(step.plan)
	}
	return len(s.steps), pods, entries
}
