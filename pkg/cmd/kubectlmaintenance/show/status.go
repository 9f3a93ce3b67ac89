// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

const (
	barColumns = 24
	// nodesShown and blockersShown limit the lists to what fits on a screen.
	nodesShown    = 40
	blockersShown = 5
)

// Status shows the progress of a maintenance, with the blockers first.
func Status(f Facts, o Options) []screen.Line {
	nm, c := f.Maintenance, f.count()
	lines := []screen.Line{f.title()}
	if nm.Spec.Reason != "" {
		lines = append(lines, wrap("  ", nm.Spec.Reason, o.columns(), screen.Plain)...)
	}
	lines = append(lines, f.conditionLines(o)...)
	for _, note := range f.Notes {
		lines = append(lines, wrap("  ", "note: "+note, o.columns(), screen.Warning)...)
	}
	lines = append(lines, screen.Line{})
	lines = append(lines, f.blockerLines(o)...)
	lines = append(lines, f.waitingLines(o)...)
	if nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
		lines = append(lines, f.waveLines(c)...)
	}
	lines = append(lines, f.nodeLines(o)...)
	if last := len(lines) - 1; lines[last].Text == "" {
		lines = lines[:last]
	}
	return lines
}

// title is the name, stage, nodes and requester of the maintenance.
func (f *Facts) title() screen.Line {
	nm := f.Maintenance
	text := fmt.Sprintf("%s  %s", nm.Name, Stage(nm))
	if at := v1alpha1.StageEntered(nm, nm.Spec.Stage); !at.IsZero() {
		text += " for " + ago(f.Now, at)
	}
	text += ", " + wording.Count(len(nm.Status.NodeStatuses), "node")
	if nm.Spec.NewNodes == v1alpha1.NewNodesPolicyJoin {
		text += ", new nodes join"
	}
	if by := nm.Spec.RequestedBy; by != nil && by.Username != "" {
		text += ", requested by " + by.Username
	}
	return line(screen.Heading, "%s", text)
}

// Stage returns the stage of a maintenance, with a note if the object is being deleted.
func Stage(nm *v1alpha1.NodeMaintenance) string {
	stage := string(nm.Spec.Stage)
	if nm.DeletionTimestamp != nil {
		stage += " (being deleted)"
	}
	return stage
}

// blockers returns the blocked pods on the nodes of the maintenance.
func (f *Facts) blockers() []Blocker { return BlockersOf(f.Evacuations, Nodes(f.Maintenance).Has) }

// blockerLines shows the blocked pods. They come first, since a user must act on them.
func (f *Facts) blockerLines(o Options) []screen.Line {
	blockers := f.blockers()
	if len(blockers) == 0 {
		return nil
	}
	lines := []screen.Line{line(screen.Bad, "  BLOCKED  %s", wording.Count(len(blockers), "pod"))}
	return append(lines, f.groupLines(blockers, o)...)
}

// groupLines shows one pod of each group, and the common facts of the group.
func (f *Facts) groupLines(blockers []Blocker, o Options) []screen.Line {
	var lines []screen.Line
	all := groups(blockers)
	shown := o.cut(len(all), blockersShown)
	for _, g := range all[:shown] {
		who := fmt.Sprintf("%s/%s on %s", g.first.Namespace, g.first.Pod, g.first.Node)
		if count := len(g.all) - 1; count > 0 {
			who += fmt.Sprintf(" and %d more", count)
		}
		style, what := screen.Warning, g.first.Reason
		switch g.first.Reason {
		case waitsForEvacuator:
			style, what = screen.Plain, g.first.evacuator
		case v1alpha1.ReasonPodWaits, v1alpha1.ReasonPodStopping:
			style = screen.Plain
		}
		lines = append(lines, line(style, "  %-8s %s: %s", ago(f.Now, g.first.Since), who, what))
		lines = append(lines, wrap("           ", g.first.Message, o.columns(), screen.Plain)...)
		lines = append(lines, plain("           who: %s", g.first.WhoUntil()))
	}
	if rest := len(all) - shown; rest > 0 {
		lines = append(lines, line(screen.Faint, "           ... and %s: kubectl maintenance blockers %s", wording.Count(rest, "more cause"), f.Maintenance.Name))
	}
	return append(lines, screen.Line{})
}

