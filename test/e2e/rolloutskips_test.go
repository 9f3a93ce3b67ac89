// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// marked returns the names of the nodes, sorted, that had an annotation, a taint or a condition of
// Haulout.
func marked(log oracle.Log) []string {
	var names []string
	isOurs := func(key string) bool { return strings.HasPrefix(key, v1alpha1.GroupName+"/") }
	for _, node := range oracle.Each[*corev1.Node](log) {
		has := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return isOurs(taint.Key) })
		for key := range node.Annotations {
			has = has || isOurs(key)
		}
		for _, condition := range []corev1.NodeConditionType{
			v1alpha1.NodeConditionMaintenancePlanned, v1alpha1.NodeConditionMaintenanceInProgress, v1alpha1.NodeConditionDrainInProgress, v1alpha1.NodeConditionDrained,
		} {
			has = has || protocol.NodeCondition(node, condition).Type != ""
		}
		if has && !slices.Contains(names, node.Name) {
			names = append(names, node.Name)
		}
	}
	slices.Sort(names)
	return names
}

// TestRolloutLeavesNodesAlone has a rollout over nine nodes: five are at the goal, users have
// cordoned two, and one is not Ready. These three take the three places of the limit, so no unit
// starts. With a fourth place the ninth node is done, and the server writes to no other one. When
// the users uncordon their nodes and the last one is Ready, these are done, too.
func TestRolloutLeavesNodesAlone(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 8, true)
	atGoal, cordoned, due, broken := nodes[:5], nodes[5:7], nodes[7], pool+"-broken"
	cluster.NewNodes(t, pool, false, broken)
	// As if its kubelet had ended an hour ago: the grace time of a new node is over.
	setReady(t, broken, corev1.ConditionUnknown, time.Now().Add(-time.Hour))
	for _, node := range atGoal {
		is.Equal(t, install(t, node), v1alpha1.NodeTaskResultDone)
	}
	cluster.MustKubectl(t, "", append([]string{"cordon"}, cordoned...)...)
	recorder := recordNodes(t, pool)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })

	r := roll(t, pool, limited(maxUnavailable(3)))
	framework.Until(t, "three nodes of others take all places", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return progressingIs(r, v1alpha1.ReasonAtLimit, cordoned[0]+" is unschedulable") &&
			progressingIs(r, v1alpha1.ReasonAtLimit, cordoned[1]+" is unschedulable") && progressingIs(r, v1alpha1.ReasonAtLimit, broken+" is not Ready")
	})
	setRollout(t, r.Name, "limits", []v1alpha1.RolloutLimit{maxUnavailable(4)})
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonNodesSkipped)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 9, Done: 6, Skipped: 3})
	var found []string
	framework.Eventually(t, "the recorder has seen the work on node "+due, func(context.Context) (bool, error) {
		log, err := recorder.Log()
		found = marked(log)
		return slices.Contains(found, due), err
	})
	is.Equal(t, strings.Join(found, " "), due, "nodes to which the server has written")
	unschedulable(t, true, cordoned...)
	unschedulable(t, false, append(slices.Clone(atGoal), broken)...)

	cluster.MustKubectl(t, "", append([]string{"uncordon"}, cordoned...)...)
	setReady(t, broken, corev1.ConditionTrue, time.Now())
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 9, Done: 9})
	is.Equal(t, len(attempts(t, r.Name)), 4, "maintenances")
}

// setReady writes the condition Ready of a node, as its kubelet or the node lifecycle controller
// does.
func setReady(t *testing.T, node string, status corev1.ConditionStatus, since time.Time) {
	t.Helper()
	must.Do(t, writeReady(t.Context(), cluster.As(t), node, status, since, since))
}

// writeReady writes the condition Ready of a node, with the times of its last change and of the
// last heartbeat.
func writeReady(ctx context.Context, as framework.Clients, node string, status corev1.ConditionStatus, since, heartbeat time.Time) error {
	_, err := as.Nodes().Patch(ctx, node, types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q,"lastTransitionTime":%q,"lastHeartbeatTime":%q}]}}`,
			status, since.UTC().Format(time.RFC3339), heartbeat.UTC().Format(time.RFC3339)),
		metav1.PatchOptions{}, "status")
	return err
}
