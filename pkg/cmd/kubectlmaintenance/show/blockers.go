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
	"k8s.io/apimachinery/pkg/util/sets"

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
	// workload is the workload of the pod.
	workload workload
	// evacuator is the class of the active evacuator.
	evacuator string
	// until is set if the pod is not blocked but waits for the active evacuator, see WaitingOf: if
	// the evacuator sends no heartbeat until then, the evacuator of class next becomes active. The
	// server may be configured with a shorter deadline, which the plugin cannot read.
	until time.Time
	next  string
	// stopsAt is the end of the grace period of a pod that is stopping.
	stopsAt time.Time
}

const (
	// podsShown is the maximum number of listed workloads of a cause, and of the nodes of an
	// obstacle.
	podsShown = 20
	// causesListed is the maximum number of causes of Blockers.
	causesListed = 20
)

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
			workload: workloadOf(e.Namespace, e.Spec.PodRef.Name, e.Labels),
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

// lines shows the common parts of a cause, then a row for each of its first workloads, with the
// time since its first pod stays. cells returns further cells of a row.
func (c *cause) lines(headings []string, now time.Time, o Options, cells func(*load) []string) []screen.Line {
	lines := wrap("  ", c.message(), o.columns(), screen.Plain)
	lines = append(lines, whoAndLook("  ", c.first.Who(), c.first.Look())...)
	g := grid{indent: "  ", rows: [][]string{append([]string{"NAMESPACE", "WORKLOAD", "PODS", "NODE"}, headings...)}, drop: []int{2, 3}}
	shown := o.cut(len(c.loads), podsShown)
	for _, l := range c.loads[:shown] {
		kind, name := l.title()
		row := []string{l.namespace, kind + " " + name, fmt.Sprint(l.pods), l.where(), ago(now, l.first.Since)}
		g.rows = append(g.rows, append(row, cells(l)...))
	}
	if o.Columns > 0 && o.Columns < narrow {
		g.joinNamespace()
	}
	lines = append(lines, g.lines(o)...)
	lines = append(lines, o.more(len(c.loads)-shown, "workload", "  ")...)
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
	if len(waiting) > 0 {
		if len(blockers)+len(obstacles) == 0 {
			lines = []screen.Line{plain(nothingBlocked)}
		}
		lines = append(append(lines, screen.Line{}), waitingGroups(waiting, now, o)...)
		lines = append(lines, waitingTotals(waiting)...)
	}
	return lines
}

func blocked(blockers []Blocker, obstacles []Obstacle, now time.Time, o Options) []screen.Line {
	if len(blockers)+len(obstacles) == 0 {
		return nil
	}
	lines := obstacleLines(obstacles, now, o)
	if len(blockers) == 0 {
		return lines[:len(lines)-1]
	}
	causes := causesOf(blockers)
	shown := o.cut(len(causes), causesListed)
	for _, c := range causes[:shown] {
		lines = append(lines, line(screen.Warning, "%s: %s", c.first.Reason, wording.Count(c.pods, "pod")))
		lines = append(lines, c.lines([]string{"BLOCKED FOR"}, now, o, func(*load) []string { return nil })...)
	}
	if shown < len(causes) {
		lines = append(append(lines, o.more(len(causes)-shown, "cause", "")...), screen.Line{})
	}
	return append(lines, line(screen.Heading, "%s cannot leave.", wording.Count(len(blockers), "pod")))
}

// BlockerTable shows one row for each obstacle, then one row for each blocked pod.
func BlockerTable(obstacles []Obstacle, blockers []Blocker, now time.Time, o Options) []screen.Line {
	g := grid{rows: [][]string{{"NAMESPACE", "POD", "NODE", "SINCE", "REASON", "WHO", "MESSAGE"}}, drop: []int{5, 3, 2, 6}, cut: true}
	g.rows = append(g.rows, obstacleRows(obstacles, now)...)
	for i := range blockers {
		b := &blockers[i]
		g.rows = append(g.rows, []string{b.Namespace, b.Pod, b.Node, ago(now, b.Since), b.Reason, b.WhoUntil(), b.Message})
	}
	return g.lines(o)
}

// AppDown is a workload without a ready pod that has lost a pod to a drain.
type AppDown struct {
	Kind, Namespace, Name string
}

const nothingBlocked = "No pod is blocked."

// NothingBlocked shows that no pod is blocked or waiting, which maintenances are complete, and how
// many pods must still leave the nodes of the others.
func NothingBlocked(maintenances []v1alpha1.NodeMaintenance, o Options) []screen.Line {
	lines := []screen.Line{plain(nothingBlocked)}
	for i := range maintenances {
		nm := &maintenances[i]
		switch c := drainedCondition(nm); {
		case v1alpha1.IsDone(nm):
			lines = append(lines, plain("  %s is complete.", nm.Name))
		case nm.DeletionTimestamp == nil && c != nil:
			lines = append(lines, wrap("  ", nm.Name+": "+c.Message, o.columns(), screen.Plain)...)
		}
	}
	return lines
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

// BlockersOfAll shows the blockers of maintenances that are watched.
func BlockersOfAll(all []Facts, o Options) []screen.Line {
	var maintenances []v1alpha1.NodeMaintenance
	var obstacles []Obstacle
	nodes := sets.New[string]()
	for i := range all {
		f := &all[i]
		if v1alpha1.IsDone(f.Maintenance) {
			continue
		}
		maintenances = append(maintenances, *f.Maintenance)
		obstacles = append(obstacles, Obstacles(f.Maintenance, len(f.blockers()) > 0, f.Now)...)
		nodes = nodes.Union(DrainedNodes(f.Maintenance))
	}
	if len(maintenances) == 0 {
		return NothingBlocked(nil, o)
	}
	f := &all[0]
	lines := Blockers(BlockersOf(f.Evacuations, nodes.Has), obstacles, WaitingOf(f.Evacuations, nodes.Has, f.Now), f.Now, o)
	if len(lines) == 0 && len(f.Notes) == 0 {
		return NothingBlocked(maintenances, o)
	}
	for _, note := range f.Notes {
		lines = append(lines, wrap("", "note: "+note, o.columns(), screen.Warning)...)
	}
	return lines
}
