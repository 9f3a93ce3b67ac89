// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"maps"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/window"
)

// Facts is what all rollouts of a cluster share.
type Facts struct {
	// Now is the time of the decision.
	Now time.Time
	// Nodes are all nodes of the cluster.
	Nodes []Node
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
	// ServerUser is the name of the server as a user. Pauses by others are named.
	ServerUser string
}

// Cluster is the state of the nodes of a cluster, for the decisions of all its rollouts.
type Cluster struct {
	Facts
	nodes map[string]*Node
	tasks map[string]*v1alpha1.NodeTask
	// missing are the names of nodes that have a NodeTask, or that are announced, but that the
	// cluster does not have. They may return at any time, and keep their places.
	missing map[string]bool
	// failed has the times of the last failure of the maintenances with a failed task.
	failed map[string]time.Time
}

// NewCluster returns the state of a cluster. It keeps the slices of the facts, and writes to the
// nodes.
func NewCluster(facts Facts) *Cluster {
	c := &Cluster{
		Facts: facts, nodes: make(map[string]*Node, len(facts.Nodes)), tasks: make(map[string]*v1alpha1.NodeTask, len(facts.Tasks)),
		missing: map[string]bool{}, failed: map[string]time.Time{},
	}
	for i := range c.Nodes {
		c.nodes[c.Nodes[i].Name] = &c.Nodes[i]
	}
	for _, task := range c.Tasks {
		c.tasks[task.Name] = task
		if n := c.nodes[task.Name]; n != nil {
			c.take(n, task)
		} else if task.Status.State != v1alpha1.NodeTaskDone {
			c.missing[task.Name] = true
		}
		if task.Status.State == v1alpha1.NodeTaskFailed {
			of := task.Spec.Maintenance.Name
			c.failed[of] = window.Latest(c.failed[of], timeOf(task.Status.StateTime))
		}
	}
	for _, r := range c.Rollouts {
		c.Announce(r)
	}
	return c
}

func (c *Cluster) take(n *Node, task *v1alpha1.NodeTask) {
	n.taken = fmt.Sprintf("has a NodeTask of NodeMaintenance %s", task.Spec.Maintenance.Name)
	if protocol.IsInHands(task.Status.State) {
		n.wait = fmt.Sprintf("%s in state %s", n.taken, task.Status.State)
	}
}

// Announce marks the nodes of status.current of a rollout. The caller calls it after each write of
// a status with further units, before it decides for another rollout. Nobody keeps the status of a
// rollout that is being deleted up to date: of its units only those count whose maintenances may
// not exist yet.
func (c *Cluster) Announce(r *v1alpha1.NodeMaintenanceRollout) {
	for i := range r.Status.Current {
		unit := &r.Status.Current[i]
		if r.DeletionTimestamp != nil && unit.Phase != v1alpha1.RolloutPhaseStarting {
			continue
		}
		text := fmt.Sprintf("is in service for less than the soak time of rollout %s", r.Name)
		if unit.Phase != v1alpha1.RolloutPhaseSoaking {
			text = fmt.Sprintf("was announced by rollout %s", r.Name)
		}
		exists := c.Exists(unit.Maintenance)
		for j := range unit.Nodes {
			name := unit.Nodes[j].Name
			if n := c.nodes[name]; n == nil && !exists {
				c.missing[name] = true
			} else if n != nil && n.taken == "" {
				n.taken = text
			}
		}
	}
}

// Agrees reports whether a live read of a node agrees with the decision. If it does not, the unit
// of the node does not start now: the caches lag behind. The caller compares selector and doneWhen.
func (c *Cluster) Agrees(live *Node) bool {
	n := c.nodes[live.Name]
	return n != nil && n.UID == live.UID && n.down == live.down && maps.Equal(n.Labels, live.Labels) &&
		(live.skip == "" || live.skip == n.skip) && (live.wait == "" || live.wait == n.wait)
}
