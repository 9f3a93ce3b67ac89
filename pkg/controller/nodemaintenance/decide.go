// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

type decision struct {
	// plan is empty in all stages except Drain.
	plan   drainplan.Result
	status v1alpha1.NodeMaintenanceStatus
	// rules are what the maintenances of a node do with its pods, see facts.nodeRules.
	rules map[string]drainplan.NodeRules
	// waves has the pods of each entry of the plan.
	waves []waveCount
	// pools are the pools through which the maintenance has taken nodes, by node.
	pools map[v1alpha1.NodeReference]string
	// counts has an entry for each node in facts.subject.inside, in the same order.
	counts []*nodeCount
	// withdraw has the names of the nodes whose Evacuations are withdrawn unless another
	// maintenance wants them.
	withdraw []string
	// confirm is set if the maintenance is drained unless a live list contains a nominated pod. The
	// controller makes that list and decides again before it writes the status.
	confirm bool
	// superseded is set if the maintenance has to be completed and nothing else has to be done.
	superseded bool
	// wake is the time after which to reconcile again without an event, 0 for never.
	wake time.Duration
}

// decide computes the decision from the facts alone. It is a pure function.
func decide(f *facts) (*decision, error) {
	nm := f.subject.NodeMaintenance
	d := &decision{wake: f.wake, pools: map[v1alpha1.NodeReference]string{}}
	switch {
	case v1alpha1.IsEnding(nm):
		d.decideRelease(f)
		return d, nil
	case f.superseded != "":
		d.superseded = true
		return d, nil
	}
	covered, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
	if err != nil {
		return nil, err
	}
	if d.rules, err = f.nodeRules(); err != nil {
		return nil, err
	}
	switch {
	case v1alpha1.IsPaused(nm):
		if d.plan, err = planOfPaused(f); err != nil {
			return nil, err
		}
	case v1alpha1.IsDraining(nm):
		if d.plan, err = drainplan.Plan(f.world(d.rules)); err != nil {
			return nil, err
		}
	}
	d.status = v1alpha1.NodeMaintenanceStatus{
		ObservedGeneration:  nm.Generation,
		StageStatuses:       nm.Status.StageStatuses,
		Conditions:          slices.Clone(nm.Status.Conditions),
		NewestNodeTimestamp: nm.Status.NewestNodeTimestamp, LastProgressTimestamp: nm.Status.LastProgressTimestamp,
		Pause:        nm.Status.Pause,
		NodeStatuses: make([]v1alpha1.NodeMaintenanceNodeStatus, 0, len(f.subject.nodes)+len(f.former)),
	}
	d.counts = make([]*nodeCount, 0, len(f.subject.inside))
	left := newRemainder()
	left.waves = make([]waveCount, len(nm.Spec.DrainPlan))
	for i := range f.subject.nodes {
		d.addNode(f, &f.subject.nodes[i], covered, left)
	}
	d.status.Nodes, d.status.PodsGone = int32(len(f.subject.nodes)), podsGone(nm, d.status.NodeStatuses)
	for _, node := range f.former {
		d.addFormer(f, node)
	}
	sortNodes(d.status.NodeStatuses)
	d.storePools()
	if v1alpha1.IsPaused(nm) {
		d.plan.Finished = map[string]bool{nm.Name: left.isEmpty()}
	}
	d.waves = left.waves
	d.status.Waves = decideWaves(f, left.waves)
	d.decideConditions(f, left)
	return d, nil
}

