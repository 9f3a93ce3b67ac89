// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package protocol has the rules about evacuators and instigators that the API, admission and the
// controllers share: the order of evacuators, the annotations of pods, and the names of
// Evacuations.
package protocol

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// MaxEvacuators is the maximum number of evacuators of an Evacuation.
	MaxEvacuators = 16
	// MaxClassLength is the maximum length of a class name: with the prefix "priority_" it has to
	// fit into the 63 characters of an annotation's name.
	MaxClassLength = 54
	// MaxPriority is the highest priority of an evacuator.
	MaxPriority int32 = 100000
	// LowestReservedPriority and HighestReservedPriority limit the priorities around the
	// controller's that are reserved for classes under the controller's parent domain.
	LowestReservedPriority int32 = 9900
	// HighestReservedPriority is the highest reserved priority.
	HighestReservedPriority int32 = 10099
)

// CanonicalName returns the only valid name for the Evacuation of a pod, so that a pod has at most
// one.
func CanonicalName(podName string, podUID types.UID) string {
	name := string(podUID) + "-" + podName
	if len(name) > validation.DNS1123SubdomainMaxLength {
		name = name[:validation.DNS1123SubdomainMaxLength]
	}
	return strings.TrimRight(name, ".-")
}

// Rank is the sort key of evacuators.
type Rank struct {
	Priority int32
	Class    string
}

// Compare returns a negative number if r acts before other, and a positive one if it acts after
// other. The higher priority acts first. At equal priority, it compares the labels of the domains
// from the top level down, so that a domain precedes its subdomains.
func (r Rank) Compare(other Rank) int {
	if c := cmp.Compare(other.Priority, r.Priority); c != 0 {
		return c
	}
	a, b := strings.Split(r.Class, "."), strings.Split(other.Class, ".")
	slices.Reverse(a)
	slices.Reverse(b)
	return slices.Compare(a, b)
}

// Sort sorts evacuators in the order in which they act.
func Sort(evacuators []v1alpha1.Evacuator) {
	slices.SortStableFunc(evacuators, compare)
}

func compare(a, b v1alpha1.Evacuator) int {
	return Rank{a.Priority, a.EvacuatorClass}.Compare(Rank{b.Priority, b.EvacuatorClass})
}

// SortInternal is Sort for the internal type.
func SortInternal(evacuators []maintenance.Evacuator) {
	slices.SortStableFunc(evacuators, func(a, b maintenance.Evacuator) int {
		return Rank{a.Priority, a.EvacuatorClass}.Compare(Rank{b.Priority, b.EvacuatorClass})
	})
}

// Next returns the class that follows active. It returns the first class if active is empty, and
// the eviction class if active is the last evacuator or not one of the evacuators.
func Next(evacuators []v1alpha1.Evacuator, active string) string {
	sorted := slices.Clone(evacuators)
	Sort(sorted)
	next := 0
	if active != "" {
		i := slices.IndexFunc(sorted, func(e v1alpha1.Evacuator) bool { return e.EvacuatorClass == active })
		if i < 0 {
			return v1alpha1.EvacuatorClassEviction
		}
		next = i + 1
	}
	if next >= len(sorted) {
		return v1alpha1.EvacuatorClassEviction
	}
	return sorted[next].EvacuatorClass
}

// IsReserved reports whether a priority is reserved for classes under the controller's parent
// domain.
func IsReserved(priority int32) bool {
	return priority >= LowestReservedPriority && priority <= HighestReservedPriority
}

// SharesParentDomain reports whether class is under the parent domain of the controller's class. A
// top-level domain does not count as a parent.
func SharesParentDomain(class, controller string) bool {
	if class == controller {
		return true
	}
	_, parent, _ := strings.Cut(controller, ".")
	return strings.Contains(parent, ".") && strings.HasSuffix(class, "."+parent)
}

// CheckRole returns why a role cannot be combined with a priority, or "" if it can.
func CheckRole(priority int32, role v1alpha1.EvacuatorRole) string {
	isController := role == v1alpha1.EvacuatorRoleController
	switch {
	case isController && priority != v1alpha1.ControllerEvacuatorPriority:
		return fmt.Sprintf("the role controller requires priority %d", v1alpha1.ControllerEvacuatorPriority)
	case !isController && priority == v1alpha1.ControllerEvacuatorPriority:
		return fmt.Sprintf("priority %d requires the role controller", priority)
	}
	return ""
}

// CheckClass returns why an evacuator cannot have a class; nil if it can.
func CheckClass(class string) error {
	if len(class) > MaxClassLength {
		return fmt.Errorf("class %q is longer than %d characters", class, MaxClassLength)
	}
	if msgs := validation.IsDNS1123Subdomain(class); len(msgs) > 0 {
		return fmt.Errorf("class %q: %s", class, strings.Join(msgs, ", "))
	}
	if class == v1alpha1.EvacuatorClassEviction {
		return fmt.Errorf("class %q is reserved for eviction, which always comes last", class)
	}
	return nil
}

// IsAnnotation reports whether a pod's annotation has the prefix that names an evacuator.
func IsAnnotation(key string) bool {
	return strings.HasPrefix(key, v1alpha1.AnnotationEvacuatorPrefix)
}

// ParseAnnotation parses an annotation with which a pod names an evacuator: the class in its key,
// and "<priority>" or "<priority>/<role>" in its value. It checks every rule that does not depend
// on other evacuators.
func ParseAnnotation(key, value string) (class string, priority int32, role v1alpha1.EvacuatorRole, err error) {
	if !IsAnnotation(key) {
		return "", 0, "", fmt.Errorf("annotation %q does not start with %q", key, v1alpha1.AnnotationEvacuatorPrefix)
	}
	class = strings.TrimPrefix(key, v1alpha1.AnnotationEvacuatorPrefix)
	if err := CheckClass(class); err != nil {
		return "", 0, "", err
	}
	number, roleName, hasRole := strings.Cut(value, "/")
	parsed, err := strconv.ParseUint(number, 10, 32)
	if err != nil || parsed > uint64(MaxPriority) {
		return "", 0, "", fmt.Errorf("value %q of class %s: must be <priority> or <priority>/<role> with a priority from 0 to %d", value, class, MaxPriority)
	}
	priority, role = int32(parsed), v1alpha1.EvacuatorRole(roleName)
	if hasRole && role != v1alpha1.EvacuatorRoleController {
		return "", 0, "", fmt.Errorf("value %q of class %s: the only supported role is %q", value, class, v1alpha1.EvacuatorRoleController)
	}
	if msg := CheckRole(priority, role); msg != "" {
		return "", 0, "", fmt.Errorf("value %q of class %s: %s", value, class, msg)
	}
	return class, priority, role, nil
}
