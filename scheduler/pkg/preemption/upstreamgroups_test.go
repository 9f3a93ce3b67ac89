// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/component-base/featuregate"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"
)

// gangCase is a pending PodGroup in a case of upstream's tests. No class has a threshold.
type gangCase struct {
	cluster
	// priority is the priority of the group; 0 means high. members is the number of its pods; 0
	// means one. min is the number of pods that have to be scheduled; 0 means all.
	priority     int32
	members, min int
	pod          []podOption
	group        []groupOption
	// victims are the deleted pods. If there are none, message is the whole status.
	victims, message string
}

func neverPreempts(group *schedulingv1beta1.PodGroup) {
	group.Spec.PreemptionPolicy = ptr.To(schedulingv1beta1.PreemptNever)
}

func preemptsLower(group *schedulingv1beta1.PodGroup) {
	group.Spec.PreemptionPolicy = ptr.To(schedulingv1beta1.PreemptLowerPriority)
}

// ones returns nodes of one CPU.
func ones(names ...string) []*corev1.Node {
	var nodes []*corev1.Node
	for _, name := range names {
		nodes = append(nodes, node(name, 1))
	}
	return nodes
}

const noGroupVictims = "pod group preemption: No preemption victims found for incoming preemptor"

var gangCases = map[string]gangCase{
	"a less important pod": {cluster: cluster{nodes: ones("n1"), pods: place("n1: a/low/1")}, victims: "a"},
	"all less important pods, if all are needed": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 3)}, pods: place("n1: a/low/1 b/mid/1 c/high/1")}, members: 2, victims: "a b",
	},
	"the least important one":        {cluster: cluster{nodes: []*corev1.Node{node("n1", 2)}, pods: place("n1: a/low/1 b/mid/1")}, victims: "a"},
	"not more pods than needed":      {cluster: cluster{nodes: []*corev1.Node{node("n1", 4)}, pods: place("n1: a/low/1@1 b/low/1@2 c/low/1@3 d/low/1@4")}, members: 2, victims: "c d"},
	"a pod before a pod of a group":  {cluster: cluster{nodes: []*corev1.Node{node("n1", 2)}, pods: place("n1: a/low/1 b/low/1+g"), groups: groupsOf(podGroup("g", low, oneByOne))}, victims: "a"},
	"the later pod of a group":       {cluster: cluster{nodes: []*corev1.Node{node("n1", 2)}, pods: place("n1: a/low/1@1+g b/low/1@0+g"), groups: groupsOf(podGroup("g", low, oneByOne))}, victims: "a"},
	"a group as a whole, everywhere": {cluster: cluster{nodes: ones("n1", "n2"), pods: place("n1: a/low/1+g", "n2: b/low/1+g"), groups: groupsOf(podGroup("g", low, wholeOnly))}, victims: "a b"},
	"a group as a whole, on a node": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 3)}, pods: place("n1: a/low/1+g b/low/1+g c/mid/1"), groups: groupsOf(podGroup("g", low, wholeOnly))}, victims: "a b",
	},
	"a pod before a whole group": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 3)}, pods: place("n1: a/low/1 b/low/1+g c/low/1+g"), groups: groupsOf(podGroup("g", low, wholeOnly))}, victims: "a",
	},
	"a pod without a budget": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 2)}, pods: place("n1: a/low/1#web b/low/1"), budgets: closedWeb}, victims: "b",
	},
	"a more important pod without a budget": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 2)}, pods: place("n1: a/low/1#web b/mid/1"), budgets: closedWeb}, victims: "b",
	},
	"a pod of a group without a budget": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 2)}, pods: place("n1: a/low/1#web+g b/low/1+g"), budgets: closedWeb, groups: groupsOf(podGroup("g", low, oneByOne))},
		victims: "b",
	},
	"a pod before a group with a budget": {
		cluster: cluster{
			nodes: []*corev1.Node{node("n1", 3)}, pods: place("n1: a/low/1#web+g b/low/1+g c/low/1"), budgets: closedWeb,
			groups: groupsOf(podGroup("g", low, wholeOnly)),
		}, victims: "c",
	},
	"the less important of two whose budget allows no disruption": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 2)}, pods: place("n1: a/low/1#web b/mid/1#web"), budgets: closedWeb}, victims: "a",
	},
	"pods of a less important group": {
		cluster: cluster{nodes: ones("n1"), pods: place("n1: a/top/1+g"), groups: groupsOf(podGroup("g", low, oneByOne))}, victims: "a",
	},
	"pods of a more important group": {
		cluster: cluster{nodes: ones("n1"), pods: place("n1: a/low/1+g"), groups: groupsOf(podGroup("g", top, oneByOne))}, message: noGroupVictims,
	},
	"a more important pod":          {cluster: cluster{nodes: ones("n1"), pods: place("n1: a/high/1")}, priority: mid, message: noGroupVictims},
	"a pod of the same priority":    {cluster: cluster{nodes: ones("n1"), pods: place("n1: a/mid/1")}, priority: mid, message: noGroupVictims},
	"an empty node":                 {cluster: cluster{nodes: ones("n1")}, members: 2, message: noGroupVictims},
	"too few CPUs":                  {cluster: cluster{nodes: ones("n1"), pods: place("n1: a/low/1")}, members: 2, message: "pod group preemption: Insufficient cpu"},
	"as many as fit":                {cluster: cluster{nodes: ones("n1", "n2"), pods: place("n1: a/low/1", "n2: b/top/1")}, members: 2, min: 1, victims: "a"},
	"a whole group for a part":      {cluster: cluster{nodes: ones("n1", "n2", "n3"), pods: place("n1: a/low/1+g", "n2: b/low/1+g", "n3: c/top/1"), groups: groupsOf(podGroup("g", low, wholeOnly))}, members: 3, min: 1, victims: "a b"},
	"a group that may preempt":      {cluster: cluster{nodes: ones("n1"), pods: place("n1: a/low/1")}, group: []groupOption{preemptsLower}, victims: "a"},
	"a group that must not preempt": {cluster: cluster{nodes: ones("n1"), pods: place("n1: a/low/1")}, group: []groupOption{neverPreempts}, message: "pod group preemption: not eligible due to preemptionPolicy=Never."},
	"the policy of its pods is ignored": {
		cluster: cluster{nodes: ones("n1"), pods: place("n1: a/low/1")}, group: []groupOption{preemptsLower},
		pod: []podOption{func(pod *corev1.Pod) { pod.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }}, victims: "a",
	},
	"its victim is leaving": {
		cluster: cluster{nodes: ones("n1"), pods: with(place("n1: a/low/1"), leavesForOther)},
		pod:     []podOption{func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "n1" }}, message: "pod group preemption: ongoing preemption on nominated nodes",
	},
	"its victim, of a less important group, is leaving": {
		cluster: cluster{nodes: ones("n1"), pods: with(place("n1: a/top/1+g"), leavesForOther), groups: groupsOf(podGroup("g", low, wholeOnly))},
		pod:     []podOption{func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "n1" }}, message: "pod group preemption: ongoing preemption on nominated nodes",
	},
	"a pod is leaving elsewhere": {
		cluster: cluster{nodes: ones("n1", "n2"), pods: append(place("n2: a/low/1"), with(place("n1: b/top/1"), leavesForOther)...)},
		pod:     []podOption{func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "n2" }}, victims: "a",
	},
}

