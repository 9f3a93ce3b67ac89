// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestNotPutBack(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(*corev1.Node)
		cordoned bool
		want     []string
	}{
		"a node as it was":      {change: open},
		"a node that is closed": {change: closed, want: []string{"node one is not schedulable"}},
		"a user's cordon":       {change: closed, cordoned: true},
		"a user's cordon that is gone": {
			change: open, cordoned: true, want: []string{"node one is schedulable, although"},
		},
		"an annotation of ours": {
			change: func(n *corev1.Node) {
				n.Annotations = map[string]string{v1alpha1.AnnotationCordonedBy: "{}", "example.com/mine": ""}
			},
			want: []string{"has the annotation maintenance.haulout.dev/cordoned-by"},
		},
		"a taint of ours": {
			change: func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: v1alpha1.TaintDrain}, {Key: "example.com/mine"}}
			},
			want: []string{"has the taint maintenance.haulout.dev/drain"},
		},
		"a condition of a maintenance": {
			change: func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{
					{Type: "Ready", Status: corev1.ConditionTrue}, {Type: "Drained", Status: corev1.ConditionTrue},
					{Type: "DrainInProgress", Status: corev1.ConditionFalse},
				}
			},
			want: []string{"has the condition Drained"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTape(t)
			begin(p)
			p.node("one", "blue", test.change)
			var cordoned []string
			if test.cordoned {
				cordoned = []string{"one"}
			}
			expect(t, p.h.NotPutBack(cordoned...), test.want...)
		})
	}
}

func TestLeftOver(t *testing.T) {
	p := newTape(t)
	begin(p)
	p.ask("low-1", "low-2")
	p.end("low-1")
	expect(t, p.h.LeftOver(), "Evacuation shop/low-2 is still there")
}
