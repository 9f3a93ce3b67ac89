// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/rights"
)

type facts struct {
	now     time.Time
	subject *member
	// draining are the maintenances in stage Drain that share nodes with the subject, directly or
	// indirectly, and the subject itself if it drains. If the subject is paused, it is the only
	// one.
	draining []*member
	// views has the pods on the nodes of the subject and the members of draining, by node name.
	views map[string]*nodestate.View
	// former are the nodes in the subject's status that the subject no longer selects.
	former []formerNode
	// refusals has, by UID, the reason why pods on the subject's nodes have no Evacuation of ours.
	refusals map[types.UID]refusal
	// troubles has the failures of a minute or longer that concern a node of the subject, by node
	// name. problems has those failures that concern the subject itself.
	troubles map[string]loop.Failure
	problems []loop.Failure
	// ignored are the nodes that match the selector but are too new.
	ignored []string
	// attached are the volumes that are attached to the nodes inside the waves.
	attached attachedVolumes
	// unconfirmed are the nodes inside the waves that the node controller has not confirmed as
	// drained. unsettled is how long the scheduler may still bind pods to nodes inside the waves.
	unconfirmed []string
	unsettled   time.Duration
	// live is the result of the live list that a decision has requested: the name of a pod that is
	// nominated for a node, or "". It is nil before the list.
	live *string
	// tasks are the NodeTasks of the subject, by node. lost are the nodes in its status that do not
	// exist, if the subject ends.
	tasks map[string]*v1alpha1.NodeTask
	lost  sets.Set[string]
	// superseded is why the subject, the maintenance of a shutdown, is over although the node agent
	// has not completed it; "" if it is not.
	superseded string
	// held are the nodes that the subject has not released, if the subject ends.
	held sets.Set[string]
	// wake is the time after which one of these facts changes without an event, 0 if none does.
	wake time.Duration

	stallTimeout, longGrace time.Duration
}

type member struct {
	*v1alpha1.NodeMaintenance
	// nodes are all nodes that the maintenance selects, sorted by name.
	nodes []memberNode
	// inside are the nodes that the waves of the maintenance wait for, in the same order. The
	// requester may maintain these nodes and they can be cordoned, or this is not known yet, and no
	// worker has them.
	inside []*corev1.Node
}

type memberNode struct {
	*corev1.Node
	// outside is the reason why the waves do not wait for the node, nil if they do.
	outside *exclusion
	// hands are the worker that has the node, if the maintenance does not wait for it. The waves
	// ignore such a node, since it counts as drained.
	hands holds.Hands
	// unanswered is set while the access review for the node is pending. The waves wait for its
	// result, unless the node is outside.
	unanswered bool
	// pool is the pool of the node if the right of the requester comes from it.
	pool string
}

// exclusion is the reason why a node is outside the waves, which means that they do not wait for
// it, and the time at which this began.
type exclusion struct {
	reason v1alpha1.NodeStatusReason
	why    string
	since  time.Time
}

// drained returns the reason of the condition Drained of a maintenance that has the excluded node.
func (e *exclusion) drained() string {
	switch e.reason {
	case v1alpha1.NodeStatusNotAuthorized:
		return v1alpha1.ReasonNotAuthorized
	case v1alpha1.NodeStatusTooManyMaintenances:
		return v1alpha1.ReasonTooManyMaintenances
	case v1alpha1.NodeStatusNodeTaskInProgress:
		return v1alpha1.ReasonNodeTaskInProgress
	default:
		return v1alpha1.ReasonNodeNotCordoned
	}
}

// formerNode is a node in the status of a maintenance that no longer selects the node.
type formerNode struct {
	*v1alpha1.NodeMaintenanceNodeStatus
	// gone is set if the node does not exist, reinstalled if a worker that has the node has
	// registered it again, without the labels by which the maintenance selects it. released is set
	// if the maintenance has released it.
	gone, reinstalled, released bool
}

// refusal is the reason why a pod has no Evacuation of ours: its namespace is terminating, or two
// requests have failed.
type refusal struct {
	terminating bool
	why         string
}

