// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// uncordonAlways makes a node schedulable whenever it is not, as a tool does that owns the field.
// The caller calls stop, which returns when nothing is undone any more.
func uncordonAlways(t *testing.T, node, manager string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	nodes := cluster.As(t).Kube.CoreV1().Nodes()
	w, err := nodes.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer w.Stop()
		patch := fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"spec":{"unschedulable":false}}`, node)
		for event := range w.ResultChan() {
			if n, ok := event.Object.(*corev1.Node); !ok || !n.Spec.Unschedulable {
				continue
			}
			_, err := nodes.Patch(ctx, node, types.ApplyPatchType, patch,
				metav1.PatchOptions{FieldManager: manager, Force: ptr.To(true)})
			if err != nil && ctx.Err() == nil {
				t.Errorf("uncordon %s: %v", node, err)
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// TestNodeThatCannotBeKeptCordonedHoldsOnlyItsOwnPods drains two nodes, one of which another client
// keeps making schedulable. That node is left out of the waves, which go on on the other.
func TestNodeThatCannotBeKeptCordonedHoldsOnlyItsOwnPods(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	fought, other := nodes[0], nodes[1]
	// Its evacuator does nothing, so the first wave of its node never ends.
	stays := cluster.PodOn(t, namespace, "stays", pool, fought, movable)
	cluster.PodOn(t, namespace, "next-wave", pool, other, func(p *corev1.Pod) {
		p.Spec.PriorityClassName = "system-cluster-critical"
	})
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	evacuationFor(t, stays, "is made", isOurs)
	if left, err := podsOn(t.Context(), t, other); err != nil || len(left) != 1 {
		t.Fatalf("the second wave did not wait for the first: %d pods (%v)", len(left), err)
	}

	stop := uncordonAlways(t, fought, "e2e-meddler")
	defer stop()
	framework.Eventually(t, "the second wave has left", func(ctx context.Context) (bool, error) {
		left, err := podsOn(ctx, t, other)
		return err == nil && len(left) == 0, err
	})
	framework.Eventually(t, "the status names the node", func(ctx context.Context) (bool, error) {
		message, err := nodeMessage(ctx, t, nm.Name, fought)
		if err != nil || !strings.HasPrefix(message, "Not drained: ") {
			return false, fmt.Errorf("the message is %q (%w)", message, cmp.Or(err, errNotYet))
		}
		return true, nil
	})
	framework.Eventually(t, "Drained is held back", func(ctx context.Context) (bool, error) {
		now, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().
			Get(ctx, nm.Name, metav1.GetOptions{})
		return err == nil && conditionIs(now.Status.Conditions, v1alpha1.ConditionDrained,
			metav1.ConditionFalse, v1alpha1.ReasonNodeNotCordoned), err
	})
	if left, err := podsOn(t.Context(), t, fought); err != nil || len(left) != 1 {
		t.Errorf("%d pods are on the node that is not drained, want 1 (%v)", len(left), err)
	}
	stop()
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, nodes...)
}

// holdsNodes waits until the status of a maintenance names these nodes and no others.
func holdsNodes(t *testing.T, name string, want ...string) {
	t.Helper()
	slices.Sort(want)
	framework.Eventually(t, fmt.Sprintf("%s holds %v", name, want),
		func(ctx context.Context) (bool, error) {
			nm, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().
				Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			var got []string
			for _, status := range nm.Status.NodeStatuses {
				got = append(got, status.NodeRef.Name)
			}
			if !slices.Equal(got, want) {
				return false, fmt.Errorf("it holds %v", got)
			}
			return true, nil
		})
}

// nodesAreNew waits until a node that is created now is newer than all that a maintenance has seen:
// creation times have whole seconds.
func nodesAreNew(t *testing.T, name string) {
	t.Helper()
	framework.Eventually(t, "a created node is new", func(ctx context.Context) (bool, error) {
		nm, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().
			Get(ctx, name, metav1.GetOptions{})
		if err != nil || nm.Status.NewestNodeTimestamp == nil {
			return false, err
		}
		return time.Since(nm.Status.NewestNodeTimestamp.Time) > 2*time.Second, nil
	})
}

// TestNewNodes creates nodes in the middle of a drain that match its selector: they are ignored and
// named, until the maintenance is told to take them. A node that was there and is labelled later
// joins either way.
func TestNewNodes(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	_, before := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	stays := cluster.PodOn(t, namespace, "stays", pool, nodes[0], movable)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	if nm.Spec.NewNodes != v1alpha1.NewNodesPolicyIgnore {
		t.Errorf("newNodes is %q, want %q by default", nm.Spec.NewNodes, v1alpha1.NewNodesPolicyIgnore)
	}
	evacuationFor(t, stays, "is made", isOurs)
	nodesAreNew(t, nm.Name)

	created := pool + "-created"
	cluster.NewNodes(t, pool, true, created)
	progressing(t, nm.Name, metav1.ConditionTrue, v1alpha1.ReasonProgressDraining, created)
	merge(t, "", "node", before[0], fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, framework.Pool, pool))
	unschedulable(t, true, before[0])
	holdsNodes(t, nm.Name, before[0], nodes[0])
	framework.Accept(t, oracle.LeftOn(theNode(t, created), false), nil)

	if _, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Patch(t.Context(), nm.Name,
		types.MergePatchType, fmt.Appendf(nil, `{"spec":{"newNodes":%q}}`, v1alpha1.NewNodesPolicyJoin),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	unschedulable(t, true, created)
	holdsNodes(t, nm.Name, before[0], nodes[0], created)

	joins := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon,
		func(nm *v1alpha1.NodeMaintenance) { nm.Spec.NewNodes = v1alpha1.NewNodesPolicyJoin }))
	nodesAreNew(t, joins.Name)
	late := pool + "-late"
	cluster.NewNodes(t, pool, true, late)
	unschedulable(t, true, late)
	holdsNodes(t, joins.Name, before[0], nodes[0], created, late)
}

// TestNodeIsReleasedWhenItsLabelStaysAway removes the selected label from a node for good. The node
// is held for a while, since labels may flap, and then released as on Complete.
func TestNodeIsReleasedWhenItsLabelStaysAway(t *testing.T) {
	t.Parallel() // most of it is waiting
	const labelPatience = 2 * time.Minute
	pool, nodes := cluster.NewPool(t, 1, true)
	cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon))
	unschedulable(t, true, nodes...)
	removed := time.Now()
	cluster.MustKubectl(t, "", "label", "node", nodes[0], framework.Pool+"-")
	framework.EventuallyWithin(t, labelPatience+framework.Timeout, "the node is released",
		func(ctx context.Context) (bool, error) {
			node, err := cluster.As(t).Kube.CoreV1().Nodes().Get(ctx, nodes[0], metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			if left := oracle.LeftOn(node, false); len(left) > 0 {
				return false, fmt.Errorf("%v", left)
			}
			return true, nil
		})
	if held := time.Since(removed); held < labelPatience {
		t.Errorf("the node was held for %v without its label, want %v", held, labelPatience)
	}
}
