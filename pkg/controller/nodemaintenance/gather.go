// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodemarks"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/noderights"
)

// member is a maintenance with its nodes.
type member struct {
	*maintenancev1alpha1.NodeMaintenance
	// nodes are the nodes that the waves wait for: the requester may delete them and they can be
	// cordoned, or it is too early to tell. refused are the nodes that the requester may not
	// delete. All are sorted by name.
	nodes, refused []*corev1.Node
	// excluded are the nodes outside the waves because they cannot be cordoned, or the authorizer
	// does not answer for them.
	excluded []excludedNode
	// unknown are those of nodes for which the authorizer has not answered yet. The waves wait for
	// them.
	unknown sets.Set[string]
	// outside are the names of refused and excluded nodes.
	outside sets.Set[string]
}

// excludedNode is a node outside the waves, why, and since when.
type excludedNode struct {
	node *corev1.Node
	// reason is that of the condition Drained.
	reason string
	why    string
	since  time.Time
}

// gathered is all that a sync decides from.
type gathered struct {
	subject *member
	// draining are the maintenances in stage Drain that share nodes with the subject, directly or
	// through others, and the subject itself if it drains.
	draining []*member
	// views are what is on the nodes, by name, for all nodes of subject and draining.
	views map[string]*nodestate.View
	// byName are draining by their names.
	byName map[string]*member
}

func (c *Controller) gather(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) (*gathered, error) {
	places := newPlaces(c)
	subject := c.member(ctx, nm, places)
	g := &gathered{subject: subject, byName: map[string]*member{}}
	var err error
	if maintenancev1alpha1.IsDraining(nm) {
		if g.draining, err = c.component(ctx, subject, places); err != nil {
			return nil, err
		}
	}
	for _, m := range g.draining {
		g.byName[m.Name] = m
	}
	g.views = make(map[string]*nodestate.View, len(subject.nodes)+len(subject.refused))
	for _, m := range append(slices.Clone(g.draining), subject) {
		for _, node := range m.all() {
			if _, done := g.views[node.Name]; !done {
				view, err := c.state.View(node)
				if err != nil {
					return nil, err
				}
				g.views[node.Name] = view
				if !view.Recheck.IsZero() {
					c.queue.AddAfter(nm.Name, view.Recheck.Sub(c.clock.Now()))
				}
			}
		}
	}
	return g, nil
}

// stays reports whether a pod of this server is left on its node.
func (g *gathered) stays(pod *corev1.Pod) bool {
	view := g.views[pod.Spec.NodeName]
	return view != nil && slices.ContainsFunc(view.Pods, func(p nodestate.Pod) bool { return p.UID == pod.UID && p.Kept == drainplan.LeftOwn })
}

// drainingOn returns the maintenance of the given name if it drains the node, or nil.
func (g *gathered) drainingOn(name string, node *corev1.Node) *member {
	if m := g.byName[name]; m != nil && m.mayTouch(node) {
		return m
	}
	return nil
}

// mayTouch reports whether a selected node is one that the requester may delete.
func (m *member) mayTouch(node *corev1.Node) bool {
	return !m.outside.Has(node.Name)
}

// uncordoned returns the nodes that the waves wait for before any pod is asked to leave.
func (m *member) uncordoned() []string {
	var names []string
	for _, node := range m.nodes {
		if !node.Spec.Unschedulable || m.unknown.Has(node.Name) {
			names = append(names, node.Name)
		}
	}
	return names
}

// all returns all selected nodes.
func (m *member) all() []*corev1.Node {
	all := slices.Concat(m.nodes, m.refused)
	for _, excluded := range m.excluded {
		all = append(all, excluded.node)
	}
	return all
}

// component returns the draining maintenances that share nodes with the subject, directly or
// through others, the subject first.
func (c *Controller) component(ctx context.Context, subject *member, places *places) ([]*member, error) {
	component := []*member{subject}
	seen := map[string]bool{subject.Name: true}
	for i := 0; i < len(component); i++ {
		for _, name := range c.selection.Neighbours(component[i].nodes) {
			if seen[name] {
				continue
			}
			seen[name] = true
			other, err := c.get(name)
			if apierrors.IsNotFound(err) || err == nil && !maintenancev1alpha1.IsDraining(other) {
				continue
			}
			if err != nil {
				return nil, err
			}
			component = append(component, c.member(ctx, other, places))
		}
	}
	return component, nil
}

