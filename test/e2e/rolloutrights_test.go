// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// rolloutsOf returns the client of rollouts of a user.
func rolloutsOf(t *testing.T, user ...string) clientv1alpha1.NodeMaintenanceRolloutInterface {
	t.Helper()
	return cluster.As(t, user...).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
}

// idleRollout returns a rollout over a pool that starts nothing.
func idleRollout(pool string) *v1alpha1.NodeMaintenanceRollout {
	return &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: framework.Name("roll")},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			NodeSelector: framework.Select(framework.Pool, pool),
			Template:     v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{Worker: v1alpha1.WorkerClassPerson}},
			RequestedBy:  &authenticationv1.UserInfo{Username: "root", Groups: []string{"system:masters"}},
		},
	}
}

// patchRollout applies a merge patch, without storing it unless write is set.
func patchRollout(t *testing.T, rollouts clientv1alpha1.NodeMaintenanceRolloutInterface, name, patch string, write bool) error {
	t.Helper()
	options := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	if write {
		options.DryRun = nil
	}
	_, err := rollouts.Patch(t.Context(), name, types.MergePatchType, []byte(patch), options)
	return err
}

// TestRightsOnRollouts has an operator of a pool, a user who may hold rollouts, and one who may
// write them but maintain no node.
func TestRightsOnRollouts(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	must.Do(t, label(t, cluster.As(t), nodes[0], grantLabel, pool))
	operator, _ := maintainerOf(t, "nodepools", pool)
	holder, stranger := framework.Name("holder"), framework.Name("stranger")
	cluster.Bind(t, holder, "haulout-rollout-holder")
	cluster.Bind(t, stranger, "haulout-maintenance-operator")

	rollout := idleRollout(pool)
	_, err := rolloutsOf(t, stranger).Create(t.Context(), rollout, metav1.CreateOptions{})
	is.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "and so may not roll a maintenance over them"), "without a right to the node: got %v", err)
	framework.Eventually(t, "the operator may create a rollout", func(ctx context.Context) (bool, error) {
		out, err := rolloutsOf(t, operator).Create(ctx, rollout, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		is.Equal(t, out.Spec.RequestedBy.Username, operator, "requester")
		return true, nil
	})
	t.Cleanup(func() { _ = rolloutsOf(t).Delete(context.Background(), rollout.Name, metav1.DeleteOptions{}) })

	foreign := idleRollout(pool)
	foreign.Spec.Template.Task.Worker = "script" + v1alpha1.WorkerClassJobSuffix
	_, err = rolloutsOf(t, operator).Create(t.Context(), foreign, metav1.CreateOptions{})
	is.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot assign workers"), "without a right to the workers: got %v", err)

	hold := func(name string) string { return fmt.Sprintf(`{"spec":{"holds":[{"name":%q,"reason":"test"}]}}`, name) }
	must.Do(t, patchRollout(t, rolloutsOf(t, operator), rollout.Name, hold("mine"), true))
	both := `{"spec":{"holds":[{"name":"mine","reason":"test"},{"name":"theirs","reason":"test"}]}}`
	must.Do(t, patchRollout(t, rolloutsOf(t, holder), rollout.Name, both, true))
	stored := must.Get(rolloutsOf(t).Get(t.Context(), rollout.Name, metav1.GetOptions{}))(t)
	is.True(t, stored.Spec.Holds[0].By == operator && stored.Spec.Holds[1].By == holder && stored.Spec.RequestedBy.Username == operator,
		"the users of the holds are %v, the requester is %s", stored.Spec.Holds, stored.Spec.RequestedBy.Username)
	for what, test := range map[string]struct{ user, patch, want string }{
		"the holder removes the own hold":  {holder, hold("mine"), ""},
		"the holder removes the other one": {holder, hold("theirs"), "spec.holds[mine]: was added by user"},
		"the holder starts the rollout":    {holder, `{"spec":{"stage":"Roll"}}`, "may not maintain"},
		"the holder sets a label":          {holder, `{"metadata":{"labels":{"a":"b"}}}`, "may not maintain"},
		"the operator removes both":        {operator, `{"spec":{"holds":null}}`, ""},
		"the stranger stops the rollout":   {stranger, `{"spec":{"stage":"Complete"}}`, "may not maintain"},
	} {
		err := patchRollout(t, rolloutsOf(t, test.user), rollout.Name, test.patch, false)
		is.True(t, test.want == "" && err == nil || test.want != "" && apierrors.IsForbidden(err) && strings.Contains(err.Error(), test.want), "%s: got %v", what, err)
	}
	err = rolloutsOf(t, stranger).Delete(t.Context(), rollout.Name, metav1.DeleteOptions{})
	is.True(t, apierrors.IsForbidden(err), "the stranger deletes the rollout: got %v", err)

	columns := cluster.MustKubectl(t, "", "get", "nmr", rollout.Name)
	is.True(t, strings.Contains(columns, "NAME") && strings.Contains(columns, "WINDOW") && strings.Contains(columns, "Idle"), "the table is\n%s", columns)
	explained := cluster.MustKubectl(t, "", "explain", "nodemaintenancerollouts.spec.limits.maxUnavailable")
	is.True(t, strings.Contains(explained, "from 1% to 100%"), "kubectl explain says\n%s", explained)
}