// addNode adds the entry of a selected node. Its pods count in left only if the node is inside the
// waves, since the drain does not wait for the pods of a node outside.
func (d *decision) addNode(f *facts, node *memberNode, covered drainplan.Targets, left *remainder) {
	nm := f.subject.NodeMaintenance
	ref := refOf(node.Node)
	entry := v1alpha1.NodeMaintenanceNodeStatus{NodeRef: ref, Task: f.taskEntry(node.Name, f.taskBefore(ref), false)}
	d.setPool(entry.NodeRef, poolOf(nm, node))
	var targets drainplan.Targets
	switch {
	case node.isInside() && v1alpha1.IsDraining(nm):
		targets = d.plan.Targets[node.Name]
		entry.DrainTargets = targets.Entries
	case node.outside == nil || node.outside.reason != v1alpha1.NodeStatusTooManyMaintenances:
		entry.DrainTargets = holds.Stored(nm, node.Node)
	}
	var n *nodeCount
	if node.hands.Any() {
		n = countInHands(f.views[node.Name], covered)
	} else {
		n = countPods(f, countFacts{
			view: f.views[node.Name], rules: d.rules[node.Name], covered: covered, targets: targets, waves: left.waves, inside: node.outside == nil,
		})
	}
	if !n.nextRule.IsZero() {
		d.wake = sooner(d.wake, n.nextRule.Sub(f.now))
	}
	n.fill(nm, &entry)
	entry.Reason = d.reasonOf(nm, node)
	switch trouble, failing := f.troubles[node.Name]; {
	case node.outside != nil:
		entry.DrainMessage = drainplan.Fit(drainplan.NotDrained+node.outside.why, drainplan.MaxMessageBytes)
	case node.hands.Any():
		entry.DrainMessage = drainplan.Fit(capitalize(describeHands(node.hands)), drainplan.MaxMessageBytes)
	case v1alpha1.IsDraining(nm):
		entry.DrainMessage = n.messageOf(d.plan.Messages[nm.Name][node.Name])
		if failing {
			entry.DrainMessage = drainplan.Fit(trouble.Text+addendum+entry.DrainMessage, drainplan.MaxMessageBytes)
		}
	}
	if node.outside == nil {
		left.add(n, n.movedAt(&entry, f.now))
	}
	if node.isInside() {
		d.counts = append(d.counts, n)
	}
	d.status.NodeStatuses = append(d.status.NodeStatuses, entry)
}

// poolOf returns the pool through which a maintenance has taken a node. It stays the same when the
// labels of the node change, so that users with the right to this pool can release the node.
func poolOf(nm *v1alpha1.NodeMaintenance, node *memberNode) string {
	return cmp.Or(v1alpha1.PoolOf(nm, v1alpha1.NodeStatusOf(nm, refOf(node.Node))), node.pool)
}

// setPool records the pool through which the maintenance has taken a node, if it is not "".
func (d *decision) setPool(node v1alpha1.NodeReference, pool string) {
	if pool != "" {
		d.pools[node] = pool
	}
}

// storePools stores the pools of the nodes: each pool once, and for each node the index of its
// pool. So the pools that no node has any more are removed.
func (d *decision) storePools() {
	d.status.Pools = slices.Compact(slices.Sorted(maps.Values(d.pools)))
	indexes := make(map[string]*int32, len(d.status.Pools))
	for i, pool := range d.status.Pools {
		indexes[pool] = ptr.To(int32(i))
	}
	for i := range d.status.NodeStatuses {
		node := &d.status.NodeStatuses[i]
		node.PoolIndex = indexes[d.pools[node.NodeRef]]
	}
}

// reasonOf returns the reason why a node is not drained as planned, "" if it is.
func (d *decision) reasonOf(nm *v1alpha1.NodeMaintenance, node *memberNode) v1alpha1.NodeStatusReason {
	switch {
	case node.outside != nil:
		return node.outside.reason
	case v1alpha1.IsHolding(nm) && node.isUncordoned():
		return v1alpha1.NodeStatusNotCordoned
	case d.plan.FastForwarded[nm.Name][node.Name] != "":
		return v1alpha1.NodeStatusFastForwarded
	}
	return ""
}

// decideWaves returns the progress of the entries of the plan that have or had pods. After stage
// Drain the stored progress is kept.
func decideWaves(f *facts, counts []waveCount) []v1alpha1.NodeMaintenanceWave {
	before := f.subject.Status.Waves
	if !v1alpha1.IsDraining(f.subject.NodeMaintenance) {
		return before
	}
	var waves []v1alpha1.NodeMaintenanceWave
	now := &metav1.Time{Time: f.now}
	for i, count := range counts {
		wave := v1alpha1.NodeMaintenanceWave{Entry: int32(i)}
		at := slices.IndexFunc(before, func(w v1alpha1.NodeMaintenanceWave) bool { return w.Entry == wave.Entry })
		switch {
		case at >= 0:
			wave = before[at]
		case count.left == 0:
			continue
		}
		wave.PodsLeft, wave.PodsPeak = count.left, max(wave.PodsPeak, count.left)
		if count.asked+count.completing > 0 && wave.StartTime == nil {
			wave.StartTime = now
		}
		switch {
		case count.left > 0:
			wave.EndTime = nil
		case wave.EndTime == nil:
			wave.EndTime = now
		}
		waves = append(waves, wave)
	}
	return waves
}

