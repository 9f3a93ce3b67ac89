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

package drainplan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TestRandomWorlds lets random maintenances drain random nodes, with pods and maintenances that come and go, and checks at every step that
// the order is kept, that no target falls back, that the answer does not depend on the order of the input and that everything ends.
func TestRandomWorlds(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	worlds := 3000
	if testing.Short() {
		worlds = 300
	}
	for i := range uint64(worlds) {
		if err := runWorld(rand.New(rand.NewPCG(seed, i))); err != nil {
			t.Fatalf("seed %d, world %d: %v", seed, i, err)
		}
	}
}

const (
	// lively is the number of steps during which pods and maintenances come and go; within patience more steps everything must be drained.
	lively, patience = 8, 400
)

func runWorld(r *rand.Rand) error {
	w := randomWorld(r)
	planner := NewPlanner()
	var shown map[string]Targets
	for step := 0; ; step++ {
		if step < lively {
			disturb(r, &w)
		}
		result, err := Plan(w)
		if err != nil {
			return err
		}
		shuffled, err := Plan(shuffle(r, w))
		if err != nil {
			return err
		}
		if got, want := entriesOf(shuffled), entriesOf(result); !reflect.DeepEqual(got, want) {
			return fmt.Errorf("step %d: the order of the input changed the targets from %v to %v", step, want, got)
		}
		if !reflect.DeepEqual(shuffled.Messages, result.Messages) {
			return fmt.Errorf("step %d: the order of the input changed the messages from %v to %v of %+v", step, result.Messages, shuffled.Messages, w)
		}
		remembered, err := planner.Plan(w)
		if err != nil {
			return err
		}
		if err := checkRemembered(result, remembered, shown); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		shown = maps.Clone(remembered.Targets)
		if err := checkStep(w, result); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		finished := true
		for i := range w.Maintenances {
			m := &w.Maintenances[i]
			for _, n := range m.Nodes {
				m.Before[n] = result.Targets[n].Entries
			}
			finished = finished && result.Finished[m.Name]
		}
		if step >= lively && finished {
			return nil
		}
		if step > lively+patience {
			return fmt.Errorf("not drained after %d steps", step)
		}
		leave(r, &w, result, step >= lively)
	}
}

// checkRemembered checks that a planner that remembers says what a fresh one does, and that what it says again is the same.
func checkRemembered(fresh, remembered Result, shown map[string]Targets) error {
	if got, want := entriesOf(remembered), entriesOf(fresh); !reflect.DeepEqual(got, want) {
		return fmt.Errorf("targets as remembered %v, worked out anew %v", got, want)
	}
	for name, now := range remembered.Targets {
		if was, ok := shown[name]; ok && reflect.DeepEqual(was.Entries, now.Entries) && !was.Same(now) {
			return fmt.Errorf("the targets of node %s have not changed but are not the same", name)
		}
	}
	fresh.Targets, remembered.Targets = nil, nil
	if !reflect.DeepEqual(fresh, remembered) {
		return fmt.Errorf("as remembered %+v, worked out anew %+v", remembered, fresh)
	}
	return nil
}

