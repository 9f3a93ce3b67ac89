// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// applier is a user who applies holds, server-side, with a field manager.
type applier struct {
	user, manager string
	// force takes fields from other managers.
	force bool
}

// apply applies the holds of the field manager. It removes those that the manager has applied
// before, and does not name now.
func (a applier) apply(t *testing.T, rollout string, holds ...v1alpha1.RolloutHold) error {
	t.Helper()
	spec := map[string]any{}
	if len(holds) > 0 {
		spec["holds"] = holds
	}
	manifest := must.Get(json.Marshal(map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeMaintenanceRollout", "metadata": map[string]any{"name": rollout}, "spec": spec,
	}))(t)
	_, err := rolloutsOf(t, a.user).Patch(t.Context(), rollout, types.ApplyPatchType, manifest, metav1.PatchOptions{FieldManager: a.manager, Force: ptr.To(a.force)})
	return err
}

// holdsOf returns the names of the holds of a rollout, each with its user, sorted.
func holdsOf(r *v1alpha1.NodeMaintenanceRollout) string {
	var holds []string
	for i := range r.Spec.Holds {
		holds = append(holds, r.Spec.Holds[i].Name+" by "+r.Spec.Holds[i].By)
	}
	slices.Sort(holds)
	return strings.Join(holds, ", ")
}

// TestHoldsAppliedByTwoUsers has two users who may only hold rollouts. Each applies the own hold
// with a field manager, as programs do. None of them changes or removes the hold of the other one,
// not even with the name of the other manager. The rollout starts when both have removed their own.
func TestHoldsAppliedByTwoUsers(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 1, true)
	storage, auditor := applier{user: framework.Name("storage"), manager: "ceph-operator"}, applier{user: framework.Name("auditor"), manager: "audit"}
	for _, user := range []string{storage.user, auditor.user} {
		cluster.Bind(t, user, "haulout-rollout-holder")
	}
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	r := roll(t, pool, func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Stage = v1alpha1.RolloutStageIdle })
	rebuild, yearEnd := v1alpha1.RolloutHold{Name: "ceph", Reason: "rebuild"}, v1alpha1.RolloutHold{Name: "books", Reason: "year end"}
	must.Do(t, storage.apply(t, r.Name, rebuild))
	must.Do(t, auditor.apply(t, r.Name, yearEnd))
	setRollout(t, r.Name, "stage", v1alpha1.RolloutStageRoll)
	byStorage, byAuditor := fmt.Sprintf("ceph by user %q: rebuild", storage.user), fmt.Sprintf("books by user %q: year end", auditor.user)
	both := framework.Until(t, "two holds stop the rollout", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return progressingIs(r, v1alpha1.ReasonHeld, byStorage) && progressingIs(r, v1alpha1.ReasonHeld, byAuditor)
	})

	sooner := v1alpha1.RolloutHold{Name: "ceph", Reason: "nothing to rebuild"}
	foreign := fmt.Sprintf("spec.holds[ceph]: was added by user %q", storage.user)
	for what, test := range map[string]struct {
		manager   string
		force     bool
		holds     []v1alpha1.RolloutHold
		isRefused func(error) bool
		want      string
	}{
		"as the other manager, without its hold": {manager: storage.manager, isRefused: apierrors.IsForbidden, want: foreign},
		"as the other manager, another reason":   {manager: storage.manager, holds: []v1alpha1.RolloutHold{sooner}, isRefused: apierrors.IsForbidden, want: foreign},
		"another reason":                         {manager: auditor.manager, holds: []v1alpha1.RolloutHold{yearEnd, sooner}, isRefused: apierrors.IsConflict, want: `"` + storage.manager + `"`},
		"another reason, by force":               {manager: auditor.manager, force: true, holds: []v1alpha1.RolloutHold{yearEnd, sooner}, isRefused: apierrors.IsForbidden, want: foreign},
	} {
		err := applier{auditor.user, test.manager, test.force}.apply(t, r.Name, test.holds...)
		is.True(t, err != nil && test.isRefused(err) && strings.Contains(err.Error(), test.want), "%s: got %v, want %q", what, err, test.want)
	}
	stored := must.Get(rollouts(t).Get(t.Context(), r.Name, metav1.GetOptions{}))(t)
	is.Equal(t, holdsOf(stored), "books by "+auditor.user+", ceph by "+storage.user)
	is.Equal(t, stored.Generation, both.Generation, "generation after the refused writes")
	is.Equal(t, stored.Spec.RequestedBy.Username, r.Spec.RequestedBy.Username, "requester")

	must.Do(t, storage.apply(t, r.Name))
	held := framework.Until(t, "one hold is left", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return r.Status.ObservedGeneration == r.Generation && holdsOf(r) == "books by "+auditor.user && progressingIs(r, v1alpha1.ReasonHeld, byAuditor)
	})
	is.True(t, len(held.Status.Current) == 0 && !progressingIs(held, v1alpha1.ReasonHeld, "ceph"), "got the units %+v and the conditions %+v", held.Status.Current, held.Status.Conditions)
	is.Equal(t, len(attempts(t, r.Name)), 0, "maintenances of a held rollout")
	unschedulable(t, false, nodes...)
	must.Do(t, auditor.apply(t, r.Name))
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 1, Done: 1})
	is.Equal(t, holdsOf(r), "", "holds")
}

