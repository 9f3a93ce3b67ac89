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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// longestSpecified is the default of spec.progressDeadlineSeconds.
const longestSpecified = 30 * time.Minute

// Protocol describes the violations of the Evacuation protocol. startDeadline is the minimum time
// that the server must give an evacuator for its first report.
func Protocol(log Log, startDeadline time.Duration) []string {
	var found []string
	live, names := map[types.UID]*v1alpha1.Evacuation{}, map[types.UID]string{}
	for o, e := range Each[*v1alpha1.Evacuation](log) {
		if o.Type == watch.Deleted {
			delete(live, e.UID)
			continue
		}
		var texts []string
		if before := live[e.UID]; before == nil {
			texts = checkName(names, e)
		} else {
			texts = broken(before, e, startDeadline, !o.relisted)
		}
		for _, text := range texts {
			found = append(found, fmt.Sprintf("%s Evacuation %s/%s: %s",
				o.Seen.UTC().Format("15:04:05.000"), e.Namespace, e.Name, text))
		}
		live[e.UID] = e
	}
	return found
}

// checkName checks that an Evacuation is named after its pod and that the pod has no second
// Evacuation.
func checkName(names map[types.UID]string, e *v1alpha1.Evacuation) []string {
	var found []string
	ref, name := e.Spec.PodRef, e.Namespace+"/"+e.Name
	if want := string(ref.UID) + "-" + ref.Name; e.Name != want {
		found = append(found, fmt.Sprintf("it is not named %s after its pod", want))
	}
	if first, known := names[ref.UID]; known && first != name {
		found = append(found, fmt.Sprintf("pod %s has two Evacuations, the other is %s", ref.UID, first))
	}
	names[ref.UID] = name
	return found
}

// broken describes the rules that the change from one state of an Evacuation to a later state
// breaks. Unless the states are consecutive, the Evacuation may have had others in between.
func broken(before, e *v1alpha1.Evacuation, startDeadline time.Duration, consecutive bool) []string {
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
	if text := brokenTurn(before, e, startDeadline, consecutive); text != "" {
		found = append(found, text)
	}
	if consecutive && is.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid {
		switch {
		case is.ActiveEvacuatorClass != was.ActiveEvacuatorClass:
			found = append(found, fmt.Sprintf("Forbid is still set although %s is no longer active", was.ActiveEvacuatorClass))
		case was.EvacuationCancellationPolicy != is.EvacuationCancellationPolicy && isWithdrawn(before):
			found = append(found, "Forbid was set when the Evacuation had no instigator")
		case !isEvacuator(e, is.ActiveEvacuatorClass):
			found = append(found,
				fmt.Sprintf("Forbid was set while %q was active, which is not an evacuator", is.ActiveEvacuatorClass))
		}
	}
	return found
}

// brokenTurn returns what is wrong with a change of the active evacuator, or "".
func brokenTurn(before, e *v1alpha1.Evacuation, startDeadline time.Duration, consecutive bool) string {
	was, is := &before.Status, &e.Status
	if was.ActiveEvacuatorClass == is.ActiveEvacuatorClass {
		return ""
	}
	order := turns(e)
	from, to := slices.Index(order, was.ActiveEvacuatorClass), slices.Index(order, is.ActiveEvacuatorClass)
	handOver := fmt.Sprintf("the active evacuator changed from %q to %q", was.ActiveEvacuatorClass, is.ActiveEvacuatorClass)
	switch {
	case to < 0:
		return handOver + ", which is not an evacuator"
	case to == len(order)-2 && from == to+1 && is.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDeployment:
		// The evacuator of Deployments may become active again after it has declined.
		return ""
	case to < from:
		return handOver + ", which comes before it"
	case !consecutive:
		return ""
	case to != from+1:
		return fmt.Sprintf("%s, out of order: %s", handOver, strings.Join(order, ", "))
	case isWithdrawn(before) && !heldByOthers(before):
		return handOver + " although the Evacuation had no instigator"
	case from < 0 || was.ActiveEvacuatorCompleted:
		return ""
	}
	patience := patienceOf(before, startDeadline)
	since := was.ActiveEvacuatorSince
	if was.EvacuationProgressTimestamp != nil {
		since = was.EvacuationProgressTimestamp
	}
	if since == nil || is.ActiveEvacuatorSince == nil {
		return handOver + " and has no timestamp"
	}
	if waited := is.ActiveEvacuatorSince.Sub(since.Time); waited < patience {
		return fmt.Sprintf("%s %v after the first one reported or became active; it may be silent for %v",
			handOver, waited, patience)
	}
	return ""
}

// patienceOf returns the minimum time for which the active evacuator may send no report.
func patienceOf(e *v1alpha1.Evacuation, startDeadline time.Duration) time.Duration {
	patience := longestSpecified
	if seconds := e.Spec.ProgressDeadlineSeconds; seconds != nil {
		patience = time.Duration(*seconds) * time.Second
	}
	if e.Status.EvacuationProgressTimestamp != nil {
		return patience
	}
	return min(patience, startDeadline)
}

