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
	"runtime/debug"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// planner is what a script is run against: the planner, or one with a fault to find out whether
// the checks find it.
type planner func(World) (Result, error)

// violation is a property that does not hold.
type violation struct {
	property, message string
}

func (v *violation) Error() string { return v.property + ": " + v.message }

func violated(property, format string, args ...any) *violation {
	return &violation{property, fmt.Sprintf(format, args...)}
}

// simNode is a node with its pods.
type simNode struct {
	name     string
	uid      int
	pods     []numberedPod
	cordoned bool
	// shown is what the planner was handed, nil since something changed.
	shown *Node
}

// simMaintenance is a maintenance in stage Drain with its status.
type simMaintenance struct {
	name   string
	minute int
	plan   entries
	nodes  map[string]bool
	// status holds the targets by node and UID.
	status map[simRef]entries
	// rules are the plan, ready for use.
	rules *progress
	// opened is how far its own plan had come on a node at most, and told are the nodes for which
	// it was said that another one's order was followed.
	opened map[simRef]int
	told   map[simRef]bool
}

type simRef struct {
	node string
	uid  int
}

// simulation is a script while it runs.
type simulation struct {
	planner      planner
	nodes        map[string]*simNode
	maintenances map[string]*simMaintenance
	uids         int
	// asked are the pods that had been asked to leave when the statuses were last written.
	asked map[int]bool
	// crashed says that the statuses of the present step are written in part, and nothing follows
	// from them.
	crashed *step
	salt    uint64
}

// run goes through a script, checks every answer, and lets everything drain in the end.
func run(s script, p planner) (v *violation) {
	defer func() {
		if r := recover(); r != nil {
			v = violated("no panic", "%v\n%s", r, debug.Stack())
		}
	}()
	sim := &simulation{
		planner:      p,
		nodes:        map[string]*simNode{},
		maintenances: map[string]*simMaintenance{},
		asked:        map[int]bool{},
	}
	for i, step := range s.steps {
		sim.salt = step.salt
		sim.crashed = nil
		sim.do(step)
		if _, v := sim.plan(); v != nil {
			v.message = fmt.Sprintf("after step %d: %s", i+1, v.message)
			return v
		}
		sim.cordon(step)
	}
	return sim.drain(s.slow)
}

// cordon lets some of the nodes that are held be cordoned.
func (sim *simulation) cordon(s step) {
	for _, m := range sim.maintenances {
		for node := range m.nodes {
			if n := sim.nodes[node]; s.chance(n.uid) {
				n.cordoned = true
			}
		}
	}
}

// drain lets the pods leave that are asked to until all maintenances are done.
func (sim *simulation) drain(slow bool) *violation {
	sim.crashed = nil
	rounds := 2
	for _, n := range sim.nodes {
		n.cordoned = true
		rounds += len(n.pods)
	}
	for round := 1; ; round++ {
		result, v := sim.plan()
		if v != nil {
			v.message = fmt.Sprintf("in round %d of the end: %s", round, v.message)
			return v
		}
		finished := true
		for name := range sim.maintenances {
			finished = finished && result.Finished[name]
		}
		if finished {
			return nil
		}
		if round > rounds {
			return violated("progress", "not drained after %d rounds", rounds)
		}
		sim.leave(func(numberedPod) bool { return true }, slow)
	}
}

// leave lets pods go that are asked to and chosen.
func (sim *simulation) leave(chosen func(numberedPod) bool, one bool) {
	for _, name := range slices.Sorted(maps.Keys(sim.nodes)) {
		n := sim.nodes[name]
		left := slices.DeleteFunc(
			slices.Clone(n.pods), func(p numberedPod) bool { return sim.asked[p.number] && chosen(p) },
		)
		if one && len(left) < len(n.pods) {
			i := slices.IndexFunc(n.pods, func(p numberedPod) bool { return sim.asked[p.number] })
			left = slices.Delete(slices.Clone(n.pods), i, i+1)
			n.become(left)
			return
		}
		n.become(left)
	}
}

func (n *simNode) become(pods []numberedPod) {
	if len(pods) != len(n.pods) {
		n.pods, n.shown = pods, nil
	}
}

// do lets a step happen.
func (sim *simulation) do(s step) {
	n, m := sim.nodes[s.node], sim.maintenances[s.maintenance]
	switch s.do {
	case nodeAppears:
		if n == nil {
			sim.create(s)
		}
	case nodeIsCreatedAnew:
		if n != nil {
			sim.create(s)
		}
	case nodeGoes:
		delete(sim.nodes, s.node)
		for _, m := range sim.maintenances {
			m.release(s.node)
		}
	case nodeIsUncordoned:
		if n != nil {
			n.cordoned = false
		}
	case nodeIsSelected:
		if n != nil && m != nil {
			m.nodes[s.node] = true
		}
	case nodeIsReleased:
		if m != nil {
			m.release(s.node)
		}
	case podsAppear:
		if n != nil {
			n.become(slices.Concat(n.pods, s.pods))
		}
	case podGoesByItself, podIsRelabelled:
		sim.change(s)
	case maintenanceArrives:
		sim.arrive(s)
	case maintenanceIsOver:
		delete(sim.maintenances, s.maintenance)
	case podsLeave:
		sim.leave(func(p numberedPod) bool { return s.chance(p.number) }, false)
	case leaderDiesOnWriting:
		sim.crashed = &s
	}
}

