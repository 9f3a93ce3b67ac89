// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	"haulout.dev/haulout/pkg/host/rights"
)

const (
	// askAtMost is the maximum number of joining nodes for which a request checks the rights. The
	// controller checks the other nodes before it changes them.
	askAtMost = 500
	// refusalsAtMost is the number of refused nodes after which the checks stop. An error names at
	// most this number of nodes.
	refusalsAtMost = 10
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
}

// changeOf returns the effect of a write. It includes the nodes that stay selected, since a change
// of the plan or the stage affects them as well.
func (p *Plugin) changeOf(ctx context.Context, nm, old *maintenance.NodeMaintenance) (*change, error) {
	all, err := p.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	c := &change{all: all, leaving: nodeSet{}, held: sets.New[string]()}
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
		released, err := selectNodes(ctx, m, all)
		if err != nil {
			return nil, err
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
			if node, err := p.nodes.Get(name); err == nil {
				c.leaving[name] = node
			}
		}
	}
	for _, node := range c.selected {
		delete(c.leaving, node.Name)
	}
	return c, nil
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

// inOrder returns the nodes sorted, so that a repeated request checks the same nodes.
func (s nodeSet) inOrder() rights.Nodes {
	var nodes rights.Nodes
	for name, node := range s {
		nodes = appendNode(nodes, name, node)
	}
	slices.Sort(nodes.ControlPlane)
	slices.Sort(nodes.Others)
	return nodes
}

func appendNode(nodes rights.Nodes, name string, node *corev1.Node) rights.Nodes {
	if protocol.IsControlPlane(node) {
		nodes.ControlPlane = append(nodes.ControlPlane, name)
	} else {
		nodes.Others = append(nodes.Others, name)
	}
	return nodes
}

// authorize refuses the write if the user is not allowed to delete its nodes. It has no cache of
// its own: if a conflict repeats the request, the delegated authorizer uses its cache.
func (p *Plugin) authorize(ctx context.Context, a admission.Attributes, c *change) error {
	var joining rights.Nodes
	for _, node := range c.selected {
		joining = appendNode(joining, node.Name, node)
	}
	q := rights.Questioner{
		Authorizer: p.authorizer, User: a.GetUserInfo(), EveryByName: p.config.AskEveryNodeByName, AtMost: askAtMost, RefusalsAtMost: refusalsAtMost,
	}
	asking, cancel := withTimeToAnswer(ctx)
	defer cancel()
	verdict, err := q.AskChange(asking, c.leaving.inOrder(), joining)
	switch {
	case len(verdict.Refused) > 0:
		return admission.NewForbidden(a, fmt.Errorf("user %q may not delete %s, so the user may neither put them under maintenance nor release them",
			a.GetUserInfo().GetName(), describeRefused(asking, q, verdict)))
	case errors.Is(err, context.DeadlineExceeded) && len(c.leaving) > 0:
		return admission.NewForbidden(a, fmt.Errorf("the authorizer did not answer in time whether user %q may delete each of the %d nodes to release; "+
			"release the nodes in steps, by narrowing spec.nodeSelector", a.GetUserInfo().GetName(), len(c.leaving)))
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	return nil
}

// withTimeToAnswer returns a context that ends shortly before the request does, so that time for a
// response is left.
func withTimeToAnswer(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)*4/5)
}

// describeRefused names the refused nodes that the user may read, and counts the other refused
// nodes. A selector matches labels, so the name of a matching node would reveal its labels to a
// user who may not read the node.
func describeRefused(ctx context.Context, q rights.Questioner, verdict rights.Verdict) string {
	var names []string
	for _, name := range verdict.Refused {
		if q.MayGet(ctx, name) {
			names = append(names, name)
		}
	}
	count := fmt.Sprintf("%d of the nodes", len(verdict.Refused))
	if verdict.More {
		count = fmt.Sprintf("at least %d of the nodes", len(verdict.Refused))
	}
	switch hidden := len(verdict.Refused) - len(names); {
	case len(names) == 0:
		return count
	case hidden > 0:
		return fmt.Sprintf("%s (%s and %d that the user may not get)", count, strings.Join(names, ", "), hidden)
	}
	return fmt.Sprintf("%s (%s)", count, strings.Join(names, ", "))
}
