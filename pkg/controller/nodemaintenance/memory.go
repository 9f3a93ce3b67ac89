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
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
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
	if m.plan != nil && drainplan.SameEntries(m.plan, nm.Spec.DrainPlan) {
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
func (m *memory) count(node string, view *nodestate.View, targets drainplan.Targets, counting func() *nodeCount) *nodeCount {
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

// sameNodeStatus reports whether two states of a node say the same. A field that is added to the
// type has to be added here; a test sees to it.
func sameNodeStatus(a, b *maintenancev1alpha1.NodeMaintenanceNodeStatus) bool {
	return a.NodeRef == b.NodeRef && a.DrainMessage == b.DrainMessage && a.PodsPendingEvacuation == b.PodsPendingEvacuation &&
		a.PodsEvacuating == b.PodsEvacuating && a.PodsBlocked == b.PodsBlocked && a.PodsKept == b.PodsKept && a.PodsPeak == b.PodsPeak &&
		drainplan.SameEntries(a.DrainTargets, b.DrainTargets)
}

// sameStatus reports whether two statuses say the same.
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
