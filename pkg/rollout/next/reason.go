// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"slices"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/rollout/window"
)

// stop sets the reason for which no unit starts, whatever the limits allow; none if units may start.
func (d *decider) stop() {
	spec := &d.Object.Spec
	var err error
	d.Window, err = window.At(spec.Windows, d.cluster.Now)
	d.Holds = window.HoldsAt(spec.Holds, d.cluster.Now)
	d.wake(d.Window.Until)
	d.wake(d.Holds.Until)
	failed, open, isBusy := d.survey()
	set := func(reason, format string, args ...any) { d.Reason, d.Message = reason, fmt.Sprintf(format, args...) }
	switch {
	case spec.Stage == v1alpha1.RolloutStageIdle:
		set(v1alpha1.ReasonIdle, "the rollout is in stage Idle")
	case !open && !isBusy:
		set(v1alpha1.ReasonRolloutComplete, "every matching node is done")
	// A stage that a newer server has stored starts nothing.
	case spec.Stage != v1alpha1.RolloutStageRoll:
		set(v1alpha1.ReasonStopped, "the rollout is in stage Complete; not all nodes are done")
	case len(failed) > int(spec.MaxFailed):
		set(v1alpha1.ReasonHalted, "%s failed, and maxFailed is %d: %s; retry the units after the cause is removed, or complete the rollout",
			wording.Count(len(failed), "unit"), spec.MaxFailed, names(failed))
	case len(d.Holds.Active) > 0:
		set(v1alpha1.ReasonHeld, "%s", describe(d.Holds.Active))
	case d.Contradiction != "":
		set(v1alpha1.ReasonHeld, "%s", d.Contradiction)
	case err != nil:
		set(v1alpha1.ReasonOutsideWindow, "the server cannot read %v", err)
	case !d.Window.Open && d.Window.Until.IsZero():
		set(v1alpha1.ReasonOutsideWindow, "no window opens any more")
	case !d.Window.Open:
		set(v1alpha1.ReasonOutsideWindow, "the next window opens at %s", clock(d.Window.Until))
	case d.NotAuthorized != "":
		set(v1alpha1.ReasonNotAuthorized, "%s", d.NotAuthorized)
	}
}

// survey returns the failed units, whether any unit is not done, and whether one still runs.
func (d *decider) survey() (failed []string, open, isBusy bool) {
	for _, w := range d.running {
		isBusy = isBusy || !w.failed
	}
	for name, w := range d.running {
		if w.failed && d.units[name] == nil {
			failed = append(failed, name) // its nodes no longer match
		}
	}
	for _, u := range d.units {
		if u.State == StateFailed {
			failed = append(failed, u.Name)
		}
		open = open || u.State != StateDone
	}
	return failed, open, isBusy
}

// describe names the holds that apply.
func describe(holds []v1alpha1.RolloutHold) string {
	texts := make([]string, len(holds))
	for i := range holds {
		hold := &holds[i]
		texts[i] = "hold " + hold.Name
		if hold.By != "" {
			texts[i] += fmt.Sprintf(" by user %q", hold.By)
		}
		if hold.Until != nil {
			texts[i] += " until " + clock(hold.Until.Time)
		}
		if hold.Reason != "" {
			texts[i] += ": " + hold.Reason
		}
	}
	return names(texts)
}

// progress sets the reason of a rollout whose units may start. refusal is why the first one waits.
func (d *decider) progress(refusal string) {
	set := func(reason, format string, args ...any) { d.Reason, d.Message = reason, fmt.Sprintf(format, args...) }
	running, paused := len(d.Start), []string{}
	for _, w := range d.running {
		if !w.failed {
			running++
		}
		if w.paused != nil {
			paused = append(paused, fmt.Sprintf("NodeMaintenance %s is paused by user %q", w.paused.Name, w.paused.Status.Pause.By))
		}
	}
	texts := map[State][]string{}
	for _, u := range d.units {
		text := u.Name
		if u.Message != "" {
			text += ": " + u.Message
		}
		texts[u.State] = append(texts[u.State], text)
	}
	switch {
	case running > 0 && running == len(paused):
		set(v1alpha1.ReasonHeld, "%s", names(paused))
	case running > 0:
		d.Progressing = true
		set(v1alpha1.ReasonRolling, "%s in progress", wording.Count(running, "unit"))
	case d.Nodes.Waiting > 0:
		set(v1alpha1.ReasonAtLimit, "%s", refusal)
	case d.Nodes.Blocked > 0:
		set(v1alpha1.ReasonNodesBlocked, "%s", names(texts[StateBlocked]))
	case d.Nodes.Failed > 0:
		set(v1alpha1.ReasonNodesBlocked, "%s", names(texts[StateFailed]))
	default:
		set(v1alpha1.ReasonNodesSkipped, "%s", names(texts[StateSkipped]))
	}
}

// clock formats a time for a message.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// trip is the work of a rollout on a node.
type trip struct {
	rollout string
	at      time.Time
}

// Contradictions returns, by rollout, which other rollout undoes what it has done: it was done with a
// node, another one worked on the same node later, and then doneWhen of the first was false again.
// Both have to be held, or one completed. Rollouts that are not in stage Roll undo nothing.
func Contradictions(rollouts []*Rollout, nodes []Node) map[string]string {
	uids := make(map[string]*Node, len(nodes))
	for i := range nodes {
		uids[nodes[i].Name] = &nodes[i]
	}
	undone := map[*Node][]trip{}
	histories := map[string]history{}
	for _, r := range rollouts {
		if r.Object.Spec.Stage != v1alpha1.RolloutStageRoll {
			continue
		}
		h := readHistory(r.Attempts, nil)
		histories[r.Object.Name] = h
		for _, m := range r.Members {
			if n := uids[m.Node]; n != nil && m.Goal == GoalUnmet {
				if at, done := h.done[n.UID]; done {
					undone[n] = append(undone[n], trip{r.Object.Name, at})
				}
			}
		}
	}
	found := map[string]string{}
	for n, trips := range undone {
		for _, first := range trips {
			for name, h := range histories {
				if at, done := h.done[n.UID]; !done || name == first.rollout || !at.After(first.at) {
					continue
				}
				for _, r := range []string{first.rollout, name} {
					other := []string{first.rollout, name}[1-slices.Index([]string{first.rollout, name}, r)]
					text := fmt.Sprintf("rollout %s wants the opposite for node %s; complete one of the two", other, n.Name)
					if old := found[r]; old == "" || text < old {
						found[r] = text
					}
				}
			}
		}
	}
	return found
}
