// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/eviction"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

const (
	// standingRetry is the time after which a pod that must not be evicted is checked again.
	standingRetry = 10 * time.Second
	// waitRetry is the same for a pod that waits only for a moment.
	waitRetry = time.Second
)

// situation has all inputs of the decision about an Evacuation.
type situation struct {
	now        time.Time
	evacuation *v1alpha1.Evacuation
	// pod is nil if the pod no longer exists, which the API has confirmed.
	pod     *corev1.Pod
	podType v1alpha1.PodType
	// nodeUnreachable is set if the kubelet of the pod's node does not respond.
	nodeUnreachable bool
	// targeted is set if the drain has reached the pod on its node. It is only determined for
	// evacuators that wait for that, and for Evacuations that foreign finalizers keep.
	targeted bool
	// pausedBy is the maintenance whose pause keeps the pod, nil if the evacuation is not paused:
	// an evacuation is paused if only maintenances request it and all that ask the pod to leave are
	// paused.
	pausedBy *v1alpha1.NodeMaintenance
	// replaced is set if the DaemonSet would immediately recreate an evicted pod on its node.
	replaced bool
	// comebacks counts how often pods like this one were recreated on the node after their
	// evacuation.
	comebacks comebacks
	// eviction is the state of the pod's eviction, if it was requested.
	eviction eviction.State
	// servingSince is the time at which this leader started.
	servingSince time.Time
	// completedTTL is how long Evacuations are kept after their pod has left.
	completedTTL time.Duration
	// startDeadline is the time within which an evacuator has to send its first report, see
	// startLimit. podStartDeadline is the longer time that the pod requests; 0 if it requests none.
	// seen has the classes whose evacuators have reported before.
	startDeadline, podStartDeadline time.Duration
	seen                            sets.Set[string]
	// surgeTimeout is how long the evacuator of Deployments may make no progress with this pod
	// before the pod is reported as blocked.
	surgeTimeout time.Duration
	// standing is the reason why the pod, which waits for the evacuator of Deployments or its
	// eviction, must not leave; nil if there is no reason.
	standing *eviction.Blocker
	// budgetPatience is how long the budget of a DaemonSet pod may allow no disruption before the
	// pod is kept.
	budgetPatience time.Duration
	// longGrace is how long a terminating pod may be stopping before it is reported as blocked.
	longGrace time.Duration
	// rawEvictionTTL is how long an Evacuation that was made for an eviction is kept after the last
	// eviction of its pod.
	rawEvictionTTL time.Duration
	// standoff explains that the budget allows no disruption because of maintenances; it is nil if
	// there is another cause.
	standoff *eviction.Blocker
	// surplus is set if the namespace has too many complete Evacuations and this is one of the
	// oldest.
	surplus bool
	// failure is the error with which writes of the Evacuation have failed for a while, "" if they
	// succeed.
	failure string
}

// release determines which finalizers to remove.
type release int

const (
	// releaseNone keeps the Evacuation.
	releaseNone release = iota
	// releaseRawEviction removes the finalizer that an eviction has added.
	releaseRawEviction
	// releaseAll removes the finalizers of all instigators and deletes the Evacuation.
	releaseAll
	// releaseDue removes all finalizers and deletes the Evacuation.
	releaseDue
)

type decision struct {
	// status is the desired status.
	status v1alpha1.EvacuationStatus
	// evict is set if the pod has to be evicted after the status write.
	evict   bool
	release release
	// handedOver is set if another class has become active. silent is the class that was active
	// before, if its evacuator has not reported although it had the time of a class that was seen,
	// and at least the default of that time.
	handedOver bool
	silent     string
	// wake is the time at which to reconcile again without an event; zero means never.
	wake   time.Time
	events []event
}

// decide evaluates the steps of the protocol in order. The first step that applies determines the
// decision.
func decide(s situation) decision {
	d := decision{status: *s.evacuation.Status.DeepCopy()}
	switch {
	case protocol.IsComplete(s.evacuation):
		d.decideRelease(s)
		return d
	case s.pod == nil || !drainplan.IsLive(s.pod):
		d.decidePodLeft(s)
	case s.isRawEvictionOver():
		d.decideRawEvictionOver(s)
	case protocol.IsWithdrawn(s.evacuation) && d.status.EvacuationCancellationPolicy != v1alpha1.EvacuationCancellationPolicyForbid:
		d.decideCancel(s)
	case s.pausedBy != nil:
		d.decidePaused(s)
	default:
		d.decideTurn(s)
	}
	d.decideReady(s)
	d.wakeForRawEviction(s)
	return d
}

