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

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// roleLabel selects nodes within a pool, so that a test can remove the label.
const roleLabel = "e2e.haulout.dev/role"

// mover is the class of an evacuator. The tests write its reports.
const mover = "mover.example.com"

// movable assigns a pod to the evacuator of the tests.
func movable(p *corev1.Pod) {
	p.Annotations = map[string]string{v1alpha1.AnnotationEvacuatorPrefix + mover: "20000"}
}

// evacuationFor waits until the Evacuation of a pod exists and check returns true for it, and
// returns it.
func evacuationFor(
	t *testing.T, pod *corev1.Pod, what string, check func(*v1alpha1.Evacuation) bool,
) *v1alpha1.Evacuation {
	t.Helper()
	var found *v1alpha1.Evacuation
	framework.Eventually(t, "the evacuation of "+pod.Name+" "+what, func(ctx context.Context) (bool, error) {
		var err error
		found, err = cluster.As(t).Evacuations(pod.Namespace).Get(ctx,
			string(pod.UID)+"-"+pod.Name, metav1.GetOptions{})
		return err == nil && check(found), err
	})
	return found
}

func isOurs(e *v1alpha1.Evacuation) bool {
	return slices.Contains(e.Finalizers, v1alpha1.FinalizerInstigatorNodeMaintenance)
}

// report patches the status of an Evacuation as the active evacuator would.
func report(t *testing.T, e *v1alpha1.Evacuation, status string) {
	t.Helper()
	must.Get(cluster.As(t).Evacuations(e.Namespace).Patch(t.Context(), e.Name,
		types.MergePatchType, fmt.Appendf(nil, `{"status":%s}`, status), metav1.PatchOptions{}, "status"))(t)
}

// TestCallingOff completes or deletes a maintenance whose pods cannot be evicted, and checks the
// Evacuations with and without other instigators.
func TestCallingOff(t *testing.T) {
	t.Parallel()
	for name, verb := range map[string]string{"by completing it": "complete", "by deleting it": "delete"} {
		t.Run(name, func(t *testing.T) {
			pool, nodes := cluster.NewPool(t, 1, true)
			namespace := cluster.NewNamespace(t)
			cluster.Deployment(t, namespace, "stuck", pool, 3)
			cluster.Budget(t, namespace, "stuck", 0)
			// The pod shared has a second instigator, which stays. Its evacuator never completes
			// and so keeps the pod.
			shared := cluster.PodOn(t, namespace, "shared", pool, nodes[0], movable)
			busy := cluster.PodOn(t, namespace, "busy", pool, nodes[0], movable)
			evacuations := cluster.As(t).Evacuations(namespace)
			must.Get(evacuations.Create(t.Context(), evacuationOf(shared), metav1.CreateOptions{}))(t)
			recorder := cluster.Judge(t, pool, namespace)
			nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
			framework.Eventually(
				t, "the maintenance has Evacuations of all five pods",
				func(ctx context.Context) (bool, error) {
					list, err := evacuations.List(ctx, metav1.ListOptions{})
					if err != nil {
						return false, err
					}
					list.Items = slices.DeleteFunc(list.Items, func(e v1alpha1.Evacuation) bool { return !isOurs(&e) })
					return len(list.Items) == 5, nil
				},
			)
			turn := evacuationFor(t, busy, "has an active evacuator", func(e *v1alpha1.Evacuation) bool {
				return e.Status.ActiveEvacuatorClass == mover
			})
			report(t, turn, `{"evacuationCancellationPolicy":"Forbid","message":"flushing"}`)
			err := evacuations.Delete(t.Context(), turn.Name, metav1.DeleteOptions{})
			is.True(t, apierrors.IsConflict(err) && strings.Contains(err.Error(), "Forbid"), "got %v, want a conflict that names the policy", err)

			if verb == "complete" {
				setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
			} else {
				// kubectl waits until the maintenance is gone. This must not depend on the
				// evacuator, which never completes.
				cluster.MustKubectl(t, "", "delete", "nodemaintenance", nm.Name, "--timeout=60s")
			}
			waitFor(t, recorder, oracle.Done(nm.Name))
			done := time.Now()
			list := must.Get(evacuations.List(t.Context(), metav1.ListOptions{}))(t)
			left := map[string][]string{}
			for i := range list.Items {
				left[list.Items[i].Spec.PodRef.Name] = list.Items[i].Finalizers
			}
			if diff := cmp.Diff(map[string][]string{"shared": {testInstigator}, "busy": nil}, left); diff != "" {
				t.Errorf("remaining Evacuations, with their finalizers (-want +got):\n%s", diff)
			}
			putBack := func() []string { return oracle.LeftOn(theNode(t, nodes[0]), false) }
			framework.Accept(t, putBack(), nil)

			// Only the active evacuator of the Evacuation that could not be cancelled continues.
			// When it has failed, no pod may be evicted.
			report(t, turn, `{"activeEvacuatorCompleted":true}`)
			framework.UntilGone(t, "the evacuation without instigators has ended", evacuations, turn.Name)
			// Another drain creates Evacuations of the same pods, independent of the first drain.
			again := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
			evacuationFor(t, busy, "is recreated", isOurs)
			for _, call := range must.Get(recorder.Log())(t).Calls {
				is.True(t, !call.Evicted() && !call.Deleted(), "%s evicted or deleted pod %s", call.User, call.Name)
				if call.Received.After(done) && call.Received.Before(again.CreationTimestamp.Time) {
					t.Errorf("%s sent a request for pod %s after the drain was cancelled", call.User, call.Name)
				}
			}
			// Remove the other instigator, or the deletion of the namespace would wait for it.
			must.Do(t, evacuations.Delete(t.Context(), string(shared.UID)+"-"+shared.Name, metav1.DeleteOptions{}))
		})
	}
}

