// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"maps"
	"slices"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/window"
)

// reconcile is the controller of rollouts: it reads caches, and writes to the world if the rollout
// did not change meanwhile. It may crash between two writes.
func (w *world) reconcile(name string, caches *view, crashes bool) {
	r, seen := w.rollout(name), caches.rollout(name)
	version := seen.version
	fresh := func() bool { return r.version == version || !w.rules.on("fence") }
	wrote := func() { r.version++; version = r.version }
	for _, unit := range slices.Sorted(maps.Keys(seen.current)) {
		if !fresh() {
			return
		}
		if w.create(r, unit, seen.current[unit], caches) {
			delete(r.current, unit)
			wrote()
		}
		if crashes && w.chance(.2) {
			return
		}
	}
	known := r
	if !w.rules.on("fence") {
		known = seen
	}
	cluster, in := w.input(known, caches)
	decision := Decide(cluster, in)
	w.judgeOrder(known, caches, &decision)
	w.end(r, caches, fresh, cluster, in)
	if !fresh() {
		return
	}
	starts := slices.DeleteFunc(decision.Start, func(u *Unit) bool { return w.rules.on("live") && !w.agrees(r, u, cluster, caches) })
	for _, u := range starts {
		attempt := 0
		for _, m := range caches.maintenances {
			if m.owner == r.name && m.unit == u.Name {
				attempt++
			}
		}
		w.judge(caches, r, u)
		r.current[u.Name] = simUnit{maintenance: fmt.Sprintf("%s-%s-%d", r.name, u.Name, attempt), nodes: u.References()}
		w.starts++
	}
	if len(starts) == 0 {
		return
	}
	wrote()
	if crashes && w.chance(.4) {
		return
	}
	for _, u := range starts {
		w.create(r, u.Name, r.current[u.Name], caches)
	}
}

// create creates the maintenance of an announced unit. It returns true if the unit leaves
// status.current: its maintenance has ended, and its soak time has passed.
func (w *world) create(r *simRollout, unit string, announced simUnit, caches *view) bool {
	if m := caches.maintenance(announced.maintenance); m != nil {
		soak := 0
		if m.isDone() {
			soak = r.soak
		}
		return m.gone || m.ended >= 0 && caches.now-m.ended >= soak
	}
	if w.maintenance(announced.maintenance) != nil {
		return false
	}
	if len(r.holds) > 0 || r.closed || !r.rolls() {
		return true
	}
	m := &simMaintenance{
		name: announced.maintenance, owner: r.name, unit: unit, created: w.now, task: true, wait: r.wait, records: map[string]record{},
		complete: -1, ended: -1,
	}
	for _, node := range announced.nodes {
		m.nodes = append(m.nodes, node.Name)
	}
	w.maintenances = append(w.maintenances, m)
	return false
}

// end pauses, resumes and completes the maintenances of a rollout.
func (w *world) end(r *simRollout, caches *view, fresh func() bool, cluster *Cluster, in *Rollout) {
	windows, err := window.At(in.Object.Spec.Windows, cluster.Now)
	if err != nil {
		w.failf("windows: %v", err)
	}
	holds := window.HoldsAt(in.Object.Spec.Holds, cluster.Now)
	for _, m := range caches.live(r) {
		now := w.maintenance(m.name)
		if now.complete >= 0 {
			continue
		}
		if fresh() {
			now.paused = holds.Drains
		}
		unit := &v1alpha1.RolloutUnit{Unit: m.unit, Maintenance: m.name}
		for _, name := range m.nodes {
			unit.Nodes = append(unit.Nodes, v1alpha1.NodeReference{Name: name})
		}
		if !w.rules.on("gone") && slices.ContainsFunc(m.nodes, func(name string) bool { return cluster.Nodes.byName[name] == nil }) {
			continue
		}
		if ending := EndOf(cluster, in, unit, caches.draining(m, w.rules), windows.Open); ending.Now {
			now.complete, now.withdrawn = w.now, ending.Withdrawn
		}
	}
}

