// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"haulout.dev/haulout/test/bench/internal/goals"
)

// These constants are the goals.
const (
	// maxTime limits the time of a rollout after its ramp, as a multiple of that of the loop.
	maxTime = 1.1
	// maxUnused limits the share of the places that no node takes after the ramp.
	maxUnused = 0.1
	// maxWrites and maxNodeWrites limit the writes for a node without pods, and those on the Node.
	maxWrites, maxNodeWrites = 20, 6
	// maxDecision limits the time of a round of decisions, as a multiple of that of a drain plan.
	maxDecision = 1
	// maxDrain limits the time of a drain without rollouts, as a multiple of that before.
	maxDrain = 1.02
)

// report is the content of the JSON file. Parts that were not measured are missing.
type report struct {
	CPUs       int       `json:"cpus"`
	Kubernetes string    `json:"kubernetes,omitempty"`
	Started    time.Time `json:"started"`
	Load       string    `json:"loadBefore"`
	Nodes      int       `json:"nodes"`
	Places     int       `json:"places"`
	Pods       int       `json:"pods"`
	// Work is the time of the work on a node. LoopPause is the time for which the loop waits
	// between the cordon and the drain.
	Work      float64 `json:"workSeconds"`
	LoopPause float64 `json:"loopPauseSeconds"`
	// Rollouts and Loops are the trips of both contenders, one for each repetition.
	Rollouts []trip `json:"rollouts,omitempty"`
	Loops    []trip `json:"loops,omitempty"`
	// Trip are the writes of a rollout over all nodes, without pods. Idle are those of an idle
	// server.
	Trip     *writes      `json:"writes,omitempty"`
	Idle     *writes      `json:"idleWrites,omitempty"`
	Decision *decision    `json:"decision,omitempty"`
	Memory   *memory      `json:"memory,omitempty"`
	Drains   *drains      `json:"drains,omitempty"`
	Goals    []goals.Goal `json:"goals"`
}

// judge compares the figures that were measured with the goals.
func (r *report) judge() {
	var all []goals.Goal
	add := func(text string, value, bound float64) {
		// A part that has failed may have one half of a ratio only.
		if !math.IsNaN(value) && !math.IsInf(value, 0) {
			all = append(all, goals.Goal{Text: text, Value: value, Bound: bound})
		}
	}
	if len(r.Rollouts) > 0 {
		of := func(trips []trip, figure func(t trip) float64) float64 {
			var values []float64
			for _, t := range trips {
				values = append(values, figure(t))
			}
			return median(values)
		}
		after := func(t trip) float64 { return t.AfterSeconds }
		add("time of a rollout after the ramp, of that of the loop", of(r.Rollouts, after)/of(r.Loops, after), maxTime)
		most := slices.MaxFunc(r.Rollouts, func(a, b trip) int { return cmp.Compare(a.Most, b.Most) })
		add("nodes out of service at the same time", float64(most.Most), float64(r.Places))
		add("unused places after the ramp, as a share", 1-of(r.Rollouts, func(t trip) float64 { return t.InUse }), maxUnused)
	}
	if r.Trip != nil {
		nodes := float64(r.Nodes)
		add("writes for each node without pods", r.Trip.all()/nodes, maxWrites)
		add("writes on each Node", r.Trip.onNodes()/nodes, maxNodeWrites)
	}
	if r.Decision != nil {
		add("time of a round of decisions, of that of a drain plan", median(r.Decision.RoundSeconds)/median(r.Decision.PlanSeconds), maxDecision)
	}
	if r.Memory != nil {
		all = append(all, r.Memory.Goals...)
	}
	if r.Idle != nil {
		add("writes in a minute without work", r.Idle.all()/(r.Idle.Seconds/60), 0)
	}
	if r.Drains != nil {
		add("time of a drain without rollouts, of that before", median(r.Drains.NowSeconds)/median(r.Drains.BeforeSeconds), maxDrain)
	}
	r.Goals = goals.Judge(all...)
}

// median returns the middle value, or the mean of the two middle values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	low, high := sorted[(len(sorted)-1)/2], sorted[len(sorted)/2]
	return (low + high) / 2
}

// publish prints the figures and writes the file.
func (r *report) publish(out io.Writer, file string) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(r.Rollouts) > 0 {
		fmt.Fprintln(table, "\nCONTENDER\tSECONDS\tRAMP\tAFTER\tPER NODE\tIN USE\tMOST OUT")
		for i, t := range slices.Concat(r.Rollouts, r.Loops) {
			name := "rollout"
			if i >= len(r.Rollouts) {
				name = "loop"
			}
			fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f%%\t%d\n", name, t.Seconds, t.RampSeconds, t.AfterSeconds, t.PerNode, t.InUse*100, t.Most)
		}
	}
	for _, part := range []struct {
		title string
		*writes
		nodes int
	}{{"WRITES FOR EACH NODE", r.Trip, r.Nodes}, {"WRITES WITHOUT WORK", r.Idle, 1}} {
		if part.writes == nil {
			continue
		}
		fmt.Fprintf(table, "\n%s\tCOUNT\n", part.title)
		for _, counts := range []map[string]int{part.Own, part.Host} {
			for _, kind := range slices.Sorted(maps.Keys(counts)) {
				fmt.Fprintf(table, "%s\t%.2f\n", kind, float64(counts[kind])/float64(part.nodes))
			}
		}
	}
	goals.Print(table, r.Goals)
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nAll figures are in %s.\n", file)
	return goals.WriteReport(file, r)
}
