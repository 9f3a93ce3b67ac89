// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/rollout/next"
)

// facts is what a sync of a rollout decides from.
type facts struct {
	// rollout is the rollout under its newest status, with its nodes and its attempts. Its status
	// is replaced by the new one before units start.
	rollout next.Rollout
	// cluster is the state of all nodes.
	cluster *next.Cluster
	// nodes are all nodes by name, and tasks all NodeTasks by node.
	nodes map[string]*corev1.Node
	tasks map[string]*v1alpha1.NodeTask
	// own are the maintenances of the rollout by name, and done the times at which the work on
	// nodes was done according to them, by UID.
	own  map[string]*v1alpha1.NodeMaintenance
	done map[types.UID]time.Time
	// foreign are the names of announced maintenances that do not belong to the rollout.
	foreign map[string]bool
	// starts are the last failed starts of units, by name.
	starts map[string]*failedStart
	// holders returns the maintenances that select a node.
	holders func(node string) []*v1alpha1.NodeMaintenance
	// selector and goal are the selector and the expression of the rollout.
	selector *nodeselector.Selector
	goal     *goal
	// asking is set if it is not known yet whether the requester may take further nodes. The answer
	// enqueues the rollout again.
	asking bool
	// unassigned is why the nodes of units are not offered: the requester may not assign workers.
	// It is "" if they may.
	unassigned string
	// broken is why doneWhen fails for a node, "" if it does not.
	broken string
	// failing is an error of this rollout that lasts, nil if there is none.
	failing *loop.Failure
	// wake is the time at which to decide again without an event; zero if at none.
	wake time.Time
	// started is the time since which this leader serves.
	started time.Time
}

// gather reads all facts about a rollout from the caches, and the maintenances of announced units
// that are not cached yet from the API.
func (c *Controller) gather(ctx context.Context, r *v1alpha1.NodeMaintenanceRollout) (*facts, error) {
	now := c.Clock.Now()
	nodes := c.nodesAt(now)
	f := &facts{
		rollout: next.Rollout{Object: r, FailedStarts: map[string]time.Time{}, Unsettled: map[string]v1alpha1.RolloutUnit{}},
		nodes:   nodes.byName, tasks: map[string]*v1alpha1.NodeTask{}, own: map[string]*v1alpha1.NodeMaintenance{}, foreign: map[string]bool{},
		holders: c.holdersOf, started: c.started, starts: c.failedStarts[r.Name],
	}
	for unit, failed := range f.starts {
		f.rollout.FailedStarts[unit] = failed.at
	}
	tasks := loop.All(c.Cluster.NodeTasks.Lister().List)
	for _, task := range tasks {
		f.tasks[task.Name] = task
	}
	if err := c.findOwn(ctx, f); err != nil {
		return nil, err
	}
	var err error
	if f.goal, err = c.goalOf(r); err != nil {
		return nil, err
	}
	if err := f.selectNodes(nodes.all); err != nil {
		return nil, err
	}
	f.goal.keepOnly(f.nodes)
	f.cluster = c.clusterOf(f, nodes.states, tasks, now)
	if r.Spec.Stage == v1alpha1.RolloutStageRoll {
		f.rollout.NotAuthorized = c.notAuthorized(ctx, f)
		f.rollout.Contradiction = sync.OnceValue(func() string { return c.contradiction(f) })
	}
	var wait time.Duration
	if f.failing, wait = c.problems.Of(r.Name); wait > 0 {
		f.wake = f.cluster.Now.Add(wait)
	}
	return f, nil
}

// maxNodesAge is the maximum age of the nodes that syncs share. What no event reports, such as the
// first seconds of a node that is not Ready, may be as old.
const maxNodesAge = 50 * time.Millisecond

// nodes are all nodes of the cluster, as the syncs of a round share them.
type nodes struct {
	all    []*corev1.Node
	byName map[string]*corev1.Node
	states *next.Nodes
	// at is the time at which they were read from the cache, and changes the number of changes that
	// had been seen before.
	at      time.Time
	changes int64
}

// nodesAt returns all nodes. A change of a node, or of the maintenances that hold it, enqueues
// rollouts after it is counted, so a sync that still uses the nodes before the change is repeated.
func (c *Controller) nodesAt(now time.Time) *nodes {
	changes := c.changes.Load()
	if c.nodes != nil && c.nodes.changes == changes && now.Sub(c.nodes.at) < maxNodesAge {
		return c.nodes
	}
	all := loop.All(c.Cluster.Nodes.Lister().List)
	n := &nodes{all: all, byName: make(map[string]*corev1.Node, len(all)), at: now, changes: changes}
	states := make([]next.Node, 0, len(all))
	for _, node := range all {
		n.byName[node.Name] = node
		states = append(states, next.NewNode(node, c.holdersOf(node.Name), now))
	}
	n.states = next.NewNodes(states)
	c.nodes = n
	return n
}

