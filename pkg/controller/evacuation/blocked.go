// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/loop"
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
	v1alpha1.ReasonEvictionForbidden, v1alpha1.ReasonEvictionDenied, v1alpha1.ReasonEvictionError,
	v1alpha1.ReasonEvacuationHeld, v1alpha1.ReasonBudgetsHoldEachOther, v1alpha1.ReasonBudgetPodsCordoned,
}

// decideBlocked sets what keeps the pod of an active Evacuation from leaving. The queue of
// evictions tells most reasons (trouble.go in package eviction). Those that need more than the
// queue knows are below; recreated.go (pods that come back) and standoff.go (budgets that hold each
// other) have the longer ones.
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
	case d.status.ActiveEvacuatorClass != v1alpha1.EvacuatorClassEviction:
		d.decideProgress(s)
	case s.podType == v1alpha1.PodTypeDefault && s.standing != nil:
		d.wakeAt(s.now.Add(standingRetry))
		d.setBlocked(s, s.standing)
	case s.podType == v1alpha1.PodTypeDefault:
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
			Reason: v1alpha1.ReasonPodFinalizer,
			Message: fmt.Sprintf("The pod should have been gone at %s and is held by the finalizers %s. Check the controllers that added them.",
				since, strings.Join(s.pod.Finalizers, ", ")),
		})
	default:
		d.setBlocked(s, &eviction.Blocker{
			Reason:  v1alpha1.ReasonPodTerminating,
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
		Reason: v1alpha1.ReasonNodeUnreachable,
		Message: fmt.Sprintf("The kubelet of node %s does not respond, so it cannot confirm that the pod has stopped%s. "+
			"Bring the node back, or make sure that it is off and then taint it with %s.", s.pod.Spec.NodeName, grace, corev1.TaintNodeOutOfService),
	}
}

// decideWaiting explains a pod that waits for its eviction and is not blocked, if the queue says
// why.
func (d *decision) decideWaiting(s situation) {
	if s.nodeUnreachable || s.eviction.Message == "" || d.status.ActiveEvacuatorClass != v1alpha1.EvacuatorClassEviction {
		d.unlessUnreachable(s)
		return
	}
	d.setNotBlocked(s, v1alpha1.ReasonPodWaits, wording.Cut(s.eviction.Message, protocol.MaxMessage))
}

// unlessUnreachable clears Blocked, unless the node of a pod that an eviction can remove is
// unreachable. Other pods have evacuators on the node, which report that they do nothing.
func (d *decision) unlessUnreachable(s situation) {
	if s.nodeUnreachable && s.podType == v1alpha1.PodTypeDefault {
		d.setBlocked(s, unreachable(s))
		return
	}
	d.clearBlocked(s)
}

func noEvacuator(s situation) *eviction.Blocker {
	b := &eviction.Blocker{Reason: v1alpha1.ReasonNoEvacuator}
	switch s.podType {
	case v1alpha1.PodTypeStatic:
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
	before := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked)
	message := wording.Cut(b.Message, protocol.MaxMessage)
	isNew := before == nil || before.Status != metav1.ConditionTrue || before.Reason != b.Reason ||
		slices.Contains(eventPerText, b.Reason) && before.Message != message
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: b.Reason, Message: message,
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
	if was := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked); was != nil && was.Reason != reasonNotBlocked {
		d.setNotBlocked(s, reasonNotBlocked, "")
	}
}

// setNotBlocked sets Blocked to False with a reason.
func (d *decision) setNotBlocked(s situation, reason, message string) {
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		LastTransitionTime: *protocol.Timestamp(s.now), ObservedGeneration: s.evacuation.Generation,
	})
}

// blockerOf returns the blocker in the stored condition, or nil if the Evacuation is not blocked.
func blockerOf(status *v1alpha1.EvacuationStatus) *eviction.Blocker {
	blocked := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked)
	if blocked == nil || blocked.Status != metav1.ConditionTrue {
		return nil
	}
	return &eviction.Blocker{Reason: blocked.Reason, Message: blocked.Message}
}

// heldCheck is how often an Evacuation that foreign finalizers keep is reconciled without an event:
// this controller does not watch whether a maintenance still asks for the pod.
const heldCheck = time.Minute

