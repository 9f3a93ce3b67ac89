// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// AskedBy returns the maintenance that asks a pod to leave its node now: one that drains the node
// and has targets that cover the pod. All maintenances that drain a node have the same targets, so
// it returns the oldest one. Nil if there is none; targets from before a maintenance left stage
// Drain do not count.
func AskedBy(pod *corev1.Pod, node *corev1.Node, maintenances []*maintenancev1alpha1.NodeMaintenance) (*maintenancev1alpha1.NodeMaintenance, error) {
	var first *maintenancev1alpha1.NodeMaintenance
	planned := PodOf(pod, node.UID)
	for _, nm := range maintenances {
		if nm.Spec.Stage != maintenancev1alpha1.NodeMaintenanceStageDrain || nm.DeletionTimestamp != nil {
			continue
		}
		for i := range nm.Status.NodeStatuses {
			status := &nm.Status.NodeStatuses[i]
			if status.NodeRef.Name != node.Name || status.NodeRef.UID != node.UID {
				continue
			}
			targets, err := CompileTargets(status.DrainTargets)
			if err != nil {
				return nil, fmt.Errorf("drain targets of maintenance %s for node %s: %w", nm.Name, node.Name, err)
			}
			if targets.Cover(planned) && (first == nil || isOlder(nm, first)) {
				first = nm
			}
		}
	}
	return first, nil
}

func isOlder(a, b *maintenancev1alpha1.NodeMaintenance) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}
