// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// treat is NodeRules.Of, or a version with a fault that the checks must find.
type treat func(rules NodeRules, pod Pod, now time.Time) Treatment

// ruled is a random world in which the drain plans of some maintenances have behaviors.
type ruled struct {
	*rand.Rand
	nodes        map[string][]numberedPod
	maintenances []Maintenance
	began        map[string]time.Time
	now          time.Time
	pods         int
	asked        map[int]bool
	treat        treat
}

var ruledApps = []string{"x", "y", "z"}

func newRuled(seed uint64, treat treat) *ruled {
	w := &ruled{
		Rand: rand.New(rand.NewPCG(seed, 1)), nodes: map[string][]numberedPod{}, now: clock(0),
		began: map[string]time.Time{}, asked: map[int]bool{}, treat: treat,
	}
	for i := range 1 + w.IntN(3) {
		name := fmt.Sprintf("n%d", i)
		for range w.IntN(6) {
			w.addPod(name)
		}
	}
	for range 1 + w.IntN(3) {
		w.begin()
	}
	return w
}

func (w *ruled) addPod(node string) {
	w.pods++
	p := podOf(ruledApps[w.IntN(len(ruledApps))], []v1alpha1.PodType{typeDefault, typeDefault, typeStatic}[w.IntN(3)],
		int32(10*w.IntN(3)))
	w.nodes[node] = append(w.nodes[node], numberedPod{w.pods, p})
}

// begin starts a maintenance of some nodes.
func (w *ruled) begin() {
	name := fmt.Sprintf("m%d", len(w.began))
	var plan entries
	for range w.IntN(5) {
		e := entry([]v1alpha1.PodType{typeDefault, typeStatic}[w.IntN(2)], int32(10*w.IntN(3)))
		if w.IntN(3) > 0 {
			e = entryFor(e.PodType, e.PodPriority, ruledApps[w.IntN(len(ruledApps))])
		}
		switch w.IntN(5) {
		case 0:
			e = does(e, drained)
		case 1, 2:
			e = does(e, skipped)
		case 3:
			if e.PodType == typeDefault {
				e = does(e, awaited, int32(50*w.IntN(3)))
			}
		}
		plan = append(plan, e)
	}
	m := maintenance(name, len(w.began), completed(plan))
	for _, node := range []string{"n0", "n1", "n2"} {
		if _, exists := w.nodes[node]; exists && w.IntN(3) > 0 {
			m.Nodes = append(m.Nodes, node)
		}
	}
	w.maintenances, w.began[name] = append(w.maintenances, m), w.now
}

// says returns what the plan of one maintenance says about a pod. It uses no code of the planner.
func (w *ruled) says(m *Maintenance, p Pod) Treatment {
	for _, e := range m.Plan {
		if e.Behavior == nil || e.PodType != p.Type || p.Priority > e.PodPriority ||
			e.PodSelector != nil && e.PodSelector.MatchLabels["app"] != p.Labels["app"] {
			continue
		}
		if *e.Behavior != awaited || e.WaitSeconds == nil || *e.WaitSeconds == 0 {
			return Treatment{Behavior: *e.Behavior}
		}
		until := w.began[m.Name].Add(time.Duration(*e.WaitSeconds) * time.Second)
		if until.After(w.now) {
			return Treatment{awaited, until}
		}
		break
	}
	return Treatment{Behavior: drained}
}

// want returns what must happen to a pod of a node.
func (w *ruled) want(node string, p Pod) Treatment {
	said := map[v1alpha1.DrainBehavior]bool{}
	var until time.Time
	for i := range w.maintenances {
		if !slices.Contains(w.maintenances[i].Nodes, node) {
			continue
		}
		t := w.says(&w.maintenances[i], p)
		said[t.Behavior] = true
		if t.Behavior == awaited && !t.Until.IsZero() && (until.IsZero() || t.Until.Before(until)) {
			until = t.Until
		}
	}
	switch {
	case said[drained], len(said) == 0:
		return Treatment{Behavior: drained}
	case said[awaited]:
		return Treatment{awaited, until}
	}
	return Treatment{Behavior: skipped}
}

