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

package daemonset

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/evacuators"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drainplan"
)

const (
	// defaultGrace is how long a pod has to stop that does not say.
	defaultGrace = 30 * time.Second
	// defaultProgressDeadline is the default of spec.progressDeadlineSeconds.
	defaultProgressDeadline = 30 * time.Minute
	// heartbeats is how often, within the deadline, it is reported that a pod is stopping.
	heartbeats = 3
	// slack is by how much an expected time may be off without being corrected: every correction is a write.
	slack = 5 * time.Second
	// maxMessage is how much status.message takes.
	maxMessage = 1024
)

// situation is all that a decision about an Evacuation depends on.
type situation struct {
	now        time.Time
	evacuation *maintenancev1alpha1.Evacuation
	// pod is nil if the cache does not hold it: then the evacuation controller finds out what has become of it.
	pod *corev1.Pod
	// node is that of the pod, or nil.
	node *corev1.Node
	// askedBy is the maintenance that asks the pod to leave now, or nil.
	askedBy *maintenancev1alpha1.NodeMaintenance
	// deletedAt is when this process last asked for the pod to be deleted; zero if it has not.
	deletedAt time.Time
}

// decision is what should be.
type decision struct {
	// status is what to report, nil if nothing.
	status *maintenancev1alpha1.EvacuationStatus
	// remove: the pod is to be deleted, once that has been reported.
	remove bool
	// wake is when to look again even if nothing happens; zero if never.
	wake time.Time
}

// hasTurn says whether an Evacuation is this evacuator's to work on.
func hasTurn(evacuation *maintenancev1alpha1.Evacuation) bool {
	return evacuation.Status.ActiveEvacuatorClass == maintenancev1alpha1.EvacuatorClassDaemonSet && !evacuation.Status.ActiveEvacuatorCompleted &&
		!meta.IsStatusConditionTrue(evacuation.Status.Conditions, maintenancev1alpha1.ConditionComplete) &&
		// It is about to be cancelled: this evacuator forbids nothing.
		evacuation.DeletionTimestamp == nil && evacuators.HasInstigator(evacuation.Finalizers)
}

// decide says what to do about an Evacuation.
func decide(s situation) decision {
	if !hasTurn(s.evacuation) || s.pod == nil || s.node == nil || !drainplan.IsLive(s.pod) {
		return decision{}
	}
	podType := drainplan.TypeOf(s.pod, s.node.UID)
	switch {
	case podType != maintenancev1alpha1.PodTypeDaemonSet:
		// Its annotation asks for this evacuator. To delete it would be to go past its disruption budget.
		return s.decline("The pod does not belong to a DaemonSet, so that this evacuator does not delete it.")
	case s.pod.DeletionTimestamp != nil:
		return s.decideStopping()
	case s.askedBy == nil:
		// It waits for its turn in the drain, which has no deadline.
		return decision{}
	case drainplan.Left(s.pod, podType, sets.New(maintenancev1alpha1.EvacuatorClassDaemonSet)) == drainplan.LeftTolerant:
		return s.decline(fmt.Sprintf("The pod tolerates the taint %s: if it were deleted, its DaemonSet would put another one in its place at once. It is left running.",
			maintenancev1alpha1.TaintDrain))
	case !drainplan.IsTainted(s.node):
		// Deleted now it would be replaced. The taint is on its way, and its event.
		return decision{}
	case !s.deletedAt.IsZero() && s.now.Sub(s.deletedAt) < resendAfter:
		return decision{wake: s.deletedAt.Add(resendAfter)}
	}
	return s.decideDeletion()
}

// decideDeletion reports before it deletes. The write is refused if the Evacuation has changed, and so if it was called off. A deletion that has
// come to nothing is not reported again: if it goes on like that, the deadline is to pass.
func (s *situation) decideDeletion() decision {
	if !s.deletedAt.IsZero() {
		return decision{remove: true}
	}
	grace := defaultGrace
	if seconds := s.pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	message := fmt.Sprintf("The pod is deleted for NodeMaintenance %s and has %s to stop", s.askedBy.Name, grace)
	if reason := s.askedBy.Spec.Reason; reason != "" {
		message += ": " + reason
	}
	return decision{status: s.report(s.now.Add(grace), message), remove: true}
}

// decideStopping reports, while the pod is within its grace period, that it is expected to be gone, and is silent after it.
func (s *situation) decideStopping() decision {
	end := s.pod.DeletionTimestamp.Time
	if !s.now.Before(end) {
		return decision{}
	}
	status := &s.evacuation.Status
	beat := defaultProgressDeadline / heartbeats
	if seconds := s.evacuation.Spec.ProgressDeadlineSeconds; seconds != nil {
		beat = time.Duration(*seconds) * time.Second / heartbeats
	}
	next := s.now
	if expected := status.ExpectedEvacuationFinishTime; expected != nil && expected.Sub(end).Abs() <= slack && status.EvacuationProgressTimestamp != nil {
		next = status.EvacuationProgressTimestamp.Add(beat)
	}
	if s.now.Before(next) {
		return decision{wake: next}
	}
	message := status.Message
	if status.ExpectedEvacuationFinishTime == nil {
		message = "Somebody has deleted the pod; it is stopping."
	}
	return decision{status: s.report(end, message), wake: s.now.Add(beat)}
}

// decline hands the pod on to whoever comes next.
func (s *situation) decline(why string) decision {
	status := s.evacuation.Status.DeepCopy()
	status.ActiveEvacuatorCompleted = true
	status.EvacuationProgressTimestamp = stamp(s.now)
	status.Message = why
	return decision{status: status}
}

// report returns the status with what is expected. The server stamps the reports of others; its own evacuators do that themselves.
func (s *situation) report(expected time.Time, message string) *maintenancev1alpha1.EvacuationStatus {
	status := s.evacuation.Status.DeepCopy()
	status.EvacuationProgressTimestamp = stamp(s.now)
	status.ExpectedEvacuationFinishTime = stamp(expected)
	status.Message = cut(message, maxMessage)
	return status
}

// stamp is a time as the API stores it.
func stamp(t time.Time) *metav1.Time {
	at := metav1.NewTime(t).Rfc3339Copy()
	return &at
}

// cut shortens s to at most max bytes, between two characters.
func cut(s string, max int) string {
	if len(s) <= max {
		return s
	}
	return strings.ToValidUTF8(s[:max], "")
}
