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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	"haulout.dev/haulout/pkg/identity"
)

// namedAtMost is the maximum number of maintenances that an error about a limit names.
const namedAtMost = 3

func isHeldStage(stage maintenance.NodeMaintenanceStage) bool {
	return stage == maintenance.NodeMaintenanceStageCordon || stage == maintenance.NodeMaintenanceStageDrain
}

// newShutdownOf returns the node whose shutdown a maintenance announces only after the write, or
// "".
func newShutdownOf(nm, old *maintenance.NodeMaintenance) string {
	if nm == nil {
		return ""
	}
	node := protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector)
	if old != nil && protocol.NodeOfShutdown(&old.ObjectMeta, old.Spec.NodeSelector) == node {
		return ""
	}
	return node
}

// validateShutdowns limits the number of stored maintenances that announce shutdowns of a node. It
// also counts the maintenances that another user has changed since, so that a node cannot fill the
// storage with them. Other users can create such a maintenance only for an existing node that they
// may maintain.
func (p *Plugin) validateShutdowns(a admission.Attributes, nm, old *maintenance.NodeMaintenance) error {
	node := newShutdownOf(nm, old)
	if node == "" {
		return nil
	}
	_, byNode := identity.NodeOf(a.GetUserInfo())
	if _, err := p.Nodes.Get(node); apierrors.IsNotFound(err) && !byNode {
		return admission.NewForbidden(a, fmt.Errorf("it announces a shutdown of node %q, which does not exist", node))
	}
	all, err := p.Maintenances.List(labels.Everything())
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	shutdowns := slices.DeleteFunc(slices.Clone(all), func(other *v1alpha1.NodeMaintenance) bool {
		return other.Name == nm.Name || protocol.NodeOfShutdown(&other.ObjectMeta, other.Spec.NodeSelector) != node
	})
	if len(shutdowns) < protocol.MaxShutdowns {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("%d NodeMaintenances announce shutdowns of node %q, at most %d are allowed, including completed ones: "+
		"delete those that are complete; the oldest are %s", len(shutdowns), node, protocol.MaxShutdowns, oldest(shutdowns)))
}

// validateHolders refuses a write after which too many maintenances would hold a node. The node's
// own shutdown may always hold it. If a maintenance selects a node because labels have changed, no
// write can be refused, and the controllers handle the limit.
func (p *Plugin) validateHolders(ctx context.Context, a admission.Attributes, nm *maintenance.NodeMaintenance, c *change) error {
	if !isHeldStage(nm.Spec.Stage) {
		return nil
	}
	ownShutdown := protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector)
	joining := slices.DeleteFunc(slices.Clone(c.selected), func(node *corev1.Node) bool {
		return c.held.Has(node.Name) || node.Name == ownShutdown
	})
	all, err := p.Maintenances.List(labels.Everything())
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	holding := slices.DeleteFunc(slices.Clone(all), func(other *v1alpha1.NodeMaintenance) bool {
		return other.Name == nm.Name || !v1alpha1.IsHolding(other)
	})
	if len(joining) == 0 || len(holding) < protocol.MaxHolders {
		return nil
	}
	holders := map[string][]*v1alpha1.NodeMaintenance{}
	among := byNameOf(joining)
	for _, other := range holding {
		names, err := selectedBy(ctx, other, among, v1alpha1.IsLeftAlone)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("nodes of maintenance %s: %w", other.Name, err))
		}
		for _, name := range names {
			if protocol.NodeOfShutdown(&other.ObjectMeta, other.Spec.NodeSelector) != name {
				holders[name] = append(holders[name], other)
			}
		}
	}
	for _, node := range joining {
		there := holders[node.Name]
		if n := len(there); n >= protocol.MaxHolders {
			return admission.NewForbidden(a, fmt.Errorf("%d NodeMaintenances hold node %q, at most %d may at the same time: "+
				"complete those that are no longer needed; the oldest are %s", n, node.Name, protocol.MaxHolders, oldest(there)))
		}
	}
	return nil
}

// isObserved reports whether a controller has observed the present selector and stage of a
// maintenance. Its status then has all of its nodes.
func isObserved(nm *v1alpha1.NodeMaintenance) bool {
	return nm.Status.ObservedGeneration == nm.Generation
}

// selectedBy returns the named nodes that another maintenance selects. It uses the status, which
// also lists nodes that are omitted from the drain. It parses the selector, which is expensive,
// only if no controller has observed it yet. It ignores annotations of nodes, which a kubelet may
// write.
func selectedBy(
	ctx context.Context, other *v1alpha1.NodeMaintenance, among map[string]*corev1.Node, leftOut func(*v1alpha1.NodeMaintenanceNodeStatus) bool,
) ([]string, error) {
	var names []string
	if isObserved(other) {
		for i := range other.Status.NodeStatuses {
			if status := &other.Status.NodeStatuses[i]; among[status.NodeRef.Name] != nil && !leftOut(status) {
				names = append(names, status.NodeRef.Name)
			}
		}
		return names, nil
	}
	selector, err := nodeselector.Of(other)
	if err != nil {
		return nil, err
	}
	selected, _, err := selector.Select(ctx, slices.Collect(maps.Values(among)))
	for _, node := range selected {
		names = append(names, node.Name)
	}
	return names, err
}

func byNameOf(nodes []*corev1.Node) map[string]*corev1.Node {
	byName := make(map[string]*corev1.Node, len(nodes))
	for _, node := range nodes {
		byName[node.Name] = node
	}
	return byName
}

// oldest returns the names of the oldest of the given maintenances.
func oldest(all []*v1alpha1.NodeMaintenance) string {
	var names []string
	for _, nm := range slices.SortedFunc(slices.Values(all), v1alpha1.CompareAge)[:min(namedAtMost, len(all))] {
		names = append(names, nm.Name)
	}
	return strings.Join(names, ", ")
}
