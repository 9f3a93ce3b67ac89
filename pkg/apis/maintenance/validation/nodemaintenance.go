// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package validation checks the rules that the validation tags of the API types cannot express. The
// API server also enforces the tags, so this package does not repeat their rules (required fields,
// enumerations, ranges, lengths of single values): otherwise each error would be reported twice.
package validation

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/nodeterms"
	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// transitions maps each stage to the stages that may follow it; an unchanged stage is always valid.
var transitions = map[maintenance.NodeMaintenanceStage][]maintenance.NodeMaintenanceStage{
	maintenance.NodeMaintenanceStageIdle: {
		maintenance.NodeMaintenanceStageCordon, maintenance.NodeMaintenanceStageDrain, maintenance.NodeMaintenanceStageComplete,
	},
	maintenance.NodeMaintenanceStageCordon:   {maintenance.NodeMaintenanceStageDrain, maintenance.NodeMaintenanceStageComplete},
	maintenance.NodeMaintenanceStageDrain:    {maintenance.NodeMaintenanceStageComplete},
	maintenance.NodeMaintenanceStageComplete: {},
}

// ValidateNodeMaintenance validates a new NodeMaintenance.
func ValidateNodeMaintenance(nm *maintenance.NodeMaintenance) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&nm.ObjectMeta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	spec := field.NewPath("spec")
	errs = append(errs, validateNodeSelector(nm.Spec.NodeSelector, spec.Child("nodeSelector"))...)
	errs = append(errs, validatePause(nm, spec.Child("paused"))...)
	errs = append(errs, validateTask(nm.Spec.Task, spec.Child("task"))...)
	return append(errs, validateDrainPlan(nm.Spec.DrainPlan, spec.Child("drainPlan"))...)
}

// ValidateNodeMaintenanceUpdate validates a change of a NodeMaintenance through its main resource.
func ValidateNodeMaintenanceUpdate(nm, old *maintenance.NodeMaintenance) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if !apiequality.Semantic.DeepEqual(nm.Spec.NodeSelector, old.Spec.NodeSelector) {
		selector := spec.Child("nodeSelector")
		if frozen := validateChangeBeforeComplete(old, selector); len(frozen) > 0 {
			errs = append(errs, frozen...)
		} else {
			errs = append(errs, validateNodeSelector(nm.Spec.NodeSelector, selector)...)
		}
	}
	if nm.Spec.NewNodes != old.Spec.NewNodes {
		errs = append(errs, validateChangeBeforeComplete(old, spec.Child("newNodes"))...)
	}
	if nm.Spec.OnExcludedNode != old.Spec.OnExcludedNode {
		errs = append(errs, validateChangeBeforeComplete(old, spec.Child("onExcludedNode"))...)
	}
	errs = append(errs, validateStageChange(nm, old, spec.Child("stage"))...)
	if nm.Spec.Paused != old.Spec.Paused {
		errs = append(errs, validatePauseChange(nm, old, spec.Child("paused"))...)
	}
	if !apiequality.Semantic.DeepEqual(nm.Spec.Task, old.Spec.Task) {
		errs = append(errs, field.Invalid(spec.Child("task"), field.OmitValueType{}, "is immutable").WithOrigin("immutable"))
	}
	if !SameDrainPlan(nm.Spec.DrainPlan, old.Spec.DrainPlan) {
		// Omit the value: a message with two whole plans would be unreadable.
		errs = append(errs, field.Invalid(spec.Child("drainPlan"), field.OmitValueType{},
			"is immutable; repeat the plan with which the maintenance was created").WithOrigin("immutable"))
	}
	return errs
}

// validateChangeBeforeComplete checks whether a field can still be changed that can change until
// stage Complete: those that select nodes, paused and onExcludedNode.
func validateChangeBeforeComplete(old *maintenance.NodeMaintenance, path *field.Path) field.ErrorList {
	switch {
	case old.DeletionTimestamp != nil:
		return field.ErrorList{field.Forbidden(path, "may not change while the maintenance is being deleted")}
	case old.Spec.Stage == maintenance.NodeMaintenanceStageComplete:
		return field.ErrorList{field.Forbidden(path, "may only change in the stages Idle, Cordon and Drain")}
	}
	return nil
}

