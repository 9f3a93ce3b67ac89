// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodemarks"
)

// supersede completes the maintenance of an earlier shutdown of a node once the machine has gone
// down for a later one that holds the node. A later one alone may be cancelled, and then the
// earlier one still keeps the node for the people who work on it. It reports whether it has done
// so.
func (c *Controller) supersede(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) (bool, error) {
	later := c.laterShutdown(nm)
	if later == nil {
		return false, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": nm.UID, "resourceVersion": nm.ResourceVersion},
		"spec":     map[string]any{"stage": maintenancev1alpha1.NodeMaintenanceStageComplete},
	})
	if err != nil {
		return false, err
	}
	_, err = c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Patch(ctx, nm.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("complete it, since %s is of a later shutdown: %w", later.Name, err)
	}
	c.maintenanceEvent(nm, corev1.EventTypeNormal, EventSuperseded, actionComplete,
		"Completed: the node has gone down since for the shutdown of NodeMaintenance %s", later.Name)
	return true, nil
}

// laterShutdown returns a maintenance of a later shutdown of the same node that holds the node and
// for which the machine has gone down, or nil. It has if the kernel has booted since, or if there
// is a shutdown of yet another boot after it.
func (c *Controller) laterShutdown(nm *maintenancev1alpha1.NodeMaintenance) *maintenancev1alpha1.NodeMaintenance {
	name := protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector)
	if name == "" {
		return nil
	}
	node, err := c.nodeLister.Get(name)
	if err != nil {
		return nil
	}
	later := c.holders.Which(name, func(m *maintenancev1alpha1.NodeMaintenance) bool {
		return maintenancev1alpha1.IsHolding(m) && nodemarks.IsShutdownOf(name, m) &&
			maintenancev1alpha1.CompareAge(nm, m) < 0 && nodemarks.Holds(node, m)
	})
	if len(later) == 0 {
		return nil
	}
	slices.SortFunc(later, maintenancev1alpha1.CompareAge)
	latest := later[len(later)-1]
	switch {
	case protocol.HasBootedSince(node.Status.NodeInfo.BootID, latest.Annotations[maintenancev1alpha1.AnnotationBootID]):
		return latest
	case len(later) > 1:
		return later[len(later)-2]
	}
	return nil
}
