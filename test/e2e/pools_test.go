// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// grantLabel is the label of the pools for which rights are granted: clusters of tests start the
// server with it.
const grantLabel = corev1.LabelNamespaceNodeRestriction + "/pool"

// maintainerOf returns the client of a user who has the role for operators, and the rule.
func maintainerOf(t *testing.T, resource, name string) clientv1alpha1.NodeMaintenanceInterface {
	t.Helper()
	user := framework.Name("operator")
	cluster.Bind(t, user, "haulout-maintenance-operator")
	cluster.Grant(t, user, rule(v1alpha1.GroupName, resource, name, "maintain"))
	return cluster.As(t, user).Maintenances()
}

// label sets a label of a node as a user.
func label(t *testing.T, as framework.Clients, node, key, value string) error {
	t.Helper()
	_, err := as.Nodes().Patch(t.Context(), node, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value), metav1.PatchOptions{})
	return err
}

// refusedFor waits until a request is refused with an error that names the node. Servers have the
// labels and rights of the test only after a moment.
func refusedFor(t *testing.T, maintenances clientv1alpha1.NodeMaintenanceInterface, nm *v1alpha1.NodeMaintenance, node string) {
	t.Helper()
	framework.Eventually(t, "the request is refused because of node "+node, func(ctx context.Context) (bool, error) {
		_, err := maintenances.Create(ctx, nm, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), " 1 of the nodes ("+node+")") && strings.Contains(err.Error(), "nodepools") {
			return true, nil
		}
		return false, fmt.Errorf("got %w, want Forbidden", err)
	})
}

// created waits until a user may create a maintenance, and removes it after the test.
func created(t *testing.T, maintenances clientv1alpha1.NodeMaintenanceInterface, nm *v1alpha1.NodeMaintenance) {
	t.Helper()
	framework.Eventually(t, "the operator may create "+nm.Name, func(ctx context.Context) (bool, error) {
		_, err := maintenances.Create(ctx, nm, metav1.CreateOptions{})
		return err == nil, err
	})
	t.Cleanup(func() {
		if t.Failed() {
			cluster.Diagnose(t)
		}
		cluster.Remove(t, nm.Name)
	})
}

func advance(t *testing.T, maintenances clientv1alpha1.NodeMaintenanceInterface, name string, stage v1alpha1.NodeMaintenanceStage) {
	t.Helper()
	must.Get(maintenances.Patch(t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"stage":%q}}`, stage), metav1.PatchOptions{}))(t)
}

// TestOperatorOfAPool has a user who may maintain a pool, and nothing else. One of its nodes leaves
// the pool during the drain.
func TestOperatorOfAPool(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 3, true)
	namespace := cluster.NewNamespace(t)
	admin := cluster.As(t)
	moved, stays, master := nodes[0], nodes[1], nodes[2]
	for _, node := range nodes {
		must.Do(t, label(t, admin, node, grantLabel, pool))
	}
	must.Do(t, label(t, admin, master, "node-role.kubernetes.io/control-plane", ""))
	theirs := maintainerOf(t, "nodepools", pool)
	refusedFor(t, theirs, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain), master)

	stuckOn(t, namespace, "held", pool, stays)
	cluster.PodOn(t, namespace, "leaves", pool, moved)
	nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, onNodes(moved, stays))
	created(t, theirs, nm)
	framework.UntilGone(t, "the pod leaves", admin.Pods(namespace), "leaves")

	kubelet := cluster.As(t, "system:node:"+moved, "system:nodes", "system:authenticated")
	err := label(t, kubelet, moved, grantLabel, "other")
	is.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), grantLabel), "got %v, want that a kubelet may not change the label", err)
	must.Do(t, label(t, admin, moved, grantLabel, "other"))
	statusOf := func(nm *v1alpha1.NodeMaintenance, node string) v1alpha1.NodeMaintenanceNodeStatus {
		for _, status := range nm.Status.NodeStatuses {
			if status.NodeRef.Name == node {
				return status
			}
		}
		return v1alpha1.NodeMaintenanceNodeStatus{}
	}
	framework.Until(t, "the operator is not authorized for the node that has left the pool", admin.Maintenances(), nm.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
		status := statusOf(nm, moved)
		return status.Reason == v1alpha1.NodeStatusNotAuthorized && v1alpha1.PoolOf(nm, &status) == pool && statusOf(nm, stays).Reason == "" &&
			drained != nil && drained.Reason == v1alpha1.ReasonNotAuthorized
	})
	cluster.PodOn(t, namespace, "late", pool, moved)
	framework.Until(t, "the server counts the new pod", admin.Maintenances(), nm.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		return statusOf(nm, moved).PodsPendingEvacuation == 1
	})
	evacuations := must.Get(admin.Evacuations(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	for i := range evacuations.Items {
		is.True(t, evacuations.Items[i].Spec.PodRef.Name != "late", "the new pod of a node outside the pool was asked to leave")
	}
	is.True(t, theNode(t, moved).Spec.Unschedulable, "the node that has left the pool was uncordoned")

	advance(t, theirs, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	for _, node := range []string{moved, stays} {
		framework.Until(t, node+" is schedulable", admin.Nodes(), node, func(node *corev1.Node) bool { return !node.Spec.Unschedulable })
	}
	must.Do(t, theirs.Delete(t.Context(), nm.Name, metav1.DeleteOptions{}))
}

// TestOperatorOfNamedNodes has a user who may maintain one node, and nothing else.
func TestOperatorOfNamedNodes(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	must.Do(t, label(t, cluster.As(t), nodes[0], "node-role.kubernetes.io/control-plane", ""))
	theirs := maintainerOf(t, "nodes", nodes[0])
	refusedFor(t, theirs, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon), nodes[1])

	nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon, onNodes(nodes[0]))
	created(t, theirs, nm)
	framework.Until(t, "the node is cordoned", cluster.As(t).Nodes(), nodes[0], func(node *corev1.Node) bool { return node.Spec.Unschedulable })
	advance(t, theirs, nm.Name, v1alpha1.NodeMaintenanceStageDrain)
	framework.Until(t, "the node is drained", cluster.As(t).Maintenances(), nm.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		return meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained) && nm.Status.NodeStatuses[0].Pool == nil && len(nm.Status.Pools) == 0
	})
	must.Do(t, theirs.Delete(t.Context(), nm.Name, metav1.DeleteOptions{}))
}
