// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/eviction"
)

const (
	// overdueAfter is how long a pod may still exist after the end of its grace period. The kubelet
	// needs a moment to report that it has stopped.
	overdueAfter = 30 * time.Second
	// reasonNotBlocked is the reason of Blocked=False, except while the pod waits or is stopping.
	reasonNotBlocked = "NotBlocked"
)

// eventPerText are the reasons for which each change of the message is an event. The messages of
// the other reasons have numbers that change all the time.
var eventPerText = []string{
	maintenancev1alpha1.ReasonEvictionForbidden, maintenancev1alpha1.ReasonEvictionDenied, maintenancev1alpha1.ReasonEvictionError,
	maintenancev1alpha1.ReasonEvacuationHeld, maintenancev1alpha1.ReasonBudgetsHoldEachOther, maintenancev1alpha1.ReasonBudgetPodsCordoned,
}

// decideBlocked sets what keeps the pod of an active Evacuation from leaving. The queue of
// evictions tells most reasons (trouble.go in package eviction). Those that need more than the
// queue knows are in files of their own: failures.go (writes that fail), held.go (foreign
// finalizers), kept.go (DaemonSet pods), pending.go (surge), progress.go (evacuators), recreated.go
// (pods that come back), standoff.go (budgets that hold each other) and stopping.go (grace
// periods).
func (d *decision) decideBlocked(s situation) {
	d.countFailedEvictions(s)
	d.quoteQueue(s)
	switch {
	case s.pod.DeletionTimestamp != nil:
		d.decideTerminating(s)
	case d.evict:
		// Until the queue knows the pod, keep the previous condition.
		if s.eviction.Known {
			if b := d.explainKept(s, d.explainBudget(s, s.eviction.Blocker)); b != nil {
				d.setBlocked(s, b)
			} else {
				d.decideWaiting(s)
			}
		}
	case d.status.ActiveEvacuatorClass != maintenancev1alpha1.EvacuatorClassEviction:
		d.decideProgress(s)
	case s.podType == maintenancev1alpha1.PodTypeDefault && s.standing != nil:
		d.wakeAt(s.now.Add(standingRetry))
		d.setBlocked(s, s.standing)
	case s.podType == maintenancev1alpha1.PodTypeDefault:
		until := heldUntil(s)
		d.wakeAt(until)
		d.setBlocked(s, recreated(s, until))
	default:
		d.setBlocked(s, noEvacuator(s))
	}
}

// decideTerminating explains a terminating pod. A node that cannot stop it comes first: with a long
// grace period it would otherwise remain for hours without a reason.
func (d *decision) decideTerminating(s situation) {
	overdue := s.pod.DeletionTimestamp.Add(overdueAfter)
	switch since := s.pod.DeletionTimestamp.UTC().Format(time.RFC3339); {
	case s.nodeUnreachable:
		d.setBlocked(s, unreachable(s))
	case s.now.Before(overdue):
		d.wakeAt(overdue)
		d.decideStopping(s)
	case len(s.pod.Finalizers) > 0:
		d.setBlocked(s, &eviction.Blocker{
			Reason: maintenancev1alpha1.ReasonPodFinalizer,
			Message: fmt.Sprintf("The pod should have been gone at %s and is held by the finalizers %s. Check the controllers that added them.",
				since, strings.Join(s.pod.Finalizers, ", ")),
		})
	default:
		d.setBlocked(s, &eviction.Blocker{
			Reason:  maintenancev1alpha1.ReasonPodTerminating,
			Message: fmt.Sprintf("The grace period of the pod ended at %s and it has not stopped. Check its containers and the kubelet of node %s.", since, s.pod.Spec.NodeName),
		})
	}
}

// unreachable returns the blocker of a pod whose kubelet does not respond, whatever else the pod
// waits for: the pod cannot leave without its kubelet.
func unreachable(s situation) *eviction.Blocker {
	grace := ""
	if ends := s.pod.DeletionTimestamp; ends != nil {
		verb := "ends"
		if !s.now.Before(ends.Time) {
			verb = "ended"
		}
		grace = fmt.Sprintf(" (its grace period %s at %s)", verb, ends.UTC().Format(time.RFC3339))
	}
	return &eviction.Blocker{
		Reason: maintenancev1alpha1.ReasonNodeUnreachable,
		Message: fmt.Sprintf("The kubelet of node %s does not respond, so it cannot confirm that the pod has stopped%s. "+
			"Bring the node back, or make sure that it is off and then taint it with %s.", s.pod.Spec.NodeName, grace, corev1.TaintNodeOutOfService),
	}
}

