// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evictionreview

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// answer is the kind of an answer, a value of the metric and of the audit annotation.
type answer string

const (
	// answerPassed: an Evacuation cannot help this pod, or the pod leaves already.
	answerPassed answer = "passed"
	// answerNotAware: the pod has no evacuator.
	answerNotAware answer = "not_aware"
	// answerBudgetDecides: the evacuators are done, or the pod cannot be replaced, and the budget
	// decides about the eviction.
	answerBudgetDecides answer = "budget_decides"
	// answerDryRun: the request is a dry run.
	answerDryRun answer = "dry_run"
	// answerNoLeader: no replica acts on Evacuations, or this one does not know whether one does.
	answerNoLeader answer = "no_leader"
	// answerError: the server cannot decide, or cannot make the Evacuation.
	answerError answer = "error"
	// answerLimited: the user or the namespace has too many evictions.
	answerLimited answer = "limited"
	// answerUnderWay: the pod has an Evacuation.
	answerUnderWay answer = "under_way"
	// answerMade: the pod gets an Evacuation.
	answerMade answer = "made"
)

var answers = []answer{
	answerPassed, answerNotAware, answerBudgetDecides, answerDryRun, answerNoLeader, answerError, answerLimited, answerUnderWay, answerMade,
}

// patienceWithDeletion is the time after which an Evacuation that is being deleted no longer keeps
// its pod. Only the finalizers of the garbage collector can keep it that long: the server accepts
// no other foreign finalizer.
const patienceWithDeletion = time.Minute

// patienceWithLeader is the time that the leader has to make the next evacuator active.
const patienceWithLeader = time.Minute

// situation has all inputs of the decision about an eviction.
type situation struct {
	now time.Time
	// ttl is how long an Evacuation is kept after the last eviction of its pod.
	ttl time.Duration
	// eviction is the requested eviction.
	eviction eviction
	// pod is the pod; nil if it does not exist.
	pod *corev1.Pod
	// evacuation is the Evacuation of the pod; nil if it has none.
	evacuation *v1alpha1.Evacuation
	// hasEvacuator is set if a new Evacuation of the pod would have an evacuator.
	hasEvacuator bool
	// noLeader is the reason why no replica acts on Evacuations; empty if one does.
	noLeader string
	// leaderSince is the time since which this replica knows that the present leader leads.
	leaderSince time.Time
}

// eviction is what the decision needs to know of an Eviction.
type eviction struct {
	// valid is false if the body of the request is not an Eviction.
	valid           bool
	namespace, name string
	// uid is the precondition; empty if there is none.
	uid    types.UID
	dryRun bool
	// user is the name of the user who sent the eviction.
	user string
}

// decision is the answer to an eviction, and what to do for it.
type decision struct {
	answer  answer
	allowed bool
	// message is the text of the refusal or, if the eviction is allowed, the warning.
	message string
	// create is set if the pod needs an Evacuation; noteTime if the Evacuation has to record that
	// the pod was asked for.
	create, noteTime bool
}

// decide returns the answer to an eviction: that of the first case that applies.
func decide(s situation) decision {
	switch {
	case s.passes():
		return decision{answer: answerPassed, allowed: true}
	case s.evacuation == nil && !s.hasEvacuator:
		return decision{answer: answerNotAware, allowed: true}
	case s.evacuation != nil && s.evacuation.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction && !s.isKeptByServer():
		return decision{answer: answerBudgetDecides, allowed: true, noteTime: !s.eviction.dryRun && s.isDueForNote()}
	case s.evacuation != nil && s.cannotBeReplaced() != "":
		return decision{
			answer: answerBudgetDecides, allowed: true, noteTime: !s.eviction.dryRun && s.isDueForNote(),
			message: fmt.Sprintf("pod %s is evicted although it cannot be replaced (%s): see its Evacuation %s",
				s.podName(), s.cannotBeReplaced(), s.evacuation.Name),
		}
	case s.eviction.dryRun:
		return decision{answer: answerDryRun, allowed: true, message: s.dryRunWarning()}
	case s.noLeader != "":
		return decision{
			answer: answerNoLeader, allowed: true,
			message: fmt.Sprintf("pod %s is evicted without its evacuators: %s", s.podName(), s.noLeader),
		}
	case s.evacuation == nil:
		return decision{answer: answerMade, create: true}
	case s.isHeldInDeletion():
		return decision{
			answer: answerError, allowed: true,
			message: fmt.Sprintf("pod %s is evicted without its evacuators: the deletion of its Evacuation %s does not end, because of its finalizers %q",
				s.podName(), s.evacuation.Name, s.evacuation.Finalizers),
		}
	case s.isEnding():
		return decision{answer: answerUnderWay, message: s.endingMessage()}
	case s.isOverdue():
		return decision{
			answer: answerError, allowed: true, noteTime: s.isDueForNote(),
			message: fmt.Sprintf("pod %s is evicted without its evacuators: the deadline of %s has passed, and the server does not make the next evacuator active: see its Evacuation %s",
				s.podName(), s.evacuation.Status.ActiveEvacuatorClass, s.evacuation.Name),
		}
	}
	return decision{answer: answerUnderWay, message: underWayMessage(s), noteTime: s.isDueForNote()}
}

