// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	"haulout.dev/haulout/pkg/host/rights"
)

// nodeSet is a set of nodes by name. The value is nil for a node that is in a status but not in the
// cluster.
type nodeSet map[string]*corev1.Node

type change struct {
	// all are the nodes of the cluster.
	all []*corev1.Node
	// selected are the nodes that the maintenance selects after the write, sorted by name.
	selected []*corev1.Node
	// leaving are the nodes that the write releases.
	leaving nodeSet
	// held are the names of the nodes that the maintenance holds before the write.
	held sets.Set[string]
	// pools are the pools in the status before the write, by the name of the node.
	pools map[string]string
	// untaken are the names of the nodes that the maintenance selects but has not taken, since its
	// requester may not maintain them or since they do not exist.
	untaken sets.Set[string]
}

// changeOf returns the effect of a write. It includes the nodes that stay selected, since a change
// of the plan or the stage affects them as well.
func (p *Plugin) changeOf(ctx context.Context, nm, old *maintenance.NodeMaintenance) (*change, error) {
	all, err := p.Nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	c := &change{all: all, leaving: nodeSet{}, held: sets.New[string](), pools: map[string]string{}, untaken: sets.New[string]()}
	if nm != nil && nm.Spec.Stage != maintenance.NodeMaintenanceStageComplete {
		if c.selected, err = selectNodes(ctx, nm, all); err != nil {
			return nil, err
		}
		slices.SortFunc(c.selected, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	}
	for _, m := range []*maintenance.NodeMaintenance{old, nm} {
		// In stage Complete, all nodes leave, even if the selector changes in the same write.
		if m == nil || m == nm && m.Spec.Stage != maintenance.NodeMaintenanceStageComplete {
			continue
		}
		var released []*corev1.Node
		if !isReleased(old) {
			if released, err = selectNodes(ctx, m, all); err != nil {
				return nil, err
			}
		}
		for i := range m.Status.NodeStatuses {
			c.leaving[m.Status.NodeStatuses[i].NodeRef.Name] = nil
		}
		for _, node := range released {
			c.leaving[node.Name] = node
		}
	}
	if old != nil && isHeldStage(old.Spec.Stage) {
		c.held = sets.KeySet(c.leaving)
	}
	for name, node := range c.leaving {
		if node == nil {
			if node, err := p.Nodes.Get(name); err == nil {
				c.leaving[name] = node
			}
		}
	}
	staying := nodeSet{}
	for _, node := range c.selected {
		delete(c.leaving, node.Name)
		staying[node.Name] = node
	}
	return c, c.readStatus(nm, old, staying)
}

// isReleased reports whether a maintenance has released all its nodes. Its status then names them,
// and nodes that its selector matches since then do not count.
func isReleased(nm *maintenance.NodeMaintenance) bool {
	return nm != nil && nm.Spec.Stage == maintenance.NodeMaintenanceStageComplete && !slices.Contains(nm.Finalizers, v1alpha1.FinalizerMaintenanceCompletion)
}

// readStatus reads from the status before a write which nodes the maintenance has taken, and
// through which pools. The pool of a node that was deleted does not count for a new node with the
// same name.
//
// A node that the maintenance has not taken is not released. Otherwise one node that gets a label
// of the selector would keep the users from ending their maintenance. It also does not matter for a
// write that sends no maintenance to nodes, such as a pause.
func (c *change) readStatus(nm, old *maintenance.NodeMaintenance, staying nodeSet) error {
	if old == nil {
		return nil
	}
	before := &v1alpha1.NodeMaintenance{}
	if err := v1alpha1.Convert_maintenance_NodeMaintenance_To_v1alpha1_NodeMaintenance(old, before, nil); err != nil {
		return err
	}
	for i := range before.Status.NodeStatuses {
		status := &before.Status.NodeStatuses[i]
		name := status.NodeRef.Name
		node, leaves := c.leaving[name]
		if pool := v1alpha1.PoolOf(before, status); leaves && pool != "" && (node == nil || node.UID == status.NodeRef.UID) {
			c.pools[name] = pool
		}
		if !leaves {
			node = staying[name]
		}
		if (leaves || !sendsToNodes(nm, old)) && marks.IsUntaken(node, before, status) {
			c.untaken.Insert(name)
		}
	}
	return nil
}

func selectNodes(ctx context.Context, nm *maintenance.NodeMaintenance, all []*corev1.Node) ([]*corev1.Node, error) {
	selector, err := nodeselector.New(nm.Spec.NodeSelector, nm.Status.NewestNodeTimestamp, v1alpha1.NewNodesPolicy(nm.Spec.NewNodes))
	if err != nil {
		return nil, fmt.Errorf("parse the node selector: %w", err)
	}
	held := make(map[string]bool, len(nm.Status.NodeStatuses))
	for i := range nm.Status.NodeStatuses {
		held[nm.Status.NodeStatuses[i].NodeRef.Name] = true
	}
	nodes, _, err := selector.Holding(func(name string) bool { return held[name] }).Select(ctx, all)
	return nodes, err
}

// toCheck returns the nodes that leave, sorted, so that a repeated request checks the same nodes,
// and the nodes that stay or join. It omits the nodes that the maintenance has not taken. To
// release a node, the right to the pool through which the maintenance has taken it is sufficient:
// otherwise users could not end their maintenance after another user has changed the labels of a
// node.
func (c *change) toCheck(rules rights.Rules) (leaving, joining rights.Nodes) {
	for _, name := range slices.Sorted(maps.Keys(c.leaving)) {
		if c.untaken.Has(name) {
			continue
		}
		leaving.Add(rules, name, c.leaving[name], c.pools[name])
	}
	for _, node := range c.selected {
		if !c.untaken.Has(node.Name) {
			joining.Add(rules, node.Name, node)
		}
	}
	return leaving, joining
}

// authorize refuses the write if the user is not allowed to maintain its nodes, or to have them
// offered to the workers of its task. It returns the pools through which the user is allowed to
// maintain nodes, by the name of the node.
func (p *Plugin) authorize(ctx context.Context, a admission.Attributes, nm, old *maintenance.NodeMaintenance, c *change) (map[string]string, error) {
	checker := p.Checker("so the user may neither put them under maintenance nor release them")
	leaving, joining := c.toCheck(p.Rules)
	pools, err := checker.Check(ctx, a, leaving, joining)
	if err == nil && sendsToNodes(nm, old) && nm.Spec.Task != nil {
		err = checker.CheckWorker(ctx, a, nm.Spec.Task.Worker)
	}
	return pools, err
}