// sooner returns the shorter of two wait times. 0 means forever.
func sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// gather reads all inputs of the decision about a maintenance.
func (c *Controller) gather(ctx context.Context, nm *v1alpha1.NodeMaintenance) (*facts, error) {
	f := &facts{
		now: c.clock.Now(), subject: &member{NodeMaintenance: nm}, troubles: map[string]loop.Failure{}, refusals: map[types.UID]refusal{},
		stallTimeout: c.stallTimeout, longGrace: c.longGrace, tasks: c.state.TasksOf(nm.UID),
	}
	if v1alpha1.IsEnding(nm) {
		f.held, f.lost = c.heldNodes(nm), c.lostNodes(nm)
		for name := range f.held {
			c.gatherTrouble(f, name)
		}
		return f, nil
	}
	if v1alpha1.IsHolding(nm) {
		if f.superseded, f.wake = c.whySuperseded(nm); f.superseded != "" {
			return f, nil
		}
	}
	places := newPlaces(c)
	f.subject = c.member(ctx, f, nm, places)
	if v1alpha1.IsDraining(nm) {
		c.gatherDrain(ctx, f, places)
	}
	if err := c.gatherNodes(f); err != nil {
		return nil, err
	}
	c.gatherFormer(f)
	var next time.Duration
	f.problems, next = c.problems.Visible(nm.Name)
	f.wake, f.ignored = sooner(f.wake, next), c.selection.IgnoredBy(nm.Name)
	return f, nil
}

// gatherDrain reads the inputs that only stage Drain needs.
func (c *Controller) gatherDrain(ctx context.Context, f *facts, places *places) {
	if f.draining = []*member{f.subject}; !v1alpha1.IsPaused(f.subject.NodeMaintenance) {
		f.draining = c.component(ctx, f, places)
	}
	f.attached = c.attachedVolumes(f.subject.inside)
	f.unsettled = c.state.Cordons.Unsettled(f.subject.inside...)
	was := isDrained(f.subject.NodeMaintenance)
	for _, node := range f.subject.inside {
		isShown := was && v1alpha1.NodeStatusOf(f.subject.NodeMaintenance, refOf(node)) != nil
		if !c.state.Cordons.IsDrained(node, f.subject.UID, isShown) {
			f.unconfirmed = append(f.unconfirmed, node.Name)
		}
	}
}

func (c *Controller) gatherNodes(f *facts) error {
	f.views = make(map[string]*nodestate.View, len(f.subject.nodes))
	for _, m := range append(slices.Clone(f.draining), f.subject) {
		for _, node := range m.nodes {
			if _, done := f.views[node.Name]; done {
				continue
			}
			view, err := c.state.View(node.Node)
			if err != nil {
				return err
			}
			f.views[node.Name] = view
			if !view.Recheck.IsZero() {
				f.wake = sooner(f.wake, max(view.Recheck.Sub(f.now), time.Nanosecond))
			}
		}
	}
	for _, node := range f.subject.nodes {
		c.gatherTrouble(f, node.Name)
		for _, request := range c.state.Requests.On(node.Name) {
			refused := refusal{terminating: request.Terminating}
			if request.Failures >= 2 {
				refused.why = request.Failure
			}
			f.refusals[request.Pod] = refused
		}
	}
	return nil
}

// gatherTrouble reads the failures of a node. It sets wake in every sync, because an earlier event
// of the maintenance replaces the requeue of the previous sync.
func (c *Controller) gatherTrouble(f *facts, node string) {
	trouble, next := c.state.Troubles.Of(node)
	if trouble != nil {
		f.troubles[node] = *trouble
	}
	f.wake = sooner(f.wake, next)
}

// gatherFormer reads the state of the nodes that the maintenance no longer selects.
func (c *Controller) gatherFormer(f *facts) {
	selected := sets.New[string]()
	for _, node := range f.subject.nodes {
		selected.Insert(node.Name)
	}
	for i := range f.subject.Status.NodeStatuses {
		former := formerNode{NodeMaintenanceNodeStatus: &f.subject.Status.NodeStatuses[i]}
		name := former.NodeRef.Name
		if selected.Has(name) {
			continue
		}
		node, exists := c.state.Nodes.Get(name)
		former.gone = !exists
		former.reinstalled = exists && node.UID != former.NodeRef.UID && f.tasks[name] != nil && protocol.IsInHands(f.tasks[name].Status.State)
		former.released = exists && !marks.UIDs(node).Has(f.subject.UID) && c.isQuiet(name)
		c.gatherTrouble(f, name)
		f.former = append(f.former, former)
	}
}

