// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
)

// ThresholdAnnotation is an annotation of a PriorityClass: a pending pod with at least this
// priority may break the budgets of pods of the class (KEP-3280, which has a field with this name).
// The value is a whole number from -2147483648, which means any priority, to 2000000000.
const ThresholdAnnotation = "maintenance.haulout.dev/allow-disruption-by-priority-greater-than-or-equal"

const (
	// noThreshold is the lowest possible priority: every pod may break the budget.
	noThreshold int32 = math.MinInt32
	// maxThreshold is the lowest priority of system-critical pods. Budgets never stop a preemption
	// by these (KEP-3280).
	maxThreshold int32 = 2_000_000_000
)

// wellFormed is as strict as the shipped ValidatingAdmissionPolicy.
var wellFormed = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,9})$`)

// thresholdOf returns the threshold of the class; named is false if the class has none. A malformed
// threshold counts as the highest: a typing error should protect too many pods rather than too few.
func thresholdOf(class *schedulingv1.PriorityClass) (threshold int32, named bool, err error) {
	text, named := class.Annotations[ThresholdAnnotation]
	if !named {
		return noThreshold, false, nil
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !wellFormed.MatchString(text) || number < int64(noThreshold) || number > int64(maxThreshold) {
		return maxThreshold, true, fmt.Errorf("annotation %s: must be a whole number from %d to %d, got %q",
			ThresholdAnnotation, noThreshold, maxThreshold, text)
	}
	return int32(number), true, nil
}

type thresholds struct {
	byClass map[string]int32
	// otherwise is the threshold of classes without the annotation, and of pods without a class.
	otherwise int32
	// groupClasses returns the classes of the groups of a pod.
	groupClasses func(*corev1.Pod) []string
}

// newThresholds reads the thresholds of the classes. It calls bad for each malformed one.
func newThresholds(classes []*schedulingv1.PriorityClass, otherwise int32, groupClasses func(*corev1.Pod) []string,
	bad func(*schedulingv1.PriorityClass, error),
) thresholds {
	t := thresholds{byClass: map[string]int32{}, otherwise: otherwise, groupClasses: groupClasses}
	for _, class := range classes {
		threshold, named, err := thresholdOf(class)
		if err != nil {
			bad(class, err)
		}
		if named {
			t.byClass[class.Name] = threshold
		}
	}
	return t
}

// of returns the lowest priority of a pending pod that may break the budget of the given pod. It is
// the highest of the thresholds of the given pod's class and of the classes of its groups.
func (t thresholds) of(pod *corev1.Pod) int32 {
	threshold := t.ofClass(pod.Spec.PriorityClassName)
	if pod.Spec.SchedulingGroup == nil {
		return threshold
	}
	for _, class := range t.groupClasses(pod) {
		threshold = max(threshold, t.ofClass(class))
	}
	return threshold
}

func (t thresholds) ofClass(name string) int32 {
	if threshold, named := t.byClass[name]; named {
		return threshold
	}
	return t.otherwise
}

// exceed reports whether the threshold of any pod may be above the priority.
func (t thresholds) exceed(priority int32) bool {
	if t.otherwise > priority {
		return true
	}
	for _, threshold := range t.byClass {
		if threshold > priority {
			return true
		}
	}
	return false
}
