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
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// checkIndependence checks that the answer depends on no order, and that planning changes nothing
// in the world.
func (sim *simulation) checkIndependence(w World, first Result) *violation {
	again, err := sim.planner(w)
	if err != nil {
		return violated("no error", "%v", err)
	}
	if difference := differ(first, again); difference != "" {
		return violated("nothing is remembered", "asked twice: %s", difference)
	}
	shuffled, err := sim.planner(shuffle(rand.New(rand.NewPCG(sim.salt, 0)), w))
	if err != nil {
		return violated("no error", "%v", err)
	}
	if difference := differ(shuffled, first); difference != "" {
		return violated("independence", "of the order of the world: %s", difference)
	}
	return nil
}

// differ says in what two answers differ.
func differ(a, b Result) string {
	for name, value := range map[string][2]any{
		"targets":        {entriesOf(a), entriesOf(b)},
		"messages":       {a.Messages, b.Messages},
		"finished":       {a.Finished, b.Finished},
		"fast-forwarded": {a.FastForwarded, b.FastForwarded},
		"overrides":      {a.Overrides, b.Overrides},
	} {
		if !reflect.DeepEqual(value[0], value[1]) {
			return fmt.Sprintf("%s %v and %v", name, value[0], value[1])
		}
	}
	return ""
}

func entriesOf(r Result) map[string]entries {
	out := map[string]entries{}
	for n, t := range r.Targets {
		out[n] = t.Entries
	}
	return out
}

func shuffle(r *rand.Rand, w World) World {
	s := World{Maintenances: slices.Clone(w.Maintenances), Nodes: slices.Clone(w.Nodes)}
	r.Shuffle(
		len(s.Maintenances),
		func(i, j int) { s.Maintenances[i], s.Maintenances[j] = s.Maintenances[j], s.Maintenances[i] },
	)
	r.Shuffle(len(s.Nodes), func(i, j int) { s.Nodes[i], s.Nodes[j] = s.Nodes[j], s.Nodes[i] })
	for i := range s.Maintenances {
		m := &s.Maintenances[i]
		m.Nodes, m.Uncordoned = slices.Clone(m.Nodes), slices.Clone(m.Uncordoned)
		r.Shuffle(len(m.Nodes), func(i, j int) { m.Nodes[i], m.Nodes[j] = m.Nodes[j], m.Nodes[i] })
		r.Shuffle(
			len(m.Uncordoned), func(i, j int) { m.Uncordoned[i], m.Uncordoned[j] = m.Uncordoned[j], m.Uncordoned[i] },
		)
	}
	for i, n := range s.Nodes {
		pods := slices.Clone(n.Pods)
		r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		s.Nodes[i] = &Node{Name: n.Name, UID: n.UID, Pods: pods}
	}
	return s
}

// componentsOf sorts the maintenances by shared nodes, without the planner's help.
func componentsOf(w World) [][]Maintenance {
	var out [][]Maintenance
	for _, m := range w.Maintenances {
		merged := []Maintenance{m}
		out = slices.DeleteFunc(out, func(c []Maintenance) bool {
			shares := slices.ContainsFunc(c, func(other Maintenance) bool {
				return slices.ContainsFunc(other.Nodes, func(n string) bool { return slices.Contains(m.Nodes, n) })
			})
			if shares {
				merged = append(merged, c...)
			}
			return shares
		})
		out = append(out, merged)
	}
	return out
}

// checkMinimality checks that the answer for a component is that of the component alone.
func (sim *simulation) checkMinimality(w World, result Result) *violation {
	components := componentsOf(w)
	if len(components) < 2 {
		return nil
	}
	all := Result{
		Targets: map[string]Targets{}, Messages: map[string]map[string]string{}, Finished: map[string]bool{},
		FastForwarded: map[string]map[string]string{},
	}
	for _, c := range components {
		alone, err := sim.planner(World{Maintenances: c, Nodes: w.Nodes})
		if err != nil {
			return violated("no error", "%v", err)
		}
		maps.Copy(all.Targets, alone.Targets)
		maps.Copy(all.Messages, alone.Messages)
		maps.Copy(all.Finished, alone.Finished)
		maps.Copy(all.FastForwarded, alone.FastForwarded)
		all.Overrides = append(all.Overrides, alone.Overrides...)
	}
	byFollowed := func(a, b Override) int { return strings.Compare(a.Followed, b.Followed) }
	result.Overrides = slices.Clone(result.Overrides)
	slices.SortFunc(result.Overrides, byFollowed)
	slices.SortFunc(all.Overrides, byFollowed)
	if difference := differ(result, all); difference != "" {
		return violated("minimality", "together and alone: %s", difference)
	}
	return nil
}

