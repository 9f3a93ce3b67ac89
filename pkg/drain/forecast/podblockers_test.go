// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func merelyOwned(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }

func mirror(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"} }

func tolerant(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

func TestBlockersOfOnePod(t *testing.T) {
	never := []policyv1.PodDisruptionBudget{budget("closed", "web", 0, closed)}
	for name, test := range map[string]struct {
		pod *corev1.Pod
		// agent is the status of the condition of the node agent.
		agent      corev1.ConditionStatus
		budgets    []policyv1.PodDisruptionBudget
		evacuators []string
		want       []string
	}{
		"a pod that is recreated elsewhere": {pod: pod("web", "web", "n1")},
		"a budget that allows some": {
			pod: pod("web", "web", "n1"), budgets: []policyv1.PodDisruptionBudget{budget("open", "web", 1)},
		},
		"a budget that never allows any": {
			pod: pod("web", "web", "n1"), budgets: never, want: []string{"Never PodDisruptionBudget: 1 closed(0)"},
		},
		"the budget of other pods":        {pod: pod("db", "db", "n1"), budgets: never},
		"the budget of another namespace": {pod: pod("web", "web", "n1", in("other")), budgets: never},
		"several budgets, even if they allow some": {
			pod:     pod("web", "web", "n1"),
			budgets: []policyv1.PodDisruptionBudget{budget("b", "web", 1), budget("a", "web", 1)},
			want:    []string{"Never MultiplePodDisruptionBudgets: 1 a(1) b(1)"},
		},
		"several budgets of a pending pod": {
			pod:     pod("web", "web", "n1", inPhase(corev1.PodPending)),
			budgets: []policyv1.PodDisruptionBudget{budget("b", "web", 0, closed), budget("a", "web", 0, closed)},
		},
		"a pending pod bypasses its budget": {pod: pod("web", "web", "n1", inPhase(corev1.PodPending)), budgets: never},
		"a pod that is not ready is held as well": {
			pod: pod("web", "web", "n1", unready), budgets: []policyv1.PodDisruptionBudget{budget("closed", "web", 0, closed, unhealthy(8))}, want: []string{"Never PodDisruptionBudget: 1 closed(0)"},
		},
		"a pod that is not ready under a policy for it": {
			pod:     pod("web", "web", "n1", unready),
			budgets: []policyv1.PodDisruptionBudget{budget("closed", "web", 0, closed, lettingUnreadyGo)},
		},
		"a ready pod under the policy for unready ones": {
			pod: pod("web", "web", "n1"), budgets: []policyv1.PodDisruptionBudget{budget("closed", "web", 0, closed, lettingUnreadyGo)},
			want: []string{"Never PodDisruptionBudget: 1 closed(0)"},
		},
		"a pod without an owner":                {pod: pod("web", "web", "n1", bare), want: []string{"Lost NoController: 1"}},
		"a pod whose owner does not control it": {pod: pod("web", "web", "n1", merelyOwned), want: []string{"Lost NoController: 1"}},
		"a pod without an owner under a closed budget": {
			pod: pod("web", "web", "n1", bare), budgets: never,
			want: []string{"Never PodDisruptionBudget: 1 closed(0)", "Lost NoController: 1"},
		},
		"a finished pod":    {pod: pod("web", "web", "n1", bare, inPhase(corev1.PodSucceeded)), budgets: never},
		"a failed pod":      {pod: pod("web", "web", "n1", bare, inPhase(corev1.PodFailed)), budgets: never},
		"a terminating pod": {pod: pod("web", "web", "n1", bare, goneBy(0)), budgets: never},
		"a static pod": {
			pod: pod("web", "web", "n1", mirror, ownedBy("v1", "Node", "n1")), budgets: never,
			want: []string{"kept: static pod"},
		},
		"a static pod, with an agent": {
			pod:        pod("web", "web", "n1", mirror, ownedBy("v1", "Node", "n1")),
			agent:      corev1.ConditionTrue,
			evacuators: []string{v1alpha1.EvacuatorClassKubelet},
		},
		"a static pod, with an agent that has stopped": {
			pod:        pod("web", "web", "n1", mirror, ownedBy("v1", "Node", "n1")),
			agent:      corev1.ConditionFalse,
			evacuators: []string{v1alpha1.EvacuatorClassKubelet},
			want:       []string{"kept: static pod"},
		},
		"a static pod, with an agent and without the evacuator": {
			pod:   pod("web", "web", "n1", mirror, ownedBy("v1", "Node", "n1")),
			agent: corev1.ConditionTrue,
			want:  []string{"kept: static pod"},
		},
		"the mirror annotation on any pod": {pod: pod("web", "web", "n1", mirror, bare), want: []string{"Lost NoController: 1"}},
		"a mirror of a node that is gone":  {pod: pod("web", "web", "n1", mirror, ownedBy("v1", "Node", "n0"))},
		"a DaemonSet pod, whatever its budget": {
			pod: pod("web", "web", "n1", ownedBy("apps/v1", "DaemonSet", "agent")), budgets: never,
			want: []string{"kept: DaemonSet pod"},
		},
		"a DaemonSet pod, with its evacuator": {
			pod: pod("web", "web", "n1", ownedBy("apps/v1", "DaemonSet", "agent")), budgets: never,
			evacuators: []string{v1alpha1.EvacuatorClassDaemonSet},
		},
		"a tolerant DaemonSet pod, even with an evacuator": {
			pod:        pod("web", "web", "n1", ownedBy("apps/v1", "DaemonSet", "agent"), tolerant),
			evacuators: []string{v1alpha1.EvacuatorClassDaemonSet},
			want:       []string{"kept: DaemonSet pod that tolerates the drain taint"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := node("n1")
			if test.agent != "" {
				withAgent(n)
				n.Status.Conditions[0].Status = test.agent
			}
			out := scene{
				nodes: []*corev1.Node{n}, pods: []*corev1.Pod{test.pod}, budgets: test.budgets, evacuators: test.evacuators,
				owners: owners{agent: true},
			}.preview(t)
			got := troubles(out)
			for _, kept := range out.PodsKept {
				got = append(got, "kept: "+kept.Reason)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
