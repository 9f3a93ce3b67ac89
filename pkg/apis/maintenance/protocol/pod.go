// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"maps"
	"slices"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// IgnoredAnnotation is an annotation of a pod that the server ignores because it is invalid.
type IgnoredAnnotation struct {
	// Key is the key of the annotation; Why is the reason for ignoring it.
	Key, Why string
}

// OfPod returns the evacuators of a pod in the order in which they act: the evacuators that its
// annotations name, and the built-in evacuator of its owner. builtIn is the class of the built-in
// evacuator; empty if there is none. OfPod also returns the annotations that it ignores. It ignores
// each annotation that validation would refuse, so that the owner of a pod cannot prevent its
// evacuation. mayUse reports whether an Evacuation of the pod may have an evacuator of a class.
func OfPod(annotations map[string]string, builtIn string, mayUse func(class string) bool) ([]maintenance.Evacuator, []IgnoredAnnotation) {
	var list []maintenance.Evacuator
	var ignored []IgnoredAnnotation
	ignore := func(class, why string) {
		ignored = append(ignored, IgnoredAnnotation{Key: v1alpha1.AnnotationEvacuatorPrefix + class, Why: why})
	}
	if _, err := StartDeadlineOf(annotations); err != nil {
		ignored = append(ignored, IgnoredAnnotation{Key: v1alpha1.AnnotationEvacuatorStartDeadline, Why: err.Error()})
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if !IsAnnotation(key) {
			continue
		}
		class, priority, role, err := ParseAnnotation(key, annotations[key])
		if err != nil {
			ignored = append(ignored, IgnoredAnnotation{Key: key, Why: err.Error()})
			continue
		}
		list = append(list, maintenance.Evacuator{EvacuatorClass: class, Priority: priority, Role: maintenance.EvacuatorRole(role)})
	}
	SortInternal(list)

	controller := ""
	list = slices.DeleteFunc(list, func(e maintenance.Evacuator) bool {
		if e.Role != maintenance.EvacuatorRoleController {
			return false
		}
		if controller == "" {
			controller = e.EvacuatorClass
			return false
		}
		ignore(e.EvacuatorClass, fmt.Sprintf("at most one evacuator can have the role controller, and %s has it", controller))
		return true
	})
	// The pod's annotations take precedence: they may name another evacuator with the role
	// controller, or another priority.
	if builtIn != "" && controller == "" && !HasClass(list, builtIn) {
		controller = builtIn
		list = append(list, maintenance.Evacuator{
			EvacuatorClass: builtIn, Priority: v1alpha1.ControllerEvacuatorPriority, Role: maintenance.EvacuatorRoleController,
		})
		SortInternal(list)
	}
	list = slices.DeleteFunc(list, func(e maintenance.Evacuator) bool {
		if !IsReserved(e.Priority) || SharesParentDomain(e.EvacuatorClass, controller) {
			return false
		}
		ignore(e.EvacuatorClass, fmt.Sprintf("priorities from %d to %d are reserved for classes that share the parent domain of the evacuator with role Controller (%q)",
			LowestReservedPriority, HighestReservedPriority, controller))
		return true
	})
	list = atMost(list, ignore)
	return withoutUnusable(list, controller, mayUse), ignored
}

// HasClass reports whether one of the evacuators has the class.
func HasClass(list []maintenance.Evacuator, class string) bool {
	return slices.ContainsFunc(list, func(e maintenance.Evacuator) bool { return e.EvacuatorClass == class })
}

// withoutUnusable removes the evacuators that this client may not use. If the client may not use
// the controller, withoutUnusable also removes the evacuators that are only allowed together with
// the controller. It returns no warnings, since the annotations of the pod are valid.
func withoutUnusable(list []maintenance.Evacuator, controller string, mayUse func(class string) bool) []maintenance.Evacuator {
	return slices.DeleteFunc(list, func(e maintenance.Evacuator) bool {
		return !mayUse(e.EvacuatorClass) || controller != "" && !mayUse(controller) && IsReserved(e.Priority)
	})
}

// atMost truncates a sorted list to MaxEvacuators. It keeps the controller, on which the pod's
// workload depends.
func atMost(list []maintenance.Evacuator, ignore func(class, why string)) []maintenance.Evacuator {
	kept := slices.Clone(list)
	for i := len(kept) - 1; len(kept) > MaxEvacuators; i-- {
		if kept[i].Role == maintenance.EvacuatorRoleController {
			continue
		}
		ignore(kept[i].EvacuatorClass, fmt.Sprintf("a pod can have at most %d evacuators, and the others have higher priorities", MaxEvacuators))
		kept = slices.Delete(kept, i, i+1)
	}
	return kept
}
