// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/is"
)

// grantable sets the pool for which rights are granted. It is independent of the label that the
// maintenances of these tests select.
func grantable(pool string) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Labels[poolLabel] = pool }
}

// TestDecidePool decides again and again about a node, whose pool changes while it is held.
func TestDecidePool(t *testing.T) {
	refused := exclusion{reason: v1alpha1.NodeStatusNotAuthorized, why: `user "jane" may not maintain this node.`}
	for name, test := range map[string]struct {
		// steps change the facts before each decision.
		steps []func(w *world)
		want  string
	}{
		"the right does not come from a pool":            {[]func(*world){func(*world) {}}, ""},
		"the right comes from a pool":                    {[]func(*world){ofPool("blue")}, "blue"},
		"the right comes from a pool later":              {[]func(*world){func(*world) {}, ofPool("blue")}, "blue"},
		"the right comes from another pool later":        {[]func(*world){ofPool("blue"), ofPool("red")}, "blue"},
		"the right comes from another source later":      {[]func(*world){ofPool("blue"), ofPool("")}, "blue"},
		"the new pool is not the requester's":            {[]func(*world){ofPool("blue"), ofPool(""), func(w *world) { w.outside("one", refused) }}, "blue"},
		"a node that was never taken has no pool":        {[]func(*world){func(w *world) { w.outside("one", refused) }}, ""},
		"another node is registered under the name":      {[]func(*world){ofPool("blue"), ofPool(""), func(w *world) { w.nodes[0].UID = "new" }}, ""},
		"the maintenance ends, and the node is held":     {[]func(*world){ofPool("blue"), ending("one")}, "blue"},
		"the maintenance has ended":                      {[]func(*world){ofPool("blue"), ending()}, "blue"},
		"the maintenance no longer selects the node":     {[]func(*world){ofPool("blue"), former}, "blue"},
		"it selects it again, as a node of another pool": {[]func(*world){ofPool("blue"), former, selected, ofPool("red")}, "blue"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMaintenance("m"), newNode("one"))
			var d *decision
			for _, step := range test.steps {
				step(w)
				d, _ = w.decide()
			}
			one := w.entry(d, "one")
			is.Equal(t, v1alpha1.PoolOf(w.facts.subject.NodeMaintenance, &one), test.want, "pool in the status")
			is.Equal(t, len(d.status.Pools) > 0, test.want != "", "whether the status has pools")
		})
	}
}

func ofPool(pool string) func(*world) {
	return func(w *world) { w.facts.subject.nodes[0].pool = pool }
}

// ending completes the maintenance while it holds the named nodes.
func ending(held ...string) func(*world) {
	return func(w *world) {
		atStage(v1alpha1.NodeMaintenanceStageComplete)(w.facts.subject.NodeMaintenance)
		w.facts.held = sets.New(held...)
	}
}

// former lets the maintenance no longer select its node.
func former(w *world) {
	m := w.facts.subject
	m.nodes, m.inside = nil, nil
	w.facts.former = []formerNode{{NodeMaintenanceNodeStatus: &m.Status.NodeStatuses[0]}}
}

// selected lets the maintenance select its former node again.
func selected(w *world) {
	w.facts.former = nil
	w.facts.subject.nodes, w.facts.subject.inside = []memberNode{{Node: w.nodes[0]}}, w.nodes
}

// poolOf returns the pool through which a maintenance has taken a node.
func (f *fixture) poolOf(maintenance, node string) string {
	f.t.Helper()
	status := f.nodeStatus(maintenance, node)
	return v1alpha1.PoolOf(f.nm(maintenance), &status)
}

// TestNodeThatChangesItsPoolWhileHeld has a requester who may maintain a pool, and nothing else.
func TestNodeThatChangesItsPoolWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", grantable("blue")), newNode("two", grantable("blue")), newNode("three", grantable("red")),
			newPod("p", "one", 0), newPod("q", "two", 0), newPod("r", "three", 0), newMaintenance("m"))
		f.rights.onlyPools, f.rights.pools = true, sets.New("blue")
		f.step("m")
		f.wantCordon("one", true, "m")
		f.wantCordon("two", true, "m")
		f.wantCordon("three", false)
		f.wantEvacuating("p", "q")
		is.Equal(t, f.poolOf("m", "one"), "blue", "pool of node one")
		is.Equal(t, f.poolOf("m", "three"), "", "pool of node three")

		f.updateNode("one", grantable("red"))
		f.create(newPod("late", "one", 0))
		f.create(newPod("new", "two", 0))
		for range 2 {
			f.wait(statusPace)
			f.step("m")
			f.wantCordon("one", true, "m")
			f.wantEvacuating("new", "p", "q")
			f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNotAuthorized)
			one := f.nodeStatus("m", "one")
			is.True(t, one.Reason == v1alpha1.NodeStatusNotAuthorized, "got %+v", one)
			is.Equal(t, f.poolOf("m", "one"), "blue", "pool of node one")
			f.restart() // a new leader knows only what is stored
		}

		f.enter("m", stageComplete)
		f.step("m")
		f.wantCordon("one", false)
		f.wantCordon("two", false)
		is.Equal(t, f.poolOf("m", "one"), "blue", "pool of node one after the end")
	})
}

