// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// NoneFits returns why the first unit of the nodes of a rollout can never start, if no unit of them
// can: each is too large, or larger than a limit of the rollout allows. It is "" if a unit fits.
func NoneFits(r *v1alpha1.NodeMaintenanceRollout, nodes []*corev1.Node) string {
	rollout, all := &Rollout{Object: r}, make([]Node, 0, len(nodes))
	for _, node := range nodes {
		all = append(all, Node{Name: node.Name, UID: node.UID, Labels: node.Labels, controlPlane: protocol.RunsControlPlane(node)})
		rollout.Members = append(rollout.Members, Member{Node: node.Name})
	}
	d := newDecider(NewCluster(Facts{MaxUnavailablePercent: 100, Nodes: NewNodes(all)}), rollout)
	d.group()
	d.readLimits()
	var first *Unit
	for _, u := range d.units {
		if d.skips(u) == "" {
			return ""
		}
		if first == nil || cmp.Or(cmp.Compare(len(u.Nodes), len(first.Nodes)), strings.Compare(u.Name, first.Name)) < 0 {
			first = u
		}
	}
	if first == nil {
		return ""
	}
	return "unit " + first.Name + ": " + d.skips(first)
}
