// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// ValidateNodeMaintenanceStatusUpdate validates a change of a NodeMaintenance through its status
// subresource.
func ValidateNodeMaintenanceStatusUpdate(nm, old *maintenance.NodeMaintenance) field.ErrorList {
	path := field.NewPath("status")
	errs := validateStageStatuses(nm.Status.StageStatuses, old.Status.StageStatuses, path.Child("stageStatuses"))
	errs = append(errs, validateNodeStatuses(nm, old.Status.NodeStatuses, path.Child("nodeStatuses"))...)
	errs = append(errs, validatePools(&nm.Status, path)...)
	errs = append(errs, validateTimes(&nm.Status, &old.Status, path)...)
	errs = append(errs, validateWaves(nm, path.Child("waves"))...)
	return append(errs, validateConditions(nm.Status.Conditions, path.Child("conditions"))...)
}

// validateTimes checks that the timestamps on which later decisions depend do not change.
func validateTimes(status, old *maintenance.NodeMaintenanceStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if newest := old.NewestNodeTimestamp; newest != nil && !newest.Equal(status.NewestNodeTimestamp) {
		// A change could make a new node join, or release a node that has joined.
		errs = append(errs, field.Invalid(path.Child("newestNodeTimestamp"), status.NewestNodeTimestamp,
			fmt.Sprintf("may not change once set: the stored value is %s", newest.UTC().Format(time.RFC3339))))
	}
	if last := old.LastProgressTimestamp; last != nil &&
		(status.LastProgressTimestamp == nil || status.LastProgressTimestamp.Before(last)) {
		errs = append(errs, field.Invalid(path.Child("lastProgressTimestamp"), status.LastProgressTimestamp,
			fmt.Sprintf("may not be before the stored time: %s", last.UTC().Format(time.RFC3339))))
	}
	return errs
}

// validateWaves checks that the waves refer to entries of the plan, in the order of the entries.
func validateWaves(nm *maintenance.NodeMaintenance, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	last, entries := int32(-1), int32(len(nm.Spec.DrainPlan))
	for i := range nm.Status.Waves {
		entry := nm.Status.Waves[i].Entry
		if entry <= last || entry >= entries {
			errs = append(errs, field.Invalid(path.Index(i).Child("entry"), entry,
				fmt.Sprintf("must be the index of one of the %d entries of spec.drainPlan, greater than the index of the previous wave", entries)))
		}
		last = max(last, entry)
	}
	return errs
}

// validatePools checks that pools are values of a label, and that nodes refer to pools in the list.
func validatePools(status *maintenance.NodeMaintenanceStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, pool := range status.Pools {
		path := path.Child("pools").Index(i)
		if pool == "" {
			errs = append(errs, field.Required(path, "must be the value of the pool label of a node"))
		}
		for _, message := range validation.IsValidLabelValue(pool) {
			errs = append(errs, field.Invalid(path, pool, message))
		}
	}
	for i := range status.NodeStatuses {
		if pool := status.NodeStatuses[i].PoolIndex; pool != nil && (*pool < 0 || int(*pool) >= len(status.Pools)) {
			errs = append(errs, field.Invalid(path.Child("nodeStatuses").Index(i).Child("poolIndex"), *pool,
				fmt.Sprintf("must be the index of one of the %d pools of status.pools", len(status.Pools))))
		}
	}
	return errs
}

func validateStageStatuses(statuses, old []maintenance.StageStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(statuses) < len(old) || !apiequality.Semantic.DeepEqual(statuses[:len(old)], old) {
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("may only grow: the first %d entries must not change", len(old))))
	}
	seen := map[maintenance.NodeMaintenanceStage]bool{}
	for i, status := range statuses {
		if seen[status.Name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), status.Name))
		}
		seen[status.Name] = true
		if status.StartTimestamp.IsZero() {
			errs = append(errs, field.Required(path.Index(i).Child("startTimestamp"), "must be the time at which the stage was entered"))
		}
	}
	return errs
}

func validateNodeStatuses(nm *maintenance.NodeMaintenance, old []maintenance.NodeMaintenanceNodeStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	statuses := nm.Status.NodeStatuses
	before := make(map[maintenance.NodeReference]*maintenance.NodeMaintenanceNodeStatus, len(old))
	for i := range old {
		before[old[i].NodeRef] = &old[i]
	}
	seen := make(map[string]bool, len(statuses))
	for i := range statuses {
		status, path := &statuses[i], path.Index(i)
		name := status.NodeRef.Name
		if seen[name] {
			errs = append(errs, field.Duplicate(path.Child("nodeRef", "name"), name))
		}
		seen[name] = true
		previous := before[status.NodeRef]
		isLost := status.Reason == maintenance.NodeStatusReason(v1alpha1.NodeStatusTooManyMaintenances)
		if (nm.Spec.Stage == maintenance.NodeMaintenanceStageComplete || isLost) && len(status.DrainTargets) == 0 {
			// The targets of a node that is released, or lost to older maintenances, are no longer
			// needed.
			continue
		}
		if previous != nil && slices.EqualFunc(status.DrainTargets, previous.DrainTargets, sameTarget) {
			// Skip unchanged targets, which were validated before: a status can have thousands of
			// nodes.
			continue
		}
		if previous == nil && name != "" {
			for _, message := range apivalidation.NameIsDNSSubdomain(name, false) {
				errs = append(errs, field.Invalid(path.Child("nodeRef", "name"), name, message))
			}
		}
		errs = append(errs, validateDrainTargets(status.DrainTargets, previous, path.Child("drainTargets"))...)
	}
	return errs
}

// targetKey identifies a target; a node has at most one target for each key.
type targetKey struct {
	podType  maintenance.PodType
	selector string
}

func validateDrainTargets(targets []maintenance.DrainPlanEntry, previous *maintenance.NodeMaintenanceNodeStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	highest := make(map[targetKey]int32, len(targets))
	for i := range targets {
		target, path := &targets[i], path.Index(i)
		errs = append(errs, metav1validation.ValidateLabelSelector(target.PodSelector, metav1validation.LabelSelectorValidationOptions{},
			path.Child("podSelector"))...)
		key := targetKey{target.PodType, planorder.CanonicalSelector(target.PodSelector)}
		if _, duplicate := highest[key]; duplicate {
			errs = append(errs, field.Duplicate(path, describeEntry(target)))
			continue
		}
		highest[key] = target.PodPriority
	}
	if previous == nil {
		return errs
	}
	for i := range previous.DrainTargets {
		target := &previous.DrainTargets[i]
		if !covers(highest, target) {
			errs = append(errs, field.Invalid(path, field.OmitValueType{},
				fmt.Sprintf("must still cover the stored target of node %s: %s", previous.NodeRef.Name, describeEntry(target))))
		}
	}
	return errs
}

// covers reports whether the current targets include every pod of an earlier target: one of them
// has the same type and at least the same priority, and the same selector or none.
func covers(highest map[targetKey]int32, target *maintenance.DrainPlanEntry) bool {
	for _, selector := range []string{"", planorder.CanonicalSelector(target.PodSelector)} {
		if priority, ok := highest[targetKey{target.PodType, selector}]; ok && priority >= target.PodPriority {
			return true
		}
	}
	return false
}

// sameTarget compares the fields of two targets without canonicalizing their selectors, which is
// cheap.
func sameTarget(a, b maintenance.DrainPlanEntry) bool {
	return a.PodType == b.PodType && a.PodPriority == b.PodPriority && planorder.SameSelector(a.PodSelector, b.PodSelector)
}
