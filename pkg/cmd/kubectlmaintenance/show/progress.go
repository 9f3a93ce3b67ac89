// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/drainer"
)

// addProgress adds the totals of pods and nodes, the waves and the pace.
func (l *layout) addProgress(c count, waiting []Blocker) {
	f := l.f
	waves := f.waves()
	all := withBars(l.o, func(bar int) grid {
		g := grid{
			indent: "  ", plain: true, styles: []screen.Style{screen.Plain}, drop: []int{3, 2},
			rows: [][]string{{"PODS", f.progress(bar, c.gone, c.left(), "gone"), "", ""}},
		}
		for i := range waves {
			row, style := f.waveRow(&waves[i], bar)
			g.rows, g.styles = append(g.rows, row), append(g.styles, style)
		}
		if target := f.target(); len(waves) == 0 && target != nil && c.left() > 0 {
			leaving := fmt.Sprintf("%s leaving, %d for later waves", wording.Count(c.evacuating, "pod"), c.pending-c.waiting)
			g.rows, g.styles = append(g.rows, []string{"WAVE", leaving, "", Entry(*target)}), append(g.styles, screen.Plain)
		}
		if !v1alpha1.IsEnding(f.Maintenance) {
			nodes := fmt.Sprintf("%d of %d drained", c.drained, c.nodes)
			g.rows = append(g.rows, []string{"NODES", progressCell(bar, nodes, c.drained, c.nodes), "", ""})
			g.styles = append(g.styles, screen.Plain)
		}
		return g
	}, l.o.bars()...)
	l.head = append(l.head, screen.Line{}, all[0])
	l.waves, l.pace = all[1:1+len(waves)], all[1+len(waves):]
	for l.over < len(waves) && waves[l.over].PodsLeft == 0 {
		l.over++
	}
	for _, text := range f.paceTexts(c, len(waiting)) {
		if pace := l.o.Fit(plain("  %s", text)); l.o.Rows <= 0 || len(pace) == 1 {
			l.pace = append(l.pace, pace...)
			break
		}
	}
}

// waveRow is the row of a wave, with the time that it has taken.
func (f *Facts) waveRow(w *v1alpha1.NodeMaintenanceWave, bar int) ([]string, screen.Style) {
	gone, peak := int(w.PodsPeak-w.PodsLeft), int(w.PodsPeak)
	style, state := screen.Faint, "not begun"
	switch {
	case w.PodsLeft == 0:
		style, state = screen.Good, "done"
		if w.StartTime != nil && w.EndTime != nil {
			state = "done in " + duration.HumanDuration(w.EndTime.Sub(w.StartTime.Time))
		}
	case v1alpha1.IsEnding(f.Maintenance):
		if w.StartTime != nil {
			state = "not done"
		}
	case w.StartTime != nil && f.waitsForCompletion():
		style, state = screen.Plain, "may complete, for "+ago(f.Now, w.StartTime.Time)
	case w.StartTime != nil:
		style, state = screen.Plain, "leaving for "+ago(f.Now, w.StartTime.Time)
	}
	text := progressCell(bar, fmt.Sprintf("%d of %d gone", gone, peak), gone, peak)
	return []string{fmt.Sprintf("WAVE %d", w.Entry+1), text, state, Entry(f.Maintenance.Spec.DrainPlan[w.Entry])}, style
}

// waitsForCompletion reports whether a drain only waits for pods to complete.
func (f *Facts) waitsForCompletion() bool {
	c := meta.FindStatusCondition(f.Maintenance.Status.Conditions, v1alpha1.ConditionProgressing)
	return c != nil && c.Reason == v1alpha1.ReasonProgressWaitingForCompletion
}

// progress returns a bar, or only the number of remaining pods if the number of departed pods is
// unknown.
func (f *Facts) progress(bar, gone, left int, what string) string {
	if !f.knowsGone() {
		return wording.Count(left, "pod") + " left"
	}
	text := strings.TrimSpace(fmt.Sprintf("%d of %d %s", gone, gone+left, what))
	return progressCell(bar, text, gone, gone+left)
}

// paceTexts returns the number of pods that leave per minute and, in the first text, the time that
// the pods of the present wave need at this pace. The time excludes blocked pods, and waiting ones:
// their waits are known and may be much longer. If no pod leaves, the text is the age of the last
// progress.
func (f *Facts) paceTexts(c count, waiting int) []string {
	if c.left() == 0 || f.Maintenance.Spec.Paused || !v1alpha1.IsDraining(f.Maintenance) || f.waitsForCompletion() {
		return nil
	}
	p := f.pace()
	perMinute := p.perMinute()
	switch {
	case perMinute > 0:
	case f.lastProgress() != "" && drainer.Stuck(f.Maintenance) != nil:
		return []string{"No pod leaves, " + f.lastProgress() + "."}
	case f.Departures != nil && p.departures == 0 && p.over >= paceWindow:
		return []string{"No pod has left in the last minute."}
	default:
		return nil
	}
	text := "Pace: " + wording.Count(perMinute, "pod") + " a minute"
	pods := c.evacuating - c.blocked - waiting
	eta := p.forPods(pods)
	switch {
	case eta <= 0:
		return []string{text + "."}
	case c.blocked+waiting == 0:
		return []string{fmt.Sprintf("%s, about %s for this wave.", text, duration.HumanDuration(eta)), text + "."}
	}
	return []string{
		fmt.Sprintf("%s, about %s for the %s that can leave now.", text, duration.HumanDuration(eta), wording.Count(pods, "pod")),
		text + ".",
	}
}