// leavesForOther makes a pod a terminating victim of another preemption.
func leavesForOther(pod *corev1.Pod) {
	terminating(pod)
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
	})
}

// choose runs a plugin for the group.
func (c *gangCase) choose(t *testing.T, ours bool) (choice, map[string]string) {
	t.Helper()
	group := podGroup("pending", max(c.priority, 0), c.group...)
	if c.priority == 0 {
		group.Spec.Priority = ptr.To[int32](high)
	}
	info := &framework.PodGroupInfo{Namespace: "shop", Name: "pending", Type: fwk.PodGroupKeyType, PodGroup: group}
	for i := range max(c.members, 1) {
		options := append([]podOption{onNode(""), ofApp(""), ofGroup("pending")}, c.pod...)
		pod := runningPod(fmt.Sprintf("m%d", i), *group.Spec.Priority, options...)
		pod.Status.Phase, pod.Status.StartTime = corev1.PodPending, nil
		info.UnscheduledPods = append(info.UnscheduledPods, pod)
	}
	informed := c.cluster
	informed.pods = append(slices.Clone(c.pods), info.UnscheduledPods...)
	client := informed.client(true)
	g := &gang{t: t, f: c.framework(t, t.Context(), client), info: info, min: c.min}
	p, _ := newPreemption(t, g.f, ours)
	result, status := p.PodGroupPostFilter(t.Context(), nil, info, g.schedule)
	done := choice{message: status.Message(), code: status.Code()}
	done.deleted, done.marked = removed(client)
	nominated := map[string]string{}
	if result != nil {
		for name, nomination := range result.NominatingInfos {
			nominated[name.Name] = nomination.NominatedNodeName
		}
	}
	return done, nominated
}

// TestUpstreamGangs runs DefaultPreemption and our plugin with the groups of upstream's tests.
func TestUpstreamGangs(t *testing.T) {
	for name, test := range gangCases {
		t.Run(name, func(t *testing.T) {
			withGates(t, false, []featuregate.Feature{features.GenericWorkload, features.PodGroupPreemptionPolicy}...)
			theirs, theirNodes := test.choose(t, false)
			our, ourNodes := test.choose(t, true)
			if our != theirs || fmt.Sprint(ourNodes) != fmt.Sprint(theirNodes) {
				t.Errorf("got %+v %v, upstream %+v %v", our, ourNodes, theirs, theirNodes)
			}
			if our.deleted != test.victims || our.marked != test.victims {
				t.Errorf("got %+v, want the victims %q", our, test.victims)
			}
			if test.message != "" && our.message != test.message {
				t.Errorf("got the message %q, want %q", our.message, test.message)
			}
		})
	}
}
