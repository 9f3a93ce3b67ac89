// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// expected is the expected result for one node: its targets, and its messages by maintenance.
type expected struct {
	targets  entries
	messages map[string]string
}

func says(message string) map[string]string { return map[string]string{"m": message} }

func worldOf(maintenances []Maintenance, nodes ...*Node) World {
	return World{Maintenances: maintenances, Nodes: nodes}
}

func TestPlanOfOneMaintenance(t *testing.T) {
	type list = []Maintenance
	first, rest := entry(typeDefault, 1000), entry(typeDefault, maxPriority)
	everything, evacuating := entries{rest}, says("Evacuating")
	m := func(plan entries, nodes ...string) Maintenance { return maintenance("m", 0, plan, nodes...) }
	twoWaves := entries{first, rest, entry(typeDaemonSet, maxPriority)}
	webFirst := entries{entryFor(typeDefault, 1000, "web"), rest}
	labelled := entry(typeDefault, 7000)
	labelled.PodSelector = &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}},
	}
	tests := map[string]struct {
		world    World
		want     map[string]expected
		finished bool
	}{
		"the first wave opens on all nodes, even without pods in the wave": {
			world: worldOf(list{m(twoWaves, "one", "two")},
				node("one", pod(typeDefault, 0), pod(typeDefault, 5000)), node("two", pod(typeDefault, 5000))),
			want: map[string]expected{
				"one": {entries{first}, evacuating},
				"two": {entries{first}, says("Waiting for node one.")},
			},
		},
		"the next wave opens when the last pod of the wave has left the last node": {
			world: worldOf(list{m(twoWaves, "one", "two").before("one", first).before("two", first)},
				node("one", pod(typeDefault, 5000)), node("two", pod(typeDefault, 5000))),
			want: map[string]expected{"one": {everything, evacuating}, "two": {everything, evacuating}},
		},
		"waves without pods are skipped": {
			world: worldOf(list{m(twoWaves, "one")}, node("one", pod(typeDaemonSet, 0))),
			want: map[string]expected{
				"one": {targets: entries{rest, entry(typeDaemonSet, maxPriority)}, messages: evacuating},
			},
		},
		"a maintenance without pods is finished": {
			world: worldOf(list{m(twoWaves, "one")}, node("one")),
			want: map[string]expected{
				"one": {targets: entries{rest, entry(typeDaemonSet, maxPriority)}, messages: says("Drained")},
			},
			finished: true,
		},
		"a node that joins late starts at the first wave, and other nodes keep their targets": {
			world: worldOf(list{m(twoWaves, "late", "old").before("old", rest)},
				node("late", pod(typeDefault, 10)), node("old", pod(typeDefault, 5000))),
			want: map[string]expected{"late": {entries{first}, evacuating}, "old": {everything, evacuating}},
		},
		"a new pod of an earlier wave is a target immediately": {
			world: worldOf(list{m(twoWaves, "one", "two").before("one", rest).before("two", rest)},
				node("one", pod(typeDefault, 1)), node("two")),
			want: map[string]expected{
				"one": {everything, evacuating},
				"two": {everything, says("Waiting for node one.")},
			},
		},
		"no wave opens before all nodes are cordoned": {
			world: worldOf(list{m(twoWaves, "one", "two").uncordoned("two")}, node("one", pod(typeDefault, 1)), node("two")),
			want: map[string]expected{
				"one": {entries{}, says("Waiting for node two.")},
				"two": {entries{}, says("Waiting for node two.")},
			},
		},
		"an open wave continues until a node that joins late is cordoned": {
			world: worldOf(list{m(twoWaves, "one", "two").before("one", first).uncordoned("two")},
				node("one", pod(typeDefault, 1)), node("two")),
			want: map[string]expected{
				"one": {entries{first}, evacuating},
				"two": {entries{}, says("Waiting for nodes one and two.")},
			},
		},
		"an entry with a selector comes before other entries of the same priority": {
			world: worldOf(list{maintenance("m", 0, entries{entryFor(typeDefault, 1000, "web"), first}, "one")},
				node("one", podOf("web", typeDefault, 5), podOf("db", typeDefault, 5))),
			want: map[string]expected{"one": {entries{entryFor(typeDefault, 1000, "web")}, evacuating}},
		},
		"other nodes wait for a pod that an earlier status selects, in the current wave": {
			world: worldOf(list{m(webFirst, "one", "two").before("one", labelled).uncordoned("two")},
				node("one", podOf("web", typeDefault, 5)), node("two")),
			want: map[string]expected{
				"one": {entries{labelled}, evacuating},
				"two": {entries{}, says("Waiting for nodes one and two.")},
			},
		},
		"no node waits for a pod that an earlier status selects, before its wave": {
			world: worldOf(list{m(webFirst, "one", "two").before("one", entryFor(typeDefault, 7000, "db")).uncordoned("two")},
				node("one", podOf("web", typeDefault, 5), podOf("db", typeDefault, 5)), node("two")),
			want: map[string]expected{
				"one": {entries{entryFor(typeDefault, 7000, "db")}, evacuating},
				"two": {entries{}, says("Waiting for node two.")},
			},
		},
		"a selector of an earlier status stays a target": {
			world: worldOf(list{m(twoWaves, "one").before("one", entryFor(typeDefault, 7000, "web"))},
				node("one", pod(typeDefault, 5), podOf("web", typeDefault, 6000))),
			want: map[string]expected{
				"one": {targets: entries{first, entryFor(typeDefault, 7000, "web")}, messages: evacuating},
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			result := mustPlan(t, test.world)
			check(t, result, test.want)
			is.Equal(t, result.Finished["m"], test.finished, "finished")
		})
	}
}

