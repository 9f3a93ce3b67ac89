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
	"slices"
	"testing"
)

const (
	benchNodes, benchPodsPerNode, benchMaintenances = 5000, 30, 20
)

// benchWorld has 5,000 nodes with 150,000 pods under 20 maintenances, every second of which shares half of its nodes with the one before.
func benchWorld(plan func() entries) World {
	var w World
	for i := range benchNodes {
		n := &Node{Name: fmt.Sprintf("node-%04d", i)}
		for p := range benchPodsPerNode {
			n.Pods = append(n.Pods, podOf(fmt.Sprintf("app-%d", p), typeDefault, int32(p*100)))
		}
		w.Nodes = append(w.Nodes, n)
	}
	const share = benchNodes / benchMaintenances
	for i := range benchMaintenances {
		m := maintenance(fmt.Sprintf("m%d", i), i, plan())
		from, to := i*share, (i+1)*share
		if i%2 == 1 {
			from -= share / 2
		}
		for _, n := range w.Nodes[from:to] {
			m.Nodes = append(m.Nodes, n.Name)
		}
		w.Maintenances = append(w.Maintenances, m)
	}
	return w
}

// selectorPlan is the default plan with ten entries of its own before it.
func selectorPlan() entries {
	var plan entries
	for i := range 10 {
		plan = append(plan, entryFor(typeDefault, int32(i*300), fmt.Sprintf("app-%d", i*3)))
	}
	return append(plan, defaultPlan()...)
}

var benchPlans = map[string]func() entries{"default": defaultPlan, "selectors": selectorPlan}

// BenchmarkFullPlan plans without any memory.
func BenchmarkFullPlan(b *testing.B) {
	for name, plan := range benchPlans {
		w := benchWorld(plan)
		b.Run("plan="+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Plan(w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEvent plans anew after one event.
func BenchmarkEvent(b *testing.B) {
	for name, plan := range benchPlans {
		b.Run("plan="+name, func(b *testing.B) {
			b.Run("event=pod", func(b *testing.B) { benchEvents(b, benchWorld(plan), podGoes) })
			b.Run("event=wave", func(b *testing.B) { benchEvents(b, benchWorld(plan), waveOpens) })
			b.Run("event=status", func(b *testing.B) { benchEvents(b, benchWorld(plan), statusIsWritten) })
		})
	}
}

// benchEvents plans once, and again after each event. An event is given the world that it may change and what was planned for it.
func benchEvents(b *testing.B, w World, event func(i int, w *World, planned Result)) {
	b.Helper()
	planner := NewPlanner()
	planned, err := planner.Plan(w)
	for i := 0; b.Loop(); i++ {
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		event(i, &w, planned)
		b.StartTimer()
		planned, err = planner.Plan(w)
	}
}

// podGoes takes one pod off a node, or brings it back.
func podGoes(i int, w *World, _ Result) {
	n := *w.Nodes[1]
	n.Pods = append(slices.Clone(w.Nodes[2].Pods), n.Pods[:i%2]...)
	w.Nodes[1] = &n
}

// waveOpens takes the pod that all other nodes of two maintenances wait for off its node, or brings it back: all of them are answered anew.
func waveOpens(i int, w *World, _ Result) {
	if i == 0 {
		for at := range benchNodes / benchMaintenances * 2 {
			n := *w.Nodes[at]
			n.Pods = n.Pods[20:]
			w.Nodes[at] = &n
		}
	}
	n := *w.Nodes[1]
	n.Pods = slices.Clone(w.Nodes[2].Pods)
	if i%2 == 1 {
		n.Pods = append(n.Pods, podOf("app-0", typeDefault, -1000))
	}
	w.Nodes[1] = &n
}

// statusIsWritten hands the targets in as they are read back: equal to those of the answer, or to nothing, but never the same.
func statusIsWritten(i int, w *World, planned Result) {
	m := &w.Maintenances[0]
	for _, name := range m.Nodes {
		m.Before[name] = nil
		if i%2 == 0 {
			for _, e := range planned.Targets[name].Entries {
				m.Before[name] = append(m.Before[name], *e.DeepCopy())
			}
		}
	}
}