func validateStageChange(nm, old *maintenance.NodeMaintenance, path *field.Path) field.ErrorList {
	from, to := old.Spec.Stage, nm.Spec.Stage
	if _, known := transitions[to]; from == to || !known {
		return nil
	}
	if old.DeletionTimestamp != nil {
		return field.ErrorList{field.Forbidden(path, "may not change while the maintenance is being deleted")}
	}
	next, known := transitions[from]
	if !known {
		// A newer server stored this stage. Allow only stage Complete after it, which is valid in
		// every version.
		next = []maintenance.NodeMaintenanceStage{maintenance.NodeMaintenanceStageComplete}
	}
	if slices.Contains(next, to) {
		return nil
	}
	if len(next) == 0 {
		return field.ErrorList{field.Invalid(path, to, fmt.Sprintf("%s is the last stage; create a new maintenance instead", from))}
	}
	return field.ErrorList{field.Invalid(path, to, fmt.Sprintf("the stage can only change from %s to %s", from, joinStages(next, " or ")))}
}

// validatePauseChange checks whether a drain can still be paused or resumed.
func validatePauseChange(nm, old *maintenance.NodeMaintenance, path *field.Path) field.ErrorList {
	if frozen := validateChangeBeforeComplete(old, path); len(frozen) > 0 {
		return frozen
	}
	return validatePause(nm, path)
}

// validatePause refuses to pause a maintenance in the same request in which it becomes Complete. It
// also refuses to pause the drain of a node that shuts down: the kubelet would end the pods which
// could have left within their budgets before.
func validatePause(nm *maintenance.NodeMaintenance, path *field.Path) field.ErrorList {
	if !nm.Spec.Paused {
		return nil
	}
	if nm.Spec.Stage == maintenance.NodeMaintenanceStageComplete {
		return field.ErrorList{field.Forbidden(path, "may only be set in the stages Idle, Cordon and Drain")}
	}
	if node := protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector); node != "" {
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("must be false: node %q shuts down, and a pause does not stop that", node))}
	}
	return nil
}

// validateNodeSelector ignores an unset selector: the tags require one.
func validateNodeSelector(selector *corev1.NodeSelector, path *field.Path) field.ErrorList {
	if selector == nil {
		return nil
	}
	path = path.Child("nodeSelectorTerms")
	if len(selector.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(path, "at least one term is required")}
	}
	errs := validateSelectorSize(selector, path)
	if len(errs) > 0 {
		// Stop here: an error for each of so many requirements would take megabytes.
		return errs
	}
	for i, term := range selector.NodeSelectorTerms {
		path := path.Index(i)
		if len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0 {
			errs = append(errs, field.Required(path, "a term must have matchExpressions or matchFields: an empty term selects no node"))
		}
		for j, requirement := range term.MatchExpressions {
			errs = append(errs, validateLabelRequirement(requirement, path.Child("matchExpressions").Index(j))...)
		}
		for j, requirement := range term.MatchFields {
			errs = append(errs, validateFieldRequirement(requirement, path.Child("matchFields").Index(j))...)
		}
	}
	return append(errs, validateTriedTerms(selector, path)...)
}

// validateTriedTerms limits the terms that must be compared with every node of the cluster.
func validateTriedTerms(selector *corev1.NodeSelector, path *field.Path) field.ErrorList {
	_, tried := nodeterms.Of(selector)
	if tried <= nodeterms.MaxTried {
		return nil
	}
	err := field.TooMany(path, tried, nodeterms.MaxTried)
	err.Detail += " terms that are tried on every node; add a requirement with the operator In and different values to each of the other terms"
	return field.ErrorList{err}
}

// validateSelectorSize limits the cost of matching the selector with every node.
func validateSelectorSize(selector *corev1.NodeSelector, path *field.Path) field.ErrorList {
	requirements, values := 0, 0
	for i := range selector.NodeSelectorTerms {
		term := &selector.NodeSelectorTerms[i]
		// Count an empty term as one requirement, although it is refused anyway.
		requirements += max(len(term.MatchExpressions)+len(term.MatchFields), 1)
		for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			values += len(r.Values)
		}
	}
	var errs field.ErrorList
	for _, limit := range []struct {
		what          string
		count, atMost int
	}{
		{"requirements", requirements, v1alpha1.MaxSelectorRequirements},
		{"values", values, v1alpha1.MaxSelectorValues},
	} {
		if limit.count > limit.atMost {
			err := field.TooMany(path, limit.count, limit.atMost)
			err.Detail += fmt.Sprintf(" %s in all terms together; list many nodes as the values of one requirement with the operator In", limit.what)
			errs = append(errs, err)
		}
	}
	return errs
}

