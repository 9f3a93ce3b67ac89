// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// Blocker is a pod that cannot leave its node.
type Blocker struct {
	Namespace, Pod, Node string
	// Reason and Message are those of the condition Blocked: the cause and the remedy.
	Reason, Message string
	Since           time.Time
	// evacuator is the class of the active evacuator.
	evacuator string
	// until is set if the pod is not blocked but waits for the active evacuator, see WaitingOf: if
	// the evacuator sends no heartbeat until then, the evacuator of class next becomes active. The
	// server may be configured with a shorter deadline, which the plugin cannot read.
	until time.Time
	next  string
}

// podsShown is the maximum number of listed pods of a group.
const podsShown = 20

// Blocked reports whether an Evacuation is blocked.
func Blocked(e *v1alpha1.Evacuation) bool {
	return meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionBlocked) && !protocol.IsComplete(e)
}

// BlockersOf returns the blocked pods, the longest blocked first. If on is not nil, it returns only
// the pods on nodes for which on returns true.
func BlockersOf(evacuations []v1alpha1.Evacuation, on func(node string) bool) []Blocker {
	var blockers []Blocker
	for i := range evacuations {
		e := &evacuations[i]
		if !Blocked(e) || on != nil && !on(e.Spec.NodeName) {
			continue
		}
		condition := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
		blockers = append(blockers, Blocker{
			Namespace: e.Namespace, Pod: e.Spec.PodRef.Name, Node: e.Spec.NodeName, Reason: condition.Reason, Message: condition.Message,
			Since: condition.LastTransitionTime.Time, evacuator: e.Status.ActiveEvacuatorClass,
		})
	}
	sortBlockers(blockers)
	return blockers
}

