// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"cmp"
	"fmt"
	"slices"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// This file is the model of what surrounds the decisions: the controllers of maintenances, nodes
// and tasks, the workers, the node agents, and what users and machines do.

// isDrained reports whether a maintenance is drained.
func (v *view) isDrained(m *simMaintenance, off rules) bool {
	for _, name := range m.nodes {
		n := v.node(name)
		if n == nil {
			continue
		}
		if t := v.hands(name); t != nil {
			// The shutdown of a node does not wait for the worker that reboots the node.
			if t.maintenance == m.name || m.shutdown && off.on("agent") {
				continue
			}
			return false
		}
		if len(n.cordon) == 0 || n.pods || n.ds || n.job > 0 {
			return false
		}
	}
	return true
}

// drainAndRelease is the controllers of maintenances and of nodes. Calm worlds have no delays.
func (w *world) drainAndRelease(calm bool) {
	for _, m := range w.maintenances {
		switch {
		case m.gone:
		case m.complete < 0:
			for _, name := range m.nodes {
				if n := w.node(name); n != nil {
					w.drain(m, n, calm)
				}
			}
			for _, name := range m.nodes {
				if t := w.task(name); t != nil && t.maintenance == m.name && t.state == v1alpha1.NodeTaskDone {
					m.records[name] = record{v1alpha1.NodeTaskDone, t.uid, t.since}
				}
			}
		case m.ended < 0:
			w.release(m)
		}
	}
	for _, n := range w.nodes {
		if t := w.hands(n.name); len(n.cordon) == 0 {
			n.pods, n.ds = true, true
		} else if t != nil && t.state != v1alpha1.NodeTaskClaimed && w.rules.on("inhands") {
			n.ds = true // the taint of the drain is removed
		}
		n.job = max(0, n.job-1)
	}
}

// note notes since when nodes are out. A step without it would hide that a node was in service for
// a moment.
func (w *world) note() {
	for _, n := range w.nodes {
		n.bad = w.since(n.bad, !n.isReady() || n.foreign)
		n.unready = w.since(n.unready, !n.isReady())
	}
}

// since returns the step since which something is so, of which before was the last one; -1 if it is
// not.
func (w *world) since(before int, is bool) int {
	switch {
	case !is:
		return -1
	case before < 0:
		return w.now
	}
	return before
}

func (w *world) drain(m *simMaintenance, n *simNode, calm bool) {
	n.cordon[m.name] = true
	t := w.hands(n.name)
	if t != nil && (w.rules.on("inhands") || t.state == v1alpha1.NodeTaskClaimed) || m.paused && w.rules.on("pause") || !calm && w.chance(.5) {
		return
	}
	wanting := slices.DeleteFunc(w.holding(n.name), func(m *simMaintenance) bool { return m.paused })
	waits := !slices.ContainsFunc(wanting, func(m *simMaintenance) bool { return !m.wait })
	if n.job > 0 {
		if waits && w.rules.on("wait") {
			return
		}
		if waits && len(wanting) > 0 {
			w.failf("the job on %s was evicted", n.name)
		}
		n.job = 0
	}
	if m.paused {
		w.failf("%s was drained for %s, which is paused", n.name, m.name)
	}
	n.pods, n.ds = false, false
}

// release releases the nodes of a maintenance in stage Complete. It waits for a claimed task.
func (w *world) release(m *simMaintenance) {
	rest := false
	for _, name := range m.nodes {
		if t := w.task(name); t != nil && t.maintenance == m.name {
			if t.state == v1alpha1.NodeTaskDone {
				m.records[name] = record{v1alpha1.NodeTaskDone, t.uid, t.since}
			}
			isClaimed := t.state == v1alpha1.NodeTaskClaimed || t.state == v1alpha1.NodeTaskVerifying
			switch {
			case isClaimed && w.rules.on("gate"), t.state == v1alpha1.NodeTaskOffered && t.holder != "":
				rest = true
				continue
			case !isClaimed:
				w.removeTask(t)
			}
		}
		if n := w.node(name); n != nil {
			delete(n.cordon, m.name)
		}
	}
	if !rest {
		m.ended = w.now
	}
}

