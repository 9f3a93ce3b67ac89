// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// A world is a random cluster in which rollouts, users, workers and node agents act, through caches
// that lag behind and controllers that crash. Decide and EndOf decide in it; everything around them
// is a model. A step is a minute. A rule is something on which the safety or the progress of
// rollouts depends. Each can be switched off, by other inputs of the decisions or in the model
// around them.

// claimSteps, taskSteps and stallSteps are the deadlines of claims, of claimed tasks, and of
// drains.
const (
	claimSteps = 15
	taskSteps  = 12
	stallSteps = 25
)

var zones = []string{"z0", "z1", "z2"}

// simNode is a node.
type simNode struct {
	name, uid, pool, zone, rack string
	cp, ready, foreign, agent   bool
	// bare is true while a Node that a worker has registered again has none of its labels.
	bare    bool
	created int
	// moved is the step in which the label of its zone changed.
	moved     int
	boot, job int
	// pods and ds are true while pods, and those of DaemonSets, are on the node. Without ds the
	// node is not Ready.
	pods, ds bool
	// bad is the step since which the node is out for a reason that no rollout has, and unready the
	// one since which it is not Ready; -1 if it is not.
	bad, unready int
	// goal are the rollouts whose doneWhen is true, cordon the maintenances that hold the cordon.
	goal, cordon map[string]bool
	// stored is the object of the state.
	state  nodeState
	stored *corev1.Node
}

// nodeState is what may change in the object of a node.
type nodeState struct {
	status            corev1.ConditionStatus
	since             int
	cordoned, foreign bool
	bare              bool
	zone              string
}

func (n *simNode) isReady() bool { return n.ready && n.ds }

// record is the result of a task in the status of a maintenance.
type record struct {
	state v1alpha1.NodeTaskState
	uid   string
	at    int
}

// simMaintenance is a maintenance: of a rollout, a person's, or the shutdown of a node.
type simMaintenance struct {
	name, owner, unit string
	shutdown          bool
	nodes             []string
	created           int
	task              bool
	wait              bool
	paused            bool
	records           map[string]record
	// complete is the step in which it entered stage Complete, and ended the one in which all nodes
	// were released; -1 before. withdrawn and why are how it ended.
	complete, ended int
	withdrawn       string
	person, gone    bool
	// stored is the object of a maintenance that has ended, which does not change any more.
	stored *v1alpha1.NodeMaintenance
}

func (m *simMaintenance) drains() bool { return m.complete < 0 && !m.gone }

// simTask is a NodeTask.
type simTask struct {
	name, uid, maintenance, holder string
	state                          v1alpha1.NodeTaskState
	since, boot                    int
	result                         v1alpha1.NodeTaskResult
}

// simUnit is an entry of status.current.
type simUnit struct {
	maintenance string
	nodes       []v1alpha1.NodeReference
}

// simRollout is a rollout.
type simRollout struct {
	name, pools     string
	spec            v1alpha1.NodeMaintenanceRolloutSpec
	expr, wait      bool
	closed          bool
	holds           map[string]v1alpha1.RolloutHoldScope
	version         int
	soak, maxFailed int
	current         map[string]simUnit
}

func (r *simRollout) rolls() bool { return r.spec.Stage == v1alpha1.RolloutStageRoll }

func (r *simRollout) has(n *simNode) bool {
	return len(n.pool) == 1 && slices.Contains([]byte(r.pools), n.pool[0])
}

// view is the state that a cache has.
type view struct {
	now          int
	nodes        []*simNode
	maintenances []*simMaintenance
	tasks        []*simTask
	rollouts     []*simRollout
}

func find[T any](all []*T, is func(*T) bool) *T {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i]
	}
	return nil
}

func (v *view) node(name string) *simNode {
	return find(v.nodes, func(n *simNode) bool { return n.name == name })
}

func (v *view) maintenance(name string) *simMaintenance {
	return find(v.maintenances, func(m *simMaintenance) bool { return m.name == name })
}

