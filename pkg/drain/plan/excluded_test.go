// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"reflect"
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func (m Maintenance) waitsFor(excluded ...string) Maintenance {
	m.Excluded = excluded
	return m
}

// TestWavesWaitForExcludedNodes plans for maintenances of node one, and of further nodes whose pods
// they may not ask to leave.
func TestWavesWaitForExcludedNodes(t *testing.T) {
	type list = []Maintenance
	twoWaves := entries{entry(typeDefault, 1000), entry(typeDefault, maxPriority)}
	low, high, static := pod(typeDefault, 0), pod(typeDefault, 5000), pod(typeStatic, 0)
	first, both := entries{entry(typeDefault, 1000)}, entries{entry(typeDefault, maxPriority)}
	m := func(excluded ...string) Maintenance {
		return maintenance("m", 0, twoWaves, "one").waitsFor(excluded...)
	}
	for name, test := range map[string]struct {
		world    World
		want     entries
		message  string
		finished bool
	}{
		"the first wave opens beside an excluded node": {
			world: worldOf(list{m("out")}, node("one", low, high), node("out", low)), want: first, message: "Evacuating",
		},
		"the next wave waits for the pods of an excluded node": {
			world: worldOf(list{m("out")}, node("one", high), node("out", low)), want: first, message: "Waiting for node out.",
		},
		"the message has only the excluded nodes that are behind": {
			world: worldOf(list{m("later", "out", "also", "empty")}, node("one", high), node("out", low), node("also", low, high),
				node("later", high), node("empty")),
			want: first, message: "Waiting for nodes also and out.",
		},
		"the next wave opens when the excluded node has only pods of that wave": {
			world: worldOf(list{m("out")}, node("one", high), node("out", high)), want: both, message: "Evacuating",
		},
		"the drain does not finish while an excluded node has pods of the plan": {
			world: worldOf(list{m("out")}, node("one"), node("out", high)), want: both, message: "Waiting for node out.",
		},
		"the drain finishes when an excluded node has only other pods": {
			world: worldOf(list{m("out")}, node("one"), node("out", static)), want: both, message: "Drained", finished: true,
		},
		"waves that are open stay open": {
			world: worldOf(list{m("out").before("one", entry(typeDefault, maxPriority))}, node("one", high), node("out", low)),
			want:  both, message: "Evacuating",
		},
		"an excluded node that another maintenance drains is waited for": {
			world: worldOf(list{m("out"), maintenance("other", 1, twoWaves, "out")}, node("one", high), node("out", low)),
			want:  first, message: "Waiting for node out.",
		},
		"another maintenance of the node does not wait": {
			world: worldOf(list{maintenance("m", 1, twoWaves, "one"), maintenance("a", 0, twoWaves, "one").waitsFor("out")},
				node("one", high), node("out", low)),
			want: both, message: "Evacuating",
		},
		"nor does it wait on a node of its own": {
			world: worldOf(list{maintenance("m", 1, twoWaves, "one", "two"), maintenance("a", 0, twoWaves, "two").waitsFor("out")},
				node("one", high), node("two", high), node("out", low)),
			want: both, message: "Evacuating",
		},
		"two maintenances of the node that both wait": {
			world: worldOf(list{m("out"), maintenance("a", 0, twoWaves, "one").waitsFor("out")}, node("one", high), node("out", low)),
			want:  first, message: "Waiting for node out.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			result := must.Get(Plan(test.world))(t)
			if got := result.Targets["one"].Entries; !reflect.DeepEqual(got, test.want) {
				t.Errorf("targets are %v, want %v", got, test.want)
			}
			is.Equal(t, result.Messages["m"]["one"], test.message, "message")
			is.Equal(t, result.Finished["m"], test.finished, "finished")
			is.True(t, len(result.Overrides) == 0, "the wait counts as a contradiction: %v", result.Overrides)
			_, asked := result.Messages["m"]["out"]
			is.True(t, !asked, "the maintenance has a message about a node that it does not drain")
		})
	}
}

// TestContradictionBesideAWait has two maintenances with contradicting plans, and a third one of
// the same node that waits for an excluded node.
func TestContradictionBesideAWait(t *testing.T) {
	defaults, daemons := entry(typeDefault, maxPriority), entry(typeDaemonSet, maxPriority)
	result := must.Get(Plan(worldOf([]Maintenance{
		maintenance("a", 0, entries{entry(typeDefault, 1000), defaults}, "one").waitsFor("out"),
		maintenance("m", 1, entries{daemons, defaults}, "one"),
		maintenance("b", 2, entries{defaults, daemons}, "one"),
	}, node("one", pod(typeDefault, 5000), pod(typeDaemonSet, 0)), node("out", pod(typeDefault, 0)))))(t)
	must.True(t, len(result.Overrides) == 1, "got the overrides %v, want one", result.Overrides)
	is.Equal(t, result.Overrides[0].Followed, "m", "followed")
}

func TestExcludedNodeThatIsMissing(t *testing.T) {
	_, err := Plan(worldOf([]Maintenance{maintenance("m", 0, nil, "one").waitsFor("out")}, node("one")))
	is.True(t, err != nil, "got no error about a node that is not part of the world")
}