// addFormer adds the entry of a node that the maintenance no longer selects, if the node is not
// released yet, or was deleted and may be registered again.
func (d *decision) addFormer(f *facts, node formerNode) {
	entry := v1alpha1.NodeMaintenanceNodeStatus{
		NodeRef: node.NodeRef, DrainTargets: node.DrainTargets, Task: f.taskEntry(node.NodeRef.Name, node.Task, node.gone),
	}
	switch {
	case node.gone && v1alpha1.IsHolding(f.subject.NodeMaintenance) &&
		(f.subject.Spec.NewNodes != v1alpha1.NewNodesPolicyJoin || f.tasks[node.NodeRef.Name] != nil):
		// A node that is registered again joins because of this entry. With the policy Join every
		// node joins even without an entry, and the list would grow with every node that an
		// autoscaler deletes.
		entry.Reason, entry.DrainMessage = v1alpha1.NodeStatusGone, "Node is gone"
	case node.reinstalled && v1alpha1.IsHolding(f.subject.NodeMaintenance):
		// The node that the entry is about is gone. The new one joins because of this entry.
		entry.Reason, entry.DrainMessage = v1alpha1.NodeStatusGone, "Node was registered again, and the selector does not match it yet"
	case node.gone, node.released:
		return
	default:
		d.withdraw = append(d.withdraw, node.NodeRef.Name)
		entry.Reason, entry.DrainMessage = releaseOf(f, node.NodeRef.Name)
	}
	d.setPool(entry.NodeRef, v1alpha1.PoolOf(f.subject.NodeMaintenance, node.NodeMaintenanceNodeStatus))
	d.status.NodeStatuses = append(d.status.NodeStatuses, entry)
}

// beingReleased is the message of a node that waits for nothing but the server.
const beingReleased = "Being released"

func releaseOf(f *facts, node string) (reason v1alpha1.NodeStatusReason, message string) {
	if trouble, failing := f.troubles[node]; failing {
		return v1alpha1.NodeStatusNotReleased, drainplan.Fit("Not released: "+trouble.Text, drainplan.MaxMessageBytes)
	}
	if task := f.tasks[node]; holds.Keeps(task, f.subject.UID) && task.Status.Holder != "" {
		return v1alpha1.NodeStatusReleasing, drainplan.Fit(fmt.Sprintf("Released when worker %q is done with it", task.Status.Holder), drainplan.MaxMessageBytes)
	}
	return v1alpha1.NodeStatusReleasing, beingReleased
}

// peakOf returns the highest number of pods that had to leave a node at the same time. It is stored
// because a restarted server cannot count pods that have already left.
func peakOf(nm *v1alpha1.NodeMaintenance, entry *v1alpha1.NodeMaintenanceNodeStatus) int32 {
	var before int32
	if status := v1alpha1.NodeStatusOf(nm, entry.NodeRef); status != nil {
		before = status.PodsPeak
	}
	if !v1alpha1.IsDraining(nm) {
		return before
	}
	return max(before, entry.PodsPendingEvacuation+entry.PodsEvacuating)
}

func (d *decision) decideConditions(f *facts, left *remainder) {
	nm := f.subject.NodeMaintenance
	progress := d.decideProgress(f, left)
	drained := decideDrained(drainedFacts{
		draining: v1alpha1.IsDraining(nm), nodes: f.subject.nodes, username: f.subject.username(),
		stalledSince: progress.stalledSince, uncordoned: f.subject.uncordoned(), finished: d.plan.Finished[nm.Name],
		remainder: left, attached: f.attached, onExcluded: nm.Spec.OnExcludedNode,
	})
	if drained.status == metav1.ConditionTrue {
		if progress.unconfirmed = d.decideConfirmation(f); progress.unconfirmed == "" {
			progress.drained = true
		} else {
			drained = verdict{metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress, progress.unconfirmed}
		}
	}
	if progress.paused != "" && drained.status != metav1.ConditionTrue && len(f.subject.nodes) > 0 {
		drained = verdict{metav1.ConditionFalse, v1alpha1.ReasonPaused, progress.paused}
	}
	progressing := decideProgressing(progress)
	setCondition(nm, &d.status, v1alpha1.ConditionDrained, drained, f.now)
	setCondition(nm, &d.status, v1alpha1.ConditionProgressing, progressing, f.now)
	setReady(nm, &d.status, decideReady(f.subject, drained, progressing), f.now)
}