// TestProgressionOfTheKEP is the example "PodTypes and Label Selectors Progression" of KEP-4212.
func TestProgressionOfTheKEP(t *testing.T) {
	plan := entries{
		entry(typeDefault, 1000), entryFor(typeDefault, 2000, "postgres"), entry(typeDefault, maxPriority),
		entry(typeDaemonSet, 1000), entry(typeDaemonSet, maxPriority), entry(typeStatic, maxPriority),
	}
	all := []Pod{
		pod(typeDefault, 1000), podOf("postgres", typeDefault, 2000), pod(typeDefault, 3000),
		pod(typeDaemonSet, 0), pod(typeDaemonSet, 2000), pod(typeStatic, 0),
	}
	steps := []entries{
		{entry(typeDefault, 1000), entryFor(typeDefault, 1000, "postgres")},
		{entry(typeDefault, 1000), entryFor(typeDefault, 2000, "postgres")},
		{entry(typeDefault, maxPriority), entryFor(typeDefault, maxPriority, "postgres")},
		{entry(typeDefault, maxPriority), entryFor(typeDefault, maxPriority, "postgres"), entry(typeDaemonSet, 1000)},
		{
			entry(typeDefault, maxPriority), entryFor(typeDefault, maxPriority, "postgres"),
			entry(typeDaemonSet, maxPriority),
		},
		{
			entry(typeDefault, maxPriority), entryFor(typeDefault, maxPriority, "postgres"),
			entry(typeDaemonSet, maxPriority), entry(typeStatic, maxPriority),
		},
	}
	m := maintenance("m", 0, plan, "five")
	for i, want := range steps {
		result := mustPlan(t, World{Maintenances: []Maintenance{m}, Nodes: []*Node{node("five", all[i:]...)}})
		checkAll(t, result, map[string]expected{"five": {want, says("Evacuating")}})
		m = m.before("five", result.Targets["five"].Entries...)
	}
}