// member sorts the nodes of a maintenance into the nodes that its waves wait for and all other
// nodes. An Idle maintenance touches no node, so member asks no authorizer.
func (c *Controller) member(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, places *places) *member {
	m := &member{NodeMaintenance: nm, unknown: sets.New[string](), outside: sets.New[string]()}
	nodes := c.selection.NodesOf(nm.Name)
	if !maintenancev1alpha1.IsHolding(nm) {
		m.nodes = nodes
		return m
	}
	answers := c.rights.Ask(ctx, nm.Spec.RequestedBy, nodes)
	tooLarge := c.selection.TooLarge(nm)
	exclude := func(node *corev1.Node, reason, why string, since time.Time) {
		m.excluded = append(m.excluded, excludedNode{node: node, reason: reason, why: why, since: since})
		m.outside.Insert(node.Name)
	}
	entered := maintenancev1alpha1.StageEntered(nm, maintenancev1alpha1.NodeMaintenanceStageCordon)
	for _, node := range nodes {
		answer := answers[node.Name]
		// The annotations are read only where they decide: for most nodes of a drain the answer is
		// enough.
		holds := (answer.Err != nil || tooLarge != nil) && (nodemarks.Holds(node, nm))
		if answer.Err == nil && !answer.Allowed {
			m.refused = append(m.refused, node)
			m.outside.Insert(node.Name)
			continue
		}
		if places.lacksOne(ctx, nm, node) {
			exclude(node, maintenancev1alpha1.ReasonTooManyMaintenances, noPlace, entered)
			continue
		}
		if !holds && tooLarge != nil {
			exclude(node, maintenancev1alpha1.ReasonNodeNotCordoned, tooLarge.Error(), entered)
			continue
		}
		if why, since := c.whyExcluded(nm, node, holds, answer); why != "" {
			exclude(node, maintenancev1alpha1.ReasonNodeNotCordoned, why, since)
			continue
		}
		if answer.Err != nil && !holds {
			m.unknown.Insert(node.Name)
		}
		m.nodes = append(m.nodes, node)
	}
	return m
}

// whyExcluded returns why a node is outside the waves: it could not be cordoned for a minute, its
// cordon is undone repeatedly, or the authorizer has not answered for a minute.
func (c *Controller) whyExcluded(nm *maintenancev1alpha1.NodeMaintenance, node *corev1.Node, holds bool, answer noderights.Answer) (string, time.Time) {
	if since, fought := c.state.Cordons.Fought(node); fought {
		c.queue.AddAfter(nm.Name, max(time.Second, nodestate.FightWindow-c.clock.Since(since)))
		return "its cordon is undone repeatedly", since
	}
	if node.Spec.Unschedulable && (holds || answer.Err == nil) {
		return "", time.Time{}
	}
	trouble, wait := c.state.Troubles.Of(node.Name)
	if trouble != nil {
		return trouble.Text, trouble.Since
	}
	if wait > 0 {
		// Again at every sync: an earlier event of the maintenance takes the place of the one that
		// was asked for before.
		c.queue.AddAfter(nm.Name, wait)
	}
	return "", time.Time{}
}

// keptEntries returns the entries of nodes that the maintenance does not select and that it cannot
// forget yet: nodes that are still to be released, and nodes that are gone and may be registered
// again.
func (c *Controller) keptEntries(m *member) []maintenancev1alpha1.NodeMaintenanceNodeStatus {
	selected := sets.New[string]()
	for _, node := range m.all() {
		selected.Insert(node.Name)
	}
	var kept []maintenancev1alpha1.NodeMaintenanceNodeStatus
	for i := range m.Status.NodeStatuses {
		before := &m.Status.NodeStatuses[i]
		name := before.NodeRef.Name
		if selected.Has(name) {
			continue
		}
		entry := maintenancev1alpha1.NodeMaintenanceNodeStatus{NodeRef: before.NodeRef, DrainTargets: before.DrainTargets}
		node, exists, err := c.state.Nodes.Get(name)
		trouble, wait := c.state.Troubles.Of(name)
		switch {
		case err != nil:
			entry.DrainMessage = drainplan.Fit(err.Error(), drainplan.MaxMessageBytes)
		case !exists && maintenancev1alpha1.IsHolding(m.NodeMaintenance) && m.Spec.NewNodes != maintenancev1alpha1.NewNodesPolicyJoin:
			// One that is registered again joins because it is listed here. With the policy Join
			// any node joins, and the list would grow with every node that an autoscaler removes.
			entry.DrainMessage = MessageNodeGone
		case !exists:
			continue
		case !nodemarks.UIDs(node).Has(m.UID) && c.isQuiet(name):
			continue
		default:
			c.enqueueEvacuations(name)
			entry.DrainMessage = maintenancev1alpha1.DrainMessageReleasing
			if trouble != nil {
				entry.DrainMessage = drainplan.Fit(maintenancev1alpha1.DrainMessageNotReleased+trouble.Text, drainplan.MaxMessageBytes)
			}
			if wait > 0 {
				c.queue.AddAfter(m.Name, wait)
			}
		}
		kept = append(kept, entry)
	}
	return kept
}