func sortBlockers(blockers []Blocker) {
	slices.SortFunc(blockers, func(a, b Blocker) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
}

// Who returns the user or component that must act.
func (b *Blocker) Who() string { return b.who("its deadline") }

// WhoUntil returns Who with the deadline of the evacuator, if the pod waits for an evacuator.
func (b *Blocker) WhoUntil() string { return b.who(b.deadline() + " at the latest") }

func (b *Blocker) who(deadline string) string {
	if b.until.IsZero() {
		return b.fill(wording.RemedyFor(b.Reason).Who)
	}
	next := "the evacuator " + b.next
	if b.next == v1alpha1.EvacuatorClassEviction {
		next = "eviction"
	}
	return fmt.Sprintf("the evacuator %s until %s, then %s", b.evacuator, deadline, next)
}

func (b *Blocker) deadline() string { return b.until.UTC().Format(time.RFC3339) }

// Look returns a command that shows details: for a budget, one that names it.
func (b *Blocker) Look() string {
	if name, ok := wording.BudgetIn(b.Message); ok && wording.RemedyFor(b.Reason).OfBudget {
		return wording.BudgetCommand(b.Namespace, name)
	}
	if !b.until.IsZero() {
		return b.fill("kubectl get evacuations -n %s -o wide")
	}
	return b.fill(wording.RemedyFor(b.Reason).Look)
}

func (b *Blocker) fill(format string) string {
	if !strings.Contains(format, "%") {
		return format
	}
	// The verb %[5]s prints nothing: without it, fmt would report arguments that the format does
	// not use.
	return fmt.Sprintf(format+"%[5]s", b.Namespace, b.Pod, b.Node, cmp.Or(b.evacuator, "-"), "")
}

// group is a set of blockers that only differ in the pod.
type group struct {
	first *Blocker
	all   []Blocker
}

// groups groups blockers by reason, message and actor.
func groups(blockers []Blocker) []*group {
	var out []*group
	at := map[[3]string]*group{}
	for i := range blockers {
		b := &blockers[i]
		key := [3]string{b.Reason, b.Message, b.Who()}
		if at[key] == nil {
			at[key] = &group{first: b}
			out = append(out, at[key])
		}
		at[key].all = append(at[key].all, *b)
	}
	return out
}

// lines shows the common parts of a group, then the rows of its first pods. shown is the number of
// pods in the rows.
func (g *group) lines(rows [][]string, shown int, o Options) []screen.Line {
	lines := wrap("  ", g.first.Message, o.columns(), screen.Plain)
	lines = append(lines, whoAndLook("  ", g.first.Who(), g.first.Look())...)
	lines = append(lines, table("  ", rows, nil)...)
	lines = append(lines, more(len(g.all)-shown, "pod", "  ")...)
	return append(lines, screen.Line{})
}

// whoAndLook shows who must act, and a command that shows details.
func whoAndLook(indent, who, look string) []screen.Line {
	return []screen.Line{plain("%swho    %s", indent, who), plain("%slook   %s", indent, look)}
}

// Blockers shows the obstacles, then the blocked pods with cause, actor and remedy, then the
// waiting pods (see WaitingOf) in a separate list. It returns no lines if all three are empty.
func Blockers(blockers []Blocker, obstacles []Obstacle, waiting []Blocker, now time.Time, o Options) []screen.Line {
	lines := blocked(blockers, obstacles, now, o)
	if len(waiting) == 0 {
		return lines
	}
	if len(blockers)+len(obstacles) == 0 {
		lines = []screen.Line{plain("Nothing is blocked.")}
	}
	lines = append(append(lines, screen.Line{}), waitingGroups(waiting, now, o)...)
	return append(lines, waitingTotals(waiting)...)
}

func blocked(blockers []Blocker, obstacles []Obstacle, now time.Time, o Options) []screen.Line {
	if len(blockers)+len(obstacles) == 0 {
		return nil
	}
	lines := obstacleLines(obstacles, now, o)
	if len(blockers) == 0 {
		return lines[:len(lines)-1]
	}
	for _, g := range groups(blockers) {
		lines = append(lines, line(screen.Warning, "%s: %s", g.first.Reason, wording.Count(len(g.all), "pod")))
		rows := [][]string{{"NAMESPACE", "POD", "NODE", "BLOCKED FOR"}}
		shown := o.cut(len(g.all), podsShown)
		for i := range g.all[:shown] {
			b := &g.all[i]
			rows = append(rows, []string{b.Namespace, b.Pod, b.Node, ago(now, b.Since)})
		}
		lines = append(lines, g.lines(rows, shown, o)...)
	}
	return append(lines, line(screen.Heading, "%s cannot leave.", wording.Count(len(blockers), "pod")))
}

// BlockerTable shows one row for each obstacle, then one row for each blocked pod.
func BlockerTable(obstacles []Obstacle, blockers []Blocker, now time.Time) []screen.Line {
	rows := [][]string{{"NAMESPACE", "POD", "NODE", "SINCE", "REASON", "WHO", "MESSAGE"}}
	rows = append(rows, obstacleRows(obstacles, now)...)
	for i := range blockers {
		b := &blockers[i]
		rows = append(rows, []string{b.Namespace, b.Pod, b.Node, ago(now, b.Since), b.Reason, b.WhoUntil(), b.Message})
	}
	return table("", rows, nil)
}

// more shows the number of omitted items of a list, if any.
func more(count int, noun, indent string) []screen.Line {
	if count <= 0 {
		return nil
	}
	return []screen.Line{line(screen.Faint, "%s... and %s (-o wide lists all)", indent, wording.Count(count, "more "+noun))}
}

// AppDown is a workload without a ready pod that has lost a pod to a drain.
type AppDown struct {
	Kind, Namespace, Name string
}

// NothingBlocked shows that no pod is blocked or waiting, and how many pods must still leave their
// nodes. While pods are left, it prints "Nothing is blocked", not "Nothing is in the way".
func NothingBlocked(maintenances []v1alpha1.NodeMaintenance) []screen.Line {
	var left []screen.Line
	for i := range maintenances {
		nm := &maintenances[i]
		if c := drainedCondition(nm); nm.DeletionTimestamp == nil && c != nil && c.Status != metav1.ConditionTrue {
			left = append(left, plain("  %s: %s", nm.Name, c.Message))
		}
	}
	if len(left) == 0 {
		return []screen.Line{plain("Nothing is in the way.")}
	}
	return append([]screen.Line{plain("Nothing is blocked.")}, left...)
}

// AppsDown shows the workloads without a ready pod.
func AppsDown(down []AppDown) []screen.Line {
	var lines []screen.Line
	for _, app := range down {
		lines = append(lines, screen.Line{}, line(screen.Warning, "%s %s/%s: no pod is ready", app.Kind, app.Namespace, app.Name),
			plain("  A maintenance moved one of its pods, and no pod is ready now. Check why its pods do not start."))
		owner := Blocker{Namespace: app.Namespace, Reason: v1alpha1.ReasonUnhealthyPodsHoldBudget}
		lines = append(lines, whoAndLook("  ", owner.Who(), owner.Look())...)
	}
	return lines
}
