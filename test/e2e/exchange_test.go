// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// TestExchangeAsksWebhooksFirst drains a Deployment whose policy refuses the eviction of one pod.
// The pod must stay, and the others must leave. When the policy is removed, it leaves, too. If it
// is evicted then, it costs one more pod.
func TestExchangeAsksWebhooksFirst(t *testing.T) {
	t.Parallel()
	const replicas = 3
	for name, tc := range map[string]struct {
		budget *policyv1.PodDisruptionBudgetSpec
		modify []func(*appsv1.Deployment)
		most   int
	}{
		"no budget":           {most: replicas + 1},
		"minAvailable 1":      {budget: minAvailable(1), most: replicas + 1},
		"minAvailable of all": {budget: minAvailable(replicas), most: replicas + 1},
		"maxUnavailable 0, and a surge that the owner allows": {
			budget: nothingMissing(), modify: []func(*appsv1.Deployment){annotated(v1alpha1.AnnotationSurge, v1alpha1.SurgeAlways)}, most: replicas},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := cluster.NewNamespace(t)
			pool, nodes := exchanged(t, namespace, replicas, tc.budget, append(tc.modify, surgesBy("100%"))...)
			recorder := watchAvailability(t, namespace)
			refused := livePods(t, namespace)[0]
			allow := refuse(t, admissionregistrationv1.Create,
				admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
				fmt.Sprintf("request.namespace == %q && request.name == %q", namespace, refused.Name))
			framework.Eventually(t, "the policy refuses the pod", func(ctx context.Context) (bool, error) {
				err := cluster.As(t).Kube.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{
					ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: refused.Name}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
				})
				if apierrors.IsForbidden(err) {
					return true, nil
				}
				return false, err
			})
			nm := drainNodes(t, pool, nodes...)
			framework.Eventually(t, "only the refused pod is left", func(ctx context.Context) (bool, error) {
				left, err := podsOn(ctx, t, nodes...)
				if err == nil && len(left) != 1 {
					err = fmt.Errorf("%d pods are left", len(left))
				}
				return err == nil, err
			})
			pod, err := cluster.As(t).Pods(namespace).Get(t.Context(), refused.Name, metav1.GetOptions{})
			is.True(t, err == nil && pod.UID == refused.UID && pod.DeletionTimestamp == nil, "the refused pod has left: %v", err)
			allow()
			drained(t, nm.Name)
			asBefore(t, namespace, "web", replicas)
			wasAvailable(t, recorder, "web", replicas)
			got := started(t, recorder)
			is.True(t, got >= replicas && got <= tc.most, "%d pods were started for %d, want at most %d", got, replicas, tc.most)
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

// TestExchangeIsFinishedByTheNextLeader kills the server after its scale-down, while a policy keeps
// the ReplicaSet controller from deleting the pods. The next leader must wait for their deletion,
// and must neither start nor evict another pod.
func TestExchangeIsFinishedByTheNextLeader(t *testing.T) {
	const replicas = 3
	namespace := cluster.NewNamespace(t)
	pool, nodes := exchanged(t, namespace, replicas, minAvailable(replicas), surgesBy("100%"))
	recorder := watchAvailability(t, namespace)
	pods := livePods(t, namespace)
	allow := refuse(t, admissionregistrationv1.Delete,
		admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		fmt.Sprintf("request.namespace == %q", namespace))
	framework.Eventually(t, "the policy refuses deletions", func(ctx context.Context) (bool, error) {
		err := cluster.As(t).Pods(namespace).Delete(ctx, pods[0].Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) {
			return true, nil
		}
		return false, err
	})
	nm := drainNodes(t, pool, nodes...)
	scaledTo(t, namespace, "web", 2*replicas)
	scaledTo(t, namespace, "web", replicas)
	cluster.KillServer(t)
	must.Do(t, cluster.Up())
	waits := fmt.Sprintf("it has %d pods and should have %d", 2*replicas, replicas)
	for i := range pods {
		e := evacuationFor(t, &pods[i], "waits for the ReplicaSet", func(e *v1alpha1.Evacuation) bool { return strings.Contains(e.Status.Message, waits) })
		is.Equal(t, e.Status.ActiveEvacuatorClass, v1alpha1.EvacuatorClassDeployment, "active class")
	}
	is.Equal(t, len(livePods(t, namespace)), 2*replicas, "pods before the deletions")
	allow()
	drained(t, nm.Name)
	asBefore(t, namespace, "web", replicas)
	wasAvailable(t, recorder, "web", replicas)
	is.Equal(t, started(t, recorder), replicas, "started pods")
}
