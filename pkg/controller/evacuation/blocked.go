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
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/eviction"
)

const (
	// overdueAfter is how long after the end of its grace period a pod may still exist. The kubelet
	// needs a moment to report that the pod has stopped.
	overdueAfter = 30 * time.Second
	// stoppingShownAfter is how long a pod may be stopping before its Evacuation reports it. Most
	// pods stop sooner, and then this status write is not needed.
	stoppingShownAfter = 5 * time.Second
	// reasonNotBlocked is the reason of Blocked=False, except while the pod waits or is stopping.
	reasonNotBlocked = "NotBlocked"
)

// eventPerText are the reasons for which an event is sent whenever the message changes. The
// messages of all other reasons contain numbers that change often.
var eventPerText = []string{
	v1alpha1.ReasonEvictionForbidden, v1alpha1.ReasonEvictionDenied, v1alpha1.ReasonEvictionError,
	v1alpha1.ReasonEvacuationHeld, v1alpha1.ReasonBudgetPodsCordoned,
}

// blockedCheck returns the reason and the message of the condition Blocked if its cause applies to
// the pod, otherwise nil. A reason that does not block the pod makes the condition False. If the
// cause may begin to apply without an event, the check sets wake.
type blockedCheck func(*decision, situation) *eviction.Blocker

// blockedChecks are the checks for an Evacuation that is not complete. The first check that returns
// a blocker sets the condition Blocked. The reasons of the eviction queue are in blocked.go of
// package eviction.
var blockedChecks = []blockedCheck{
	(*decision).cannotBeReleased,  // EvictionError
	(*decision).heldAndNotAsked,   // not blocked
	(*decision).stopsOnDeadNode,   // NodeUnreachable
	(*decision).keptByFinalizer,   // PodFinalizer
	(*decision).doesNotStop,       // PodTerminating
	(*decision).stopsForLong,      // LongGracePeriod
	(*decision).stops,             // not blocked: PodStopping
	(*decision).held,              // EvacuationHeld
	(*decision).isPaused,          // not blocked: Paused
	(*decision).unknownToQueue,    // as before
	(*decision).refused,           // the reasons of the queue, or of budgets and maintenances
	(*decision).waits,             // not blocked: PodWaits
	(*decision).mustStay,          // ReplicaFailure; not blocked: PodWaits
	(*decision).waitsForSurge,     // SurgePending
	(*decision).evacuatorIsSilent, // EvacuatorNotProgressing
	(*decision).keepsComingBack,   // Recreated
	(*decision).hasNoEvacuator,    // NoEvacuator
	(*decision).waitsOnDeadNode,   // NodeUnreachable
}

func (d *decision) decideBlocked(s situation) {
	for _, check := range blockedChecks {
		if found := check(d, s); found != nil {
			d.setBlocked(s, *found)
			return
		}
	}
	d.setBlocked(s, notBlocked)
}

// notBlocked makes the condition False, and asBefore keeps the stored condition.
var (
	notBlocked = eviction.Blocker{Reason: reasonNotBlocked}
	asBefore   = eviction.Blocker{}
)

// setBlocked sets the condition Blocked. It does not add the condition while the Evacuation has
// never been blocked.
func (d *decision) setBlocked(s situation, b eviction.Blocker) {
	before := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked)
	if b == asBefore || b == notBlocked && (before == nil || before.Reason == reasonNotBlocked) {
		return
	}
	message, status := wording.Cut(b.Message, protocol.MaxMessage), metav1.ConditionFalse
	if wording.IsBlocked(b.Reason) || isInherited(s, b) {
		status = metav1.ConditionTrue
	}
	isNew := status == metav1.ConditionTrue && (before == nil || before.Status != status || before.Reason != b.Reason ||
		slices.Contains(eventPerText, b.Reason) && before.Message != message)
	d.set(s, v1alpha1.ConditionBlocked, status, b.Reason, message)
	if isNew {
		d.events = append(d.events, event{corev1.EventTypeWarning, EventBlocked, actionEvacuate,
			fmt.Sprintf("Pod %s cannot leave (%s): %s", s.evacuation.Spec.PodRef.Name, b.Reason, message)})
	}
}