// TestIdleChangesNothing creates an Idle maintenance and deletes it.
func TestIdleChangesNothing(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	cluster.MustKubectl(t, "", "cordon", nodes[1])
	kube := cluster.As(t).Kube
	look := func() []corev1.Node {
		var seen []corev1.Node
		for _, name := range nodes {
			node := must.Get(kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
			// Ignore the fields that the kubelet writes periodically, and the taint that
			// kube-controller-manager adds after a cordon.
			node.ResourceVersion, node.ManagedFields, node.Status = "", nil, corev1.NodeStatus{}
			node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool {
				return t.Key == corev1.TaintNodeUnschedulable
			})
			seen = append(seen, *node)
		}
		return seen
	}
	before := look()
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle))
	maintenances := cluster.As(t).Maintenances()
	framework.Until(t, "the status of the maintenance names its nodes", maintenances, nm.Name, func(got *v1alpha1.NodeMaintenance) bool {
		return len(got.Status.NodeStatuses) == len(nodes)
	})
	must.Do(t, maintenances.Delete(t.Context(), nm.Name, metav1.DeleteOptions{}))
	if _, err := maintenances.Get(t.Context(), nm.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the maintenance was not deleted immediately: %v", err)
	}
	// Wait for another action of the controller, which by then has handled the deletion.
	probe, probed := cluster.NewPool(t, 1, true)
	cluster.Create(t, framework.Maintenance(probe, v1alpha1.NodeMaintenanceStageCordon))
	unschedulable(t, true, probed...)
	if diff := cmp.Diff(before, look()); diff != "" {
		t.Errorf("an Idle maintenance has changed its nodes (-before +after):\n%s", diff)
	}
	// The server runs without --advertise-planned-maintenance.
	for _, name := range nodes {
		is.Slices(t, shownOn(theNode(t, name)), showsNothing, name)
	}
}

