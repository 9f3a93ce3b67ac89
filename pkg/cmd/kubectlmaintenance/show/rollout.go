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
	"k8s.io/apimachinery/pkg/util/duration"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/rollout/window"
)

// RolloutFacts are the known facts about a rollout at one time.
type RolloutFacts struct {
	// Rollout is the object as it was last read.
	Rollout *v1alpha1.NodeMaintenanceRollout
	// Maintenances are those of its units, past ones too; nil if they could not be read.
	Maintenances []v1alpha1.NodeMaintenance
	// Notes describe reads that failed.
	Notes []string
	// Now is the time of the facts.
	Now time.Time
}

// RolloutState returns the state of a rollout in one word: the reason of its condition Progressing.
func RolloutState(r *v1alpha1.NodeMaintenanceRollout) string {
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
		return c.Reason
	}
	return v1alpha1.ReasonNotObserved
}

// NeedsUser reports whether a rollout does not finish before a user acts, or has nodes for which
// that is true: they have failed, are blocked or are skipped. Failed nodes may not match any more.
func NeedsUser(r *v1alpha1.NodeMaintenanceRollout) bool {
	switch RolloutState(r) {
	case v1alpha1.ReasonHalted, v1alpha1.ReasonNotAuthorized, v1alpha1.ReasonNodesBlocked, v1alpha1.ReasonNodesSkipped,
		v1alpha1.ReasonProgressSyncFailed:
		return true
	}
	n := r.Status.Nodes
	return n.Failed+n.Blocked+n.Skipped > 0 || slices.ContainsFunc(r.Status.Current, func(u v1alpha1.RolloutUnit) bool {
		return u.Phase == v1alpha1.RolloutPhaseFailed
	})
}

const (
	rollouts = "nodemaintenancerollouts." + v1alpha1.GroupName
	tasks    = "nodetasks." + v1alpha1.GroupName
)

// lookAtRollout is the command that shows all of a rollout.
const lookAtRollout = "kubectl get " + rollouts + " %s -o yaml"

// rolloutActions maps reasons of Progressing to actions: who must act, a command that only shows
// details, and one that acts. %s stands for the name of the rollout.
var rolloutActions = map[string]struct{ who, look, then string }{
	v1alpha1.ReasonIdle: {
		"a user who may roll it", lookAtRollout, "kubectl patch " + rollouts + ` %s --type=merge -p '{"spec":{"stage":"Roll"}}'`,
	},
	v1alpha1.ReasonStopped: {"a user who wants the other nodes done, with another rollout", lookAtRollout, ""},
	v1alpha1.ReasonHalted: {
		wording.Administrator + ", who can repair the nodes, and then retry their units", lookAtRollout, "kubectl maintenance rollout retry %s UNIT",
	},
	v1alpha1.ReasonHeld:          {"the users who hold it", lookAtRollout, "kubectl maintenance rollout resume %s"},
	v1alpha1.ReasonOutsideWindow: {"time, or a user who opens a window", lookAtRollout, "kubectl maintenance rollout run-now %s --for=2h"},
	v1alpha1.ReasonNotAuthorized: {wording.Administrator + ", who can grant the rights or change the rollout", lookAtRollout, ""},
	v1alpha1.ReasonAtLimit:       {wording.Administrator + ", who can return the named nodes to service or raise the limits", "kubectl get nodes", ""},
	v1alpha1.ReasonNodesBlocked:  {"the users who can remove what the events name; the server tries again later", "kubectl get events -A --field-selector reason=UnitBlocked", ""},
	v1alpha1.ReasonNodesSkipped:  {wording.Administrator + ", who can do what the message names", "kubectl describe " + rollouts + " %s", ""},
	v1alpha1.ReasonProgressSyncFailed: {
		wording.Administrator + ", who can remove the cause of the error", lookAtRollout, "",
	},
}

// whoseMove names what or whom a unit waits for, by its phase.
var whoseMove = map[v1alpha1.RolloutPhase]string{
	v1alpha1.RolloutPhaseStarting:  "the server",
	v1alpha1.RolloutPhaseDraining:  "the drain",
	v1alpha1.RolloutPhaseOffered:   "a worker",
	v1alpha1.RolloutPhaseClaimed:   "the worker",
	v1alpha1.RolloutPhaseVerifying: "the node",
	v1alpha1.RolloutPhaseReleasing: "the server",
	v1alpha1.RolloutPhaseSoaking:   "time",
	v1alpha1.RolloutPhaseFailed:    "a user",
	phaseBlocked:                   "the next try",
	phaseReleased:                  "a user",
}