// decideConfirmation returns what Drained=True still waits for, or "". The node controller must
// have confirmed that all nodes are drained. It does so after the scheduler had time to bind the
// pods that it had assigned before the cordon. Then a live list must contain no pod that is
// nominated for one of the nodes. After that the cache is sufficient: every new pod causes an
// event.
func (d *decision) decideConfirmation(f *facts) string {
	switch {
	case len(f.unconfirmed) > 0 && f.unsettled > 0:
		return "All pods are gone; waiting for pods that the scheduler may still bind"
	case len(f.unconfirmed) > 0:
		return "All pods are gone according to the cache; waiting for a live list to confirm it for node " + f.unconfirmed[0]
	case isDrained(f.subject.NodeMaintenance):
		return ""
	case f.live == nil:
		d.confirm = true
		return ""
	case *f.live != "":
		d.wake = sooner(d.wake, confirmPatience)
		return "Pod " + *f.live + " was nominated for a node a moment ago"
	}
	return ""
}

func isDrained(nm *v1alpha1.NodeMaintenance) bool {
	return meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained)
}

func sortNodes(nodes []v1alpha1.NodeMaintenanceNodeStatus) {
	slices.SortFunc(nodes, func(a, b v1alpha1.NodeMaintenanceNodeStatus) int {
		return strings.Compare(a.NodeRef.Name, b.NodeRef.Name)
	})
}

// drainedFacts has the inputs of the condition Drained, except the time and the live list.
type drainedFacts struct {
	draining     bool
	nodes        []memberNode
	username     string
	stalledSince *metav1.Time
	uncordoned   []string
	finished     bool
	remainder    *remainder
	// attached does not prevent Drained=True, since volumes may stay attached until the node is
	// off. The message names the volumes for the user who switches the node off.
	attached attachedVolumes
	// onExcluded is spec.onExcludedNode.
	onExcluded v1alpha1.ExcludedNodePolicy
}

type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

const (
	// wavesWait and wavesContinue are texts about the waves while a node is excluded.
	wavesWait     = "later waves wait until its pods have left (onExcludedNode: Wait)"
	wavesContinue = "later waves do not wait for its pods (onExcludedNode: Continue)"
)

// outsideDrain describes a node that a drain goes on without.
const outsideDrain = "outside the drain"

// excluded returns the reason why nodes are outside of the waves, and text about them; "" if all
// nodes are inside. state describes such a node in the present stage.
func excluded(nodes []memberNode, username, state string) (reason, text string) {
	refused, others := 0, []memberNode(nil)
	for _, node := range nodes {
		switch {
		case node.outside == nil:
		case node.outside.reason == v1alpha1.NodeStatusNotAuthorized:
			refused++
		default:
			others = append(others, node)
		}
	}
	switch {
	case refused > 0:
		return v1alpha1.ReasonNotAuthorized, fmt.Sprintf("User %q may not maintain %s (skipped)", username, wording.Count(refused, "selected node"))
	case len(others) > 0:
		return others[0].outside.drained(),
			fmt.Sprintf("%s %s, such as %s: %s", pluralIs(len(others), "node"), state, others[0].Name, others[0].outside.why)
	}
	return "", ""
}

