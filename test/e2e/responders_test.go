// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drainer"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// TestRespondersWithoutTheirGate drains a pod that names an eviction responder, with the library
// for programs, where Kubernetes drops the field: there is nothing to report. test/e2e/upstream has
// the test with the feature gate.
func TestRespondersWithoutTheirGate(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	admin := cluster.As(t)
	pod := cluster.PodOn(t, namespace, "flushed", pool, nodes[0], func(p *corev1.Pod) {
		p.Spec.EvictionResponders = []corev1.EvictionResponder{{Name: "app.example.com/flush", Priority: new(int32(5000))}}
	})
	is.True(t, len(pod.Spec.EvictionResponders) == 0, "the API server has the feature gate EvictionRequestAPI")

	d := &drainer.Drainer{Client: admin.Haulout}
	nm := must.Get(d.Drain(t.Context(), drainer.ForNodes(nodes[0])))(t)
	t.Cleanup(func() { cluster.Remove(t, nm.Name) })
	ctx, cancel := context.WithTimeout(t.Context(), framework.Timeout)
	defer cancel()
	drained := must.Get(d.Wait(ctx, nm, drainer.Drained))(t)
	is.True(t, conditionIs(drained.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, v1alpha1.ReasonDrainComplete),
		"the conditions are %v", drained.Status.Conditions)
	must.Get(d.Complete(t.Context(), nm))(t)
	must.Get(d.Wait(ctx, nm, drainer.Complete))(t)
	unschedulable(t, false, nodes...)

	events := must.Get(admin.Kube.EventsV1().Events(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	for i := range events.Items {
		is.True(t, events.Items[i].Reason != "EvictionRespondersNotAsked", "got the event %q", events.Items[i].Note)
	}
}
