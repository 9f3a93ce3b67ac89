// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// decideNodeTest is a test of the decision about one node and its pods.
type decideNodeTest struct {
	node       *corev1.Node
	evacuators []string
	given      func(*world)
	// asked are the pods that get an Evacuation, unwanted the pods whose Evacuation is withdrawn.
	asked, unwanted []string
	// message is a part of the message of the node.
	message              string
	pending, left, stuck int32
	drained, progressing string
	// reason is the reason of the node.
	reason v1alpha1.NodeStatusReason
}

const (
	classDaemonSet = v1alpha1.EvacuatorClassDaemonSet
	classKubelet   = v1alpha1.EvacuatorClassKubelet
	podsKept       = v1alpha1.ReasonDrainCompleteWithPodsLeft
)

func TestDecideKeptPods(t *testing.T) {
	for name, test := range map[string]decideNodeTest{
		"a DaemonSet pod is kept without its evacuator, and its Evacuation withdrawn": {
			given: func(w *world) { w.run(newPod("p", "one", 0, ofDaemonSet), evacuated()) }, unwanted: []string{"p"}, left: 1, drained: podsKept, progressing: "Drained",
		},
		"a DaemonSet pod waits for the taint": {
			evacuators: []string{classDaemonSet}, pending: 1,
			given: func(w *world) { w.run(newPod("p", "one", 0, ofDaemonSet)) }, drained: "DrainInProgress", progressing: "Draining",
		},
		"a DaemonSet pod of a tainted node is asked to leave": {
			node: newNode("one", taintedWith(drainTaint)), evacuators: []string{classDaemonSet}, pending: 1,
			given: func(w *world) { w.run(newPod("p", "one", 0, ofDaemonSet)) }, asked: []string{"p"}, drained: "DrainInProgress", progressing: "Draining",
		},
		"a DaemonSet pod that tolerates the taint is kept": {
			evacuators: []string{classDaemonSet}, left: 1, drained: podsKept, progressing: "Drained",
			given: func(w *world) {
				w.run(newPod("p", "one", 0, ofDaemonSet, func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }))
			},
		},
		"a DaemonSet pod whose budget allows no disruption is kept, and still asked to leave": {
			evacuators: []string{classDaemonSet}, left: 1, drained: podsKept, progressing: "Drained",
			given: func(w *world) {
				w.run(newPod("p", "one", 0, ofDaemonSet), evacuated(), func(p *nodestate.Pod) { p.Kept = drainplan.KeptBudget })
			},
		},
		"a static pod is kept without the evacuator": {
			node: newNode("one", agent(corev1.ConditionTrue)), left: 1, drained: podsKept, progressing: "Drained",
			given: func(w *world) { w.run(newPod("p", "one", 0, static)) },
		},
		"a static pod is kept without an agent": {
			evacuators: []string{classKubelet}, left: 1, drained: podsKept, progressing: "Drained",
			given: func(w *world) { w.run(newPod("p", "one", 0, static)) },
		},
		"a static pod that the agent keeps is counted": {
			node: newNode("one", agent(corev1.ConditionTrue), keeping("p")), evacuators: []string{classKubelet},
			given: func(w *world) { w.run(newPod("p", "one", 0, static)) }, message: "1 static pod kept (ServesTheAPI)", left: 1, drained: podsKept, progressing: "Drained",
		},
	} {
		t.Run(name, test.run)
	}
}