// decideWaiting explains a pod that waits for its eviction and is not blocked, if the queue says
// why.
func (d *decision) decideWaiting(s situation) {
	if s.nodeUnreachable || s.eviction.Message == "" || d.status.ActiveEvacuatorClass != maintenancev1alpha1.EvacuatorClassEviction {
		d.unlessUnreachable(s)
		return
	}
	d.setNotBlocked(s, maintenancev1alpha1.ReasonPodWaits, wording.Cut(s.eviction.Message, maxMessage))
}

// unlessUnreachable clears Blocked, unless the node of a pod that an eviction can remove is
// unreachable. Other pods have evacuators on the node, which report that they do nothing.
func (d *decision) unlessUnreachable(s situation) {
	if s.nodeUnreachable && s.podType == maintenancev1alpha1.PodTypeDefault {
		d.setBlocked(s, unreachable(s))
		return
	}
	d.clearBlocked(s)
}

func noEvacuator(s situation) *eviction.Blocker {
	b := &eviction.Blocker{Reason: maintenancev1alpha1.ReasonNoEvacuator}
	switch s.podType {
	case maintenancev1alpha1.PodTypeStatic:
		b.Message = "No evacuator is left that can remove the static pod, and evicting it would not stop it. Move its manifest away on the node; " +
			"or run the node agent there and delete this Evacuation, which a maintenance then requests again."
	default:
		b.Message = "No evacuator is left that can remove the DaemonSet pod, and its DaemonSet would immediately recreate an evicted one. " +
			"Keep the DaemonSet off the node, or enable its evacuator."
	}
	return b
}

// setBlocked sets the condition Blocked to a blocker; nil clears it.
func (d *decision) setBlocked(s situation, b *eviction.Blocker) {
	if b == nil {
		d.clearBlocked(s)
		return
	}
	before := meta.FindStatusCondition(d.status.Conditions, maintenancev1alpha1.ConditionBlocked)
	message := wording.Cut(b.Message, maxMessage)
	isNew := before == nil || before.Status != metav1.ConditionTrue || before.Reason != b.Reason ||
		slices.Contains(eventPerText, b.Reason) && before.Message != message
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: maintenancev1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: b.Reason, Message: message,
		LastTransitionTime: *protocol.Timestamp(s.now), ObservedGeneration: s.evacuation.Generation,
	})
	if isNew {
		d.events = append(d.events, event{corev1.EventTypeWarning, EventBlocked, actionEvacuate,
			fmt.Sprintf("Pod %s cannot leave (%s): %s", s.evacuation.Spec.PodRef.Name, b.Reason, message)})
	}
}

// clearBlocked sets Blocked to False. An Evacuation that was never blocked does not get the
// condition.
func (d *decision) clearBlocked(s situation) {
	if was := meta.FindStatusCondition(d.status.Conditions, maintenancev1alpha1.ConditionBlocked); was != nil && was.Reason != reasonNotBlocked {
		d.setNotBlocked(s, reasonNotBlocked, "")
	}
}

// setNotBlocked sets Blocked to False with a reason.
func (d *decision) setNotBlocked(s situation, reason, message string) {
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: maintenancev1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		LastTransitionTime: *protocol.Timestamp(s.now), ObservedGeneration: s.evacuation.Generation,
	})
}

// blockerOf returns the blocker in the stored condition, or nil if the Evacuation is not blocked.
func blockerOf(status *maintenancev1alpha1.EvacuationStatus) *eviction.Blocker {
	blocked := meta.FindStatusCondition(status.Conditions, maintenancev1alpha1.ConditionBlocked)
	if blocked == nil || blocked.Status != metav1.ConditionTrue {
		return nil
	}
	return &eviction.Blocker{Reason: blocked.Reason, Message: blocked.Message}
}
