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
	"testing"
)

// BenchmarkPlan plans 5,000 nodes with 150,000 pods under one maintenance and, separately, under 20 of which half overlap.
func BenchmarkPlan(b *testing.B) {
	const nodes, podsPerNode = 5000, 30
	world := func(maintenances int) World {
		var w World
		for i := range nodes {
			n := Node{Name: fmt.Sprintf("node-%04d", i)}
			for p := range podsPerNode {
				n.Pods = append(n.Pods, podOf(fmt.Sprintf("app-%d", p), typeDefault, int32(p*100)))
			}
			w.Nodes = append(w.Nodes, n)
		}
		share := nodes / maintenances
		for i := range maintenances {
			m := maintenance(fmt.Sprintf("m%d", i), i, defaultPlan())
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
	for _, maintenances := range []int{1, 20} {
		w := world(maintenances)
		b.Run(fmt.Sprintf("maintenances=%d", maintenances), func(b *testing.B) {
			for b.Loop() {
				if _, err := Plan(w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
