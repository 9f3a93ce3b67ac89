// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// shortProgressDeadlineSeconds is the limit below which evacuators can easily miss their progress
// deadline.
const shortProgressDeadlineSeconds = 60

// ValidateEvacuation checks the rules for a new Evacuation that the tags of its types cannot
// express.
func ValidateEvacuation(evacuation *maintenance.Evacuation) field.ErrorList {
	errs := validateEvacuationName(evacuation)
	if !protocol.HasInstigator(evacuation.Finalizers) {
		errs = append(errs, field.Required(field.NewPath("metadata", "finalizers"),
			fmt.Sprintf("an evacuation needs at least one instigator: a finalizer %s<name>", v1alpha1.FinalizerInstigatorPrefix)))
	}
	errs = append(errs, validateAddedFinalizers(evacuation, nil)...)
	specPath := field.NewPath("spec")
	if nodeName := evacuation.Spec.NodeName; nodeName != "" {
		for _, msg := range validation.IsDNS1123Subdomain(nodeName) {
			errs = append(errs, field.Invalid(specPath.Child("nodeName"), nodeName, msg))
		}
	}
	return append(errs, validateEvacuators(evacuation.Spec.Evacuators, specPath.Child("evacuators"))...)
}

func validateEvacuationName(evacuation *maintenance.Evacuation) field.ErrorList {
	podRef, podRefPath := evacuation.Spec.PodRef, field.NewPath("spec", "podRef")
	if podRef.Name == "" || podRef.UID == "" {
		// Without a pod, the name cannot be checked. The validation tags report the missing pod.
		return nil
	}
	if msgs := validation.IsDNS1123Subdomain(string(podRef.UID)); len(msgs) > 0 {
		return field.ErrorList{field.Invalid(podRefPath.Child("uid"), podRef.UID, "must be the UID of a pod: "+msgs[0])}
	}
	canonical, metaPath := protocol.CanonicalName(podRef.Name, podRef.UID), field.NewPath("metadata")
	if evacuation.GenerateName != "" {
		return field.ErrorList{field.Invalid(metaPath.Child("generateName"), evacuation.GenerateName,
			fmt.Sprintf("must not be set: the name of this pod's evacuation is %q (metadata.name may also be omitted)", canonical))}
	}
	if evacuation.Name != canonical {
		return field.ErrorList{field.Invalid(metaPath.Child("name"), evacuation.Name,
			fmt.Sprintf("the name of this pod's evacuation is %q (metadata.name may also be omitted)", canonical))}
	}
	return nil
}

func validateEvacuators(list []maintenance.Evacuator, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	controller := ""
	for i, evacuator := range list {
		if evacuator.EvacuatorClass == v1alpha1.EvacuatorClassEviction {
			errs = append(errs, field.Invalid(path.Index(i).Child("evacuatorClass"), evacuator.EvacuatorClass, "is reserved for eviction, which always comes last and cannot be listed"))
		}
		switch evacuator.Role {
		case maintenance.EvacuatorRoleController:
			if controller != "" {
				errs = append(errs, field.Invalid(path.Index(i).Child("role"), evacuator.Role, fmt.Sprintf("only one evacuator may have the role, and %s already has it", controller)))
			} else {
				controller = evacuator.EvacuatorClass
			}
			if evacuator.Priority != v1alpha1.ControllerEvacuatorPriority {
				errs = append(errs, field.Invalid(path.Index(i).Child("priority"), evacuator.Priority,
					fmt.Sprintf("the priority of the controller is %d", v1alpha1.ControllerEvacuatorPriority)))
			}
		case "":
			if evacuator.Priority == v1alpha1.ControllerEvacuatorPriority {
				errs = append(errs, field.Required(path.Index(i).Child("role"),
					fmt.Sprintf("priority %d requires the role %q", evacuator.Priority, maintenance.EvacuatorRoleController)))
			}
		}
	}
	for i, evacuator := range list {
		reserved := protocol.IsReserved(evacuator.Priority) && evacuator.Priority != v1alpha1.ControllerEvacuatorPriority
		if reserved && evacuator.Role == "" && !protocol.SharesParentDomain(evacuator.EvacuatorClass, controller) {
			errs = append(errs, field.Invalid(path.Index(i).Child("priority"), evacuator.Priority, reservedMessage(controller)))
		}
	}
	return errs
}

func reservedMessage(controller string) string {
	msg := fmt.Sprintf("priorities from %d to %d are reserved for classes that share the parent domain of the evacuator with role %s",
		protocol.LowestReservedPriority, protocol.HighestReservedPriority, maintenance.EvacuatorRoleController)
	if controller == "" {
		return msg + ", and no evacuator has this role"
	}
	return fmt.Sprintf("%s, %s", msg, controller)
}

// WarnEvacuation returns warnings about settings of a new Evacuation that are valid but probably
// unintended.
func WarnEvacuation(evacuation *maintenance.Evacuation) []string {
	deadline := evacuation.Spec.ProgressDeadlineSeconds
	if deadline == nil || *deadline >= shortProgressDeadlineSeconds {
		return nil
	}
	return []string{fmt.Sprintf("spec.progressDeadlineSeconds: an evacuator is replaced after %d s without a heartbeat; most evacuators report less often", *deadline)}
}