// TestNodeThatIsMadeAgain replaces a node during its drain with a new node of the same name, which
// joins the drain late.
func TestNodeThatIsMadeAgain(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	stays, again := nodes[0], nodes[1]
	critical := func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" }
	cluster.PodOn(t, namespace, "low-1", pool, stays)
	cluster.PodOn(t, namespace, "low-2", pool, again)
	// This pod prevents the end of the second wave, because its evacuator never completes.
	held := cluster.PodOn(t, namespace, "held", pool, stays, critical, movable)
	recorder := cluster.Judge(t, pool, namespace)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	// The recorder must first observe the start of the second wave. The pods below are late only
	// after it.
	waitFor(t, recorder, func(v *oracle.View) string {
		if !slices.ContainsFunc(v.Evacuations(), func(e *v1alpha1.Evacuation) bool { return e.Spec.PodRef.UID == held.UID }) {
			return "the second wave is not open"
		}
		return ""
	})

	kube := cluster.As(t).Kube
	before, err := kube.CoreV1().Nodes().Get(t.Context(), again, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, kube.CoreV1().Nodes().Delete(t.Context(), again,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	// The new node has pods immediately, like a node that registers again. On an empty node, both
	// waves would end immediately.
	bound := func(name string, options ...func(*corev1.Pod)) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: framework.PodSpec(pool)}
		pod.Spec.NodeName = again
		for _, option := range append(options, movable) {
			option(pod)
		}
		return must.Get(kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	}
	late, last := bound("late"), bound("last", critical)
	// The server watches pods and nodes separately, and must observe these pods before the node. It
	// has observed them when it evacuates a pod that was created after them.
	newest := cluster.PodOn(t, namespace, "newest", pool, stays, critical, movable)
	evacuationFor(t, newest, "is created", isOurs)
	cluster.NewNodes(t, pool, true, again)
	unschedulable(t, true, nodes...)
	after := must.Get(kube.CoreV1().Nodes().Get(t.Context(), again, metav1.GetOptions{}))(t)
	must.True(t, after.UID != before.UID, "the node was not recreated")
	framework.Eventually(
		t, "the status names the new node, in the first wave",
		func(ctx context.Context) (bool, error) {
			got, err := cluster.As(t).Maintenances().Get(ctx, nm.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			for _, entry := range got.Status.NodeStatuses {
				if entry.NodeRef.UID == before.UID {
					return false, fmt.Errorf("the status still names the old node")
				}
				if entry.NodeRef.UID == after.UID {
					want := []v1alpha1.DrainPlanEntry{{PodPriority: 1000000000, PodType: v1alpha1.PodTypeDefault}}
					if diff := cmp.Diff(want, entry.DrainTargets); diff != "" {
						return false, fmt.Errorf("drain targets (-want +got):\n%s", diff)
					}
					return true, nil
				}
			}
			return false, nil
		},
	)
	evacuationFor(t, late, "is created", isOurs)
	if _, err := cluster.As(t).Evacuations(namespace).
		Get(t.Context(), string(last.UID)+"-"+last.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a critical pod on the new node has an Evacuation before the ordinary pod has left: %v", err)
	}
	for _, pod := range []*corev1.Pod{late, last, held, newest} {
		evacuationFor(t, pod, "has an active evacuator", func(e *v1alpha1.Evacuation) bool {
			return e.Status.ActiveEvacuatorClass == mover
		})
		must.Do(t, kube.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	}
	waitFor(t, recorder, oracle.Drained(nm.Name))
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	waitFor(t, recorder, oracle.PutBack(nil, nm.Name))
	found, err := recorder.Verdict(oracle.Rules{})
	framework.Accept(t, found, err)
}

// TestNodeThatNoLongerMatches makes a node stop matching during its drain. After the label of the
// node is removed, the node stays in the maintenance. After the selector has changed, the
// maintenance releases the node as if it was complete.
func TestNodeThatNoLongerMatches(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	for _, node := range nodes {
		cluster.MustKubectl(t, "", "label", "node", node, roleLabel+"="+pool)
	}
	stays := cluster.PodOn(t, namespace, "stays", pool, nodes[0], movable)
	released := cluster.PodOn(t, namespace, "released", pool, nodes[1], movable)
	nm := cluster.Create(
		t,
		framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NodeSelector = framework.Select(roleLabel, pool)
		}),
	)
	evacuationFor(t, stays, "is created", isOurs)
	evacuationFor(t, released, "is created", isOurs)
	cluster.MustKubectl(t, "", "label", "node", nodes[1], roleLabel+"-")
	// Wait for a later status write of the server, which by then has handled the removal of the
	// label.
	framework.Eventually(t, "the server has written a status after the label was removed", func(ctx context.Context) (bool, error) {
		merge(t, "", "nodemaintenance", nm.Name, fmt.Sprintf(`{"spec":{"reason":%q}}`, framework.Name("flap")))
		got, err := cluster.As(t).Maintenances().Get(ctx, nm.Name, metav1.GetOptions{})
		return err == nil && got.Status.ObservedGeneration > nm.Generation, err
	})
	if node := theNode(t, nodes[1]); !node.Spec.Unschedulable {
		t.Error("the node was released after a temporary removal of its label")
	}
	cluster.MustKubectl(t, "", "label", "node", nodes[1], roleLabel+"="+pool)
	merge(t, "", "nodemaintenance", nm.Name, fmt.Sprintf(
		`{"spec":{"nodeSelector":{"nodeSelectorTerms":[`+
			`{"matchExpressions":[{"key":%q,"operator":"In","values":[%q]}]}]}}}`,
		corev1.LabelHostname, nodes[0]))
	unschedulable(t, false, nodes[1])
	framework.Eventually(t, "nothing is left of the maintenance on the node", func(ctx context.Context) (bool, error) {
		node, err := cluster.As(t).Nodes().Get(ctx, nodes[1], metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if left := oracle.LeftOn(node, false); len(left) > 0 {
			return false, fmt.Errorf("%v", left)
		}
		_, err = cluster.As(t).Evacuations(namespace).Get(ctx,
			string(released.UID)+"-"+released.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	framework.Until(t, "the status names only the other node",
		cluster.As(t).Maintenances(), nm.Name, func(got *v1alpha1.NodeMaintenance) bool {
			return len(got.Status.NodeStatuses) == 1 && got.Status.NodeStatuses[0].NodeRef.Name == nodes[0]
		})
	unschedulable(t, true, nodes[0])
	if pods, err := podsOn(t.Context(), t, nodes...); err != nil || len(pods) != 2 {
		t.Errorf("got %d pods (error %v), want 2", len(pods), err)
	}
}

// TestAnotherWriterUncordons uncordons a node repeatedly during a drain, as another field manager.
func TestAnotherWriterUncordons(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	unschedulable(t, true, nodes...)
	const meddler, allowed = "e2e-meddler", 3
	for range allowed + 1 {
		// Use server-side apply, as GitOps tools do. After a merge patch the field would have no
		// manager, and the event could not name one.
		must.Get(cluster.As(t).Nodes().Patch(t.Context(), nodes[0], types.ApplyPatchType,
			fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"spec":{"unschedulable":false}}`,
				nodes[0]),
			metav1.PatchOptions{FieldManager: meddler, Force: ptr.To(true)}))(t)
		unschedulable(t, true, nodes...)
	}
	framework.Eventually(t, "an event reports that the cordon was restored", func(ctx context.Context) (bool, error) {
		return hasEvent(ctx, t, nodes[0], "CordonRestored", nm.Name)
	})
	framework.Eventually(t, "a warning names the other field manager", func(ctx context.Context) (bool, error) {
		return hasEvent(ctx, t, nodes[0], "CordonFight", "Field manager "+meddler, nm.Name)
	})
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, nodes...)
}