// validateDrainPlan checks a plan that defaulting has completed. It stops if there are too many
// entries, because a plan of a megabyte must not cause an error of a megabyte.
func validateDrainPlan(plan []maintenance.DrainPlanEntry, path *field.Path) field.ErrorList {
	if own := ownEntries(plan); own > v1alpha1.MaxOwnDrainPlanEntries {
		err := field.TooMany(path, own, v1alpha1.MaxOwnDrainPlanEntries)
		err.Detail += ", not counting the twelve entries that every plan has"
		return field.ErrorList{err}
	}
	var errs field.ErrorList
	for i := range plan {
		errs = append(errs, metav1validation.ValidateLabelSelector(plan[i].PodSelector, metav1validation.LabelSelectorValidationOptions{},
			path.Index(i).Child("podSelector"))...)
		errs = append(errs, validateBehavior(&plan[i], path.Index(i))...)
	}
	planorder.Check(planKeys(plan), func(index, against int, v planorder.Violation) {
		if v == planorder.Duplicate {
			err := field.Duplicate(path.Index(index), describeEntry(&plan[index]))
			err.Detail = fmt.Sprintf("is equivalent to entry %d", against)
			errs = append(errs, err)
			return
		}
		errs = append(errs, field.Invalid(path.Index(index), describeEntry(&plan[index]),
			fmt.Sprintf("must not come after entry %d (%s): %s", against, describeEntry(&plan[against]), v)))
	})
	return errs
}

func validateBehavior(entry *maintenance.DrainPlanEntry, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	waits := ptr.Deref(entry.Behavior, "") == maintenance.DrainBehaviorWaitCompleted
	if waits && entry.PodType != maintenance.PodTypeDefault {
		errs = append(errs, field.Invalid(path.Child("behavior"), *entry.Behavior, "only with podType "+string(maintenance.PodTypeDefault)))
	}
	if !waits && entry.WaitSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("waitSeconds"), "only with behavior "+string(maintenance.DrainBehaviorWaitCompleted)))
	}
	return errs
}

// SameDrainPlan reports whether two plans have the same waves in the same order, with equivalent
// selectors and the same behaviors.
func SameDrainPlan(a, b []maintenance.DrainPlanEntry) bool {
	return slices.EqualFunc(a, b, func(x, y maintenance.DrainPlanEntry) bool {
		return x.PodType == y.PodType && x.PodPriority == y.PodPriority && ptr.Equal(x.Behavior, y.Behavior) && ptr.Equal(x.WaitSeconds, y.WaitSeconds) &&
			planorder.CanonicalSelector(x.PodSelector) == planorder.CanonicalSelector(y.PodSelector)
	})
}

// ownEntries counts the entries of a plan except the entries that every plan has.
func ownEntries(plan []maintenance.DrainPlanEntry) int {
	own := 0
	for i := range plan {
		if !planorder.SelectsAll(plan[i].PodSelector) || !slices.Contains(v1alpha1.FrozenPriorities(), plan[i].PodPriority) {
			own++
		}
	}
	return own
}

func planKeys(plan []maintenance.DrainPlanEntry) []planorder.Key {
	keys := make([]planorder.Key, len(plan))
	for i := range plan {
		keys[i] = planorder.Key{Type: string(plan[i].PodType), Priority: plan[i].PodPriority, Selector: plan[i].PodSelector}
	}
	return keys
}

// describeEntry returns a short description of an entry. Defaulting may have inserted entries
// before this entry, so the index alone would be misleading.
func describeEntry(e *maintenance.DrainPlanEntry) string {
	text := fmt.Sprintf("%s %d", e.PodType, e.PodPriority)
	if !planorder.SelectsAll(e.PodSelector) {
		text += " with podSelector"
	}
	return text
}
