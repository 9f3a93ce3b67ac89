// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// createRollout creates a rollout over a pool as a user. After the test it removes it, and waits
// until its maintenances are gone.
func createRollout(t *testing.T, user, pool string) string {
	t.Helper()
	r := &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: framework.Name("rollout")},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			NodeSelector: framework.Select(framework.Pool, pool),
			Template:     v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{Worker: v1alpha1.WorkerClassPerson}},
		},
	}
	must.Get(cluster.As(t, user).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Create(t.Context(), r, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		admin := cluster.As(t).Haulout.MaintenanceV1alpha1()
		if err := admin.NodeMaintenanceRollouts().Delete(context.Background(), r.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		framework.Eventually(t, "the maintenances of the rollout are gone", func(ctx context.Context) (bool, error) {
			left, err := admin.NodeMaintenances().List(ctx, metav1.ListOptions{LabelSelector: labels.Set{v1alpha1.LabelRollout: r.Name}.String()})
			if err != nil {
				return false, err
			}
			return len(left.Items) == 0, nil
		})
	})
	return r.Name
}

// untilRollout waits until the condition Progressing of a rollout has a reason.
func untilRollout(t *testing.T, name, reason string) {
	t.Helper()
	rollouts := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
	framework.Until(t, "the rollout is "+reason, rollouts, name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing)
		return c != nil && c.Reason == reason && c.ObservedGeneration == r.Generation
	})
}

// TestPluginRollsByHand rolls over two nodes as a user who is the worker and has only the plugin:
// the user holds the rollout and resumes it, takes a node and returns it, reports a failure, and
// tries the node again.
func TestPluginRollsByHand(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	user := operatorOf(t, nodes...)
	cluster.Grant(t, user,
		rule(v1alpha1.GroupName, "nodemaintenancerollouts", "", "get", "list", "create", "patch"),
		rule(v1alpha1.GroupName, "nodetasks", "", "get", "list", "delete"),
		rule(v1alpha1.GroupName, "nodetasks/status", "", "patch"),
		rule(v1alpha1.GroupName, "workers", v1alpha1.WorkerClassPerson, "assign", "progress"),
		rule("", "nodes", "", "get", "list"),
	)
	name := createRollout(t, user, pool)
	s := newShell(t, user)

	framework.Until(t, "the nodes are counted", rollouts(t), name, func(r *v1alpha1.NodeMaintenanceRollout) bool { return r.Status.Nodes.Total == 2 })
	s.run(t, 0, "rollout status "+name, "Idle", "0 of 2 done")
	s.run(t, 0, "rollout hold "+name+" --reason=later", name+" held", "No further unit starts")
	must.Get(cluster.As(t, user).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"spec":{"stage":"Roll"}}`), metav1.PatchOptions{}))(t)
	untilRollout(t, name, v1alpha1.ReasonHeld)
	s.run(t, 0, "rollout status "+name, "Held", "by "+user, "later")
	s.run(t, 1, "take "+nodes[0], "is not offered to a worker")
	s.run(t, 0, "rollout resume "+name, name+" resumed")

	s.run(t, 0, "take "+nodes[0]+" --wait --timeout=2m", nodes[0]+" taken", "kubectl maintenance done "+nodes[0])
	unschedulable(t, true, nodes[0])
	s.run(t, 0, "take "+nodes[0], "is still yours")
	s.run(t, 1, "take "+nodes[0]+asNobody, "forbidden")
	framework.Until(t, "the unit is claimed", rollouts(t), name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return len(r.Status.Current) > 0 && r.Status.Current[0].Phase == v1alpha1.RolloutPhaseClaimed
	})
	s.run(t, 1, "rollout retry "+name+" "+nodes[0], "has not failed", "it is Claimed")
	s.run(t, 0, "done "+nodes[0], nodes[0]+" done")
	unschedulable(t, false, nodes[0])

	s.run(t, 0, "take "+nodes[1]+" --wait --timeout=2m", nodes[1]+" taken")
	s.run(t, 0, "done "+nodes[1]+" --failed --message=broken", nodes[1]+" failed")
	untilRollout(t, name, v1alpha1.ReasonHalted)
	s.run(t, 3, "rollout status "+name, "Halted", "1 of 2 done, 1 failed", "WorkerFailed", "kubectl maintenance rollout retry "+name+" "+nodes[1])
	unschedulable(t, true, nodes[1])
	s.run(t, 0, "rollout retry "+name+" "+nodes[1], nodes[1]+" retried")
	s.run(t, 0, "take "+nodes[1]+" --wait --timeout=2m", nodes[1]+" taken")
	s.run(t, 0, "done "+nodes[1], nodes[1]+" done")
	s.run(t, 0, "rollout status "+name+" --watch", "Complete", "2 of 2 done")
	unschedulable(t, false, nodes...)
	s.run(t, 0, "rollout stop "+name, name+" stopped")
	s.run(t, 1, "rollout hold "+name+" --reason=late", "cannot be changed")
}
