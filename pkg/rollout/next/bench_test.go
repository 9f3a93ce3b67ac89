// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// BenchmarkDecide decides for 20 rollouts over the 5,000 nodes of a cluster, as in a full round
// after a change: each is half done, and a limit keeps the next units of each from starting. The
// decisions of a round share the nodes.
// Compare it with BenchmarkPlan of pkg/drain/plan, which plans the drains of such a cluster.
func BenchmarkDecide(b *testing.B) {
	const nodes, rollouts = 5000, 20
	var objects []*corev1.Node
	for i := range nodes {
		n := aNode(fmt.Sprintf("n%04d", i))
		n.Labels["zone"] = fmt.Sprintf("z%d", i%3)
		n.Spec.Unschedulable = i%9 == 0
		objects = append(objects, n)
	}
	var all []*v1alpha1.NodeMaintenanceRollout
	members, attempts := make([][]*corev1.Node, rollouts), make([][]*v1alpha1.NodeMaintenance, rollouts)
	for i := range rollouts {
		r := &v1alpha1.NodeMaintenanceRollout{}
		r.Name, r.Spec.Stage = fmt.Sprintf("r%d", i), v1alpha1.RolloutStageRoll
		r.Spec.Limits = []v1alpha1.RolloutLimit{percent("10%", ""), percent("10%", "zone"), maxDomains(1, "zone")}
		for j := i; j < nodes; j += rollouts {
			members[i] = append(members[i], objects[j])
			if j < nodes/2 {
				attempts[i] = append(attempts[i], attempt(objects[j].Name, "Done"))
			}
		}
		all = append(all, r)
	}
	for b.Loop() {
		states := make([]Node, 0, nodes)
		for _, n := range objects {
			states = append(states, NewNode(n, nil, now))
		}
		shared := NewNodes(states)
		for i, r := range all {
			in := &Rollout{Object: r, Members: make([]Member, 0, len(members[i])), Attempts: attempts[i]}
			worked := DoneBy(in.Attempts)
			for _, n := range members[i] {
				_, isDone := worked[n.UID]
				in.Members = append(in.Members, Member{n.Name, NoGoal, isDone})
			}
			facts := Facts{Now: now, Rollouts: all, Exists: func(string) bool { return true }, MaxUnavailablePercent: 10, Nodes: shared}
			if d := Decide(NewCluster(facts), in); d.Reason != v1alpha1.ReasonAtLimit {
				b.Fatalf("%s: %s", d.Reason, d.Message)
			}
		}
	}
}