func decideDrained(f drainedFacts) verdict {
	r := f.remainder
	outside, text := excluded(f.nodes, f.username, outsideDrain)
	no := func(reason, format string, args ...any) verdict {
		return verdict{metav1.ConditionFalse, reason, fmt.Sprintf(format, args...)}
	}
	switch {
	case !f.draining:
		return no(v1alpha1.ReasonNotRequested, "The maintenance is not in stage Drain")
	case len(f.nodes) == 0:
		return no(v1alpha1.ReasonNoNodes, noNodes)
	case outside != "" && f.onExcluded == v1alpha1.ExcludedNodeWait:
		return no(outside, "%s; %s; %s", text, wavesWait, r.progress())
	case outside != "":
		if slices.ContainsFunc(f.nodes, func(node memberNode) bool { return node.outside == nil }) {
			text += "; the other nodes: " + r.progress()
		}
		return no(outside, "%s", text)
	case len(f.uncordoned) > 0:
		return no(v1alpha1.ReasonDrainInProgress, "%s; %s", waitsForCordons(f.uncordoned), r.progress())
	case !f.finished && r.isBlocked():
		return no(v1alpha1.ReasonDrainBlocked, "No pod is able to leave: %s; %s", r.worst(), r.progress())
	case !f.finished && f.stalledSince != nil:
		return no(v1alpha1.ReasonDrainBlocked, "No progress since %s; %s", f.stalledSince.UTC().Format(time.RFC3339), r.progress())
	case !f.finished:
		return no(v1alpha1.ReasonDrainInProgress, "%s", capitalize(r.progress()))
	case len(r.left) > 0:
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft,
			fmt.Sprintf("All pods have left %s except the kept pods: %s", wording.Count(len(f.nodes), "node"), joinTop(r.left)) + r.staticRemark() + f.attached.remark()}
	default:
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonDrainComplete, fmt.Sprintf("All pods have left %s", wording.Count(len(f.nodes), "node")) + f.attached.remark()}
	}
}

// isBlocked reports whether every pod that is asked to leave is blocked.
func (r *remainder) isBlocked() bool {
	leaving := r.leaving
	if r.isFull() {
		leaving -= r.later
	}
	return len(r.blocked)+len(r.uncreatable) > 0 && leaving == 0
}

// isFull reports whether no further pod is asked to leave before another one has left.
func (r *remainder) isFull() bool { return r.targeted-r.unasked >= maxAsked }

// staticRemark returns the part of the message about kept static pods, which stop with the machine.
func (r *remainder) staticRemark() string {
	if r.static == 0 {
		return ""
	}
	return "; " + wording.StaticPodsKept(r.static)
}

func (r *remainder) progress() string {
	text := wording.PodsLeft(r.covered, r.evacuating, r.stuck)
	if r.unasked > 0 && r.isFull() {
		text += fmt.Sprintf("; %s asked when others have left, since a maintenance asks at most %d at the same time", pluralIs(r.unasked, "pod"), maxAsked)
	}
	if r.refused > 0 {
		text += fmt.Sprintf("; %s cannot be evacuated because of namespaces that are being deleted: %s", wording.Count(r.refused, "pod"), joinTop(r.refusedNamespaces))
	}
	if r.completing.Pods > 0 && r.targeted > 0 {
		text += "; waiting for " + r.completing.String()
	}
	if len(r.nominated) > 0 {
		text += fmt.Sprintf("; %s only nominated for a node (status.nominatedNodeName), such as %s", pluralIs(len(r.nominated), "pod"), r.nominated[0])
	}
	return text
}

// worst returns the names of the three pods that have been blocked the longest.
func (r *remainder) worst() string {
	blocked := slices.Clone(r.blocked)
	since := func(e *v1alpha1.Evacuation) *metav1.Condition {
		return meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
	}
	slices.SortStableFunc(blocked, func(a, b *v1alpha1.Evacuation) int {
		return since(a).LastTransitionTime.Compare(since(b).LastTransitionTime.Time)
	})
	var out []string
	for _, e := range blocked[:min(3, len(blocked))] {
		out = append(out, fmt.Sprintf("%s/%s (%s)", e.Namespace, e.Spec.PodRef.Name, since(e).Reason))
	}
	for _, pod := range r.uncreatable[:min(3-len(out), len(r.uncreatable))] {
		out = append(out, fmt.Sprintf("%s/%s (no Evacuation: %s)", pod.namespace, pod.name, pod.why))
	}
	text := strings.Join(out, ", ")
	if more := len(blocked) + len(r.uncreatable) - len(out); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// joinTop formats the first five entries as "name (count)".
func joinTop(counts map[string]int) string {
	const most = 5
	names := slices.Sorted(maps.Keys(counts))
	var out []string
	for _, name := range names[:min(most, len(names))] {
		out = append(out, fmt.Sprintf("%s (%d)", name, counts[name]))
	}
	text := strings.Join(out, ", ")
	if more := len(names) - len(out); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func capitalize(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func setCondition(nm *v1alpha1.NodeMaintenance, status *v1alpha1.NodeMaintenanceStatus, conditionType string, v verdict, now time.Time) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: conditionType, Status: v.status, Reason: v.reason, Message: v.message,
		ObservedGeneration: nm.Generation, LastTransitionTime: metav1.NewTime(now),
	})
}
