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

// maintainerOf returns a user who has the role for operators, and the rule, with its client.
func maintainerOf(t *testing.T, resource, name string) (string, clientv1alpha1.NodeMaintenanceInterface) {
	t.Helper()
	user := framework.Name("operator")
	cluster.Bind(t, user, "haulout-maintenance-operator")
	cluster.Grant(t, user, rule(v1alpha1.GroupName, resource, name, "maintain"))
	return user, cluster.As(t, user).Maintenances()
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

// zoneLabel is an ordinary label, which any user who may change nodes may set.
const zoneLabel = "e2e.haulout.dev/zone"

// statusOf returns the status of a node in a maintenance.
func statusOf(nm *v1alpha1.NodeMaintenance, node string) v1alpha1.NodeMaintenanceNodeStatus {
	for _, status := range nm.Status.NodeStatuses {
		if status.NodeRef.Name == node {
			return status
		}
	}
	return v1alpha1.NodeMaintenanceNodeStatus{}
}

// TestOperatorOfAPool has a user who may maintain a pool, and nothing else. During the drain, a
// node that the user may not maintain gets the selected label, and a node leaves the pool. The user
// can still steer and end the maintenance.
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
	user, theirs := maintainerOf(t, "nodepools", pool)
	refusedFor(t, theirs, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain), master)

	stuckOn(t, namespace, "held", pool, stays)
	cluster.PodOn(t, namespace, "leaves", pool, moved)
	must.Do(t, label(t, admin, moved, zoneLabel, pool))
	must.Do(t, label(t, admin, stays, zoneLabel, pool))
	nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(zoneLabel, pool)
	})
	created(t, theirs, nm)
	framework.UntilGone(t, "the pod leaves", admin.Pods(namespace), "leaves")
	must.Do(t, label(t, admin, master, zoneLabel, pool))
	framework.Until(t, "the control-plane node is refused, and all other pods are blocked", admin.Maintenances(), nm.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		progressing := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
		return statusOf(nm, master).Reason == v1alpha1.NodeStatusNotAuthorized && progressing != nil && progressing.Reason == v1alpha1.ReasonProgressBlocked
	})
	s := newShell(t, user)
	steersWithThePlugin(t, s, user, namespace, nm.Name, stays)

	leavesThePool(t, namespace, nm.Name, pool, moved, stays)
	s.run(t, 0, "complete "+nm.Name, nm.Name+" completed")
	for _, node := range []string{moved, stays} {
		framework.Until(t, node+" is schedulable", admin.Nodes(), node, func(node *corev1.Node) bool { return !node.Spec.Unschedulable })
	}
	s.run(t, 0, "cancel "+nm.Name, nm.Name+" cancelled")
}

// steersWithThePlugin runs the commands of the plugin that operators need, with a drain that is
// blocked by the pod of the app "held" on the node. The role for operators is sufficient for all of
// them.
func steersWithThePlugin(t *testing.T, s *shell, user, namespace, name, node string) {
	t.Helper()
	s.run(t, 3, "preview "+node, "IN THE WAY", namespace)
	announced := name + "-announced"
	t.Cleanup(func() { cluster.Remove(t, announced) })
	s.run(t, 0, "start "+node+" --stage=Idle --name="+announced, announced+" created")
	s.run(t, 0, "cancel "+announced, announced+" cancelled")
	s.run(t, 0, "status "+name, "BLOCKED", node)
	watch := s.start(t, "maintenance", "status", name, "--watch")
	watch.shows(t, "BLOCKED")
	watch.types(t, "q")
	watch.ends(t, 0)
	s.run(t, 3, "blockers "+name, "kubectl describe pdb held -n "+namespace)
	pods := must.Get(podsOn(t.Context(), t, node))(t)
	must.True(t, len(pods) == 1, "got %d pods on node %s, want one", len(pods), node)
	s.run(t, 0, "explain pod/"+pods[0].Name+" --namespace="+namespace, "Asked to leave", name)
	s.run(t, 0, "pause "+name, name+" paused")
	s.run(t, 0, "resume "+name, name+" resumed")
	const noEvents = "you may not list events"
	s.run(t, 0, "history "+name, "Stage Drain", "last requester: "+user, noEvents)
	cluster.Grant(t, user, rule("events.k8s.io", "events", "", "list"))
	out := s.run(t, 0, "history "+name, "Stage Drain")
	is.True(t, !strings.Contains(out, noEvents), "got %q in\n%s", noEvents, out)
}

// leavesThePool moves a node to another pool during the drain. The maintenance keeps its cordon and
// asks no further pod to leave.
func leavesThePool(t *testing.T, namespace, name, pool, moved, stays string) {
	t.Helper()
	admin := cluster.As(t)
	kubelet := cluster.As(t, "system:node:"+moved, "system:nodes", "system:authenticated")
	err := label(t, kubelet, moved, grantLabel, "other")
	is.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), grantLabel), "got %v, want that a kubelet may not change the label", err)
	must.Do(t, label(t, admin, moved, grantLabel, "other"))
	framework.Until(t, "the operator is not authorized for the node that has left the pool", admin.Maintenances(), name, func(nm *v1alpha1.NodeMaintenance) bool {
		drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
		status := statusOf(nm, moved)
		return status.Reason == v1alpha1.NodeStatusNotAuthorized && v1alpha1.PoolOf(nm, &status) == pool && statusOf(nm, stays).Reason == "" &&
			drained != nil && drained.Reason == v1alpha1.ReasonNotAuthorized
	})
	cluster.PodOn(t, namespace, "late", pool, moved)
	framework.Until(t, "the server counts the new pod", admin.Maintenances(), name, func(nm *v1alpha1.NodeMaintenance) bool {
		return statusOf(nm, moved).PodsPendingEvacuation == 1
	})
	evacuations := must.Get(admin.Evacuations(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	for i := range evacuations.Items {
		is.True(t, evacuations.Items[i].Spec.PodRef.Name != "late", "the new pod of a node outside the pool was asked to leave")
	}
	is.True(t, theNode(t, moved).Spec.Unschedulable, "the node that has left the pool was uncordoned")
}

// TestOperatorOfNamedNodes has a user who may maintain one node, and nothing else.
func TestOperatorOfNamedNodes(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	must.Do(t, label(t, cluster.As(t), nodes[0], "node-role.kubernetes.io/control-plane", ""))
	_, theirs := maintainerOf(t, "nodes", nodes[0])
	refusedFor(t, theirs, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon), nodes[1])

	nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon, onNodes(nodes[0]))
	created(t, theirs, nm)
	framework.Until(t, "the node is cordoned", cluster.As(t).Nodes(), nodes[0], func(node *corev1.Node) bool { return node.Spec.Unschedulable })
	advance(t, theirs, nm.Name, v1alpha1.NodeMaintenanceStageDrain)
	framework.Until(t, "the node is drained", cluster.As(t).Maintenances(), nm.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		return meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained) && nm.Status.NodeStatuses[0].PoolIndex == nil && len(nm.Status.Pools) == 0
	})
	must.Do(t, theirs.Delete(t.Context(), nm.Name, metav1.DeleteOptions{}))
}