// agrees reads the nodes of a unit live, and reports whether they agree with the decision.
func (w *world) agrees(r *simRollout, u *Unit, cluster *Cluster, caches *view) bool {
	for _, n := range u.Nodes {
		live := w.node(n.Name)
		if live == nil || r.expr && live.goal[r.name] {
			return false
		}
		node := w.readNode(live, caches)
		if !cluster.Agrees(&node) {
			return false
		}
	}
	return true
}

// judge finds faults in a start, which the caller is about to announce.
func (w *world) judge(caches *view, r *simRollout, u *Unit) {
	switch failed := w.failed(r); {
	case len(r.holds) > 0:
		w.failf("%s started while held", u.Name)
	case r.closed:
		w.failf("%s started outside the windows", u.Name)
	case !r.rolls():
		w.failf("%s started after the stop", u.Name)
	case len(failed) > r.maxFailed && len(caches.failed(r)) > r.maxFailed:
		w.failf("%s started although the rollout is halted", u.Name)
	}
	for _, n := range u.Nodes {
		live := w.node(n.Name)
		if live == nil || live.uid != string(n.UID) {
			continue
		}
		switch {
		case r.expr && live.goal[r.name]:
			w.failf("%s was started although it is done", n.Name)
		case live.foreign: // a live read shows it
			w.failf("%s was started although a user has cordoned it", n.Name)
		case slices.ContainsFunc(w.holding(n.Name), func(m *simMaintenance) bool { return !m.task && w.now-m.created >= 4 }):
			w.failf("%s was started although a person works on it", n.Name)
		}
	}
	w.judgeWidth(caches, r, u)
	w.judgeLimits(caches, r, u)
}

// judgeOrder compares a decision with one for the same input in another order.
func (w *world) judgeOrder(r *simRollout, caches *view, first *Decision) {
	if w.now%8 > 0 {
		return
	}
	cluster, in := w.input(r, caches)
	all := slices.Clone(cluster.Nodes.all)
	slices.Reverse(all)
	cluster.Nodes = NewNodes(all)
	slices.Reverse(cluster.Tasks)
	slices.Reverse(in.Members)
	slices.Reverse(in.Attempts)
	again := Decide(NewCluster(cluster.Facts), in)
	same := slices.EqualFunc(first.Start, again.Start, func(a, b *Unit) bool { return a.Name == b.Name })
	if !same || first.Reason != again.Reason || first.Message != again.Message || first.Nodes != again.Nodes || first.Next != again.Next {
		w.failf("the order of the input changes a decision: %+v, %+v", first, again)
	}
}

// succeeded returns the number of units that were done since the last failure.
func (v *view) succeeded(r *simRollout) int {
	last, n := -1, 0
	for _, t := range v.tasks {
		if m := v.maintenance(t.maintenance); t.state == v1alpha1.NodeTaskFailed && m != nil && m.owner == r.name {
			last = max(last, t.since)
		}
	}
	for _, m := range v.maintenances {
		if m.owner == r.name && m.ended >= 0 && m.isDone() && m.ended >= last {
			n++
		}
	}
	return n
}

func (w *world) judgeWidth(caches *view, r *simRollout, u *Unit) {
	running, failed := map[string]bool{u.Name: true}, w.failed(r)
	maps.Copy(failed, caches.failed(r))
	for unit := range r.current {
		running[unit] = true
	}
	for _, m := range w.live(r) {
		running[m.unit] = true
	}
	maps.DeleteFunc(running, func(unit string, _ bool) bool { return failed[unit] })
	if allowed := max(w.succeeded(r), caches.succeeded(r)) + 1; len(running) > allowed {
		w.failf("%s started as number %d, allowed: %d", u.Name, len(running), allowed)
	}
}