// turns returns the classes in the order in which they become active. Tests give each class a
// different priority, because the order of equal priorities is not defined here.
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

// isWithdrawn reports whether an Evacuation has no instigator left.
func isWithdrawn(e *v1alpha1.Evacuation) bool {
	return e.DeletionTimestamp != nil || !slices.ContainsFunc(e.Finalizers, isInstigator)
}

func isInstigator(finalizer string) bool {
	return strings.HasPrefix(finalizer, v1alpha1.FinalizerInstigatorPrefix)
}

// Unsettled describes the Evacuations that have not ended and do not report what blocks them. An
// Evacuation that waits for its client is settled: it ends when the client gives up.
func Unsettled(evacuations []*v1alpha1.Evacuation) []string {
	var found []string
	for _, e := range evacuations {
		describe := func(what string) {
			found = append(found, fmt.Sprintf("Evacuation %s/%s %s: finalizers %v, deleted %v, status %+v",
				e.Namespace, e.Name, what, e.Finalizers, e.DeletionTimestamp, e.Status))
		}
		blocked := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
		switch {
		case isComplete(e):
		case isWithdrawn(e) && e.Status.EvacuationCancellationPolicy != v1alpha1.EvacuationCancellationPolicyForbid &&
			!heldByOthers(e):
			describe("is cancelled and still exists")
		case isWithdrawn(e) && heldByOthers(e):
		case WaitsForItsClient(e) && (blocked == nil || blocked.Status != metav1.ConditionTrue):
		case blocked == nil || blocked.Status != metav1.ConditionTrue:
			describe("has not ended and does not report why")
		case blocked.Message == "" || !wording.IsBlocked(blocked.Reason):
			describe("is blocked for an unknown reason")
		}
	}
	return found
}

// WaitsForItsClient reports whether the evacuators of a pod are done that only another client wants
// to evict. The server leaves the eviction to the client.
func WaitsForItsClient(e *v1alpha1.Evacuation) bool {
	instigators := slices.DeleteFunc(slices.Clone(e.Finalizers), func(finalizer string) bool { return !isInstigator(finalizer) })
	return e.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction && slices.Equal(instigators, []string{v1alpha1.FinalizerInstigatorRawEviction})
}

func heldByOthers(e *v1alpha1.Evacuation) bool {
	return slices.ContainsFunc(e.Finalizers, func(finalizer string) bool { return !isInstigator(finalizer) })
}

// Counts is the number of times that a log has each part of the protocol. A log without Evacuations
// breaks no rule but also proves nothing.
type Counts struct {
	// Evacuations counts all Evacuations, and HandOvers the changes of the active evacuator.
	// Completed counts the Evacuations that ended because their pod was gone, Cancelled the
	// Evacuations that ended because they had no instigator, and Vanished the Evacuations that
	// ended without a condition.
	Evacuations, HandOvers, Completed, Cancelled, Vanished int
	// Forbidden counts the Evacuations whose evacuator at some time forbade the cancellation.
	Forbidden int
	// Blocked counts the Evacuations that were blocked at some time, by reason.
	Blocked map[string]int
}

func (c Counts) String() string {
	return fmt.Sprintf(
		"%d Evacuations, %d hand-overs; %d completed, %d were cancelled, %d vanished; %d could not be cancelled "+
			"for a while; blocked were %v",
		c.Evacuations, c.HandOvers, c.Completed, c.Cancelled, c.Vanished, c.Forbidden, c.Blocked,
	)
}

// CountsOf returns the Counts of a log.
func CountsOf(log Log) Counts {
	c := Counts{Blocked: map[string]int{}}
	live, counted := map[types.UID]*v1alpha1.Evacuation{}, map[string]bool{}
	for o, e := range Each[*v1alpha1.Evacuation](log) {
		// once reports whether a statement about the Evacuation is true for the first time.
		once := func(what string, is bool) int {
			key := what + " " + string(e.UID)
			if !is || counted[key] {
				return 0
			}
			counted[key] = true
			return 1
		}
		before := live[e.UID]
		if o.Type == watch.Deleted {
			delete(live, e.UID)
			if before != nil && !isComplete(before) {
				c.Vanished++
			}
			continue
		}
		live[e.UID] = e
		if before == nil {
			c.Evacuations++
		} else if was := before.Status.ActiveEvacuatorClass; was != "" && was != e.Status.ActiveEvacuatorClass {
			c.HandOvers++
		}
		c.Forbidden += once("forbidden",
			e.Status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid)
		if meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionBlocked) {
			reason := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked).Reason
			c.Blocked[reason] += once(reason, true)
		}
		if isComplete(e) {
			cancelled := completionOf(e) == v1alpha1.ReasonCancelled
			c.Cancelled += once("cancelled", cancelled)
			c.Completed += once("completed", !cancelled)
		}
	}
	return c
}

// completionOf returns the reason of an Evacuation that is complete.
func completionOf(e *v1alpha1.Evacuation) string {
	return meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionComplete).Reason
}