// MessageNodeGone is the drainMessage of a node whose object does not exist any more. If it is
// registered again under its name it joins.
const MessageNodeGone = "Node is gone"

func (m *member) username() string { return maintenancev1alpha1.RequesterOf(m.NodeMaintenance) }

// world is what the planner is asked about.
func (c *Controller) world(g *gathered) drainplan.World {
	w := drainplan.World{Subject: g.subject.Name}
	added := make(map[string]bool, len(g.views))
	for _, m := range g.draining {
		pm := drainplan.Maintenance{
			Name: m.Name, Created: m.CreationTimestamp.Time, Plan: m.Spec.DrainPlan,
			Nodes: make([]string, 0, len(m.nodes)), Before: make(map[string][]maintenancev1alpha1.DrainPlanEntry, len(m.nodes)),
		}
		pm.Uncordoned = m.uncordoned()
		for _, node := range m.nodes {
			pm.Nodes = append(pm.Nodes, node.Name)
			if targets := holds.Stored(m.NodeMaintenance, node); len(targets) > 0 {
				pm.Before[node.Name] = targets
			}
			if !added[node.Name] {
				added[node.Name] = true
				w.Nodes = append(w.Nodes, g.views[node.Name].Plan)
			}
		}
		w.Maintenances = append(w.Maintenances, pm)
	}
	return w
}

func refOf(node *corev1.Node) maintenancev1alpha1.NodeReference {
	return maintenancev1alpha1.NodeReference{Name: node.Name, UID: node.UID}
}

// maintenances returns all maintenances.
func (c *Controller) maintenances() []*maintenancev1alpha1.NodeMaintenance {
	all, err := c.maintenanceLister.List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("list maintenances from the cache: %w", err))
	}
	return all
}

// noPlace is why a maintenance does not hold a node that as many others hold as may.
var noPlace = fmt.Sprintf("%s: %d other maintenances hold the node", maintenancev1alpha1.ReasonTooManyMaintenances, protocol.MaxHolders)

// places knows which nodes have no place for another maintenance. As the controller of nodes does,
// it has nodemarks.Choose decide among the maintenances that want to hold a node. The annotations
// of the node only tell which of them hold it although their requesters have lost the right to: if
// its kubelet erases them, no other maintenance gets a place. Only a node that more maintenances
// select than may hold it is read, once in a sync.
type places struct {
	c      *Controller
	byNode map[string]nodePlaces
}

type nodePlaces struct {
	chosen sets.Set[types.UID]
	full   bool
}

func newPlaces(c *Controller) *places { return &places{c: c, byNode: map[string]nodePlaces{}} }

// lacksOne reports whether a maintenance in stage Cordon or Drain does not hold a node because
// others have all places.
func (p *places) lacksOne(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, node *corev1.Node) bool {
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
	holders := nodemarks.HoldersOf(node)
	selecting := p.c.holders.Which(node.Name, maintenancev1alpha1.IsHolding)
	chosen := nodemarks.Choose(node.Name, selecting, 0, func(nm *maintenancev1alpha1.NodeMaintenance) bool {
		return holders.Has(nm) || p.mayTake(ctx, nm, node)
	})
	uids := sets.New[types.UID]()
	for _, nm := range chosen {
		uids.Insert(nm.UID)
	}
	taken := len(chosen)
	if slices.ContainsFunc(chosen, func(nm *maintenancev1alpha1.NodeMaintenance) bool { return nodemarks.IsShutdownOf(node.Name, nm) }) {
		// One of them needs none.
		taken--
	}
	return nodePlaces{chosen: uids, full: taken >= protocol.MaxHolders}
}

// mayTake reports whether a maintenance may take a node that it does not hold.
func (p *places) mayTake(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, node *corev1.Node) bool {
	if nm.Status.NewestNodeTimestamp == nil || p.c.selection.TooLarge(nm) != nil {
		return false
	}
	answer := p.c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})[node.Name]
	return answer.Allowed && !answer.Stale
}
