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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const testInstigator = v1alpha1.FinalizerInstigatorPrefix + "e2e.haulout.dev"

func evacuationOf(pod *corev1.Pod, modify ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	return build.With(&v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Finalizers: []string{testInstigator}},
		Spec:       v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}},
	}, modify...)
}

func withEvacuators(evacuators ...v1alpha1.Evacuator) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.Spec.Evacuators = evacuators }
}

func withForeignFinalizer(e *v1alpha1.Evacuation) {
	e.Finalizers = append(e.Finalizers, "e2e.haulout.dev/foreign")
}

func with64KiBOfLabels(e *v1alpha1.Evacuation) {
	e.Labels = map[string]string{}
	for i := range 1000 {
		e.Labels[fmt.Sprintf("label-%04d", i)] = strings.Repeat("x", 55)
	}
}

// TestEvacuationThatIsRefused creates an Evacuation whose pod reference has another UID than the
// pod.
func TestEvacuationThatIsRefused(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	pod := cluster.PodOn(t, namespace, "pod", pool, nodes[0])
	_, err := cluster.As(t).Evacuations(namespace).Create(t.Context(), evacuationOf(pod, func(e *v1alpha1.Evacuation) {
		e.Spec.PodRef.UID = "11111111-2222-3333-4444-555555555555"
	}), metav1.CreateOptions{})
	is.True(t, apierrors.IsInvalid(err) && hasCause(err, "spec.podRef.uid", string(pod.UID)), "got %v, want that the UID is invalid", err)
}

// TestEvacuationsThatFillANamespace has a tenant create Evacuations of pods without a node, which
// it deletes again: first as large as they may be, then with a finalizer that would keep them.
func TestEvacuationsThatFillANamespace(t *testing.T) {
	t.Parallel()
	const tries, allowed = 300, 200
	pool, _ := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	admin := cluster.As(t)
	evacuations, pods := admin.Evacuations(namespace), admin.Pods(namespace)
	created, refused := 0, 0
	for i := range tries {
		pod, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%03d", i)}, Spec: neverScheduled(pool),
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := evacuations.Create(t.Context(), evacuationOf(pod, withForeignFinalizer, with64KiBOfLabels), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Fatalf("with a foreign finalizer and 64 KiB of labels: got %v, want it refused as invalid", err)
		}
		_, err = evacuations.Create(t.Context(), evacuationOf(pod), metav1.CreateOptions{})
		switch {
		case err == nil:
			created++
		case apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), "at most 200 are allowed"):
			refused++
		default:
			t.Fatalf("got %v, want success or an error about the limit", err)
		}
		// The server may have evicted the pod already.
		if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	// The controllers delete the Evacuations of deleted pods, so the limit allows others.
	list := must.Get(evacuations.List(t.Context(), metav1.ListOptions{}))(t)
	is.True(t, len(list.Items) <= allowed, "the namespace has %d Evacuations, want at most %d", len(list.Items), allowed)
	t.Logf("%d created, %d refused, %d left", created, refused, len(list.Items))
}

// neverScheduled returns the spec of a pod of a pool that no scheduler schedules.
func neverScheduled(pool string) corev1.PodSpec {
	spec := framework.PodSpec(pool)
	spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.haulout.dev/never"}}
	return spec
}

// conditionIs reports whether a condition has a status and, unless reason is empty, a reason.
func conditionIs(
	conditions []metav1.Condition, conditionType string, status metav1.ConditionStatus, reason string,
) bool {
	for _, c := range conditions {
		if c.Type == conditionType {
			return c.Status == status && (reason == "" || c.Reason == reason)
		}
	}
	return false
}

// hasCause reports whether an error refuses the given field with a message that contains all of the
// words.
func hasCause(err error, field string, words ...string) bool {
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == field &&
			!slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(c.Message, w) })
	})
}

func TestNodeMaintenanceStatusIsTheServersAlone(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]framework.Clients{
		"an administrator":                   cluster.As(t),
		"a user with the name of the server": cluster.As(t, "system:apiserver", "system:masters"),
		"the server's own account in the cluster": cluster.As(t,
			"system:serviceaccount:haulout-system:haulout-apiserver", "system:masters"),
	} {
		t.Run(name, func(t *testing.T) {
			nm := cluster.Create(t, framework.Maintenance(framework.Name("none"), v1alpha1.NodeMaintenanceStageIdle))
			_, err := clients.Maintenances().Patch(t.Context(), nm.Name,
				types.MergePatchType, []byte(`{"status":{"observedGeneration":99}}`), metav1.PatchOptions{}, "status")
			is.True(t, apierrors.IsForbidden(err), "got %v, want Forbidden", err)
		})
	}
}

func TestRightsOnNodes(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, false)
	user := framework.Name("half-operator")
	cluster.Grant(t, user, rule(v1alpha1.GroupName, "nodemaintenances", "", "*"), rule("", "nodes", nodes[0], "delete"))
	theirs := cluster.As(t, user).Maintenances()
	create := func(nodes ...string) (*v1alpha1.NodeMaintenance, error) {
		return theirs.Create(t.Context(), framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes...)
		}), metav1.CreateOptions{})
	}
	// The user has no permission to get nodes, so the response must not name one.
	_, err := create(nodes...)
	if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), nodes[0]) || strings.Contains(err.Error(), nodes[1]) {
		t.Errorf("got %v, want Forbidden without the name of a node", err)
	}
	nm := must.Get(create(nodes[0]))(t)
	must.Do(t, theirs.Delete(t.Context(), nm.Name, metav1.DeleteOptions{}))
}