// isInherited reports whether a blocker is the stored one. The eviction queue returns the stored
// blocker until it has tried the pod. Another version of the server may have stored it with a
// reason that this version does not know. The pod then counts as blocked because the stored status
// is True.
func isInherited(s situation, b eviction.Blocker) bool {
	stored := blockerOf(&s.evacuation.Status)
	return stored != nil && *stored == b
}

// blockerOf returns the blocker in the stored condition, or nil if the Evacuation is not blocked.
func blockerOf(status *v1alpha1.EvacuationStatus) *eviction.Blocker {
	blocked := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked)
	if blocked == nil || blocked.Status != metav1.ConditionTrue {
		return nil
	}
	return &eviction.Blocker{Reason: blocked.Reason, Message: blocked.Message}
}

// cannotBeReleased returns the blocker of a cancelled Evacuation whose finalizers cannot be
// removed.
func (d *decision) cannotBeReleased(s situation) *eviction.Blocker {
	switch {
	case d.release == releaseNone:
		return nil
	case s.failure == "":
		return &asBefore
	}
	return &eviction.Blocker{
		Reason: v1alpha1.ReasonEvictionError,
		Message: fmt.Sprintf("The Evacuation is cancelled, but the server cannot remove its finalizers or delete it: %s. The server retries. "+
			"Check which policy or webhook refuses the writes of the server.", s.failure),
	}
}

// heldAndNotAsked returns notBlocked if foreign finalizers keep the Evacuation, but no maintenance
// drains the pod any more: the pod stays.
func (d *decision) heldAndNotAsked(s situation) *eviction.Blocker {
	if !isDeadButHeld(s.evacuation) || s.targeted {
		return nil
	}
	return &notBlocked
}

func isStopping(s situation) bool { return s.pod.DeletionTimestamp != nil }

// stopsOnDeadNode returns the blocker of a stopping pod on an unreachable node. It runs before the
// other checks of stopping pods: otherwise a pod with a long grace period would have no reason for
// hours.
func (d *decision) stopsOnDeadNode(s situation) *eviction.Blocker {
	if !isStopping(s) || !s.nodeUnreachable {
		return nil
	}
	return unreachable(s)
}

// keptByFinalizer returns the blocker of a pod that has stopped and cannot be deleted because of
// its finalizers.
func (d *decision) keptByFinalizer(s situation) *eviction.Blocker {
	if !d.isOverdue(s) || len(s.pod.Finalizers) == 0 {
		return nil
	}
	return &eviction.Blocker{
		Reason: v1alpha1.ReasonPodFinalizer,
		Message: fmt.Sprintf("The pod should have been gone at %s and is held by the finalizers %s. Check the controllers that added them.",
			s.pod.DeletionTimestamp.UTC().Format(time.RFC3339), strings.Join(s.pod.Finalizers, ", ")),
	}
}

func (d *decision) doesNotStop(s situation) *eviction.Blocker {
	if !d.isOverdue(s) {
		return nil
	}
	return &eviction.Blocker{
		Reason: v1alpha1.ReasonPodTerminating,
		Message: fmt.Sprintf("The grace period of the pod ended at %s and it has not stopped, or its volumes are still mounted. Check its containers, its volumes and the kubelet of node %s.",
			s.pod.DeletionTimestamp.UTC().Format(time.RFC3339), s.pod.Spec.NodeName),
	}
}

// isOverdue reports whether a terminating pod should have stopped by now.
func (d *decision) isOverdue(s situation) bool {
	if !isStopping(s) {
		return false
	}
	overdue := s.pod.DeletionTimestamp.Add(overdueAfter)
	if s.now.Before(overdue) {
		d.wakeAt(overdue)
		return false
	}
	return true
}

