// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// TestControllersOff restarts the server without controllers in the middle of a drain, as
// docs/operations.md describes. The API is served, but no node and no pod changes. With the
// controllers, the drain continues.
func TestControllersOff(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	pod := cluster.PodOn(t, namespace, "waiting", pool, nodes[0], movable)
	nm := drainNodes(t, pool, nodes[0])
	turn := evacuationFor(t, pod, "has an active evacuator", hasTurn)
	unschedulable(t, true, nodes[0])

	restore := sync.OnceFunc(cluster.WithServerFlags(t, "--controllers=false"))
	defer restore()
	merge(t, "", "node", nodes[0], `{"spec":{"unschedulable":false}}`)
	report(t, turn, `{"activeEvacuatorCompleted":true}`)
	later := drainNodes(t, pool, nodes[1])
	preview := must.Get(cluster.As(t).Maintenances().GetPreview(t.Context(), nm.Name, metav1.GetOptions{}))(t)
	is.Equal(t, preview.PodCount, 1, "pods in the preview")
	<-time.After(5 * time.Second) // with controllers, each of these takes less than a second
	unschedulable(t, false, nodes...)
	e := must.Get(cluster.As(t).Evacuations(namespace).Get(t.Context(), turn.Name, metav1.GetOptions{}))(t)
	is.Equal(t, e.Status.ActiveEvacuatorClass, mover, "active class without controllers")
	got := must.Get(cluster.As(t).Maintenances().Get(t.Context(), later.Name, metav1.GetOptions{}))(t)
	is.True(t, conditionIs(got.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionUnknown, ""),
		"the later maintenance has the conditions %+v, want an unknown Ready", got.Status.Conditions)
	left, err := cluster.As(t).Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	is.True(t, err == nil && left.DeletionTimestamp == nil, "the pod has left without controllers: %v", err)

	restore()
	unschedulable(t, true, nodes...)
	framework.UntilGone(t, "the pod has left", cluster.As(t).Pods(namespace), pod.Name)
	drained(t, nm.Name)
	drained(t, later.Name)
}