// checkStep checks what the answer raises against the world it was given.
func checkStep(w World, result Result) error {
	pods := map[string][]Pod{}
	for _, n := range w.Nodes {
		pods[n.Name] = n.Pods
	}
	for _, n := range w.Nodes {
		before := beforeOf(w, n.Name)
		for _, p := range n.Pods {
			was, is := before.Cover(p), result.Targets[n.Name].Cover(p)
			if was && !is {
				return fmt.Errorf("pod %v of node %s is not asked to leave any more", p, n.Name)
			}
			if was || !is {
				continue
			}
			for i := range w.Maintenances {
				if err := checkOrder(&w.Maintenances[i], n.Name, p, pods, result); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checkOrder checks that a pod that is newly asked to leave does not overtake a live pod of an earlier entry.
func checkOrder(m *Maintenance, node string, p Pod, pods map[string][]Pod, result Result) error {
	if !slices.Contains(m.Nodes, node) || overridden(result, m.Name) {
		return nil
	}
	if len(m.Uncordoned) > 0 {
		return fmt.Errorf("pod %v of node %s is asked to leave while %s has nodes that are not cordoned", p, node, m.Name)
	}
	progress := &progress{}
	if err := progress.compile(m.Plan); err != nil {
		return err
	}
	own := progress.index(&p)
	for _, n := range m.Nodes {
		for _, other := range pods[n] {
			if progress.index(&other) < own {
				return fmt.Errorf("pod %v of node %s overtakes pod %v of node %s, which %s covers earlier", p, node, other, n, m.Name)
			}
		}
	}
	return nil
}

func overridden(result Result, name string) bool {
	return slices.ContainsFunc(result.Overrides, func(o Override) bool { return slices.Contains(o.Overridden, name) })
}

func beforeOf(w World, node string) Targets {
	var all entries
	for _, m := range w.Maintenances {
		if slices.Contains(m.Nodes, node) {
			all = append(all, m.Before[node]...)
		}
	}
	t, err := CompileTargets(all)
	if err != nil {
		panic(err)
	}
	return t
}

func entriesOf(r Result) map[string]entries {
	out := map[string]entries{}
	for n, t := range r.Targets {
		out[n] = t.Entries
	}
	return out
}

var (
	apps       = []string{"", "x", "y", "z"}
	podTypes   = []maintenancev1alpha1.PodType{typeDefault, typeDefault, typeDaemonSet, typeStatic}
	priorities = []int32{0, 10, 20, 30, maxPriority}
)

func randomWorld(r *rand.Rand) World {
	var w World
	for i := range 1 + r.IntN(6) {
		n := &Node{Name: fmt.Sprintf("n%d", i)}
		for range r.IntN(6) {
			n.Pods = append(n.Pods, randomPod(r))
		}
		w.Nodes = append(w.Nodes, n)
	}
	for range 1 + r.IntN(3) {
		addMaintenance(r, &w)
	}
	return w
}

func addMaintenance(r *rand.Rand, w *World) {
	taken := func(name string) bool {
		return slices.ContainsFunc(w.Maintenances, func(m Maintenance) bool { return m.Name == name })
	}
	name := ""
	// Names decide between maintenances of the same age, so that they come in any order, but there is only one of each.
	for name == "" || taken(name) {
		name = fmt.Sprintf("m%d", r.IntN(1000))
	}
	m := maintenance(name, r.IntN(3), randomPlan(r))
	for _, n := range w.Nodes {
		if r.IntN(2) == 0 {
			m.Nodes = append(m.Nodes, n.Name)
		}
	}
	w.Maintenances = append(w.Maintenances, m)
}

func randomPod(r *rand.Rand) Pod {
	p := pod(podTypes[r.IntN(len(podTypes))], priorities[r.IntN(len(priorities))])
	if app := apps[r.IntN(len(apps))]; app != "" {
		p = podOf(app, p.Type, p.Priority)
	}
	return p
}

// randomPlan has entries of its own and covers every pod in the end.
func randomPlan(r *rand.Rand) entries {
	var plan entries
	for range r.IntN(6) {
		e := entry(podTypes[r.IntN(len(podTypes))], priorities[r.IntN(len(priorities)-1)])
		if app := apps[r.IntN(len(apps))]; app != "" {
			e = entryFor(e.PodType, e.PodPriority, app)
		}
		plan = append(plan, e)
	}
	for _, podType := range []maintenancev1alpha1.PodType{typeDefault, typeDaemonSet, typeStatic} {
		plan = append(plan, entry(podType, maxPriority))
	}
	keys := func(e maintenancev1alpha1.DrainPlanEntry) planorder.Key {
		return planorder.Key{Type: string(e.PodType), Priority: e.PodPriority, Selector: e.PodSelector}
	}
	slices.SortStableFunc(plan, func(a, b maintenancev1alpha1.DrainPlanEntry) int {
		switch {
		case planorder.Before(keys(a), keys(b)):
			return -1
		case planorder.Before(keys(b), keys(a)):
			return 1
		}
		return 0
	})
	return slices.CompactFunc(plan, func(a, b maintenancev1alpha1.DrainPlanEntry) bool { return reflect.DeepEqual(a, b) })
}

// disturb lets a pod appear, a node join, be cordoned or be made schedulable, a maintenance arrive or go.
func disturb(r *rand.Rand, w *World) {
	at := r.IntN(len(w.Nodes))
	n := w.Nodes[at]
	switch r.IntN(7) {
	case 0, 1:
		w.Nodes = slices.Clone(w.Nodes)
		w.Nodes[at] = &Node{Name: n.Name, Pods: append(slices.Clone(n.Pods), randomPod(r))}
	case 2:
		if m := &w.Maintenances[r.IntN(len(w.Maintenances))]; !slices.Contains(m.Nodes, n.Name) {
			m.Nodes = append(m.Nodes, n.Name)
		}
	case 3:
		addMaintenance(r, w)
	case 4:
		if len(w.Maintenances) > 1 {
			i := r.IntN(len(w.Maintenances))
			w.Maintenances = slices.Delete(slices.Clone(w.Maintenances), i, i+1)
		}
	case 5:
		for i := range w.Maintenances {
			if m := &w.Maintenances[i]; slices.Contains(m.Nodes, n.Name) {
				m.Uncordoned = []string{n.Name}
			}
		}
	default:
	}
}

// leave lets some of the pods go that are asked to, and all nodes be cordoned again. When the world is calm at least one pod goes.
func leave(r *rand.Rand, w *World, result Result, calm bool) {
	for i := range w.Maintenances {
		w.Maintenances[i].Uncordoned = nil
	}
	gone := false
	for i := range w.Nodes {
		n := w.Nodes[i]
		left := slices.DeleteFunc(slices.Clone(n.Pods), func(p Pod) bool {
			leaves := result.Targets[n.Name].Cover(p) && (r.IntN(2) == 0 || calm && !gone)
			gone = gone || leaves
			return leaves
		})
		if len(left) != len(n.Pods) {
			w.Nodes[i] = &Node{Name: n.Name, Pods: left}
		}
	}
}

func shuffle(r *rand.Rand, w World) World {
	s := World{Maintenances: slices.Clone(w.Maintenances), Nodes: slices.Clone(w.Nodes)}
	r.Shuffle(len(s.Maintenances), func(i, j int) { s.Maintenances[i], s.Maintenances[j] = s.Maintenances[j], s.Maintenances[i] })
	r.Shuffle(len(s.Nodes), func(i, j int) { s.Nodes[i], s.Nodes[j] = s.Nodes[j], s.Nodes[i] })
	for i := range s.Nodes {
		pods := slices.Clone(s.Nodes[i].Pods)
		r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		s.Nodes[i] = &Node{Name: s.Nodes[i].Name, Pods: pods}
	}
	return s
}