// foreignHolders returns the finalizers that keep an Evacuation which is being deleted and has no
// instigator. The name of an Evacuation is canonical: while these keep it, no new one for the same
// pod can be created.
func foreignHolders(evacuation *v1alpha1.Evacuation) []string {
	if evacuation.DeletionTimestamp == nil || protocol.HasInstigator(evacuation.Finalizers) {
		return nil
	}
	return evacuation.Finalizers
}

// hasForeignFinalizer reports whether an Evacuation has a finalizer that is no instigator's.
func hasForeignFinalizer(evacuation *v1alpha1.Evacuation) bool {
	return slices.ContainsFunc(evacuation.Finalizers, func(finalizer string) bool {
		_, isInstigator := protocol.IsInstigatorFinalizer(finalizer)
		return !isInstigator
	})
}

// isDeadButHeld reports whether an Evacuation is over for its instigators and evacuators and only
// foreign finalizers keep it.
func isDeadButHeld(evacuation *v1alpha1.Evacuation) bool {
	return len(foreignHolders(evacuation)) > 0 && !protocol.IsComplete(evacuation) &&
		evacuation.Status.EvacuationCancellationPolicy != v1alpha1.EvacuationCancellationPolicyForbid
}

// decideHeld makes sure that foreign finalizers do not keep the pod on its node: if a maintenance
// still asks the pod to leave, the pod is evicted within its budget, and the message names the
// finalizers. Otherwise nothing is done and the pod stays.
func (d *decision) decideHeld(s situation, holders []string) {
	d.countFailedEvictions(s)
	d.wakeAt(s.now.Add(heldCheck))
	switch {
	case !s.targeted:
		d.clearBlocked(s)
		return
	case s.pod.DeletionTimestamp != nil:
		d.decideTerminating(s)
		return
	}
	canLeave := s.podType == v1alpha1.PodTypeDefault ||
		s.podType == v1alpha1.PodTypeDaemonSet && !s.replaced
	d.evict = canLeave && !s.now.Before(heldUntil(s))
	d.setBlocked(s, held(s, d.evict, holders))
}

func held(s situation, evict bool, holders []string) *eviction.Blocker {
	b := &eviction.Blocker{Reason: v1alpha1.ReasonEvacuationHeld}
	names := protocol.OneLine(strings.Join(holders, ", "), protocol.MaxMessage/2)
	b.Message = fmt.Sprintf("The Evacuation is being deleted and is held by the finalizers %s, "+
		"while a NodeMaintenance still asks the pod to leave. No evacuator works on it.", names)
	if evict {
		b.Message += " The server evicts the pod, within its disruption budget if it has one."
	}
	b.Message += " Remove these finalizers or repair the controllers that set them."
	if evict && s.eviction.Blocker != nil {
		b.Message += " The eviction waits: " + s.eviction.Blocker.Message
	}
	return b
}

// decideProgress reports an active evacuator that has sent no report for half of its deadline:
// early enough for a user to fix it before the next one becomes active.
func (d *decision) decideProgress(s situation) {
	deadline := d.deadline(s)
	if d.status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDeployment {
		if s.standing != nil {
			d.setBlocked(s, s.standing)
			return
		}
		if at := surgePendingAt(s, deadline); s.now.Before(at) {
			d.wakeAt(at)
			d.unlessUnreachable(s)
		} else {
			d.setBlocked(s, d.surgePending(deadline))
		}
		return
	}
	quiet := d.quietAt(s, deadline)
	switch {
	case !deadline.runs:
		d.unlessUnreachable(s)
	case s.now.Before(quiet):
		d.wakeAt(quiet)
		d.unlessUnreachable(s)
	default:
		d.setBlocked(s, d.notProgressing(s, deadline))
	}
}

// quietAt is when the active evacuator has not reported for too long. As with its deadline, a new
// leader gives it time to report first, but keeps the condition that the previous leader set.
func (d *decision) quietAt(s situation, deadline deadline) time.Time {
	quiet := deadline.since.Add(deadline.length / 2)
	if was := blockerOf(&d.status); was != nil && was.Reason == v1alpha1.ReasonEvacuatorNotProgressing {
		return quiet
	}
	if grace := s.servingSince.Add(min(deadline.length, longestGrace) / 2); quiet.Before(grace) {
		return grace
	}
	return quiet
}

