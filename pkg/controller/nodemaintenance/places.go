// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodemarks"
)

// noPlace is why a maintenance does not hold a node that as many others hold as may.
var noPlace = fmt.Sprintf("%s: %d other maintenances hold the node", maintenancev1alpha1.ReasonTooManyMaintenances, protocol.MaxHolders)

// places knows which nodes have no place for another maintenance. The controller of nodes decides
// which maintenances hold a node, and its annotations name them. Annotations are parsed once for a
// sync, and only those of a node that more maintenances select than may hold it.
type places struct {
	c      *Controller
	byNode map[string]nodePlaces
}

type nodePlaces struct {
	holders nodemarks.Owners
	full    bool
}

func newPlaces(c *Controller) *places { return &places{c: c, byNode: map[string]nodePlaces{}} }

// lacksOne reports whether a maintenance in stage Cordon or Drain does not hold a node because
// others have all places. The shutdown of the node itself needs none.
func (p *places) lacksOne(nm *maintenancev1alpha1.NodeMaintenance, node *corev1.Node) bool {
	if p.c.selection.CountOn(node.Name) <= protocol.MaxHolders || nodemarks.IsShutdownOf(node.Name, nm) {
		return false
	}
	of, known := p.byNode[node.Name]
	if !known {
		of = p.of(node)
		p.byNode[node.Name] = of
	}
	return of.full && !of.holders.Has(nm)
}

func (p *places) of(node *corev1.Node) nodePlaces {
	holders, taken := nodemarks.HoldersOf(node), 0
	for name := range holders {
		if nm, err := p.c.get(name); err != nil || !nodemarks.IsShutdownOf(node.Name, nm) {
			taken++
		}
	}
	return nodePlaces{holders: holders, full: taken >= protocol.MaxHolders}
}
