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

package plan

import (
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// expected is what is expected of one node: its targets, and its message by maintenance.
type expected struct {
	targets  entries
	messages map[string]string
}

func says(message string) map[string]string { return map[string]string{"m": message} }

func TestPlanOfOneMaintenance(t *testing.T) {
	twoWaves := entries{entry(typeDefault, 1000), entry(typeDefault, maxPriority), entry(typeDaemonSet, maxPriority)}
	webFirst := entries{entryFor(typeDefault, 1000, "web"), entry(typeDefault, maxPriority)}
	labelled := entry(typeDefault, 7000)
	labelled.PodSelector = &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}},
	}
	tests := map[string]struct {
		world    World
		want     map[string]expected
		finished bool
	}{
		"the first wave opens on all nodes, also on those without its pods": {
			world: World{
				Maintenances: []Maintenance{maintenance("m", 0, twoWaves, "one", "two")},
				Nodes: []*Node{
					node("one", pod(typeDefault, 0), pod(typeDefault, 5000)), node("two", pod(typeDefault, 5000)),
				},
			},
			want: map[string]expected{
				"one": {entries{entry(typeDefault, 1000)}, says("Evacuating")},
				"two": {entries{entry(typeDefault, 1000)}, says("Waiting for node one.")},
			},
		},
		"the next wave opens when the last pod has left the last node": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("m", 0, twoWaves, "one", "two").before("one", entry(typeDefault, 1000)).before(
						"two", entry(typeDefault, 1000),
					),
				},
				Nodes: []*Node{node("one", pod(typeDefault, 5000)), node("two", pod(typeDefault, 5000))},
			},
			want: map[string]expected{
				"one": {entries{entry(typeDefault, maxPriority)}, says("Evacuating")},
				"two": {entries{entry(typeDefault, maxPriority)}, says("Evacuating")},
			},
		},
		"waves without pods cost nothing": {
			world: World{
				Maintenances: []Maintenance{maintenance("m", 0, twoWaves, "one")},
				Nodes:        []*Node{node("one", pod(typeDaemonSet, 0))},
			},
			want: map[string]expected{
				"one": {
					targets:  entries{entry(typeDefault, maxPriority), entry(typeDaemonSet, maxPriority)},
					messages: says("Evacuating"),
				},
			},
		},
		"without pods everything is done": {
			world: World{
				Maintenances: []Maintenance{maintenance("m", 0, twoWaves, "one")},
				Nodes:        []*Node{node("one")},
			},
			want: map[string]expected{
				"one": {
					targets:  entries{entry(typeDefault, maxPriority), entry(typeDaemonSet, maxPriority)},
					messages: says("Drained"),
				},
			},
			finished: true,
		},
		"a node that joins late starts at the front and pulls no other node back": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("m", 0, twoWaves, "late", "old").before("old", entry(typeDefault, maxPriority)),
				},
				Nodes: []*Node{node("late", pod(typeDefault, 10)), node("old", pod(typeDefault, 5000))},
			},
			want: map[string]expected{
				"late": {entries{entry(typeDefault, 1000)}, says("Evacuating")},
				"old":  {entries{entry(typeDefault, maxPriority)}, says("Evacuating")},
			},
		},
		"a pod of an earlier wave that appears late is asked to leave immediately": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("m", 0, twoWaves, "one", "two").before("one", entry(typeDefault, maxPriority)).before(
						"two", entry(typeDefault, maxPriority),
					),
				},
				Nodes: []*Node{node("one", pod(typeDefault, 1)), node("two")},
			},
			want: map[string]expected{
				"one": {entries{entry(typeDefault, maxPriority)}, says("Evacuating")},
				"two": {entries{entry(typeDefault, maxPriority)}, says("Waiting for node one.")},
			},
		},
		"nothing is raised before all nodes are cordoned": {
			world: World{
				Maintenances: []Maintenance{maintenance("m", 0, twoWaves, "one", "two").uncordoned("two")},
				Nodes:        []*Node{node("one", pod(typeDefault, 1)), node("two")},
			},
			want: map[string]expected{
				"one": {entries{}, says("Waiting for node two.")},
				"two": {entries{}, says("Waiting for node two.")},
			},
		},
		"what is reached goes on while a late node is cordoned": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("m", 0, twoWaves, "one", "two").before(
						"one", entry(typeDefault, 1000),
					).uncordoned("two"),
				},
				Nodes: []*Node{node("one", pod(typeDefault, 1)), node("two")},
			},
			want: map[string]expected{
				"one": {entries{entry(typeDefault, 1000)}, says("Evacuating")},
				"two": {entries{}, says("Waiting for nodes one and two.")},
			},
		},
		"an entry with a selector goes before the others of its priority": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("m", 0, entries{entryFor(typeDefault, 1000, "web"), entry(typeDefault, 1000)}, "one"),
				},
				Nodes: []*Node{node("one", podOf("web", typeDefault, 5), podOf("db", typeDefault, 5))},
			},
			want: map[string]expected{"one": {entries{entryFor(typeDefault, 1000, "web")}, says("Evacuating")}},
		},
		"a pod that leaves for the selector of an older status is waited for": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("m", 0, webFirst, "one", "two").before("one", labelled).uncordoned("two"),
				},
				Nodes: []*Node{node("one", podOf("web", typeDefault, 5)), node("two")},
			},
			want: map[string]expected{
				"one": {entries{labelled}, says("Evacuating")},
				"two": {entries{}, says("Waiting for nodes one and two.")},
			},
		},
		"a pod whose turn has not come is not waited for although it leaves for the selector of an older status": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("m", 0, webFirst, "one", "two").before(
						"one", entryFor(typeDefault, 7000, "db"),
					).uncordoned("two"),
				},
				Nodes: []*Node{node("one", podOf("web", typeDefault, 5), podOf("db", typeDefault, 5)), node("two")},
			},
			want: map[string]expected{
				"one": {entries{entryFor(typeDefault, 7000, "db")}, says("Evacuating")},
				"two": {entries{}, says("Waiting for node two.")},
			},
		},
		"a selector that an older status knows stays a target": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("m", 0, twoWaves, "one").before("one", entryFor(typeDefault, 7000, "web")),
				},
				Nodes: []*Node{node("one", pod(typeDefault, 5), podOf("web", typeDefault, 6000))},
			},
			want: map[string]expected{
				"one": {
					targets:  entries{entry(typeDefault, 1000), entryFor(typeDefault, 7000, "web")},
					messages: says("Evacuating"),
				},
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			result := mustPlan(t, test.world)
			check(t, result, test.want)
			if got := result.Finished["m"]; got != test.finished {
				t.Errorf("finished = %t, want %t", got, test.finished)
			}
		})
	}
}