func (v *view) task(name string) *simTask {
	return find(v.tasks, func(t *simTask) bool { return t.name == name })
}

func (v *view) rollout(name string) *simRollout {
	return find(v.rollouts, func(r *simRollout) bool { return r.name == name })
}

// snapshot returns a copy of the state.
func (v *view) snapshot() *view {
	s := &view{now: v.now}
	for _, n := range v.nodes {
		c := *n
		c.goal, c.cordon = maps.Clone(n.goal), maps.Clone(n.cordon)
		s.nodes = append(s.nodes, &c)
	}
	for _, m := range v.maintenances {
		c := *m
		if m.ended < 0 {
			c.records = maps.Clone(m.records)
		}
		s.maintenances = append(s.maintenances, &c)
	}
	for _, t := range v.tasks {
		c := *t
		s.tasks = append(s.tasks, &c)
	}
	for _, r := range v.rollouts {
		c := *r
		c.holds, c.current = maps.Clone(r.holds), maps.Clone(r.current)
		s.rollouts = append(s.rollouts, &c)
	}
	return s
}

// hands returns the task of a node that nobody may take back.
func (v *view) hands(name string) *simTask {
	if t := v.task(name); t != nil && t.state != v1alpha1.NodeTaskOffered {
		return t
	}
	return nil
}

// holding returns the maintenances that drain a node.
func (v *view) holding(name string) []*simMaintenance {
	var all []*simMaintenance
	for _, m := range v.maintenances {
		if m.drains() && slices.Contains(m.nodes, name) {
			all = append(all, m)
		}
	}
	return all
}

func (v *view) isRecorded(r *simRollout, n *simNode) bool {
	return slices.ContainsFunc(v.maintenances, func(m *simMaintenance) bool {
		rec, ok := m.records[n.name]
		return ok && m.owner == r.name && rec.state == v1alpha1.NodeTaskDone && rec.uid == n.uid
	})
}

// isFinished reports whether a node needs no work of a rollout.
func (v *view) isFinished(r *simRollout, n *simNode) bool {
	return r.expr && n.goal[r.name] || v.isRecorded(r, n)
}

// live returns the maintenances of a rollout that have not ended.
func (v *view) live(r *simRollout) []*simMaintenance {
	var all []*simMaintenance
	for _, m := range v.maintenances {
		if m.owner == r.name && !m.gone && m.ended < 0 {
			all = append(all, m)
		}
	}
	return all
}

// isOut reports whether a node is out, for whatever reason.
func (v *view) isOut(n *simNode) bool {
	return !n.isReady() || n.foreign || len(n.cordon) > 0 || len(v.holding(n.name)) > 0 || v.task(n.name) != nil || v.soaks(n.name)
}

func (v *view) soaks(name string) bool {
	return slices.ContainsFunc(v.maintenances, func(m *simMaintenance) bool {
		return m.isDone() && m.ended >= 0 && slices.Contains(m.nodes, name) && v.now-m.ended < v.rollout(m.owner).soak
	})
}

// isDone reports whether a maintenance of a rollout is complete because its work is done, on all
// nodes that are left. A user may have completed it in the last moment.
func (m *simMaintenance) isDone() bool {
	done, open := false, false
	for _, name := range m.nodes {
		state := m.records[name].state
		done = done || state == v1alpha1.NodeTaskDone
		open = open || state != v1alpha1.NodeTaskDone && state != v1alpha1.NodeTaskGone
	}
	isReleased := m.person && (open || !done)
	return m.owner != "" && m.complete >= 0 && (m.withdrawn == "" && !isReleased || m.withdrawn == WithdrawnDone)
}

// failed returns the units of a rollout that have failed.
func (v *view) failed(r *simRollout) map[string]bool {
	failed := map[string]bool{}
	for _, m := range v.maintenances {
		if m.owner != r.name || m.gone {
			continue
		}
		if m.ended >= 0 {
			if m.withdrawn == WithdrawnNoWorker {
				failed[m.unit] = true
			}
			continue
		}
		for _, t := range v.tasks {
			if t.maintenance == m.name && t.state == v1alpha1.NodeTaskFailed {
				failed[m.unit] = true
			}
		}
	}
	return failed
}

