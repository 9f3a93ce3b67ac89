// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// longestSpecified is the default of spec.progressDeadlineSeconds.
const longestSpecified = 30 * time.Minute

// broken says in words which rules two states of an Evacuation break that follow each other,
// directly if they are consecutive.
func (w *Witness) broken(before, e *v1alpha1.Evacuation, consecutive bool) []string {
	var found []string
	if !equality.Semantic.DeepEqual(before.Spec, e.Spec) {
		found = append(found, "its spec has changed")
	}
	was, is := &before.Status, &e.Status
	if isComplete(before) {
		if !equality.Semantic.DeepEqual(was, is) {
			found = append(found, fmt.Sprintf("its status has changed after it was complete: %+v, now %+v", *was, *is))
		}
		return found
	}
	if is.FailedEvictionCounter < was.FailedEvictionCounter {
		found = append(found, fmt.Sprintf("failedEvictionCounter fell from %d to %d",
			was.FailedEvictionCounter, is.FailedEvictionCounter))
	}
	if text := w.brokenTurn(before, e, consecutive); text != "" {
		found = append(found, text)
	}
	if consecutive && is.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid {
		switch {
		case is.ActiveEvacuatorClass != was.ActiveEvacuatorClass:
			found = append(found, fmt.Sprintf("Forbid has outlived the turn of %s", was.ActiveEvacuatorClass))
		case was.EvacuationCancellationPolicy != is.EvacuationCancellationPolicy && isWithdrawn(before):
			found = append(found, "Forbid was set when no instigator asked for it any more")
		case !isEvacuator(e, is.ActiveEvacuatorClass):
			found = append(found,
				fmt.Sprintf("Forbid was set although no evacuator but %q has the turn", is.ActiveEvacuatorClass))
		}
	}
	return found
}

// brokenTurn says what is wrong with a hand-over.
func (w *Witness) brokenTurn(before, e *v1alpha1.Evacuation, consecutive bool) string {
	was, is := &before.Status, &e.Status
	if was.ActiveEvacuatorClass == is.ActiveEvacuatorClass {
		return ""
	}
	order := turns(e)
	from, to := slices.Index(order, was.ActiveEvacuatorClass), slices.Index(order, is.ActiveEvacuatorClass)
	handOver := fmt.Sprintf("the turn went from %q to %q", was.ActiveEvacuatorClass, is.ActiveEvacuatorClass)
	switch {
	case to < 0:
		return handOver + ", which is no evacuator"
	case to == len(order)-2 && from == to+1 && is.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDeployment:
		// Its evacuator takes up a turn again that it has declined.
		return ""
	case to < from:
		return handOver + ", which comes before it"
	case !consecutive:
		return ""
	case to != from+1:
		return fmt.Sprintf("%s, out of order: %s", handOver, strings.Join(order, ", "))
	case isWithdrawn(before) && !heldByOthers(before):
		return handOver + " although no instigator asks for it any more"
	case from < 0 || was.ActiveEvacuatorCompleted:
		return ""
	}
	patience := w.patience(before)
	since := was.ActiveEvacuatorSince
	if was.EvacuationProgressTimestamp != nil {
		since = was.EvacuationProgressTimestamp
	}
	if since == nil || is.ActiveEvacuatorSince == nil {
		return handOver + " and has no timestamp"
	}
	if waited := is.ActiveEvacuatorSince.Sub(since.Time); waited < patience {
		return fmt.Sprintf("%s %v after it reported, or became active; it may be silent for %v",
			handOver, waited, patience)
	}
	return ""
}

// patience is how long the active evacuator may be silent at least.
func (w *Witness) patience(e *v1alpha1.Evacuation) time.Duration {
	patience := longestSpecified
	if seconds := e.Spec.ProgressDeadlineSeconds; seconds != nil {
		patience = time.Duration(*seconds) * time.Second
	}
	if e.Status.EvacuationProgressTimestamp != nil {
		return patience
	}
	return min(patience, w.startDeadline)
}

// turns are the classes in the order of their turns. Those of equal priority cannot be told apart
// here: tests give each its own.
func turns(e *v1alpha1.Evacuation) []string {
	sorted := slices.Clone(e.Spec.Evacuators)
	slices.SortStableFunc(sorted, func(a, b v1alpha1.Evacuator) int { return int(b.Priority) - int(a.Priority) })
	var order []string
	for _, evacuator := range sorted {
		order = append(order, evacuator.EvacuatorClass)
	}
	return append(order, v1alpha1.EvacuatorClassEviction)
}

func isEvacuator(e *v1alpha1.Evacuation, class string) bool {
	return slices.ContainsFunc(e.Spec.Evacuators, func(evacuator v1alpha1.Evacuator) bool {
		return evacuator.EvacuatorClass == class
	})
}

func isComplete(e *v1alpha1.Evacuation) bool {
	return meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionComplete)
}

// isWithdrawn reports whether no instigator asks for an Evacuation any more.
func isWithdrawn(e *v1alpha1.Evacuation) bool {
	return e.DeletionTimestamp != nil || !slices.ContainsFunc(e.Finalizers, isInstigator)
}

func isInstigator(finalizer string) bool {
	return strings.HasPrefix(finalizer, v1alpha1.FinalizerInstigatorPrefix)
}

// Unsettled describes the Evacuations that have neither ended nor say what keeps them.
func (w *Witness) Unsettled() []string {
	var found []string
	for _, e := range w.Evacuations() {
		describe := func(what string) {
			found = append(found, fmt.Sprintf("Evacuation %s/%s %s: finalizers %v, deleted %v, status %+v",
				e.Namespace, e.Name, what, e.Finalizers, e.DeletionTimestamp, e.Status))
		}
		blocked := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
		switch {
		case isComplete(e):
		case isWithdrawn(e) && e.Status.EvacuationCancellationPolicy != v1alpha1.EvacuationCancellationPolicyForbid &&
			!heldByOthers(e):
			describe("is cancelled and still there")
		case isWithdrawn(e) && heldByOthers(e):
		case blocked == nil || blocked.Status != metav1.ConditionTrue:
			describe("has not ended and does not say why")
		case blocked.Message == "" || !wording.IsBlocked(blocked.Reason):
			describe("is blocked for no reason that there is")
		}
	}
	return found
}

func heldByOthers(e *v1alpha1.Evacuation) bool {
	return slices.ContainsFunc(e.Finalizers, func(finalizer string) bool { return !isInstigator(finalizer) })
}