// waveLines shows how many pods have left, the pace, and the remaining waves.
func (f *Facts) waveLines(c count) []screen.Line {
	lines := []screen.Line{plain("  PODS     %s%s", f.progress(c.gone, c.left(), " gone"), f.paceText(c))}
	target := f.target()
	switch {
	case c.left() == 0:
	case len(f.Maintenance.Status.Waves) > 0:
		for _, w := range f.waves() {
			lines = append(lines, waveLine(w, Entry(f.Maintenance.Spec.DrainPlan[w.Entry])))
		}
	case target != nil:
		lines = append(lines, plain("  WAVE     %s  %s leaving, %d for later waves", Entry(*target), wording.Count(c.evacuating, "pod"), c.pending))
	}
	return append(lines, screen.Line{})
}

func waveLine(w v1alpha1.NodeMaintenanceWave, entry string) screen.Line {
	gone := int(w.PodsPeak - w.PodsLeft)
	text, style, state := wording.Count(w.PodsLeft, "pod")+" left", screen.Faint, "later"
	if gone > 0 {
		text = fmt.Sprintf("%d of %d gone", gone, w.PodsPeak)
	}
	switch {
	case w.PodsLeft == 0:
		style, state = screen.Good, "over"
	case w.StartTime != nil:
		style, state = screen.Plain, "leaving"
	}
	return line(style, "  WAVE %-3d %s  %-16s %-8s %s", w.Entry+1, screen.Bar(gone, max(int(w.PodsPeak), 1), barColumns), text, state, entry)
}

// progress returns a bar, or only the number of remaining pods if the number of departed pods is
// unknown.
func (f *Facts) progress(gone, left int, what string) string {
	if !f.knowsGone() {
		return wording.Count(left, "pod") + " left"
	}
	return fmt.Sprintf("%s %d of %d%s", screen.Bar(gone, gone+left, barColumns), gone, gone+left, what)
}

// paceText returns the number of pods that leave per minute, and the time that the current wave
// takes at this pace.
func (f *Facts) paceText(c count) string {
	if c.left() == 0 || f.Departures == nil {
		return ""
	}
	p := f.pace()
	if p.departures == 0 {
		if p.over < paceWindow {
			return ""
		}
		return ", none in the last minute"
	}
	text := fmt.Sprintf(", %d a minute", p.perMinute())
	// The estimate excludes waiting pods: their waits are known and may be much longer.
	waiting := len(f.waiting())
	if eta := p.forPods(c.evacuating - c.blocked - waiting); eta > 0 {
		text += fmt.Sprintf(", this wave in about %s", duration.HumanDuration(eta))
		var others []string
		if c.blocked > 0 {
			others = append(others, fmt.Sprintf("%d blocked", c.blocked))
		}
		if waiting > 0 {
			others = append(others, fmt.Sprintf("%d waiting", waiting))
		}
		if len(others) > 0 {
			text += ", without " + strings.Join(others, " and ")
		}
	}
	return text
}

// target returns the last entry of the drain plan that a node has reached.
func (f *Facts) target() *v1alpha1.DrainPlanEntry {
	place := func(e *v1alpha1.DrainPlanEntry) int {
		return slices.IndexFunc(f.Maintenance.Spec.DrainPlan, func(p v1alpha1.DrainPlanEntry) bool { return Entry(p) == Entry(*e) })
	}
	var furthest *v1alpha1.DrainPlanEntry
	for i := range f.Maintenance.Status.NodeStatuses {
		targets := f.Maintenance.Status.NodeStatuses[i].DrainTargets
		for j := range targets {
			if furthest == nil || place(&targets[j]) > place(furthest) {
				furthest = &targets[j]
			}
		}
	}
	return furthest
}

