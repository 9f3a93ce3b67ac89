// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
)

func TestDecideEvacuation(t *testing.T) {
	for name, test := range map[string]struct {
		evacuation *v1alpha1.Evacuation
		want       evacuationStep
	}{
		"a pod without an Evacuation gets one": {nil, stepCreate},
		"our Evacuation is enough":             {ourEvacuation("p", "n"), stepNone},
		"the Evacuation of another instigator is joined": {
			ourEvacuation("p", "n", instigatedBy(foreignInstigator)), stepAdopt,
		},
		"a new Evacuation waits for one that is being deleted": {ourEvacuation("p", "n", instigatedBy(foreignInstigator),
			func(e *v1alpha1.Evacuation) { e.DeletionTimestamp = &metav1.Time{} }), stepWait},
		"a new Evacuation waits for one that is complete": {ourEvacuation("p", "n", instigatedBy(),
			withCondition(v1alpha1.ConditionComplete, v1alpha1.ReasonCancelled)), stepWait},
		"an active Evacuation without instigators is joined": {
			ourEvacuation("p", "n", instigatedBy(), forbidden), stepAdopt,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decideEvacuation(&nodestate.Pod{
				Evacuation: test.evacuation, Ours: test.evacuation != nil && nodestate.IsOurs(test.evacuation),
			}); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// nodesWith returns nodes inside the waves, and others that are outside for the given reasons.
func nodesWith(inside int, outside ...v1alpha1.NodeStatusReason) []memberNode {
	nodes := make([]memberNode, 0, inside+len(outside))
	for i := range inside {
		nodes = append(nodes, memberNode{Node: newNode(fmt.Sprintf("n-%d", i))})
	}
	for _, reason := range outside {
		nodes = append(nodes, memberNode{Node: newNode("out"), outside: &exclusion{reason: reason, why: "some text"}})
	}
	return nodes
}

func TestDecideDrained(t *testing.T) {
	some := func(modify ...func(*remainder)) *remainder {
		r := newRemainder()
		for _, m := range modify {
			m(r)
		}
		return r
	}
	leaving := func(r *remainder) { r.covered, r.targeted, r.leaving, r.evacuating = 3, 2, 2, 2 }
	blocked := func(r *remainder) {
		r.leaving, r.stuck = 0, 2
		r.blocked = []*v1alpha1.Evacuation{
			ourEvacuation("p", "n",
				withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget)),
			ourEvacuation("q", "n",
				withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodFinalizer)),
		}
	}
	for name, test := range map[string]struct {
		facts drainedFacts
		want  verdict
	}{
		"the maintenance is in another stage": {
			drainedFacts{nodes: nodesWith(1), finished: true, remainder: some()},
			verdict{
				metav1.ConditionFalse, v1alpha1.ReasonNotRequested, "The maintenance is not in stage Drain",
			},
		},
		"a maintenance without nodes is not drained": {
			drainedFacts{draining: true, finished: true, remainder: some()},
			verdict{metav1.ConditionFalse, v1alpha1.ReasonNoNodes, "The selector matches no existing node"},
		},
		"pods that are evacuating are progress": {
			drainedFacts{draining: true, nodes: nodesWith(1), remainder: some(leaving)},
			verdict{
				metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress,
				"3 pods left, 2 of them evacuating, 0 blocked",
			},
		},
		"a drain whose evacuating pods are all blocked is blocked": {
			drainedFacts{draining: true, nodes: nodesWith(1), remainder: some(leaving, blocked)},
			verdict{
				metav1.ConditionFalse, v1alpha1.ReasonDrainBlocked,
				"No pod is able to leave: default/p (PodDisruptionBudget), default/q (PodFinalizer); 3 pods left, 2 of them evacuating, 2 blocked",
			},
		},
		"a drain with one evacuating pod that is not blocked is progress": {
			drainedFacts{
				draining: true, nodes: nodesWith(1), remainder: some(leaving, blocked, func(r *remainder) { r.targeted, r.leaving = 3, 1 }),
			},
			verdict{
				metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress,
				"3 pods left, 2 of them evacuating, 2 blocked",
			},
		},
		"a node that is not cordoned is not drained": {
			drainedFacts{draining: true, nodes: nodesWith(1), finished: true, uncordoned: []string{"n"}, remainder: some()},
			verdict{
				metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress,
				"Waiting for 1 node to be cordoned; 0 pods left, 0 of them evacuating, 0 blocked",
			},
		},
		"a drain with a refused node is not drained": {
			drainedFacts{draining: true, nodes: nodesWith(1, v1alpha1.NodeStatusNotAuthorized), username: "x", finished: true, remainder: some()},
			verdict{
				metav1.ConditionFalse, v1alpha1.ReasonNotAuthorized,
				`User "x" may not maintain 1 selected node (skipped); the other nodes: 0 pods left, 0 of them evacuating, 0 blocked`,
			},
		},
		"a drain of refused nodes only has no pods to count": {
			drainedFacts{draining: true, nodes: nodesWith(0, v1alpha1.NodeStatusNotAuthorized), username: "x", finished: true, remainder: some()},
			verdict{metav1.ConditionFalse, v1alpha1.ReasonNotAuthorized, `User "x" may not maintain 1 selected node (skipped)`},
		},
		"a drain whose waves wait for a node outside says so": {
			drainedFacts{
				draining: true, nodes: nodesWith(2, v1alpha1.NodeStatusNotCordoned), remainder: some(), onExcluded: v1alpha1.ExcludedNodeWait,
			},
			verdict{
				metav1.ConditionFalse, v1alpha1.ReasonNodeNotCordoned,
				"1 node is outside the drain, such as out: some text; later waves wait until its pods have left (onExcludedNode: Wait); " +
					"0 pods left, 0 of them evacuating, 0 blocked",
			},
		},
		"a drain with a node outside the waves is not drained": {
			drainedFacts{draining: true, nodes: nodesWith(2, v1alpha1.NodeStatusNotCordoned), finished: true, remainder: some()},
			verdict{
				metav1.ConditionFalse, v1alpha1.ReasonNodeNotCordoned,
				"1 node is outside the drain, such as out: some text; the other nodes: 0 pods left, 0 of them evacuating, 0 blocked",
			},
		},
		"a drain without pods is drained": {
			drainedFacts{draining: true, nodes: nodesWith(2), finished: true, remainder: some()},
			verdict{metav1.ConditionTrue, v1alpha1.ReasonDrainComplete, "All pods have left 2 nodes"},
		},
		"kept pods are named": {
			drainedFacts{
				draining: true, nodes: nodesWith(1), finished: true,
				remainder: some(func(r *remainder) { r.left["DaemonSet pod of default/logger"] = 2 }),
			},
			verdict{
				metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft,
				"All pods have left 1 node except the kept pods: DaemonSet pod of default/logger (2)",
			},
		},
		"attached volumes are named and do not delay Drained": {
			drainedFacts{
				draining: true, nodes: nodesWith(3), finished: true, remainder: some(),
				attached: attachedVolumes{volumes: 3, nodes: 2},
			},
			verdict{
				metav1.ConditionTrue, v1alpha1.ReasonDrainComplete,
				"All pods have left 3 nodes; 3 volumes are still attached to 2 nodes",
			},
		},
		"one attached volume is named after the kept pods": {
			drainedFacts{
				draining: true, nodes: nodesWith(1), finished: true,
				remainder: some(func(r *remainder) { r.left["static pod of default/x"] = 1 }),
				attached:  attachedVolumes{volumes: 1, nodes: 1},
			},
			verdict{
				metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft,
				"All pods have left 1 node except the kept pods: static pod of default/x (1); 1 volume is still attached to 1 node",
			},
		},
		"volumes of pods that still run are not named": {
			drainedFacts{
				draining: true, nodes: nodesWith(1), remainder: some(leaving), attached: attachedVolumes{volumes: 3, nodes: 1},
			},
			verdict{
				metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress,
				"3 pods left, 2 of them evacuating, 0 blocked",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decideDrained(test.facts); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
