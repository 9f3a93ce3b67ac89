// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// localStart returns the time at which the local end of the pods must begin.
func localStart(s *settings, in *input) time.Time {
	return in.deadline.Add(-s.buckets.LocalTime(in.priorities) - localReserve)
}

// localDue returns the reason why the pods must end without the API; empty if they need not. lost
// is the reason why Haulout cannot drain the node.
func (d *decision) localDue(s *settings, in *input, lost string) string {
	start := localStart(s, in)
	switch {
	case lost != "" && in.host.lost(s, in):
		return fmt.Sprintf("%s, and kube-apiserver has not answered for %s", lost, in.now.Sub(in.host.since).Round(time.Second)) + prefixed(": ", in.host.failure)
	case s.engine == "":
		return ""
	case !in.now.Before(start):
		return fmt.Sprintf("the machine goes down in %s, and the remaining pods need this time", in.deadline.Sub(in.now).Round(time.Second))
	case d.next.Local != nil && in.local.final:
		return ErrFinal.Error()
	}
	d.wakeAt(start)
	return ""
}

// endLocally starts or continues the end of the pods on the node.
func (d *decision) endLocally(s *settings, in *input, why string) {
	st := &d.next
	st.Phase = state.LocalRun
	if st.Local == nil {
		st.Local = &state.Local{Started: in.wall}
	}
	// Begin with the first bucket: after an interrupted run, the kubelet may have restarted its
	// pods.
	st.Local.Bucket = 0
	d.why = why
	d.event(corev1.EventTypeWarning, EventLocal, "ending the pods of the node with %s: %s", s.engine, why)
	d.localRun(s, in)
}

// localRun decides while the engine ends the pods.
func (d *decision) localRun(s *settings, in *input) {
	st := &d.next
	if st.Local == nil {
		// The stored state comes from another engine, or a user has edited it.
		st.Local = &state.Local{Started: in.wall}
	}
	// Without a drain the agent does not know whether the API answers.
	answers := in.api.ok || in.host.ok || !s.drain
	if st.Local.Done {
		d.proceed, d.list = true, s.drain
		if answers && d.mustReport(s, in) {
			d.report = true
			return
		}
		d.releasing(in, "the pods of each bucket have ended, or its time is over")
		return
	}
	if s.engine == "" {
		// The engine was removed from the configuration during the shutdown.
		st.Phase = state.Detected
		if !in.stopped {
			st.Local = nil
		}
		return
	}
	d.list = s.drain
	if s.drain && (in.local.asking || !in.local.running) && d.isTimeToGoBack(s, in) && d.canLeave(s, in) {
		st.Phase = state.Detected
		if st.Maintenance != nil {
			st.Phase = state.Maintaining
		}
		d.leaving(s, in)
		if st.Phase == state.Maintaining {
			d.event(corev1.EventTypeNormal, EventDraining, "the API answers again: NodeMaintenance %s continues with the remaining pods", st.Maintenance.Name)
		}
		return
	}
	d.local, d.proceed = true, true
	d.report = answers && unreported(st.Killed)
}

// mustReport reports whether ended pods must be reported before the agent goes on. It does not
// hold the shutdown, or the start of the kubelet, because reports fail.
func (d *decision) mustReport(s *settings, in *input) bool {
	return unreported(d.next.Killed) && in.reportingFor < min(s.apiGrace, reportGrace)
}

// isTimeToGoBack reports whether the remaining time is enough to use the API first and the engine
// again if the API is lost once more. The pods of the system-node-critical bucket may be the only
// API server that the node can reach: after that bucket, the agent does not wait for the API any
// longer.
func (d *decision) isTimeToGoBack(s *settings, in *input) bool {
	return !in.local.final && d.next.Local.Bucket <= s.criticalBucket() && in.now.Add(s.apiGrace).Before(localStart(s, in))
}

// criticalBucket returns the index of the bucket with the pods on which the node itself depends.
func (s *settings) criticalBucket() int {
	return s.buckets.Index(v1alpha1.SystemNodeCritical)
}

// canLeave reports whether remaining pods can be evicted through the API: kube-apiserver answers,
// and either Haulout drains the node or the agent must evict the pods. A maintenance that was
// created a moment ago has no status yet.
func (d *decision) canLeave(s *settings, in *input) bool {
	st := &d.next
	switch {
	case st.Maintenance != nil && in.drain != nil && in.drain.Drained:
		return false // the kept pods end on the node
	case in.host.ok && in.now.Sub(in.host.since) < s.apiGrace:
		return slices.ContainsFunc(in.host.pods, func(pod Pod) bool { return !pod.Stays && !wasKilled(st.Killed, pod.UID) })
	default:
		return in.api.ok && in.now.Sub(in.api.since) < s.apiGrace && st.Maintenance != nil && st.Maintenance.UID != "" && !ended(in)
	}
}