// nodeLines shows each node: first nodes with blocked pods or outside the waves, then nodes with
// remaining pods, then drained nodes.
func (f *Facts) nodeLines(o Options) []screen.Line {
	nm := f.Maintenance
	if len(nm.Status.NodeStatuses) == 0 {
		if nm.Spec.Stage == v1alpha1.NodeMaintenanceStageComplete {
			return nil
		}
		if nm.Status.ObservedGeneration < nm.Generation {
			return []screen.Line{line(screen.Faint, "  The server has not reconciled it yet.")}
		}
		return []screen.Line{line(screen.Warning, "  No node matches the selector.")}
	}
	nodes := slices.Clone(nm.Status.NodeStatuses)
	// If other nodes have targets, a node without targets is outside the waves: it is not cordoned,
	// or not authorized.
	inWaves := func(n v1alpha1.NodeMaintenanceNodeStatus) bool { return len(n.DrainTargets) > 0 }
	wavesBegan := slices.ContainsFunc(nodes, inWaves)
	rank := func(n *v1alpha1.NodeMaintenanceNodeStatus) int {
		switch {
		case n.PodsBlocked > 0, wavesBegan && !inWaves(*n):
			return 0
		case done(n):
			return 2
		}
		return 1
	}
	slices.SortStableFunc(nodes, func(a, b v1alpha1.NodeMaintenanceNodeStatus) int { return rank(&a) - rank(&b) })
	draining := nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain
	heading := []string{"NODE", "MESSAGE"}
	if draining {
		heading = []string{"NODE", "PROGRESS", "PENDING", "EVACUATING", "BLOCKED", "KEPT", "MESSAGE"}
	} else if !slices.ContainsFunc(nodes, func(n v1alpha1.NodeMaintenanceNodeStatus) bool { return n.DrainMessage != "" }) {
		heading = heading[:1]
	}
	rows, styles := [][]string{heading}, []screen.Style{screen.Faint}
	shown := o.cut(len(nodes), nodesShown)
	for i := range nodes[:shown] {
		n := &nodes[i]
		row, style := []string{n.NodeRef.Name}, screen.Plain
		if draining {
			row = append(row, f.progress(f.gone(n), f.left(n), ""),
				fmt.Sprint(n.PodsPendingEvacuation), fmt.Sprint(f.evacuating(n)), fmt.Sprint(n.PodsBlocked), fmt.Sprint(n.PodsKept), n.DrainMessage)
			style = []screen.Style{screen.Warning, screen.Plain, screen.Good}[rank(n)]
		} else if len(heading) > 1 {
			row = append(row, n.DrainMessage)
		}
		rows, styles = append(rows, row), append(styles, style)
	}
	return append(table("  ", rows, styles), more(len(nodes)-shown, "node", "  ")...)
}

// Summary returns the progress of a maintenance in one line.
func Summary(f Facts) string {
	nm, c := f.Maintenance, f.count()
	stuck := ""
	if condition := Stuck(nm); condition != nil {
		stuck = ", " + condition.Reason
	}
	if nm.Spec.Stage != v1alpha1.NodeMaintenanceStageDrain {
		return fmt.Sprintf("%s: %s, %s%s", nm.Name, Stage(nm), wording.Count(c.nodes, "node"), stuck)
	}
	text := fmt.Sprintf("%s: %d of %s drained", nm.Name, c.drained, wording.Count(c.nodes, "node"))
	if f.knowsGone() {
		text += fmt.Sprintf(", %d of %s gone", c.gone, wording.Count(c.gone+c.left(), "pod"))
	}
	if c.evacuating+c.pending > 0 {
		text += fmt.Sprintf(", %d leaving, %d for later waves", c.evacuating, c.pending)
	}
	if c.blocked > 0 {
		text += fmt.Sprintf(", %d blocked", c.blocked)
		if all := groups(f.blockers()); len(all) > 0 {
			text += fmt.Sprintf(" (%s/%s: %s)", all[0].first.Namespace, all[0].first.Pod, all[0].first.Reason)
		}
	}
	return text + stuck
}

// Table shows one row for each maintenance.
func Table(all []Facts) []screen.Line {
	rows := [][]string{{"NAME", "STAGE", "NODES", "PODS GONE", "LEFT", "BLOCKED", "PROGRESSING", "FOR", "REASON"}}
	styles := []screen.Style{screen.Faint}
	for i := range all {
		f := &all[i]
		c, nm, style := f.count(), f.Maintenance, screen.Plain
		gone, left := "-", "-"
		if nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
			gone, left = fmt.Sprintf("%s %d", screen.Bar(c.gone, c.gone+c.left(), barColumns/2), c.gone), fmt.Sprint(c.left())
		}
		age := "-"
		if at := v1alpha1.StageEntered(nm, nm.Spec.Stage); !at.IsZero() {
			age = ago(f.Now, at)
		}
		progressing := "-"
		if condition := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing); condition != nil {
			progressing = condition.Reason
		}
		switch {
		case c.blocked > 0, Stuck(nm) != nil:
			style = screen.Warning
		case meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained):
			style = screen.Good
		case nm.Spec.Stage == v1alpha1.NodeMaintenanceStageComplete:
			style = screen.Faint
		}
		rows = append(rows, []string{
			nm.Name, Stage(nm), fmt.Sprint(c.nodes), gone, left, fmt.Sprint(c.blocked), progressing, age, cmp.Or(nm.Spec.Reason, "-"),
		})
		styles = append(styles, style)
	}
	return table("", rows, styles)
}
