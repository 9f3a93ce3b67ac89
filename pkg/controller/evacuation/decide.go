/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
	"haulout.dev/haulout/pkg/controller/eviction"
)

const (
	// longestGrace bounds how long evacuators get to report to a new leader before it takes a turn
	// away from them.
	longestGrace = 5 * time.Minute
	// maxMessage is how much status.message takes.
	maxMessage = 1024
)

// situation is all that a decision about an Evacuation depends on.
type situation struct {
	now        time.Time
	evacuation *maintenancev1alpha1.Evacuation
	// pod is nil if it is gone for good, which the API has confirmed.
	pod *corev1.Pod
	// podType is what the pod is.
	podType maintenancev1alpha1.PodType
	// nodeUnreachable: the kubelet of the pod's node does not answer.
	nodeUnreachable bool
	// targeted: the drain has reached the pod on its node. Only looked up for the evacuators that
	// wait for it, and for Evacuations that foreign finalizers hold.
	targeted bool
	// replaced: an evicted DaemonSet pod would come straight back to its node.
	replaced bool
	// comebacks is how often pods like this one were evacuated from the node and came back.
	comebacks int
	// eviction is how far the pod's eviction is, if it was asked for.
	eviction eviction.State
	// servingSince is since when this leader serves.
	servingSince time.Time
	// completedTTL is how long Evacuations are kept whose pod has left.
	completedTTL time.Duration
	// startDeadline is how long an evacuator has for its first report.
	startDeadline time.Duration
	// surgeTimeout is how long the evacuator of Deployments may make no progress with this pod
	// before that is reported.
	surgeTimeout time.Duration
	// budgetPatience is how long the budget of a DaemonSet pod may be closed before the pod is
	// kept.
	budgetPatience time.Duration
	// standoff explains why the budget stays closed, if maintenances keep it closed; nil if they do
	// not.
	standoff *eviction.Blocker
	// failure is the error with which writes about the Evacuation have failed for a while; "" if
	// they do not.
	failure string
}

// release says whose requests are over.
type release int

const (
	// releaseNone: the Evacuation stays.
	releaseNone release = iota
	// releaseOurs: our instigator finalizer comes off and the object is deleted.
	releaseOurs
	// releaseAll: the finalizers of all instigators come off and the object is deleted.
	releaseAll
)

// decision is what should be.
type decision struct {
	// status is the wanted status.
	status maintenancev1alpha1.EvacuationStatus
	// evict: the pod is to be evicted, once the status says so.
	evict   bool
	release release
	// lowerCost: the pod is to get the lowest deletion cost, as it has waited for a while.
	lowerCost bool
	// handedOver: another class has become active.
	handedOver bool
	// wake is when to look again even if nothing happens; zero if never.
	wake   time.Time
	events []event
}

// decide takes the five steps of the protocol; the first that applies decides.
func decide(s situation) decision {
	d := decision{status: *s.evacuation.Status.DeepCopy()}
	switch {
	case isComplete(s.evacuation):
		d.decideRelease(s)
	case s.pod == nil || isFinished(s.pod):
		d.decidePodLeft(s)
	case protocol.IsWithdrawn(s.evacuation) && d.status.EvacuationCancellationPolicy != maintenancev1alpha1.EvacuationCancellationPolicyForbid:
		d.decideCancel(s)
	default:
		d.decideTurn(s)
	}
	return d
}

func isComplete(evacuation *maintenancev1alpha1.Evacuation) bool {
	return meta.IsStatusConditionTrue(evacuation.Status.Conditions, maintenancev1alpha1.ConditionComplete)
}

func isFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// decideRelease lets go of an Evacuation that is over: at once if nobody would miss it, else when
// it has been seen for a while.
func (d *decision) decideRelease(s situation) {
	complete := meta.FindStatusCondition(d.status.Conditions, maintenancev1alpha1.ConditionComplete)
	if s.evacuation.DeletionTimestamp != nil || complete.Reason == maintenancev1alpha1.ReasonCancelled {
		d.release = releaseAll
		return
	}
	if expiry := complete.LastTransitionTime.Add(s.completedTTL); s.now.Before(expiry) {
		d.wake = expiry
	} else {
		d.release = releaseOurs
	}
}

func (d *decision) decidePodLeft(s situation) {
	reason, message := maintenancev1alpha1.ReasonPodDeleted, "The pod is gone."
	if s.pod != nil {
		reason, message = maintenancev1alpha1.ReasonPodTerminated, fmt.Sprintf("The pod has ended: its phase is %s.", s.pod.Status.Phase)
	}
	d.complete(s, reason, message)
	d.decideRelease(s)
}