// TestRightsOnTasks has a node with work for persons, and the operators of its pool and of another
// one, who have the same role.
func TestRightsOnTasks(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	must.Do(t, label(t, cluster.As(t), nodes[0], grantLabel, pool))
	operator, _ := maintainerOf(t, "nodepools", pool)
	stranger, _ := maintainerOf(t, "nodepools", framework.Name("pool"))
	cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.Task = &v1alpha1.NodeMaintenanceTask{Worker: v1alpha1.WorkerClassPerson}
	}))
	t.Cleanup(func() { _ = tasks(t).Delete(context.Background(), nodes[0], metav1.DeleteOptions{}) })
	untilTask(t, nodes[0], v1alpha1.NodeTaskOffered)

	report := func(ctx context.Context, user, status string) error {
		_, err := cluster.As(t, user).Haulout.MaintenanceV1alpha1().NodeTasks().Patch(ctx, nodes[0], types.MergePatchType,
			fmt.Appendf(nil, `{"status":%s}`, status), metav1.PatchOptions{}, "status")
		return err
	}
	isRefused := func(err error) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "and so may not work on it")
	}
	framework.Eventually(t, "the stranger may not claim the node", func(ctx context.Context) (bool, error) {
		if err := report(ctx, stranger, `{"holder":"stranger"}`); !isRefused(err) {
			return false, fmt.Errorf("got %w", err)
		}
		return true, nil
	})
	framework.Eventually(t, "the operator may claim the node", func(ctx context.Context) (bool, error) {
		err := report(ctx, operator, `{"holder":"operator"}`)
		return err == nil, err
	})
	untilTask(t, nodes[0], v1alpha1.NodeTaskClaimed)
	for _, status := range []string{`{"message":"still at it"}`, `{"result":"Done"}`, `{"result":"Failed"}`} {
		err := report(t.Context(), stranger, status)
		is.True(t, isRefused(err), "the stranger reports %s: got %v", status, err)
	}
	must.Do(t, report(t.Context(), operator, `{"result":"Done"}`))
}

// TestOnlyTheServerCreatesNodeTasks has an administrator of the cluster.
func TestOnlyTheServerCreatesNodeTasks(t *testing.T) {
	t.Parallel()
	task := &v1alpha1.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: framework.Name("node")},
		Spec: v1alpha1.NodeTaskSpec{
			NodeUID: "u", Worker: v1alpha1.WorkerClassPerson, Maintenance: v1alpha1.NodeTaskMaintenance{Name: "a", UID: "u"},
			ClaimDeadlineSeconds: 60, ProgressDeadlineSeconds: 60, VerifyDeadlineSeconds: 60,
		},
	}
	_, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeTasks().Create(t.Context(), task, metav1.CreateOptions{})
	is.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "nodetasks are created by the server"), "got %v", err)
}

// TestForgedMaintenancesOfRollouts has users who pretend that their maintenance is one of the
// rollout of an administrator: an ownerReference and a requester give them no right, and only the
// server may set the label.
func TestForgedMaintenancesOfRollouts(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	must.Do(t, label(t, cluster.As(t), nodes[0], grantLabel, pool))
	stranger := framework.Name("stranger")
	cluster.Bind(t, stranger, "haulout-maintenance-operator")
	operator, theirs := maintainerOf(t, "nodepools", pool)
	r := must.Get(rollouts(t).Create(t.Context(), idleRollout(pool), metav1.CreateOptions{}))(t)
	t.Cleanup(func() { removeRollout(t, r) })

	forged := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(r, v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenanceRollout"))}
		nm.Spec.RequestedBy = idleRollout(pool).Spec.RequestedBy
	})
	framework.Eventually(t, "the stranger may not create the maintenance", func(ctx context.Context) (bool, error) {
		_, err := cluster.As(t, stranger).Maintenances().Create(ctx, forged, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "may not maintain 1 of the nodes") {
			return true, nil
		}
		return false, fmt.Errorf("got %w", err)
	})
	created(t, theirs, forged)
	stored := drained(t, forged.Name)
	is.True(t, stored.Spec.RequestedBy.Username == operator && len(stored.OwnerReferences) == 1, "the requester is %v, the owners are %v", stored.Spec.RequestedBy, stored.OwnerReferences)
	is.True(t, !strings.Contains(fmt.Sprint(stored.Spec.RequestedBy.Groups), "system:masters"), "the groups of the requester are %v", stored.Spec.RequestedBy.Groups)
	_, err := theirs.Patch(t.Context(), forged.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, v1alpha1.LabelRollout, r.Name), metav1.PatchOptions{})
	is.True(t, apierrors.IsInvalid(err) && strings.Contains(err.Error(), "only the server may set"), "the operator sets the label of the rollout: got %v", err)
	is.Equal(t, len(must.Get(rollouts(t).Get(t.Context(), r.Name, metav1.GetOptions{}))(t).Status.Current), 0, "units of the rollout")
}

