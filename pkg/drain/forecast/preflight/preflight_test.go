// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	pdb "haulout.dev/haulout/pkg/drain/budget"
)

var node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-1"}}

// pod returns a ready pod of a ReplicaSet, with the label app=name.
func pod(name string, modifiers ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	ownedBy("apps/v1", "ReplicaSet", "uid-rs")(p)
	for _, modify := range modifiers {
		modify(p)
	}
	return p
}

func ownedBy(apiVersion, kind string, uid types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: apiVersion, Kind: kind, Name: "owner", UID: uid, Controller: ptr.To(true)},
		}
	}
}

func bare(p *corev1.Pod) { p.OwnerReferences = nil }

func merelyOwned(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }

func mirror(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"} }

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func unready(p *corev1.Pod) { p.Status.Conditions = nil }

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(0, 0)} }

func tolerant(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

func in(namespace string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace = namespace }
}

// budget returns a budget of the pods with the label app=app that never allows anything.
func budget(name, app string, modifiers ...func(*policyv1.PodDisruptionBudget)) policyv1.PodDisruptionBudget {
	b := policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			MaxUnavailable: ptr.To(intstr.FromInt32(0)),
		},
	}
	for _, modify := range modifiers {
		modify(&b)
	}
	return b
}

func allowing(n int32) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(n)) }
}

func lettingUnreadyGo(b *policyv1.PodDisruptionBudget) {
	b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
}

func TestFindings(t *testing.T) {
	closed := []policyv1.PodDisruptionBudget{budget("closed", "web")}
	for name, test := range map[string]struct {
		pod *corev1.Pod
		// agent is the status of the condition of the node agent.
		agent      corev1.ConditionStatus
		budgets    []policyv1.PodDisruptionBudget
		evacuators []string
		want       []string
	}{
		"a pod that comes back elsewhere": {pod: pod("web")},
		"a budget that allows some": {
			pod: pod("web"), budgets: []policyv1.PodDisruptionBudget{budget("open", "web", allowing(1))},
		},
		"a budget that never allows any": {
			pod: pod("web"), budgets: closed, want: []string{"BudgetNeverAllows shop/closed maxUnavailable 0"},
		},
		"the budget of other pods":        {pod: pod("db"), budgets: closed},
		"the budget of another namespace": {pod: pod("web", in("other")), budgets: closed},
		"several budgets, even if they allow some": {
			pod:     pod("web"),
			budgets: []policyv1.PodDisruptionBudget{budget("b", "web", allowing(1)), budget("a", "web", allowing(1))},
			want:    []string{"SeveralBudgets shop/a shop/b"},
		},
		"several budgets of a pending pod": {
			pod:     pod("web", inPhase(corev1.PodPending)),
			budgets: []policyv1.PodDisruptionBudget{budget("b", "web"), budget("a", "web")},
		},
		"a pending pod bypasses its budget": {pod: pod("web", inPhase(corev1.PodPending)), budgets: closed},
		"a pod that is not ready is held as well": {
			pod: pod("web", unready), budgets: closed, want: []string{"BudgetNeverAllows shop/closed maxUnavailable 0"},
		},
		"a pod that is not ready under a policy for it": {
			pod:     pod("web", unready),
			budgets: []policyv1.PodDisruptionBudget{budget("closed", "web", lettingUnreadyGo)},
		},
		"a ready pod under the policy for unready ones": {
			pod: pod("web"), budgets: []policyv1.PodDisruptionBudget{budget("closed", "web", lettingUnreadyGo)},
			want: []string{"BudgetNeverAllows shop/closed maxUnavailable 0"},
		},
		"a pod without an owner":                {pod: pod("web", bare), want: []string{"NoController"}},
		"a pod whose owner does not control it": {pod: pod("web", merelyOwned), want: []string{"NoController"}},
		"a pod without an owner under a closed budget": {
			pod: pod("web", bare), budgets: closed,
			want: []string{"BudgetNeverAllows shop/closed maxUnavailable 0", "NoController"},
		},
		"a finished pod":          {pod: pod("web", bare, inPhase(corev1.PodSucceeded)), budgets: closed},
		"a failed pod":            {pod: pod("web", bare, inPhase(corev1.PodFailed)), budgets: closed},
		"a pod that goes already": {pod: pod("web", bare, terminating), budgets: closed},
		"a static pod": {
			pod: pod("web", mirror, ownedBy("v1", "Node", "uid-1")), budgets: closed,
			want: []string{"LeftRunning static pod"},
		},
		"a static pod, with an agent": {
			pod:        pod("web", mirror, ownedBy("v1", "Node", "uid-1")),
			agent:      corev1.ConditionTrue,
			evacuators: []string{maintenancev1alpha1.EvacuatorClassKubelet},
		},
		"a static pod, with an agent that has stopped": {
			pod:        pod("web", mirror, ownedBy("v1", "Node", "uid-1")),
			agent:      corev1.ConditionFalse,
			evacuators: []string{maintenancev1alpha1.EvacuatorClassKubelet},
			want:       []string{"LeftRunning static pod"},
		},
		"a static pod, with an agent and without the evacuator": {
			pod:   pod("web", mirror, ownedBy("v1", "Node", "uid-1")),
			agent: corev1.ConditionTrue,
			want:  []string{"LeftRunning static pod"},
		},
		"the mirror annotation on any pod": {pod: pod("web", mirror, bare), want: []string{"NoController"}},
		"a mirror of a node that is gone":  {pod: pod("web", mirror, ownedBy("v1", "Node", "uid-0"))},
		"a DaemonSet pod, whatever its budget": {
			pod: pod("web", ownedBy("apps/v1", "DaemonSet", "uid-ds")), budgets: closed,
			want: []string{"LeftRunning DaemonSet pod"},
		},
		"a DaemonSet pod, with its evacuator": {
			pod: pod("web", ownedBy("apps/v1", "DaemonSet", "uid-ds")), budgets: closed,
			evacuators: []string{maintenancev1alpha1.EvacuatorClassDaemonSet},
		},
		"a tolerant DaemonSet pod, even with an evacuator": {
			pod:        pod("web", ownedBy("apps/v1", "DaemonSet", "uid-ds"), tolerant),
			evacuators: []string{maintenancev1alpha1.EvacuatorClassDaemonSet},
			want:       []string{"LeftRunning DaemonSet pod that tolerates the drain taint"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			node := node.DeepCopy()
			if test.agent != "" {
				metav1.SetMetaDataAnnotation(&node.ObjectMeta, maintenancev1alpha1.AnnotationKeptStaticPods, `{"bootID":""}`)
				node.Status.Conditions = []corev1.NodeCondition{{Type: maintenancev1alpha1.NodeConditionAgentReady, Status: test.agent}}
			}
			if p, staying := PodOf(test.pod, node, sets.New(test.evacuators...)); staying {
				for _, f := range NewCheck(test.budgets).Pod(p) {
					got = append(got, write(f))
					if f.Pod.Name != test.pod.Name || f.Pod.Node != node.Name {
						t.Errorf("the finding is about pod %s on %s", f.Pod.Name, f.Pod.Node)
					}
				}
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func write(f Finding) string {
	s := string(f.Kind)
	for _, b := range f.Budgets {
		s += " " + pdb.NameOf(b).String()
	}
	if f.Why != "" {
		s += " " + f.Why
	}
	if f.Left != "" {
		s += " " + string(f.Left)
	}
	return s
}
