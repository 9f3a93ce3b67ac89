// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package holds decides which maintenances hold a node, drain it, and ask its pods to leave. The
// stages are defined in lifecycle.go of the API.
package holds

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/plan"
)

// Index returns maintenances by the nodes that they select.
type Index struct {
	// On returns the sorted names of the maintenances that select a node.
	On func(node string) []string
	// Get returns a maintenance. If it fails, the maintenance is ignored.
	Get func(name string) (*v1alpha1.NodeMaintenance, error)
}

// Which returns the maintenances that select a node and satisfy a condition, sorted by name.
func (i Index) Which(node string, matches func(*v1alpha1.NodeMaintenance) bool) []*v1alpha1.NodeMaintenance {
	var found []*v1alpha1.NodeMaintenance
	for _, name := range i.On(node) {
		if nm, err := i.Get(name); err == nil && matches(nm) {
			found = append(found, nm)
		}
	}
	return found
}

// Any reports whether a maintenance that selects a node satisfies a condition.
func (i Index) Any(node string, matches func(*v1alpha1.NodeMaintenance) bool) bool {
	return slices.ContainsFunc(i.On(node), func(name string) bool {
		nm, err := i.Get(name)
		return err == nil && matches(nm)
	})
}

// Stored returns the targets of a node in the status of a maintenance, regardless of its stage.
func Stored(nm *v1alpha1.NodeMaintenance, node *corev1.Node) []v1alpha1.DrainPlanEntry {
	if status := v1alpha1.NodeStatusOf(nm, v1alpha1.NodeReference{Name: node.Name, UID: node.UID}); status != nil {
		return status.DrainTargets
	}
	return nil
}

// Targets returns the targets with which a maintenance drains a node. There are none unless it is
// in stage Drain. A maintenance without targets asks no pod to leave, for example because its
// requester may not maintain the node.
func Targets(nm *v1alpha1.NodeMaintenance, node *corev1.Node) []v1alpha1.DrainPlanEntry {
	if !v1alpha1.IsDraining(nm) {
		return nil
	}
	return Stored(nm, node)
}

// Targeting returns a function that reports whether a maintenance has targets for a node.
func Targeting(node *corev1.Node) func(*v1alpha1.NodeMaintenance) bool {
	return func(nm *v1alpha1.NodeMaintenance) bool { return len(Targets(nm, node)) > 0 }
}

// Oldest returns the oldest maintenance that satisfies a condition, or nil.
func Oldest(maintenances []*v1alpha1.NodeMaintenance, matches func(*v1alpha1.NodeMaintenance) bool) *v1alpha1.NodeMaintenance {
	var oldest *v1alpha1.NodeMaintenance
	for _, nm := range maintenances {
		if matches(nm) && (oldest == nil || v1alpha1.CompareAge(nm, oldest) < 0) {
			oldest = nm
		}
	}
	return oldest
}

// Asks reports whether a maintenance asks a pod to leave its node now: the maintenance is not
// paused, drains the node and has targets that cover the pod.
func Asks(nm *v1alpha1.NodeMaintenance, pod *corev1.Pod, node *corev1.Node) (bool, error) {
	if v1alpha1.IsPaused(nm) {
		return false, nil
	}
	return Covers(nm, pod, node)
}

// Covers does the same as Asks for a maintenance that may be paused.
func Covers(nm *v1alpha1.NodeMaintenance, pod *corev1.Pod, node *corev1.Node) (bool, error) {
	targets, err := plan.CompileTargets(Targets(nm, node))
	if err != nil {
		return false, fmt.Errorf("drain targets of maintenance %s for node %s: %w", nm.Name, node.Name, err)
	}
	return targets.Cover(plan.PodOf(pod, node.UID)), nil
}

// AskedBy returns the maintenance that asks a pod to leave its node now, or nil. All maintenances
// that drain a node and are not paused have the same targets for it, so AskedBy returns the oldest
// of them.
func AskedBy(pod *corev1.Pod, node *corev1.Node, maintenances []*v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error) {
	var failed error
	first := Oldest(maintenances, func(nm *v1alpha1.NodeMaintenance) bool {
		asks, err := Asks(nm, pod, node)
		if err != nil {
			failed = err
		}
		return asks
	})
	if failed != nil {
		return nil, failed
	}
	return first, nil
}

// PausedBy returns the maintenance whose pause keeps a pod on its node, or nil: it drains the node
// and is paused, and no other maintenance asks the pod to leave now. If several are paused, it is
// the oldest of them. maintenances are those that drain the node. A maintenance whose targets
// cannot be parsed asks no pod to leave.
func PausedBy(pod *corev1.Pod, node *corev1.Node, maintenances []*v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	paused := Oldest(maintenances, v1alpha1.IsPaused)
	if paused == nil {
		return nil
	}
	if asking, err := AskedBy(pod, node, maintenances); err == nil && asking != nil {
		return nil
	}
	return paused
}