// Rollout shows how far a rollout is, what it waits for, and who has to act.
func Rollout(f RolloutFacts, o Options) []screen.Line {
	r, n := f.Rollout, f.Rollout.Status.Nodes
	title := r.Name + "  " + RolloutState(r) + ", stage " + string(r.Spec.Stage) + ", " + wording.Count(n.Total, "node")
	if r.Spec.RequestedBy != nil {
		title += ", requested by " + r.Spec.RequestedBy.Username
	}
	lines := o.Fit(line(screen.Heading, "%s", title))
	lines = append(lines, wrap("  ", r.Spec.Template.Reason, o.columns(), screen.Plain)...)
	for _, note := range f.Notes {
		lines = append(lines, wrap("  ", "note: "+note, o.columns(), screen.Warning)...)
	}
	lines = append(append(lines, screen.Line{}), f.progress(o)...)
	units := f.Units()
	failure := f.failure(units, o)
	tail := slices.Concat(failure, f.cause(len(failure) > 0, o))
	shown := len(units)
	switch {
	case o.Wide:
	case o.Rows > 0:
		// The lines around the units and the heading of their table.
		shown = min(shown, max(o.Rows-len(lines)-len(tail)-3, 1))
	default:
		shown = min(shown, nodesShown)
	}
	lines = append(lines, f.unitTable(units, shown, o)...)
	return o.Truncate(append(lines, tail...))
}

// progress has the numbers of nodes, the windows, the holds and the pace.
func (f *RolloutFacts) progress(o Options) []screen.Line {
	r, n := f.Rollout, f.Rollout.Status.Nodes
	lines := []screen.Line{plain("  NODES   %s%s", progressCell(o.bars()[0], fmt.Sprintf("%d of %d done", n.Done, n.Total), int(n.Done), int(n.Total)),
		unfinished(&n))}
	if w := r.Status.Window; w != nil {
		lines = append(lines, plain("  WINDOW  %s", f.window(w)))
	}
	for i := range r.Spec.Holds {
		lines = append(lines, line(screen.Warning, "  HOLD    %s", Hold(&r.Spec.Holds[i], f.Now)))
	}
	if pace := f.pace(); pace != "" {
		lines = append(lines, line(screen.Faint, "  %s", pace))
	}
	return o.Fit(lines...)
}

func (f *RolloutFacts) window(w *v1alpha1.RolloutWindowStatus) string {
	switch {
	case w.Until == nil && !w.Open:
		return "closed, and none opens any more"
	case w.Until == nil:
		return "open"
	}
	state := "closed until "
	if w.Open {
		state = "open until "
	}
	return fmt.Sprintf("%s%s (in %s)", state, timeOf(w.Until.Time), duration.HumanDuration(max(w.Until.Sub(f.Now), 0)))
}

// Hold describes a hold: its name, what it stops, the user, and the reason.
func Hold(h *v1alpha1.RolloutHold, now time.Time) string {
	text := h.Name
	if h.Stops == v1alpha1.RolloutHoldDrains {
		text += ", stops drains"
	}
	if h.By != "" {
		text += ", by " + h.By
	}
	if h.Since != nil {
		text += " " + ago(now, h.Since.Time) + " ago"
	}
	if h.From != nil && h.From.After(now) {
		text += ", from " + timeOf(h.From.Time)
	}
	if h.Until != nil {
		text += ", until " + timeOf(h.Until.Time)
	}
	return text + ": " + cmp.Or(h.Reason, "no reason given")
}

// paceOver is the time over which the pace of a rollout is measured.
const paceOver = time.Hour

// pace returns how many nodes were done in the last hour, and how long the other ones take at this
// pace; "" if it is not known.
func (f *RolloutFacts) pace() string {
	n := f.Rollout.Status.Nodes
	left, done, since := n.Waiting+n.Running+n.Blocked, 0, f.Now
	for i := range f.Maintenances {
		nm := &f.Maintenances[i]
		if nm.CreationTimestamp.Time.Before(since) {
			since = nm.CreationTimestamp.Time
		}
		for j := range nm.Status.NodeStatuses {
			if t := nm.Status.NodeStatuses[j].Task; t != nil && t.State == v1alpha1.NodeTaskDone && t.EndTime != nil && f.Now.Sub(t.EndTime.Time) < paceOver {
				done++
			}
		}
	}
	if over := min(f.Now.Sub(since), paceOver); done > 0 && left > 0 && f.Rollout.Spec.Stage == v1alpha1.RolloutStageRoll {
		return fmt.Sprintf("Pace: %s in the last %s, about %s for the other %d while units may start.", wording.Count(done, "node"),
			duration.HumanDuration(over), duration.HumanDuration(over*time.Duration(left)/time.Duration(done)), left)
	}
	return ""
}