// TestProgressionOfTheKEP is KEP-4212, "PodTypes and Label Selectors Progression".
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

// TestExamplesOfTheKEP is KEP-4212, "Pod Selection and DrainTargets Example": the targets and
// messages of all nodes of all maintenances at each of its steps. What the KEP leaves out of a step
// is what it was in the step before.
func TestExamplesOfTheKEP(t *testing.T) {
	const a, b, c = "maintenance-a", "maintenance-b", "maintenance-c"
	low, middle, high, daemon := pod(typeDefault, 5000), pod(
		typeDefault, 10000,
	), pod(typeDefault, 15000), pod(typeDaemonSet, 0)
	at := func(priority int32) entries { return entries{entry(typeDefault, priority)} }
	const (
		limitedByA  = "Evacuating (limited by maintenance-a)"
		waitsForOne = "Waiting for node one."
		waitsForTwo = "Waiting for node two (maintenance-a)."
	)
	steps := []struct {
		name     string
		one      []Pod
		two      []Pod
		three    []Pod
		arriving bool
		want     map[string]expected
		// told is who is fast-forwarded where, and by whom.
		told map[string]map[string]string
	}{
		{
			name: "at the start the lowest entry of a decides on the node that a and b share",
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
			name: "node one is drained and everything waits for node two",
			one:  []Pod{middle, high, daemon}, two: []Pod{low, high, daemon}, three: []Pod{high, daemon},
			want: map[string]expected{
				"one":   {at(5000), map[string]string{a: "Waiting for node two.", b: waitsForTwo}},
				"two":   {at(5000), map[string]string{a: "Evacuating"}},
				"three": {at(10000), map[string]string{b: waitsForTwo}},
			},
		},
		{
			name: "node two is drained and the targets go up",
			one:  []Pod{middle, high, daemon}, two: []Pod{high, daemon}, three: []Pod{high, daemon},
			want: map[string]expected{
				"one":   {at(10000), map[string]string{a: "Evacuating (limited by maintenance-b)", b: "Evacuating"}},
				"two":   {at(15000), map[string]string{a: "Evacuating"}},
				"three": {at(10000), map[string]string{b: waitsForOne}},
			},
		},
		{
			name: "maintenance-c arrives, is fast-forwarded on node one and begins on node four",
			one:  []Pod{middle, high, daemon}, two: []Pod{high, daemon}, three: []Pod{high, daemon}, arriving: true,
			want: map[string]expected{
				"one": {
					targets: at(10000),
					messages: map[string]string{
						// Of the maintenances that keep the node back, c has come least far now.
						a: "Evacuating (limited by maintenance-c)",
						b: "Evacuating",
						c: "Evacuating (fast-forwarded by older maintenance-b)",
					},
				},
				"two":   {at(15000), map[string]string{a: "Evacuating"}},
				"three": {at(10000), map[string]string{b: waitsForOne}},
				"four":  {at(2000), map[string]string{c: "Evacuating"}},
			},
			told: map[string]map[string]string{c: {"one": b}},
		},
	}
	maintenances := []Maintenance{
		maintenance(
			a, 0, entries{entry(typeDefault, 5000), entry(typeDefault, 15000), entry(typeDaemonSet, 3000)}, "one",
			"two",
		),
		maintenance(
			b, 1, entries{entry(typeDefault, 10000), entry(typeDefault, 15000), entry(typeDaemonSet, 4000)}, "one",
			"three",
		),
	}
	for _, step := range steps {
		w := World{Nodes: []*Node{node("one", step.one...), node("two", step.two...), node("three", step.three...)}}
		if step.arriving {
			maintenances = append(
				maintenances,
				maintenance(c, 2, entries{entry(typeDefault, 2000), entry(typeDefault, 15000)}, "one", "four"),
			)
			w.Nodes = append(w.Nodes, node("four", pod(typeDefault, 2000), pod(typeDefault, 3000)))
		}
		w.Maintenances = maintenances
		result, err := Plan(w)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(step.name, func(t *testing.T) {
			checkAll(t, result, step.want)
			if step.told == nil {
				step.told = map[string]map[string]string{}
			}
			if !reflect.DeepEqual(result.FastForwarded, step.told) {
				t.Errorf("fast-forwarded = %v, want %v", result.FastForwarded, step.told)
			}
			if len(result.Overrides) > 0 {
				t.Errorf("overrides = %v", result.Overrides)
			}
		})
		store(maintenances, result)
	}
}

