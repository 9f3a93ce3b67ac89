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

package show

import (
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

const (
	// waitsForEvacuator is shown in place of the reason that blocked pods have.
	waitsForEvacuator = "WaitsForEvacuator"
	// waitingAfter is how old the heartbeat of an evacuator may be before its pods are listed.
	waitingAfter = 10 * time.Second
)

// evacuatorDeadline is the time until which a pod waits for an active evacuator that makes no
// progress.
type evacuatorDeadline struct {
	// until is when the next evacuator becomes active, unless the active one reports. The server
	// may be configured with a shorter deadline, which is not known here.
	until time.Time
	// next is the class that becomes active then.
	next string
}

func (d *evacuatorDeadline) who(class string) string {
	return fmt.Sprintf("the evacuator %s until its deadline, then %s", class, d.then())
}

// whoUntil returns who for one pod, with its deadline.
func (d *evacuatorDeadline) whoUntil(class string) string {
	return fmt.Sprintf("the evacuator %s until %s at the latest, then %s", class, d.text(), d.then())
}

func (d *evacuatorDeadline) then() string {
	if d.next == v1alpha1.EvacuatorClassEviction {
		return "eviction"
	}
	return "the evacuator " + d.next
}

func (d *evacuatorDeadline) text() string { return d.until.UTC().Format(time.RFC3339) }

// Waits reports whether the pod of an Evacuation is not blocked and waits for an evacuator that has
// not reported progress for a while.
func Waits(e *v1alpha1.Evacuation, now time.Time) bool {
	if e.DeletionTimestamp != nil || Blocked(e) || meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionComplete) {
		return false
	}
	t := protocol.TurnOf(&e.Status)
	switch {
	case t.Class == "", t.Class == v1alpha1.EvacuatorClassEviction, t.Completed, t.Since.IsZero(), now.Sub(t.Since) < waitingAfter:
		return false
	case t.Class == v1alpha1.EvacuatorClassDaemonSet, t.Class == v1alpha1.EvacuatorClassKubelet:
		// They are active from the start, and have nothing to do before the wave of the pod.
		return t.Reported
	}
	return true
}

// WaitingOf returns the pods for which Waits is true, in the order of BlockersOf. It only includes
// nodes for which on returns true; nil means all nodes.
func WaitingOf(evacuations []v1alpha1.Evacuation, on func(node string) bool, now time.Time) []Blocker {
	var waiting []Blocker
	for i := range evacuations {
		e := &evacuations[i]
		if !Waits(e, now) || on != nil && !on(e.Spec.NodeName) {
			continue
		}
		t := protocol.TurnOf(&e.Status)
		waiting = append(waiting, Blocker{
			Namespace: e.Namespace, Pod: e.Spec.PodRef.Name, Node: e.Spec.NodeName, Reason: waitsForEvacuator, Message: waitingMessage(e, t),
			Since: t.Since, evacuator: t.Class,
			waits: &evacuatorDeadline{
				until: t.Since.Add(t.Patience(e.Spec.ProgressDeadlineSeconds, math.MaxInt64)), next: protocol.Next(e.Spec.Evacuators, t.Class),
			},
		})
	}
	sortBlockers(waiting)
	return waiting
}

// waitingMessage is the message of the evacuator, or that it has not reported.
func waitingMessage(e *v1alpha1.Evacuation, t protocol.Turn) string {
	switch {
	case !t.Reported:
		return "The evacuator has not reported since it became active. Check that the controller behind it runs."
	case e.Status.Message == "":
		return "The evacuator has reported without a message."
	}
	return e.Status.Message
}

// waitingGroups shows the pods that wait for their evacuators. They are listed below the blocked
// pods.
func waitingGroups(waiting []Blocker, now time.Time, o Options) []screen.Line {
	var lines []screen.Line
	for _, g := range groups(waiting) {
		lines = append(lines, line(screen.Heading, "Waiting for evacuator %s: %s", g.first.evacuator, wording.Count(len(g.all), "pod")))
		rows := [][]string{{"NAMESPACE", "POD", "NODE", "NO PROGRESS FOR", "DEADLINE"}}
		shown := o.cut(len(g.all), podsShown)
		for i := range g.all[:shown] {
			b := &g.all[i]
			rows = append(rows, []string{b.Namespace, b.Pod, b.Node, ago(now, b.Since), b.waits.text()})
		}
		lines = append(lines, g.lines(rows, shown, o)...)
	}
	return lines
}

// waitingLines come after those of blocked pods: no action is needed yet.
func (f *Facts) waitingLines(o Options) []screen.Line {
	nodes := Nodes(f.Maintenance)
	waiting := WaitingOf(f.Evacuations, nodes.Has, f.Now)
	if len(waiting) == 0 {
		return nil
	}
	lines := []screen.Line{line(screen.Heading, "  WAITING  %s, for evacuators that report no progress", wording.Count(len(waiting), "pod"))}
	return append(lines, f.groupLines(waiting, o)...)
}
