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
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// script is a random world as it goes through time. It can be run again and again to the same end,
// and any part of it may be missing: a step about what is not there does nothing.
type script struct {
	steps []step
	// slow lets the pods leave one by one in the end.
	slow bool
}

// action is what happens in a step.
type action string

const (
	nodeAppears         action = "node appears"
	nodeIsCreatedAnew   action = "node is created anew"
	nodeGoes            action = "node goes"
	nodeIsUncordoned    action = "node is made schedulable"
	nodeIsSelected      action = "node joins the maintenance"
	nodeIsReleased      action = "node leaves the maintenance"
	podsAppear          action = "pods appear"
	podGoesByItself     action = "pod goes by itself"
	podIsRelabelled     action = "pod is labelled anew"
	maintenanceArrives  action = "maintenance arrives"
	maintenanceIsOver   action = "maintenance is over"
	podsLeave           action = "pods that are asked to leave go"
	leaderDiesOnWriting action = "the leader dies while it writes the statuses"
)

// step is one thing that happens. Only the fields that its action is about are set.
type step struct {
	do          action
	node        string
	maintenance string
	pods        []numberedPod
	minute      int
	plan        entries
	nodes       []string
	// salt decides what is left to chance: which of the pods go, how many statuses are written.
	salt uint64
}

// numberedPod is a pod that can be told from its equals.
type numberedPod struct {
	number int
	Pod
}

func (p numberedPod) String() string {
	s := fmt.Sprintf("pod %d (%s %d", p.number, p.Type, p.Priority)
	if app := p.Labels["app"]; app != "" {
		s += " " + app
	}
	return s + ")"
}

// chance decides about one of several things, the same whatever else is there.
func (s step) chance(number int) bool {
	x := s.salt + uint64(number)*0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x>>60&1 == 0
}

func (s step) String() string {
	switch s.do {
	case maintenanceArrives:
		return fmt.Sprintf("%s: %s, created in minute %d, over %s, first %s",
			s.do, s.maintenance, s.minute, strings.Join(s.nodes, ", "), describePlan(s.plan))
	case nodeAppears, nodeIsCreatedAnew, podsAppear:
		pods := make([]string, 0, len(s.pods))
		for _, p := range s.pods {
			pods = append(pods, p.String())
		}
		cordoned := ""
		if s.do != podsAppear && !s.chance(0) {
			cordoned = ", cordoned"
		}
		return fmt.Sprintf("%s: %s%s, with %s", s.do, s.node, cordoned, cmp.Or(strings.Join(pods, ", "), "no pods"))
	case podGoesByItself:
		return fmt.Sprintf("%s: %d", s.do, s.pods[0].number)
	case podIsRelabelled:
		return fmt.Sprintf("%s: %s", s.do, s.pods[0])
	case leaderDiesOnWriting, podsLeave:
		return fmt.Sprintf("%s (chance %d)", s.do, s.salt)
	case nodeIsSelected, nodeIsReleased:
		return fmt.Sprintf("%s: %s, %s", s.do, s.maintenance, s.node)
	}
	return strings.TrimSuffix(fmt.Sprintf("%s: %s%s", s.do, s.maintenance, s.node), ": ")
}

func describePlan(plan entries) string {
	parts := make([]string, 0, len(plan))
	for _, e := range plan {
		part := fmt.Sprintf("%s ≤ %d", e.PodType, e.PodPriority)
		if e.PodSelector != nil {
			part += " " + planorder.CanonicalSelector(e.PodSelector)
		}
		parts = append(parts, part)
	}
	return "[" + strings.Join(parts, " | ") + "]"
}

func (s script) String() string {
	var b strings.Builder
	for i, step := range s.steps {
		fmt.Fprintf(&b, "%2d. %s\n", i+1, step)
	}
	if s.slow {
		b.WriteString("    then pods leave one by one\n")
	}
	return b.String()
}

// size is what shrinking makes smaller.
func (s script) size() int {
	n := len(s.steps)
	for _, step := range s.steps {
		n += len(step.pods) + len(step.plan) + len(step.nodes)
	}
	return n
}

// writer invents scripts.
type writer struct {
	random
	nodes, maintenances []string
	numbered            int
	script              script
	// Worlds differ in what there is in them, and in how many of four nodes a maintenance selects:
	// whatever has to come together for a fault to show is frequent in some of them.
	types      []maintenancev1alpha1.PodType
	apps       []string
	priorities []int32
	density    int
}

// random is the part of a random number generator that is used here.
type random interface {
	IntN(n int) int
	Uint64() uint64
}

// writeScript invents a script.
func writeScript(r random) script {
	w := &writer{
		random:     r,
		types:      []maintenancev1alpha1.PodType{typeDefault, typeDaemonSet, typeStatic}[:1+r.IntN(3)],
		apps:       []string{"x", "y", "z", ""}[:2+r.IntN(3)],
		priorities: []int32{10, 20, -5, 0, 30, maxPriority}[:1+r.IntN(6)],
		density:    1 + r.IntN(3),
	}
	for range 1 + r.IntN(6) {
		w.nodeAppears()
	}
	for range 1 + r.IntN(4) {
		w.maintenanceArrives()
	}
	for range 4 + r.IntN(14) {
		w.something()
	}
	w.script.slow = r.IntN(3) == 0
	return w.script
}