// store writes the targets into all statuses.
func store(maintenances []Maintenance, result Result) {
	for i := range maintenances {
		for _, n := range maintenances[i].Nodes {
			maintenances[i].Before[n] = result.Targets[n].Entries
		}
	}
}

func TestFastForwarding(t *testing.T) {
	twoWaves := entries{entry(typeDefault, 1000), entry(typeDefault, maxPriority)}
	low, high := pod(typeDefault, 0), pod(typeDefault, 5000)
	far := entry(typeDefault, maxPriority)
	tests := map[string]struct {
		world   World
		told    string
		message string
	}{
		"a younger maintenance that joins": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("b", 0, twoWaves, "one").before("one", far),
					maintenance("m", 1, twoWaves, "one", "two"),
				},
				Nodes: []*Node{node("one", high), node("two", low)},
			},
			told: "b", message: "Evacuating (fast-forwarded by older b)",
		},
		"one that joins while there is no pod on the node": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("b", 0, twoWaves, "one").before("one", far),
					maintenance("m", 1, twoWaves, "one", "two"),
				},
				Nodes: []*Node{node("one"), node("two", low)},
			},
			told: "b", message: "Waiting for node two.",
		},
		"one that was created earlier but began to drain later": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("b", 1, twoWaves, "one").before("one", far),
					maintenance("m", 0, twoWaves, "one", "two"),
				},
				Nodes: []*Node{node("one", high), node("two", low)},
			},
			told: "b", message: "Evacuating",
		},
		"one whose own plan has come as far": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("b", 0, twoWaves, "one").before("one", far),
					maintenance("m", 1, twoWaves, "one", "two"),
				},
				Nodes: []*Node{node("one", high), node("two")},
			},
			message: "Evacuating",
		},
		"one that has been there all the time and falls back for a late pod": {
			world: World{
				Maintenances: []Maintenance{
					maintenance("m", 1, twoWaves, "one", "two").before("one", far).before("two", far),
				},
				Nodes: []*Node{node("one", high), node("two", low)},
			},
			message: "Evacuating",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			result := mustPlan(t, test.world)
			if got := result.FastForwarded["m"]["one"]; got != test.told {
				t.Errorf("fast-forwarded by %q, want %q", got, test.told)
			}
			if got := result.Messages["m"]["one"]; got != test.message {
				t.Errorf("message = %q, want %q", got, test.message)
			}
		})
	}
}

func TestContradictingPlansFollowTheOldest(t *testing.T) {
	older := maintenance("older", 0, entries{entryFor(typeDefault, 1000, "x"), entryFor(typeDefault, 2000, "y")}, "one")
	younger := maintenance(
		"younger", 1, entries{entryFor(typeDefault, 1000, "y"), entryFor(typeDefault, 2000, "x")}, "one",
	)
	result := mustPlan(t, World{
		Maintenances: []Maintenance{younger, older},
		Nodes:        []*Node{node("one", podOf("x", typeDefault, 1), podOf("y", typeDefault, 1))},
	})
	check(t, result, map[string]expected{"one": {
		entries{entryFor(typeDefault, 1000, "x")},
		map[string]string{"older": "Evacuating", "younger": "Evacuating (fast-forwarded by older older)"},
	}})
	if want := []Override{
		{Followed: "older", Overridden: []string{"younger"}},
	}; !reflect.DeepEqual(result.Overrides, want) {
		t.Errorf("overrides = %v, want %v", result.Overrides, want)
	}
}