// decideRelease releases an Evacuation that is over: immediately if no user needs to see it,
// otherwise after the TTL, or earlier if the namespace has too many complete Evacuations. After the
// TTL it also removes foreign finalizers. Otherwise they could keep any number of Evacuations,
// since the quota for pods does not limit them.
func (d *decision) decideRelease(s situation) {
	complete := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionComplete)
	expiry := complete.LastTransitionTime.Add(s.completedTTL)
	switch {
	case s.surplus || !s.now.Before(expiry):
		d.release = releaseDue
		return
	case s.evacuation.DeletionTimestamp != nil || complete.Reason == v1alpha1.ReasonCancelled:
		if d.release = releaseAll; !hasForeignFinalizer(s.evacuation) {
			return
		}
	}
	d.wake = expiry
}

func (d *decision) decidePodLeft(s situation) {
	reason, what := v1alpha1.ReasonPodDeleted, "The pod was gone"
	if s.pod != nil {
		reason, what = v1alpha1.ReasonPodTerminated, fmt.Sprintf("The pod had ended with phase %s", s.pod.Status.Phase)
	}
	d.complete(s, reason, what+s.when()+" to leave.")
	d.decideRelease(s)
}

// when returns the present time, and the time since the evacuation was requested, for the message
// of a complete Evacuation.
func (s situation) when() string {
	return fmt.Sprintf(" at %s, %s after it was asked", s.now.UTC().Format(time.RFC3339), duration.HumanDuration(s.now.Sub(s.evacuation.CreationTimestamp.Time)))
}

// decideCancel releases the Evacuation of a pod that may stay, without the status of a complete
// Evacuation: the name must be free for a new Evacuation immediately.
func (d *decision) decideCancel(s situation) {
	if isDeadButHeld(s.evacuation) {
		d.decideHeld(s)
		return
	}
	why := "no instigator requests it any more"
	if s.evacuation.DeletionTimestamp != nil {
		why = "it is being deleted"
	}
	d.release = releaseAll
	d.decideBlocked(s)
	d.events = append(d.events, event{corev1.EventTypeNormal, EventCancelled, actionCancel, fmt.Sprintf("The evacuation of pod %s is cancelled: %s.", s.evacuation.Spec.PodRef.Name, why)})
}

// heldCheck is the interval at which an Evacuation that foreign finalizers keep is reconciled
// without an event: this controller does not watch whether a maintenance still drains its pod.
const heldCheck = time.Minute

// foreignHolders returns the finalizers that keep an Evacuation which is being deleted and has no
// instigator. The Evacuations of a pod all have the same name. So no new Evacuation for the pod can
// be created while these finalizers exist.
func foreignHolders(evacuation *v1alpha1.Evacuation) []string {
	if evacuation.DeletionTimestamp == nil || protocol.HasInstigator(evacuation.Finalizers) {
		return nil
	}
	return evacuation.Finalizers
}

// hasForeignFinalizer reports whether an Evacuation has a finalizer that does not belong to an
// instigator.
func hasForeignFinalizer(evacuation *v1alpha1.Evacuation) bool {
	return slices.ContainsFunc(evacuation.Finalizers, func(finalizer string) bool {
		_, isInstigator := protocol.IsInstigatorFinalizer(finalizer)
		return !isInstigator
	})
}

// isDeadButHeld reports whether an Evacuation is over for its instigators and evacuators, and only
// foreign finalizers keep the object.
func isDeadButHeld(evacuation *v1alpha1.Evacuation) bool {
	return len(foreignHolders(evacuation)) > 0 && !protocol.IsComplete(evacuation) &&
		evacuation.Status.EvacuationCancellationPolicy != v1alpha1.EvacuationCancellationPolicyForbid
}

