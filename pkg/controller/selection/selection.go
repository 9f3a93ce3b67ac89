// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package selection is an index of which NodeMaintenances select which nodes, shared by the node
// and the nodemaintenance controllers. The index is built from the informers only. One part is lost
// with a restart: since when the labels of a node no longer match. The restarted server waits for
// the whole time Lingering again.
package selection

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/nodeselector"
)

// Lingering is how long a node stays selected after its labels stop matching: a label that flaps
// must not release a node that an operator works on.
const Lingering = 2 * time.Minute

// Selection records which maintenance selects which nodes, so that an event of a node or pod finds
// its maintenances without matching every selector again. Only the handlers of the informers change
// it. Maintenances that have released all their nodes select nothing.
type Selection struct {
	// HasSynced reports whether the index has processed the initial lists of the informers.
	HasSynced cache.InformerSynced

	clock clock.PassiveClock
	// match evaluates the terms of a selector for a node. With many terms and nodes this takes
	// long, so it is called without the lock, except for nodes that change at the same time.
	match func(*nodeselector.Selector, *corev1.Node) nodeselector.Match
	// subscribers are called after changes.
	subscribers []Subscriber

	mu           sync.Mutex
	nodes        map[string]*corev1.Node
	maintenances map[string]*selected
	byNode       map[string]sets.Set[string]
	// invalid has the maintenances whose selector is invalid. Each keeps its previous nodes.
	invalid map[string]error
}

type selected struct {
	uid        types.UID
	generation int64
	newest     *metav1.Time
	holding    bool
	source     *corev1.NodeSelector
	selector   *nodeselector.Selector
	nodes      sets.Set[string]
	// held are the names of nodes that the maintenance holds or held. A node that is registered
	// again under such a name joins the maintenance.
	held sets.Set[string]
	// inherited are the nodes that were in the status when this process started. They also linger
	// if their labels no longer match.
	inherited map[string]types.UID
	// leaving has the nodes whose labels no longer match, with the time at which they stopped
	// matching.
	leaving map[string]time.Time
	// ignored are the nodes that match but are too new.
	ignored sets.Set[string]
	// sorted has the names of nodes in order. It is nil if they have to be sorted again.
	sorted []string
}