func TestDecidePods(t *testing.T) {
	for name, test := range map[string]decideNodeTest{
		"a pod is asked to leave": {
			given: func(w *world) { w.run(newPod("p", "one", 0)) }, asked: []string{"p"}, message: "Evacuating", pending: 1,
			drained: "DrainInProgress", progressing: "Draining",
		},
		"a pod with the Evacuation of another instigator is asked to leave": {
			given: func(w *world) { w.run(newPod("p", "one", 0), evacuated(instigatedBy(foreignInstigator))) }, asked: []string{"p"},
			drained: "DrainInProgress", progressing: "Draining",
		},
		"a nominated pod gets no Evacuation, and is named": {
			given: func(w *world) { w.run(newPod("p", "", 0, nominated("one"))) }, message: "1 pod is only nominated for the node, such as default/p",
			pending: 1, drained: "DrainInProgress", progressing: "Draining",
		},
		"a pod of a terminating namespace is named and not blocked": {
			given: func(w *world) {
				w.run(newPod("p", "one", 0))
				w.facts.refusals["uid-p"] = refusal{terminating: true}
			}, asked: []string{"p"}, message: "1 pod of terminating namespaces: default/p", pending: 1, drained: "DrainInProgress", progressing: "Draining",
		},
		"a pod whose request is refused twice is blocked": {
			given: func(w *world) {
				w.run(newPod("p", "one", 0))
				w.facts.refusals["uid-p"] = refusal{why: "a policy says no"}
			}, asked: []string{"p"}, message: "no Evacuation for 1 pod, such as default/p: a policy says no", pending: 1, stuck: 1,
			drained: "DrainBlocked", progressing: "Blocked",
		},
		"a pod whose Evacuation is blocked is blocked": {
			given: func(w *world) {
				w.run(newPod("p", "one", 0), evacuated(withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget)))
			}, stuck: 1, drained: "DrainBlocked", progressing: "Blocked",
		},
	} {
		t.Run(name, test.run)
	}
}

func TestDecideNodes(t *testing.T) {
	for name, test := range map[string]decideNodeTest{
		"a failure of the node is in its message": {
			given: func(w *world) {
				w.run(newPod("p", "one", 0))
				w.facts.troubles["one"] = loop.Failure{Since: noon.Add(-time.Hour), Text: "taint node one: no"}
			}, asked: []string{"p"}, message: "taint node one: no; Evacuating", pending: 1, drained: "DrainInProgress", progressing: "SyncFailed",
		},
		"no pod of a node that is not cordoned is asked to leave": {
			given: func(w *world) {
				w.run(newPod("p", "one", 0))
				w.facts.subject.nodes[0].Spec.Unschedulable = false
			}, pending: 1, drained: "DrainInProgress", progressing: "Waiting",
			reason: v1alpha1.NodeStatusNotCordoned,
		},
		"no pod of a node is asked to leave before the authorizer has answered": {
			given: func(w *world) {
				w.run(newPod("p", "one", 0))
				w.facts.subject.nodes[0].unanswered = true
			}, pending: 1, drained: "DrainInProgress", progressing: "Waiting",
			reason: v1alpha1.NodeStatusNotCordoned,
		},
		"a node that the requester may not maintain is skipped": {
			given: func(w *world) {
				w.run(newPod("p", "one", 0))
				w.outside("one", exclusion{reason: v1alpha1.NodeStatusNotAuthorized, why: `user "jane" may not maintain this node.`})
			}, message: `Not drained: user "jane" may not maintain this node.`, pending: 1, drained: "NotAuthorized", progressing: "Waiting",
			reason: v1alpha1.NodeStatusNotAuthorized,
		},
		"a node that cannot be cordoned is outside the waves": {
			given: func(w *world) {
				w.run(newPod("p", "one", 0))
				w.outside("one", exclusion{v1alpha1.NodeStatusNotCordoned, "cordon node one: no", noon.Add(-time.Hour)})
			}, message: "Not drained: cordon node one: no", pending: 1, drained: "NodeNotCordoned", progressing: "SyncFailed",
			reason: v1alpha1.NodeStatusNotCordoned,
		},
	} {
		t.Run(name, test.run)
	}
}

// run decides and compares the decision.
func (test decideNodeTest) run(t *testing.T) {
	t.Helper()
	node := test.node
	if node == nil {
		node = newNode("one")
	}
	w := newWorld(t, newMaintenance("m"), node)
	w.evacuators = sets.New(test.evacuators...)
	test.given(w)
	if test.left > 0 {
		w.facts.live = ptr.To("")
	}
	d := w.wantAsked(test.asked...)
	w.wantReasons(d, test.drained, test.progressing)
	got := w.entry(d, "one")
	if got.PodsPendingEvacuation != test.pending || got.PodsKept != test.left || got.PodsBlocked != test.stuck || got.Reason != test.reason || !strings.Contains(got.DrainMessage, test.message) {
		t.Errorf("got the entry %+v", got)
	}
	var unwanted []string
	for _, n := range d.counts {
		for _, e := range n.unwanted {
			unwanted = append(unwanted, e.Spec.PodRef.Name)
		}
	}
	if !slices.Equal(unwanted, test.unwanted) {
		t.Errorf("the Evacuations of %q are not wanted, want %q", unwanted, test.unwanted)
	}
}