// stopsForLong returns the blocker of a pod that has been stopping for longer than --long-grace. A
// pod with a shorter grace period is not blocked, since the end of the period is near and known.
func (d *decision) stopsForLong(s situation) *eviction.Blocker {
	since, known := stoppingSince(s)
	long := since.Add(s.longGrace)
	if !known || !long.Before(s.pod.DeletionTimestamp.Time) || s.now.Before(since.Add(stoppingShownAfter)) {
		return nil
	}
	if s.now.Before(long) {
		d.wakeAt(long)
		return nil
	}
	ends := s.pod.DeletionTimestamp.Time
	return &eviction.Blocker{
		Reason: v1alpha1.ReasonLongGracePeriod,
		Message: fmt.Sprintf("Pod %s is stopping until %s, %s after it was told to stop, which is longer than --long-grace (%s). "+
			"Check why it does not stop earlier; kubectl delete pod with a shorter --grace-period ends it sooner.",
			s.pod.Name, ends.UTC().Format(time.RFC3339), ends.Sub(since), s.longGrace),
	}
}

// stops returns the end of the grace period of a stopping pod as the message. The pod is not
// blocked.
func (d *decision) stops(s situation) *eviction.Blocker {
	if !isStopping(s) {
		return nil
	}
	if !d.isStoppingShown(s) {
		return &notBlocked
	}
	message := stoppingMessage(s)
	if d.status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction {
		// While an evacuator is active, only that evacuator sets the message.
		d.status.Message = message
	}
	return &eviction.Blocker{Reason: v1alpha1.ReasonPodStopping, Message: message}
}

func stoppingMessage(s situation) string { return wording.Stopping(s.pod.DeletionTimestamp.Time) }

// isStoppingShown reports whether a pod has been stopping for long enough to be reported.
func (d *decision) isStoppingShown(s situation) bool {
	since, known := stoppingSince(s)
	if !known {
		return false
	}
	shown := since.Add(stoppingShownAfter)
	if s.now.Before(shown) {
		d.wakeAt(shown)
		return false
	}
	return true
}

// stoppingSince returns when a pod began to stop.
func stoppingSince(s situation) (since time.Time, known bool) {
	grace := s.pod.DeletionGracePeriodSeconds
	if !isStopping(s) || grace == nil {
		return time.Time{}, false
	}
	return s.pod.DeletionTimestamp.Add(-time.Duration(*grace) * time.Second), true
}

// held returns a blocker that names the foreign finalizers of an Evacuation. They do not keep the
// pod on its node: the pod is evicted within its budget if a maintenance still drains it.
func (d *decision) held(s situation) *eviction.Blocker {
	if !isDeadButHeld(s.evacuation) {
		return nil
	}
	b := &eviction.Blocker{Reason: v1alpha1.ReasonEvacuationHeld}
	names := protocol.OneLine(strings.Join(foreignHolders(s.evacuation), ", "), protocol.MaxMessage/2)
	b.Message = fmt.Sprintf("The Evacuation is being deleted and is held by the finalizers %s, "+
		"while a NodeMaintenance still asks the pod to leave. No evacuator works on it.", names)
	if d.evict {
		b.Message += " The server evicts the pod, within its disruption budget if it has one."
	}
	b.Message += " Remove these finalizers or repair the controllers that set them."
	if d.evict && s.eviction.Blocker != nil {
		b.Message += " The eviction waits: " + s.eviction.Blocker.Message
	}
	return b
}

// isPaused returns the pause as the message. The pod is not blocked, and what blocked it before the
// pause is determined again after it.
func (d *decision) isPaused(s situation) *eviction.Blocker {
	if s.pausedBy == nil {
		return nil
	}
	return &eviction.Blocker{Reason: v1alpha1.ReasonPaused, Message: fmt.Sprintf(
		"NodeMaintenance %s is paused: the server neither evicts the pod nor makes the next evacuator active. "+
			"To resume it, run %s.", s.pausedBy.Name, protocol.ResumeCommand(s.pausedBy))}
}

// unknownToQueue keeps a stored obstacle until the eviction queue has tried the pod. What the pod
// waited for without being blocked is over.
func (d *decision) unknownToQueue(s situation) *eviction.Blocker {
	switch {
	case !d.evict || s.eviction.Known:
		return nil
	case blockerOf(&s.evacuation.Status) == nil:
		return &notBlocked
	}
	return &asBefore
}