func TestAllMaintenancesOfARaisedNodeAreOverridden(t *testing.T) {
	labelled := entry(typeDefault, 20)
	labelled.PodSelector = &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}},
	}
	result := mustPlan(t, World{
		Maintenances: []Maintenance{
			maintenance("oldest", 0, completed(nil), "empty", "static"),
			// These two name the pod by different selectors and so wait for each other.
			maintenance("a", 1, completed(entries{labelled}), "both"),
			maintenance("b", 2, completed(entries{entryFor(typeDefault, 10, "x")}), "both", "static"),
			maintenance("c", 3, completed(nil), "empty", "both"),
		},
		Nodes: []*Node{node("empty"), node("both", podOf("x", typeDefault, 10)), node("static", pod(typeStatic, 10))},
	})
	if want := []Override{
		{Followed: "oldest", Overridden: []string{"b", "c"}},
	}; !reflect.DeepEqual(result.Overrides, want) {
		t.Errorf("overrides = %v, want %v", result.Overrides, want)
	}
}

func TestAMaintenanceThatIsCreatedAnewIsYounger(t *testing.T) {
	x := maintenance("x", 0, entries{entryFor(typeDefault, 1000, "x"), entryFor(typeDefault, 2000, "y")}, "one")
	y := maintenance("y", 1, entries{entryFor(typeDefault, 1000, "y"), entryFor(typeDefault, 2000, "x")}, "one")
	nodes := []*Node{node("one", podOf("x", typeDefault, 1), podOf("y", typeDefault, 1))}
	for _, followed := range []string{"x", "y"} {
		result, err := Plan(World{Maintenances: []Maintenance{x, y}, Nodes: nodes})
		if err != nil {
			t.Fatal(err)
		}
		check(t, result, map[string]expected{"one": {targets: entries{entryFor(typeDefault, 1000, followed)}}})
		x.Created = x.Created.Add(time.Hour)
	}
}

func TestPlanRefusesWhatItCannotUnderstand(t *testing.T) {
	bad := entryFor(typeDefault, 1, "x")
	bad.PodSelector.MatchLabels["app"] = "not a label value"
	for name, world := range map[string]World{
		"a selector that cannot be parsed": {
			Maintenances: []Maintenance{maintenance("m", 0, entries{bad}, "one")},
			Nodes:        []*Node{node("one")},
		},
		"a selector of a status that cannot be parsed": {
			Maintenances: []Maintenance{maintenance("m", 0, nil, "one").before("one", bad)},
			Nodes:        []*Node{node("one")},
		},
		"a node that the world does not have": {Maintenances: []Maintenance{maintenance("m", 0, nil, "one")}},
		"a node that is there twice":          {Nodes: []*Node{node("one"), node("one")}},
		"a maintenance that is there twice": {
			Maintenances: []Maintenance{maintenance("m", 0, nil), maintenance("m", 0, nil)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if result, err := Plan(world); err == nil || result.Targets != nil {
				t.Errorf("result %v, error %v", result, err)
			}
		})
	}
}

func mustPlan(t *testing.T, world World) Result {
	t.Helper()
	result, err := Plan(world)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// checkAll checks that there is nothing but what is expected.
func checkAll(t *testing.T, result Result, want map[string]expected) {
	t.Helper()
	check(t, result, want)
	if got := len(result.Targets); got != len(want) {
		t.Errorf("targets of %d nodes, want %d", got, len(want))
	}
	messages := 0
	for _, of := range result.Messages {
		messages += len(of)
	}
	for _, w := range want {
		messages -= len(w.messages)
	}
	if messages != 0 {
		t.Errorf("%d messages too many", messages)
	}
}

func check(t *testing.T, result Result, want map[string]expected) {
	t.Helper()
	for node, w := range want {
		if got := result.Targets[node].Entries; !slices.EqualFunc(
			got, w.targets, func(a, b maintenancev1alpha1.DrainPlanEntry) bool { return reflect.DeepEqual(a, b) },
		) {
			t.Errorf("targets of %s = %v, want %v", node, got, w.targets)
		}
		for maintenance, message := range w.messages {
			if got := result.Messages[maintenance][node]; got != message {
				t.Errorf("message of %s for %s = %q, want %q", maintenance, node, got, message)
			}
		}
	}
}
