// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"haulout.dev/haulout/test/bench/internal/usage"
	"haulout.dev/haulout/test/oracle"
)

// report is the content of the JSON file.
type report struct {
	Machine  machine  `json:"machine"`
	Settings figures  `json:"settings"`
	Drains   []result `json:"drains"`
	// Summaries combine the repetitions, in the order of the table.
	Summaries []summary `json:"summaries"`
	// Webhook is what the webhook of eviction interception costs, if maintenance ran.
	Webhook []pair `json:"webhook,omitempty"`
	Goals   []goal `json:"goals"`
}

// pair has the seconds that one of Haulout's evictions takes without and with the webhook, in two
// blocks one after the other.
type pair struct {
	Without float64 `json:"withoutSeconds"`
	With    float64 `json:"withSeconds"`
}

// added returns the seconds that the webhook adds to an eviction: the median of the pairs.
func added(pairs []pair) float64 {
	differences := make([]float64, 0, len(pairs))
	for _, p := range pairs {
		differences = append(differences, p.With-p.Without)
	}
	return median(differences)
}

// machine describes the machine and the cluster.
type machine struct {
	CPUs       int    `json:"cpus"`
	Go         string `json:"go"`
	Kubernetes string `json:"kubernetes"`
	// Load is the load average of the last minute before the start.
	Load    string    `json:"loadBefore"`
	Started time.Time `json:"started"`
}

// figures are the settings that affect the results.
type figures struct {
	Pods        int     `json:"pods"`
	Deployments int     `json:"deployments"`
	Singles     int     `json:"singleReplicas"`
	Nodes       int     `json:"nodes"`
	Spare       int     `json:"spareNodes"`
	Workers     int     `json:"loopWorkers"`
	Retry       float64 `json:"loopRetrySeconds"`
	Repetitions int     `json:"repetitions"`
	GOGC        int     `json:"gogc"`
}

// result is one drain.
type result struct {
	Workload   string `json:"workload"`
	Contender  string `json:"contender"`
	Repetition int    `json:"repetition"`
	// Position is the position of the contender in its repetition, from 0.
	Position int `json:"position"`
	// Failed is the error of a failed drain.
	Failed string `json:"failed,omitempty"`
	Pods   int    `json:"pods"`
	// Left is the number of pods that did not leave the nodes.
	Left int `json:"podsKept"`
	// Created is the number of pods created during the drain: at least one for each pod that left.
	Created int `json:"podsCreated"`
	// FirstSeconds is the time until the first eviction, Seconds the time until the last pod left
	// the nodes, DoneSeconds the time until the contender reported the end.
	FirstSeconds float64 `json:"firstEvictionSeconds"`
	Seconds      float64 `json:"seconds"`
	DoneSeconds  float64 `json:"doneSeconds"`
	// Starts is the number of starts of the contender's programs.
	Starts int `json:"starts"`
	// Calls is the number of calls of the Eviction API, Rejected the number of calls that evicted
	// no pod. Answers counts the calls by HTTP status.
	Calls    int           `json:"evictionCalls"`
	Rejected int           `json:"rejectedCalls"`
	Answers  map[int32]int `json:"answers"`
	// ToClosed is the number of evictions that were sent although the budget had allowed no
	// disruption for a while. It does not include the Probes: one eviction in six seconds may test
	// whether the budget allows a disruption now.
	ToClosed int `json:"callsToClosedBudgets"`
	Probes   int `json:"probes"`
	// ClientCPUSeconds is the processor time of the contender's own programs.
	ClientCPUSeconds float64 `json:"clientCPUSeconds"`
	// Processes are the processes of the cluster, measured until the contender reported the end.
	Processes map[string]cost `json:"processes"`
	Budgets   []budget        `json:"budgets,omitempty"`
}

// cost is the cost of a process.
type cost struct {
	CPUSeconds float64 `json:"cpuSeconds"`
	PeakBytes  int64   `json:"peakBytes"`
}

// budget has the result for one PodDisruptionBudget.
type budget struct {
	Name     string `json:"name"`
	Expected int    `json:"pods"`
	Needed   int    `json:"needed"`
	// Lowest is the minimum number of available pods. Below is the number of pods that were lost
	// while no more pods were available than the budget needs.
	Lowest int `json:"lowest"`
	Below  int `json:"momentsBelow"`
}

// enterCalls counts the evictions since the drain began.
func (r *result) enterCalls(calls []oracle.Call, begin time.Time) {
	r.Answers = map[int32]int{}
	var first time.Time
	for i := range calls {
		if calls[i].Namespace != namespace || calls[i].Subresource != "eviction" {
			continue
		}
		if first.IsZero() || calls[i].Received.Before(first) {
			first = calls[i].Received
			r.FirstSeconds = first.Sub(begin).Seconds()
		}
		r.Calls++
		r.Answers[calls[i].Code]++
		// A pod that was already gone counts as evicted.
		if !calls[i].Evicted() && calls[i].Code != http.StatusNotFound {
			r.Rejected++
		}
	}
}