// checkForm checks what a status can store.
func (sim *simulation) checkForm(w World, result Result) *violation {
	held := map[string]bool{}
	for _, m := range w.Maintenances {
		for _, n := range m.Nodes {
			held[n] = true
			if _, ok := result.Messages[m.Name][n]; !ok {
				return violated("form", "no message of %s for %s", m.Name, n)
			}
		}
		if got := len(result.Messages[m.Name]); got != len(m.Nodes) {
			return violated("form", "%d messages of %s for %d nodes", got, m.Name, len(m.Nodes))
		}
	}
	if len(result.Targets) != len(held) {
		return violated("form", "targets of %d nodes, %d are held", len(result.Targets), len(held))
	}
	for node, targets := range result.Targets {
		seen := map[key]bool{}
		rank, narrow := 0, false
		for i := range targets.Entries {
			k := entryKey(&targets.Entries[i])
			if seen[k] || typeRank(k.podType) < rank || typeRank(k.podType) == rank && narrow && k.selector == "" {
				return violated("form", "targets of %s out of order: %s", node, describePlan(targets.Entries))
			}
			seen[k], rank, narrow = true, typeRank(k.podType), k.selector != ""
		}
	}
	return nil
}

// beforeOf joins what the statuses say about a node.
func beforeOf(w World, node string) Targets {
	var all entries
	for _, m := range w.Maintenances {
		if slices.Contains(m.Nodes, node) {
			all = append(all, m.Before[node]...)
		}
	}
	t, err := CompileTargets(all)
	if err != nil {
		panic(err)
	}
	return t
}

// checkNoBacktracking checks that no target of a node falls back or goes while the node is held.
func (sim *simulation) checkNoBacktracking(w World, result Result) *violation {
	for node, targets := range result.Targets {
		for _, before := range beforeOf(w, node).Entries {
			kept := slices.ContainsFunc(targets.Entries, func(e maintenancev1alpha1.DrainPlanEntry) bool {
				return e.PodType == before.PodType && e.PodPriority >= before.PodPriority &&
					planorder.CanonicalSelector(e.PodSelector) == planorder.CanonicalSelector(before.PodSelector)
			})
			if !kept {
				return violated(
					"no backtracking", "node %s had %s and has %s", node, describePlan(entries{before}),
					describePlan(targets.Entries),
				)
			}
		}
	}
	return nil
}

// checkOrder checks that no pod becomes targeted while a live pod of an earlier entry is left.
func (sim *simulation) checkOrder(w World, result Result) *violation {
	for _, m := range sim.maintenances {
		sim.follow(m, w, result)
	}
	for _, name := range slices.Sorted(maps.Keys(result.Targets)) {
		before := beforeOf(w, name)
		for _, p := range sim.nodes[name].pods {
			if sim.asked[p.number] && before.Cover(p.Pod) || !result.Targets[name].Cover(p.Pod) {
				continue
			}
			for _, m := range sim.maintenances {
				if !m.nodes[name] {
					continue
				}
				if v := sim.checkOvertaking(m, sim.nodes[name], p, before.Cover(p.Pod), result); v != nil {
					return v
				}
			}
		}
	}
	return nil
}

// follow notes how far the maintenance's own plan has come and what it was told.
func (sim *simulation) follow(m *simMaintenance, w World, result Result) {
	for node := range m.nodes {
		ref := sim.nodes[node].ref()
		m.opened[ref] = max(m.opened[ref], sim.frontier(m))
	}
	for node := range result.FastForwarded[m.name] {
		m.told[sim.nodes[node].ref()] = true
	}
	for _, o := range result.Overrides {
		if slices.Contains(o.Overridden, m.name) {
			for node := range m.nodes {
				m.told[sim.nodes[node].ref()] = true
			}
		}
	}
}

func (m *simMaintenance) held(sim *simulation) bool {
	for node := range m.nodes {
		if !sim.nodes[node].cordoned {
			return true
		}
	}
	return false
}

// frontier is the first entry of a maintenance with pods left, worked out the plain way.
func (sim *simulation) frontier(m *simMaintenance) int {
	frontier := len(m.plan)
	for node := range m.nodes {
		for _, p := range sim.nodes[node].pods {
			frontier = min(frontier, m.rules.index(&p.Pod))
		}
	}
	return frontier
}