// isPastTTL reports whether the last eviction that the Evacuation records is more than a minute
// older than the TTL, so that the server should have cancelled the Evacuation, and no evacuator has
// to finish. If the present eviction cannot be recorded either, the storage accepts no writes, and
// the Evacuation does not end.
func (s situation) isPastTTL() bool {
	return !s.cannotBeCancelled() && s.now.Sub(protocol.EvictionAsked(s.evacuation)) > s.ttl+time.Minute
}

// passes reports whether an Evacuation cannot help: there is no pod that can be evacuated, or the
// pod leaves already. Pods of DaemonSets are only evacuated for a NodeMaintenance, and an eviction
// does not end a static pod.
func (s situation) passes() bool {
	if !s.eviction.valid || s.pod == nil {
		return true
	}
	pod := s.pod
	if s.eviction.uid != "" && s.eviction.uid != pod.UID || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return false
	}
	kind := protocol.GroupKindOf(owner)
	return kind == protocol.AppsKind("DaemonSet") || kind == corev1.SchemeGroupVersion.WithKind("Node").GroupKind()
}

// isKeptByServer reports whether the server itself does not evict the pod, because no other one can
// be created, and another instigator than the eviction wants it to leave.
func (s situation) isKeptByServer() bool {
	blocked := meta.FindStatusCondition(s.evacuation.Status.Conditions, v1alpha1.ConditionBlocked)
	return blocked != nil && blocked.Status == metav1.ConditionTrue && blocked.Reason == v1alpha1.ReasonReplicaFailure &&
		!protocol.OnlyEvictionAsks(s.evacuation) && !s.isEnding()
}

// cannotBeReplaced returns the reason why the Deployment of the pod can create no replacement, or
// "". No evacuator has a deadline for that, so the eviction would be refused without end, and the
// owner of the Deployment would keep the node. A maintenance or another instigator waits.
func (s situation) cannotBeReplaced() string {
	if !protocol.OnlyEvictionAsks(s.evacuation) || protocol.IsWithdrawn(s.evacuation) {
		return ""
	}
	return s.missingReplacement()
}

// missingReplacement returns the reason why the Deployment of the pod can create no replacement
// while its evacuator is active, or "".
func (s situation) missingReplacement() string {
	status := &s.evacuation.Status
	blocked := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked)
	if status.ActiveEvacuatorClass != v1alpha1.EvacuatorClassDeployment || blocked == nil || blocked.Status != metav1.ConditionTrue {
		return ""
	}
	switch blocked.Reason {
	case v1alpha1.ReasonReplicaFailure, v1alpha1.ReasonRecreated:
		return blocked.Reason
	}
	return ""
}

