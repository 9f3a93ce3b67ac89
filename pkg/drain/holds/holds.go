// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package holds decides which maintenances hold a node, drain it, and ask its pods to leave. The
// stages are defined in lifecycle.go of the API.
package holds

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
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

// LeavesAlone reports whether a maintenance that selects a node does not have it, as its status
// says: its requester may not maintain the node, or other maintenances take all places. A status of
// an earlier spec says nothing, nor does it as long as the Node names the maintenance.
func LeavesAlone(nm *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	entry := v1alpha1.NodeStatusOf(nm, v1alpha1.NodeReference{Name: node.Name, UID: node.UID})
	return entry != nil && v1alpha1.IsLeftAlone(entry) && nm.Status.ObservedGeneration == nm.Generation && !marks.Holds(node, nm)
}

// SameLeftAlone reports whether two states of a maintenance leave the same nodes alone.
func SameLeftAlone(a, b *v1alpha1.NodeMaintenance) bool {
	current := func(nm *v1alpha1.NodeMaintenance) bool { return nm.Status.ObservedGeneration == nm.Generation }
	return current(a) == current(b) && slices.EqualFunc(a.Status.NodeStatuses, b.Status.NodeStatuses, func(x, y v1alpha1.NodeMaintenanceNodeStatus) bool {
		return x.NodeRef == y.NodeRef && v1alpha1.IsLeftAlone(&x) == v1alpha1.IsLeftAlone(&y)
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

// Asks reports whether a maintenance asks a pod to leave its node at a time: the maintenance is not
// paused, drains the node, has targets that cover the pod, and its plan does not let the pod
// complete or keep it.
func Asks(nm *v1alpha1.NodeMaintenance, pod *corev1.Pod, node *corev1.Node, now time.Time) (bool, error) {
	if v1alpha1.IsPaused(nm) {
		return false, nil
	}
	return Covers(nm, pod, node, now)
}

// Covers does the same as Asks for a maintenance that may be paused.
func Covers(nm *v1alpha1.NodeMaintenance, pod *corev1.Pod, node *corev1.Node, now time.Time) (bool, error) {
	targets, err := plan.CompileTargets(Targets(nm, node))
	if err != nil {
		return false, fmt.Errorf("drain targets of maintenance %s for node %s: %w", nm.Name, node.Name, err)
	}
	planned := plan.PodOf(pod, node.UID)
	if !targets.Cover(planned) {
		return false, nil
	}
	rules, err := RulesOf(nm)
	return err == nil && rules.Of(planned, now).Behavior == v1alpha1.DrainBehaviorDrain, err
}

// RulesOf returns the rules of a maintenance for the pods of its nodes, nil if its plan has none.
func RulesOf(nm *v1alpha1.NodeMaintenance) (*plan.Rules, error) {
	rules, err := plan.RulesOf(nm.Spec.DrainPlan, v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageDrain))
	if err != nil {
		return nil, fmt.Errorf("maintenance %s: %w", nm.Name, err)
	}
	return rules, nil
}

// AskedBy returns the maintenance that asks a pod to leave its node at a time, or nil. All
// maintenances that drain a node and are not paused have the same targets for it, and one whose
// plan drains the pod is sufficient. AskedBy returns the oldest of these.
func AskedBy(pod *corev1.Pod, node *corev1.Node, maintenances []*v1alpha1.NodeMaintenance, now time.Time) (*v1alpha1.NodeMaintenance, error) {
	var failed error
	first := Oldest(maintenances, func(nm *v1alpha1.NodeMaintenance) bool {
		asks, err := Asks(nm, pod, node, now)
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
// and is paused, and no other maintenance asks the pod to leave at the given time. If several are
// paused, it is the oldest of them. maintenances are those that drain the node. A maintenance whose
// targets cannot be parsed asks no pod to leave.
func PausedBy(pod *corev1.Pod, node *corev1.Node, maintenances []*v1alpha1.NodeMaintenance, now time.Time) *v1alpha1.NodeMaintenance {
	paused := Oldest(maintenances, v1alpha1.IsPaused)
	if paused == nil {
		return nil
	}
	if asking, err := AskedBy(pod, node, maintenances, now); err == nil && asking != nil {
		return nil
	}
	return paused
}

// Stays reports whether the plans of all maintenances that drain a node let a pod complete or keep
// it, so that none of them asks it to leave at a time, whatever their targets are. It is false if
// there are none.
func Stays(pod *corev1.Pod, node *corev1.Node, draining []*v1alpha1.NodeMaintenance, now time.Time) bool {
	planned := plan.PodOf(pod, node.UID)
	return len(draining) > 0 && !slices.ContainsFunc(draining, func(nm *v1alpha1.NodeMaintenance) bool {
		rules, err := RulesOf(nm)
		return err != nil || rules.Of(planned, now).Behavior == v1alpha1.DrainBehaviorDrain
	})
}
