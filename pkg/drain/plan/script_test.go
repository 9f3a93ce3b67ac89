// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// script is a random world and its changes. Every run of a script has the same result. Any step may
// be removed, since a step about an object that does not exist does nothing.
type script struct {
	steps []step
	// slow makes the pods leave one by one at the end.
	slow bool
}

// action is the kind of change in a step.
type action string

const (
	nodeIsCreated     action = "node is created"
	nodeIsRecreated   action = "node is recreated"
	nodeIsDeleted     action = "node is deleted"
	nodeIsUncordoned  action = "node is uncordoned"
	nodeIsSelected    action = "maintenance selects node"
	nodeIsReleased    action = "maintenance no longer selects node"
	podsAreCreated    action = "pods are created"
	podIsDeleted      action = "pod is deleted, even if it is not a target"
	podIsRelabelled   action = "labels of pod change"
	maintenanceStarts action = "maintenance starts"
	maintenanceEnds   action = "maintenance ends"
	targetsLeave      action = "some of the targets leave"
	leaderFails       action = "the leader fails while it writes the statuses"
)

// step is one change of the world. Only the fields that its action needs are set.
type step struct {
	do          action
	node        string
	maintenance string
	pods        []numberedPod
	minute      int
	plan        entries
	nodes       []string
	// salt determines the random choices: which pods leave, and which statuses are written.
	salt uint64
}

// numberedPod is a pod with a number, which distinguishes it from equal pods.
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

// chance makes the random choice for one object. It does not depend on the other objects.
func (s step) chance(number int) bool {
	x := s.salt + uint64(number)*0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x>>60&1 == 0
}

func (s step) String() string {
	switch s.do {
	case maintenanceStarts:
		return fmt.Sprintf("%s: %s, created in minute %d, for nodes %s, with plan %s",
			s.do, s.maintenance, s.minute, strings.Join(s.nodes, ", "), describePlan(s.plan))
	case nodeIsCreated, nodeIsRecreated, podsAreCreated:
		pods := make([]string, 0, len(s.pods))
		for _, p := range s.pods {
			pods = append(pods, p.String())
		}
		cordoned := ""
		if s.do != podsAreCreated && !s.chance(0) {
			cordoned = ", cordoned"
		}
		return fmt.Sprintf("%s: %s%s, with %s", s.do, s.node, cordoned, cmp.Or(strings.Join(pods, ", "), "no pods"))
	case podIsDeleted:
		return fmt.Sprintf("%s: %d", s.do, s.pods[0].number)
	case podIsRelabelled:
		return fmt.Sprintf("%s: %s", s.do, s.pods[0])
	case leaderFails, targetsLeave:
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
		b.WriteString("    then targets leave one by one\n")
	}
	return b.String()
}

// size is the number that shrink tries to reduce.
func (s script) size() int {
	n := len(s.steps)
	for _, step := range s.steps {
		n += len(step.pods) + len(step.plan) + len(step.nodes)
	}
	return n
}

// writer writes random scripts.
type writer struct {
	random
	nodes, maintenances []string
	numbered            int
	script              script
	// Worlds differ in their types, apps and priorities, and in how many of the four nodes a
	// maintenance selects, so that every combination that reveals a fault is frequent in some
	// worlds.
	types      []v1alpha1.PodType
	apps       []string
	priorities []int32
	density    int
}

// random has the methods of a random number generator that the writer needs.
type random interface {
	IntN(n int) int
	Uint64() uint64
}

// writeScript returns a random script.
func writeScript(r random) script {
	w := &writer{
		random: r, types: []v1alpha1.PodType{typeDefault, typeDaemonSet, typeStatic}[:1+r.IntN(3)],
		apps:       []string{"x", "y", "z", ""}[:2+r.IntN(3)],
		priorities: []int32{10, 20, -5, 0, 30, maxPriority}[:1+r.IntN(6)], density: 1 + r.IntN(3),
	}
	for range 1 + r.IntN(6) {
		w.addNode()
	}
	for range 1 + r.IntN(4) {
		w.addMaintenance()
	}
	for range 4 + r.IntN(14) {
		w.randomStep()
	}
	w.script.slow = r.IntN(3) == 0
	return w.script
}

