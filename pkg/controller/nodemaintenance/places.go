// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodemarks"
)

// noPlace is why a maintenance does not hold a node that as many others hold as may.
var noPlace = fmt.Sprintf("%s: %d other maintenances hold the node", maintenancev1alpha1.ReasonTooManyMaintenances, protocol.MaxHolders)

// places knows which nodes have no place for another maintenance. As the controller of nodes does,
// it has nodemarks.Choose decide among the maintenances that want to hold a node. The annotations
// of the node only tell which of them hold it although their requesters have lost the right to: if
// its kubelet erases them, no other maintenance gets a place. Only a node that more maintenances
// select than may hold it is read, once in a sync.
type places struct {
	c      *Controller
	byNode map[string]nodePlaces
}

type nodePlaces struct {
	chosen sets.Set[types.UID]
	full   bool
}

func newPlaces(c *Controller) *places { return &places{c: c, byNode: map[string]nodePlaces{}} }

// lacksOne reports whether a maintenance in stage Cordon or Drain does not hold a node because
// others have all places.
func (p *places) lacksOne(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, node *corev1.Node) bool {
	if p.c.selection.CountOn(node.Name) <= protocol.MaxHolders {
		return false
	}
	of, known := p.byNode[node.Name]
	if !known {
		of = p.of(ctx, node)
		p.byNode[node.Name] = of
	}
	return of.full && !of.chosen.Has(nm.UID)
}

func (p *places) of(ctx context.Context, node *corev1.Node) nodePlaces {
	holders := nodemarks.HoldersOf(node)
	selecting := p.c.holders.Which(node.Name, maintenancev1alpha1.IsHolding)
	chosen := nodemarks.Choose(node.Name, selecting, 0, func(nm *maintenancev1alpha1.NodeMaintenance) bool {
		return holders.Has(nm) || p.mayTake(ctx, nm, node)
	})
	uids := sets.New[types.UID]()
	for _, nm := range chosen {
		uids.Insert(nm.UID)
	}
	taken := len(chosen)
	if slices.ContainsFunc(chosen, func(nm *maintenancev1alpha1.NodeMaintenance) bool { return nodemarks.IsShutdownOf(node.Name, nm) }) {
		// One of them needs none.
		taken--
	}
	return nodePlaces{chosen: uids, full: taken >= protocol.MaxHolders}
}

// mayTake reports whether a maintenance may take a node that it does not hold.
func (p *places) mayTake(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, node *corev1.Node) bool {
	if nm.Status.NewestNodeTimestamp == nil || p.c.selection.TooLarge(nm) != nil {
		return false
	}
	answer := p.c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})[node.Name]
	return answer.Allowed && !answer.Stale
}
