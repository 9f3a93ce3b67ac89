// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	"haulout.dev/haulout/pkg/testing/must"
)

const (
	benchNodes, benchPodsPerNode, benchMaintenances = 5000, 30, 20
	benchShare                                      = benchNodes / benchMaintenances
)

// benchPods returns mostly Default pods of many priorities, and some pods of the other types.
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

// benchWorld returns 5,000 nodes with 150,000 pods and 20 maintenances. Every second maintenance
// shares half of its nodes with the previous one. The statuses have the targets of a first call of
// the planner.
func benchWorld(b *testing.B, plan func() entries) World {
	b.Helper()
	var w World
	for i := range benchNodes {
		w.Nodes = append(w.Nodes, &Node{Name: fmt.Sprintf("node-%04d", i), Pods: benchPods()})
	}
	for i := range benchMaintenances {
		w.Maintenances = append(w.Maintenances, benchMaintenance(w, i, i*benchShare, plan))
	}
	planned := must.Get(Plan(w))(b)
	store(w.Maintenances, planned)
	return w
}

// benchMaintenance returns a maintenance of benchShare nodes. They begin at the index from or, for
// every second maintenance, half a share earlier.
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

// selectorPlan returns the default plan with ten entries with selectors before it.
func selectorPlan() entries {
	var plan entries
	for i := range 10 {
		plan = append(plan, entryFor(typeDefault, int32(i*300), fmt.Sprintf("app-%d", i*3)))
	}
	return append(plan, defaultPlan()...)
}

var benchPlans = map[string]func() entries{"default": defaultPlan, "selectors": selectorPlan}

// BenchmarkPlan plans for all maintenances, and for one maintenance alone.
func BenchmarkPlan(b *testing.B) {
	for name, plan := range benchPlans {
		all := benchWorld(b, plan)
		one := World{Maintenances: all.Maintenances[:1], Nodes: all.Nodes[:benchShare]}
		for size, w := range map[string]World{fmt.Sprint(benchNodes): all, fmt.Sprint(benchShare): one} {
			b.Run("plan="+name+"/nodes="+size, func(b *testing.B) {
				for b.Loop() {
					must.Get(Plan(w))(b)
				}
			})
		}
	}
}
