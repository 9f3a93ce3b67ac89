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

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

const (
	// defaultGrace is how long a pod has to stop that does not say.
	defaultGrace = 30 * time.Second
	// defaultProgressDeadline is the default of spec.progressDeadlineSeconds.
	defaultProgressDeadline = 30 * time.Minute
	// heartbeats is how often, within the deadline, it is reported that a pod is stopping.
	heartbeats = 3
	// slack is by how much an expected time may be off without being corrected: every correction is
	// a write.
	slack = 5 * time.Second
	// maxMessage is how much status.message takes.
	maxMessage = 1024
)

// situation is all that a decision about an Evacuation depends on.
type situation struct {
	now        time.Time
	evacuation *maintenancev1alpha1.Evacuation
	// pod is nil if the cache does not hold it: then the evacuation controller finds out what has
	// become of it.
	pod *corev1.Pod
	// node is that of the pod, or nil.
	node *corev1.Node
	// askedBy is the maintenance that asks the pod to leave now, or nil.
	askedBy *maintenancev1alpha1.NodeMaintenance
	// volumes are those that the node still has in use although no pod that is left uses them.
	volumes []string
	// volumesUntil is until when they are waited for.
	volumesUntil time.Time
}

// decision is what should be.
type decision struct {
	// status is what to report, nil if nothing. A report that expects the pod to leave asks for its
	// eviction.
	status *maintenancev1alpha1.EvacuationStatus
	// requested: the report asks for the eviction.
	requested bool
	// wake is when to look again even if nothing happens; zero if never.
	wake time.Time
}

// hasTurn says whether an Evacuation is this evacuator's to work on.
func hasTurn(evacuation *maintenancev1alpha1.Evacuation) bool {
	return evacuation.Status.ActiveEvacuatorClass == maintenancev1alpha1.EvacuatorClassDaemonSet && !evacuation.Status.ActiveEvacuatorCompleted &&
		!meta.IsStatusConditionTrue(evacuation.Status.Conditions, maintenancev1alpha1.ConditionComplete) &&
		// It is about to be cancelled: this evacuator forbids nothing.
		evacuation.DeletionTimestamp == nil && protocol.HasInstigator(evacuation.Finalizers)
}

// decide says what to do about an Evacuation.
func decide(s situation) decision {
	if !hasTurn(s.evacuation) || s.pod == nil || s.node == nil || !drainplan.IsLive(s.pod) {
		return decision{}
	}
	podType := drainplan.TypeOf(s.pod, s.node.UID)
	switch {
	case podType != maintenancev1alpha1.PodTypeDaemonSet:
		// Its annotation asks for this evacuator. To delete it would be to go past its disruption
		// budget.
		return s.decline("The pod does not belong to a DaemonSet: this evacuator does not act on it.")
	case s.pod.DeletionTimestamp != nil:
		return s.decideStopping()
	case s.evacuation.Status.ExpectedEvacuationFinishTime != nil:
		// Its eviction has been asked for.
		return decision{}
	case s.askedBy == nil:
		// It waits for its turn in the drain, which has no deadline.
		return decision{}
	case drainplan.Left(s.pod, podType, sets.New(maintenancev1alpha1.EvacuatorClassDaemonSet)) == drainplan.LeftTolerant:
		return s.decline(fmt.Sprintf("The pod tolerates the taint %s: if it were evicted, its DaemonSet would replace it on the node immediately. It is left running.",
			maintenancev1alpha1.TaintDrain))
	case !drainplan.IsTainted(s.node):
		// Evicted now it would be replaced. The taint is on its way, and its event.
		return decision{}
	case len(s.volumes) > 0 && s.now.Before(s.volumesUntil):
		return s.decideVolumes()
	}
	return s.request()
}

// request asks for the eviction of the pod by a report that expects it to leave. The write is
// refused if the Evacuation has changed, and so if it was called off. The evacuation controller
// evicts the pod as its disruption budget allows.
func (s *situation) request() decision {
	grace := defaultGrace
	if seconds := s.pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	message := fmt.Sprintf("The pod is evicted for %s and has %s to stop.", protocol.Mention(s.askedBy), grace)
	return decision{status: s.report(s.now.Add(grace), message), requested: true}
}

// decideVolumes waits until the node has released the volumes of the pods that have left. A CSI
// node plugin may run in a DaemonSet, and the kubelet needs it to unstage them.
func (s *situation) decideVolumes() decision {
	d := decision{wake: s.now.Add(volumesFresh)}
	if s.volumesUntil.Before(d.wake) {
		d.wake = s.volumesUntil
	}
	named := strings.Join(s.volumes[:min(3, len(s.volumes))], ", ")
	if more := len(s.volumes) - 3; more > 0 {
		named += fmt.Sprintf(", and %d more", more)
	}
	message := fmt.Sprintf("The pod waits until node %s has released volumes of pods that have left, at most until %s: %s.",
		s.node.Name, s.volumesUntil.UTC().Format(time.RFC3339), named)
	status := &s.evacuation.Status
	if last := status.EvacuationProgressTimestamp; last != nil {
		if next := last.Add(s.beat()); s.now.Before(next) {
			if next.Before(d.wake) {
				d.wake = next
			}
			return d
		}
	}
	d.status = status.DeepCopy()
	d.status.EvacuationProgressTimestamp = stamp(s.now)
	d.status.Message = cut(message, maxMessage)
	if next := s.now.Add(s.beat()); next.Before(d.wake) {
		d.wake = next
	}
	return d
}

// beat is how often a pod that this evacuator waits for is reported on.
func (s *situation) beat() time.Duration {
	if seconds := s.evacuation.Spec.ProgressDeadlineSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second / heartbeats
	}
	return defaultProgressDeadline / heartbeats
}

// decideStopping reports, while the pod is within its grace period, that it is expected to be gone,
// and is silent after it.
func (s *situation) decideStopping() decision {
	end := s.pod.DeletionTimestamp.Time
	if !s.now.Before(end) {
		return decision{}
	}
	status := &s.evacuation.Status
	beat := s.beat()
	next := s.now
	if expected := status.ExpectedEvacuationFinishTime; expected != nil && expected.Sub(end).Abs() <= slack && status.EvacuationProgressTimestamp != nil {
		next = status.EvacuationProgressTimestamp.Add(beat)
	}
	if s.now.Before(next) {
		return decision{wake: next}
	}
	if status.ExpectedEvacuationFinishTime == nil {
		return decision{status: s.report(end, "The pod is terminating; another client has deleted it."), wake: s.now.Add(beat)}
	}
	return decision{status: s.report(end, status.Message), wake: s.now.Add(beat)}
}

// decline hands the pod on to whoever comes next.
func (s *situation) decline(why string) decision {
	status := s.evacuation.Status.DeepCopy()
	status.ActiveEvacuatorCompleted = true
	status.EvacuationProgressTimestamp = stamp(s.now)
	status.Message = why
	return decision{status: status}
}

// report returns the status with what is expected. The server stamps the reports of others; its own
// evacuators do that themselves.
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