// drainers returns, for each of the given nodes, the maintenances that drain it.
func (f *facts) drainers(nodes sets.Set[string]) map[string][]*member {
	drainers := make(map[string][]*member, len(nodes))
	for _, m := range f.draining {
		for _, node := range m.inside {
			if nodes.Has(node.Name) {
				drainers[node.Name] = append(drainers[node.Name], m)
			}
		}
	}
	return drainers
}

// isInside reports whether the waves of the maintenance wait for the node.
func (n *memberNode) isInside() bool { return n.outside == nil && !n.hands.Any() }

// isUncordoned reports whether the waves wait for the cordon of a node before the first pod is
// asked to leave.
func (n *memberNode) isUncordoned() bool {
	return n.isInside() && (!n.Spec.Unschedulable || n.unanswered)
}

// uncordoned returns the nodes for whose cordon the waves wait before the first pod is asked to
// leave.
func (m *member) uncordoned() []string {
	var names []string
	for i := range m.nodes {
		if node := &m.nodes[i]; node.isUncordoned() {
			names = append(names, node.Name)
		}
	}
	return names
}

// component returns the draining maintenances that share nodes with the subject, directly or
// indirectly. The subject is the first. A paused maintenance is not among the others, since nothing
// would wait for its pods to leave before the resume.
func (c *Controller) component(ctx context.Context, f *facts, places *places) []*member {
	component := []*member{f.subject}
	seen := map[string]bool{f.subject.Name: true}
	for i := 0; i < len(component); i++ {
		for _, name := range c.selection.Neighbours(component[i].inside) {
			if seen[name] {
				continue
			}
			seen[name] = true
			other, exists := c.latest.Get(name)
			if !exists || !v1alpha1.IsDraining(other) || v1alpha1.IsPaused(other) {
				continue
			}
			component = append(component, c.member(ctx, f, other, places))
		}
	}
	return component
}

// member determines for which nodes the waves of a maintenance wait. An Idle maintenance changes no
// node, so member makes no access reviews for it.
func (c *Controller) member(ctx context.Context, f *facts, nm *v1alpha1.NodeMaintenance, places *places) *member {
	selected := c.selection.NodesOf(nm.Name)
	m := &member{NodeMaintenance: nm, nodes: make([]memberNode, len(selected)), inside: selected}
	for i, node := range selected {
		m.nodes[i].Node = node
	}
	if !v1alpha1.IsHolding(nm) {
		return m
	}
	answers := c.rights.Ask(ctx, nm.Spec.RequestedBy, selected)
	tooLarge, anyTasks := c.selection.TooLarge(nm), c.state.HasTasks()
	m.inside = make([]*corev1.Node, 0, len(selected))
	for i := range m.nodes {
		node, answer := &m.nodes[i], answers[m.nodes[i].Name]
		// Parse the annotations only if necessary: for most nodes of a drain the access review is
		// sufficient.
		holds := (answer.Err != nil || tooLarge != nil) && marks.Holds(node.Node, nm)
		node.outside = c.whyOutside(ctx, f, nm, node.Node, outsideFacts{answer, holds, tooLarge, places})
		if node.outside != nil {
			node.unanswered = answer.Err != nil
			continue
		}
		node.pool = answer.Pool
		node.unanswered = answer.Err != nil && !holds
		if anyTasks {
			c.findHands(node, nm)
		}
		if node.isInside() {
			m.inside = append(m.inside, node.Node)
		}
	}
	return m
}

// findHands sets which worker has a node. A maintenance that waits for the worker goes on without
// the node.
func (c *Controller) findHands(node *memberNode, nm *v1alpha1.NodeMaintenance) {
	switch hands := c.state.HandsOn(node.Node); {
	case !hands.Stops(nm, node.Name):
	case hands.Passes(nm, node.Name):
		node.hands = hands
	default:
		node.outside = &exclusion{reason: v1alpha1.NodeStatusNodeTaskInProgress, why: describeHands(hands)}
	}
}

type outsideFacts struct {
	answer   rights.Answer
	holds    bool
	tooLarge error
	places   *places
}

