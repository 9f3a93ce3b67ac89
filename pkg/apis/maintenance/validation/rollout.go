// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/schedule"
)

// rolloutStages are the stages in their order.
var rolloutStages = []maintenance.RolloutStage{
	maintenance.RolloutStageIdle, maintenance.RolloutStageRoll, maintenance.RolloutStageComplete,
}

const (
	minWindow = time.Minute
	maxWindow = 168 * time.Hour
)

// ValidateNodeMaintenanceRollout validates a new NodeMaintenanceRollout, but not doneWhen: the
// packages of the API do not evaluate expressions.
func ValidateNodeMaintenanceRollout(r *maintenance.NodeMaintenanceRollout) field.ErrorList {
	metadata, spec := field.NewPath("metadata"), field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&r.ObjectMeta, false, apivalidation.NameIsDNSSubdomain, metadata)
	if len(r.Name) > protocol.MaxRolloutName {
		errs = append(errs, field.TooLong(metadata.Child("name"), nil, protocol.MaxRolloutName))
	}
	errs = append(errs, validateRolloutSpec(&r.Spec, spec)...)
	template := spec.Child("template")
	errs = append(errs, validateTask(r.Spec.Template.Task, template.Child("task"))...)
	return append(errs, validateDrainPlan(r.Spec.Template.DrainPlan, template.Child("drainPlan"))...)
}

// validateRolloutSpec checks the fields that can change.
func validateRolloutSpec(spec *maintenance.NodeMaintenanceRolloutSpec, path *field.Path) field.ErrorList {
	errs := validateNodeSelector(spec.NodeSelector, path.Child("nodeSelector"))
	for i := range spec.Limits {
		errs = append(errs, validateLimit(&spec.Limits[i], path.Child("limits").Index(i))...)
	}
	for i := range spec.Windows {
		errs = append(errs, validateWindow(&spec.Windows[i], path.Child("windows").Index(i))...)
	}
	for i := range spec.Holds {
		hold := &spec.Holds[i]
		if hold.From != nil && hold.Until != nil && !hold.From.Before(hold.Until) {
			errs = append(errs, field.Invalid(path.Child("holds").Key(hold.Name).Child("until"), hold.Until.UTC().Format(time.RFC3339), "must be after from"))
		}
	}
	return errs
}

func validateLimit(limit *maintenance.RolloutLimit, path *field.Path) field.ErrorList {
	if (limit.MaxUnavailable == nil) == (limit.MaxDomains == nil) {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "must have exactly one of maxUnavailable and maxDomains")}
	}
	if limit.MaxDomains != nil {
		if limit.TopologyKey == "" {
			return field.ErrorList{field.Required(path.Child("topologyKey"), "maxDomains needs the label of the domains")}
		}
		return nil
	}
	if !isAvailability(limit.MaxUnavailable) {
		return field.ErrorList{field.Invalid(path.Child("maxUnavailable"), limit.MaxUnavailable.String(), "must be a number of at least 1, or a percentage from 1% to 100%")}
	}
	return nil
}

func isAvailability(value *intstr.IntOrString) bool {
	if value.Type == intstr.Int {
		return value.IntVal >= 1
	}
	percent, found := strings.CutSuffix(value.StrVal, "%")
	n, err := strconv.Atoi(percent)
	return found && err == nil && strconv.Itoa(n) == percent && n >= 1 && n <= 100
}

func validateWindow(window *maintenance.RolloutWindow, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if (window.Schedule == "") == (window.Start == nil) {
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "must have exactly one of schedule and start"))
	}
	zone, err := schedule.TimeZone(window.TimeZone)
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("timeZone"), field.OmitValueType{}, err.Error()))
		zone = time.UTC
	}
	if window.Schedule != "" {
		if _, err := schedule.Parse(window.Schedule, zone); err != nil {
			errs = append(errs, field.Invalid(path.Child("schedule"), window.Schedule, err.Error()))
		}
	}
	if window.TimeZone != "" && window.Schedule == "" {
		errs = append(errs, field.Forbidden(path.Child("timeZone"), "only with schedule: start has a time zone of its own"))
	}
	if d := window.Duration.Duration; d < minWindow || d > maxWindow {
		errs = append(errs, field.Invalid(path.Child("duration"), d.String(), "must be from 1m to 168h"))
	}
	return errs
}

