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

package main

import "fmt"

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

const (
	// The rate of a NodeMaintenance must be that many times the rate of each of the others.
	timesLoop  = 0.9
	timesPool  = 5
	timesNodes = 1
	// maxRejected is the part of its evictions that may be rejected.
	maxRejected = 0.02
)

// judgeGoals compares the NodeMaintenance with what it was measured beside.
func judgeGoals(summaries []summary) []goal {
	found := map[[2]string]summary{}
	for _, s := range summaries {
		if s.Failed == 0 {
			found[[2]string{s.Workload, s.Contender}] = s
		}
	}
	var goals []goal
	for _, s := range summaries {
		if s.Contender != maintenance && s.Contender != surge || s.Workload == singleReplicas && s.Contender == maintenance {
			continue
		}
		add := func(text string, value, bound float64, upper bool) {
			goals = append(goals, goal{s.Workload, text, value, bound, upper, s.Failed == 0 && (upper && value <= bound || !upper && value >= bound)})
		}
		if s.Contender == surge {
			add("moments below a budget with surge", float64(s.Below), 0, true)
			add("failed drains with surge", float64(s.Failed), 0, true)
			continue
		}
		for _, other := range []struct {
			contender string
			times     float64
		}{{bareLoop, timesLoop}, {drainPool, timesPool}, {drainNodes, timesNodes}} {
			if o, ok := found[[2]string{s.Workload, other.contender}]; ok {
				add(fmt.Sprintf("rate of %s: that of %s times", maintenance, other.contender), share(s.PodsPerSecond, o.PodsPerSecond), other.times, false)
			}
		}
		add("rejected evictions, in percent", s.RejectedShare*100, maxRejected*100, true)
		add("evictions sent to closed budgets", float64(s.ToClosed), 0, true)
		add("moments below a budget", float64(s.Below), 0, true)
		add("failed drains", float64(s.Failed), 0, true)
	}
	return goals
}
