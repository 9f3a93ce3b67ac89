// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// exchanged creates a Deployment with a budget, unless that is nil, and then the nodes for its
// replacements. It returns the nodes of its pods.
func exchanged(
	t *testing.T, namespace string, replicas int32, budget *policyv1.PodDisruptionBudgetSpec, modify ...func(*appsv1.Deployment),
) (pool string, nodes []string) {
	t.Helper()
	pool, nodes = cluster.NewPool(t, 2, true)
	cluster.Deployment(t, namespace, "web", pool, replicas, append([]func(*appsv1.Deployment){framework.WithSurge}, modify...)...)
	if budget != nil {
		budget.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		budgets := cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace)
		must.Get(budgets.Create(t.Context(),
			&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: *budget}, metav1.CreateOptions{}))(t)
		framework.Until(t, "the budget is computed", budgets, "web", func(b *policyv1.PodDisruptionBudget) bool {
			return b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy == replicas
		})
	}
	cluster.NewNodes(t, pool, true, pool+"-spare-0", pool+"-spare-1")
	return pool, nodes
}

// started counts the pods that were created since a recording began.
func started(t *testing.T, recorder *oracle.Recorder) int {
	t.Helper()
	created := map[types.UID]bool{}
	for o, pod := range oracle.Each[*corev1.Pod](must.Get(recorder.Log())(t)) {
		// The first observation of a pod tells whether it existed before.
		if _, known := created[pod.UID]; !known {
			created[pod.UID] = !o.Initial
		}
	}
	n := 0
	for _, is := range created {
		if is {
			n++
		}
	}
	return n
}

// surgesBy sets maxSurge of a Deployment.
func surgesBy(maxSurge string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.Parse(maxSurge)), MaxUnavailable: ptr.To(intstr.FromInt32(0))}
	}
}

func mayMiss(value string) *policyv1.PodDisruptionBudgetSpec {
	return &policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.Parse(value))}
}

// TestDrainStartsOnePodForEachThatLeaves drains all pods of a Deployment. The server must start
// exactly one pod for each, and all replicas must be available at all times.
func TestDrainStartsOnePodForEachThatLeaves(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int32{1, 3, 10} {
		for name, budget := range map[string]*policyv1.PodDisruptionBudgetSpec{
			"no budget": nil, "minAvailable 1": minAvailable(1), "minAvailable of all": minAvailable(replicas),
			"maxUnavailable 1": mayMiss("1"), "maxUnavailable 25%": mayMiss("25%"),
		} {
			t.Run(fmt.Sprintf("%d replicas, %s", replicas, name), func(t *testing.T) {
				t.Parallel()
				namespace := cluster.NewNamespace(t)
				pool, nodes := exchanged(t, namespace, replicas, budget, surgesBy("25%"))
				recorder := watchAvailability(t, namespace)
				nm := drainNodes(t, pool, nodes...)
				drained(t, nm.Name)
				asBefore(t, namespace, "web", replicas)
				wasAvailable(t, recorder, "web", int(replicas))
				if got := started(t, recorder); got != int(replicas) {
					t.Errorf("%d pods were started for %d", got, replicas)
				}
			})
		}
	}
}

