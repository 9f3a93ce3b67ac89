// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestEnsureExistCreatesMissingNodes(t *testing.T) {
	client := fake.NewClientset(New(1), New(7))
	made, surplus, err := EnsureExist(t.Context(), client, 4)
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 3 || surplus != 1 {
		t.Errorf("got %v created and %d surplus, want 3 nodes and 1", made, surplus)
	}
	list, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 5 {
		t.Errorf("got %d nodes, want 5", len(list.Items))
	}
	for _, node := range list.Items {
		if pods := node.Status.Allocatable.Pods().Value(); pods != 250 {
			t.Errorf("%s: got room for %d pods, want 250", node.Name, pods)
		}
	}
}

func TestUsable(t *testing.T) {
	ready := func(status corev1.ConditionStatus, taints ...string) *corev1.Node {
		node := New(0)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		for _, key := range taints {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
		return node
	}
	tests := map[string]struct {
		node *corev1.Node
		want bool
	}{
		"no condition yet":             {New(0), false},
		"ready":                        {ready(corev1.ConditionTrue), true},
		"not ready":                    {ready(corev1.ConditionFalse), false},
		"ready and tainted not-ready":  {ready(corev1.ConditionTrue, corev1.TaintNodeNotReady), false},
		"ready and cordoned by a user": {ready(corev1.ConditionTrue, corev1.TaintNodeUnschedulable), true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := usable(test.node, time.Time{}); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