// refused returns the reason why the eviction queue cannot evict the pod. If the budget allows no
// disruption because of maintenances, the message names them.
func (d *decision) refused(s situation) *eviction.Blocker {
	if !d.evict || s.eviction.Blocker == nil {
		return nil
	}
	found := *s.eviction.Blocker
	if slices.Contains(refinable, found.Reason) {
		d.wakeAt(s.now.Add(standoffCheck))
		if s.standoff != nil {
			found = *s.standoff
		}
	}
	if d.isRequested(s) && wording.RemedyFor(found.Reason).OfBudget {
		found.Message += d.keptBy(s, found.Reason)
	}
	return &found
}

// keptBy returns a sentence for the message if a DaemonSet pod is kept because its budget has
// allowed no disruption for too long. The nodemaintenance controller counts such a pod as kept
// after this status write.
func (d *decision) keptBy(s situation, budgetReason string) string {
	since := s.now
	blocked := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked)
	if blocked != nil && blocked.Status == metav1.ConditionTrue {
		if !wording.RemedyFor(blocked.Reason).OfBudget {
			// Another cause has blocked the pod until now. The time for which its budget may allow
			// no disruption begins now.
			blocked.LastTransitionTime = *protocol.Timestamp(s.now)
		}
		since = blocked.LastTransitionTime.Time
	}
	if at := since.Add(s.budgetPatience); budgetReason != v1alpha1.ReasonPodDisruptionBudgetSyncFailed && s.now.Before(at) {
		d.wakeAt(at)
		return ""
	}
	return " The pod has been kept on its node since " + since.UTC().Format(time.RFC3339) +
		" and does not block the drain. It will be evicted when the budget allows it."
}

// waits returns the message of the queue about a pod that waits for its eviction and is not
// blocked.
func (d *decision) waits(s situation) *eviction.Blocker {
	if !d.evict || s.nodeUnreachable || s.eviction.Message == "" || d.status.ActiveEvacuatorClass != v1alpha1.EvacuatorClassEviction {
		return nil
	}
	return &eviction.Blocker{Reason: v1alpha1.ReasonPodWaits, Message: s.eviction.Message}
}

// waitsFor reports whether a class is active and the pod must not be evicted now.
func (d *decision) waitsFor(class string) bool {
	return !d.evict && d.status.ActiveEvacuatorClass == class
}

// mustStay returns the reason why the evacuator of Deployments neither replaces the pod nor allows
// its eviction.
func (d *decision) mustStay(s situation) *eviction.Blocker {
	switch {
	case s.standing == nil:
		return nil
	case d.waitsFor(v1alpha1.EvacuatorClassEviction) && s.podType == v1alpha1.PodTypeDefault:
		retry := standingRetry
		if s.standing.Reason == v1alpha1.ReasonPodWaits {
			retry = waitRetry
		}
		d.wakeAt(s.now.Add(retry))
		return s.standing
	case d.waitsFor(v1alpha1.EvacuatorClassDeployment):
		return s.standing
	}
	return nil
}

