// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// checkIndependence checks that the result does not depend on the order of the input, and that the
// planner does not change the input.
func (sim *simulation) checkIndependence(w World, first Result) *violation {
	again, err := sim.planner(w)
	if err != nil {
		return violated("no error", "%v", err)
	}
	if difference := differ(first, again); difference != "" {
		return violated("no state", "two calls returned different %s", difference)
	}
	shuffled, err := sim.planner(shuffle(rand.New(rand.NewPCG(sim.salt, 0)), w))
	if err != nil {
		return violated("no error", "%v", err)
	}
	if difference := differ(shuffled, first); difference != "" {
		return violated("independence", "after a shuffle of the world: different %s", difference)
	}
	return nil
}

// differ describes the first difference between two results; it returns "" if they are equal.
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
	r.Shuffle(len(s.Maintenances),
		func(i, j int) { s.Maintenances[i], s.Maintenances[j] = s.Maintenances[j], s.Maintenances[i] })
	r.Shuffle(len(s.Nodes), func(i, j int) { s.Nodes[i], s.Nodes[j] = s.Nodes[j], s.Nodes[i] })
	for i := range s.Maintenances {
		m := &s.Maintenances[i]
		m.Nodes, m.Uncordoned = slices.Clone(m.Nodes), slices.Clone(m.Uncordoned)
		r.Shuffle(len(m.Nodes), func(i, j int) { m.Nodes[i], m.Nodes[j] = m.Nodes[j], m.Nodes[i] })
		r.Shuffle(len(m.Uncordoned),
			func(i, j int) { m.Uncordoned[i], m.Uncordoned[j] = m.Uncordoned[j], m.Uncordoned[i] })
	}
	for i, n := range s.Nodes {
		pods := slices.Clone(n.Pods)
		r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		s.Nodes[i] = &Node{Name: n.Name, UID: n.UID, Pods: pods}
	}
	return s
}

// checkSubject checks that a plan for one maintenance has the same messages for that maintenance as
// the plan for all of them.
func (sim *simulation) checkSubject(w World, result Result) *violation {
	for _, m := range w.Maintenances {
		w.Subject = m.Name
		alone, err := sim.planner(w)
		if err != nil {
			return violated("no error", "%v", err)
		}
		want := result
		want.Messages = map[string]map[string]string{m.Name: result.Messages[m.Name]}
		want.FastForwarded = map[string]map[string]string{}
		if of, ok := result.FastForwarded[m.Name]; ok {
			want.FastForwarded[m.Name] = of
		}
		if difference := differ(alone, want); difference != "" {
			return violated("subject", "the plan for %s alone: different %s", m.Name, difference)
		}
	}
	return nil
}

// componentsOf groups the maintenances that share nodes. It does not use the code of the planner.
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

// checkMinimality checks that the result for a component is the same without the other components.
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
		return violated("minimality", "all components together and each alone: different %s", difference)
	}
	return nil
}

// checkForm checks that a status can store the result.
func (sim *simulation) checkForm(w World, result Result) *violation {
	selected := map[string]bool{}
	for _, m := range w.Maintenances {
		for _, n := range m.Nodes {
			selected[n] = true
			if _, ok := result.Messages[m.Name][n]; !ok {
				return violated("form", "no message of %s for node %s", m.Name, n)
			}
		}
		if got := len(result.Messages[m.Name]); got != len(m.Nodes) {
			return violated("form", "%d messages of %s for %d nodes", got, m.Name, len(m.Nodes))
		}
	}
	if len(result.Targets) != len(selected) {
		return violated("form", "targets of %d nodes, want %d", len(result.Targets), len(selected))
	}
	for node, targets := range result.Targets {
		seen := map[key]bool{}
		rank, narrow := 0, false
		for i := range targets.Entries {
			k := entryKey(&targets.Entries[i])
			if seen[k] || typeRank(k.podType) < rank || typeRank(k.podType) == rank && narrow && k.selector == "" {
				return violated("form", "targets of node %s are out of order: %s", node, describePlan(targets.Entries))
			}
			seen[k], rank, narrow = true, typeRank(k.podType), k.selector != ""
		}
	}
	return nil
}

// beforeOf merges the targets of a node from the statuses of all maintenances.
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

// checkNoBacktracking checks that a target of a node keeps at least its priority while a
// maintenance selects the node.
func (sim *simulation) checkNoBacktracking(w World, result Result) *violation {
	for node, targets := range result.Targets {
		for _, before := range beforeOf(w, node).Entries {
			kept := slices.ContainsFunc(targets.Entries, func(e v1alpha1.DrainPlanEntry) bool {
				return e.PodType == before.PodType && e.PodPriority >= before.PodPriority &&
					planorder.CanonicalSelector(e.PodSelector) == planorder.CanonicalSelector(before.PodSelector)
			})
			if !kept {
				return violated("no backtracking", "node %s had %s and has %s", node, describePlan(entries{before}),
					describePlan(targets.Entries))
			}
		}
	}
	return nil
}