// TestNodeThatEntersAGrantedPool has a node that the requester may maintain only after a change of
// its labels, which does not change the selection.
func TestNodeThatEntersAGrantedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", grantable("red")), newPod("p", "one", 0), newMaintenance("m"))
		f.rights.onlyPools, f.rights.pools = true, sets.New("blue")
		f.step("m")
		f.wantCordon("one", false)
		f.updateNode("one", grantable("blue"))
		f.step("m")
		f.wantCordon("one", true, "m")
		f.wantEvacuating("p")
		is.Equal(t, f.poolOf("m", "one"), "blue", "pool of node one")
	})
}

// TestNodeThatLeavesItsPoolWithoutAnAnswer has an authorizer that fails for the new pool of a node
// that is held.
func TestNodeThatLeavesItsPoolWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", grantable("blue")), newPod("p", "one", 0), newMaintenance("m"))
		f.rights.onlyPools, f.rights.pools = true, sets.New("blue")
		f.step("m")
		f.wantEvacuating("p")

		f.rights.failingPools = map[string]error{"red": errors.New("the webhook is down")}
		f.updateNode("one", grantable("red"))
		f.create(newPod("late", "one", 0))
		for range 2 {
			f.wait(2 * rights.AnswerTTL)
			f.step("m")
			f.wantCordon("one", true, "m")
			f.wantEvacuating("p")
			f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNotAuthorized)
			one := f.nodeStatus("m", "one")
			is.True(t, one.Reason == v1alpha1.NodeStatusNotAuthorized && strings.Contains(one.DrainMessage, "its pool has changed"), "got %+v", one)
			f.restart() // a new leader has no answers at all
		}

		f.rights.failingPools = nil
		f.rights.pools.Insert("red")
		f.wait(2 * rights.AnswerTTL)
		f.step("m")
		f.wantEvacuating("late", "p")
		is.Equal(t, f.poolOf("m", "one"), "blue", "pool of node one")
	})
}

// TestPoolsInTheStatus has nodes that come and go. A pool stays in the list as long as a node
// refers to it.
func TestPoolsInTheStatus(t *testing.T) {
	type pool struct{ node, pool string }
	w := newWorld(t, newMaintenance("m"), newNode("one"), newNode("two"), newNode("three"))
	for _, step := range []struct {
		name string
		// pools are the pools of the selected nodes.
		pools []pool
		want  string
		nodes map[string]int32
	}{
		{"no node has a pool", []pool{{"one", ""}}, "", nil},
		{"two nodes share a pool", []pool{{"one", "red"}, {"three", ""}, {"two", "red"}}, "red", map[string]int32{"one": 0, "two": 0}},
		{"another pool is before it", []pool{{"one", ""}, {"three", "blue"}, {"two", ""}}, "blue red", map[string]int32{"one": 1, "three": 0, "two": 1}},
		{"one of two nodes of a pool leaves", []pool{{"three", ""}, {"two", ""}}, "blue red", map[string]int32{"three": 0, "two": 1}},
		{"the last node of a pool leaves", []pool{{"two", ""}}, "red", map[string]int32{"two": 0}},
		{"the last node of all leaves", nil, "", nil},
	} {
		m := w.facts.subject
		m.nodes, m.inside = nil, nil
		for _, of := range step.pools {
			at := slices.IndexFunc(w.nodes, func(node *corev1.Node) bool { return node.Name == of.node })
			m.nodes, m.inside = append(m.nodes, memberNode{Node: w.nodes[at], pool: of.pool}), append(m.inside, w.nodes[at])
		}
		d, _ := w.decide()
		is.Equal(t, strings.Join(d.status.Pools, " "), step.want, step.name)
		got := map[string]int32{}
		for _, node := range d.status.NodeStatuses {
			if node.PoolIndex != nil {
				got[node.NodeRef.Name] = *node.PoolIndex
			}
		}
		is.True(t, maps.Equal(got, step.nodes), "%s: got the indexes %v, want %v", step.name, got, step.nodes)
	}
}

// TestNodeThatWasNeverTaken has a node that the requester may not maintain. A completed maintenance
// keeps the reason, so that its requester may delete it without a right to the node.
func TestNodeThatWasNeverTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", grantable("blue")), newNode("two", grantable("red")), newMaintenance("m"))
		f.rights.onlyPools, f.rights.pools = true, sets.New("blue")
		f.step("m")
		f.wantCordon("two", false)
		f.enter("m", stageComplete)
		for range 2 {
			f.step("m")
			f.wait(statusPace)
		}
		one, two := f.nodeStatus("m", "one"), f.nodeStatus("m", "two")
		is.True(t, marks.IsUntaken(nil, f.nm("m"), &two) && two.DrainMessage == "", "got %+v", two)
		is.True(t, !marks.IsUntaken(nil, f.nm("m"), &one), "got %+v", one)
	})
}