// waitsForSurge returns the blocker of a pod whose replacement has made no progress for the surge
// timeout. The message quotes the evacuator's report.
func (d *decision) waitsForSurge(s situation) *eviction.Blocker {
	if !d.waitsFor(v1alpha1.EvacuatorClassDeployment) {
		return nil
	}
	deadline := d.deadline(s)
	if at := surgePendingAt(s, deadline); s.now.Before(at) {
		d.wakeAt(at)
		return nil
	}
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

// surgePendingAt returns the time at which the evacuator of Deployments has made no progress for
// the surge timeout. The evacuator stops reporting when the replacement makes no progress. If the
// surge timeout is not shorter than the deadline, half of the deadline is used instead.
func surgePendingAt(s situation, deadline deadline) time.Time {
	at := deadline.since.Add(s.surgeTimeout)
	if !at.Before(deadline.at) {
		at = deadline.since.Add(deadline.length / 2)
	}
	return s.patientUntil(at, min(s.surgeTimeout, protocol.LongestGrace)/2, v1alpha1.ReasonSurgePending)
}

// patientUntil returns the time from which an evacuator without progress is reported with the given
// reason. A new leader first allows the grace for a report, unless the previous leader has already
// set the condition.
func (s situation) patientUntil(at time.Time, grace time.Duration, reason string) time.Time {
	was := blockerOf(&s.evacuation.Status)
	if served := s.servingSince.Add(grace); at.Before(served) && (was == nil || was.Reason != reason) {
		return served
	}
	return at
}

// evacuatorIsSilent returns the blocker of an active evacuator that has sent no report for half of
// its deadline: early enough for a user to fix the evacuator before the next one becomes active.
func (d *decision) evacuatorIsSilent(s situation) *eviction.Blocker {
	active := d.status.ActiveEvacuatorClass
	deadline := d.deadline(s)
	if d.evict || active == v1alpha1.EvacuatorClassEviction || active == v1alpha1.EvacuatorClassDeployment || !deadline.runs {
		return nil
	}
	at := s.patientUntil(deadline.since.Add(deadline.length/2), min(deadline.length, protocol.LongestGrace)/2, v1alpha1.ReasonEvacuatorNotProgressing)
	if s.now.Before(at) {
		d.wakeAt(at)
		return nil
	}
	silent := fmt.Sprintf("Evacuator %s has not reported since %s", active, deadline.since.UTC().Format(time.RFC3339))
	if !deadline.reported {
		silent = fmt.Sprintf("Evacuator %s has not reported since it became active at %s", active, deadline.since.UTC().Format(time.RFC3339))
	}
	b := &eviction.Blocker{Reason: v1alpha1.ReasonEvacuatorNotProgressing}
	if d.onlyAgentCanAct(s) && !protocol.IsWithdrawn(s.evacuation) {
		b.Message = fmt.Sprintf("%s. It is the node agent of node %s, and nothing else can remove a static pod: check that haulout-node-agent runs there "+
			"and look for the pod in its log, or move the manifest of the pod away.", silent, s.pod.Spec.NodeName)
		return b
	}
	end := fmt.Sprintf("%s becomes active", protocol.Next(s.evacuation.Spec.Evacuators, active))
	if protocol.IsWithdrawn(s.evacuation) {
		end = "the evacuation ends, as no instigator requests it any more,"
	}
	b.Message = fmt.Sprintf("%s. Unless it does, %s at %s. Check that the controller behind it runs, and look for the pod in its log.",
		silent, end, deadline.at.UTC().Format(time.RFC3339))
	return b
}

// keepsComingBack returns the blocker of a pod that is not evicted for a while because pods like it
// keep returning.
func (d *decision) keepsComingBack(s situation) *eviction.Blocker {
	until := heldUntil(s)
	if !d.waitsFor(v1alpha1.EvacuatorClassEviction) || s.podType != v1alpha1.PodTypeDefault || !s.now.Before(until) ||
		protocol.OnlyEvictionAsks(s.evacuation) {
		return nil
	}
	d.wakeAt(until)
	return recreated(s, until)
}

// hasNoEvacuator returns the blocker of a pod that an eviction does not remove, such as a static
// pod.
func (d *decision) hasNoEvacuator(s situation) *eviction.Blocker {
	if !d.waitsFor(v1alpha1.EvacuatorClassEviction) || s.podType == v1alpha1.PodTypeDefault {
		return nil // an eviction by the server or by another client removes the pod
	}
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

// waitsOnDeadNode returns the blocker of an unreachable node, if an eviction can remove the pod and
// nothing else blocks it. Pods that need an evacuator are reported by evacuatorIsSilent.
func (d *decision) waitsOnDeadNode(s situation) *eviction.Blocker {
	if !s.nodeUnreachable || s.podType != v1alpha1.PodTypeDefault {
		return nil
	}
	return unreachable(s)
}

// unreachable returns the blocker of a pod whose kubelet does not respond. It applies whatever else
// the pod waits for: the pod cannot leave without its kubelet.
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
