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
	"fmt"
	"slices"
	"testing"
)

const (
	benchNodes, benchPodsPerNode, benchMaintenances = 5000, 30, 20
	benchShare                                      = benchNodes / benchMaintenances
)

// benchPods has mostly Default pods of many priorities, and some of the other types.
func benchPods() []Pod {
	var pods []Pod
	for p := range benchPodsPerNode {
		t := typeDefault
		switch p % 10 {
		case 8:
			t = typeDaemonSet
		case 9:
			t = typeStatic
		}
		pods = append(pods, podOf(fmt.Sprintf("app-%d", p), t, int32(p*100)))
	}
	return pods
}

// benchWorld has 5,000 nodes with 150,000 pods under 20 maintenances, every second of which shares
// half of its nodes with the one before. All statuses are written.
func benchWorld(b *testing.B, plan func() entries) World {
	b.Helper()
	var w World
	for i := range benchNodes {
		w.Nodes = append(w.Nodes, &Node{Name: fmt.Sprintf("node-%04d", i), Pods: benchPods()})
	}
	for i := range benchMaintenances {
		w.Maintenances = append(w.Maintenances, benchMaintenance(w, i, i*benchShare, plan))
	}
	planned, err := Plan(w)
	if err != nil {
		b.Fatal(err)
	}
	store(w.Maintenances, planned)
	return w
}

// benchMaintenance holds as many nodes as all others, from the given one on or, every second time,
// half of them before.
func benchMaintenance(w World, i, from int, plan func() entries) Maintenance {
	if i%2 == 1 {
		from -= benchShare / 2
	}
	m := maintenance(fmt.Sprintf("m%d", i), i, plan())
	for _, n := range w.Nodes[from : from+benchShare] {
		m.Nodes = append(m.Nodes, n.Name)
	}
	return m
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
		w := benchWorld(b, plan)
		b.Run("plan="+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Plan(w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEvent plans again after one event.
func BenchmarkEvent(b *testing.B) {
	for name, plan := range benchPlans {
		for event, happens := range map[string]func(int, *World, Result){
			"pod": podGoes, "wave": waveOpens, "status": statusIsWritten, "node": nodeJoins,
			"maintenance": func(i int, w *World, _ Result) { maintenanceArrivesOrGoes(i, w, plan) },
		} {
			b.Run("plan="+name+"/event="+event, func(b *testing.B) { benchEvents(b, benchWorld(b, plan), happens) })
		}
	}
}

// benchEvents plans once, and again after each event. An event is given the world that it may
// change and what was planned for it.
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
	w.Nodes[1] = &Node{Name: w.Nodes[1].Name, Pods: benchPods()[1-i%2:]}
}

// waveOpens takes the one pod that all nodes of a maintenance wait for off its node, so that their
// DaemonSet pods are asked to leave, or brings it back.
func waveOpens(i int, w *World, _ Result) {
	if i == 0 {
		for at := range 2 * benchShare {
			left := slices.DeleteFunc(benchPods(), func(p Pod) bool { return p.Type == typeDefault })
			w.Nodes[at] = &Node{Name: w.Nodes[at].Name, Pods: left}
		}
		for m := range 2 {
			clear(w.Maintenances[m].Before)
		}
	}
	pods := slices.Clone(w.Nodes[0].Pods)
	if i%2 == 0 {
		pods = append(pods, podOf("app-0", typeDefault, 0))
	}
	w.Nodes[1] = &Node{Name: w.Nodes[1].Name, Pods: pods}
}

// statusIsWritten hands the targets in as they are read back: equal to those of the answer, or to
// nothing, but never the same.
func statusIsWritten(i int, w *World, planned Result) {
	m := &w.Maintenances[0]
	for _, name := range m.Nodes {
		m.Before[name] = nil
		if i%2 == 1 {
			for _, e := range planned.Targets[name].Entries {
				m.Before[name] = append(m.Before[name], *e.DeepCopy())
			}
		}
	}
}

// nodeJoins lets a maintenance select one node more, or release it.
func nodeJoins(i int, w *World, _ Result) {
	m := &w.Maintenances[0]
	m.Nodes = slices.Clone(m.Nodes[:benchShare])
	if i%2 == 0 {
		m.Nodes = append(m.Nodes, w.Nodes[4*benchShare].Name)
	}
}

// maintenanceArrivesOrGoes lets there be one maintenance more on nodes of others, or one less.
func maintenanceArrivesOrGoes(i int, w *World, plan func() entries) {
	w.Maintenances = slices.Clone(w.Maintenances[:benchMaintenances])
	if i%2 == 0 {
		w.Maintenances = append(w.Maintenances, benchMaintenance(*w, benchMaintenances, benchShare/2, plan))
	}
}
