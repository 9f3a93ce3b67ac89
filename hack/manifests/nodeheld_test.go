// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestWarningsAboutHeldNodes(t *testing.T) {
	const (
		key     = "maintenance.haulout.dev/tainted-by"
		byOne   = `{"storage":"s-1","maintenances":{"kernel-update":"uid-1"},"taints":["maintenance.haulout.dev/held"],"annotations":["karpenter.sh/do-not-disrupt"]}`
		byThree = `{"storage":"s-1","maintenances":{"a.b":"uid-1","kernel-update":"uid-2","z":"uid-3"},"taints":["maintenance.haulout.dev/held"]}`

		uncordon = "node name is held by NodeMaintenance kernel-update and stays unschedulable while haulout-apiserver runs; complete or delete the maintenance instead"
		untaint  = "node name is held by NodeMaintenance kernel-update and keeps the taint maintenance.haulout.dev/drain while haulout-apiserver runs; " +
			"complete or delete the maintenance instead"
		uncordonThree = "node name is held by NodeMaintenance a.b (and 2 more) and stays unschedulable while haulout-apiserver runs; complete or delete the maintenance instead"
	)
	node := func(by string, unschedulable bool, taints ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "name"}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}}
		if by != "" {
			n.Annotations = map[string]string{key: by}
		}
		for _, taint := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: taint, Effect: corev1.TaintEffectNoSchedule})
		}
		return n
	}
	const held, drain, other = "maintenance.haulout.dev/held", "maintenance.haulout.dev/drain", "gpu"
	schedulable := func(n *corev1.Node) { n.Spec.Unschedulable = false }
	for name, tc := range map[string]struct {
		old    *corev1.Node
		change func(*corev1.Node)
		want   []string
	}{
		"an uncordon of a held node":            {node(byOne, true, held), schedulable, []string{uncordon}},
		"an uncordon of a node that three hold": {node(byThree, true, held), schedulable, []string{uncordonThree}},
		"a release, which removes the record as well": {
			node(byOne, true, held, drain), func(n *corev1.Node) { schedulable(n); n.Annotations, n.Spec.Taints = nil, nil }, nil,
		},
		"the record alone is removed": {node(byOne, true, held), func(n *corev1.Node) { n.Annotations = nil }, nil},
		"an uncordon that keeps the record with other annotations": {
			node(byOne, true), func(n *corev1.Node) { schedulable(n); n.Annotations = map[string]string{key: byOne, "a": "b"} }, []string{uncordon},
		},
		"an uncordon of a node that is not held":          {node("", true), schedulable, nil},
		"an uncordon of a node with an unreadable record": {node("?", true), schedulable, nil},
		"a record whose names no maintenance can have": {
			node(`{"maintenances":{"<b>Run this</b>":"uid"}}`, true), schedulable, nil,
		},
		"a held node loses the taint": {
			node(byOne, true, held, drain, other), func(n *corev1.Node) { n.Spec.Taints = slices.Delete(n.Spec.Taints, 1, 2) }, []string{untaint},
		},
		"a held node is uncordoned and loses the taint": {
			node(byOne, true, drain), func(n *corev1.Node) { schedulable(n); n.Spec.Taints = nil }, []string{uncordon, untaint},
		},
		"a held node loses another taint": {
			node(byOne, true, held, other), func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[:1] }, nil,
		},
		"a node that is not held loses a taint": {node("", true, drain), func(n *corev1.Node) { n.Spec.Taints = nil }, nil},
		"a held node gets a label": {
			node(byOne, true, held), func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }, nil,
		},
		"a held node that is schedulable gets a label": {
			node(byOne, false, held), func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }, nil,
		},
		"a cordon of a held node": {node(byOne, false, held), func(n *corev1.Node) { n.Spec.Unschedulable = true }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			policy := policiesIn(t, "node-held-policy.yaml")["nodes"]
			is.Equal(t, *policy.Spec.FailurePolicy, admissionregistrationv1.Ignore, "failurePolicy")
			of := update{
				resource: "nodes", kind: corev1.SchemeGroupVersion.WithKind("Node"), old: tc.old,
				change: func(o runtime.Object) { tc.change(o.(*corev1.Node)) },
			}
			is.Slices(t, of.denied(t, policy, "ann"), tc.want, "warnings")
			is.Slices(t, of.denied(t, policy, server), nil, "warnings for the server")
		})
	}
}