// isOverdue reports whether the active evacuator has exceeded its deadline and the leader, although
// it had the time, has not made the next one active: the status cannot be written, for example
// because a policy refuses that or the storage accepts no writes. An evacuator cannot report then
// either, so the eviction would be refused without end, whatever requests the evacuation. It counts
// the longest deadline that the leader may apply. An evacuator has none while the NodeMaintenance
// is paused or while no replacement can be created, and it may finish what it forbids to cancel.
func (s situation) isOverdue() bool {
	turn := protocol.TurnOf(&s.evacuation.Status)
	if turn.Class == v1alpha1.EvacuatorClassEviction || turn.Since.IsZero() || s.cannotBeCancelled() ||
		protocol.IsPaused(s.evacuation) || s.missingReplacement() != "" {
		return false
	}
	patience := turn.Patience(s.evacuation.Spec.ProgressDeadlineSeconds, math.MaxInt64)
	return s.now.Sub(turn.End(patience, s.leaderSince)) > patienceWithLeader
}

// isHeldInDeletion reports whether the deletion of the Evacuation does not end, although no
// evacuator needs it.
func (s situation) isHeldInDeletion() bool {
	deleted := s.evacuation.DeletionTimestamp
	return deleted != nil && s.now.Sub(deleted.Time) > patienceWithDeletion && !s.cannotBeCancelled()
}

// isEnding reports whether the Evacuation is over, or will be as soon as it can be cancelled. A new
// one cannot be created before it is gone, since it has the same name.
func (s situation) isEnding() bool {
	return protocol.IsComplete(s.evacuation) || protocol.IsWithdrawn(s.evacuation)
}

func (s situation) cannotBeCancelled() bool {
	return s.evacuation.Status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid && !protocol.IsComplete(s.evacuation)
}

// isDueForNote reports whether the Evacuation was made for an eviction, and its record of the last
// one is so old that the next eviction could come too late.
func (s situation) isDueForNote() bool {
	return protocol.IsForEviction(s.evacuation) && !protocol.IsWithdrawn(s.evacuation) &&
		s.now.Sub(protocol.EvictionAsked(s.evacuation)) > s.ttl/notesPerTTL
}

// notesPerTTL is the number of records of an eviction within the TTL: the caller may pause for two
// thirds of it, and the evictions of a pod every few seconds cause few writes.
const notesPerTTL = 3

func (s situation) podName() string { return fmt.Sprintf("%q", s.pod.Namespace+"/"+s.pod.Name) }

func (s situation) dryRunWarning() string {
	if s.evacuation == nil {
		return fmt.Sprintf("pod %s would not be evicted immediately: its evacuators would remove it first, and evictions would be answered with 429 until then", s.podName())
	}
	return fmt.Sprintf("pod %s would not be evicted immediately: it is being evacuated (Evacuation %s), and evictions are answered with 429 until then",
		s.podName(), s.evacuation.Name)
}

func (s situation) endingMessage() string {
	if s.cannotBeCancelled() {
		return fmt.Sprintf("Evacuation of pod %s was cancelled too late: evacuator %s finishes it; ask again until the pod is gone (Evacuation %s)",
			s.podName(), s.evacuation.Status.ActiveEvacuatorClass, s.evacuation.Name)
	}
	return fmt.Sprintf("Evacuation of pod %s is being cancelled; ask again (Evacuation %s)", s.podName(), s.evacuation.Name)
}

// triggered begins the answers about an Evacuation. The descheduler looks for these words.
const triggered = "Eviction triggered evacuation of pod "

// underWayMessage returns the answer about an Evacuation in progress. It quotes no text of an
// evacuator. The name of the Evacuation comes last, since a long name may be cut.
func underWayMessage(s situation) string {
	status := &s.evacuation.Status
	state := status.ActiveEvacuatorClass + " is active"
	if status.ActiveEvacuatorClass == "" {
		state = "no evacuator is active yet"
	}
	if progress := status.EvacuationProgressTimestamp; progress != nil {
		state += fmt.Sprintf(", last report %s ago", duration.HumanDuration(max(0, s.now.Sub(progress.Time))))
	}
	if protocol.IsPaused(s.evacuation) {
		state += ", paused with its NodeMaintenance"
	}
	if blocked := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked); blocked != nil && blocked.Status == metav1.ConditionTrue {
		state += ", blocked: " + blocked.Reason
	}
	return wording.Cut(fmt.Sprintf("%s%s: %s; ask again until the pod is gone (Evacuation %s)", triggered, s.podName(), state, s.evacuation.Name), maxMessage)
}

// maxMessage is the maximum length of a text for the client, in bytes.
const maxMessage = 512