// whyOutside returns the reason why a node is outside the waves of a maintenance that is not Idle:
// the requester may not maintain it, or may not as far as is known and its pool has changed; too
// many other maintenances hold it, the status has no room for it, it could not be cordoned for a
// minute, another client keeps removing its cordon, or the authorizer has not responded for a
// minute.
func (c *Controller) whyOutside(ctx context.Context, f *facts, nm *v1alpha1.NodeMaintenance, node *corev1.Node, o outsideFacts) *exclusion {
	entered := v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageCordon)
	switch {
	case o.answer.Err == nil && !o.answer.Allowed:
		message := drainplan.NotAuthorizedMessage(protocol.UserName(v1alpha1.RequesterOf(nm)))
		return &exclusion{reason: v1alpha1.NodeStatusNotAuthorized, why: strings.TrimPrefix(message, drainplan.NotDrained)}
	case !o.answer.Allowed && c.hasLeftPool(nm, node):
		return &exclusion{reason: v1alpha1.NodeStatusNotAuthorized, why: fmt.Sprintf(
			"its pool has changed, and it is not known whether user %q may maintain it.", protocol.UserName(v1alpha1.RequesterOf(nm)))}
	case o.places.lacksOne(ctx, nm, node):
		return &exclusion{v1alpha1.NodeStatusTooManyMaintenances, noPlace, entered}
	case !o.holds && o.tooLarge != nil:
		return &exclusion{v1alpha1.NodeStatusNotCordoned, o.tooLarge.Error(), entered}
	}
	if since, fought := c.state.Cordons.Fought(node); fought {
		f.wake = sooner(f.wake, max(time.Second, nodestate.FightWindow-f.now.Sub(since)))
		return &exclusion{v1alpha1.NodeStatusNotCordoned, wording.CordonFought, since}
	}
	if node.Spec.Unschedulable && (o.holds || o.answer.Err == nil) {
		return nil
	}
	trouble, next := c.state.Troubles.Of(node.Name)
	if f.wake = sooner(f.wake, next); trouble == nil {
		return nil
	}
	return &exclusion{v1alpha1.NodeStatusNotCordoned, trouble.Text, trouble.Since}
}

// hasLeftPool reports whether a node is no longer in the pool through which a maintenance has taken
// it. Then a missing answer about the present pool must not keep the node in the waves: pods would
// leave a node that no right has ever covered.
func (c *Controller) hasLeftPool(nm *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	pool := v1alpha1.PoolOf(nm, v1alpha1.NodeStatusOf(nm, refOf(node)))
	return pool != "" && pool != c.rights.PoolOf(node)
}

func (m *member) username() string {
	return protocol.UserName(v1alpha1.RequesterOf(m.NodeMaintenance))
}

// nodeRules returns the rules of the maintenances that drain the nodes. It has no entry for a node
// whose pods all leave, which is the usual case. Maintenances from whose waves a node is excluded
// decide about its pods only if no other one drains it. Before stage Drain, the subject alone
// decides how its pods are counted.
func (f *facts) nodeRules() (map[string]drainplan.NodeRules, error) {
	draining := f.draining
	if len(draining) == 0 {
		draining = []*member{f.subject}
	}
	rules, found := make([]*drainplan.Rules, len(draining)), false
	for i, m := range draining {
		var err error
		if rules[i], err = holds.RulesOf(m.NodeMaintenance); err != nil {
			return nil, err
		}
		found = found || rules[i] != nil
	}
	if !found {
		return nil, nil
	}
	inside, outside := map[string]drainplan.NodeRules{}, map[string]drainplan.NodeRules{}
	for i, m := range draining {
		for _, node := range m.inside {
			inside[node.Name] = append(inside[node.Name], rules[i])
		}
		for _, node := range m.nodes {
			if node.outside != nil {
				outside[node.Name] = append(outside[node.Name], rules[i])
			}
		}
	}
	maps.Copy(outside, inside)
	maps.DeleteFunc(outside, func(_ string, of drainplan.NodeRules) bool { return slices.Contains(of, nil) })
	return outside, nil
}