// stepTasks is the controller of tasks. It decides on caches, and looks at the world before a
// grant.
func (w *world) stepTasks(caches *view, calm bool) {
	names := map[string]bool{}
	for _, n := range w.nodes {
		names[n.name] = true
	}
	for _, t := range w.tasks {
		names[t.name] = true
	}
	for _, name := range sortedKeys(names) {
		t, n := w.task(name), w.node(name)
		if t == nil {
			if n != nil && caches.task(name) == nil && caches.node(name) != nil {
				w.offer(caches, n)
			}
			continue
		}
		m := w.maintenance(t.maintenance)
		r := w.rollout(m.owner)
		switch t.state {
		case v1alpha1.NodeTaskOffered:
			w.grant(caches, t, n, m, calm)
		case v1alpha1.NodeTaskClaimed:
			w.stepClaimed(t, n, m)
		case v1alpha1.NodeTaskVerifying:
			switch {
			case n != nil && n.isReady() && (!r.expr || n.goal[r.name]):
				t.state, t.uid, t.since = v1alpha1.NodeTaskDone, n.uid, w.now
			case w.now-t.since <= taskSteps:
			case n == nil:
				w.lose(t, m)
			default:
				t.state, t.since = v1alpha1.NodeTaskFailed, w.now
			}
		case v1alpha1.NodeTaskFailed:
			if n == nil {
				w.lose(t, m)
			} else if t.result == v1alpha1.NodeTaskResultDone {
				t.state, t.since = v1alpha1.NodeTaskVerifying, w.now
			}
		case v1alpha1.NodeTaskDone:
			if m.gone || m.ended >= 0 {
				w.removeTask(t)
			}
		}
	}
}

// lose ends the work on a node that no longer exists.
func (w *world) lose(t *simTask, m *simMaintenance) {
	m.records[t.name] = record{v1alpha1.NodeTaskGone, t.uid, w.now}
	w.removeTask(t)
}

// offer creates the task of a node that is drained.
func (w *world) offer(caches *view, n *simNode) {
	seen, holders := caches.node(n.name), caches.holding(n.name)
	if slices.ContainsFunc(holders, func(m *simMaintenance) bool { return !m.task }) {
		return
	}
	holders = slices.DeleteFunc(holders, func(m *simMaintenance) bool {
		rec, ok := m.records[n.name]
		return ok && rec.uid == seen.uid || !caches.isDrained(m, w.rules)
	})
	if len(holders) == 0 {
		return
	}
	m := w.maintenance(slices.MinFunc(holders, func(a, b *simMaintenance) int {
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.name, b.name))
	}).name)
	if !m.drains() {
		return
	}
	t := &simTask{name: n.name, uid: n.uid, maintenance: m.name, state: v1alpha1.NodeTaskOffered, since: w.now, boot: n.boot}
	if r := w.rollout(m.owner); r.expr && n.goal[r.name] {
		t.state = v1alpha1.NodeTaskDone
	}
	w.tasks = append(w.tasks, t)
}