func (r *result) enterCosts(costs map[string]usage.Cost) {
	r.Processes = map[string]cost{}
	for name, c := range costs {
		r.Processes[name] = cost{CPUSeconds: c.CPU.Seconds(), PeakBytes: c.Peak}
	}
}

// allCPUSeconds returns the processor time of the cluster and of the contender's programs.
func (r *result) allCPUSeconds() float64 {
	sum := r.ClientCPUSeconds
	for _, c := range r.Processes {
		sum += c.CPUSeconds
	}
	return sum
}

// summary combines the repetitions of a contender with a workload: medians of the successful
// repetitions and, for budgets, the worst value of all repetitions.
type summary struct {
	Workload      string  `json:"workload"`
	Contender     string  `json:"contender"`
	Drains        int     `json:"drains"`
	Failed        int     `json:"failed"`
	Pods          int     `json:"pods"`
	FirstSeconds  float64 `json:"firstEvictionSeconds"`
	Seconds       float64 `json:"seconds"`
	DoneSeconds   float64 `json:"doneSeconds"`
	PodsPerSecond float64 `json:"podsPerSecond"`
	// Created is the median number of pods that were created during the drain.
	Created     float64 `json:"podsCreated"`
	CallsPerPod float64 `json:"evictionCallsPerPod"`
	// Rejected is the median number of rejected calls, RejectedShare their share of all calls.
	Rejected      float64 `json:"rejectedCalls"`
	RejectedShare float64 `json:"rejectedShare"`
	// ToClosed is the maximum of ToClosed of all drains.
	ToClosed         int     `json:"callsToClosedBudgets"`
	Host             cost    `json:"kubeAPIServer"`
	Server           cost    `json:"hauloutAPIServer"`
	ClientCPUSeconds float64 `json:"clientCPUSeconds"`
	// AllCPUSeconds is the processor time of the cluster and of the contender's programs.
	AllCPUSeconds float64 `json:"allCPUSeconds"`
	// Budgets is the number of budgets. LowestShare is the lowest availability of any budget's
	// pods, NeededShare the availability that the same budget needs.
	Budgets     int     `json:"budgets"`
	LowestShare float64 `json:"lowestShare"`
	NeededShare float64 `json:"neededShare"`
	Below       int     `json:"momentsBelow"`
}

// summarize combines the repetitions, in the given order of workloads and contenders.
func summarize(results []result, workloads, contenders []string) []summary {
	var out []summary
	for _, workload := range workloads {
		for _, contender := range contenders {
			var all, good []result
			for i := range results {
				if results[i].Workload != workload || results[i].Contender != contender {
					continue
				}
				all = append(all, results[i])
				if results[i].Failed == "" {
					good = append(good, results[i])
				}
			}
			if len(all) == 0 {
				continue
			}
			s := summary{
				Workload: workload, Contender: contender, Drains: len(all), Failed: len(all) - len(good),
				LowestShare: 1,
			}
			s.enterMedians(good)
			for i := range all {
				s.ToClosed = max(s.ToClosed, all[i].ToClosed)
				s.enterBudgets(all[i].Budgets)
			}
			out = append(out, s)
		}
	}
	return out
}

func (s *summary) enterMedians(good []result) {
	of := func(figure func(*result) float64) float64 {
		values := make([]float64, 0, len(good))
		for i := range good {
			values = append(values, figure(&good[i]))
		}
		return median(values)
	}
	s.Pods = int(of(func(r *result) float64 { return float64(r.Pods) }))
	s.FirstSeconds = of(func(r *result) float64 { return r.FirstSeconds })
	s.Seconds = of(func(r *result) float64 { return r.Seconds })
	s.DoneSeconds = of(func(r *result) float64 { return r.DoneSeconds })
	s.PodsPerSecond = of(func(r *result) float64 { return share(float64(r.Pods), r.Seconds) })
	s.Created = of(func(r *result) float64 { return float64(r.Created) })
	s.CallsPerPod = of(func(r *result) float64 { return share(float64(r.Calls), float64(r.Pods)) })
	s.Rejected = of(func(r *result) float64 { return float64(r.Rejected) })
	s.RejectedShare = of(func(r *result) float64 { return share(float64(r.Rejected), float64(r.Calls)) })
	s.ClientCPUSeconds = of(func(r *result) float64 { return r.ClientCPUSeconds })
	s.AllCPUSeconds = of((*result).allCPUSeconds)
	for name, c := range map[string]*cost{host: &s.Host, server: &s.Server} {
		c.CPUSeconds = of(func(r *result) float64 { return r.Processes[name].CPUSeconds })
		c.PeakBytes = int64(of(func(r *result) float64 { return float64(r.Processes[name].PeakBytes) }))
	}
}