// TestExamplesOfTheKEP is the example "Pod Selection and DrainTargets Example" of KEP-4212: the
// targets and messages of all nodes of all maintenances at each step. If the KEP omits a node in a
// step, the node is the same as in the previous step.
func TestExamplesOfTheKEP(t *testing.T) {
	const a, b, c = "maintenance-a", "maintenance-b", "maintenance-c"
	low, middle, high := pod(typeDefault, 5000), pod(typeDefault, 10000), pod(typeDefault, 15000)
	daemon := pod(typeDaemonSet, 0)
	at := func(priority int32) entries { return entries{entry(typeDefault, priority)} }
	const (
		limitedByA  = "Evacuating (limited by maintenance-a)"
		waitsForOne = "Waiting for node one."
		waitsForTwo = "Waiting for node two (maintenance-a)."
	)
	steps := []struct {
		name    string
		one     []Pod
		two     []Pod
		three   []Pod
		created bool
		want    map[string]expected
		// fastForwarded has, by maintenance and node, the maintenance that has drained the node
		// further.
		fastForwarded map[string]map[string]string
	}{
		{
			name: "at the start the lowest entry of a limits the node that a and b share",
			one:  []Pod{low, middle, high, daemon}, two: []Pod{low, high, daemon}, three: []Pod{middle, high, daemon},
			want: map[string]expected{
				"one":   {at(5000), map[string]string{a: "Evacuating", b: limitedByA}},
				"two":   {at(5000), map[string]string{a: "Evacuating"}},
				"three": {at(10000), map[string]string{b: "Evacuating"}},
			},
		},
		{
			name: "node three is drained and waits for node one",
			one:  []Pod{low, middle, high, daemon}, two: []Pod{low, high, daemon}, three: []Pod{high, daemon},
			want: map[string]expected{
				"one":   {at(5000), map[string]string{a: "Evacuating", b: limitedByA}},
				"two":   {at(5000), map[string]string{a: "Evacuating"}},
				"three": {at(10000), map[string]string{b: waitsForOne}},
			},
		},
		{
			name: "node one is drained and all nodes wait for node two",
			one:  []Pod{middle, high, daemon}, two: []Pod{low, high, daemon}, three: []Pod{high, daemon},
			want: map[string]expected{
				"one":   {at(5000), map[string]string{a: "Waiting for node two.", b: waitsForTwo}},
				"two":   {at(5000), map[string]string{a: "Evacuating"}},
				"three": {at(10000), map[string]string{b: waitsForTwo}},
			},
		},
		{
			name: "node two is drained and the targets advance",
			one:  []Pod{middle, high, daemon}, two: []Pod{high, daemon}, three: []Pod{high, daemon},
			want: map[string]expected{
				"one":   {at(10000), map[string]string{a: "Evacuating (limited by maintenance-b)", b: "Evacuating"}},
				"two":   {at(15000), map[string]string{a: "Evacuating"}},
				"three": {at(10000), map[string]string{b: waitsForOne}},
			},
		},
		{
			name: "maintenance-c is created, is fast-forwarded on node one and begins on node four",
			one:  []Pod{middle, high, daemon}, two: []Pod{high, daemon}, three: []Pod{high, daemon}, created: true,
			want: map[string]expected{
				"one": {
					targets: at(10000),
					messages: map[string]string{
						// Of the maintenances that limit the node, c is at the earliest entry.
						a: "Evacuating (limited by maintenance-c)",
						b: "Evacuating",
						c: "Evacuating (fast-forwarded by older maintenance-b)",
					},
				},
				"two":   {at(15000), map[string]string{a: "Evacuating"}},
				"three": {at(10000), map[string]string{b: waitsForOne}},
				"four":  {at(2000), map[string]string{c: "Evacuating"}},
			},
			fastForwarded: map[string]map[string]string{c: {"one": b}},
		},
	}
	maintenances := []Maintenance{
		maintenance(a, 0, entries{entry(typeDefault, 5000), entry(typeDefault, 15000), entry(typeDaemonSet, 3000)},
			"one", "two"),
		maintenance(b, 1, entries{entry(typeDefault, 10000), entry(typeDefault, 15000), entry(typeDaemonSet, 4000)},
			"one", "three"),
	}
	for _, step := range steps {
		w := World{Nodes: []*Node{node("one", step.one...), node("two", step.two...), node("three", step.three...)}}
		if step.created {
			maintenances = append(maintenances,
				maintenance(c, 2, entries{entry(typeDefault, 2000), entry(typeDefault, 15000)}, "one", "four"))
			w.Nodes = append(w.Nodes, node("four", pod(typeDefault, 2000), pod(typeDefault, 3000)))
		}
		w.Maintenances = maintenances
		result := must.Get(Plan(w))(t)
		t.Run(step.name, func(t *testing.T) {
			checkAll(t, result, step.want)
			if step.fastForwarded == nil {
				step.fastForwarded = map[string]map[string]string{}
			}
			if !reflect.DeepEqual(result.FastForwarded, step.fastForwarded) {
				t.Errorf("fast-forwarded = %v, want %v", result.FastForwarded, step.fastForwarded)
			}
			is.True(t, len(result.Overrides) == 0, "overrides = %v, want none", result.Overrides)
		})
		store(maintenances, result)
	}
}

