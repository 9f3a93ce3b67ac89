// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

const (
	// defaultGrace is the grace period of a pod whose spec sets none.
	defaultGrace = 30 * time.Second
	// heartbeats is the number of reports within the deadline while a pod is terminating.
	heartbeats = 3
	// slack is the error of an expected time that is not corrected, since every correction is a
	// write.
	slack = 5 * time.Second
)

// situation has all inputs of the decision about an Evacuation.
type situation struct {
	now        time.Time
	evacuation *v1alpha1.Evacuation
	// pod is nil if it is not in the cache. Then the evacuation controller checks whether the pod
	// still exists.
	pod  *corev1.Pod
	node *corev1.Node
	// askedBy is the maintenance that drains the pod now, or nil.
	askedBy *v1alpha1.NodeMaintenance
	// volumes are the volumes that the node still has in use although no remaining pod uses them.
	volumes []string
	// volumesUntil is the end of the wait for these volumes.
	volumesUntil time.Time
}

type decision struct {
	// status is the report to write, or nil. A report with an expected finish time requests the
	// eviction of the pod.
	status *v1alpha1.EvacuationStatus
	// requested is set if the report requests the eviction.
	requested bool
	// wake is the time at which to reconcile again without an event; zero means never.
	wake time.Time
}

// hasTurn reports whether this evacuator is the active evacuator of an Evacuation and has to act on
// it.
func hasTurn(evacuation *v1alpha1.Evacuation) bool {
	return evacuation.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDaemonSet && !evacuation.Status.ActiveEvacuatorCompleted &&
		// An Evacuation without an instigator is about to be cancelled, since this evacuator never
		// sets Forbid.
		!protocol.IsComplete(evacuation) && !protocol.IsWithdrawn(evacuation)
}

// decide decides about an Evacuation. It performs no writes.
func decide(s situation) decision {
	if !hasTurn(s.evacuation) || s.pod == nil || s.node == nil || !drainplan.IsLive(s.pod) {
		return decision{}
	}
	podType := drainplan.TypeOf(s.pod, s.node.UID)
	switch {
	case podType != v1alpha1.PodTypeDaemonSet:
		// The evacuator is in the Evacuation because of an annotation of the pod. Deleting the pod
		// would bypass its disruption budget.
		return s.decline("The pod does not belong to a DaemonSet: this evacuator does not act on it.")
	case s.pod.DeletionTimestamp != nil:
		return s.decideStopping()
	case s.evacuation.Status.ExpectedEvacuationFinishTime != nil:
		// The eviction was already requested.
		return decision{}
	case s.askedBy == nil:
		// Wait until the drain reaches the pod. This wait has no deadline.
		return decision{}
	case drainplan.Kept(s.pod, podType, s.node, sets.New(v1alpha1.EvacuatorClassDaemonSet)) == drainplan.KeptTolerant:
		return s.decline(fmt.Sprintf("The pod tolerates the taint %s: if it were evicted, its DaemonSet would replace it on the node immediately. The pod is kept.",
			v1alpha1.TaintDrain))
	case !drainplan.IsTainted(s.node):
		// The DaemonSet would recreate the pod immediately. The event of the taint will cause
		// another sync.
		return decision{}
	case len(s.volumes) > 0 && s.now.Before(s.volumesUntil):
		return s.decideVolumes()
	}
	return s.request()
}

// request requests the eviction of the pod by a report with an expected finish time. The API server
// refuses the write if the Evacuation has changed, for example because it was withdrawn. The
// evacuation controller evicts the pod as its disruption budget allows.
func (s *situation) request() decision {
	grace := defaultGrace
	if seconds := s.pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	message := fmt.Sprintf("The pod is evicted for %s and has %s to stop.", protocol.Mention(s.askedBy), grace)
	return decision{status: s.report(s.now.Add(grace), message), requested: true}
}

// decideVolumes reports that the pod waits until the node has released the volumes of pods that
// have left. A CSI node plugin may run in a DaemonSet, and the kubelet needs the plugin to unstage
// the volumes.
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
	d.status.EvacuationProgressTimestamp = protocol.Timestamp(s.now)
	d.status.Message = wording.Cut(message, protocol.MaxMessage)
	if next := s.now.Add(s.beat()); next.Before(d.wake) {
		d.wake = next
	}
	return d
}

// beat returns the interval between two reports about a pod that this evacuator waits for.
func (s *situation) beat() time.Duration {
	if seconds := s.evacuation.Spec.ProgressDeadlineSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second / heartbeats
	}
	return protocol.DefaultProgressDeadline / heartbeats
}

// decideStopping reports when the pod should be gone. It sends no more reports after the end of the
// grace period.
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

// decline reports completion, so that the next evacuator becomes active.
func (s *situation) decline(why string) decision {
	status := s.evacuation.Status.DeepCopy()
	status.ActiveEvacuatorCompleted = true
	status.EvacuationProgressTimestamp = protocol.Timestamp(s.now)
	status.Message = why
	return decision{status: status}
}

// report returns the status with the expected finish time. The server sets the timestamps of
// reports by other users. The built-in evacuators have to set them.
func (s *situation) report(expected time.Time, message string) *v1alpha1.EvacuationStatus {
	status := s.evacuation.Status.DeepCopy()
	status.EvacuationProgressTimestamp = protocol.Timestamp(s.now)
	status.ExpectedEvacuationFinishTime = protocol.Timestamp(expected)
	status.Message = wording.Cut(message, protocol.MaxMessage)
	return status
}