// decideHeld makes sure that foreign finalizers do not keep the pod on its node: if a maintenance
// still drains the pod, the pod is evicted within its budget, and the message names the finalizers.
// Otherwise the pod stays.
func (d *decision) decideHeld(s situation) {
	d.countFailedEvictions(s)
	d.wakeAt(s.now.Add(heldCheck))
	canLeave := s.podType == v1alpha1.PodTypeDefault || s.podType == v1alpha1.PodTypeDaemonSet && !s.replaced
	d.evict = canLeave && s.targeted && s.pod.DeletionTimestamp == nil && !s.now.Before(heldUntil(s))
	d.decideBlocked(s)
}

// pausedCheck is the interval at which a paused Evacuation is reconciled without an event: another
// maintenance may ask the pod to leave because its labels have changed.
const pausedCheck = time.Minute

// decidePaused keeps the active evacuator of a paused Evacuation, whatever it reports and whatever
// its deadline is, and evicts nothing. The nodemaintenance controller withdraws the Evacuation if
// its evacuator has not begun.
func (d *decision) decidePaused(s situation) {
	d.wakeAt(s.now.Add(pausedCheck))
	d.countFailedEvictions(s)
	d.decideBlocked(s)
}

// decideTurn decides which class is active and, if that class is eviction, whether to evict the
// pod.
func (d *decision) decideTurn(s situation) {
	withdrawn := protocol.IsWithdrawn(s.evacuation)
	if protocol.IsPaused(s.evacuation) {
		// No deadline has run during the pause, neither that of the evacuator nor that of a budget.
		d.restartClock(s)
		d.setBlocked(s, notBlocked)
	}
	switch active := d.status.ActiveEvacuatorClass; {
	case active == "" && !withdrawn:
		d.handOver(s, "")
	case !isEvacuator(s.evacuation, active):
		// The active class is eviction, which is the last class, or is not in the spec. In both
		// cases no evacuator is left.
		if withdrawn {
			d.endCancelled(s, "no evacuator is left")
			return
		}
		if active != v1alpha1.EvacuatorClassEviction {
			d.handOver(s, "is not among the evacuators")
		}
	default:
		why := d.reasonToGiveUp(s)
		if why != "" && withdrawn {
			d.endCancelled(s, fmt.Sprintf("%s %s", active, why))
			return
		}
		if why != "" && !d.onlyAgentCanAct(s) {
			d.handOver(s, why)
		}
	}
	// Reconcile again at the deadline of the active evacuator. If only a node agent can remove the
	// pod, the agent stays active after its deadline: there is nothing to wait for.
	if isEvacuator(s.evacuation, d.status.ActiveEvacuatorClass) {
		if at := d.deadline(s).at; s.now.Before(at) {
			d.wakeAt(at)
		}
	}
	d.evict = s.pod.DeletionTimestamp == nil && !s.now.Before(heldUntil(s)) && (d.isUpForEviction(s) || d.isRequested(s))
	d.countFailedEvictions(s)
	d.quoteQueue(s)
	d.decideBlocked(s)
}

// isUpForEviction reports whether no evacuator is left and the pod may be evicted as the last
// resort. While the Deployment cannot create another pod, the pod must not be evicted. A pod that
// only another client wants to evict leaves by the eviction of that client, with its options, its
// rights and all webhooks of the cluster, one of which may have refused the eviction.
func (d *decision) isUpForEviction(s situation) bool {
	return d.status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction && s.podType == v1alpha1.PodTypeDefault && s.standing == nil &&
		!protocol.OnlyEvictionAsks(s.evacuation)
}

// isRequested reports whether the DaemonSet evacuator requests the eviction of its pod. The
// evacuator does so by a report with an expected finish time. From then on the queue determines the
// blocker, and the evacuator has no deadline.
func (d *decision) isRequested(s situation) bool {
	return d.status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDaemonSet && !d.status.ActiveEvacuatorCompleted &&
		d.status.ExpectedEvacuationFinishTime != nil && s.podType == v1alpha1.PodTypeDaemonSet && s.targeted
}

func isEvacuator(evacuation *v1alpha1.Evacuation, class string) bool {
	return slices.ContainsFunc(evacuation.Spec.Evacuators, func(e v1alpha1.Evacuator) bool { return e.EvacuatorClass == class })
}

