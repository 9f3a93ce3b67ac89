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

package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Check is one promise and whether it was kept.
type Check struct {
	// Kept says that it was.
	Kept bool
	// Text says in words what was seen.
	Text string
}

// Snapshot is the state of the books at one moment.
type Snapshot struct {
	// Events is the number of events since the books were opened.
	Events int
	// Waves are the waves that have ever had a pod, in the order of the plan.
	Waves []Wave
	// Budgets are all budgets.
	Budgets []Budget
	// Nodes counts the pods on each watched node.
	Nodes map[string]NodeCount
	// Missing names the workloads that have fewer healthy pods than before, with what is missing.
	Missing []string
}

// Snapshot returns the present state.
func (l *Ledger) Snapshot() Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Snapshot{Events: l.events, Nodes: maps.Clone(l.perNode)}
	for _, w := range l.waves {
		if w.Pods > 0 {
			s.Waves = append(s.Waves, w)
		}
	}
	for _, b := range l.budgets {
		s.Budgets = append(s.Budgets, *b)
	}
	for _, workload := range slices.Sorted(maps.Keys(l.before)) {
		if is, was := l.healthy[workload], l.before[workload]; is < was {
			s.Missing = append(s.Missing, fmt.Sprintf("%s has %d of %d pods", workload, is, was))
		}
	}
	return s
}

// Left is the number of pods that have yet to leave.
func (s Snapshot) Left() int {
	left := 0
	for _, w := range s.Waves {
		left += w.Left()
	}
	return left
}

// Gone is the number of pods that have left.
func (s Snapshot) Gone() int {
	gone := 0
	for _, w := range s.Waves {
		gone += w.Gone
	}
	return gone
}

// Verdict says which promises of a finished drain were kept.
func (l *Ledger) Verdict() []Check {
	s := l.Snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	return []Check{
		leftCheck(s),
		budgetCheck(s),
		l.orderCheck(s),
		l.daemonCheck(),
		wholeCheck(s, len(l.before)),
	}
}

// Replacements checks that no Deployment ever had fewer healthy pods than when the books were
// opened: each pod was replaced before it left. Deployments without surge do not promise that, so
// Verdict leaves it out.
func (l *Ledger) Replacements() Check {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lacking []string
	for _, workload := range slices.Sorted(maps.Keys(l.lowest)) {
		if is, was := l.lowest[workload], l.before[workload]; is < was {
			lacking = append(lacking, fmt.Sprintf("%s had %d of %d", workload, is, was))
		}
	}
	if len(lacking) > 0 {
		return Check{Text: "pods of Deployments left before another one was there: " + strings.Join(lacking, ", ")}
	}
	return Check{
		Kept: true,
		Text: fmt.Sprintf("%d Deployments never had fewer healthy pods than before", len(l.lowest)),
	}
}

func leftCheck(s Snapshot) Check {
	if left := s.Left(); left > 0 {
		return Check{Text: fmt.Sprintf("%d of %d pods have not left the nodes", left, left+s.Gone())}
	}
	return Check{Kept: true, Text: fmt.Sprintf("all %d pods that had to leave the nodes have left", s.Gone())}
}

func budgetCheck(s Snapshot) Check {
	var broken []string
	var disrupted int
	closest := -1
	for i, b := range s.Budgets {
		disrupted += b.Disrupted
		if b.Lowest < b.Floor {
			broken = append(broken, fmt.Sprintf("%s had %d healthy, %d are needed", b.Name, b.Lowest, b.Floor))
		}
		if b.Disrupted > 0 && (closest < 0 || b.Lowest-b.Floor < s.Budgets[closest].Lowest-s.Budgets[closest].Floor) {
			closest = i
		}
	}
	if len(broken) > 0 {
		return Check{Text: "a budget was broken: " + strings.Join(broken, "; ")}
	}
	text := fmt.Sprintf("no budget was ever broken: %d budgets, %d of their pods told to stop, %d pod changes seen",
		len(s.Budgets), disrupted, s.Events)
	if closest >= 0 {
		b := s.Budgets[closest]
		text += fmt.Sprintf(" (closest: %s, %d healthy, %d needed)", b.Name, b.Lowest, b.Floor)
	}
	return Check{Kept: true, Text: text}
}

func (l *Ledger) orderCheck(s Snapshot) Check {
	if len(l.overtaken) > 0 {
		return Check{Text: fmt.Sprintf("%d pods left before their turn, first %s", len(l.overtaken), l.overtaken[0])}
	}
	return Check{
		Kept: true,
		Text: fmt.Sprintf("%d waves, none began before the one before it had left all nodes", len(s.Waves)),
	}
}

func (l *Ledger) daemonCheck() Check {
	if len(l.lostDaemonPods) > 0 {
		return Check{
			Text: fmt.Sprintf("%d DaemonSet pods were asked to leave: %s",
				len(l.lostDaemonPods), unique(l.lostDaemonPods)),
		}
	}
	if len(l.daemonPods) == 0 {
		return Check{Kept: true, Text: "no DaemonSet pod was there"}
	}
	return Check{
		Kept: true,
		Text: fmt.Sprintf("%d DaemonSet pods were left running: %s", len(l.daemonPods), unique(l.daemonPods)),
	}
}

func wholeCheck(s Snapshot, workloads int) Check {
	if len(s.Missing) > 0 {
		return Check{Text: "not everything that left runs elsewhere: " + strings.Join(s.Missing, ", ")}
	}
	return Check{Kept: true, Text: fmt.Sprintf("all %d workloads have as many healthy pods as before", workloads)}
}
