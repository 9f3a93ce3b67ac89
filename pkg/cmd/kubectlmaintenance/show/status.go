// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/drainer"
)

// Status shows the progress of a maintenance: first all pods, the waves and the nodes, then the
// causes why it makes no progress.
func Status(f Facts, o Options) []screen.Line {
	nm, c := f.Maintenance, f.count()
	blockers, waiting := f.blockers(), f.waiting()
	l := layout{f: &f, o: o, head: f.head(c, o)}
	switch {
	case nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain:
		l.addProgress(c, waiting)
	case len(nm.Status.Waves) > 0 && v1alpha1.IsEnding(nm):
		l.addProgress(c, nil)
	}
	l.addNodes()
	l.causes = f.causes(blockers, waiting, o)
	return l.fit()
}

// head has the title, the reason, the state and the notes.
func (f *Facts) head(c count, o Options) []screen.Line {
	nm := f.Maintenance
	// If the rows are limited, a text that does not fit its row is shortened.
	short := func(lines []screen.Line) []screen.Line {
		if lines = o.Fit(lines...); o.Rows > 0 {
			lines = o.shorten(lines, 1)
		}
		return lines
	}
	lines := o.Fit(f.title(c, o))
	if nm.Spec.Reason != "" {
		lines = append(lines, short(wrap("  ", nm.Spec.Reason, o.columns(), screen.Plain))...)
	}
	lines = append(lines, f.stateLines(o, short)...)
	notes := f.Notes
	if meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionNodeMessagesOmitted) {
		notes = append(slices.Clone(notes), "the status has no room for messages about single nodes; "+
			"to list the nodes with a problem: kubectl maintenance blockers "+nm.Name)
	}
	for _, note := range notes {
		lines = append(lines, o.Fit(wrap("  ", "note: "+note, o.columns(), screen.Warning)...)...)
	}
	return lines
}

// title is the name, the state, the stage, the nodes and the requester of the maintenance. If the
// rows are limited, it omits what does not fit a row: the requester, then the stage.
func (f *Facts) title(c count, o Options) screen.Line {
	nm := f.Maintenance
	word := string(glance.Status(nm))
	stage, age, by := "", "", ""
	if s := Stage(nm); s != word {
		stage = ", stage " + s
	}
	if at := v1alpha1.StageEntered(nm, nm.Spec.Stage); !at.IsZero() {
		age = " for " + ago(f.Now, at)
	}
	nodes := ", " + wording.Count(c.nodes, "node")
	if nm.Spec.NewNodes == v1alpha1.NewNodesPolicyJoin {
		nodes += ", new nodes join"
	}
	if requester := v1alpha1.RequesterOf(nm); requester != "" {
		by = ", requested by " + requester
	}
	if stage == "" {
		word, age = word+age, ""
	}
	var text string
	for _, rest := range []string{stage + age + nodes + by, stage + age + nodes, nodes, ""} {
		text = nm.Name + "  " + word + rest
		if o.Rows <= 0 || screen.Width(o.escape(text)) <= o.Columns {
			break
		}
	}
	return line(screen.Heading, "%s", text)
}

// stateLines shows what the server does: the condition Drained if it is true, otherwise
// what Progressing says beside the numbers, unless the causes say the same.
func (f *Facts) stateLines(o Options, short func([]screen.Line) []screen.Line) []screen.Line {
	nm := f.Maintenance
	drained, progressing := drainedCondition(nm), meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
	switch {
	case nm.Spec.Paused && !v1alpha1.IsEnding(nm):
		return o.Fit(wrap("  ", f.pausedText(), o.columns(), screen.Warning)...)
	case drained != nil && drained.Status == metav1.ConditionTrue:
		return o.Fit(wrap("  ", drained.Reason+": "+drained.Message, o.columns(), screen.Good)...)
	case progressing == nil, progressing.Status == metav1.ConditionFalse, needsAction(progressing.Reason),
		progressing.Reason == v1alpha1.ReasonProgressNotRequested, v1alpha1.IsDone(nm):
		return nil
	}
	text := wording.BesidePodsLeft(progressing.Message)
	if text == "" {
		return nil
	}
	text = progressing.Reason + ": " + text
	if last := f.lastProgress(); last != "" && progressing.Reason != v1alpha1.ReasonProgressWaitingForCompletion {
		text += " (" + last + ")"
	}
	return short(wrap("  ", text, o.columns(), screen.Plain))
}

// lastProgress returns the age of the last progress of a drain.
func (f *Facts) lastProgress() string {
	at := f.Maintenance.Status.LastProgressTimestamp
	if at == nil || !v1alpha1.IsDraining(f.Maintenance) {
		return ""
	}
	return fmt.Sprintf("last progress %s ago", ago(f.Now, at.Time))
}

// needsAction reports whether a condition with the reason is shown with the causes.
func needsAction(reason string) bool {
	_, ok := obstacleActions[reason]
	return ok
}