// reasonToGiveUp returns the reason why the next evacuator becomes active, "" if the current
// evacuator stays active.
func (d *decision) reasonToGiveUp(s situation) string {
	if isStopping(s) {
		return "" // nothing is left to do
	}
	if d.status.ActiveEvacuatorCompleted {
		// The report is quoted for users. No decision depends on its text.
		if said := protocol.OneLine(d.status.Message, protocol.MaxMessage/4); said != "" {
			return fmt.Sprintf("has finished: %q", said)
		}
		return "has finished"
	}
	deadline := d.deadline(s)
	if s.now.Before(deadline.at) || s.standing != nil {
		return ""
	}
	if !deadline.runs {
		d.restartClock(s)
		return ""
	}
	if deadline.reported {
		return fmt.Sprintf("has not reported for %s", deadline.length)
	}
	// With a short deadline of its own, one Evacuation would say of a slow program that it does not
	// exist, to the pods of all namespaces.
	if class := d.status.ActiveEvacuatorClass; s.startLimit(class) == math.MaxInt64 && deadline.length >= protocol.DefaultProgressDeadline {
		d.silent = class
	}
	return fmt.Sprintf("has not started within %s", deadline.length)
}

// deadline is the time by which the active evacuator has to report.
type deadline struct {
	// since is the time at which the evacuator last reported or became active.
	since  time.Time
	at     time.Time
	length time.Duration
	// reported is set if the evacuator has reported since it became active.
	reported bool
	// runs is false while the evacuator has to wait for the drain to reach the pod, or for the
	// eviction that it requested. Then at is the time at which the deadline is restarted.
	runs bool
}

func (d *decision) deadline(s situation) deadline {
	turn := protocol.TurnOf(&d.status)
	result := deadline{
		since: turn.Since, reported: turn.Reported, length: turn.Patience(s.evacuation.Spec.ProgressDeadlineSeconds, s.startLimit(turn.Class)),
		runs: !s.waitsForDrain(turn.Class) || s.targeted && !d.isRequested(s),
	}
	if !result.runs {
		// The drain may reach the pod at any time, and the evacuator needs enough time from then
		// on. So restart the deadline when half of it has passed, but after at least a second:
		// timestamps have whole seconds.
		result.at = result.since.Add(max(result.length/2, time.Second))
		return result
	}
	result.at = turn.End(result.length, s.servingSince)
	return result
}

// waitsForDrain reports whether an evacuator acts only when the drain has reached the pod. An
// annotation may name it for a pod of another type, for which it never acts.
func (s *situation) waitsForDrain(class string) bool {
	return class == v1alpha1.EvacuatorClassDaemonSet && s.podType == v1alpha1.PodTypeDaemonSet ||
		class == v1alpha1.EvacuatorClassKubelet && s.podType == v1alpha1.PodTypeStatic
}

// onlyAgentCanAct reports whether the active evacuator is the node agent of a static pod, has not
// declined, and is the last one. Only the agent can remove the pod, since an eviction does not stop
// a static pod. So the agent stays active, and continues when it runs again.
func (d *decision) onlyAgentCanAct(s situation) bool {
	class := d.status.ActiveEvacuatorClass
	return class == v1alpha1.EvacuatorClassKubelet && !d.status.ActiveEvacuatorCompleted &&
		s.podType == v1alpha1.PodTypeStatic &&
		protocol.Next(s.evacuation.Spec.Evacuators, class) == v1alpha1.EvacuatorClassEviction
}

// restartClock restarts the deadline of an evacuator that waits for the drain, or was paused.
func (d *decision) restartClock(s situation) {
	d.status.ActiveEvacuatorSince = protocol.Timestamp(s.now)
}