// TestExchangeAsksWebhooksFirst drains a Deployment whose policy refuses the eviction of one pod,
// with and without a budget. The pod must stay, and the others must leave. When the policy is
// removed, it leaves, too.
func TestExchangeAsksWebhooksFirst(t *testing.T) {
	t.Parallel()
	for name, budget := range map[string]*policyv1.PodDisruptionBudgetSpec{
		"no budget": nil, "minAvailable 1": minAvailable(1), "minAvailable of all": minAvailable(3),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := cluster.NewNamespace(t)
			pool, nodes := exchanged(t, namespace, 3, budget, surgesBy("100%"))
			available := watchAvailability(t, namespace)
			refused := livePods(t, namespace)[0]
			allow := refuse(t, admissionregistrationv1.Create,
				admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
				fmt.Sprintf("request.namespace == %q && request.name == %q", namespace, refused.Name))
			framework.Eventually(t, "the policy refuses the pod", func(ctx context.Context) (bool, error) {
				return cluster.As(t).Kube.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{
					ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: refused.Name}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
				}) != nil, nil
			})
			nm := drainNodes(t, pool, nodes...)
			evacuationFor(t, &refused, "is refused", func(e *v1alpha1.Evacuation) bool {
				return e.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction
			})
			framework.Eventually(t, "only the refused pod is left", func(ctx context.Context) (bool, error) {
				list, err := cluster.As(t).Pods(namespace).List(ctx, metav1.ListOptions{})
				if err != nil {
					return false, err
				}
				left := 0
				for i := range list.Items {
					if node := list.Items[i].Spec.NodeName; node == nodes[0] || node == nodes[1] {
						left++
					}
				}
				return left == 1, fmt.Errorf("%d pods are left", left)
			})
			pod, err := cluster.As(t).Pods(namespace).Get(t.Context(), refused.Name, metav1.GetOptions{})
			is.True(t, err == nil && pod.UID == refused.UID && pod.DeletionTimestamp == nil, "the refused pod has left: %v", err)
			allow()
			drained(t, nm.Name)
			asBefore(t, namespace, "web", 3)
			wasAvailable(t, available, "web", 3)
		})
	}
}

// TestExchangeOfTwoDeploymentsUnderOneBudget drains two Deployments that share a budget which
// requires all of their pods.
func TestExchangeOfTwoDeploymentsUnderOneBudget(t *testing.T) {
	t.Parallel()
	namespace := cluster.NewNamespace(t)
	pool, nodes := cluster.NewPool(t, 2, true)
	shared := func(d *appsv1.Deployment) {
		d.Spec.Template.Labels = map[string]string{"app": d.Name, "shared": "true"}
	}
	for _, name := range []string{"one", "two"} {
		cluster.Deployment(t, namespace, name, pool, 3, framework.WithSurge, surgesBy("100%"), shared)
	}
	budgets := cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace)
	must.Get(budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "shared"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(6)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"shared": "true"}},
		},
	}, metav1.CreateOptions{}))(t)
	framework.Until(t, "the budget is computed", budgets, "shared", func(b *policyv1.PodDisruptionBudget) bool { return b.Status.CurrentHealthy == 6 })
	cluster.NewNodes(t, pool, true, pool+"-spare-0", pool+"-spare-1")
	recorder := watchAvailability(t, namespace)
	nm := drainNodes(t, pool, nodes...)
	drained(t, nm.Name)
	for _, name := range []string{"one", "two"} {
		asBefore(t, namespace, name, 3)
		wasAvailable(t, recorder, name, 3)
	}
	if got := started(t, recorder); got != 6 {
		t.Errorf("%d pods were started for 6", got)
	}
}

// TestExchangeOfManySingleReplicas drains apps with one replica and a budget: each must start one
// pod.
func TestExchangeOfManySingleReplicas(t *testing.T) {
	t.Parallel()
	const apps = 20
	namespace := cluster.NewNamespace(t)
	pool, nodes := cluster.NewPool(t, 2, true)
	for i := range apps {
		single(t, namespace, fmt.Sprintf("web-%02d", i), pool, minAvailable(1))
	}
	cluster.NewNodes(t, pool, true, pool+"-spare-0", pool+"-spare-1")
	recorder := watchAvailability(t, namespace)
	nm := drainNodes(t, pool, nodes...)
	drained(t, nm.Name)
	for i := range apps {
		asBefore(t, namespace, fmt.Sprintf("web-%02d", i), 1)
	}
	if got := started(t, recorder); got != apps {
		t.Errorf("%d pods were started for %d", got, apps)
	}
}