// step plans, checks the result, stores the targets and lets pods leave. chance is one in how many
// pods stays although it could leave.
func (w *ruled) step(chance int) (finished bool, v *violation) {
	rules := map[string]NodeRules{}
	for i := range w.maintenances {
		m := &w.maintenances[i]
		of, err := RulesOf(m.Plan, w.began[m.Name])
		if err != nil {
			return false, violated("no error", "%v", err)
		}
		for _, node := range m.Nodes {
			rules[node] = append(rules[node], of)
		}
	}
	world := World{Maintenances: w.maintenances}
	for name, pods := range w.nodes {
		planned := &Node{Name: name}
		for _, p := range pods {
			planned.Pods = append(planned.Pods, p.Pod)
		}
		world.Nodes = append(world.Nodes, rules[name].Filter(planned, w.now))
	}
	result, err := Plan(world)
	if err != nil {
		return false, violated("no error", "%v", err)
	}
	if v := w.check(rules, result); v != nil {
		return false, v
	}
	finished = true
	for i := range w.maintenances {
		m := &w.maintenances[i]
		finished = finished && result.Finished[m.Name]
		for _, node := range m.Nodes {
			m.Before[node] = result.Targets[node].Entries
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		w.nodes[name] = slices.DeleteFunc(w.nodes[name], func(p numberedPod) bool {
			isReached := result.Targets[name].Cover(p.Pod) && w.want(name, p.Pod).Behavior != skipped
			return isReached && w.IntN(chance) == 0
		})
	}
	return finished, nil
}

// check checks that exactly the pods leave that must, and in the order of the plans.
func (w *ruled) check(rules map[string]NodeRules, result Result) *violation {
	for name, pods := range w.nodes {
		for _, p := range pods {
			got, want := w.treat(rules[name], p.Pod, w.now), w.want(name, p.Pod)
			if got != want {
				return violated("strictest", "%s on %s: got %+v, want %+v", p, name, got, want)
			}
			if got.Behavior != drained || !result.Targets[name].Cover(p.Pod) || w.asked[p.number] {
				continue
			}
			w.asked[p.number] = true
			if len(w.began) > 1 {
				continue // TestRandomWorlds checks the order of several plans
			}
			if other := w.overtaken(p.Pod); other != nil {
				return violated("order", "%s on %s is asked before %s", p, name, *other)
			}
		}
	}
	return nil
}

// overtaken returns a pod of the only maintenance that has to leave, or to complete, before a pod.
func (w *ruled) overtaken(p Pod) *numberedPod {
	m := &w.maintenances[0]
	first := func(p Pod) int {
		return slices.IndexFunc(m.Plan, func(e v1alpha1.DrainPlanEntry) bool {
			return e.PodType == p.Type && p.Priority <= e.PodPriority &&
				(e.PodSelector == nil || e.PodSelector.MatchLabels["app"] == p.Labels["app"])
		})
	}
	for _, node := range m.Nodes {
		for i := range w.nodes[node] {
			other := &w.nodes[node][i]
			if first(other.Pod) < first(p) && w.want(node, other.Pod).Behavior != skipped {
				return other
			}
		}
	}
	return nil
}

// run lets the world change, and ends all drains.
func (w *ruled) run() *violation {
	for range 4 + w.IntN(8) {
		if _, v := w.step(2); v != nil {
			return v
		}
		switch w.IntN(6) {
		case 0:
			w.begin()
		case 1:
			i := w.IntN(len(w.maintenances))
			if w.maintenances = slices.Delete(w.maintenances, i, i+1); len(w.maintenances) == 0 {
				w.begin()
			}
		default:
			w.now = w.now.Add(time.Duration(w.IntN(40)) * time.Second)
		}
	}
	for range 3*w.pods + 3 {
		finished, v := w.step(1)
		if v != nil {
			return v
		}
		if finished {
			return w.checkLeft()
		}
	}
	return violated("progress", "a maintenance does not finish: %v", w.nodes)
}

// checkLeft checks that exactly the skipped pods are left on nodes of maintenances.
func (w *ruled) checkLeft() *violation {
	for i := range w.maintenances {
		for _, node := range w.maintenances[i].Nodes {
			for _, p := range w.nodes[node] {
				if got := w.want(node, p.Pod).Behavior; got != skipped {
					return violated("left", "%s on %s is left, its behavior is %s", p, node, got)
				}
			}
		}
	}
	return nil
}

// TestRandomWorldsWithBehaviors drains random nodes by plans with behaviors.
func TestRandomWorldsWithBehaviors(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	for i := range uint64(*worlds) {
		if v := newRuled(first+i, NodeRules.Of).run(); v != nil {
			t.Fatalf("seed %d fails (alone: -seed %d -worlds 1): %v", first+i, first+i, v)
		}
	}
}

// TestFaultsOfBehaviorsAreFound checks that the worlds find wrong rules.
func TestFaultsOfBehaviorsAreFound(t *testing.T) {
	for name, fault := range map[string]treat{
		"the first maintenance decides": func(rules NodeRules, pod Pod, now time.Time) Treatment {
			return rules[:min(1, len(rules))].Of(pod, now)
		},
		"a wait has no end": func(rules NodeRules, pod Pod, now time.Time) Treatment {
			if t := rules.Of(pod, time.Time{}); t.Behavior == awaited {
				return t
			}
			return rules.Of(pod, now)
		},
		"a wait is skipped by another maintenance": func(rules NodeRules, pod Pod, now time.Time) Treatment {
			for _, r := range rules {
				if r.Skips(pod) {
					return Treatment{Behavior: skipped}
				}
			}
			return rules.Of(pod, now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range uint64(1000) {
				if newRuled(i, fault).run() != nil {
					return
				}
			}
			t.Error("1000 worlds do not find the fault")
		})
	}
}