// judgeLimits compares a start with the limits. It counts what rollouts hold in truth, and what has
// been out for other reasons for longer than caches lag. The limits hold for a unit whose nodes are
// out already, too: it keeps them out.
func (w *world) judgeLimits(caches *view, r *simRollout, u *Unit) {
	ours := map[string]bool{}
	for _, other := range w.rollouts {
		for _, unit := range other.current {
			for _, n := range unit.nodes {
				if m := w.maintenance(unit.maintenance); m == nil || w.soaks(n.Name) {
					ours[n.Name] = true
				}
			}
		}
	}
	for _, m := range w.maintenances {
		for _, name := range m.nodes {
			n := w.node(name)
			if m.owner != "" && m.ended < 0 && !m.gone && (m.complete < 0 || n != nil && n.cordon[m.name]) {
				ours[name] = true
			}
		}
	}
	unit, all := map[string]bool{}, maps.Clone(ours)
	for _, n := range u.Nodes {
		live := w.node(n.Name)
		unit[n.Name] = live != nil
		all[n.Name] = all[n.Name] || live != nil && !w.isOut(live)
	}
	maps.DeleteFunc(all, func(name string, _ bool) bool {
		t := w.task(name)
		return w.node(name) == nil && (t == nil || t.state == v1alpha1.NodeTaskDone)
	})
	for _, n := range w.nodes {
		if n.bad >= 0 && n.bad <= w.now-4 && (n.foreign || !n.isReady()) && !n.bare {
			all[n.name] = true
		}
	}
	count := func(of map[string]bool, is func(name string, n *simNode) bool) (count int) {
		for name, counts := range of {
			if counts && is(name, w.node(name)) {
				count++
			}
		}
		return count
	}
	check := func(limit string, allowed int, is func(name string, n *simNode) bool) {
		if out := count(all, is); count(unit, is) > 0 && out > allowed {
			w.failf("%s of %s started: %d out, %s allows %d", u.Name, r.name, out, limit, allowed)
		}
	}
	check("the server", max(1, w.percent*len(w.nodes)/100), func(_ string, n *simNode) bool { return n != nil })
	check("control plane", 1, func(name string, _ *simNode) bool { return w.last[name].cp })
	inPool := func(name string) bool { return r.has(w.last[name]) }
	for _, l := range r.spec.Limits {
		switch {
		case l.MaxDomains != nil:
			w.judgeDomains(caches, r, u, int(*l.MaxDomains))
		case l.TopologyKey == "":
			check("maxUnavailable", l.MaxUnavailable.IntValue(), func(name string, _ *simNode) bool { return inPool(name) })
		default:
			for _, zone := range zones {
				check("maxUnavailable of "+zone, l.MaxUnavailable.IntValue(), func(name string, _ *simNode) bool {
					return inPool(name) && w.last[name].zone == zone && (unit[name] || w.isSettled(name))
				})
			}
		}
	}
}

// isSettled reports whether a node has been in its zone for longer than caches lag.
func (w *world) isSettled(name string) bool { return w.now-w.last[name].moved >= 4 }

func (w *world) judgeDomains(caches *view, r *simRollout, u *Unit, allowed int) {
	failed, zones := w.failed(r), map[string]bool{}
	maps.Copy(failed, caches.failed(caches.rollout(r.name)))
	for _, n := range u.Nodes {
		if live := w.node(n.Name); live != nil {
			zones[live.zone] = true
		}
	}
	own := len(zones)
	for _, m := range w.live(r) {
		for _, name := range m.nodes {
			t := w.hands(name)
			exists := w.node(name) != nil || t != nil && t.state != v1alpha1.NodeTaskDone
			if exists && m.complete < 0 && !failed[m.unit] && w.isSettled(name) {
				zones[w.last[name].zone] = true
			}
		}
	}
	if own <= allowed && len(zones) > allowed {
		w.failf("%s of %s started: in %d zones, allowed: %d", u.Name, r.name, len(zones), allowed)
	}
}