// store writes the targets to the statuses of all maintenances.
func store(maintenances []Maintenance, result Result) {
	for i := range maintenances {
		for _, n := range maintenances[i].Nodes {
			maintenances[i].Before[n] = result.Targets[n].Entries
		}
	}
}

func TestFastForwarding(t *testing.T) {
	twoWaves := entries{entry(typeDefault, 1000), entry(typeDefault, maxPriority)}
	type list = []Maintenance
	low, high := pod(typeDefault, 0), pod(typeDefault, 5000)
	far := entry(typeDefault, maxPriority)
	older, younger := maintenance("b", 0, twoWaves, "one").before("one", far), maintenance("m", 1, twoWaves, "one", "two")
	tests := map[string]struct {
		world         World
		fastForwarded string
		message       string
	}{
		"a younger maintenance that selects the node": {
			world:         worldOf(list{older, younger}, node("one", high), node("two", low)),
			fastForwarded: "b", message: "Evacuating (fast-forwarded by older b)",
		},
		"a younger maintenance that selects the node while it has no pods": {
			world:         worldOf(list{older, younger}, node("one"), node("two", low)),
			fastForwarded: "b", message: "Waiting for node two.",
		},
		"an older maintenance that begins to drain later": {
			world: worldOf(list{maintenance("b", 1, twoWaves, "one").before("one", far),
				maintenance("m", 0, twoWaves, "one", "two")}, node("one", high), node("two", low)),
			fastForwarded: "b", message: "Evacuating",
		},
		"a younger maintenance whose own plan is at the same entry": {
			world: worldOf(list{older, younger}, node("one", high), node("two")), message: "Evacuating",
		},
		"a maintenance that returns to an earlier entry for a new pod": {
			world: worldOf(list{maintenance("m", 1, twoWaves, "one", "two").before("one", far).before("two", far)},
				node("one", high), node("two", low)),
			message: "Evacuating",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			result := mustPlan(t, test.world)
			is.Equal(t, result.FastForwarded["m"]["one"], test.fastForwarded, "fast-forwarded by")
			is.Equal(t, result.Messages["m"]["one"], test.message, "message")
		})
	}
}

func TestOldestOfContradictingPlansIsFollowed(t *testing.T) {
	older := maintenance("older", 0, entries{entryFor(typeDefault, 1000, "x"), entryFor(typeDefault, 2000, "y")}, "one")
	younger := maintenance("younger", 1, entries{entryFor(typeDefault, 1000, "y"), entryFor(typeDefault, 2000, "x")},
		"one")
	result := mustPlan(t, World{
		Maintenances: []Maintenance{younger, older},
		Nodes:        []*Node{node("one", podOf("x", typeDefault, 1), podOf("y", typeDefault, 1))},
	})
	check(t, result, map[string]expected{"one": {
		entries{entryFor(typeDefault, 1000, "x")},
		map[string]string{"older": "Evacuating", "younger": "Evacuating (fast-forwarded by older older)"},
	}})
	want := []Override{{Followed: "older", Overridden: []string{"younger"}}}
	is.True(t, reflect.DeepEqual(result.Overrides, want), "overrides = %v, want %v", result.Overrides, want)
}