// checkOrder checks that no pod becomes a target while a pod of an earlier entry is still running.
func (sim *simulation) checkOrder(w World, result Result) *violation {
	for _, m := range sim.maintenances {
		sim.follow(m, w, result)
	}
	for _, name := range slices.Sorted(maps.Keys(result.Targets)) {
		before := beforeOf(w, name)
		for _, p := range sim.nodes[name].pods {
			if sim.targets[p.number] && before.Cover(p.Pod) || !result.Targets[name].Cover(p.Pod) {
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

// follow records the frontier of the maintenance's own plan, and the nodes for which the result
// reports an exception to the order of the plan.
func (sim *simulation) follow(m *simMaintenance, w World, result Result) {
	for node := range m.nodes {
		ref := sim.nodes[node].ref()
		m.opened[ref] = max(m.opened[ref], sim.frontier(m))
	}
	for node := range result.FastForwarded[m.name] {
		m.reported[sim.nodes[node].ref()] = true
	}
	for _, o := range result.Overrides {
		if slices.Contains(o.Overridden, m.name) {
			for node := range m.nodes {
				m.reported[sim.nodes[node].ref()] = true
			}
		}
	}
}

func (m *simMaintenance) uncordoned(sim *simulation) bool {
	for node := range m.nodes {
		if !sim.nodes[node].cordoned {
			return true
		}
	}
	return false
}

// frontier returns the first entry of a maintenance that covers running pods. It does not use the
// code of the planner.
func (sim *simulation) frontier(m *simMaintenance) int {
	frontier := len(m.plan)
	for node := range m.nodes {
		for _, p := range sim.nodes[node].pods {
			frontier = min(frontier, m.rules.index(&p.Pod))
		}
	}
	return frontier
}

// checkOvertaking checks that a pod that becomes a target is in a wave of the maintenance's plan
// that has started. There are two exceptions, which the result has to report: the planner followed
// an older maintenance because plans contradict each other, or another maintenance has drained the
// node further. If the maintenance's own plan has drained the node that far, a new pod needs no
// report.
func (sim *simulation) checkOvertaking(
	m *simMaintenance, n *simNode, p numberedPod, late bool, result Result,
) *violation {
	own, frontier := m.rules.index(&p.Pod), sim.frontier(m)
	uncordoned := m.uncordoned(sim)
	if own == len(m.plan) || own <= frontier && !uncordoned {
		return nil
	}
	if !late {
		if slices.ContainsFunc(result.Overrides, func(o Override) bool {
			return slices.Contains(o.Overridden, m.name)
		}) {
			return nil
		}
		return violated("order",
			"%s on %s is a target, but %s is at entry %d (uncordoned nodes: %t) and covers it by entry %d", p, n.name,
			m.name, frontier+1, uncordoned, own+1)
	}
	if opened, ok := m.opened[n.ref()]; ok && own <= opened || m.reported[n.ref()] {
		return nil
	}
	return violated("order",
		"new %s on %s is a target, but %s is at entry %d (uncordoned nodes: %t), covers it by entry %d, no report", p,
		n.name, m.name, frontier+1, uncordoned, own+1)
}

// checkProgress checks that a pod is a target in every component that is not finished, and that the
// result reports exactly the finished maintenances as finished.
func (sim *simulation) checkProgress(w World, result Result) *violation {
	for _, c := range componentsOf(w) {
		done, free, moving := true, true, false
		for i := range c {
			m := sim.maintenances[c[i].Name]
			finished := sim.frontier(m) == len(m.plan)
			if finished != result.Finished[m.name] {
				return violated("progress", "%s is finished: %t, but the result reports %t", m.name, finished,
					result.Finished[m.name])
			}
			done = done && finished
			free = free && !m.uncordoned(sim)
			for node := range m.nodes {
				moving = moving || sim.moving(node, result)
			}
		}
		if !done && free && !moving {
			return violated("progress", "no pod is a target on the nodes of %s", c[0].Name)
		}
	}
	return nil
}

func (sim *simulation) moving(node string, result Result) bool {
	return slices.ContainsFunc(sim.nodes[node].pods, func(p numberedPod) bool {
		return result.Targets[node].Cover(p.Pod)
	})
}

// atFrontier reports whether the maintenance waits for pods of the node. If plans contradict each
// other, the message of the maintenance names such nodes until the targets on other nodes have
// left.
func (sim *simulation) atFrontier(m *simMaintenance, node string) bool {
	frontier := sim.frontier(m)
	return slices.ContainsFunc(sim.nodes[node].pods, func(p numberedPod) bool {
		return m.rules.index(&p.Pod) == frontier
	})
}

var waitingFor = regexp.MustCompile(
	`^Waiting for nodes? (n\d+)(?: and (n\d+)|, (n\d+) and (\d+) more)?(?: \((m\d+)\))?\.$`,
)

// checkMessages checks that messages describe the result.
func (sim *simulation) checkMessages(w World, result Result) *violation {
	for _, m := range sim.maintenances {
		for node := range m.nodes {
			message := result.Messages[m.name][node]
			moving, done := sim.moving(node, result), result.Finished[m.name] && !m.uncordoned(sim)
			if evacuating := strings.HasPrefix(message, MessageEvacuating); evacuating != moving {
				return violated("messages", "node %s has targets: %t, but the message of %s is %q", node, moving,
					m.name, message)
			}
			if drained := message == MessageDrained; drained != (done && !moving) {
				return violated("messages", "%s is finished: %t, node %s has targets: %t, but the message is %q",
					m.name, done, node, moving, message)
			}
			if moving || done {
				continue
			}
			names := waitingFor.FindStringSubmatch(message)
			if names == nil {
				return violated("messages", "unknown message of %s: %q for %s", m.name, message, node)
			}
			for _, waited := range names[1:4] {
				if waited != "" && !sim.moving(waited, result) && sim.nodes[waited].cordoned &&
					!sim.atFrontier(m, waited) {
					return violated("messages", "message of %s: %q for %s, but the named node has no targets", m.name,
						message, node)
				}
			}
			if other := sim.maintenances[names[5]]; other != nil && !other.nodes[names[1]] {
				return violated("messages",
					"message of %s: %q for %s, but the named maintenance does not select the named node", m.name,
					message, node)
			}
		}
	}
	return nil
}