// decideCancel lets go of an Evacuation of a pod that may stay. It is not completed first: a new
// one must be able to take its name at once.
func (d *decision) decideCancel(s situation) {
	if holders := foreignHolders(s.evacuation); len(holders) > 0 {
		d.decideHeld(s, holders)
		return
	}
	if s.failure != "" {
		d.setBlocked(s, notReleased(s.failure))
	}
	why := "no instigator asks for it any more"
	if s.evacuation.DeletionTimestamp != nil {
		why = "it is being deleted"
	}
	d.release = releaseAll
	d.events = append(d.events, event{corev1.EventTypeNormal, EventCancelled, actionCancel, fmt.Sprintf("The evacuation of pod %s is cancelled: %s.", s.evacuation.Spec.PodRef.Name, why)})
}

// decideTurn finds out whose turn it is and, if it is the eviction's, whether the pod may be
// evicted.
func (d *decision) decideTurn(s situation) {
	withdrawn := protocol.IsWithdrawn(s.evacuation)
	switch active := d.status.ActiveEvacuatorClass; {
	case active == "" && !withdrawn:
		d.handOver(s, "")
	case !isEvacuator(s.evacuation, active):
		// The eviction's turn, which is the last, or a class that the spec does not know: nobody is
		// left either way.
		if withdrawn {
			d.endCancelled(s, "no evacuator is left")
			return
		}
		if active != maintenancev1alpha1.EvacuatorClassEviction {
			d.handOver(s, "is not among the evacuators")
		}
	default:
		why := d.reasonToGiveUp(s)
		if why != "" && withdrawn {
			d.endCancelled(s, fmt.Sprintf("%s %s", active, why))
			return
		}
		if why != "" {
			d.handOver(s, why)
		}
	}
	// The new turn's deadline counts from now on.
	if isEvacuator(s.evacuation, d.status.ActiveEvacuatorClass) {
		d.wakeAt(d.deadline(s).at)
	}
	d.evict = s.pod.DeletionTimestamp == nil && !s.now.Before(heldUntil(s)) && (d.isUpForEviction(s) || d.isRequested(s))
	d.decideCost(s)
	d.decideBlocked(s)
}

// isUpForEviction reports whether no evacuator is left and the pod may be evicted as the last
// resort.
func (d *decision) isUpForEviction(s situation) bool {
	return d.status.ActiveEvacuatorClass == maintenancev1alpha1.EvacuatorClassEviction && s.podType == maintenancev1alpha1.PodTypeDefault
}

// isRequested reports whether the DaemonSet evacuator asks for the eviction of its pod, which it
// does by a report that expects the pod to leave. From then on the queue says what keeps the pod,
// and no deadline of the evacuator runs.
func (d *decision) isRequested(s situation) bool {
	return d.status.ActiveEvacuatorClass == maintenancev1alpha1.EvacuatorClassDaemonSet && !d.status.ActiveEvacuatorCompleted &&
		d.status.ExpectedEvacuationFinishTime != nil && s.podType == maintenancev1alpha1.PodTypeDaemonSet && s.targeted
}

func isEvacuator(evacuation *maintenancev1alpha1.Evacuation, class string) bool {
	return slices.ContainsFunc(evacuation.Spec.Evacuators, func(e maintenancev1alpha1.Evacuator) bool { return e.EvacuatorClass == class })
}

// reasonToGiveUp says why the active evacuator loses its turn; "" if it keeps it.
func (d *decision) reasonToGiveUp(s situation) string {
	if d.status.ActiveEvacuatorCompleted {
		// The words are quoted for people; nothing depends on them.
		if said := protocol.OneLine(d.status.Message, maxMessage/4); said != "" {
			return fmt.Sprintf("says it is done (%q), and the pod is still there", said)
		}
		return "says it is done, and the pod is still there"
	}
	deadline := d.deadline(s)
	if s.now.Before(deadline.at) {
		return ""
	}
	if !deadline.runs {
		d.restartClock(s)
		return ""
	}
	if deadline.reported {
		return fmt.Sprintf("has not reported for %s", deadline.length)
	}
	return fmt.Sprintf("has not started within %s", deadline.length)
}

// deadline is by when the active evacuator has to report.
type deadline struct {
	// since is when it last reported, or got its turn.
	since  time.Time
	at     time.Time
	length time.Duration
	// reported: the evacuator has reported since it got its turn.
	reported bool
	// runs is false while the evacuator has to wait for the drain to reach the pod, or for the
	// eviction that it has asked for. Then at is when to move the start of the deadline.
	runs bool
}