// revoke removes all rights of a user, and waits until the user may not delete a node.
func revoke(t *testing.T, user, node string) {
	t.Helper()
	admin := cluster.As(t).Kube
	list := must.Get(admin.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{}))(t)
	for i := range list.Items {
		if binding := &list.Items[i]; len(binding.Subjects) == 1 && binding.Subjects[0].Name == user {
			must.Do(t, admin.RbacV1().ClusterRoleBindings().Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
		}
	}
	framework.Eventually(t, user+" may not delete node "+node, func(ctx context.Context) (bool, error) {
		review, err := admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "delete", Resource: "nodes", Name: node},
		}}, metav1.CreateOptions{})
		return err == nil && !review.Status.Allowed, err
	})
}

// TestRightsAreRevokedInTheMiddle: while a worker has the first node, the user of the rollout loses
// all rights. The second node joins after that, since answers about rights are valid for minutes.
// It is left alone, the work on the first one is finished, and an administrator takes over.
func TestRightsAreRevokedInTheMiddle(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 2, true)
	user := framework.Name("operator")
	cluster.Grant(t, user, rule(v1alpha1.GroupName, "nodemaintenancerollouts", "", "create"), rule(v1alpha1.GroupName, "workers", "", "assign"),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: nodes, Verbs: []string{"delete"}})
	must.Do(t, label(t, cluster.As(t), nodes[0], zoneLabel, pool))
	work, claimed, pass := gated(t, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	runWorker(t, pool, work)
	r := idleRollout(pool)
	as(pool, labelled(kernelLabel, newKernel))(r)
	r.Spec.Stage, r.Spec.NodeSelector = v1alpha1.RolloutStageRoll, framework.Select(zoneLabel, pool)
	framework.Eventually(t, "the user may create a rollout", func(ctx context.Context) (bool, error) {
		_, err := rolloutsOf(t, user).Create(ctx, r, metav1.CreateOptions{})
		return err == nil, err
	})
	t.Cleanup(func() { removeRollout(t, r) })
	is.Equal(t, next(t, claimed), nodes[0], "the node that a worker has")
	untilUnit(t, r.Name, v1alpha1.RolloutPhaseClaimed)

	revoke(t, user, nodes[1])
	must.Do(t, label(t, cluster.As(t), nodes[1], zoneLabel, pool))
	framework.Until(t, "the right to the second node is missing", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return progressingIs(r, v1alpha1.ReasonNotAuthorized, nodes[1]) && len(r.Status.Current) == 1
	})
	close(pass)
	framework.Until(t, "the first node is done, and the second one waits", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return r.Status.Nodes == v1alpha1.RolloutNodes{Total: 2, Done: 1, Waiting: 1} && len(r.Status.Current) == 0 && progressingIs(r, v1alpha1.ReasonNotAuthorized, nodes[1])
	})
	is.Equal(t, len(attempts(t, r.Name)), 1, "maintenances")
	unschedulable(t, false, nodes...)
	setRollout(t, r.Name, "limits", []v1alpha1.RolloutLimit{maxUnavailable(2)})
	rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
}

// TestTokenOfAnotherNode has a worker with a pod on each of two nodes, which may only report about
// the node of its pod. The API servers learn the node from the token of the pod.
func TestTokenOfAnotherNode(t *testing.T) {
	t.Parallel()
	const class, account = "test.e2e.haulout.dev", "worker"
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	cluster.ServiceAccount(t, namespace, account)
	group := []string{v1alpha1.GroupName}
	cluster.Grant(t, serviceaccount.MakeUsername(namespace, account),
		rbacv1.PolicyRule{APIGroups: group, Resources: []string{"nodetasks/status"}, Verbs: []string{"patch"}},
		rbacv1.PolicyRule{APIGroups: group, Resources: []string{"workers/node"}, ResourceNames: []string{class}, Verbs: []string{"progress"}})
	withAccount := func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = account }
	var workers []clientv1alpha1.NodeTaskInterface
	for i, node := range nodes {
		pod := cluster.PodOn(t, namespace, fmt.Sprintf("worker-%d", i), pool, node, withAccount, func(pod *corev1.Pod) { pod.Labels["app"] = account })
		workers = append(workers, cluster.PodToken(t, pod).Haulout.MaintenanceV1alpha1().NodeTasks())
	}
	cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, withTask, planned(behaving(account, v1alpha1.DrainBehaviorSkip))))
	for _, node := range nodes {
		t.Cleanup(func() { _ = tasks(t).Delete(context.Background(), node, metav1.DeleteOptions{}) })
		untilTask(t, node, v1alpha1.NodeTaskOffered)
	}
	for i, node := range nodes {
		claim := func(worker clientv1alpha1.NodeTaskInterface) error {
			_, err := worker.Patch(t.Context(), node, types.MergePatchType, []byte(`{"status":{"holder":"worker"}}`), metav1.PatchOptions{}, "status")
			return err
		}
		err := claim(workers[1-i])
		is.True(t, apierrors.IsForbidden(err), "the pod on node %s claims node %s: got %v", nodes[1-i], node, err)
		must.Do(t, claim(workers[i]))
		untilTask(t, node, v1alpha1.NodeTaskClaimed)
	}
}
