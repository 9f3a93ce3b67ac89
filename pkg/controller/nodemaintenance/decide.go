// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// decision is the outcome of one sync.
type decision struct {
	// plan is empty for stages other than Drain.
	plan   drainplan.Result
	status maintenancev1alpha1.NodeMaintenanceStatus
	// counts are those of the nodes that the requester may delete, in their order.
	counts []*nodeCount
}

// decide computes the outcome from what was gathered. It writes nothing.
func (c *Controller) decide(g *gathered) (*decision, error) {
	nm := g.subject.NodeMaintenance
	l := &decision{}
	var err error
	if maintenancev1alpha1.IsDraining(nm) {
		if l.plan, err = drainplan.Plan(c.world(g)); err != nil {
			return nil, err
		}
	}
	covered, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
	if err != nil {
		return nil, err
	}
	l.status = maintenancev1alpha1.NodeMaintenanceStatus{
		ObservedGeneration:  nm.Generation,
		StageStatuses:       nm.Status.StageStatuses,
		Conditions:          slices.Clone(nm.Status.Conditions),
		NewestNodeTimestamp: nm.Status.NewestNodeTimestamp, LastProgressTimestamp: nm.Status.LastProgressTimestamp,
		NodeStatuses: make([]maintenancev1alpha1.NodeMaintenanceNodeStatus, 0, len(g.subject.nodes)+len(g.subject.refused)),
	}
	l.counts = make([]*nodeCount, 0, len(g.subject.nodes))
	left, now := newRemainder(), c.clock.Now()
	messages := l.plan.Messages[nm.Name]
	for _, node := range g.subject.nodes {
		entry := maintenancev1alpha1.NodeMaintenanceNodeStatus{NodeRef: refOf(node)}
		var targets drainplan.Targets
		if maintenancev1alpha1.IsDraining(nm) {
			targets = l.plan.Targets[node.Name]
			entry.DrainTargets = targets.Entries
		} else {
			entry.DrainTargets = holds.Stored(nm, node)
		}
		n := c.count(g.views[node.Name], covered, targets)
		n.fill(nm, &entry)
		if maintenancev1alpha1.IsDraining(nm) {
			entry.DrainMessage = n.messageOf(messages[node.Name])
			if trouble, _ := c.state.Troubles.Of(node.Name); trouble != nil {
				entry.DrainMessage = drainplan.Fit(trouble.Text+addendum+entry.DrainMessage, drainplan.MaxMessageBytes)
			}
		}
		left.add(n, n.movedAt(&entry, now))
		l.counts = append(l.counts, n)
		l.status.NodeStatuses = append(l.status.NodeStatuses, entry)
	}
	for _, excluded := range g.subject.excluded {
		node := excluded.node
		entry := maintenancev1alpha1.NodeMaintenanceNodeStatus{NodeRef: refOf(node), DrainMessage: drainplan.Fit(maintenancev1alpha1.DrainMessageNotDrained+excluded.why, drainplan.MaxMessageBytes)}
		if excluded.reason != maintenancev1alpha1.ReasonTooManyMaintenances {
			entry.DrainTargets = holds.Stored(nm, node)
		}
		c.count(g.views[node.Name], covered, drainplan.Targets{}).fill(nm, &entry)
		l.status.NodeStatuses = append(l.status.NodeStatuses, entry)
	}
	for _, node := range g.subject.refused {
		entry := maintenancev1alpha1.NodeMaintenanceNodeStatus{NodeRef: refOf(node), DrainMessage: drainplan.NotAuthorizedMessage(g.subject.username())}
		entry.DrainTargets = holds.Stored(nm, node)
		// Its counters are shown, but what is left there is not waited for.
		c.count(g.views[node.Name], covered, drainplan.Targets{}).fill(nm, &entry)
		l.status.NodeStatuses = append(l.status.NodeStatuses, entry)
	}
	l.status.NodeStatuses = append(l.status.NodeStatuses, c.keptEntries(g.subject)...)
	sortNodes(l.status.NodeStatuses)
	return l, c.setConditions(g, l, left)
}

// peakOf is the most pods that had to leave a node at one time. It can be told again after a
// restart, since it never falls while the node is held; how many have left could not, since nothing
// is left of them.
func peakOf(nm *maintenancev1alpha1.NodeMaintenance, entry *maintenancev1alpha1.NodeMaintenanceNodeStatus) int32 {
	var before int32
	if status := maintenancev1alpha1.NodeStatusOf(nm, entry.NodeRef); status != nil {
		before = status.PodsPeak
	}
	if !maintenancev1alpha1.IsDraining(nm) {
		return before
	}
	return max(before, entry.PodsPendingEvacuation+entry.PodsEvacuating)
}

// setConditions sets the condition Drained, and counts what the gauges show.
func (c *Controller) setConditions(g *gathered, l *decision, left *remainder) error {
	nm := g.subject.NodeMaintenance
	progress := c.setProgress(g, l, left)
	facts := drainedFacts{
		draining: maintenancev1alpha1.IsDraining(nm), nodes: len(g.subject.nodes), refused: len(g.subject.refused), username: g.subject.username(),
		excluded: g.subject.excluded, stalledSince: progress.stalledSince,
		uncordoned: g.subject.uncordoned(), finished: l.plan.Finished[nm.Name], remainder: left,
	}
	if facts.finished {
		var err error
		if facts.attached, err = c.attachedVolumes(g.subject.nodes); err != nil {
			return err
		}
	}
	verdict := decideDrained(facts)
	c.setCondition(nm, &l.status, maintenancev1alpha1.ConditionDrained, verdict.status, verdict.reason, verdict.message)
	progress.drained = verdict.status == metav1.ConditionTrue
	c.setProgressing(nm, &l.status, progress)
	return nil
}