// grant answers a claim, or takes an offered task back.
func (w *world) grant(caches *view, t *simTask, n *simNode, m *simMaintenance, calm bool) {
	isPersons := slices.ContainsFunc(w.holding(t.name), func(m *simMaintenance) bool { return !m.task })
	if t.holder != "" {
		isEmpty := n != nil && n.uid == t.uid && len(n.cordon) > 0 && !n.pods && !n.ds && n.job == 0
		if !m.drains() || w.rules.on("grant") && (!isEmpty || isPersons) {
			w.removeTask(t)
			return
		}
		if n == nil || len(n.cordon) == 0 || n.pods || n.job > 0 {
			w.failf("%s was granted and is not empty", t.name)
		}
		t.state, t.since = v1alpha1.NodeTaskClaimed, w.now
		w.works++
		return
	}
	seen := caches.maintenance(m.name)
	if seen == nil {
		seen = m
	}
	switch {
	case !m.drains() || n == nil || n.uid != t.uid || isPersons || !caches.isDrained(seen, w.rules):
		w.removeTask(t)
	case w.now-t.since > claimSteps && !calm:
		w.removeTask(t)
		m.complete, m.withdrawn = w.now, WithdrawnNoWorker
	}
}

func (w *world) stepClaimed(t *simTask, n *simNode, m *simMaintenance) {
	if n != nil && len(n.cordon) == 0 && n.uid == t.uid {
		w.failf("%s was uncordoned while a worker had it", t.name)
	}
	switch isLost := w.now-t.since > taskSteps; {
	case t.result == v1alpha1.NodeTaskResultDone:
		t.state, t.since = v1alpha1.NodeTaskVerifying, w.now
	case t.result == v1alpha1.NodeTaskResultFailed || isLost:
		if n == nil {
			w.lose(t, m)
		} else {
			t.state, t.since = v1alpha1.NodeTaskFailed, w.now
		}
	}
}

// work is the workers. They fail, fall silent, lie, and reinstall nodes, whose labels may follow
// later. They report nothing before these are there.
func (w *world) work(calm bool) {
	for _, n := range w.nodes {
		n.bare = n.bare && !calm && !w.chance(.3)
	}
	for _, t := range slices.Clone(w.tasks) {
		n, r := w.node(t.name), w.rollout(w.maintenance(t.maintenance).owner)
		switch {
		case t.state == v1alpha1.NodeTaskOffered && t.holder == "":
			if calm || w.chance(.5) {
				t.holder = "worker"
			}
		case t.state == v1alpha1.NodeTaskClaimed && n != nil && !n.bare && t.result == "":
			x := w.rng.Float64()
			switch {
			case calm || x < .35:
				w.reboot(t, n, r)
			case x < .41:
				t.result = v1alpha1.NodeTaskResultFailed
			case x < .44:
				t.result = v1alpha1.NodeTaskResultDone // a lie, or work without an effect
			case x < .48:
				w.remove(n)
				again := w.add(n.name, n.pool, n.zone, n.rack)
				again.cp, again.bare, again.pods, again.goal = n.cp, w.chance(.5), false, map[string]bool{r.name: true}
				for name := range n.goal {
					again.goal[name] = true
				}
				if n.agent {
					again.agent, again.boot = true, t.boot+1
				}
			case x < .49:
				w.remove(n)
			}
		case t.state == v1alpha1.NodeTaskFailed && n != nil && !n.bare && (calm || w.chance(.08)):
			n.goal[r.name] = true // late
			t.result = v1alpha1.NodeTaskResultDone
		}
	}
}

// reboot lets a node reboot. With a node agent, the shutdown of the node has to be drained first.
func (w *world) reboot(t *simTask, n *simNode, r *simRollout) {
	if n.agent && n.boot == t.boot {
		name := "shutdown-" + t.name
		if slices.ContainsFunc(w.maintenances, func(m *simMaintenance) bool { return m.name == name && m.drains() }) {
			return
		}
		w.maintenances = slices.DeleteFunc(w.maintenances, func(m *simMaintenance) bool { return m.name == name })
		w.byHand(name, t.name).shutdown = true
		return
	}
	if !n.agent {
		n.boot++
	}
	n.goal[r.name] = true
	t.result = v1alpha1.NodeTaskResultDone
}

// byHand creates a maintenance without a task.
func (w *world) byHand(name, node string) *simMaintenance {
	m := &simMaintenance{name: name, nodes: []string{node}, created: w.now, records: map[string]record{}, complete: -1, ended: -1}
	w.maintenances = append(w.maintenances, m)
	return m
}

