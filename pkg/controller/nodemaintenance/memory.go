/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// memory is what the syncs of one maintenance have worked out and need not work out again. It
// spares work and decides nothing: a sync that starts without it comes to the same. Only one worker
// at a time has it, the one that has the maintenance.
type memory struct {
	uid     types.UID
	planner *drainplan.Planner
	// plan is the plan that covered was compiled from.
	plan    []maintenancev1alpha1.DrainPlanEntry
	covered drainplan.Targets
	// counts are by node name; next are those of the sync under way.
	counts, next map[string]*nodeCount
}

// memories holds the memory of each maintenance.
type memories struct {
	mu     sync.Mutex
	byName map[string]*memory
}

func newMemories() *memories {
	return &memories{byName: map[string]*memory{}}
}

func (m *memories) of(nm *maintenancev1alpha1.NodeMaintenance) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.byName[nm.Name]
	if one == nil || one.uid != nm.UID {
		one = &memory{uid: nm.UID, planner: drainplan.NewPlanner()}
		m.byName[nm.Name] = one
	}
	return one
}

func (m *memories) remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byName, name)
}

// plannedFor returns all entries of the plan of a maintenance, ready for use.
func (m *memory) plannedFor(nm *maintenancev1alpha1.NodeMaintenance) (drainplan.Targets, error) {
	if m.plan != nil && sameEntries(m.plan, nm.Spec.DrainPlan) {
		return m.covered, nil
	}
	covered, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
	if err != nil {
		return drainplan.Targets{}, err
	}
	m.plan, m.covered, m.counts, m.next = nm.Spec.DrainPlan, covered, nil, nil
	return covered, nil
}

// begin starts a sync that counts the pods of so many nodes.
func (m *memory) begin(nodes int) {
	m.next = make(map[string]*nodeCount, nodes)
}

// count returns the count of a node, from counting if what it depends on has changed.
func (m *memory) count(node string, view *nodeView, targets drainplan.Targets, counting func() *nodeCount) *nodeCount {
	n := m.counts[node]
	if n == nil || n.view != view || !n.targets.Same(targets) {
		n = counting()
	}
	m.next[node] = n
	return n
}

// end forgets the nodes that the sync has not counted.
func (m *memory) end() {
	m.counts, m.next = m.next, nil
}

// storedTargets finds what the status of a maintenance says of its nodes and what must never be
// less: their targets and their peaks. It remembers them as long as the maintenance is the same
// object.
type storedTargets struct {
	mu     sync.Mutex
	byName map[string]targetsOf
}

type targetsOf struct {
	of     *maintenancev1alpha1.NodeMaintenance
	byNode map[maintenancev1alpha1.NodeReference]storedNode
}

// storedNode is what the status says of a node.
type storedNode struct {
	targets []maintenancev1alpha1.DrainPlanEntry
	peak    int32
}

func newStoredTargets() *storedTargets {
	return &storedTargets{byName: map[string]targetsOf{}}
}

// nodes returns what the status of a maintenance says, by name and UID: a node that was created
// again starts anew. The answer must not be changed.
func (s *storedTargets) nodes(nm *maintenancev1alpha1.NodeMaintenance) map[maintenancev1alpha1.NodeReference]storedNode {
	s.mu.Lock()
	known := s.byName[nm.Name]
	s.mu.Unlock()
	if known.of == nm {
		return known.byNode
	}
	byNode := make(map[maintenancev1alpha1.NodeReference]storedNode, len(nm.Status.NodeStatuses))
	for i := range nm.Status.NodeStatuses {
		if entry := &nm.Status.NodeStatuses[i]; len(entry.DrainTargets) > 0 || entry.PodsPeak > 0 {
			byNode[entry.NodeRef] = storedNode{targets: entry.DrainTargets, peak: entry.PodsPeak}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[nm.Name] = targetsOf{of: nm, byNode: byNode}
	return byNode
}

func (s *storedTargets) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, name)
}

// sameEntries says whether two lists of targets, or two plans, say the same.
func sameEntries(a, b []maintenancev1alpha1.DrainPlanEntry) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	return slices.EqualFunc(a, b, func(x, y maintenancev1alpha1.DrainPlanEntry) bool {
		return x.PodType == y.PodType && x.PodPriority == y.PodPriority &&
			(x.PodSelector == y.PodSelector || equality.Semantic.DeepEqual(x.PodSelector, y.PodSelector))
	})
}

// sameNodeStatus says whether two states of a node say the same. A field that is added to the type
// has to be added here; a test sees to it.
func sameNodeStatus(a, b *maintenancev1alpha1.NodeMaintenanceNodeStatus) bool {
	return a.NodeRef == b.NodeRef && a.DrainMessage == b.DrainMessage && a.PodsPendingEvacuation == b.PodsPendingEvacuation &&
		a.PodsEvacuating == b.PodsEvacuating && a.PodsBlocked == b.PodsBlocked && a.PodsKept == b.PodsKept && a.PodsPeak == b.PodsPeak &&
		sameEntries(a.DrainTargets, b.DrainTargets)
}

// sameStatus says whether two statuses say the same.
func sameStatus(a, b *maintenancev1alpha1.NodeMaintenanceStatus) bool {
	if len(a.NodeStatuses) != len(b.NodeStatuses) {
		return false
	}
	for i := range a.NodeStatuses {
		if !sameNodeStatus(&a.NodeStatuses[i], &b.NodeStatuses[i]) {
			return false
		}
	}
	x, y := *a, *b
	x.NodeStatuses, y.NodeStatuses = nil, nil
	return equality.Semantic.DeepEqual(x, y)
}