func (d *decision) deadline(s situation) deadline {
	turn := protocol.TurnOf(&d.status)
	result := deadline{
		since: turn.Since, reported: turn.Reported, length: turn.Patience(s.evacuation.Spec.ProgressDeadlineSeconds, s.startDeadline),
		runs: !waitsForDrain(turn.Class) || s.targeted && !d.isRequested(s),
	}
	if !result.runs {
		// Half of it, so that a good part is left whenever the drain gets here. Stamps are whole
		// seconds: in less the new one would not differ.
		result.at = result.since.Add(max(result.length/2, time.Second))
		return result
	}
	result.at = result.since.Add(result.length)
	if grace := s.servingSince.Add(min(result.length, longestGrace)); result.at.Before(grace) {
		result.at = grace
	}
	return result
}

// waitsForDrain says whether an evacuator acts only when the drain has reached the pod.
func waitsForDrain(class string) bool {
	return class == maintenancev1alpha1.EvacuatorClassDaemonSet || class == maintenancev1alpha1.EvacuatorClassKubelet
}

// restartClock moves the start of the deadline of an evacuator that waits for the drain to now.
func (d *decision) restartClock(s situation) {
	d.status.ActiveEvacuatorSince = stamp(s.now)
}

// handOver gives the turn to the next one. why is what happened to the one that had it. An
// evacuator that says it is done has lost nothing, and its pod gets no event: the status says who
// acts next, and the event of the eviction says why the pod left.
func (d *decision) handOver(s situation, why string) {
	from := d.status.ActiveEvacuatorClass
	to := protocol.Next(s.evacuation.Spec.Evacuators, from)
	wasDone := d.status.ActiveEvacuatorCompleted
	d.status.ActiveEvacuatorClass = to
	d.status.ActiveEvacuatorCompleted = false
	d.status.ActiveEvacuatorSince = stamp(s.now)
	d.status.EvacuationProgressTimestamp = nil
	d.status.ExpectedEvacuationFinishTime = nil
	d.status.EvacuationCancellationPolicy = maintenancev1alpha1.EvacuationCancellationPolicyAllow
	account := fmt.Sprintf("%s %s", from, why)
	if from == "" {
		// The API gives the first turn when it stores a new Evacuation. This one came another way.
		account = "no evacuator was active before"
	}
	d.status.Message = turnMessage(to, account)
	d.handedOver = true
	if from != "" && !wasDone {
		d.events = append(d.events, event{corev1.EventTypeNormal, EventHandedOver, actionHandOver,
			fmt.Sprintf("The turn to take pod %s away goes from %s to %s: %s.", s.evacuation.Spec.PodRef.Name, from, to, account)})
	}
}

// endCancelled ends an Evacuation that could not be cancelled while its evacuator worked on it. The
// pod is not evicted: nobody asks for it.
func (d *decision) endCancelled(s situation, why string) {
	message := fmt.Sprintf("Cancelled: nobody asks for the evacuation any more, and %s.", why)
	d.complete(s, maintenancev1alpha1.ReasonCancelled, message)
	d.release = releaseAll
	d.events = append(d.events, event{corev1.EventTypeNormal, EventCancelled, actionCancel, message})
}

func (d *decision) complete(s situation, reason, message string) {
	d.clearBlocked(s)
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: maintenancev1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: reason, Message: message,
		LastTransitionTime: *stamp(s.now), ObservedGeneration: s.evacuation.Generation,
	})
	d.countFailedEvictions(s)
}

// countFailedEvictions takes over the queue's count, which goes on from the stored one and so never
// is behind it.
func (d *decision) countFailedEvictions(s situation) {
	d.status.FailedEvictionCounter = max(d.status.FailedEvictionCounter, s.eviction.FailedEvictions)
}

func (d *decision) wakeAt(t time.Time) {
	if d.wake.IsZero() || t.Before(d.wake) {
		d.wake = t
	}
}

// turnMessage is the message of a hand-over, cut to what the API accepts.
func turnMessage(class, account string) string {
	return cut(protocol.TurnMessage(class, account), maxMessage)
}

// stamp is a time as the API stores it.
func stamp(t time.Time) *metav1.Time {
	at := metav1.NewTime(t)
	at = at.Rfc3339Copy()
	return &at
}

// cut shortens s to at most max bytes, between two characters.
func cut(s string, max int) string {
	if len(s) <= max {
		return s
	}
	return strings.ToValidUTF8(s[:max], "")
}