// checkOvertaking checks, for a pod that is newly asked to leave, that it has its turn in the
// maintenance's plan. There are two excuses, which have to be reported: the order of an older
// maintenance was followed where plans contradict each other, or the node had been taken further by
// another one. A pod that appears on a node that the maintenance's own plan had taken that far is
// no exception to the order.
func (sim *simulation) checkOvertaking(
	m *simMaintenance, n *simNode, p numberedPod, late bool, result Result,
) *violation {
	own, frontier := m.rules.index(&p.Pod), sim.frontier(m)
	held := m.held(sim)
	if own == len(m.plan) || own <= frontier && !held {
		return nil
	}
	if !late {
		if slices.ContainsFunc(result.Overrides, func(o Override) bool {
			return slices.Contains(o.Overridden, m.name)
		}) {
			return nil
		}
		return violated(
			"order", "%s on %s is asked to leave, but %s is at entry %d (held: %t) and covers it by entry %d",
			p, n.name, m.name, frontier+1, held, own+1,
		)
	}
	if opened, ok := m.opened[n.ref()]; ok && own <= opened || m.told[n.ref()] {
		return nil
	}
	return violated(
		"order",
		"%s came to %s and is asked to leave, but %s is at entry %d (held: %t), covers it by entry %d and was not told",
		p, n.name, m.name, frontier+1, held, own+1,
	)
}

// checkProgress checks that something moves in every component that is not done, and that done
// means done.
func (sim *simulation) checkProgress(w World, result Result) *violation {
	for _, c := range componentsOf(w) {
		done, free, moving := true, true, false
		for i := range c {
			m := sim.maintenances[c[i].Name]
			finished := sim.frontier(m) == len(m.plan)
			if finished != result.Finished[m.name] {
				return violated(
					"progress", "%s finished: %t, said to be: %t", m.name, finished, result.Finished[m.name],
				)
			}
			done = done && finished
			free = free && !m.held(sim)
			for node := range m.nodes {
				moving = moving || sim.moving(node, result)
			}
		}
		if !done && free && !moving {
			return violated("progress", "nothing moves on the nodes of %s", c[0].Name)
		}
	}
	return nil
}

func (sim *simulation) moving(node string, result Result) bool {
	return slices.ContainsFunc(sim.nodes[node].pods, func(p numberedPod) bool {
		return result.Targets[node].Cover(p.Pod)
	})
}

// atFrontier reports whether the maintenance waits for pods of the node. Where plans contradict
// each other that is all there is to say until what moves on other nodes is gone.
func (sim *simulation) atFrontier(m *simMaintenance, node string) bool {
	frontier := sim.frontier(m)
	return slices.ContainsFunc(sim.nodes[node].pods, func(p numberedPod) bool {
		return m.rules.index(&p.Pod) == frontier
	})
}

var waitingFor = regexp.MustCompile(
	`^Waiting for nodes? (n\d+)(?: and (n\d+)|, (n\d+) and (\d+) more)?(?: \((m\d+)\))?\.$`,
)

// checkMessages checks that messages say what is the case.
func (sim *simulation) checkMessages(w World, result Result) *violation {
	for _, m := range sim.maintenances {
		for node := range m.nodes {
			message := result.Messages[m.name][node]
			moving, done := sim.moving(node, result), result.Finished[m.name] && !m.held(sim)
			if evacuating := strings.HasPrefix(message, MessageEvacuating); evacuating != moving {
				return violated("messages", "pods of %s leave: %t, %s says %q", node, moving, m.name, message)
			}
			if drained := message == MessageDrained; drained != (done && !moving) {
				return violated(
					"messages", "%s is done: %t, pods of %s leave: %t, it says %q", m.name, done, node, moving,
					message,
				)
			}
			if moving || done {
				continue
			}
			names := waitingFor.FindStringSubmatch(message)
			if names == nil {
				return violated("messages", "%s says %q of %s", m.name, message, node)
			}
			for _, waited := range names[1:4] {
				if waited != "" && !sim.moving(waited, result) && sim.nodes[waited].cordoned &&
					!sim.atFrontier(m, waited) {
					return violated("messages", "%s says %q of %s, but nothing happens there", m.name, message, node)
				}
			}
			if other := sim.maintenances[names[5]]; other != nil && !other.nodes[names[1]] {
				return violated("messages", "%s says %q of %s, but that is none of its nodes", m.name, message, node)
			}
		}
	}
	return nil
}
