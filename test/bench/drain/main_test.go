// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestSettings(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		// fails is a part of the error; "" means no error.
		fails string
	}{
		"the defaults are valid": {},
		"a small size":           {args: []string{"--pods=60", "--deployments=6", "--nodes=6", "--spare=4"}},
		"one workload and two contenders": {
			args: []string{"--workloads=no-budgets", "--contenders=bare-loop,maintenance"},
		},
		"a contender that is not in the default":    {args: []string{"--contenders=drain-pool,drain-pool-webhook"}},
		"pods that do not divide into Deployments":  {args: []string{"--pods=601"}, fails: "--deployments"},
		"more pods than the spare nodes can run":    {args: []string{"--pods=600", "--spare=2"}, fails: "--spare"},
		"more pods than the nodes to drain can run": {args: []string{"--pods=600", "--nodes=2"}, fails: "--nodes"},
		"no repetition":                  {args: []string{"--repetitions=0"}, fails: "--repetitions=0"},
		"an unknown contender":           {args: []string{"--contenders=unknown"}, fails: "flag -contenders"},
		"an empty list of workloads":     {args: []string{"--workloads="}, fails: "flag -workloads"},
		"no time for a drain":            {args: []string{"--timeout=0s"}, fails: "--timeout"},
		"an argument that is not a flag": {args: []string{"fast"}, fails: "\"fast\""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readSettings(test.args)
			if test.fails == "" && err != nil || test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
				t.Errorf("got error %v, want one that names %q", err, test.fails)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	for repetition, want := range [][]string{{"a", "b", "c"}, {"b", "c", "a"}, {"c", "a", "b"}, {"a", "b", "c"}} {
		if diff := cmp.Diff(want, order([]string{"a", "b", "c"}, repetition)); diff != "" {
			t.Errorf("repetition %d: %s", repetition, diff)
		}
	}
}

func TestDefaultContenders(t *testing.T) {
	s := must.Get(readSettings(nil))(t)
	left := slices.DeleteFunc(slices.Clone(contenderNames), func(name string) bool { return slices.Contains(s.contenders, name) })
	if diff := cmp.Diff([]string{"drain-pool-webhook"}, left); diff != "" {
		t.Errorf("contenders that the default leaves out: %s", diff)
	}
}

func TestHopeless(t *testing.T) {
	var hopeless []string
	for _, contender := range contenderNames {
		if (workload{name: singleReplicas}).isHopeless(contender) {
			hopeless = append(hopeless, contender)
		}
		is.True(t, !workload{name: oneBudget}.isHopeless(contender), "%s cannot drain %s", contender, oneBudget)
	}
	if diff := cmp.Diff([]string{drainPool, drainNodes, bareLoop, noSurge}, hopeless); diff != "" {
		t.Errorf("contenders that can never drain %s: %s", singleReplicas, diff)
	}
}

func TestWorkloads(t *testing.T) {
	s := must.Get(readSettings(nil))(t)
	for name, want := range map[string][3]int{
		oneBudget: {1, 1, 600}, manyBudgets: {30, 30, 600}, noBudgets: {1, 0, 600}, singleReplicas: {50, 50, 50},
	} {
		w := newWorkload(name, s)
		if got := [3]int{len(w.deployments), len(w.budgets), w.pods()}; got != want {
			t.Errorf("%s: got %v Deployments, budgets and pods, want %v", name, got, want)
		}
		for i, d := range w.withoutSurge().deployments {
			off := d.Annotations[v1alpha1.AnnotationSurge] == v1alpha1.SurgeDisabled
			if _, changed := w.deployments[i].Annotations[v1alpha1.AnnotationSurge]; changed || !off {
				t.Errorf("%s: only the contender %s must have surge off", name, noSurge)
			}
		}
		if got := len(w.watched()); got != want[0] {
			t.Errorf("%s: the availability of %d Deployments is measured, want %d", name, got, want[0])
		}
	}
}