// The phases of units that are not in status.current.
const (
	phaseBlocked  = v1alpha1.RolloutPhase(next.WithdrawnBlocked)
	phaseReleased = v1alpha1.RolloutPhase(next.Released)
)

// Units returns the units that run or have failed, and those whose last attempt has ended without
// success: failed ones first, then those that do not run, then the oldest. If the server counts no
// node as failed, blocked, skipped or waiting, the nodes of such attempts have met the goal since,
// or left.
func (f *RolloutFacts) Units() []v1alpha1.RolloutUnit {
	units, nodes := slices.Clone(f.Rollout.Status.Current), f.Rollout.Status.Nodes
	last := map[string]*v1alpha1.NodeMaintenance{}
	for i := range f.Maintenances {
		nm := &f.Maintenances[i]
		unit := nm.Annotations[v1alpha1.AnnotationRolloutUnit]
		if old := last[unit]; old == nil || old.CreationTimestamp.Before(&nm.CreationTimestamp) {
			last[unit] = nm
		}
	}
	for name, nm := range last {
		if slices.ContainsFunc(units, func(u v1alpha1.RolloutUnit) bool { return u.Unit == name }) {
			continue
		}
		u := v1alpha1.RolloutUnit{
			Unit: name, Maintenance: nm.Name, Since: metav1.NewTime(v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageComplete)),
		}
		switch why := nm.Annotations[v1alpha1.AnnotationWithdrawn]; {
		case next.OutcomeOf(nm) == next.Retried:
			continue
		case why == next.WithdrawnNoWorker && nodes.Failed > 0:
			u.Phase, u.Message = v1alpha1.RolloutPhaseFailed, why+": no worker has claimed it in time"
		// From the time of its next attempt on, the unit counts as waiting.
		case why == next.WithdrawnBlocked && (nodes.Blocked > 0 || nodes.Waiting > 0 && f.Rollout.Spec.Stage == v1alpha1.RolloutStageRoll):
			u.Phase, u.Message = phaseBlocked, "its last try was blocked: preview its nodes"
		case why == next.WithdrawnGone && nodes.Blocked > 0:
			u.Phase, u.Message = phaseBlocked, "its nodes had left the rollout"
		case next.OutcomeOf(nm) == next.Released && nodes.Skipped > 0:
			u.Phase, u.Message = phaseReleased, "a user has completed its maintenance"
		default:
			continue
		}
		units = append(units, u)
	}
	// A unit of the status, which has nodes, comes before a past attempt, whose failure may be
	// over.
	rank := func(u *v1alpha1.RolloutUnit) int {
		if u.Phase == v1alpha1.RolloutPhaseFailed && len(u.Nodes) > 0 {
			return 3
		}
		return slices.Index([]v1alpha1.RolloutPhase{phaseReleased, phaseBlocked, v1alpha1.RolloutPhaseFailed}, u.Phase)
	}
	slices.SortFunc(units, func(a, b v1alpha1.RolloutUnit) int {
		return cmp.Or(rank(&b)-rank(&a), a.Since.Compare(b.Since.Time), strings.Compare(a.Unit, b.Unit))
	})
	return units
}

// unitTable is the table of the first units.
func (f *RolloutFacts) unitTable(units []v1alpha1.RolloutUnit, shown int, o Options) []screen.Line {
	if len(units) == 0 {
		return nil
	}
	g := grid{
		indent: "  ", styles: []screen.Style{screen.Faint}, drop: []int{2, 3, 4}, cut: true,
		rows: [][]string{{"UNIT", "PHASE", "FOR", "WAITS FOR", "MESSAGE"}},
	}
	for i := range units[:shown] {
		u := &units[i]
		style := screen.Plain
		switch u.Phase {
		case v1alpha1.RolloutPhaseFailed:
			style = screen.Bad
		case phaseBlocked, phaseReleased:
			style = screen.Warning
		}
		name := u.Unit
		if len(u.Nodes) > 1 {
			name += " (" + wording.Count(len(u.Nodes), "node") + ")"
		}
		g.styles = append(g.styles, style)
		g.rows = append(g.rows, []string{name, string(u.Phase), ago(f.Now, u.Since.Time), whoseMove[u.Phase], cmp.Or(u.Message, "-")})
	}
	return append(append([]screen.Line{{}}, g.lines(o)...), o.more(len(units)-shown, "unit", "  ")...)
}

