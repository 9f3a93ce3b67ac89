// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"

	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
)

// FrozenPriorities are the priorities that every drain plan has for every pod type (KEP-4212, "Pod
// Selection"). Defaulting also runs on objects read from etcd, so the priorities must never change
// within v1alpha1: a stored plan would be decoded as a different plan.
func FrozenPriorities() []int32 {
	return []int32{HighestUserDefinablePriority, SystemClusterCritical, SystemNodeCritical, MaxPodPriority}
}

// SetDefaults_NodeMaintenanceSpec adds the twelve entries that every drain plan has. It does not
// change a plan whose order is invalid, so that the indexes in validation errors are those of the
// request.
func SetDefaults_NodeMaintenanceSpec(spec *NodeMaintenanceSpec) {
	for i := range spec.DrainPlan {
		if spec.DrainPlan[i].PodType == "" {
			spec.DrainPlan[i].PodType = PodTypeDefault
		}
	}
	keys := PlanKeys(spec.DrainPlan)
	if !planorder.Ordered(keys) {
		return
	}
	plan := spec.DrainPlan
	for _, podType := range []PodType{PodTypeDefault, PodTypeDaemonSet, PodTypeStatic} {
		for _, priority := range FrozenPriorities() {
			plan = insertEntry(plan, DrainPlanEntry{PodPriority: priority, PodType: podType})
		}
	}
	spec.DrainPlan = plan
}

// PlanKeys returns the sort keys of the entries of a plan.
func PlanKeys(plan []DrainPlanEntry) []planorder.Key {
	keys := make([]planorder.Key, len(plan))
	for i := range plan {
		keys[i] = plan[i].planKey()
	}
	return keys
}

func (e *DrainPlanEntry) planKey() planorder.Key {
	return planorder.Key{Type: string(e.PodType), Priority: e.PodPriority, Selector: e.PodSelector}
}

func insertEntry(plan []DrainPlanEntry, entry DrainPlanEntry) []DrainPlanEntry {
	for i := range plan {
		other := &plan[i]
		if other.PodType == entry.PodType && other.PodPriority == entry.PodPriority && planorder.SelectsAll(other.PodSelector) {
			return plan
		}
		if planorder.Before(entry.planKey(), other.planKey()) {
			return slices.Insert(plan, i, entry)
		}
	}
	return append(plan, entry)
}