func (w *writer) add(s step) {
	s.salt = w.Uint64() >> 40
	w.script.steps = append(w.script.steps, s)
}

func (w *writer) one(of []string) string { return of[w.IntN(len(of))] }

func (w *writer) randomStep() {
	node, m := w.one(w.nodes), w.one(w.maintenances)
	switch w.IntN(24) {
	case 0, 1, 2, 3, 4, 5:
		w.add(step{do: targetsLeave})
	case 6, 7, 8, 9:
		w.add(step{do: podsAreCreated, node: node, pods: w.randomPods(1)})
	case 10:
		w.add(step{do: podIsDeleted, pods: []numberedPod{{number: w.IntN(w.numbered + 1)}}})
	case 11:
		p := w.pod()
		p.number = w.IntN(p.number)
		w.add(step{do: podIsRelabelled, pods: []numberedPod{p}})
	case 12, 13:
		w.addMaintenance()
	case 14, 15:
		w.add(step{do: maintenanceEnds, maintenance: m})
	case 16:
		w.addNode()
	case 17:
		w.add(step{do: nodeIsRecreated, node: node, pods: w.randomPods(0)})
	case 18:
		w.add(step{do: nodeIsDeleted, node: node})
	case 19:
		w.add(step{do: nodeIsReleased, node: node, maintenance: m})
	case 20:
		w.add(step{do: nodeIsUncordoned, node: node})
	case 21:
		w.add(step{do: leaderFails})
	default:
		w.add(step{do: nodeIsSelected, node: node, maintenance: m})
	}
}

func (w *writer) addNode() {
	name := fmt.Sprintf("n%d", len(w.nodes))
	w.nodes = append(w.nodes, name)
	w.add(step{do: nodeIsCreated, node: name, pods: w.randomPods(0)})
}

func (w *writer) addMaintenance() {
	// The planner orders maintenances of the same age by name, so names are in random order.
	// Sometimes a maintenance replaces an earlier one with the same name.
	name := ""
	for name == "" || slices.Contains(w.maintenances, name) && w.IntN(8) > 0 {
		name = fmt.Sprintf("m%d", w.IntN(1000))
		if len(w.maintenances) > 0 && w.IntN(8) == 0 {
			name = w.one(w.maintenances)
		}
	}
	w.maintenances = append(w.maintenances, name)
	s := step{do: maintenanceStarts, maintenance: name, minute: w.IntN(3), plan: w.randomPlan()}
	for _, n := range w.nodes {
		if w.IntN(4) < w.density {
			s.nodes = append(s.nodes, n)
		}
	}
	w.add(s)
}

func (w *writer) randomPods(atLeast int) []numberedPod {
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

// randomPlan returns entries without the defaults.
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

// selector returns a selector for the label of an app, in one of several forms.
func (w *writer) selector(app string) *metav1.LabelSelector {
	requirement := metav1.LabelSelectorRequirement{
		Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{app},
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

// completed adds the default entries for all pods, as the API server does, and sorts them as
// validation requires, without duplicates.
func completed(own entries) entries {
	return ordered(slices.Concat(own, entries{
		entry(typeDefault, maxPriority), entry(typeDaemonSet, maxPriority), entry(typeStatic, maxPriority),
	}))
}

// ordered sorts entries as validation requires, without duplicates.
func ordered(plan entries) entries {
	key := func(e v1alpha1.DrainPlanEntry) planorder.Key {
		return planorder.Key{Type: string(e.PodType), Priority: e.PodPriority, Selector: e.PodSelector}
	}
	slices.SortStableFunc(plan, func(a, b v1alpha1.DrainPlanEntry) int {
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