// attemptsOf returns the cached maintenances of a rollout, each in the newest known state.
func (c *Controller) attemptsOf(r *v1alpha1.NodeMaintenanceRollout) ([]*v1alpha1.NodeMaintenance, error) {
	keys, err := c.maintenances.IndexKeys(byRollout, string(r.UID))
	if err != nil {
		return nil, fmt.Errorf("list the maintenances of rollout %s from the cache: %w", r.Name, err)
	}
	slices.Sort(keys)
	attempts := make([]*v1alpha1.NodeMaintenance, 0, len(keys))
	for _, key := range keys {
		if nm, exists := c.created.Get(key); exists {
			attempts = append(attempts, nm)
		}
	}
	return attempts, nil
}

// findOwn finds the maintenances of the rollout. It reads those of status.current from the API that
// the cache does not have: they may have been created a moment ago, maybe by an earlier leader.
func (c *Controller) findOwn(ctx context.Context, f *facts) error {
	r := f.rollout.Object
	attempts, err := c.attemptsOf(r)
	if err != nil {
		return err
	}
	for _, nm := range attempts {
		f.own[nm.Name] = nm
	}
	for i := range r.Status.Current {
		name := r.Status.Current[i].Maintenance
		if f.own[name] != nil {
			continue
		}
		// The cache may have it by now.
		var err error
		nm, exists := c.created.Get(name)
		if !exists {
			nm, err = c.Cluster.Maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
		}
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read NodeMaintenance %s: %w", name, err)
		}
		if f.foreign[name] = !protocol.BelongsTo(nm, r.UID); !f.foreign[name] {
			f.own[name] = nm
			attempts = append(attempts, nm)
		}
	}
	f.rollout.Attempts, f.done = attempts, next.DoneBy(attempts)
	return nil
}

// selectNodes finds the nodes of the rollout and whether they need work.
func (f *facts) selectNodes(nodes []*corev1.Node) error {
	r := f.rollout.Object
	policy := v1alpha1.NewNodesPolicyIgnore
	if f.goal != nil {
		policy = v1alpha1.NewNodesPolicyJoin
	}
	selector, err := nodeselector.New(r.Spec.NodeSelector, r.Status.NewestNodeTimestamp, policy)
	if err != nil {
		return fmt.Errorf("node selector: %w", err)
	}
	// A node that was recreated during its work is newer than the rollout.
	f.selector = selector.Holding(func(name string) bool { return f.nodes[name] != nil && f.isDone(f.nodes[name]) })
	for _, node := range nodes {
		switch selected, ignored := f.selector.Decide(node); {
		case ignored:
			f.rollout.Members = append(f.rollout.Members, next.Member{Node: node.Name, Goal: next.TooNew})
			continue
		case !selected:
			continue
		}
		isDone := f.isDone(node)
		state, err := f.goal.of(node, isDone)
		if err != nil {
			// The order of the nodes is random: name the same one each time.
			if text := fmt.Sprintf("doneWhen fails for node %s: %v", node.Name, err); f.broken == "" || text < f.broken {
				f.broken = text
			}
		}
		f.rollout.Members = append(f.rollout.Members, next.Member{Node: node.Name, Goal: state, IsDone: isDone})
	}
	return nil
}

// isDone reports whether the work of the rollout on a node is done.
func (f *facts) isDone(node *corev1.Node) bool {
	_, isDone := f.done[node.UID]
	return isDone
}

// clusterOf returns the state of all nodes for the decisions of a rollout. The units of the rollout
// itself are not announced in it: some may leave the status first.
func (c *Controller) clusterOf(f *facts, nodes *next.Nodes, tasks []*v1alpha1.NodeTask, now time.Time) *next.Cluster {
	exists := func(name string) bool {
		_, exists := c.created.Get(name)
		return exists || f.own[name] != nil
	}
	others := slices.DeleteFunc(c.all(), func(r *v1alpha1.NodeMaintenanceRollout) bool { return r.UID == f.rollout.Object.UID })
	return next.NewCluster(next.Facts{
		Now: now, Nodes: nodes, Pods: func(node string) int { return c.podsOn(f.nodes[node]) }, Tasks: tasks, Rollouts: others, Exists: exists,
		MaxUnavailablePercent: c.MaxUnavailableNodes, ServerNode: c.ServerNode,
	})
}