// failedNode returns the node of a failed unit whose work has failed; "" if it has no nodes. The
// message begins with it, unless the unit has its name.
func failedNode(u *v1alpha1.RolloutUnit) string {
	at := slices.IndexFunc(u.Nodes, func(n v1alpha1.NodeReference) bool { return strings.HasPrefix(u.Message, "node "+n.Name+": ") })
	if at < 0 {
		at = slices.IndexFunc(u.Nodes, func(n v1alpha1.NodeReference) bool { return n.Name == u.Unit })
	}
	if at < 0 {
		return ""
	}
	return u.Nodes[at].Name
}

// failure says what to do about the first failed unit of a rollout.
func (f *RolloutFacts) failure(units []v1alpha1.RolloutUnit, o Options) []screen.Line {
	if len(units) == 0 || units[0].Phase != v1alpha1.RolloutPhaseFailed {
		return nil
	}
	u := &units[0]
	look, node := maintenances+" "+u.Maintenance, failedNode(u)
	if node != "" {
		look = tasks + " " + node
	}
	then := fmt.Sprintf("kubectl maintenance rollout retry %s %s", f.Rollout.Name, u.Unit)
	if strings.Contains(u.Message, string(v1alpha1.NodeTaskNotVerified)) {
		then = "the server returns it when it is Ready and meets doneWhen; a retry repeats the work"
	}
	switch {
	case f.Rollout.Spec.Stage != v1alpha1.RolloutStageComplete:
	case node != "":
		then = "kubectl maintenance done " + node + ", when it is repaired; nothing starts in stage Complete"
	default:
		then = "create another rollout: nothing starts in stage Complete"
	}
	return append([]screen.Line{{}}, o.Fit(
		line(screen.Bad, "  FAILED  %s", u.Unit),
		plain("  who     %s, who can remove the cause", wording.Administrator),
		plain("  look    kubectl get %s -o yaml", look),
		plain("  then    %s", then),
	)...)
}

// cause is the message of the condition Progressing, and who can act if units do not start. If the
// lines above it say what to do about a failure, they are not repeated.
func (f *RolloutFacts) cause(hasFailure bool, o Options) []screen.Line {
	c := meta.FindStatusCondition(f.Rollout.Status.Conditions, v1alpha1.ConditionProgressing)
	if c == nil {
		return []screen.Line{{}, line(screen.Faint, "  The server has not reconciled it yet.")}
	}
	style := screen.Warning
	a, stands := rolloutActions[c.Reason]
	switch {
	case c.Reason == v1alpha1.ReasonRolloutComplete:
		style = screen.Good
	case !stands:
		style = screen.Plain
	}
	text := c.Reason
	if !c.LastTransitionTime.IsZero() {
		text += " for " + ago(f.Now, c.LastTransitionTime.Time)
	}
	lines := append([]screen.Line{{}}, wrap("  ", text+": "+c.Message, o.columns(), style)...)
	if c.Reason == v1alpha1.ReasonHeld && len(window.HoldsAt(f.Rollout.Spec.Holds, f.Now).Active) == 0 {
		a.who, a.then = "a user who can resume or stop what the message names", ""
	}
	if stands && (c.Reason != v1alpha1.ReasonHalted || !hasFailure) {
		named := strings.NewReplacer("%s", f.Rollout.Name)
		lines = append(lines, whoAndLook("  ", a.who, named.Replace(a.look))...)
		if a.then != "" {
			lines = append(lines, plain("  then   %s", named.Replace(a.then)))
		}
	}
	return o.Fit(lines...)
}

// RolloutSummary returns the progress of a rollout in one line.
func RolloutSummary(r *v1alpha1.NodeMaintenanceRollout) string {
	n := &r.Status.Nodes
	return fmt.Sprintf("%s: %s, %d of %s done%s", r.Name, RolloutState(r), n.Done, wording.Count(n.Total, "node"), unfinished(n))
}

// unfinished counts the nodes that are not done, by their state.
func unfinished(n *v1alpha1.RolloutNodes) (text string) {
	for _, part := range []struct {
		count int32
		state string
	}{{n.Running, "running"}, {n.Waiting, "waiting"}, {n.Blocked, "blocked"}, {n.Failed, "failed"}, {n.Skipped, "skipped"}} {
		if part.count > 0 {
			text += fmt.Sprintf(", %d %s", part.count, part.state)
		}
	}
	return text
}

// Rollouts shows one line for each rollout.
func Rollouts(all []v1alpha1.NodeMaintenanceRollout) []screen.Line {
	if len(all) == 0 {
		return []screen.Line{{Text: "No rollout found."}}
	}
	lines := make([]screen.Line, len(all))
	for i := range all {
		if lines[i].Text = RolloutSummary(&all[i]); NeedsUser(&all[i]) {
			lines[i].Style = screen.Warning
		}
	}
	return lines
}