// addNodes adds the nodes: first nodes with blocked pods or outside the waves, then nodes with
// remaining pods, then drained nodes.
func (l *layout) addNodes() {
	nm := l.f.Maintenance
	switch {
	case v1alpha1.IsDone(nm):
	case len(nm.Status.NodeStatuses) > 0:
		l.addNodeTable()
	case nm.Spec.Stage == v1alpha1.NodeMaintenanceStageComplete:
	case slices.ContainsFunc(l.f.obstacles(nil), func(b Obstacle) bool { return b.Reason == v1alpha1.ReasonNoNodes }):
		// The causes say it.
	case nm.Status.ObservedGeneration == 0:
		l.pace = append(l.pace, l.o.Fit(line(screen.Faint, "  The server has not reconciled it yet."))...)
	default:
		l.pace = append(l.pace, l.o.Fit(line(screen.Warning, "  No node matches the selector."))...)
	}
}

func (l *layout) addNodeTable() {
	nm := l.f.Maintenance
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
	l.allNodes = len(nodes)
	if !l.o.Wide {
		nodes = nodes[:min(len(nodes), max(nodesShown, l.o.Rows))]
	}
	styles := []screen.Style{screen.Faint}
	for i := range nodes {
		styles = append(styles, []screen.Style{screen.Warning, screen.Plain, screen.Good}[rank(&nodes[i])])
	}
	if nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
		l.nodes = withBars(l.o, func(bar int) grid { return l.f.drainGrid(nodes, styles, bar) }, l.o.bars()...)
		return
	}
	g := grid{indent: "  ", rows: [][]string{{"NODE", "MESSAGE"}}, cut: true}
	if !slices.ContainsFunc(nodes, func(n v1alpha1.NodeMaintenanceNodeStatus) bool { return n.DrainMessage != "" }) {
		g.rows[0] = g.rows[0][:1]
	}
	for i := range nodes {
		message := nodes[i].DrainMessage
		if why, outside := whyOutside(&nodes[i]); outside {
			// No node is to be drained in this stage.
			message = why
		}
		g.rows = append(g.rows, []string{nodes[i].NodeRef.Name, message}[:len(g.rows[0])])
	}
	l.nodes = g.lines(l.o)
}

// drainGrid is the table of the nodes in stage Drain. A narrow terminal does not show the number of
// kept pods, then that of pending ones, then that of evacuating ones.
func (f *Facts) drainGrid(nodes []v1alpha1.NodeMaintenanceNodeStatus, styles []screen.Style, bar int) grid {
	g := grid{
		indent: "  ", styles: styles, drop: []int{5, 4, 3, 6}, cut: true,
		rows: [][]string{{"NODE", "PODS GONE", "BLOCKED", "EVACUATING", "PENDING", "KEPT", "MESSAGE"}},
	}
	for i := range nodes {
		n := &nodes[i]
		g.rows = append(g.rows, []string{
			n.NodeRef.Name, f.progress(bar, f.gone(n), f.left(n), ""), fmt.Sprint(n.PodsBlocked), fmt.Sprint(f.evacuating(n)),
			pending(n), fmt.Sprint(n.PodsKept), f.nodeMessage(n),
		})
	}
	return g
}

// pending is the number of pods of a node without an Evacuation, and how many of them may complete.
func pending(n *v1alpha1.NodeMaintenanceNodeStatus) string {
	if n.PodsWaiting == nil {
		return fmt.Sprint(n.PodsPendingEvacuation)
	}
	return fmt.Sprintf("%d (%d may complete)", n.PodsPendingEvacuation, *n.PodsWaiting)
}

// nodeMessage is the message of the server about a node. The server says that the pods of a node
// are evacuating also if all of them are blocked.
func (f *Facts) nodeMessage(n *v1alpha1.NodeMaintenanceNodeStatus) string {
	rest, evacuating := strings.CutPrefix(n.DrainMessage, plan.MessageEvacuating)
	if blocked := int(n.PodsBlocked); evacuating && blocked > 0 && blocked >= f.evacuating(n) {
		return "Blocked" + rest
	}
	return n.DrainMessage
}