func sortNodes(nodes []maintenancev1alpha1.NodeMaintenanceNodeStatus) {
	slices.SortFunc(nodes, func(a, b maintenancev1alpha1.NodeMaintenanceNodeStatus) int {
		return strings.Compare(a.NodeRef.Name, b.NodeRef.Name)
	})
}

// drainedFacts is what the condition Drained depends on, time and the live list aside.
type drainedFacts struct {
	draining       bool
	nodes, refused int
	username       string
	excluded       []excludedNode
	stalledSince   *metav1.Time
	uncordoned     []string
	finished       bool
	remainder      *remainder
	// attached does not hold Drained back, since volumes may stay attached until the node is off;
	// the user who switches it off needs to know.
	attached attachedVolumes
}

// verdict is a state of a condition.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

// decideDrained says what Drained is.
func decideDrained(f drainedFacts) verdict {
	r := f.remainder
	no := func(reason, format string, args ...any) verdict {
		return verdict{metav1.ConditionFalse, reason, fmt.Sprintf(format, args...)}
	}
	switch {
	case !f.draining:
		return no(maintenancev1alpha1.ReasonNotRequested, "The maintenance is not in stage Drain")
	case f.nodes+f.refused+len(f.excluded) == 0:
		return no(maintenancev1alpha1.ReasonNoNodes, "The selector matches no node")
	case f.refused > 0:
		return no(maintenancev1alpha1.ReasonNotAuthorized, "User %q may not delete %s, which stay as they are; %s",
			f.username, wording.Count(f.refused, "selected node"), r.progress())
	case len(f.excluded) > 0:
		return no(f.excluded[0].reason, "%s outside the drain, such as %s: %s; %s",
			pluralIs(len(f.excluded), "node"), f.excluded[0].node.Name, f.excluded[0].why, r.progress())
	case len(f.uncordoned) > 0:
		return no(maintenancev1alpha1.ReasonDrainInProgress, "Waiting for %s to be cordoned; %s", wording.Count(len(f.uncordoned), "node"), r.progress())
	case !f.finished && r.isBlocked():
		return no(maintenancev1alpha1.ReasonDrainBlocked, "No pod is able to leave: %s; %s", r.worst(), r.progress())
	case !f.finished && f.stalledSince != nil:
		return no(maintenancev1alpha1.ReasonDrainBlocked, "Nothing has moved since %s; %s", f.stalledSince.UTC().Format(time.RFC3339), r.progress())
	case !f.finished:
		return no(maintenancev1alpha1.ReasonDrainInProgress, "%s", capitalize(r.progress()))
	case len(r.left) > 0:
		return verdict{metav1.ConditionTrue, maintenancev1alpha1.ReasonDrainCompleteWithPodsLeft,
			fmt.Sprintf("All pods have left %s but those left running on purpose: %s", wording.Count(f.nodes, "node"), joinTop(r.left)) + r.staticRemark() + f.attached.remark()}
	default:
		return verdict{metav1.ConditionTrue, maintenancev1alpha1.ReasonDrainComplete, fmt.Sprintf("All pods have left %s", wording.Count(f.nodes, "node")) + f.attached.remark()}
	}
}

// isBlocked reports whether nothing moves: every pod that is asked to leave is blocked.
func (r *remainder) isBlocked() bool {
	stuck := len(r.blocked) + len(r.uncreatable)
	return stuck > 0 && stuck == r.targeted
}

// staticRemark counts the static pods that stay: they stop with the machine.
func (r *remainder) staticRemark() string {
	if r.static == 0 {
		return ""
	}
	return "; " + wording.StaticPodsKept(r.static)
}

func (r *remainder) progress() string {
	text := fmt.Sprintf("%s left, %d of them evacuating, %d blocked", wording.Count(r.covered, "pod"), r.evacuating, len(r.blocked)+len(r.uncreatable))
	if r.refused > 0 {
		text += fmt.Sprintf("; %s cannot be evacuated because of namespaces that are being deleted: %s", wording.Count(r.refused, "pod"), joinTop(r.refusedNamespaces))
	}
	if len(r.nominated) > 0 {
		text += fmt.Sprintf("; %s not bound to a node but nominated for one (status.nominatedNodeName), such as %s", pluralIs(len(r.nominated), "pod"), r.nominated[0])
	}
	return text
}

// worst names the three pods that have been blocked for longest.
func (r *remainder) worst() string {
	blocked := slices.Clone(r.blocked)
	since := func(e *maintenancev1alpha1.Evacuation) *metav1.Condition {
		return meta.FindStatusCondition(e.Status.Conditions, maintenancev1alpha1.ConditionBlocked)
	}
	slices.SortStableFunc(blocked, func(a, b *maintenancev1alpha1.Evacuation) int {
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

func (c *Controller) setCondition(nm *maintenancev1alpha1.NodeMaintenance, status *maintenancev1alpha1.NodeMaintenanceStatus, conditionType string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: conditionType, Status: value, Reason: reason, Message: message,
		ObservedGeneration: nm.Generation, LastTransitionTime: metav1.NewTime(c.clock.Now()),
	})
}