// world returns the input of the planner, without the pods that the rules of their nodes skip.
func (f *facts) world(rules map[string]drainplan.NodeRules) drainplan.World {
	planned := func(node string) *drainplan.Node { return rules[node].Filter(f.views[node].Plan, f.now) }
	w := drainplan.World{Subject: f.subject.Name}
	added := make(map[string]bool, len(f.views))
	for _, m := range f.draining {
		pm := drainplan.Maintenance{
			Name: m.Name, Created: m.CreationTimestamp.Time, Plan: m.Spec.DrainPlan,
			Nodes: make([]string, 0, len(m.inside)), Before: make(map[string][]v1alpha1.DrainPlanEntry, len(m.inside)),
		}
		pm.Uncordoned = m.uncordoned()
		for _, node := range m.nodes {
			if node.outside == nil || m.Spec.OnExcludedNode != v1alpha1.ExcludedNodeWait {
				continue
			}
			pm.Excluded = append(pm.Excluded, node.Name)
			if !added[node.Name] {
				added[node.Name] = true
				w.Nodes = append(w.Nodes, planned(node.Name))
			}
		}
		for _, node := range m.inside {
			pm.Nodes = append(pm.Nodes, node.Name)
			if targets := holds.Stored(m.NodeMaintenance, node); len(targets) > 0 {
				pm.Before[node.Name] = targets
			}
			if !added[node.Name] {
				added[node.Name] = true
				w.Nodes = append(w.Nodes, planned(node.Name))
			}
		}
		w.Maintenances = append(w.Maintenances, pm)
	}
	return w
}

func refOf(node *corev1.Node) v1alpha1.NodeReference {
	return v1alpha1.NodeReference{Name: node.Name, UID: node.UID}
}

func (c *Controller) maintenances() []*v1alpha1.NodeMaintenance {
	return loop.All(c.maintenanceLister.List)
}

// noPlace is the message about a node that is already held by the maximum number of other
// maintenances.
var noPlace = fmt.Sprintf("%s: %d other maintenances hold the node", v1alpha1.ReasonTooManyMaintenances, protocol.MaxHolders)

// places determines which maintenances may hold a node that too many maintenances select. Like the
// node controller, it uses marks.Choose. A maintenance that the annotations of the node name keeps
// its place even if its requester may no longer maintain the node. So no other maintenance gets a
// place if the kubelet erases the annotations. places reads each node only once per sync.
type places struct {
	c      *Controller
	byNode map[string]nodePlaces
}

type nodePlaces struct {
	chosen sets.Set[types.UID]
	full   bool
}

func newPlaces(c *Controller) *places { return &places{c: c, byNode: map[string]nodePlaces{}} }

// lacksOne reports whether a maintenance in stage Cordon or Drain cannot hold a node because other
// maintenances have all places.
func (p *places) lacksOne(ctx context.Context, nm *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	if p.c.selection.CountOn(node.Name) <= protocol.MaxHolders {
		return false
	}
	of, known := p.byNode[node.Name]
	if !known {
		of = p.of(ctx, node)
		p.byNode[node.Name] = of
	}
	return of.full && !of.chosen.Has(nm.UID)
}

func (p *places) of(ctx context.Context, node *corev1.Node) nodePlaces {
	holders := marks.HoldersOf(node)
	selecting := p.c.holders.Which(node.Name, v1alpha1.IsHolding)
	chosen := marks.Choose(node.Name, selecting, 0, func(nm *v1alpha1.NodeMaintenance) bool {
		return holders.Has(nm) || p.mayTake(ctx, nm, node)
	})
	uids := sets.New[types.UID]()
	for _, nm := range chosen {
		uids.Insert(nm.UID)
	}
	taken := len(chosen)
	if slices.ContainsFunc(chosen, func(nm *v1alpha1.NodeMaintenance) bool { return marks.IsShutdownOf(node.Name, nm) }) {
		// The maintenance of the node's own shutdown needs no place.
		taken--
	}
	return nodePlaces{chosen: uids, full: taken >= protocol.MaxHolders}
}

// mayTake reports whether a maintenance may begin to hold a node.
func (p *places) mayTake(ctx context.Context, nm *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	if p.c.selection.TooLarge(nm) != nil {
		return false
	}
	answer := p.c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})[node.Name]
	return answer.Allowed && !answer.Stale
}