// ValidateNodeMaintenanceRolloutUpdate validates a change of a NodeMaintenanceRollout through its
// main resource.
func ValidateNodeMaintenanceRolloutUpdate(r, old *maintenance.NodeMaintenanceRollout) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	frozen := ""
	switch {
	case old.DeletionTimestamp != nil:
		frozen = "may not change while the rollout is being deleted"
	case old.Spec.Stage == maintenance.RolloutStageComplete:
		frozen = "may only change in the stages Idle and Roll"
	}
	changed := ChangedFields(&r.Spec, &old.Spec)
	for _, name := range changed {
		switch {
		case name == "requestedBy":
		case name == "unitKey" || name == "template":
			errs = append(errs, field.Invalid(spec.Child(name), field.OmitValueType{}, "is immutable; create another rollout").WithOrigin("immutable"))
		case name == "stage":
			errs = append(errs, validateRolloutStage(r.Spec.Stage, old.Spec.Stage, spec.Child(name))...)
		case frozen != "":
			errs = append(errs, field.Forbidden(spec.Child(name), frozen))
		}
	}
	if len(changed) > 0 {
		errs = append(errs, validateRolloutSpec(&r.Spec, spec)...)
	}
	return errs
}

func validateRolloutStage(to, from maintenance.RolloutStage, path *field.Path) field.ErrorList {
	now, before := slices.Index(rolloutStages, to), slices.Index(rolloutStages, from)
	if now < 0 || now >= before {
		// The tags refuse an unknown stage. One that a newer server has stored may be left.
		return nil
	}
	return field.ErrorList{field.Invalid(path, to, fmt.Sprintf("must not go back from %s to %s; allowed: %s", from, to, joinStages(rolloutStages[before:], ", ")))}
}

func joinStages[T ~string](stages []T, separator string) string {
	names := make([]string, len(stages))
	for i := range stages {
		names[i] = string(stages[i])
	}
	return strings.Join(names, separator)
}

// ValidateNodeMaintenanceRolloutStatusUpdate validates a change of the status.
func ValidateNodeMaintenanceRolloutStatusUpdate(r, old *maintenance.NodeMaintenanceRollout) field.ErrorList {
	path := field.NewPath("status")
	var errs field.ErrorList
	if newest := old.Status.NewestNodeTimestamp; newest != nil && !newest.Equal(r.Status.NewestNodeTimestamp) {
		errs = append(errs, field.Invalid(path.Child("newestNodeTimestamp"), r.Status.NewestNodeTimestamp,
			fmt.Sprintf("may not change once set: the stored value is %s", newest.UTC().Format(time.RFC3339))))
	}
	nodes := 0
	for i := range r.Status.Current {
		nodes += len(r.Status.Current[i].Nodes)
	}
	if nodes > protocol.MaxCurrentNodes {
		err := field.TooMany(path.Child("current"), nodes, protocol.MaxCurrentNodes)
		err.Detail += " nodes in all units together"
		errs = append(errs, err)
	}
	return append(errs, validateConditions(r.Status.Conditions, path.Child("conditions"))...)
}

// OnlyHoldsChange reports whether two specs differ at most in their holds and their requester.
func OnlyHoldsChange(a, b *maintenance.NodeMaintenanceRolloutSpec) bool {
	return !slices.ContainsFunc(ChangedFields(a, b), func(name string) bool { return name != "holds" && name != "requestedBy" })
}

// SameHold reports whether two holds are the same, regardless of who added them and when.
func SameHold(a, b *maintenance.RolloutHold) bool {
	x, y := *a, *b
	x.By, x.Since, y.By, y.Since = "", nil, "", nil
	return apiequality.Semantic.DeepEqual(x, y)
}