// handOver makes the next evacuator active. why describes what happened to the previous evacuator.
// handOver sends no event if the previous evacuator reported completion: the status names the
// active class, and the event of the eviction has the reason.
func (d *decision) handOver(s situation, why string) {
	from := d.status.ActiveEvacuatorClass
	to := protocol.Next(s.evacuation.Spec.Evacuators, from)
	wasDone := d.status.ActiveEvacuatorCompleted
	d.status.ActiveEvacuatorClass = to
	d.status.ActiveEvacuatorCompleted = false
	d.status.ActiveEvacuatorSince = protocol.Timestamp(s.now)
	d.status.EvacuationProgressTimestamp = nil
	d.status.ExpectedEvacuationFinishTime = nil
	d.status.EvacuationCancellationPolicy = v1alpha1.EvacuationCancellationPolicyAllow
	account := fmt.Sprintf("%s %s", from, why)
	if from == "" {
		// The API server sets the first active evacuator when it stores a new Evacuation. It did
		// not do so for this one.
		account = "no evacuator was active before"
	}
	d.status.Message = turnMessage(to, account)
	if to == v1alpha1.EvacuatorClassEviction && protocol.OnlyEvictionAsks(s.evacuation) {
		d.status.Message = wording.Cut(protocol.ClientTurnMessage(account), protocol.MaxMessage)
	}
	d.handedOver = true
	if from != "" && !wasDone {
		d.events = append(d.events, event{corev1.EventTypeNormal, EventHandedOver, actionHandOver,
			fmt.Sprintf("The active evacuator of pod %s changes from %s to %s: %s.", s.evacuation.Spec.PodRef.Name, from, to, account)})
	}
}

// endCancelled ends an Evacuation that could not be cancelled while its evacuator was active. It
// does not evict the pod, since no instigator requests it.
func (d *decision) endCancelled(s situation, why string) {
	message := fmt.Sprintf("The evacuation was cancelled%s for, and the pod stays: no instigator requests it any more, and %s.", s.when(), why)
	d.complete(s, v1alpha1.ReasonCancelled, message)
	d.release = releaseAll
	d.events = append(d.events, event{corev1.EventTypeNormal, EventCancelled, actionCancel, message})
}

// complete ends an Evacuation. The message says how and when, and no longer what the pod waited
// for.
func (d *decision) complete(s situation, reason, message string) {
	message = wording.Cut(message, protocol.MaxMessage)
	d.status.Message = message
	d.setBlocked(s, notBlocked)
	d.set(s, v1alpha1.ConditionComplete, metav1.ConditionTrue, reason, message)
	d.countFailedEvictions(s)
}

// countFailedEvictions copies the count of the queue. The queue starts counting at the stored
// value, so the copied value is never lower.
func (d *decision) countFailedEvictions(s situation) {
	d.status.FailedEvictionCounter = max(d.status.FailedEvictionCounter, s.eviction.FailedEvictions)
}

func (d *decision) wakeAt(t time.Time) {
	if d.wake.IsZero() || t.Before(d.wake) {
		d.wake = t
	}
}

// turnMessage returns the message about a class that becomes active, truncated to the limit of the
// API.
func turnMessage(class, account string) string {
	return wording.Cut(protocol.TurnMessage(class, account), protocol.MaxMessage)
}

// isForPeople reports whether a decision has a message or an event for the owner of the pod. Only
// then is the maintenance determined, since that iterates over the nodes of all draining
// maintenances.
func (d *decision) isForPeople() bool {
	return d.handedOver || len(d.events) > 0
}

// mention adds the maintenance that drains the pod to the message about the new active class and to
// the events. It does not add it to events about a cancellation: then no maintenance drains the
// pod.
func (d *decision) mention(nm *v1alpha1.NodeMaintenance) {
	if nm == nil {
		return
	}
	if d.handedOver {
		d.status.Message = protocol.AddLeavesFor(d.status.Message, nm)
	}
	for i := range d.events {
		if d.events[i].reason != EventCancelled {
			d.events[i].note = protocol.AddLeavesFor(d.events[i].note, nm)
		}
	}
}

// quoteQueue copies the queue's message about a pod that waits and is not blocked. While an
// evacuator is active, only that evacuator sets the message.
func (d *decision) quoteQueue(s situation) {
	if !d.evict || s.eviction.Message == "" || d.status.ActiveEvacuatorClass != v1alpha1.EvacuatorClassEviction {
		return
	}
	d.status.Message = wording.Cut(s.eviction.Message, protocol.MaxMessage)
}