// pausedText names the user who paused the maintenance. Before stage Drain, a pause only keeps
// nodes from being offered.
func (f *Facts) pausedText() string {
	effect := "no further pod is asked to leave"
	if !v1alpha1.IsPaused(f.Maintenance) {
		effect = fmt.Sprintf("no pod will be asked to leave when stage %s begins", v1alpha1.NodeMaintenanceStageDrain)
		if f.Maintenance.Spec.Task != nil {
			effect = "no node is offered to a worker, and " + effect
		}
	}
	return fmt.Sprintf("Paused %s: %s. To continue: %s", PausedBy(f.Maintenance, f.Now), effect, protocol.ResumeCommand(f.Maintenance))
}

// PausedBy describes who paused a maintenance and how long ago: "by alice 5m ago".
func PausedBy(nm *v1alpha1.NodeMaintenance, now time.Time) string {
	pause := nm.Status.Pause
	if pause == nil {
		return "a moment ago"
	}
	return fmt.Sprintf("by %s %s ago", pause.By, ago(now, pause.Since.Time))
}

// Stage returns the stage of a maintenance, with a note if the object is being deleted.
func Stage(nm *v1alpha1.NodeMaintenance) string {
	stage := string(nm.Spec.Stage)
	if nm.DeletionTimestamp != nil {
		stage += " (being deleted)"
	}
	return stage
}

// blockers returns the blocked pods on the nodes that the maintenance drains.
func (f *Facts) blockers() []Blocker {
	return BlockersOf(f.Evacuations, DrainedNodes(f.Maintenance).Has)
}

// obstacles returns what stops the maintenance, except pods that are listed as blocked, and a
// pause, which the title shows.
func (f *Facts) obstacles(blockers []Blocker) []Obstacle {
	return slices.DeleteFunc(Obstacles(f.Maintenance, len(blockers) > 0, f.Now), func(b Obstacle) bool {
		return b.Reason == v1alpha1.ReasonPaused
	})
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

// Summary returns the progress of a maintenance in one line.
func Summary(f Facts) string {
	nm, c := f.Maintenance, f.count()
	word := string(glance.Status(nm))
	text := nm.Name + ": " + word
	if nm.Spec.Stage != v1alpha1.NodeMaintenanceStageDrain {
		return text + ", " + wording.Count(c.nodes, "node")
	}
	text += fmt.Sprintf(", %d of %s drained", c.drained, wording.Count(c.nodes, "node"))
	if f.knowsGone() {
		text += fmt.Sprintf(", %d of %s gone", c.gone, wording.Count(c.gone+c.left(), "pod"))
	}
	if c.evacuating+c.pending > 0 {
		text += fmt.Sprintf(", %d leaving, %d for later waves", c.evacuating, c.pending-c.waiting)
	}
	if c.waiting > 0 {
		text += fmt.Sprintf(", %d may complete", c.waiting)
	}
	if c.blocked > 0 {
		text += fmt.Sprintf(", %d blocked", c.blocked)
		if all := f.blockers(); len(all) > 0 {
			text += fmt.Sprintf(" (%s/%s: %s)", all[0].Namespace, all[0].Pod, all[0].Reason)
		}
	}
	if stuck := drainer.Stuck(nm); stuck != nil && stuck.Reason != word {
		text += ", " + stuck.Reason
	}
	return text
}

// Table shows one row for each maintenance.
func Table(all []Facts, o Options) []screen.Line {
	return o.Truncate(withBars(o, func(bar int) grid {
		g := grid{
			rows:   [][]string{{"NAME", "STATUS", "STAGE", "NODES", "PODS GONE", "BLOCKED", "FOR", "REASON"}},
			styles: []screen.Style{screen.Faint}, drop: []int{6, 2, 7, 3, 5}, cut: true,
		}
		for i := range all {
			f := &all[i]
			c, nm := f.count(), f.Maintenance
			gone, age := "-", "-"
			if c.gone+c.left() > 0 || nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
				gone = progressCell(bar, fmt.Sprintf("%d of %d", c.gone, c.gone+c.left()), c.gone, c.gone+c.left())
			}
			if at := v1alpha1.StageEntered(nm, nm.Spec.Stage); !at.IsZero() {
				age = ago(f.Now, at)
			}
			g.rows = append(g.rows, []string{
				nm.Name, string(glance.Status(nm)), Stage(nm), fmt.Sprint(c.nodes), gone, fmt.Sprint(c.blocked), age, cmp.Or(nm.Spec.Reason, "-"),
			})
			g.styles = append(g.styles, f.style(c))
		}
		return g
	}, smallBar, 0))
}

// style is the style of the row of a maintenance.
func (f *Facts) style(c count) screen.Style {
	nm := f.Maintenance
	switch {
	case v1alpha1.IsPaused(nm):
		// A pause needs no action of another user.
		return screen.Plain
	case c.blocked > 0, drainer.Stuck(nm) != nil:
		return screen.Warning
	case meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained):
		return screen.Good
	case nm.Spec.Stage == v1alpha1.NodeMaintenanceStageComplete:
		return screen.Faint
	}
	return screen.Plain
}
