// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

// goal is a promise about the rate or the manners of a NodeMaintenance, and whether it was kept.
type goal struct {
	Workload string `json:"workload"`
	Text     string `json:"text"`
	// Value is what was measured. It must be at least Bound, or at most if Upper says so.
	Value float64 `json:"value"`
	Bound float64 `json:"bound"`
	Upper bool    `json:"upper"`
	Kept  bool    `json:"kept"`
}

// wanted are the rates that a NodeMaintenance must reach with a workload, as multiples of the rates
// of other contenders.
type wanted struct {
	workload, contender, other string
	times                      float64
}

var wantedRates = []wanted{
	// With surge, as users get it, a drain takes no longer than the bare loop where budgets decide
	// about the pace. The loop replaces no pod before it leaves.
	{oneBudget, maintenance, bareLoop, 1},
	{manyBudgets, maintenance, bareLoop, 1},
	{oneBudget, noSurge, bareLoop, 0.95},
	{manyBudgets, noSurge, bareLoop, 0.95},
	// Pods without a budget leave in turns by owner; the loop takes all of them at the same time.
	{noBudgets, maintenance, bareLoop, 1.0 / 3},
	{noBudgets, noSurge, bareLoop, 1.0 / 3},
	{oneBudget, maintenance, drainPool, 2.5},
	{manyBudgets, maintenance, drainPool, 2.5},
	{noBudgets, maintenance, drainPool, 2.5},
	{oneBudget, noSurge, drainPool, 2.5},
	{manyBudgets, noSurge, drainPool, 2.5},
	{noBudgets, noSurge, drainPool, 2.5},
	// Bad input slows no other drain by more than a tenth.
	{oneBudget, badInput, maintenance, 0.9},
	{manyBudgets, badInput, maintenance, 0.9},
	{noBudgets, badInput, maintenance, 0.9},
	{singleReplicas, badInput, maintenance, 0.9},
}

const (
	// maxRejected is the part of its evictions that may be rejected.
	maxRejected = 0.02
	// maxSurgeCPU is how many times the processor time of haulout-apiserver without surge the same
	// drain may take with surge.
	maxSurgeCPU = 2
	// fullAvailability is how many percent of the replicas have to be available with surge.
	fullAvailability = 100
)

// judgeGoals compares the NodeMaintenances with what they were measured beside.
func judgeGoals(summaries []summary) []goal {
	found := map[[2]string]summary{}
	for _, s := range summaries {
		if s.Failed == 0 {
			found[[2]string{s.Workload, s.Contender}] = s
		}
	}
	var goals []goal
	for _, s := range summaries {
		hopeless := workload{name: s.Workload}.isHopeless(s.Contender)
		ours := s.Contender == maintenance || s.Contender == noSurge || s.Contender == badInput
		if !ours || hopeless {
			continue
		}
		goals = append(goals, goalsOf(s, found)...)
	}
	return goals
}

// goalsOf judges one contender with one workload. What was found of the others has no failures.
func goalsOf(s summary, found map[[2]string]summary) []goal {
	var goals []goal
	add := func(text string, value, bound float64, upper bool) {
		kept := s.Failed == 0 && (upper && value <= bound || !upper && value >= bound)
		goals = append(goals, goal{s.Workload, s.Contender + ": " + text, value, bound, upper, kept})
	}
	for _, w := range wantedRates {
		o, ok := found[[2]string{s.Workload, w.other}]
		if ok && w.workload == s.Workload && w.contender == s.Contender {
			add("times the rate of "+w.other, share(s.PodsPerSecond, o.PodsPerSecond), w.times, false)
		}
	}
	if s.Contender == maintenance {
		if o, ok := found[[2]string{s.Workload, noSurge}]; ok {
			cpu := share(s.Server.CPUSeconds, o.Server.CPUSeconds)
			add("times our CPU of "+noSurge, cpu, maxSurgeCPU, true)
		}
	}
	if s.Contender == maintenance || s.Contender == badInput {
		add("lowest availability, in percent", s.LowestShare*100, fullAvailability, false)
	}
	add("rejected evictions, in percent", s.RejectedShare*100, maxRejected*100, true)
	add("evictions sent to closed budgets", float64(s.ToClosed), 0, true)
	add("moments below a budget", float64(s.Below), 0, true)
	add("failed drains", float64(s.Failed), 0, true)
	return goals
}