// crowd creates maintenances NAME-000, NAME-001 and so on, and removes them after the test.
func crowd(t *testing.T, name string, count int, stage v1alpha1.NodeMaintenanceStage, selector *corev1.NodeSelector) {
	t.Helper()
	maintenances := cluster.As(t).Maintenances()
	t.Cleanup(func() {
		all := metav1.ListOptions{LabelSelector: "crowd=" + name}
		if err := maintenances.DeleteCollection(context.Background(), metav1.DeleteOptions{}, all); err != nil {
			t.Error(err)
		}
		// Use a new context, because the context of the test has ended.
		err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, framework.Timeout, true, func(ctx context.Context) (bool, error) {
			left, err := maintenances.List(ctx, all)
			return err == nil && len(left.Items) == 0, nil
		})
		is.True(t, err == nil, "maintenances %s still exist: %v", name, err)
	})
	for i := range count {
		nm := framework.Maintenance(name, stage, func(nm *v1alpha1.NodeMaintenance) {
			nm.Name, nm.Labels = fmt.Sprintf("%s-%03d", name, i), map[string]string{"crowd": name}
			nm.Spec.NodeSelector = selector
		})
		must.Get(maintenances.Create(t.Context(), nm, metav1.CreateOptions{}))(t)
	}
}

// hasNoPlace waits until the status of a maintenance reports that its only node is at the limit.
func hasNoPlace(t *testing.T, name string) {
	t.Helper()
	framework.Until(t, "the status of "+name+" names the limit",
		cluster.As(t).Maintenances(), name, func(nm *v1alpha1.NodeMaintenance) bool {
			return len(nm.Status.NodeStatuses) == 1 &&
				strings.Contains(nm.Status.NodeStatuses[0].DrainMessage, v1alpha1.ReasonTooManyMaintenances)
		})
}

// isNamed waits until the annotation about the taints of a node contains a text exactly the given
// number of times.
func isNamed(t *testing.T, node, text string, times int) {
	t.Helper()
	framework.Until(t, fmt.Sprintf("node %s names %s %d times", node, text, times),
		cluster.As(t).Nodes(), node, func(node *corev1.Node) bool {
			return strings.Count(node.Annotations[v1alpha1.AnnotationTaintedBy], text) == times
		})
}

// TestMoreMaintenancesThanMayHoldANode reaches the limit of 50 maintenances on a node, and exceeds
// it with a write and with a label of the node.
func TestMoreMaintenancesThanMayHoldANode(t *testing.T) {
	t.Parallel()
	const most = 50
	pool, nodes := cluster.NewPool(t, 1, true)
	maintenances := cluster.As(t).Maintenances()
	// The oldest maintenance has priority. Creation times have a resolution of seconds; at equal
	// times, the name that sorts first has priority.
	oldest := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon,
		func(nm *v1alpha1.NodeMaintenance) {
			nm.Name, nm.Spec.NodeSelector = "a-"+pool, framework.Select(pool, "yes")
		}))
	crowd(t, pool, most, v1alpha1.NodeMaintenanceStageCordon, framework.Select(framework.Pool, pool))
	waiting := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle))
	framework.Eventually(t, "the 51st is refused when it leaves Idle", func(ctx context.Context) (bool, error) {
		_, err := maintenances.Patch(ctx, waiting.Name, types.MergePatchType, []byte(`{"spec":{"stage":"Cordon"}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "at most 50") &&
			strings.Contains(err.Error(), pool+"-000, "+pool+"-001, "+pool+"-002"), nil
	})
	isNamed(t, nodes[0], `"`+pool+"-", most)
	// With the label, the oldest maintenance replaces the youngest on the node.
	merge(t, "", "node", nodes[0], fmt.Sprintf(`{"metadata":{"labels":{%q:"yes"}}}`, pool))
	youngest := fmt.Sprintf("%s-%03d", pool, most-1)
	hasNoPlace(t, youngest)
	setStage(t, oldest.Name, v1alpha1.NodeMaintenanceStageComplete)
	isNamed(t, nodes[0], youngest, 1)
}

func TestObjectsThatAreTooLargeAreRefused(t *testing.T) {
	t.Parallel()
	maintenances := cluster.As(t).Maintenances()
	values := make([]string, 40000)
	for i := range values {
		values[i] = framework.Name("a-node-with-quite-a-long-name-that-goes-on-and-on")
	}
	nm := framework.Maintenance("none", v1alpha1.NodeMaintenanceStageIdle, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, values...)
	})
	_, err := maintenances.Create(t.Context(), nm, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !hasCause(err, "spec", "too large", "512 KiB") {
		t.Errorf("got %v, want it refused as too large", err)
	}
}

func TestUnknownFieldsAreRefusedOnRequest(t *testing.T) {
	t.Parallel()
	nm := manifest(framework.Name("strict"), "none", "Idle") + "  drainPlann: []\n"
	_, errOut, err := cluster.Kubectl(t, nm, "create", "--dry-run=server", "--validate=strict", "--filename=-")
	is.True(t, err != nil && strings.Contains(errOut, "spec.drainPlann"), "got %q, want an error that names spec.drainPlann", errOut)
}
