// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/rollout/window"
)

// stop sets the reason for which no unit starts, whatever the limits allow; none if units may
// start. failures are the names of the failed units.
func (d *decider) stop(failures []string) {
	spec := &d.Object.Spec
	windows, err := window.At(spec.Windows, d.cluster.Now)
	holds := window.HoldsAt(spec.Holds, d.cluster.Now)
	d.wake(windows.Until)
	d.wake(holds.Until)
	isOpen := slices.ContainsFunc(d.units, func(u *Unit) bool { return u.state != done })
	isBusy := slices.ContainsFunc(d.running, func(u *Unit) bool { return !u.work.failed })
	set := func(reason, format string, args ...any) { d.Reason, d.Message = reason, fmt.Sprintf(format, args...) }
	switch {
	// Most likely the selector has an error.
	case len(d.Members) == 0 && len(d.running) == 0 && spec.Stage != v1alpha1.RolloutStageComplete:
		set(v1alpha1.ReasonNoNodes, "the selector matches no node")
	case len(d.Members) > 0 && len(d.Attempts) == 0 && spec.Stage == v1alpha1.RolloutStageRoll &&
		!slices.ContainsFunc(d.Members, func(m Member) bool { return m.Goal != TooNew }):
		set(v1alpha1.ReasonNoNodes, "all matching nodes are newer than the start of the rollout, and without doneWhen it does not work on them")
	case spec.Stage == v1alpha1.RolloutStageIdle:
		set(v1alpha1.ReasonIdle, "the rollout is in stage Idle")
	case !isOpen && !isBusy && len(failures) == 0:
		set(v1alpha1.ReasonRolloutComplete, "every matching node is done")
	// A stage that a newer server has stored starts nothing.
	case spec.Stage != v1alpha1.RolloutStageRoll:
		set(v1alpha1.ReasonStopped, "the rollout is in stage Complete; not all nodes are done")
		if len(failures) > 0 {
			d.Message += "; failed: " + Names(failures)
		}
	case len(failures) > int(spec.MaxFailed):
		set(v1alpha1.ReasonHalted, "%s failed, and maxFailed is %d: %s; retry the units after the cause is removed, or complete the rollout",
			wording.Count(len(failures), "unit"), spec.MaxFailed, Names(failures))
	case len(holds.Active) > 0:
		set(v1alpha1.ReasonHeld, "%s", describe(holds.Active))
	case d.Contradiction != nil && d.Contradiction() != "":
		set(v1alpha1.ReasonHeld, "%s", d.Contradiction())
	case err != nil:
		set(v1alpha1.ReasonOutsideWindow, "the server cannot read %v", err)
	case !windows.Open && !isBusy && len(d.order()) == 0:
		// No window lets the units start that are left: progress says why.
	case !windows.Open && windows.Until.IsZero():
		set(v1alpha1.ReasonOutsideWindow, "no window opens any more")
	case !windows.Open:
		set(v1alpha1.ReasonOutsideWindow, "the next window opens at %s", clock(windows.Until))
	case d.NotAuthorized != "":
		set(v1alpha1.ReasonNotAuthorized, "%s", d.NotAuthorized)
	}
}

// describe names the holds that apply.
func describe(holds []v1alpha1.RolloutHold) string {
	texts := make([]string, len(holds))
	for i := range holds {
		hold := &holds[i]
		texts[i] = "hold " + hold.Name
		if hold.By != "" {
			texts[i] += fmt.Sprintf(" by user %q", protocol.UserName(hold.By))
		}
		if hold.Until != nil {
			texts[i] += " until " + clock(hold.Until.Time)
		}
		if hold.Reason != "" {
			texts[i] += ": " + hold.Reason
		}
	}
	return Names(texts)
}

// survey returns the names of the failed units, and descriptions of those that are blocked, failed
// or skipped.
func (d *decider) survey() (failures []string, texts map[state][]string) {
	texts = map[state][]string{}
	for _, u := range d.running {
		if u.work.failed && !u.isMatched {
			failures = append(failures, u.Name)
			texts[failed] = append(texts[failed], fmt.Sprintf("%s: the work has failed (NodeMaintenance %s), and none of its nodes matches any more",
				u.Name, u.work.maintenance))
		}
	}
	for _, u := range d.units {
		if u.state == failed {
			failures = append(failures, u.Name)
		}
		switch {
		case u.message == "":
		case strings.HasPrefix(u.message, "node "+u.Name+" "):
			texts[u.state] = append(texts[u.state], u.message)
		default:
			texts[u.state] = append(texts[u.state], u.Name+": "+u.message)
		}
	}
	return failures, texts
}

// progress sets the reason of a rollout whose units may start. refusal is why the first one waits.
func (d *decider) progress(refusal string, texts map[state][]string) {
	set := func(reason, format string, args ...any) { d.Reason, d.Message = reason, fmt.Sprintf(format, args...) }
	busy, paused := len(d.Start), []string{}
	for _, u := range d.running {
		if u.work.failed {
			continue
		}
		busy++
		if nm := u.work.paused; nm != nil {
			paused = append(paused, fmt.Sprintf("NodeMaintenance %s is paused by user %q", nm.Name, protocol.UserName(nm.Status.Pause.By)))
		}
	}
	switch {
	case busy > 0 && busy == len(paused):
		set(v1alpha1.ReasonHeld, "%s", Names(paused))
	case busy > 0:
		set(v1alpha1.ReasonRolling, "%s in progress", wording.Count(busy, "unit"))
		if refusal != "" {
			d.Message += "; " + refusal
		}
	case refusal != "":
		set(v1alpha1.ReasonAtLimit, "%s", refusal)
	case d.Nodes.Blocked > 0:
		set(v1alpha1.ReasonNodesBlocked, "no unit can start: %s", Names(texts[blocked]))
	case len(texts[failed]) > 0:
		set(v1alpha1.ReasonHalted, "only failed units are left: %s; retry them after the cause is removed, or complete the rollout", Names(texts[failed]))
	default:
		set(v1alpha1.ReasonNodesSkipped, "only skipped units are left: %s", Names(texts[skipped]))
	}
}

// clock formats a time for a message.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
