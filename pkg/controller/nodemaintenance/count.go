// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/nodestate"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// nodeCount has the counts of one node for the status of a maintenance, and the pods to act on.
type nodeCount struct {
	targets drainplan.Targets

	pending, evacuating, stuck, left int32
	// waiting counts the pods without an Evacuation that the plan lets complete. nextRule is the
	// first time at which the plan asks one of them to leave, zero for never. completing are the
	// pods that a wave lets complete now.
	waiting    int32
	nextRule   time.Time
	completing drainplan.Completing
	// covered counts the pods that the plan covers, and targeted the covered pods that are asked to
	// leave.
	covered, targeted int
	// targetedOwn counts the targeted pods of this server, and leaving the targeted pods that are
	// not blocked. A pod of this server that is not asked to leave yet is not leaving.
	targetedOwn, leaving int
	// later counts the pods among leaving that are not asked yet.
	later int
	// blocked are the blocked Evacuations of targeted pods.
	blocked []*v1alpha1.Evacuation
	// refused are the pods that cannot have an Evacuation because their namespace is terminating.
	refused []*nodestate.Pod
	// uncreatable are the pods that are asked to leave, but whose Evacuation could not be created
	// or joined in two attempts.
	uncreatable []uncreatablePod
	// moves has the time of the last progress of each pod that is leaving. A pod makes progress
	// when its evacuator reports, and while it terminates, for at most --long-grace.
	moves []time.Time
	// nominated are the pods that are asked to leave, but are only nominated for the node.
	nominated []string
	// leftOnPurpose has the names of the kept pods, with the reason.
	leftOnPurpose []string
	// static counts the kept static pods. keptStatic counts the static pods on a node with an
	// agent, by the reason why they are kept.
	static     int
	keptStatic map[protocol.KeptReason]int
	// unasked are the targeted pods without an Evacuation that has our finalizer.
	unasked []*nodestate.Pod
	// unwanted are the Evacuations with our finalizer whose pods the targets do not cover and, if
	// the maintenance is paused, those that have not begun.
	unwanted []*v1alpha1.Evacuation
}

// waveCount counts the pods of an entry of the plan: left are the pods that have not left, asked
// are the pods among them that are asked to leave, and completing are those that the wave waits for
// until they complete.
type waveCount struct{ left, asked, completing int32 }

// countFacts are the facts about a node whose pods are counted.
type countFacts struct {
	view *nodestate.View
	// rules are the rules of the node.
	rules drainplan.NodeRules
	// covered has all entries of the plan, targets the entries that the node has reached.
	covered, targets drainplan.Targets
	// waves counts the pods by the entry of the plan, too, if inside is set: the node is inside the
	// waves.
	waves  []waveCount
	inside bool
}

// countPods counts the pods of a node.
func countPods(f *facts, c countFacts) *nodeCount {
	n := &nodeCount{targets: c.targets, keptStatic: map[protocol.KeptReason]int{}}
	paused := v1alpha1.IsPaused(f.subject.NodeMaintenance)
	for i := range c.view.Pods {
		pod := &c.view.Pods[i]
		treatment := c.rules.Of(pod.Plan, f.now)
		kept := whyKept(pod, treatment)
		reached := kept == "" && c.targets.Cover(pod.Plan)
		targeted := reached && treatment.Behavior == v1alpha1.DrainBehaviorDrain
		waitsForBudget := kept == drainplan.KeptBudget && c.targets.Cover(pod.Plan)
		if pod.Ours && (!targeted && !waitsForBudget || paused && !hasBegun(pod.Evacuation, !pod.StopsAt.IsZero())) {
			n.unwanted = append(n.unwanted, pod.Evacuation)
		}
		if kept != "" {
			n.addKept(pod, kept)
			continue
		}
		wave := c.covered.First(pod.Plan)
		if wave < 0 && pod.Evacuation == nil {
			continue
		}
		if c.inside && wave >= 0 {
			c.waves[wave].add(reached, targeted)
		}
		n.covered++
		if treatment.Behavior == v1alpha1.DrainBehaviorWaitCompleted {
			n.addWaiting(pod, reached, treatment.Until)
		}
		isUnasked := false
		if targeted {
			n.targeted++
			if pod.Own {
				n.targetedOwn++
			}
			// A pod that is only nominated for the node needs no Evacuation: the scheduler clears
			// the nomination when the node is cordoned. The status names the pod, in case the
			// scheduler does not run.
			if !pod.Bound {
				n.nominated = append(n.nominated, pod.Namespace+"/"+pod.Name)
			}
			step := decideEvacuation(pod)
			if isUnasked = pod.Bound && !paused && (step == stepCreate || step == stepAdopt); isUnasked {
				n.unasked = append(n.unasked, pod)
			}
		}
		if at := lastMove(pod, targeted, f.longGrace); !at.IsZero() {
			n.moves = append(n.moves, at)
		}
		stuck := n.stuck
		n.addEvacuation(pod, f.refusals[pod.UID], targeted)
		if targeted && n.stuck == stuck && (!pod.Own || pod.Evacuation != nil) {
			n.leaving++
			if isUnasked {
				n.later++
			}
		}
	}
	return n
}

