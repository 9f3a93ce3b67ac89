// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/rollout/window"
)

// stop sets the reason for which no unit starts, whatever the limits allow; none if units may
// start.
func (d *decider) stop() {
	spec := &d.Object.Spec
	windows, err := window.At(spec.Windows, d.cluster.Now)
	holds := window.HoldsAt(spec.Holds, d.cluster.Now)
	d.wake(windows.Until)
	d.wake(holds.Until)
	failures, open, isBusy := d.survey()
	set := func(reason, format string, args ...any) { d.Reason, d.Message = reason, fmt.Sprintf(format, args...) }
	switch {
	// Most likely the selector has an error.
	case len(d.Members) == 0 && len(d.work) == 0 && spec.Stage != v1alpha1.RolloutStageComplete:
		d.Progressing = true
		set(v1alpha1.ReasonNoNodes, "the selector matches no node")
	case spec.Stage == v1alpha1.RolloutStageIdle:
		set(v1alpha1.ReasonIdle, "the rollout is in stage Idle")
	case !open && !isBusy:
		set(v1alpha1.ReasonRolloutComplete, "every matching node is done")
	// A stage that a newer server has stored starts nothing.
	case spec.Stage != v1alpha1.RolloutStageRoll:
		set(v1alpha1.ReasonStopped, "the rollout is in stage Complete; not all nodes are done")
	case len(failures) > int(spec.MaxFailed):
		set(v1alpha1.ReasonHalted, "%s failed, and maxFailed is %d: %s; retry the units after the cause is removed, or complete the rollout",
			wording.Count(len(failures), "unit"), spec.MaxFailed, names(failures))
	case len(holds.Active) > 0:
		set(v1alpha1.ReasonHeld, "%s", describe(holds.Active))
	case d.Contradiction != "":
		set(v1alpha1.ReasonHeld, "%s", d.Contradiction)
	case err != nil:
		set(v1alpha1.ReasonOutsideWindow, "the server cannot read %v", err)
	case !windows.Open && windows.Until.IsZero():
		set(v1alpha1.ReasonOutsideWindow, "no window opens any more")
	case !windows.Open:
		set(v1alpha1.ReasonOutsideWindow, "the next window opens at %s", clock(windows.Until))
	case d.NotAuthorized != "":
		set(v1alpha1.ReasonNotAuthorized, "%s", d.NotAuthorized)
	}
}

// survey returns the failed units, whether any unit is not done, and whether one still runs.
func (d *decider) survey() (failures []string, open, isBusy bool) {
	for _, w := range d.work {
		isBusy = isBusy || !w.failed
	}
	for name, w := range d.work {
		if w.failed && d.units[name] == nil {
			failures = append(failures, name) // its nodes no longer match
		}
	}
	for _, u := range d.units {
		if u.state == failed {
			failures = append(failures, u.Name)
		}
		open = open || u.state != done
	}
	return failures, open, isBusy
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
	busy, paused := len(d.Start), []string{}
	for _, w := range d.work {
		if !w.failed {
			busy++
		}
		if w.paused != nil {
			paused = append(paused, fmt.Sprintf("NodeMaintenance %s is paused by user %q", w.paused.Name, w.paused.Status.Pause.By))
		}
	}
	texts := map[state][]string{}
	for _, u := range d.units {
		text := u.Name
		if u.message != "" {
			text += ": " + u.message
		}
		texts[u.state] = append(texts[u.state], text)
	}
	switch {
	case busy > 0 && busy == len(paused):
		set(v1alpha1.ReasonHeld, "%s", names(paused))
	case busy > 0:
		d.Progressing = true
		set(v1alpha1.ReasonRolling, "%s in progress", wording.Count(busy, "unit"))
		if refusal != "" {
			d.Message += "; " + refusal
		}
	case refusal != "":
		set(v1alpha1.ReasonAtLimit, "%s", refusal)
	case d.Nodes.Blocked > 0:
		set(v1alpha1.ReasonNodesBlocked, "no unit can start: %s", names(texts[blocked]))
	case d.Nodes.Failed > 0:
		set(v1alpha1.ReasonHalted, "only failed units are left: %s; retry them after the cause is removed, or complete the rollout", names(texts[failed]))
	default:
		set(v1alpha1.ReasonNodesSkipped, "only skipped units are left: %s", names(texts[skipped]))
		return
	}
	if len(texts[skipped]) > 0 {
		d.Message += "; skipped: " + names(texts[skipped])
	}
}

// clock formats a time for a message.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Contradictions returns, by rollout, which other rollout undoes what it has done: it was done with
// a node, another one worked on the same node later, and then doneWhen of the first was false
// again. Both have to be held until one of them is completed. Rollouts that are not in stage Roll
// undo nothing.
func Contradictions(rollouts []*Rollout, nodes []Node) map[string]string {
	byName := make(map[string]*Node, len(nodes))
	for i := range nodes {
		byName[nodes[i].Name] = &nodes[i]
	}
	histories := map[*Rollout]history{}
	for _, r := range rollouts {
		if r.Object.Spec.Stage == v1alpha1.RolloutStageRoll {
			histories[r] = readHistory(r.Attempts, nil)
		}
	}
	found := map[string]string{}
	note := func(of, other *Rollout, node string) {
		text := fmt.Sprintf("rollout %s wants the opposite for node %s; complete one of the two", other.Object.Name, node)
		if old := found[of.Object.Name]; old == "" || text < old {
			found[of.Object.Name] = text
		}
	}
	for first, h := range histories {
		for _, m := range first.Members {
			n := byName[m.Node]
			if n == nil || m.Goal != GoalUnmet || h.done[n.UID].IsZero() {
				continue
			}
			for second, later := range histories {
				if second != first && later.done[n.UID].After(h.done[n.UID]) {
					note(first, second, n.Name)
					note(second, first, n.Name)
				}
			}
		}
	}
	return found
}
