// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
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
			is.Equal(t, w.entry(d, "one").Pool, test.want, "pool in the status")
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
		is.Equal(t, f.nodeStatus("m", "one").Pool, "blue", "pool of node one")
		is.Equal(t, f.nodeStatus("m", "three").Pool, "", "pool of node three")

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
			is.True(t, one.Reason == v1alpha1.NodeStatusNotAuthorized && one.Pool == "blue", "got %+v", one)
			f.restart() // a new leader knows only what is stored
		}

		f.enter("m", stageComplete)
		f.step("m")
		f.wantCordon("one", false)
		f.wantCordon("two", false)
		is.Equal(t, f.nodeStatus("m", "one").Pool, "blue", "pool of node one after the end")
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
		is.Equal(t, f.nodeStatus("m", "one").Pool, "blue", "pool of node one")
	})
}