func (w *writer) add(s step) {
	s.salt = w.Uint64() >> 40
	w.script.steps = append(w.script.steps, s)
}

func (w *writer) one(of []string) string { return of[w.IntN(len(of))] }

func (w *writer) something() {
	node, m := w.one(w.nodes), w.one(w.maintenances)
	switch w.IntN(24) {
	case 0, 1, 2, 3, 4, 5:
		w.add(step{do: podsLeave})
	case 6, 7, 8, 9:
		w.add(step{do: podsAppear, node: node, pods: w.somePods(1)})
	case 10:
		w.add(step{do: podGoesByItself, pods: []numberedPod{{number: w.IntN(w.numbered + 1)}}})
	case 11:
		p := w.pod()
		p.number = w.IntN(p.number)
		w.add(step{do: podIsRelabelled, pods: []numberedPod{p}})
	case 12, 13:
		w.maintenanceArrives()
	case 14, 15:
		w.add(step{do: maintenanceIsOver, maintenance: m})
	case 16:
		w.nodeAppears()
	case 17:
		w.add(step{do: nodeIsCreatedAnew, node: node, pods: w.somePods(0)})
	case 18:
		w.add(step{do: nodeGoes, node: node})
	case 19:
		w.add(step{do: nodeIsReleased, node: node, maintenance: m})
	case 20:
		w.add(step{do: nodeIsUncordoned, node: node})
	case 21:
		w.add(step{do: leaderDiesOnWriting})
	default:
		w.add(step{do: nodeIsSelected, node: node, maintenance: m})
	}
}

func (w *writer) nodeAppears() {
	name := fmt.Sprintf("n%d", len(w.nodes))
	w.nodes = append(w.nodes, name)
	w.add(step{do: nodeAppears, node: name, pods: w.somePods(0)})
}

func (w *writer) maintenanceArrives() {
	// Names decide between maintenances of the same age, so that they come in any order. Seldom one
	// takes the place of another of its name.
	name := ""
	for name == "" || slices.Contains(w.maintenances, name) && w.IntN(8) > 0 {
		name = fmt.Sprintf("m%d", w.IntN(1000))
		if len(w.maintenances) > 0 && w.IntN(8) == 0 {
			name = w.one(w.maintenances)
		}
	}
	w.maintenances = append(w.maintenances, name)
	s := step{do: maintenanceArrives, maintenance: name, minute: w.IntN(3), plan: w.randomPlan()}
	for _, n := range w.nodes {
		if w.IntN(4) < w.density {
			s.nodes = append(s.nodes, n)
		}
	}
	w.add(s)
}

func (w *writer) somePods(atLeast int) []numberedPod {
	pods := make([]numberedPod, atLeast+w.IntN(5))
	for i := range pods {
		pods[i] = w.pod()
	}
	return pods
}

func (w *writer) pod() numberedPod {
	w.numbered++
	p := pod(w.types[w.IntN(len(w.types))], w.priorities[w.IntN(len(w.priorities))])
	if app := w.one(w.apps); app != "" {
		p = podOf(app, p.Type, p.Priority)
	}
	return numberedPod{w.numbered, p}
}

// randomPlan has no more than entries of its own.
func (w *writer) randomPlan() entries {
	var plan entries
	for range w.IntN(6) {
		e := entry(w.types[w.IntN(len(w.types))], w.priorities[w.IntN(len(w.priorities))])
		if app := w.one(w.apps); app != "" && w.IntN(4) > 0 {
			e.PodSelector = w.selector(app)
		}
		plan = append(plan, e)
	}
	return plan
}

// selector selects by the label of an app. There are several ways to write it.
func (w *writer) selector(app string) *metav1.LabelSelector {
	requirement := metav1.LabelSelectorRequirement{
		Key:      "app",
		Operator: metav1.LabelSelectorOpIn,
		Values:   []string{app},
	}
	switch w.IntN(8) {
	case 0:
	case 1:
		requirement.Values = append(requirement.Values, w.apps[0])
	case 2:
		requirement.Operator = metav1.LabelSelectorOpNotIn
	case 3:
		requirement.Operator, requirement.Values = metav1.LabelSelectorOpExists, nil
	case 4:
		return &metav1.LabelSelector{}
	default:
		return entryFor(typeDefault, 0, app).PodSelector
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{requirement}}
}

// completed adds entries for all pods, as the API does, and puts them in the order that validation
// asks for, each of them once.
func completed(own entries) entries {
	return ordered(slices.Concat(own, entries{
		entry(typeDefault, maxPriority), entry(typeDaemonSet, maxPriority), entry(typeStatic, maxPriority),
	}))
}

// ordered puts entries in the order that validation asks for, each of them once.
func ordered(plan entries) entries {
	key := func(e maintenancev1alpha1.DrainPlanEntry) planorder.Key {
		return planorder.Key{Type: string(e.PodType), Priority: e.PodPriority, Selector: e.PodSelector}
	}
	slices.SortStableFunc(plan, func(a, b maintenancev1alpha1.DrainPlanEntry) int {
		switch {
		case planorder.Before(key(a), key(b)):
			return -1
		case planorder.Before(key(b), key(a)):
			return 1
		}
		return 0
	})
	var out entries
	seen := map[string]bool{}
	for _, e := range plan {
		if id := describePlan(entries{e}); !seen[id] {
			seen[id] = true
			out = append(out, e)
		}
	}
	return out
}
