// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// planner is Plan, or a planner with a fault that the checks of the properties must find.
type planner func(World) (Result, error)

// violation is a property that a result lacks.
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
	// shown is the Node that the planner received last. It is nil after a change.
	shown *Node
}

// simMaintenance is a maintenance in stage Drain with its status.
type simMaintenance struct {
	name   string
	minute int
	plan   entries
	nodes  map[string]bool
	// status contains the targets by node and UID.
	status map[simRef]entries
	// rules has the compiled plan.
	rules *progress
	// opened has, by node, the highest frontier of the maintenance's own plan. reported has the
	// nodes for which a result reported that the planner followed another maintenance.
	opened   map[simRef]int
	reported map[simRef]bool
}

type simRef struct {
	node string
	uid  int
}

// simulation is the state of a running script.
type simulation struct {
	planner      planner
	nodes        map[string]*simNode
	maintenances map[string]*simMaintenance
	uids         int
	// targets has the numbers of the pods that were targets when the statuses were last written.
	targets map[int]bool
	// crashed is set in a step in which the leader fails. The leader then writes only some of the
	// statuses, and no pod leaves because of the new targets.
	crashed *step
	salt    uint64
}

// run runs a script, checks every result, and drains all nodes at the end.
func run(s script, p planner) (v *violation) {
	defer func() {
		if r := recover(); r != nil {
			v = violated("no panic", "%v\n%s", r, debug.Stack())
		}
	}()
	sim := &simulation{
		planner: p, nodes: map[string]*simNode{}, maintenances: map[string]*simMaintenance{}, targets: map[int]bool{},
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

// cordon cordons some of the selected nodes.
func (sim *simulation) cordon(s step) {
	for _, m := range sim.maintenances {
		for node := range m.nodes {
			if n := sim.nodes[node]; s.chance(n.uid) {
				n.cordoned = true
			}
		}
	}
}

// drain removes targets until all maintenances are finished.
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
			v.message = fmt.Sprintf("in round %d of the final drain: %s", round, v.message)
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
			return violated("progress", "not finished after %d rounds", rounds)
		}
		sim.leave(func(numberedPod) bool { return true }, slow)
	}
}