// ValidateEvacuationUpdate checks an update of an Evacuation except its status.
func ValidateEvacuationUpdate(evacuation, old *maintenance.Evacuation) field.ErrorList {
	errs := validateAddedFinalizers(evacuation, old)
	if !equality.Semantic.DeepEqual(evacuation.Spec, old.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"), "cannot be changed: it is immutable as a whole"))
	}
	return errs
}

// validateAddedFinalizers refuses new finalizers that do not belong to instigators: an Evacuation
// with such a finalizer stays stored after its pod is gone, so a quota of pods would not limit the
// number of Evacuations. The garbage collector may add its finalizers to an object that is being
// deleted. Existing finalizers may stay; old is nil for a new object.
func validateAddedFinalizers(evacuation, old *maintenance.Evacuation) field.ErrorList {
	var errs field.ErrorList
	for i, finalizer := range evacuation.Finalizers {
		_, isInstigator := protocol.IsInstigatorFinalizer(finalizer)
		ofCollector := finalizer == metav1.FinalizerDeleteDependents || finalizer == metav1.FinalizerOrphanDependents
		if isInstigator || old != nil && (slices.Contains(old.Finalizers, finalizer) || ofCollector && old.DeletionTimestamp != nil) {
			continue
		}
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "finalizers").Index(i), fmt.Sprintf(
			"cannot be added: an Evacuation may only have the finalizers of instigators, %s<name>", v1alpha1.FinalizerInstigatorPrefix)))
	}
	return errs
}

// IsEvacuationComplete reports whether an Evacuation is complete.
func IsEvacuationComplete(evacuation *maintenance.Evacuation) bool {
	return apimeta.IsStatusConditionTrue(evacuation.Status.Conditions, v1alpha1.ConditionComplete)
}

// Turns has the additional inputs for the check of a change of the active evacuator.
type Turns struct {
	// Now is the time with which deadlines are compared. It should come from the clock of the
	// replica that changes the active evacuator. Then a timestamp from another replica only shifts
	// a deadline by the difference of the clocks.
	Now time.Time
	// StartDeadline is the time in which an evacuator must send its first report.
	StartDeadline time.Duration
}

// ValidateEvacuationStatusUpdate checks an update of the status by any user, including the server.
func ValidateEvacuationStatusUpdate(evacuation, old *maintenance.Evacuation, turns Turns) field.ErrorList {
	path := field.NewPath("status")
	if IsEvacuationComplete(old) {
		if equality.Semantic.DeepEqual(evacuation.Status, old.Status) {
			return nil
		}
		return field.ErrorList{field.Forbidden(path, "cannot be changed: the evacuation is complete")}
	}
	errs := validateHandOver(evacuation, old, turns, path.Child("activeEvacuatorClass"))
	errs = append(errs, validateCancellationPolicy(evacuation, old, path.Child("evacuationCancellationPolicy"))...)
	if counter, oldCounter := evacuation.Status.FailedEvictionCounter, old.Status.FailedEvictionCounter; counter >= 0 && counter < oldCounter {
		errs = append(errs, field.Invalid(path.Child("failedEvictionCounter"), counter, fmt.Sprintf("must not be less than before: %d", oldCounter)))
	}
	return append(errs, validateConditions(evacuation.Status.Conditions, path.Child("conditions"))...)
}

// validateConditions checks each condition separately. The library's function for the whole list
// would report duplicates, which the tags report as well.
func validateConditions(conditions []metav1.Condition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range conditions {
		for _, err := range metav1validation.ValidateCondition(conditions[i], path.Index(i)) {
			// The validation tags do not cover the fields of conditions. The library would log and
			// count the error as one that they miss.
			err.CoveredByDeclarative = false
			errs = append(errs, err)
		}
	}
	return errs
}