// world is the true state.
type world struct {
	view
	rng   *rand.Rand
	rules rules
	uids  int
	// last has the last node of each name, also if it no longer exists.
	last      map[string]*simNode
	percent   int
	starts    int
	works     int
	fault     string
	snapshots []*view
}

// rules are the rules that are switched off.
type rules map[string]bool

func (off rules) on(rule string) bool { return !off[rule] }

func (w *world) chance(p float64) bool { return w.rng.Float64() < p }

// between returns a random number, both ends included.
func (w *world) between(low, high int) int { return low + w.rng.IntN(high-low+1) }

func pick[T any](w *world, all []T) T { return all[w.rng.IntN(len(all))] }

func (w *world) failf(format string, args ...any) {
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, args...)
	}
}

func newWorld(seed uint64, off rules) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 32)), rules: off, last: map[string]*simNode{}, percent: 100}
	some := zones[:w.between(1, 3)]
	for i := range w.between(4, 14) {
		n := w.add(fmt.Sprintf("n%d", i), pick(w, []string{"a", "b"}), pick(w, some), fmt.Sprintf("r%d", i/2))
		n.cp = i%3 == 0 && i < 7 && w.chance(.7)
	}
	tight, racks := w.chance(.3), false // tight: rollouts compete for the same places
	for i := range w.between(1, 3) {
		r := w.addRollout(fmt.Sprintf("roll%d", i), tight)
		racks = racks || r.spec.UnitKey != ""
	}
	if !racks && w.chance(.3) {
		w.percent = 20
	}
	return w
}

func (w *world) add(name, pool, zone, rack string) *simNode {
	w.uids++
	n := &simNode{
		name: name, uid: fmt.Sprintf("u%d", w.uids), pool: pool, zone: zone, rack: rack, ready: true, pods: true, ds: true, bad: -1, unready: -1,
		created: w.now, moved: w.now - 4, agent: w.chance(.5), goal: map[string]bool{}, cordon: map[string]bool{},
	}
	w.nodes = append(w.nodes, n)
	w.last[name] = n
	return n
}

func (w *world) remove(n *simNode) {
	w.nodes = slices.DeleteFunc(w.nodes, func(other *simNode) bool { return other == n })
}

func (w *world) removeTask(t *simTask) {
	w.tasks = slices.DeleteFunc(w.tasks, func(other *simTask) bool { return other == t })
}

func (w *world) addRollout(name string, tight bool) *simRollout {
	r := &simRollout{
		name: name, pools: "ab", expr: w.chance(.6), wait: w.chance(.5), soak: pick(w, []int{0, 3}), maxFailed: pick(w, []int{0, 0, 1, 2}),
		holds: map[string]v1alpha1.RolloutHoldScope{}, current: map[string]simUnit{},
	}
	r.spec.Stage, r.spec.WhenClosed = v1alpha1.RolloutStageRoll, v1alpha1.RolloutClosedFinish
	if w.chance(.5) {
		r.spec.WhenClosed = v1alpha1.RolloutClosedWithdraw
	}
	least, most := 1, 4
	if tight {
		most = 2
	} else {
		r.pools = pick(w, []string{"a", "b", "ab"})
	}
	if w.chance(.33) {
		r.spec.UnitKey, least = "rack", 2 // a rack may be in two zones
	}
	r.spec.Limits = []v1alpha1.RolloutLimit{maxUnavailable(max(least, w.between(1, most)), "")}
	if w.chance(.4) {
		r.spec.Limits = append(r.spec.Limits, maxUnavailable(max(least, w.between(1, 2)), "zone"))
	}
	if w.chance(.4) {
		r.spec.Limits = append(r.spec.Limits, maxDomains(least, "zone"))
	}
	w.rollouts = append(w.rollouts, r)
	return r
}