func (s *summary) enterBudgets(budgets []budget) {
	s.Budgets = max(s.Budgets, len(budgets))
	for _, b := range budgets {
		s.Below += b.Below
		if lowest := share(float64(b.Lowest), float64(b.Expected)); lowest < s.LowestShare || s.NeededShare == 0 {
			s.LowestShare, s.NeededShare = lowest, share(float64(b.Needed), float64(b.Expected))
		}
	}
}

// share returns part/whole, or 0 if whole is 0.
func share(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}

// median returns the middle value, or the mean of the two middle values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// goal is a required result of a NodeMaintenance, and whether it was reached.
type goal struct {
	Workload string `json:"workload"`
	Text     string `json:"text"`
	// Value is the measured value. Bound is its maximum if Upper is true, else its minimum.
	Value float64 `json:"value"`
	Bound float64 `json:"bound"`
	Upper bool    `json:"upper"`
	Kept  bool    `json:"kept"`
	// Ceiling is the Value that is possible if both contenders keep all processors busy: the
	// processor time of the other contender's drain, of that of this drain. It is 0 for goals that
	// compare no rates.
	Ceiling float64 `json:"ceiling,omitempty"`
}

// wanted is the rate that a NodeMaintenance must reach with a workload, as a multiple of the rate
// of another contender.
type wanted struct {
	workload, contender, other string
	times                      float64
}

var wantedRates = []wanted{
	// The loop does less than a drain: it records nothing, and with surge a drain replaces pods
	// before they leave. With many budgets the loop repeats two of three evictions.
	{oneBudget, maintenance, bareLoop, 0.8},
	{manyBudgets, maintenance, bareLoop, 1},
	{oneBudget, noSurge, bareLoop, 0.9},
	{manyBudgets, noSurge, bareLoop, 1},
	// A drain evicts pods without a budget one owner after another; the loop evicts all at the same
	// time.
	{noBudgets, maintenance, bareLoop, 1.0 / 3},
	{noBudgets, noSurge, bareLoop, 1.0 / 3},
	{oneBudget, maintenance, drainPool, 4},
	{manyBudgets, maintenance, drainPool, 4},
	{noBudgets, maintenance, drainPool, 4},
	{oneBudget, noSurge, drainPool, 4},
	{manyBudgets, noSurge, drainPool, 4},
	{noBudgets, noSurge, drainPool, 4},
	// Bad input makes other drains at most a tenth slower.
	{oneBudget, badInput, maintenance, 0.9},
	{manyBudgets, badInput, maintenance, 0.9},
	{noBudgets, badInput, maintenance, 0.9},
	{singleReplicas, badInput, maintenance, 0.9},
}

// maxMilliseconds is the maximum processor time of haulout-apiserver for each pod under one budget,
// by contender.
var maxMilliseconds = map[string]float64{maintenance: 12, noSurge: 8}

const (
	// maxMade is the maximum number of pods that are created for each pod that leaves.
	maxMade = 1
	// maxRejected is the maximum share of rejected evictions.
	maxRejected = 0.02
	// maxSurgeCPU limits the processor time of haulout-apiserver with surge, as a multiple of its
	// time for the same drain without surge.
	maxSurgeCPU = 1.5
	// maxWebhook limits what the webhook adds to an eviction, as a share of the drain's time per
	// pod.
	maxWebhook = 0.02
	// fullAvailability is the minimum percentage of available replicas with surge.
	fullAvailability = 100
)

// judgeGoals compares the results of the NodeMaintenances with the results of the other contenders
// and with what the webhook costs.
func judgeGoals(summaries []summary, webhook []pair) []goal {
	found := map[[2]string]summary{}
	for _, s := range summaries {
		if s.Failed == 0 {
			found[[2]string{s.Workload, s.Contender}] = s
		}
	}
	var goals []goal
	for _, s := range summaries {
		hopeless := workload{name: s.Workload}.isHopeless(s.Contender)
		ours := []string{maintenance, noSurge, badInput}
		if !slices.Contains(ours, s.Contender) || hopeless {
			continue
		}
		goals = append(goals, goalsOf(s, found, webhook)...)
	}
	return goals
}

