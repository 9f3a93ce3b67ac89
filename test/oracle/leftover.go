// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// ourPrefix starts the names of what Haulout writes on nodes.
const ourPrefix = "maintenance.haulout.dev/"

// nodeConditions are the conditions about maintenances (KEP-4212, "Node Conditions").
var nodeConditions = sets.New[corev1.NodeConditionType]("MaintenancePlanned", "MaintenanceInProgress",
	"DrainInProgress", "Drained")

// NotPutBack describes what maintenances have left behind on nodes, given the names of the nodes
// that a user had cordoned.
func (h *History) NotPutBack(cordoned ...string) []string {
	var found []string
	for _, n := range h.nodes {
		if n.gone.at == never {
			found = append(found, LeftOn(n.last, slices.Contains(cordoned, n.last.Name))...)
		}
	}
	slices.Sort(found)
	return found
}

// LeftOn describes what maintenances have left behind on a node that is in none; cordoned is
// whether a user has cordoned it.
func LeftOn(node *corev1.Node, cordoned bool) []string {
	var found []string
	switch {
	case node.Spec.Unschedulable && !cordoned:
		found = append(found, fmt.Sprintf("node %s is not schedulable", node.Name))
	case !node.Spec.Unschedulable && cordoned:
		found = append(found, fmt.Sprintf("node %s is schedulable, although another user had cordoned it", node.Name))
	}
	for name := range node.Annotations {
		if strings.HasPrefix(name, ourPrefix) {
			found = append(found, fmt.Sprintf("node %s has the annotation %s", node.Name, name))
		}
	}
	for _, taint := range node.Spec.Taints {
		if strings.HasPrefix(taint.Key, ourPrefix) {
			found = append(found, fmt.Sprintf("node %s has the taint %s", node.Name, taint.Key))
		}
	}
	for _, condition := range node.Status.Conditions {
		if nodeConditions.Has(condition.Type) && condition.Status == corev1.ConditionTrue {
			found = append(found, fmt.Sprintf("node %s has the condition %s", node.Name, condition.Type))
		}
	}
	return found
}

// LeftOver describes the Evacuations that are still there.
func (h *History) LeftOver() []string {
	var found []string
	for _, e := range h.evacuations {
		if !e.gone {
			found = append(
				found,
				fmt.Sprintf("Evacuation %s/%s is still there: finalizers %v, deleted %t, conditions %v",
					e.Namespace, e.Name, e.Finalizers, e.DeletionTimestamp != nil, e.Status.Conditions),
			)
		}
	}
	slices.Sort(found)
	return found
}