// addEvacuation counts the Evacuation of a pod that the plan covers, or that it has none. A pod
// that another client evacuates may be blocked before the plan asks it to leave.
func (n *nodeCount) addEvacuation(pod *nodestate.Pod, refused refusal, targeted bool) {
	isRefused := refused.why != "" && targeted
	switch {
	case pod.Evacuation == nil:
		n.pending++
		if refused.terminating {
			n.refused = append(n.refused, pod)
			return
		}
	case nodestate.TrueReason(pod.Evacuation, v1alpha1.ConditionBlocked) != "":
		n.evacuating++
		n.stuck++
		if targeted {
			n.blocked = append(n.blocked, pod.Evacuation)
		}
		return
	default:
		n.evacuating++
		isRefused = isRefused && !pod.Ours
	}
	if isRefused {
		n.stuck++
		n.uncreatable = append(n.uncreatable, uncreatablePod{pod.Namespace, pod.Name, refused.why})
	}
}

// hasBegun reports whether an Evacuation stays during a pause: its pod is terminating, its
// evacuator has reported, or it cannot be cancelled.
func hasBegun(e *v1alpha1.Evacuation, terminating bool) bool {
	return terminating || e.Status.EvacuationProgressTimestamp != nil ||
		e.Status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid
}

// whyKept returns the reason why a pod is kept, "" if it is not.
func whyKept(pod *nodestate.Pod, t drainplan.Treatment) drainplan.KeptReason {
	if t.Behavior == v1alpha1.DrainBehaviorSkip && (pod.Kept == "" || pod.Kept == drainplan.KeptBudget) {
		return drainplan.KeptSkipped
	}
	return pod.Kept
}

// add adds a pod that the entry is the first to cover.
func (w *waveCount) add(reached, targeted bool) {
	w.left++
	switch {
	case targeted:
		w.asked++
	case reached:
		w.completing++
	}
}

// addWaiting adds a pod that the plan lets complete. reached is set if a wave waits for it now.
func (n *nodeCount) addWaiting(pod *nodestate.Pod, reached bool, until time.Time) {
	if pod.Evacuation == nil {
		n.waiting++
	}
	if !until.IsZero() && (n.nextRule.IsZero() || until.Before(n.nextRule)) {
		n.nextRule = until
	}
	if reached {
		n.completing.Add(pod.Namespace+"/"+pod.Name, until)
	}
}

func (n *nodeCount) addKept(pod *nodestate.Pod, why drainplan.KeptReason) {
	n.left++
	if why.IsStatic() || why == drainplan.KeptSkipped && pod.Plan.Type == v1alpha1.PodTypeStatic {
		n.static++
	}
	if reason := why.KeptStatic(); reason != "" {
		n.keptStatic[reason]++
	}
	n.leftOnPurpose = append(n.leftOnPurpose, fmt.Sprintf("%s of %s/%s", why, pod.Namespace, pod.Owner))
}

// lastMove returns the time of the last progress of a pod, zero if there was none. For a
// terminating pod it may be in the future, by at most longGrace.
func lastMove(pod *nodestate.Pod, targeted bool, longGrace time.Duration) time.Time {
	var last time.Time
	if pod.Evacuation != nil && pod.Evacuation.Status.EvacuationProgressTimestamp != nil {
		last = pod.Evacuation.Status.EvacuationProgressTimestamp.Time
	}
	if !targeted || pod.StopsAt.IsZero() {
		return last
	}
	if until := pod.StopsAt.Add(-max(0, pod.Grace-longGrace)); until.After(last) {
		return until
	}
	return last
}