// leave removes the targets for which chosen returns true. If one is set, it removes only the first
// of them.
func (sim *simulation) leave(chosen func(numberedPod) bool, one bool) {
	for _, name := range slices.Sorted(maps.Keys(sim.nodes)) {
		n := sim.nodes[name]
		left := slices.DeleteFunc(slices.Clone(n.pods),
			func(p numberedPod) bool { return sim.targets[p.number] && chosen(p) })
		if one && len(left) < len(n.pods) {
			i := slices.IndexFunc(n.pods, func(p numberedPod) bool { return sim.targets[p.number] })
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

// do applies a step.
func (sim *simulation) do(s step) {
	n, m := sim.nodes[s.node], sim.maintenances[s.maintenance]
	switch s.do {
	case nodeIsCreated:
		if n == nil {
			sim.create(s)
		}
	case nodeIsRecreated:
		if n != nil {
			sim.create(s)
		}
	case nodeIsDeleted:
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
	case podsAreCreated:
		if n != nil {
			n.become(slices.Concat(n.pods, s.pods))
		}
	case podIsDeleted, podIsRelabelled:
		sim.change(s)
	case maintenanceStarts:
		sim.start(s)
	case maintenanceEnds:
		delete(sim.maintenances, s.maintenance)
	case targetsLeave:
		sim.leave(func(p numberedPod) bool { return s.chance(p.number) }, false)
	case leaderFails:
		sim.crashed = &s
	}
}

func (sim *simulation) create(s step) {
	sim.uids++
	sim.nodes[s.node] = &simNode{name: s.node, uid: sim.uids, pods: s.pods, cordoned: !s.chance(0)}
}

func (sim *simulation) start(s step) {
	m := &simMaintenance{
		name: s.maintenance, minute: s.minute, plan: completed(s.plan), nodes: map[string]bool{},
		status: map[simRef]entries{}, opened: map[simRef]int{}, reported: map[simRef]bool{}, rules: &progress{},
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

// release makes the maintenance release a node. If it selects the node again, it is a new node.
func (m *simMaintenance) release(node string) {
	delete(m.nodes, node)
	maps.DeleteFunc(m.status, func(r simRef, _ entries) bool { return r.node == node })
	maps.DeleteFunc(m.opened, func(r simRef, _ int) bool { return r.node == node })
	maps.DeleteFunc(m.reported, func(r simRef, _ bool) bool { return r.node == node })
}

func (sim *simulation) change(s step) {
	for _, n := range sim.nodes {
		i := slices.IndexFunc(n.pods, func(p numberedPod) bool { return p.number == s.pods[0].number })
		if i < 0 {
			continue
		}
		n.pods, n.shown = slices.Clone(n.pods), nil
		if s.do == podIsDeleted {
			n.pods = slices.Delete(n.pods, i, i+1)
			return
		}
		n.pods[i].Labels = s.pods[0].Labels
		delete(sim.targets, n.pods[i].number)
	}
}

// world returns the input of the planner. For an unchanged node it returns the same pointer as
// before.
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

// plan calls the planner, checks the result and writes the statuses.
func (sim *simulation) plan() (Result, *violation) {
	w := sim.world()
	result, err := sim.planner(w)
	if err != nil {
		return Result{}, violated("no error", "%v", err)
	}
	for _, check := range []func(World, Result) *violation{
		sim.checkIndependence, sim.checkMinimality, sim.checkForm, sim.checkNoBacktracking, sim.checkOrder,
		sim.checkProgress, sim.checkMessages, sim.checkSubject,
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
	sim.targets = map[int]bool{}
	for _, n := range sim.nodes {
		for _, p := range n.pods {
			if result.Targets[n.name].Cover(p.Pod) {
				sim.targets[p.number] = true
			}
		}
	}
	return result, nil
}

// write stores the targets in the status. The controller would read them back from the API server.
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

type entries = []v1alpha1.DrainPlanEntry

const (
	typeDefault   = v1alpha1.PodTypeDefault
	typeDaemonSet = v1alpha1.PodTypeDaemonSet
	typeStatic    = v1alpha1.PodTypeStatic
	maxPriority   = v1alpha1.MaxPodPriority
)

func entry(t v1alpha1.PodType, priority int32) v1alpha1.DrainPlanEntry {
	return v1alpha1.DrainPlanEntry{PodType: t, PodPriority: priority}
}

func entryFor(t v1alpha1.PodType, priority int32, app string) v1alpha1.DrainPlanEntry {
	e := entry(t, priority)
	e.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	return e
}

func pod(t v1alpha1.PodType, priority int32) Pod { return Pod{Type: t, Priority: priority} }

func podOf(app string, t v1alpha1.PodType, priority int32) Pod {
	return Pod{Type: t, Priority: priority, Labels: labels.Set{"app": app}}
}

func node(name string, pods ...Pod) *Node { return &Node{Name: name, Pods: pods} }

// maintenance returns a Maintenance that was created at the given minute.
func maintenance(name string, minute int, plan entries, nodes ...string) Maintenance {
	return Maintenance{
		Name: name, Created: time.Date(2026, 11, 1, 0, minute, 0, 0, time.UTC), Plan: plan, Nodes: nodes,
		Before: map[string]entries{},
	}
}

func (m Maintenance) before(node string, targets ...v1alpha1.DrainPlanEntry) Maintenance {
	m.Before[node] = targets
	return m
}

func (m Maintenance) uncordoned(nodes ...string) Maintenance {
	m.Uncordoned = nodes
	return m
}

// defaultPlan returns the plan to which the API server defaults an empty plan.
func defaultPlan() entries {
	spec := v1alpha1.NodeMaintenanceSpec{}
	v1alpha1.SetDefaults_NodeMaintenanceSpec(&spec)
	return spec.DrainPlan
}

var (
	worlds = flag.Int("worlds", usualWorlds(), "number of random worlds that TestRandomWorlds checks")
	seed   = flag.Uint64("seed", 0, "first seed of TestRandomWorlds; 0 for the current time")
)

// usualWorlds returns a number of worlds that takes a few seconds. With the race detector these
// would take a minute, and the planner has no concurrency that the detector could check.
func usualWorlds() int {
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 300
	}
	return 3000
}

// newPlan returns the planner under test.
func newPlan() planner { return Plan }

// TestRandomWorlds drains random nodes for random maintenances while pods, nodes, maintenances and
// leaders change, and checks every result. For a world that fails it prints the smallest script
// that still fails.
func TestRandomWorlds(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	// Each part checks every fourth seed, in parallel with the other parts.
	const parts = 4
	for part := range uint64(parts) {
		t.Run(fmt.Sprintf("part %d", part+1), func(t *testing.T) {
			t.Parallel()
			for i := part; i < uint64(*worlds) && !t.Failed(); i += parts {
				s := writeScript(rand.New(rand.NewPCG(first+i, 0)))
				if v := run(s, Plan); v != nil {
					small, v := shrink(s, v, newPlan)
					t.Errorf("seed %d fails (alone: -seed %d -worlds 1). The smallest script that fails:\n%s%v",
						first+i, first+i, small, v)
				}
			}
		})
	}
}