// shutDown is the node agents: a machine goes down when its shutdown is drained. The agent
// completes the shutdown after the boot.
func (w *world) shutDown() {
	for _, m := range w.maintenances {
		if !m.shutdown || !m.drains() {
			continue
		}
		n, t := w.node(m.nodes[0]), w.task(m.nodes[0])
		switch {
		case n == nil:
			m.complete = w.now
		case len(n.cordon) > 0 && w.isDrained(m, w.rules):
			n.boot++
			m.complete = w.now
		case w.now-m.created > 10 && t != nil && t.state == v1alpha1.NodeTaskClaimed:
			w.failf("the reboot of %s waits for its own worker", n.name)
		}
	}
}

// disturb is what users and machines do.
func (w *world) disturb() {
	if len(w.nodes) == 0 {
		w.add(fmt.Sprintf("m%d", w.now), "a", "z0", "r9")
		return
	}
	n := pick(w, w.nodes)
	running := func(is func(*simMaintenance) bool) []*simMaintenance {
		return slices.DeleteFunc(slices.Clone(w.maintenances), func(m *simMaintenance) bool { return !is(m) })
	}
	switch x := w.rng.Float64(); {
	case x < .08:
		n.ready = !n.ready
	case x < .13:
		n.foreign = !n.foreign
	case x < .16:
		w.remove(n)
		name := n.name
		if w.chance(.5) {
			name = fmt.Sprintf("x%d", w.now)
		}
		w.add(name, n.pool, n.zone, n.rack).cp = n.cp
	case x < .21:
		n.pods = n.pods || len(n.cordon) > 0
	case x < .26:
		if len(n.cordon) == 0 {
			n.job = w.between(1, 10)
		}
	case x < .29:
		w.byHand(fmt.Sprintf("person-%d", w.now), n.name)
	case x < .34:
		if all := running(func(m *simMaintenance) bool { return m.owner == "" && !m.shutdown && m.drains() }); len(all) > 0 {
			pick(w, all).complete = w.now
		}
	case x < .36:
		if all := running(func(m *simMaintenance) bool { return m.owner != "" && m.drains() }); len(all) > 0 {
			m := pick(w, all)
			m.complete, m.person = w.now, true
		}
	case x < .38:
		w.retry()
	case x < .455:
		w.change(pick(w, w.rollouts), x)
	case x < .475:
		if zone := pick(w, zones); zone != n.zone {
			n.zone, n.moved = zone, w.now
		}
	}
}

// retry deletes failed tasks of nodes that have their labels, and maintenances that ended without
// work.
func (w *world) retry() {
	for _, t := range w.tasks {
		if n := w.node(t.name); t.state == v1alpha1.NodeTaskFailed && (n == nil || !n.bare) {
			w.removeTask(t)
			break
		}
	}
	w.forget()
}

// forget deletes a maintenance of a rollout that a user has completed, or that found no worker.
func (w *world) forget() {
	for _, m := range w.maintenances {
		if m.ended >= 0 && !m.gone && (m.person || m.withdrawn == WithdrawnNoWorker) {
			m.gone = true
			return
		}
	}
}

// change changes the spec of a rollout, or lets its window open or close.
func (w *world) change(r *simRollout, x float64) {
	switch {
	case x < .42:
		r.version++
		hold := pick(w, []string{"ann", "ceph"})
		if _, held := r.holds[hold]; held {
			delete(r.holds, hold)
		} else {
			r.holds[hold] = pick(w, []v1alpha1.RolloutHoldScope{v1alpha1.RolloutHoldStarts, v1alpha1.RolloutHoldDrains})
		}
	case x < .45:
		r.closed = !r.closed
	default:
		r.version++
		r.spec.Stage = v1alpha1.RolloutStageComplete
	}
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
