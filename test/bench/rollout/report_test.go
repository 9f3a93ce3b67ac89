// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/bench/internal/goals"
)

// full returns a report with all parts. Each figure is at its bound.
func full() *report {
	return &report{
		Nodes: 10, Places: 2,
		Rollouts: []trip{{AfterSeconds: 11, InUse: 0.9, Most: 2}},
		Loops:    []trip{{AfterSeconds: 10, InUse: 0.5, Most: 9}},
		Trip:     &writes{Own: map[string]int{"create nodetasks": 100}, Host: map[string]int{"patch nodes": 40, "patch nodes/status": 20, "create events": 40}},
		Idle:     &writes{Seconds: 120},
		Decision: &decision{RoundSeconds: []float64{9, 2, 2}, PlanSeconds: []float64{2, 1, 9}},
		Memory:   &memory{Goals: []goals.Goal{{Text: "heap", Value: 1.1, Bound: 1.1}}},
		Drains:   &drains{NowSeconds: []float64{51, 52}, BeforeSeconds: []float64{50, 53}},
	}
}

func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*report)
		// missed are the beginnings of the texts of the goals that are missed.
		missed []string
	}{
		"all goals are reached at their bounds": {change: func(*report) {}},
		"a rollout that is too slow":            {func(r *report) { r.Rollouts[0].AfterSeconds = 11.1 }, []string{"time of a rollout"}},
		"the median of the repetitions decides, and the worst of the places": {
			func(r *report) {
				r.Rollouts = []trip{{AfterSeconds: 99, InUse: 0.95, Most: 3}, {AfterSeconds: 11, InUse: 0.9, Most: 2}, {AfterSeconds: 1, InUse: 0.1, Most: 2}}
			},
			[]string{"nodes out"},
		},
		"places that are not used":        {func(r *report) { r.Rollouts[0].InUse = 0.89 }, []string{"unused places"}},
		"one write too many":              {func(r *report) { r.Trip.Own["patch nodetasks/status"] = 1 }, []string{"writes for each"}},
		"a write too many on the Nodes":   {func(r *report) { r.Trip.Host["patch nodes"]++; r.Trip.Host["create events"]-- }, []string{"writes on each"}},
		"a write without work":            {func(r *report) { r.Idle.Host = map[string]int{"create events": 1} }, []string{"writes in a minute"}},
		"a decision slower than a plan":   {func(r *report) { r.Decision.RoundSeconds = []float64{2.1} }, []string{"time of a round"}},
		"a server that takes more memory": {func(r *report) { r.Memory.Goals[0].Value = 1.2 }, []string{"heap"}},
		"drains that are slower":          {func(r *report) { r.Drains.NowSeconds = []float64{53} }, []string{"time of a drain"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := full()
			test.change(r)
			r.judge()
			is.Equal(t, len(r.Goals), 9, "goals")
			var missed []string
			for _, g := range r.Goals {
				if !g.Kept {
					missed = append(missed, g.Text)
				}
			}
			is.Equal(t, len(missed), len(test.missed), "missed goals")
			for i := range min(len(missed), len(test.missed)) {
				is.True(t, strings.HasPrefix(missed[i], test.missed[i]), "missed %q, want %q", missed[i], test.missed[i])
			}
		})
	}
	for name, r := range map[string]*report{
		"nothing was measured": {}, "the loop failed": {Rollouts: []trip{{AfterSeconds: 1}}}, "the plan failed": {Decision: &decision{RoundSeconds: []float64{1}}},
		"the first drain failed": {Drains: &drains{}},
	} {
		r.judge()
		is.True(t, !slices.ContainsFunc(r.Goals, func(g goals.Goal) bool { return strings.HasPrefix(g.Text, "time of") }), "%s: got goals %v", name, r.Goals)
	}
}

func TestPublish(t *testing.T) {
	r := full()
	r.judge()
	file := filepath.Join(t.TempDir(), "report.json")
	var out strings.Builder
	must.Do(t, r.publish(&out, file))
	for _, want := range []string{
		"rollout ", "loop ", "create nodetasks      10.00", "patch nodes           4.00", "WRITES WITHOUT WORK",
		"writes in a minute without work                        0.00      <= 0     kept",
	} {
		is.True(t, strings.Contains(out.String(), want), "want %q in\n%s", want, out.String())
	}
	var read report
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(file))(t), &read))
	if diff := cmp.Diff(r.Goals, read.Goals); diff != "" {
		t.Error(diff)
	}
}

func TestDifference(t *testing.T) {
	got := difference(map[string]int{"a": 1, "b": 2}, map[string]int{"a": 1, "b": 5, "c": 1})
	if diff := cmp.Diff(map[string]int{"b": 3, "c": 1}, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseBenchmark(t *testing.T) {
	line := "BenchmarkPlan/plan=default/nodes=5000-2         \t      10\t 123000000 ns/op\t 12 B/op\n"
	is.Equal(t, must.Get(parseBenchmark("goos: linux\n"+line+"PASS\n"))(t), 0.123)
	for name, output := range map[string]string{"no benchmark": "PASS\n", "two benchmarks": line + line} {
		if _, err := parseBenchmark(output); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}