// uncreatablePod is a pod whose Evacuation could not be created, with the reason.
type uncreatablePod struct{ namespace, name, why string }

// addendum separates two parts of a node's message.
const addendum = "; "

// leastAddendum is the room that a message must have left for another part to be added.
const leastAddendum = len(addendum) + 40

// messageOf returns the message of the node. It has the message of the plan, the pods that have no
// Evacuation which could report their state, and the kept static pods of a node with an agent.
func (n *nodeCount) messageOf(planned string) string {
	message := n.completing.MessageOf(planned, n.targeted)
	add := func(text string) {
		if room := drainplan.MaxMessageBytes - len(message); room >= leastAddendum {
			message += drainplan.Fit(addendum+text, room)
		}
	}
	if len(n.refused) > 0 {
		names := make([]string, 0, len(n.refused))
		for _, pod := range n.refused {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
		slices.Sort(names)
		add(wording.Count(len(names), "pod") + " of terminating namespaces: " + strings.Join(names, ", "))
	}
	if len(n.nominated) > 0 {
		add(fmt.Sprintf("%s only nominated for the node, such as %s", pluralIs(len(n.nominated), "pod"), n.nominated[0]))
	}
	if len(n.uncreatable) > 0 {
		pod := n.uncreatable[0]
		add(fmt.Sprintf("no Evacuation for %s, such as %s/%s: %s", wording.Count(len(n.uncreatable), "pod"), pod.namespace, pod.name, pod.why))
	}
	for _, reason := range slices.Sorted(maps.Keys(n.keptStatic)) {
		add(fmt.Sprintf("%s kept (%s)", wording.Count(n.keptStatic[reason], "static pod"), reason))
	}
	return message
}

func (n *nodeCount) fill(nm *v1alpha1.NodeMaintenance, entry *v1alpha1.NodeMaintenanceNodeStatus) {
	entry.PodsPendingEvacuation = n.pending
	entry.PodsEvacuating = n.evacuating
	entry.PodsBlocked = n.stuck
	entry.PodsKept = n.left
	if n.waiting > 0 {
		entry.PodsWaiting = ptr.To(n.waiting)
	}
	entry.PodsPeak = peakOf(nm, entry)
	entry.PodsGonePeak = gonePeakOf(nm, entry)
}

// remainder counts the pods that are left on the nodes of a maintenance.
type remainder struct {
	// covered counts the pods that the plan covers, targeted the covered pods that are asked to
	// leave, and leaving those of them that are not blocked. evacuating counts the pods that have
	// an Evacuation, stuck all that are blocked, and refused the pods that cannot have an
	// Evacuation because their namespace is terminating.
	covered, targeted, leaving, evacuating, stuck, refused int
	// unasked counts the targeted pods that are not asked yet, and later those among leaving.
	unasked, later int

	refusedNamespaces map[string]int
	// blocked are the blocked Evacuations of targeted pods.
	blocked     []*v1alpha1.Evacuation
	uncreatable []uncreatablePod
	// completing are the pods that a wave lets complete.
	completing drainplan.Completing
	// nominated are pods that are only nominated for a node.
	nominated []string
	// moved is the time of the last progress of a pod.
	moved time.Time
	left  map[string]int
	// static counts the static pods among left.
	static int
	// waves has an element for each entry of the plan.
	waves []waveCount
}

func newRemainder() *remainder {
	return &remainder{refusedNamespaces: map[string]int{}, left: map[string]int{}}
}

func (r *remainder) add(n *nodeCount, moved time.Time) {
	r.covered += n.covered
	r.targeted += n.targeted
	r.leaving += n.leaving
	r.unasked += len(n.unasked)
	r.later += n.later
	r.evacuating += int(n.evacuating)
	r.stuck += int(n.stuck)
	r.refused += len(n.refused)
	for _, pod := range n.refused {
		r.refusedNamespaces[pod.Namespace]++
	}
	r.blocked = append(r.blocked, n.blocked...)
	r.uncreatable = append(r.uncreatable, n.uncreatable...)
	r.nominated = append(r.nominated, n.nominated...)
	r.completing.Join(n.completing)
	if moved.After(r.moved) {
		r.moved = moved
	}
	r.static += n.static
	for _, what := range n.leftOnPurpose {
		r.left[what]++
	}
}