// goalsOf judges one contender with one workload. found has only summaries without failures.
func goalsOf(s summary, found map[[2]string]summary, webhook []pair) []goal {
	var goals []goal
	add := func(text string, value, bound float64, upper bool) {
		kept := s.Failed == 0 && (upper && value <= bound || !upper && value >= bound)
		goals = append(goals, goal{Workload: s.Workload, Text: s.Contender + ": " + text, Value: value, Bound: bound, Upper: upper, Kept: kept})
	}
	for _, w := range wantedRates {
		o, ok := found[[2]string{s.Workload, w.other}]
		if ok && w.workload == s.Workload && w.contender == s.Contender {
			add("times the rate of "+w.other, share(s.PodsPerSecond, o.PodsPerSecond), w.times, false)
			if w.other == bareLoop { // kubectl leaves the processors idle between its tries
				goals[len(goals)-1].Ceiling = share(o.AllCPUSeconds, s.AllCPUSeconds)
			}
		}
	}
	if most, ok := maxMilliseconds[s.Contender]; ok && s.Workload == oneBudget {
		add("our CPU for each pod, in ms", share(s.Server.CPUSeconds*1000, float64(s.Pods)), most, true)
	}
	if s.Contender == maintenance {
		if o, ok := found[[2]string{s.Workload, noSurge}]; ok {
			cpu := share(s.Server.CPUSeconds, o.Server.CPUSeconds)
			add("times our CPU of "+noSurge, cpu, maxSurgeCPU, true)
		}
		if len(webhook) > 0 {
			add("share of a drain that the webhook takes, in percent", added(webhook)*s.PodsPerSecond*100, maxWebhook*100, true)
		}
	}
	add("pods made for each pod", share(s.Created, float64(s.Pods)), maxMade, true)
	if s.Contender != noSurge {
		add("lowest availability, in percent", s.LowestShare*100, fullAvailability, false)
	}
	add("rejected evictions, in percent", s.RejectedShare*100, maxRejected*100, true)
	add("evictions sent to closed budgets", float64(s.ToClosed), 0, true)
	add("moments below a budget", float64(s.Below), 0, true)
	add("failed drains", float64(s.Failed), 0, true)
	return goals
}

// printSummaries prints a row for each workload and contender.
func printSummaries(out io.Writer, summaries []summary) error {
	rows := [][]string{{
		"WORKLOAD", "CONTENDER", "FIRST", "SECONDS", "DONE", "PODS/S", "MADE", "CALLS/POD", "REJECTED", "TO CLOSED",
		"API CPU", "API MB", "OUR CPU", "OUR MB", "CLIENT CPU", "LOWEST", "NEEDED", "BELOW",
	}}
	for _, s := range summaries {
		if s.Failed == s.Drains {
			row := slices.Repeat([]string{"-"}, len(rows[0]))
			row[0], row[1] = s.Workload, s.Contender+" (not done)"
			rows = append(rows, row)
			continue
		}
		lowest, needed, below := "-", "-", "-"
		if s.Budgets > 0 {
			lowest, needed, below = percent(s.LowestShare), percent(s.NeededShare), fmt.Sprint(s.Below)
		}
		name := s.Contender
		if s.Failed > 0 {
			name += fmt.Sprintf(" (%d of %d failed)", s.Failed, s.Drains)
		}
		rows = append(rows, []string{
			s.Workload, name, seconds(s.FirstSeconds), seconds(s.Seconds), seconds(s.DoneSeconds),
			fmt.Sprintf("%.1f", s.PodsPerSecond), fmt.Sprintf("%.0f", s.Created), fmt.Sprintf("%.2f", s.CallsPerPod),
			fmt.Sprintf("%.0f (%s)", s.Rejected, percent(s.RejectedShare)), fmt.Sprint(s.ToClosed),
			seconds(s.Host.CPUSeconds), megabytes(s.Host.PeakBytes), seconds(s.Server.CPUSeconds),
			megabytes(s.Server.PeakBytes), seconds(s.ClientCPUSeconds), lowest, needed, below,
		})
	}
	return printRows(out, rows)
}

// printGoals prints the goals, and whether each was reached.
func printGoals(out io.Writer, goals []goal) error {
	rows := [][]string{{"WORKLOAD", "GOAL", "MEASURED", "CEILING", "WANTED", "RESULT"}}
	for _, g := range goals {
		wanted, kept, ceiling := fmt.Sprintf(">= %.4g", g.Bound), "kept", "-"
		if g.Upper {
			wanted = fmt.Sprintf("<= %.4g", g.Bound)
		}
		if !g.Kept {
			kept = "MISSED"
		}
		if g.Ceiling > 0 {
			ceiling = fmt.Sprintf("%.2f", g.Ceiling)
		}
		rows = append(rows, []string{g.Workload, g.Text, fmt.Sprintf("%.2f", g.Value), ceiling, wanted, kept})
	}
	return printRows(out, rows)
}

func printRows(out io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

func seconds(s float64) string { return fmt.Sprintf("%.1f", s) }

func percent(share float64) string { return fmt.Sprintf("%.1f%%", share*100) }

func megabytes(bytes int64) string { return fmt.Sprint(bytes / 1e6) }