func (d *decision) notProgressing(s situation, deadline deadline) *eviction.Blocker {
	active := d.status.ActiveEvacuatorClass
	silent := fmt.Sprintf("Evacuator %s has not reported since %s", active, deadline.since.UTC().Format(time.RFC3339))
	if !deadline.reported {
		silent = fmt.Sprintf("Evacuator %s has not reported since it became active at %s", active, deadline.since.UTC().Format(time.RFC3339))
	}
	if d.onlyAgentCanAct(s) && !protocol.IsWithdrawn(s.evacuation) {
		return &eviction.Blocker{
			Reason: v1alpha1.ReasonEvacuatorNotProgressing,
			Message: fmt.Sprintf("%s. It is the node agent of node %s, and nothing else can remove a static pod: check that haulout-node-agent runs there "+
				"and what it says about the pod, or move the manifest of the pod away.", silent, s.pod.Spec.NodeName),
		}
	}
	end := fmt.Sprintf("%s becomes active", protocol.Next(s.evacuation.Spec.Evacuators, active))
	if protocol.IsWithdrawn(s.evacuation) {
		end = "the evacuation ends, as no instigator requests it any more,"
	}
	return &eviction.Blocker{
		Reason: v1alpha1.ReasonEvacuatorNotProgressing,
		Message: fmt.Sprintf("%s. Unless it does, %s at %s. Check that the controller behind it runs and what it says about the pod.",
			silent, end, deadline.at.UTC().Format(time.RFC3339)),
	}
}

// surgePendingAt is when the evacuator of Deployments has made no progress for the surge timeout.
// The evacuator stops reporting when the replacement makes no progress. If the surge timeout does
// not end within the deadline, half of the deadline counts.
func surgePendingAt(s situation, deadline deadline) time.Time {
	at := deadline.since.Add(s.surgeTimeout)
	if !at.Before(deadline.at) {
		at = deadline.since.Add(deadline.length / 2)
	}
	// A new leader lets the evacuator report first, but keeps the condition that the previous
	// leader set.
	if was := blockerOf(&s.evacuation.Status); was != nil && was.Reason == v1alpha1.ReasonSurgePending {
		return at
	}
	if grace := s.servingSince.Add(min(s.surgeTimeout, longestGrace) / 2); at.Before(grace) {
		return grace
	}
	return at
}

// surgePending returns the blocker of a pod whose replacement is not available. The evacuator's
// report is quoted.
func (d *decision) surgePending(deadline deadline) *eviction.Blocker {
	message := fmt.Sprintf("The replacement of this pod is not available, and there has been no progress since %s. "+
		"Free capacity for one more pod of the Deployment or fix what prevents it from starting; "+
		"set the annotation %s on the Deployment if its pods start slowly, "+
		"or %s: %s to evict its pods without a replacement, as their disruption budget allows.",
		deadline.since.UTC().Format(time.RFC3339), v1alpha1.AnnotationSurgeTimeout,
		v1alpha1.AnnotationSurge, v1alpha1.SurgeDisabled)
	if deadline.reported {
		if said := protocol.OneLine(d.status.Message, protocol.MaxMessage/4); said != "" {
			message += fmt.Sprintf(" Last report of the evacuator: %q", said)
		}
	}
	return &eviction.Blocker{Reason: v1alpha1.ReasonSurgePending, Message: message}
}

// explainKept adds to the message that a DaemonSet pod is kept, because its budget has allowed no
// disruption for too long, and does not block the drain. The status write makes the maintenance
// count the pod as kept.
func (d *decision) explainKept(s situation, b *eviction.Blocker) *eviction.Blocker {
	if b == nil || !d.isRequested(s) || !protocol.IsBudgetReason(b.Reason) {
		return b
	}
	since := s.now
	blocked := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked)
	if blocked != nil && blocked.Status == metav1.ConditionTrue {
		if !protocol.IsBudgetReason(blocked.Reason) {
			// Until now something else blocked the pod: the patience with its budget begins now.
			blocked.LastTransitionTime = *protocol.Timestamp(s.now)
		}
		since = blocked.LastTransitionTime.Time
	}
	if b.Reason != v1alpha1.ReasonPodDisruptionBudgetSyncFailed {
		if at := since.Add(s.budgetPatience); s.now.Before(at) {
			d.wakeAt(at)
			return b
		}
	}
	kept := *b
	kept.Message += " The pod is kept on its node since " + since.UTC().Format(time.RFC3339) +
		" and does not block the drain. It is evicted if the budget opens."
	return &kept
}

