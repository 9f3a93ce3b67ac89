// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

const (
	// noNodes is the message of the conditions when the selector matches no node, possibly because
	// its nodes are gone.
	noNodes = "The selector matches no existing node"
	// allReleased is the message of Progressing when a maintenance has released all its nodes.
	allReleased = "All nodes are released"
	// progressPace is the minimum time between two status writes that only update the time of the
	// last progress.
	progressPace = 30 * time.Second
)

// describe returns the oldest failure as text, with the number of other failures.
func describe(all []loop.Failure) string {
	first := all[0]
	text := fmt.Sprintf("%s: %s (since %s)", first.About, first.Text, first.Since.UTC().Format(time.RFC3339))
	if more := len(all) - 1; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

type progressFacts struct {
	// ending is set if the stage is Complete or the object is being deleted. held are the nodes
	// that are not released, sorted. why names the first of them that waits for more than the
	// server, and what it waits for; "" if none does.
	ending bool
	held   []string
	why    string
	// unknown is the stage if this version does not know it, otherwise "".
	unknown v1alpha1.NodeMaintenanceStage
	// draining is set in stage Drain, drained if the condition Drained is True. unconfirmed is what
	// Drained=True waits for when no pod is left.
	draining, drained bool
	unconfirmed       string
	// work is a text about the work of the task, "" without one.
	work string
	// paused is a text about the pause of the drain, "" if it is not paused.
	paused string
	// blocked is set if every pod that is asked to leave is blocked; worst names these pods.
	blocked bool
	worst   string
	// stalledSince is the time of the last progress, if the stall timeout has passed since then;
	// otherwise nil.
	stalledSince *metav1.Time
	// moves is set if there was progress a moment ago.
	moves bool
	// completing is a text about the pods that a wave lets complete, "" if other pods are asked to
	// leave.
	completing string
	// waits is a text about what every node waits for, "" if a pod is asked to leave.
	waits string
	// noNodes is set if the selector matches no node.
	noNodes  bool
	problems []loop.Failure
	// progress is a text that contains the number of pods that are left.
	progress string
	// ignored are the nodes that match the selector but are too new.
	ignored []string
}

// decideProgressing returns the condition Progressing, with the first reason that applies.
func decideProgressing(f progressFacts) verdict {
	v := progressVerdict(f)
	if len(f.ignored) > 0 && !f.ending {
		v.message += fmt.Sprintf("; %s ignored (newNodes: Ignore): %s", pluralIs(len(f.ignored), "new node"), wording.FirstOf(f.ignored))
	}
	return v
}

func progressVerdict(f progressFacts) verdict {
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	switch {
	case f.ending && len(f.held) == 0:
		return verdict{yes, v1alpha1.ReasonProgressComplete, allReleased}
	case f.ending && len(f.problems) > 0:
		return verdict{no, v1alpha1.ReasonProgressComplete,
			fmt.Sprintf("%s still to be released: %s. %s", pluralIs(len(f.held), "node"), wording.FirstOf(f.held), describe(f.problems))}
	case f.ending:
		return verdict{yes, v1alpha1.ReasonProgressComplete, fmt.Sprintf("%s still to be released: %s%s", pluralIs(len(f.held), "node"), wording.FirstOf(f.held), f.why)}
	case f.unknown != "":
		return verdict{no, v1alpha1.ReasonProgressNotRequested,
			fmt.Sprintf("This version of the server does not know the stage %s: the nodes stay cordoned and no pod is asked to leave; the stage can change to Complete", f.unknown)}
	case !f.draining && len(f.problems) > 0:
		return verdict{no, v1alpha1.ReasonProgressSyncFailed, describe(f.problems)}
	case !f.draining:
		return verdict{yes, v1alpha1.ReasonProgressNotRequested, cmp.Or(f.work, "The stage asks no pod to leave")}
	case f.drained:
		return verdict{yes, v1alpha1.ReasonProgressDrained, cmp.Or(f.work, "Nothing is left to do in stage Drain")}
	case f.paused != "":
		return verdict{no, v1alpha1.ReasonPaused, f.paused}
	case f.unconfirmed != "":
		return verdict{yes, v1alpha1.ReasonProgressDraining, f.unconfirmed}
	case f.noNodes && len(f.problems) == 0:
		return verdict{yes, v1alpha1.ReasonNoNodes, noNodes}
	case f.blocked:
		return verdict{no, v1alpha1.ReasonProgressBlocked, "Every pod that is asked to leave is blocked: " + f.worst}
	case f.stalledSince != nil:
		text := "No progress since " + f.stalledSince.UTC().Format(time.RFC3339) + ": " + f.progress
		if len(f.problems) > 0 {
			text += ". " + describe(f.problems)
		}
		return verdict{no, v1alpha1.ReasonProgressStalled, text}
	case len(f.problems) > 0 && f.moves:
		return verdict{yes, v1alpha1.ReasonProgressSyncFailed, describe(f.problems)}
	case len(f.problems) > 0:
		return verdict{no, v1alpha1.ReasonProgressSyncFailed, describe(f.problems)}
	case f.completing != "":
		return verdict{yes, v1alpha1.ReasonProgressWaitingForCompletion, f.completing}
	case f.waits != "":
		return verdict{yes, v1alpha1.ReasonProgressWaiting, f.waits}
	default:
		return verdict{yes, v1alpha1.ReasonProgressDraining, capitalize(f.progress)}
	}
}

func pluralIs(n int, noun string) string {
	if n == 1 {
		return wording.Count(n, noun) + " is"
	}
	return wording.Count(n, noun) + " are"
}

// movement has the indications that a drain makes progress.
type movement struct {
	// moreGone is set if the number of pods that have left a node has reached a new maximum.
	moreGone bool
	// targetsChanged is set if a wave started, or if nodes joined or left.
	targetsChanged bool
	// waitEnded is set if the drain no longer only waits for pods to complete, which may have taken
	// days.
	waitEnded bool
	// moved is the time of the last progress of a single pod: its evacuator reported, or it
	// terminated. It ignores pods that only compensate for returned pods.
	moved time.Time
}

func lastProgress(before *metav1.Time, m movement, now time.Time) *metav1.Time {
	if before == nil {
		return &metav1.Time{Time: now}
	}
	if now.Before(before.Time) {
		// The clock of the previous leader was ahead. The time must not decrease.
		now = before.Time
	}
	if m.targetsChanged || m.moreGone || m.waitEnded {
		return &metav1.Time{Time: now}
	}
	if m.moved.Sub(before.Time) < progressPace {
		return before
	}
	return &metav1.Time{Time: m.moved}
}

// gonePeakOf returns the maximum of gone for a node since its targets last changed.
func gonePeakOf(nm *v1alpha1.NodeMaintenance, entry *v1alpha1.NodeMaintenanceNodeStatus) int32 {
	before := v1alpha1.NodeStatusOf(nm, entry.NodeRef)
	switch {
	case !v1alpha1.IsDraining(nm) && before == nil:
		return 0
	case !v1alpha1.IsDraining(nm):
		return before.PodsGonePeak
	case before == nil || !drainplan.SameEntries(before.DrainTargets, entry.DrainTargets):
		return glance.Gone(entry)
	}
	return max(before.PodsGonePeak, glance.Gone(entry))
}

// moreGone reports whether the number of pods that have left one of the nodes has reached a new
// maximum.
func moreGone(nm *v1alpha1.NodeMaintenance, status *v1alpha1.NodeMaintenanceStatus) bool {
	for i := range status.NodeStatuses {
		entry := &status.NodeStatuses[i]
		if before := v1alpha1.NodeStatusOf(nm, entry.NodeRef); before != nil && entry.PodsGonePeak > before.PodsGonePeak {
			return true
		}
	}
	return false
}

// movedAt returns the time of the last progress of the pods of a node. If n pods were recreated,
// the n latest moves do not count: when these n pods have left again, the node has made no progress
// compared with the time before.
func (n *nodeCount) movedAt(entry *v1alpha1.NodeMaintenanceNodeStatus, now time.Time) time.Time {
	// Outside of stage Drain, gone may exceed PodsGonePeak.
	cameBack := int(max(0, entry.PodsGonePeak-glance.Gone(entry)))
	if cameBack >= len(n.moves) {
		return time.Time{}
	}
	moves := slices.Clone(n.moves)
	for i, at := range moves {
		if at.After(now) {
			moves[i] = now
		}
	}
	slices.SortFunc(moves, func(a, b time.Time) int { return b.Compare(a) })
	return moves[cameBack]
}

// decideProgress sets lastProgressTimestamp of a maintenance that does not end, and returns the
// inputs of the condition Progressing.
func (d *decision) decideProgress(f *facts, left *remainder) progressFacts {
	nm := f.subject.NodeMaintenance
	p := progressFacts{
		draining: v1alpha1.IsDraining(nm), progress: left.progress(), ignored: f.ignored, problems: f.subject.problems(f),
		work: describeWork(nm, d.status.NodeStatuses),
	}
	if !nm.Spec.Stage.IsKnown() {
		p.unknown = nm.Spec.Stage
	}
	if !p.draining {
		return p
	}
	if left.targeted == 0 && left.completing.Pods > 0 {
		p.completing = fmt.Sprintf("Waiting for %s; %s", left.completing.String(), left.progress())
	}
	next := *nm
	next.Status = d.status
	before := nm.Status.LastProgressTimestamp
	if begun := v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageDrain); before != nil && before.Time.Before(begun) {
		before = &metav1.Time{Time: begun} // a pause has ended before the drain began
	}
	last := lastProgress(before, movement{
		moreGone:       moreGone(nm, &d.status),
		targetsChanged: !drainplan.SameTargets(nm, &next) || isDrained(nm) && !d.plan.Finished[nm.Name],
		waitEnded:      waitsForCompletion(nm) && p.completing == "",
		moved:          left.moved,
	}, f.now)
	d.status.LastProgressTimestamp = last
	if p.paused = describePause(nm, left); p.paused != "" {
		// The API server makes the time of the resume the time of the last progress.
		return p
	}
	p.blocked, p.noNodes = left.isBlocked(), len(f.subject.nodes) == 0
	if p.completing != "" {
		// The pods decide how long it takes.
		p.moves = true
		return p
	}
	if p.blocked {
		p.worst = left.worst()
	}
	if left.targeted == 0 {
		p.waits = f.subject.waits()
	}
	since := f.now.Sub(last.Time)
	p.moves = since < loop.VisibleAfter
	if f.subject.onlyWorkersAreLeft(left) {
		return p
	}
	if since >= f.stallTimeout {
		p.stalledSince = last
		d.wake = sooner(d.wake, loop.VisibleAfter) // the report of an evacuator does not enqueue the maintenance
	} else {
		d.wake = sooner(d.wake, f.stallTimeout-since)
	}
	return p
}

