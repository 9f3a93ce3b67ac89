// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

// nodesByName is the maximum number of nodes that are read one by one. More nodes are listed.
const nodesByName = 50

// seeNodes returns the nodes of a maintenance that are among the uncordoned nodes, and the nodes
// that the requester may not delete. The Node and the preview have fields for that; the status of a
// maintenance has only messages, which are for people and may be omitted.
func seeNodes(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, uncordoned sets.Set[string]) show.NodesSeen {
	if !v1alpha1.IsHolding(nm) {
		return show.NodesSeen{}
	}
	seen := show.NodesSeen{Uncordoned: sets.List(show.Nodes(nm).Intersection(uncordoned))}
	drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	if len(seen.Uncordoned) > 0 || drained != nil && drained.Reason == v1alpha1.ReasonNotAuthorized {
		seen.Refused = refused(ctx, c, nm.Name)
	}
	return seen
}

// uncordonedNodes returns which of the nodes that maintenances hold are schedulable. All
// maintenances are read together, so that many of them do not cost a request for each of their
// nodes.
func uncordonedNodes(ctx context.Context, c clients, maintenances ...v1alpha1.NodeMaintenance) (sets.Set[string], error) {
	names, found := sets.New[string](), sets.New[string]()
	for i := range maintenances {
		if v1alpha1.IsHolding(&maintenances[i]) {
			names = names.Union(show.Nodes(&maintenances[i]))
		}
	}
	if len(names) > nodesByName {
		schedulable := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.unschedulable", "false").String()}
		err := eachNode(ctx, c, schedulable, func(node *corev1.Node) {
			if names.Has(node.Name) && !node.Spec.Unschedulable {
				found.Insert(node.Name)
			}
		})
		return found, err
	}
	for _, name := range sets.List(names) {
		node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return found, err
		case !node.Spec.Unschedulable:
			found.Insert(name)
		}
	}
	return found, nil
}

// previewTimeout limits a request for a preview that is only supplementary.
const previewTimeout = 5 * time.Second

// refused returns the nodes of a maintenance that the requester may not delete, as the preview
// reports them; none without a preview.
func refused(ctx context.Context, c clients, name string) []string {
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	preview, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().GetPreview(ctx, name, metav1.GetOptions{})
	if err != nil || preview.NodesRefused == 0 {
		return nil
	}
	var names []string
	for i := range preview.Nodes {
		if preview.Nodes[i].Refused {
			names = append(names, preview.Nodes[i].Name)
		}
	}
	return names
}