// stoppingShownAfter is how long a pod has to be stopping before its Evacuation says so. Most pods
// stop sooner, and then cost no write of the status.
const stoppingShownAfter = 5 * time.Second

// decideStopping explains a pod within its grace period. It is blocked when it has been stopping
// for longer than --long-grace. A shorter grace period is never Blocked, since its end is near and
// known.
func (d *decision) decideStopping(s situation) {
	grace := s.pod.DeletionGracePeriodSeconds
	if grace == nil {
		d.clearBlocked(s)
		return
	}
	ends := s.pod.DeletionTimestamp.Time
	since := ends.Add(-time.Duration(*grace) * time.Second)
	if shown := since.Add(stoppingShownAfter); s.now.Before(shown) {
		d.wakeAt(shown)
		d.clearBlocked(s)
		return
	}
	long := since.Add(s.longGrace)
	if long.Before(ends) && !s.now.Before(long) {
		d.setBlocked(s, &eviction.Blocker{
			Reason: v1alpha1.ReasonLongGracePeriod,
			Message: fmt.Sprintf("Pod %s is stopping until %s, %s after it was told to stop, which is longer than --long-grace (%s). "+
				"Check why it does not stop earlier; kubectl delete pod with a shorter --grace-period ends it sooner.",
				s.pod.Name, ends.UTC().Format(time.RFC3339), ends.Sub(since), s.longGrace),
		})
		return
	}
	if long.Before(ends) {
		d.wakeAt(long)
	}
	message := fmt.Sprintf("The pod is stopping until %s, the end of its grace period.", ends.UTC().Format(time.RFC3339))
	d.setNotBlocked(s, v1alpha1.ReasonPodStopping, message)
	if d.status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction {
		// The message of an evacuator belongs to the evacuator.
		d.status.Message = message
	}
}

// noteOutcome reports, once per text, an error that prevents the reconciliation of an Evacuation,
// and records whether it took long. A conflict is neither a failure nor a success.
func (c *Controller) noteOutcome(ctx context.Context, key types.NamespacedName, err error, tookLong bool) {
	if err == nil {
		c.failures.Forget(key)
		c.hung.Delete(key)
		return
	}
	if ctx.Err() != nil || loop.IsOnlyConflict(err) {
		return
	}
	if tookLong {
		c.hung.Store(key, nil)
	} else {
		c.hung.Delete(key)
	}
	c.failures.Note(key, "", protocol.OneLine(err.Error(), protocol.MaxMessage/2))
	failure, _ := c.failures.Of(key)
	if failure == nil || !c.failures.Tell(key, failure.Text) {
		return
	}
	evacuation, err := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
	if err != nil {
		if apierrors.IsNotFound(err) {
			c.failures.Forget(key)
			c.hung.Delete(key)
		}
		return
	}
	c.send(evacuation, []event{{corev1.EventTypeWarning, EventBlocked, actionEvacuate,
		fmt.Sprintf("Evacuation of pod %s failed and will be retried: %s", evacuation.Spec.PodRef.Name, failure.Text)}})
}

// hangs reports whether the last reconciliation of an Evacuation took long before it failed.
func (c *Controller) hangs(key types.NamespacedName) bool {
	_, hung := c.hung.Load(key)
	return hung
}

// notReleased returns the blocker of a withdrawn Evacuation whose finalizers cannot be removed.
func notReleased(failure string) *eviction.Blocker {
	return &eviction.Blocker{
		Reason: v1alpha1.ReasonEvictionError,
		Message: fmt.Sprintf("The Evacuation is cancelled and cannot be released: %s. The server retries. "+
			"Check which policy or webhook refuses the writes of the server.", failure),
	}
}