// SetMaintenance updates the index for a maintenance. The handler of its events calls it.
func (s *Selection) SetMaintenance(nm *v1alpha1.NodeMaintenance) error {
	if v1alpha1.IsDone(nm) {
		s.removeMaintenance(nm.Name)
		return nil
	}
	nodes, known := s.nodesUnless(nm)
	if known {
		return nil
	}
	selector, err := nodeselector.New(nm.Spec.NodeSelector, nm.Status.NewestNodeTimestamp, nm.Spec.NewNodes)
	if err != nil {
		err = fmt.Errorf("node selector: %w", err)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.invalid[nm.Name] = err
		return err
	}
	matched := make(map[string]matchedNode, len(nodes))
	for _, node := range nodes {
		matched[node.Name] = matchedNode{node, s.match(selector, node)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	entry := s.newSelected(nm, selector)
	s.remove(nm.Name)
	s.maintenances[nm.Name] = entry
	for _, node := range s.nodes {
		m, ok := matched[node.Name]
		if !ok || !m.isSame(node) {
			m.match = s.match(entry.selector, node)
		}
		s.set(nm.Name, entry, node, m.match)
	}
	return nil
}

// nodesUnless returns all nodes, or none if the index already has this state of the maintenance.
func (s *Selection) nodesUnless(nm *v1alpha1.NodeMaintenance) (nodes []*corev1.Node, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.maintenances[nm.Name].isOf(nm) {
		return nil, true
	}
	return slices.Collect(maps.Values(s.nodes)), false
}

type matchedNode struct {
	node  *corev1.Node
	match nodeselector.Match
}

// isSame reports whether the result is also valid for a newer state of the node.
func (m *matchedNode) isSame(node *corev1.Node) bool {
	return m.node == node || m.node.UID == node.UID && maps.Equal(m.node.Labels, node.Labels)
}

// isOf reports whether an entry was built from this state of a maintenance.
func (e *selected) isOf(nm *v1alpha1.NodeMaintenance) bool {
	return e != nil && e.uid == nm.UID && e.generation == nm.Generation &&
		e.newest.Equal(nm.Status.NewestNodeTimestamp)
}

// newSelected returns an entry for a maintenance that does not select a node yet.
func (s *Selection) newSelected(nm *v1alpha1.NodeMaintenance, selector *nodeselector.Selector) *selected {
	entry := &selected{
		uid:        nm.UID,
		generation: nm.Generation,
		newest:     nm.Status.NewestNodeTimestamp,
		holding:    v1alpha1.IsHolding(nm),
		source:     nm.Spec.NodeSelector,
		nodes:      sets.New[string](),
		held:       sets.New[string](),
		inherited:  map[string]types.UID{},
		leaving:    map[string]time.Time{},
		ignored:    sets.New[string](),
	}
	for i := range nm.Status.NodeStatuses {
		status := &nm.Status.NodeStatuses[i]
		entry.held.Insert(status.NodeRef.Name)
		if nm.Status.ObservedGeneration == nm.Generation && !v1alpha1.IsBeingReleased(status) {
			entry.inherited[status.NodeRef.Name] = status.NodeRef.UID
		}
	}
	if old := s.maintenances[nm.Name]; old != nil && old.uid == nm.UID {
		entry.inherit(old, s.nodes, equality.Semantic.DeepEqual(old.source, nm.Spec.NodeSelector))
	}
	entry.selector = selector.Holding(entry.held.Has)
	return entry
}

// inherit copies the selected nodes of the previous entry of a maintenance. While a maintenance has
// no newestNodeTimestamp, it selects all matching nodes. When the timestamp is set, nodes that were
// created later are too new for the maintenance, unless its status has them.
func (e *selected) inherit(old *selected, nodes map[string]*corev1.Node, sameSelector bool) {
	listed, drawn := e.held.Clone(), old.newest == nil && e.newest != nil
	isTooNew := func(name string) bool {
		node := nodes[name]
		return drawn && node != nil && node.CreationTimestamp.After(e.newest.Time) && !listed.Has(name)
	}
	for name := range old.held {
		if !isTooNew(name) {
			e.held.Insert(name)
		}
	}
	if !sameSelector {
		return
	}
	// Nodes whose labels no longer match linger, since the user has not changed the selector to
	// release them.
	maps.Copy(e.leaving, old.leaving)
	for name := range old.nodes {
		if !isTooNew(name) {
			e.inherited[name] = nodes[name].UID
		}
	}
}

// Shows reports whether the index has this state of a maintenance. Until the event of that state
// arrives, the index has the selected nodes of an earlier state. The error is set if the node
// selector is invalid.
func (s *Selection) Shows(nm *v1alpha1.NodeMaintenance) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maintenances[nm.Name].isOf(nm), s.invalid[nm.Name]
}

func (s *Selection) removeMaintenance(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(name)
}

func (s *Selection) remove(name string) {
	delete(s.invalid, name)
	entry := s.maintenances[name]
	if entry == nil {
		return
	}
	for node := range entry.nodes {
		s.byNode[node].Delete(name)
	}
	delete(s.maintenances, name)
}

// SetNode updates the index for a node. The handler of its events calls it. It returns the
// maintenances that selected or ignored the node before or do so now. leaving are the maintenances
// for which the node begins to linger.
func (s *Selection) SetNode(node *corev1.Node) (touched, leaving []string) {
	matched := map[*nodeselector.Selector]nodeselector.Match{}
	for _, selector := range s.selectors() {
		matched[selector] = s.match(selector, node)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.byNode[node.Name].Clone()
	if before == nil {
		before = sets.New[string]()
	}
	s.nodes[node.Name] = node
	for name, entry := range s.maintenances {
		match, known := matched[entry.selector]
		if !known {
			match = s.match(entry.selector, node)
		}
		wasIgnored := entry.ignored.Has(node.Name)
		if s.set(name, entry, node, match) {
			leaving = append(leaving, name)
		}
		if entry.ignored.Has(node.Name) != wasIgnored {
			// The status of the maintenance names the ignored nodes.
			before.Insert(name)
		}
	}
	slices.Sort(leaving)
	return sets.List(before.Union(s.byNode[node.Name])), leaving
}

func (s *Selection) selectors() []*nodeselector.Selector {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*nodeselector.Selector, 0, len(s.maintenances))
	for _, entry := range s.maintenances {
		all = append(all, entry.selector)
	}
	return all
}

// refreshNode stores a newer state of a node with the same UID and labels.
func (s *Selection) refreshNode(node *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[node.Name] != nil {
		s.nodes[node.Name] = node
	}
}

// removeNode removes a node from the index and returns the maintenances that selected or ignored
// it.
func (s *Selection) removeNode(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	touched := s.byNode[name].Clone()
	if touched == nil {
		touched = sets.New[string]()
	}
	for maintenance := range s.byNode[name] {
		entry := s.maintenances[maintenance]
		entry.nodes.Delete(name)
		entry.sorted = nil
	}
	for maintenance, entry := range s.maintenances {
		if entry.ignored.Has(name) {
			touched.Insert(maintenance)
		}
		entry.ignored.Delete(name)
		delete(entry.leaving, name)
		delete(entry.inherited, name)
	}
	delete(s.byNode, name)
	delete(s.nodes, name)
	return sets.List(touched)
}

// set updates an entry after its selector was matched with a node, and reports whether the node
// begins to linger.
func (s *Selection) set(name string, entry *selected, node *corev1.Node, match nodeselector.Match) (lingers bool) {
	selects, ignores := entry.selector.Judge(node, match)
	if ignores {
		entry.ignored.Insert(node.Name)
	} else {
		entry.ignored.Delete(node.Name)
	}
	had := entry.nodes.Has(node.Name) || entry.inherited[node.Name] == node.UID && node.UID != ""
	switch {
	case selects:
		delete(entry.leaving, node.Name)
		entry.held.Insert(node.Name)
		s.add(name, entry, node.Name)
	case entry.holding && had:
		since, left := entry.leaving[node.Name]
		if !left {
			since, lingers = s.clock.Now(), true
			entry.leaving[node.Name] = since
		}
		if s.clock.Since(since) < Lingering {
			s.add(name, entry, node.Name)
		} else {
			s.drop(name, entry, node.Name)
		}
	default:
		s.drop(name, entry, node.Name)
	}
	return lingers
}

func (s *Selection) add(name string, entry *selected, node string) {
	if entry.nodes.Has(node) {
		return
	}
	entry.sorted = nil
	entry.nodes.Insert(node)
	if s.byNode[node] == nil {
		s.byNode[node] = sets.New[string]()
	}
	s.byNode[node].Insert(name)
}

func (s *Selection) drop(name string, entry *selected, node string) {
	delete(entry.inherited, node)
	if entry.nodes.Has(node) {
		entry.sorted = nil
		entry.nodes.Delete(node)
		s.byNode[node].Delete(name)
	}
}

// expire removes the nodes of a maintenance that have lingered for long enough. It returns them,
// and the time until the next one expires, 0 if no node lingers.
func (s *Selection) expire(name string) (gone []string, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry := s.maintenances[name]
	if entry == nil {
		return nil, 0
	}
	for node, since := range entry.leaving {
		if wait := Lingering - s.clock.Since(since); wait > 0 {
			if next == 0 || wait < next {
				next = wait
			}
			continue
		}
		if entry.nodes.Has(node) {
			s.drop(name, entry, node)
			gone = append(gone, node)
		}
	}
	slices.Sort(gone)
	return gone, next
}

// IgnoredBy returns the nodes that match a maintenance but are too new for it, sorted.
func (s *Selection) IgnoredBy(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry := s.maintenances[name]; entry != nil {
		return sets.List(entry.ignored)
	}
	return nil
}

// Count returns how many nodes a maintenance selects.
func (s *Selection) Count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry := s.maintenances[name]; entry != nil {
		return len(entry.nodes)
	}
	return 0
}

// NodesOf returns the nodes that a maintenance selects, sorted by name.
func (s *Selection) NodesOf(name string) []*corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry := s.maintenances[name]
	if entry == nil {
		return nil
	}
	if entry.sorted == nil {
		entry.sorted = sets.List(entry.nodes)
	}
	nodes := make([]*corev1.Node, len(entry.sorted))
	for i, node := range entry.sorted {
		nodes[i] = s.nodes[node]
	}
	return nodes
}

// Neighbours returns the names of the maintenances that select one of the nodes, sorted.
func (s *Selection) Neighbours(nodes []*corev1.Node) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := sets.New[string]()
	for _, node := range nodes {
		for name := range s.byNode[node.Name] {
			names.Insert(name)
		}
	}
	return sets.List(names)
}

// CountOn returns how many maintenances select a node.
func (s *Selection) CountOn(node string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byNode[node])
}

// MaintenancesOn returns the names of the maintenances that select a node, sorted.
func (s *Selection) MaintenancesOn(node string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sets.List(s.byNode[node])
}