// validateHandOver checks a change of the active evacuator: evacuators become active one by one
// from the highest priority down, and eviction is the last. Each stays active until it completes or
// its deadline passes. The evacuator of Deployments may become active again after eviction, if the
// reason for which it had declined no longer exists.
//
// An evacuator has no deadline until the drain reaches its pod: until then, the controller updates
// activeEvacuatorSince.
func validateHandOver(evacuation, old *maintenance.Evacuation, turns Turns, path *field.Path) field.ErrorList {
	class, oldClass := evacuation.Status.ActiveEvacuatorClass, old.Status.ActiveEvacuatorClass
	if class == oldClass {
		return nil
	}
	order := evacuatorOrder(old.Spec.Evacuators)
	to, from := slices.Index(order, class), slices.Index(order, oldClass)
	last := len(order) - 1
	switch {
	case class == "":
		return field.ErrorList{field.Invalid(path, class, fmt.Sprintf("cannot be unset: the stored value is %s", oldClass))}
	case to < 0:
		return field.ErrorList{field.NotSupported(path, class, order)}
	case protocol.IsWithdrawn(old):
		return field.ErrorList{field.Invalid(path, class, "cannot change: the Evacuation was withdrawn")}
	case oldClass == "" && to != 0:
		return field.ErrorList{field.Invalid(path, class, fmt.Sprintf("must begin with the evacuator of the highest priority: %s", order[0]))}
	case oldClass == "":
		return nil
	case from < 0 && to != last:
		return field.ErrorList{field.Invalid(path, class, fmt.Sprintf("%s is active and not among spec.evacuators: only %s may follow", oldClass, order[last]))}
	case from < 0:
		return nil
	case class == v1alpha1.EvacuatorClassDeployment && from == last && to == last-1:
		return nil
	case to < from:
		return field.ErrorList{field.Invalid(path, class, fmt.Sprintf("must not move back to a higher priority: %s is active", oldClass))}
	case to > from+1:
		return field.ErrorList{field.Invalid(path, class, fmt.Sprintf("must be %s, which follows %s", order[from+1], oldClass))}
	}
	turn := protocol.TurnOfInternal(&old.Status)
	patience := turn.Patience(old.Spec.ProgressDeadlineSeconds, turns.StartDeadline)
	if turn.Completed || !turns.Now.Before(turn.Since.Add(patience)) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, class, fmt.Sprintf("changed too early: %s has not completed, and its deadline is %s",
		oldClass, turn.Since.Add(patience).UTC().Format(time.RFC3339)))}
}

// evacuatorOrder returns the classes in the order in which they become active; eviction is the
// last.
func evacuatorOrder(list []maintenance.Evacuator) []string {
	sorted := slices.Clone(list)
	protocol.SortInternal(sorted)
	order := make([]string, 0, len(sorted)+1)
	for _, evacuator := range sorted {
		order = append(order, evacuator.EvacuatorClass)
	}
	return append(order, v1alpha1.EvacuatorClassEviction)
}

// validateCancellationPolicy refuses Forbid once the Evacuation is withdrawn, and in a write that
// changes the active evacuator.
func validateCancellationPolicy(evacuation, old *maintenance.Evacuation, path *field.Path) field.ErrorList {
	const forbid = maintenance.EvacuationCancellationPolicyForbid
	if evacuation.Status.EvacuationCancellationPolicy != forbid {
		return nil
	}
	switch {
	case evacuation.Status.ActiveEvacuatorClass != old.Status.ActiveEvacuatorClass:
		return field.ErrorList{field.Invalid(path, forbid, "must be Allow when the active evacuator changes")}
	case old.Status.EvacuationCancellationPolicy == forbid:
		return nil
	case !protocol.HasClass(old.Spec.Evacuators, evacuation.Status.ActiveEvacuatorClass):
		return field.ErrorList{field.Invalid(path, forbid, "only an active evacuator may set it, but eviction is active")}
	case old.DeletionTimestamp != nil:
		return field.ErrorList{field.Invalid(path, forbid, "cannot be set: the Evacuation is being deleted")}
	case !protocol.HasInstigator(old.Finalizers):
		return field.ErrorList{field.Invalid(path, forbid, "cannot be set: the Evacuation was withdrawn, it has no instigator")}
	}
	return nil
}

// ValidateEvacuationReport checks an update of the status by a user other than the server. Such an
// update is the report of an evacuator, which must be active and may write only the fields of a
// report.
func ValidateEvacuationReport(evacuation, old *maintenance.Evacuation) field.ErrorList {
	path := field.NewPath("status")
	classPath := path.Child("activeEvacuatorClass")
	status, oldStatus := evacuation.Status, old.Status
	switch active := oldStatus.ActiveEvacuatorClass; {
	case IsEvacuationComplete(old):
		// The rules for all users report this error.
		return nil
	case active == "":
		return field.ErrorList{field.Forbidden(path, "no evacuator is active yet")}
	case active == v1alpha1.EvacuatorClassEviction:
		return field.ErrorList{field.Forbidden(path, "no evacuator is active any longer; only the server reports on the eviction")}
	case status.ActiveEvacuatorClass != active:
		return field.ErrorList{field.Invalid(classPath, status.ActiveEvacuatorClass,
			fmt.Sprintf("%s is active, and only the server may change the active evacuator", active))}
	}
	var errs field.ErrorList
	const serverOnly = "only the server can write it; an evacuator reports activeEvacuatorCompleted, " +
		"expectedEvacuationFinishTime, evacuationCancellationPolicy and message"
	if !status.ActiveEvacuatorSince.Equal(oldStatus.ActiveEvacuatorSince) {
		errs = append(errs, field.Forbidden(path.Child("activeEvacuatorSince"), serverOnly))
	}
	if status.FailedEvictionCounter != oldStatus.FailedEvictionCounter {
		errs = append(errs, field.Forbidden(path.Child("failedEvictionCounter"), serverOnly))
	}
	if !equality.Semantic.DeepEqual(status.Conditions, oldStatus.Conditions) {
		errs = append(errs, field.Forbidden(path.Child("conditions"), serverOnly))
	}
	return errs
}