func (sim *simulation) create(s step) {
	sim.uids++
	sim.nodes[s.node] = &simNode{name: s.node, uid: sim.uids, pods: s.pods, cordoned: !s.chance(0)}
}

func (sim *simulation) arrive(s step) {
	m := &simMaintenance{
		name:   s.maintenance,
		minute: s.minute,
		plan:   completed(s.plan),
		nodes:  map[string]bool{},
		status: map[simRef]entries{},
		opened: map[simRef]int{},
		told:   map[simRef]bool{},
		rules:  &progress{},
	}
	if err := m.rules.compile(m.plan); err != nil {
		panic(err)
	}
	for _, node := range s.nodes {
		if sim.nodes[node] != nil {
			m.nodes[node] = true
		}
	}
	sim.maintenances[m.name] = m
}

// release forgets a node: should it be selected again it is a new one to the maintenance.
func (m *simMaintenance) release(node string) {
	delete(m.nodes, node)
	maps.DeleteFunc(m.status, func(r simRef, _ entries) bool { return r.node == node })
	maps.DeleteFunc(m.opened, func(r simRef, _ int) bool { return r.node == node })
	maps.DeleteFunc(m.told, func(r simRef, _ bool) bool { return r.node == node })
}

func (sim *simulation) change(s step) {
	for _, n := range sim.nodes {
		i := slices.IndexFunc(n.pods, func(p numberedPod) bool { return p.number == s.pods[0].number })
		if i < 0 {
			continue
		}
		n.pods, n.shown = slices.Clone(n.pods), nil
		if s.do == podGoesByItself {
			n.pods = slices.Delete(n.pods, i, i+1)
			return
		}
		n.pods[i].Labels = s.pods[0].Labels
		delete(sim.asked, n.pods[i].number)
	}
}

// world is what the planner is shown. What has not changed is the same as before.
func (sim *simulation) world() World {
	var w World
	for _, name := range slices.Sorted(maps.Keys(sim.nodes)) {
		n := sim.nodes[name]
		if n.shown == nil {
			n.shown = &Node{Name: name, UID: types.UID(fmt.Sprint(n.uid))}
			for _, p := range n.pods {
				n.shown.Pods = append(n.shown.Pods, p.Pod)
			}
		}
		w.Nodes = append(w.Nodes, n.shown)
	}
	for _, name := range slices.Sorted(maps.Keys(sim.maintenances)) {
		m := sim.maintenances[name]
		out := maintenance(name, m.minute, m.plan, slices.Sorted(maps.Keys(m.nodes))...)
		for _, node := range out.Nodes {
			n := sim.nodes[node]
			if !n.cordoned {
				out.Uncordoned = append(out.Uncordoned, node)
			}
			if before := m.status[n.ref()]; len(before) > 0 {
				out.Before[node] = before
			}
		}
		w.Maintenances = append(w.Maintenances, out)
	}
	return w
}

func (n *simNode) ref() simRef { return simRef{n.name, n.uid} }

// plan asks the planner, checks the answer and writes the statuses.
func (sim *simulation) plan() (Result, *violation) {
	w := sim.world()
	result, err := sim.planner(w)
	if err != nil {
		return Result{}, violated("no error", "%v", err)
	}
	for _, check := range []func(World, Result) *violation{
		sim.checkIndependence, sim.checkMinimality, sim.checkForm, sim.checkNoBacktracking, sim.checkOrder,
		sim.checkProgress, sim.checkMessages,
	} {
		if v := check(w, result); v != nil {
			return Result{}, v
		}
	}
	for i, m := range w.Maintenances {
		sim.write(i, sim.maintenances[m.Name], result)
	}
	if sim.crashed != nil {
		return result, nil
	}
	sim.asked = map[int]bool{}
	for _, n := range sim.nodes {
		for _, p := range n.pods {
			if result.Targets[n.name].Cover(p.Pod) {
				sim.asked[p.number] = true
			}
		}
	}
	return result, nil
}

// write stores the targets in the status, equal but not the same, as it is read back.
func (sim *simulation) write(i int, m *simMaintenance, result Result) {
	if sim.crashed != nil && sim.crashed.chance(i) {
		return
	}
	m.status = map[simRef]entries{}
	for node := range m.nodes {
		for _, e := range result.Targets[node].Entries {
			ref := sim.nodes[node].ref()
			m.status[ref] = append(m.status[ref], *e.DeepCopy())
		}
	}
}
