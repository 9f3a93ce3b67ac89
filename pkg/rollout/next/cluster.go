// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/window"
)

// Nodes are the nodes of a cluster. Any number of decisions can share them: what only rollouts and
// their tasks show of a node is in the Cluster.
type Nodes struct {
	all    []Node
	byName map[string]*Node
	// out are the nodes that are out of service.
	out []*Node
}

// NewNodes returns the nodes of a cluster. It keeps the slice.
func NewNodes(all []Node) *Nodes {
	nodes := &Nodes{all: all, byName: make(map[string]*Node, len(all))}
	for i := range all {
		n := &all[i]
		nodes.byName[n.Name] = n
		if n.isOut() {
			nodes.out = append(nodes.out, n)
		}
	}
	return nodes
}

// Facts is what all rollouts of a cluster share.
type Facts struct {
	// Now is the time of the decision.
	Now time.Time
	// Nodes are all nodes of the cluster.
	Nodes *Nodes
	// Pods returns the number of pods that have to leave a node. Units with few pods start first.
	// Nil means none on each node.
	Pods func(node string) int
	// Tasks are all NodeTasks.
	Tasks []*v1alpha1.NodeTask
	// Rollouts are all rollouts, with the newest status that the caller has written or read.
	Rollouts []*v1alpha1.NodeMaintenanceRollout
	// Exists reports whether the caches have a NodeMaintenance.
	Exists func(name string) bool
	// MaxUnavailablePercent is the percentage of all nodes that may be out when a unit starts,
	// rounded down but at least one node.
	MaxUnavailablePercent int
	// ServerNode is the name of the node on which the server runs; "" if unknown. It is the last.
	ServerNode string
}

// Cluster is the state of a cluster for one decision.
type Cluster struct {
	Facts
	tasks map[string]*v1alpha1.NodeTask
	// taken is why nodes are out, or are about to be, and wait why no rollout takes them yet, as
	// NodeTasks, announcements and the decision show it, by name.
	taken, wait map[string]string
	// missing are the names of nodes that have a NodeTask, or that are announced, but that the
	// cluster does not have. They may return at any time, and keep their places.
	missing map[string]bool
	// renewed are the nodes with a NodeTask of an earlier Node of the same name: a worker has
	// installed them again, and their labels may not be complete.
	renewed map[string]bool
	// failed has the times of the last failure of the maintenances with a task that has failed, and
	// whose work has not been verified since.
	failed map[string]time.Time
}

// NewCluster returns the state of a cluster. It keeps the slices of the facts.
func NewCluster(facts Facts) *Cluster {
	c := &Cluster{
		Facts: facts, tasks: make(map[string]*v1alpha1.NodeTask, len(facts.Tasks)),
		taken: map[string]string{}, wait: map[string]string{}, missing: map[string]bool{}, renewed: map[string]bool{}, failed: map[string]time.Time{},
	}
	for _, task := range c.Tasks {
		c.tasks[task.Name] = task
		n, isOver := c.Nodes.byName[task.Name], task.Status.State == v1alpha1.NodeTaskDone
		if n != nil {
			c.take(task)
		}
		switch {
		case isOver:
		case n == nil:
			c.missing[task.Name] = true
		case task.Spec.NodeUID != n.UID:
			c.renewed[task.Name] = true
		}
		// A late result of work that has failed is verified with the reason of the failure.
		if state := task.Status.State; state == v1alpha1.NodeTaskFailed || state == v1alpha1.NodeTaskVerifying && task.Status.Reason != "" {
			of := task.Spec.Maintenance.Name
			c.failed[of] = window.Latest(c.failed[of], timeOf(task.Status.StateTime))
		}
	}
	for _, r := range c.Rollouts {
		c.Announce(r)
	}
	return c
}

func (c *Cluster) take(task *v1alpha1.NodeTask) {
	text := "has a NodeTask of NodeMaintenance " + task.Spec.Maintenance.Name
	c.taken[task.Name] = text
	if protocol.IsInHands(task.Status.State) {
		c.wait[task.Name] = text + " in state " + string(task.Status.State)
	}
}

// takenBy returns why a node is out, or is about to be, as objects of Haulout show it; "" if it is
// not.
func (c *Cluster) takenBy(n *Node) string { return cmp.Or(c.taken[n.Name], n.taken) }

// waitsFor returns why no rollout takes a node yet; "" if one may.
func (c *Cluster) waitsFor(n *Node) string { return cmp.Or(c.wait[n.Name], n.wait) }

// isOut reports whether a node counts as out.
func (c *Cluster) isOut(n *Node) bool { return n.isOut() || c.taken[n.Name] != "" }

// out returns the nodes that count as out.
func (c *Cluster) out() []*Node {
	out := slices.Clip(c.Nodes.out) // other decisions share it
	for name := range c.taken {
		if n := c.Nodes.byName[name]; !n.isOut() {
			out = append(out, n)
		}
	}
	return out
}

// Announce marks the nodes of status.current of a rollout. The controller no longer updates the
// status of a rollout that is being deleted: of its units only those count whose maintenances may
// not exist yet.
func (c *Cluster) Announce(r *v1alpha1.NodeMaintenanceRollout) {
	for i := range r.Status.Current {
		unit := &r.Status.Current[i]
		if r.DeletionTimestamp != nil && unit.Phase != v1alpha1.RolloutPhaseStarting {
			continue
		}
		text := "is in service for less than the soak time of rollout " + r.Name
		if unit.Phase != v1alpha1.RolloutPhaseSoaking {
			text = "was announced by rollout " + r.Name
		}
		exists := c.Exists(unit.Maintenance)
		for j := range unit.Nodes {
			name := unit.Nodes[j].Name
			if n := c.Nodes.byName[name]; n == nil && !exists {
				c.missing[name] = true
			} else if n != nil && c.takenBy(n) == "" {
				c.taken[name] = text
			}
		}
	}
}

// Agrees reports whether a live read of a node agrees with the decision. If it does not, the unit
// of the node does not start now: the caches lag behind. The caller compares selector and doneWhen.
func (c *Cluster) Agrees(live *Node) bool {
	n := c.Nodes.byName[live.Name]
	return n != nil && n.UID == live.UID && n.down == live.down && n.controlPlane == live.controlPlane && maps.Equal(n.Labels, live.Labels) &&
		(live.skip == "" || live.skip == n.skip) && (live.wait == "" || live.wait == c.waitsFor(n))
}