func TestAllMaintenancesOfARaisedNodeAreOverridden(t *testing.T) {
	labelled := entry(typeDefault, 20)
	labelled.PodSelector = &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}},
	}
	result := mustPlan(t, World{
		Maintenances: []Maintenance{
			maintenance("oldest", 0, completed(nil), "empty", "static"),
			// a and b select the pod by different selectors, so they wait for each other.
			maintenance("a", 1, completed(entries{labelled}), "both"),
			maintenance("b", 2, completed(entries{entryFor(typeDefault, 10, "x")}), "both", "static"),
			maintenance("c", 3, completed(nil), "empty", "both"),
		},
		Nodes: []*Node{node("empty"), node("both", podOf("x", typeDefault, 10)), node("static", pod(typeStatic, 10))},
	})
	want := []Override{{Followed: "oldest", Overridden: []string{"b", "c"}}}
	is.True(t, reflect.DeepEqual(result.Overrides, want), "overrides = %v, want %v", result.Overrides, want)
}

func TestRecreatedMaintenanceIsYounger(t *testing.T) {
	x := maintenance("x", 0, entries{entryFor(typeDefault, 1000, "x"), entryFor(typeDefault, 2000, "y")}, "one")
	y := maintenance("y", 1, entries{entryFor(typeDefault, 1000, "y"), entryFor(typeDefault, 2000, "x")}, "one")
	nodes := []*Node{node("one", podOf("x", typeDefault, 1), podOf("y", typeDefault, 1))}
	for _, followed := range []string{"x", "y"} {
		result := must.Get(Plan(World{Maintenances: []Maintenance{x, y}, Nodes: nodes}))(t)
		check(t, result, map[string]expected{"one": {targets: entries{entryFor(typeDefault, 1000, followed)}}})
		x.Created = x.Created.Add(time.Hour)
	}
}

func TestPlanRejectsAnInvalidWorld(t *testing.T) {
	bad := entryFor(typeDefault, 1, "x")
	bad.PodSelector.MatchLabels["app"] = "not a label value"
	for name, world := range map[string]World{
		"an invalid selector in a plan": {
			Maintenances: []Maintenance{maintenance("m", 0, entries{bad}, "one")}, Nodes: []*Node{node("one")},
		},
		"an invalid selector in a status": {
			Maintenances: []Maintenance{maintenance("m", 0, nil, "one").before("one", bad)},
			Nodes:        []*Node{node("one")},
		},
		"an unknown node":              {Maintenances: []Maintenance{maintenance("m", 0, nil, "one")}},
		"two nodes with the same name": {Nodes: []*Node{node("one"), node("one")}},
		"two maintenances with the same name": {
			Maintenances: []Maintenance{maintenance("m", 0, nil), maintenance("m", 0, nil)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if result, err := Plan(world); err == nil || result.Targets != nil {
				t.Errorf("got result %v and error %v, want only an error", result, err)
			}
		})
	}
}

func mustPlan(t *testing.T, world World) Result {
	t.Helper()
	return must.Get(Plan(world))(t)
}

// checkAll checks that the result has the expected targets and messages, and no others.
func checkAll(t *testing.T, result Result, want map[string]expected) {
	t.Helper()
	check(t, result, want)
	if got := len(result.Targets); got != len(want) {
		t.Errorf("got targets of %d nodes, want %d", got, len(want))
	}
	messages := 0
	for _, of := range result.Messages {
		messages += len(of)
	}
	for _, w := range want {
		messages -= len(w.messages)
	}
	is.True(t, messages == 0, "got %d messages more than expected", messages)
}

func check(t *testing.T, result Result, want map[string]expected) {
	t.Helper()
	for node, w := range want {
		got := result.Targets[node].Entries
		equal := func(a, b v1alpha1.DrainPlanEntry) bool { return reflect.DeepEqual(a, b) }
		is.True(t, slices.EqualFunc(got, w.targets, equal), "targets of %s = %v, want %v", node, got, w.targets)
		for maintenance, message := range w.messages {
			if got := result.Messages[maintenance][node]; got != message {
				t.Errorf("message of %s for %s = %q, want %q", maintenance, node, got, message)
			}
		}
	}
}