// podsOn counts the pods that a drain of a node asks to leave, without those of DaemonSets and
// static ones, which are on each node.
func (c *Controller) podsOn(node *corev1.Node) int {
	count := 0
	c.Cluster.Pods.VisitOn(node.Name, func(pod *corev1.Pod) {
		if drainplan.IsLive(pod) && drainplan.TypeOf(pod, node.UID) == v1alpha1.PodTypeDefault {
			count++
		}
	})
	return count
}

// holdersOf returns the maintenances that select a node.
func (c *Controller) holdersOf(node string) []*v1alpha1.NodeMaintenance {
	var holders []*v1alpha1.NodeMaintenance
	for _, name := range c.Selection.MaintenancesOn(node) {
		if nm, exists := c.created.Get(name); exists {
			holders = append(holders, nm)
		}
	}
	return holders
}

// notAuthorized returns why the requester of a rollout may not take further nodes out of service;
// "" if they may, or if the answer is not there yet.
func (c *Controller) notAuthorized(ctx context.Context, f *facts) string {
	r := f.rollout.Object
	var due []*corev1.Node
	for _, m := range f.rollout.Members {
		if m.Goal != next.GoalMet && m.Goal != next.TooNew && !m.IsDone {
			due = append(due, f.nodes[m.Node])
		}
	}
	if len(due) == 0 {
		return ""
	}
	name, class := "", r.Spec.Template.Task.Worker
	if r.Spec.RequestedBy != nil {
		name = protocol.UserName(r.Spec.RequestedBy.Username)
	}
	switch answer := c.Rights.AskWorker(ctx, r.Spec.RequestedBy, class, due); {
	case errors.Is(answer.Err, rights.ErrAsking):
		f.asking = true
	case answer.Err != nil:
		f.unassigned = fmt.Sprintf("the server cannot find out whether user %q may assign workers %q: %v", name, class, answer.Err)
	case !answer.Allowed:
		f.unassigned = fmt.Sprintf("user %q may not assign workers %q", name, class)
	}
	if f.unassigned != "" {
		return f.unassigned
	}
	var refused, unknown []string
	var failed error
	for node, answer := range c.Rights.Ask(ctx, r.Spec.RequestedBy, due) {
		switch {
		case errors.Is(answer.Err, rights.ErrAsking):
			f.asking = true
		case answer.Err != nil:
			unknown, failed = append(unknown, node), answer.Err
		case !answer.Allowed:
			refused = append(refused, node)
		}
	}
	switch {
	case len(refused) > 0:
		return fmt.Sprintf("user %q may not maintain %d of the nodes: %s", name, len(refused), next.Names(refused))
	case len(unknown) > 0:
		return fmt.Sprintf("the server cannot find out whether user %q may maintain %s: %v", name, wording.Count(len(unknown), "node"), failed)
	}
	return ""
}

// contradiction returns which other rollout undoes what this one does, or the reverse; "" if none
// does. Both have to be held until a user stops one of them.
func (c *Controller) contradiction(f *facts) string {
	if len(f.done) == 0 {
		return ""
	}
	ours, first := &workOf{f.done, f.goal}, ""
	for _, other := range f.cluster.Rollouts {
		if other.Spec.Stage != v1alpha1.RolloutStageRoll {
			continue
		}
		attempts, err := c.attemptsOf(other)
		if err != nil {
			continue
		}
		goal, err := c.goalOf(other)
		if err != nil {
			continue
		}
		theirs := &workOf{next.DoneBy(attempts), goal}
		isComplete := meta.IsStatusConditionTrue(other.Status.Conditions, v1alpha1.ConditionComplete)
		for _, m := range f.rollout.Members {
			// A rollout that is complete holds no other one: that is how the next version of a
			// kernel is rolled out. It is held itself when new nodes join.
			if node := f.nodes[m.Node]; ours.undo(theirs, node) && !isComplete || theirs.undo(ours, node) {
				text := fmt.Sprintf("rollout %s wants the opposite for node %s; stop one of the two", other.Name, node.Name)
				if first == "" || text < first {
					first = text
				}
			}
		}
	}
	return first
}

// workOf is the work that a rollout in stage Roll has done: the times by the UID of the node, and
// its goal.
type workOf struct {
	done map[types.UID]time.Time
	goal *goal
}

// undo reports whether a rollout has undone the work of another one on a node: it was done later,
// and doneWhen of the other one is false again.
func (w *workOf) undo(other *workOf, node *corev1.Node) bool {
	at, isDone := w.done[node.UID]
	before, wasDone := other.done[node.UID]
	if !isDone || !wasDone || !at.After(before) {
		return false
	}
	state, _ := other.goal.of(node, true)
	return state == next.GoalUnmet
}