// flowing returns a node with pods of a Deployment, in a pool and a namespace of their own. The
// budget lets one of them leave at a time, and their replacements start on another node.
func flowing(t *testing.T) (pool, namespace, node string) {
	t.Helper()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace = cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "web", pool, 10)
	cluster.Budget(t, namespace, "web", 1)
	cluster.NewNodes(t, pool, true, pool+"-spare")
	return pool, namespace, nodes[0]
}

// TestHoldStopsADrainThatFlows holds a rollout with `stops: Drains` in the middle of a drain. While
// the hold lasts, the budget allows the next eviction, and the server drains another node with as
// many pods under the same kind of budget from the first to the last one.
func TestHoldStopsADrainThatFlows(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, namespace, node := flowing(t)
	otherPool, _, otherNode := flowing(t)
	recorder := cluster.Judge(t, pool, namespace)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	r := roll(t, pool, func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.NodeSelector = framework.Select(corev1.LabelHostname, node)
	})
	waitFor(t, recorder, oracle.Asked(2))
	setRollout(t, r.Name, "holds", []v1alpha1.RolloutHold{{Name: "power", Reason: "test", Stops: v1alpha1.RolloutHoldDrains}})
	unit := untilUnit(t, r.Name, v1alpha1.RolloutPhaseDraining)
	untilPaused(t, unit.Maintenance)
	rolloutUntil(t, r.Name, v1alpha1.ReasonHeld)
	left := undisturbed(t, namespace, node)
	must.True(t, len(left) > 0, "all pods have left before the pause")
	held := time.Now()

	framework.Until(t, "the budget allows an eviction", cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace), "web", func(b *policyv1.PodDisruptionBudget) bool {
		return b.Status.DisruptionsAllowed == 1
	})
	other := cluster.Create(t, framework.Maintenance(otherPool, v1alpha1.NodeMaintenanceStageDrain, onNodes(otherNode)))
	drained(t, other.Name)
	is.Equal(t, uidsOf(undisturbed(t, namespace, node)), uidsOf(left), "pods on the node whose drain is held")
	untilPaused(t, unit.Maintenance)
	unschedulable(t, true, node)

	resumed := time.Now()
	setRollout(t, r.Name, "holds", nil)
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 1, Done: 1})
	is.Equal(t, len(attempts(t, r.Name)), 1, "maintenances")
	setStage(t, other.Name, v1alpha1.NodeMaintenanceStageComplete)
	keptItsPromises(t, recorder)
	notEvictedBetween(t, recorder, left, held, resumed)
}

// undisturbed waits until no pod on a node is requested to leave, or is leaving, and returns the
// pods. The Evacuations of pods that have left may exist.
func undisturbed(t *testing.T, namespace, node string) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	framework.Eventually(t, "no pod on "+node+" is requested to leave", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Evacuations(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		requested := sets.New[types.UID]()
		for i := range list.Items {
			if isOurs(&list.Items[i]) {
				requested.Insert(list.Items[i].Spec.PodRef.UID)
			}
		}
		pods, err = podsOn(ctx, t, node)
		return err == nil && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || requested.Has(p.UID) }), err
	})
	return pods
}

// uidsOf returns the UIDs of pods, sorted.
func uidsOf(pods []corev1.Pod) string {
	var uids []string
	for i := range pods {
		uids = append(uids, string(pods[i].UID))
	}
	slices.Sort(uids)
	return strings.Join(uids, " ")
}

// notEvictedBetween checks in the audit log that the server has evicted some of the pods, and tried
// to evict none of them between two times.
func notEvictedBetween(t *testing.T, recorder *oracle.Recorder, pods []corev1.Pod, from, to time.Time) {
	t.Helper()
	evictions := 0
	for _, call := range must.Get(recorder.Log())(t).Calls {
		if call.User != serverUser || !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID == call.UID }) {
			continue
		}
		evictions++
		is.True(t, call.Received.Before(from) || call.Received.After(to), "the server sent %s %s of pod %s during the hold", call.Verb, call.Subresource, call.Name)
	}
	is.True(t, evictions > 0, "the audit log has no eviction of %d pods", len(pods))
}