// waitsForCompletion reports whether a maintenance, according to its status, only waits for pods to
// complete.
func waitsForCompletion(nm *v1alpha1.NodeMaintenance) bool {
	progressing := conditionOf(nm, v1alpha1.ConditionProgressing)
	return progressing != nil && progressing.Reason == v1alpha1.ReasonProgressWaitingForCompletion
}

// waits returns a text about what the nodes of a drain wait for that asks no pod to leave.
func (m *member) waits() string {
	if uncordoned := m.uncordoned(); len(uncordoned) > 0 {
		return waitsForCordons(uncordoned)
	}
	if !slices.ContainsFunc(m.nodes, func(node memberNode) bool { return node.outside == nil }) {
		_, text := excluded(m.nodes, m.username(), outsideDrain)
		return text
	}
	if outside, text := excluded(m.nodes, m.username(), outsideDrain); outside != "" && m.Spec.OnExcludedNode == v1alpha1.ExcludedNodeWait {
		return "Every node waits for other nodes or other maintenances. " + text + "; " + wavesWait
	}
	return "Every node waits for other nodes or other maintenances"
}

// problems returns the failures of a maintenance, the oldest first.
func (m *member) problems(f *facts) []loop.Failure {
	all := slices.Clone(f.problems)
	for _, node := range m.nodes {
		about := "node " + node.Name
		switch trouble, failing := f.troubles[node.Name]; {
		case node.outside != nil && (node.outside.reason == v1alpha1.NodeStatusNotAuthorized || node.outside.reason == v1alpha1.NodeStatusNodeTaskInProgress):
		case node.outside != nil:
			all = append(all, loop.Failure{About: about, Since: node.outside.since, Text: node.outside.why})
		case node.outside == nil && failing:
			// The node is cordoned. Only a taint or a condition of the node cannot be written.
			all = append(all, loop.Failure{About: about, Since: trouble.Since, Text: trouble.Text})
		}
	}
	slices.SortFunc(all, loop.Failure.Compare)
	return all
}

// showFailure returns the status of a maintenance with the error of its sync in the condition
// Progressing, if the sync has failed for long enough. Otherwise only Ready changes in the status.
func (c *Controller) showFailure(nm *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenanceStatus, bool) {
	all, _ := c.problems.Visible(nm.Name)
	if len(all) == 0 {
		return nil, false
	}
	status, failed := nm.Status.DeepCopy(), verdict{metav1.ConditionFalse, v1alpha1.ReasonProgressSyncFailed, describe(all)}
	setCondition(nm, status, v1alpha1.ConditionProgressing, failed, c.clock.Now())
	setReady(nm, status, readyOfFailed(nm, failed), c.clock.Now())
	return status, true
}

func conditionOf(nm *v1alpha1.NodeMaintenance, conditionType string) *metav1.Condition {
	return meta.FindStatusCondition(nm.Status.Conditions, conditionType)
}
