// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

const (
	// waitsForEvacuator is shown as the reason of pods that wait for an evacuator; the API has no
	// such reason.
	waitsForEvacuator = "WaitsForEvacuator"
	// waitingAfter is the age of an evacuator's heartbeat after which its pods are listed as
	// waiting.
	waitingAfter = 10 * time.Second
)

// waits are the reasons of pods that wait but are not blocked, in the order of the output, with a
// heading and a description.
var waits = []struct{ reason, heading, what string }{
	{waitsForEvacuator, "WAITING", "waiting for evacuators that report no progress"},
	{v1alpha1.ReasonPodWaits, "WAITING", "waiting to be evicted"},
	{v1alpha1.ReasonPodStopping, "STOPPING", "stopping within their grace period"},
	{v1alpha1.ReasonPaused, "PAUSED", "waiting for the end of a pause"},
}

// Waits reports whether the pod of an Evacuation waits but is not blocked: for an evacuator that
// has not reported progress for a while, for its eviction, for the end of its grace period, or for
// the end of a pause.
func Waits(e *v1alpha1.Evacuation, now time.Time) bool { return waitOf(e, now) != "" }

// waitOf returns the reason why a pod waits; "" if it does not wait or is blocked.
func waitOf(e *v1alpha1.Evacuation, now time.Time) string {
	if Blocked(e) || protocol.IsComplete(e) {
		return ""
	}
	if c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked); c != nil {
		switch c.Reason {
		case v1alpha1.ReasonPodStopping, v1alpha1.ReasonPodWaits, v1alpha1.ReasonPaused:
			return c.Reason
		}
	}
	t := protocol.TurnOf(&e.Status)
	switch {
	case e.DeletionTimestamp != nil, t.Class == "", t.Class == v1alpha1.EvacuatorClassEviction, t.Completed, t.Since.IsZero(),
		now.Sub(t.Since) < waitingAfter:
		return ""
	case t.Class == v1alpha1.EvacuatorClassDaemonSet, t.Class == v1alpha1.EvacuatorClassKubelet:
		// Built-in evacuators that are active from the start do nothing before the wave of the pod
		// begins.
		if !t.Reported {
			return ""
		}
	}
	return waitsForEvacuator
}

// WaitingOf returns the pods for which Waits is true, grouped by reason and in the order of
// BlockersOf. If on is not nil, it returns only the pods on nodes for which on returns true.
func WaitingOf(evacuations []v1alpha1.Evacuation, on func(node string) bool, now time.Time) []Blocker {
	byReason := map[string][]Blocker{}
	for i := range evacuations {
		e := &evacuations[i]
		reason := waitOf(e, now)
		if reason == "" || on != nil && !on(e.Spec.NodeName) {
			continue
		}
		t := protocol.TurnOf(&e.Status)
		b := Blocker{
			Namespace: e.Namespace, Pod: e.Spec.PodRef.Name, Node: e.Spec.NodeName, Reason: reason, Message: e.Status.Message,
			Since: t.Since, evacuator: t.Class, workload: workloadOf(e.Namespace, e.Spec.PodRef.Name, e.Labels),
		}
		switch reason {
		case v1alpha1.ReasonPodStopping, v1alpha1.ReasonPodWaits, v1alpha1.ReasonPaused:
			c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
			b.Message, b.Since = c.Message, c.LastTransitionTime.Time
			b.stopsAt, _ = wording.StoppingUntil(c.Message)
		case waitsForEvacuator:
			b.Message = waitingMessage(e, t)
			b.until, b.next = t.Since.Add(t.Patience(e.Spec.ProgressDeadlineSeconds, math.MaxInt64)), protocol.Next(e.Spec.Evacuators, t.Class)
		}
		byReason[reason] = append(byReason[reason], b)
	}
	var waiting []Blocker
	for _, kind := range waits {
		sortBlockers(byReason[kind.reason])
		waiting = append(waiting, byReason[kind.reason]...)
	}
	return waiting
}

// waitingMessage returns the message of the evacuator, or a text if it has not reported one.
func waitingMessage(e *v1alpha1.Evacuation, t protocol.Turn) string {
	switch {
	case !t.Reported:
		return "The evacuator has not reported since it became active. Check that its controller runs."
	case e.Status.Message == "":
		return "The evacuator reported without a message."
	}
	return e.Status.Message
}

// waitingGroups shows the waiting pods in groups, for the list below the blocked pods.
func waitingGroups(waiting []Blocker, now time.Time, o Options) []screen.Line {
	var lines []screen.Line
	causes := causesOf(waiting)
	shown := o.cut(len(causes), causesListed)
	for _, c := range causes[:shown] {
		heading, headings := "Waiting for eviction", []string{"WAITING FOR"}
		deadline := func(*load) []string { return nil }
		switch {
		case !c.first.until.IsZero():
			heading, headings = "Waiting for evacuator "+c.first.evacuator, []string{"NO PROGRESS FOR", "DEADLINE"}
			deadline = func(l *load) []string { return []string{l.first.deadline()} }
		case c.first.Reason == v1alpha1.ReasonPodStopping:
			heading, headings = "Stopping", []string{"STOPPING FOR", "UNTIL"}
			deadline = func(l *load) []string { return []string{timeOf(l.stopsAt)} }
		case c.first.Reason == v1alpha1.ReasonPaused:
			heading, headings = "Paused", []string{"PAUSED FOR"}
		}
		lines = append(lines, line(screen.Heading, "%s: %s", heading, wording.Count(c.pods, "pod")))
		lines = append(lines, c.lines(headings, now, o, deadline)...)
	}
	if shown < len(causes) {
		lines = append(append(lines, o.more(len(causes)-shown, "cause", "")...), screen.Line{})
	}
	return lines
}

// timeOf formats a time; "-" if it is not known.
func timeOf(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}

// waitingTotals shows the number of waiting pods for each reason.
func waitingTotals(waiting []Blocker) []screen.Line {
	var lines []screen.Line
	for _, kind := range waits {
		if pods := waitingFor(waiting, kind.reason); len(pods) > 0 {
			lines = append(lines, line(screen.Heading, "%s %s.", wording.Count(len(pods), "pod"), kind.what))
		}
	}
	return lines
}

// waitingFor returns the pods that wait for the given reason.
func waitingFor(waiting []Blocker, reason string) []Blocker {
	var found []Blocker
	for i := range waiting {
		if waiting[i].Reason == reason {
			found = append(found, waiting[i])
		}
	}
	return found
}

// waiting returns the pods of the maintenance that wait.
func (f *Facts) waiting() []Blocker {
	return WaitingOf(f.Evacuations, DrainedNodes(f.Maintenance).Has, f.Now)
}
