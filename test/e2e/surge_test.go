// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// single creates a Deployment with one replica and, if budget is not nil, a budget. It returns the
// node of the replica.
func single(
	t *testing.T, namespace, name, pool string, budget *policyv1.PodDisruptionBudgetSpec,
	modify ...func(*appsv1.Deployment),
) (node string) {
	t.Helper()
	surges := func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
			},
		}
	}
	cluster.Deployment(
		t, namespace, name, pool, 1, append([]func(*appsv1.Deployment){framework.WithSurge, surges}, modify...)...,
	)
	if budget != nil {
		budget.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
		budgets := cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace)
		must.Get(budgets.Create(t.Context(),
			&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *budget},
			metav1.CreateOptions{}))(t)
		framework.Until(t, "budget "+name+" is computed", budgets, name, func(b *policyv1.PodDisruptionBudget) bool {
			return b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy > 0
		})
	}
	list, err := cluster.As(t).Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%s has %d pods (%v)", name, len(list.Items), err)
	}
	return list.Items[0].Spec.NodeName
}

func minAvailable(n int32) *policyv1.PodDisruptionBudgetSpec {
	return &policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(n))}
}

func drainNodes(t *testing.T, pool string, nodes ...string) *v1alpha1.NodeMaintenance {
	t.Helper()
	return cluster.Create(
		t,
		framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes...)
		}),
	)
}

// asBefore waits until a Deployment has the given replicas, and neither the Deployment nor its pods
// have annotations of Haulout.
func asBefore(t *testing.T, namespace, name string, replicas int32) {
	t.Helper()
	framework.Eventually(t, "Deployment "+name+" is as before", func(ctx context.Context) (bool, error) {
		d, err := cluster.As(t).Kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if *d.Spec.Replicas != replicas || d.Status.Replicas != replicas || d.Status.AvailableReplicas != replicas ||
			d.Annotations[v1alpha1.AnnotationSurgeRecord] != "" {
			return false, fmt.Errorf("it has %d replicas, %d exist, record %q",
				*d.Spec.Replicas, d.Status.Replicas, d.Annotations[v1alpha1.AnnotationSurgeRecord])
		}
		list, err := cluster.As(t).Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			for _, key := range []string{corev1.PodDeletionCost, v1alpha1.AnnotationOriginalPodDeletionCost} {
				if value, ok := list.Items[i].Annotations[key]; ok {
					return false, fmt.Errorf("pod %s has %s: %q", list.Items[i].Name, key, value)
				}
			}
		}
		return true, nil
	})
}

// scaledTo waits until a Deployment has a number of replicas.
func scaledTo(t *testing.T, namespace, name string, replicas int32) {
	t.Helper()
	framework.Until(t, fmt.Sprintf("Deployment %s is scaled to %d", name, replicas),
		cluster.As(t).Kube.AppsV1().Deployments(namespace), name, func(d *appsv1.Deployment) bool {
			return *d.Spec.Replicas == replicas
		})
}

// annotated returns a modifier that adds an annotation to a Deployment.
func annotated(key, value string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { metav1.SetMetaDataAnnotation(&d.ObjectMeta, key, value) }
}

// nothingMissing and allInPercent return budgets that never allow an eviction, whatever the number
// of pods.
func nothingMissing() *policyv1.PodDisruptionBudgetSpec {
	return &policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0))}
}

func allInPercent() *policyv1.PodDisruptionBudgetSpec {
	return &policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromString("100%"))}
}

func TestOneReplicaIsNeverMissed(t *testing.T) {
	t.Parallel()
	surgeAlways := annotated(v1alpha1.AnnotationSurge, v1alpha1.SurgeAlways)
	for name, test := range map[string]struct {
		budget *policyv1.PodDisruptionBudgetSpec
		modify []func(*appsv1.Deployment)
	}{
		"with a budget that needs one pod": {budget: minAvailable(1)},
		"with maxUnavailable 0, and a surge that the owner allows": {
			nothingMissing(), []func(*appsv1.Deployment){surgeAlways}},
		"with minAvailable 100%, and a surge that the owner allows": {
			allInPercent(), []func(*appsv1.Deployment){surgeAlways}},
		"with a budget that allows an eviction": {
			budget: &policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1))}},
		"without a budget": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _ := cluster.NewPool(t, 2, true)
			namespace := cluster.NewNamespace(t)
			node := single(t, namespace, "web", pool, test.budget, test.modify...)
			available := watchAvailability(t, namespace)
			began := time.Now()
			nm := drainNodes(t, pool, node)
			drained(t, nm.Name)
			t.Logf("drained after %s", time.Since(began).Round(time.Millisecond))
			asBefore(t, namespace, "web", 1)
			wasAvailable(t, available, "web", 1)
		})
	}
}

// TestBudgetThatNeverAllowsAnEvictionIsANo drains pods whose budgets never allow an eviction.
// Without an annotation by the owner, Haulout must not scale up, and the budget must block the
// Evacuation.
func TestBudgetThatNeverAllowsAnEvictionIsANo(t *testing.T) {
	t.Parallel()
	for name, budget := range map[string]*policyv1.PodDisruptionBudgetSpec{
		"maxUnavailable 0": nothingMissing(), "minAvailable 100%": allInPercent(),
		"minAvailable above the replicas": minAvailable(3),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _ := cluster.NewPool(t, 2, true)
			namespace := cluster.NewNamespace(t)
			node := single(t, namespace, "web", pool, budget)
			pod := livePods(t, namespace)[0]
			nm := drainNodes(t, pool, node)
			e := evacuationFor(t, &pod, "is created", isOurs)
			blocked(t, e, v1alpha1.ReasonPodDisruptionBudget, "PodDisruptionBudget web")
			progressing(t, nm.Name, metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
			d, err := cluster.As(t).Kube.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil || *d.Spec.Replicas != 1 || d.Generation != 1 {
				t.Fatalf("the Deployment has %d replicas in generation %d (%v), want 1 in 1",
					*d.Spec.Replicas, d.Generation, err)
			}
			merge(t, namespace, "pdb", "web", `{"spec":{"maxUnavailable":1,"minAvailable":null}}`)
			drained(t, nm.Name)
		})
	}
}

// autoscale creates an autoscaler of a Deployment, and waits until it is able to scale and has
// reported that it has no metrics.
func autoscale(t *testing.T, namespace, name string, low, high int32) {
	t.Helper()
	autoscalers := cluster.As(t).Kube.AutoscalingV2().HorizontalPodAutoscalers(namespace)
	must.Get(autoscalers.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1", Kind: "Deployment", Name: name,
			},
			MinReplicas: &low, MaxReplicas: high,
			Metrics: []autoscalingv2.MetricSpec{
				{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
					Name: corev1.ResourceCPU,
					Target: autoscalingv2.MetricTarget{
						Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](80),
					},
				}},
			},
		},
	}, metav1.CreateOptions{}))(t)
	framework.Eventually(t, "the autoscaler can scale", func(ctx context.Context) (bool, error) {
		a, err := autoscalers.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		able, inactive := false, false
		for _, c := range a.Status.Conditions {
			able = able || c.Type == autoscalingv2.AbleToScale && c.Status == corev1.ConditionTrue
			inactive = inactive || c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse
		}
		return able && inactive && a.Status.CurrentReplicas == low, nil
	})
}

// TestAutoscalerWithoutMetricsIsNotUsed drains the pod of an autoscaler without metrics, which
// would not scale down again after a surge: Haulout must not scale it up. The pod is evicted after
// the autoscaler is deleted.
func TestAutoscalerWithoutMetricsIsNotUsed(t *testing.T) {
	t.Parallel()
	pool, _ := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	node := single(t, namespace, "web", pool, minAvailable(1))
	autoscale(t, namespace, "web", 1, 3)
	autoscalers := cluster.As(t).Kube.AutoscalingV2().HorizontalPodAutoscalers(namespace)
	available := watchAvailability(t, namespace)
	pod := livePods(t, namespace)[0]
	nm := drainNodes(t, pool, node)
	blocked(t, evacuationFor(t, &pod, "is created", isOurs), v1alpha1.ReasonPodDisruptionBudget, "PodDisruptionBudget web")
	a, err := autoscalers.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *a.Spec.MinReplicas != 1 || a.Status.CurrentReplicas != 1 {
		t.Fatalf("the autoscaler is %+v (%v)", a, err)
	}
	must.Do(t, autoscalers.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	drained(t, nm.Name)
	asBefore(t, namespace, "web", 1)
	wasAvailable(t, available, "web", 1)
}

// TestManySingleReplicasOnSeveralNodes starts all pods on five nodes and drains these together. It
// creates the spare nodes later.
func TestManySingleReplicasOnSeveralNodes(t *testing.T) {
	t.Parallel()
	apps := 10
	if framework.Full(t) {
		apps = 50
	}
	pool, nodes := cluster.NewPool(t, 5, true)
	namespace := cluster.NewNamespace(t)
	for i := range apps {
		single(t, namespace, fmt.Sprintf("web-%02d", i), pool, minAvailable(1))
	}
	available := watchAvailability(t, namespace)
	cluster.NewNodes(t, pool, true, pool+"-spare-0", pool+"-spare-1", pool+"-spare-2")
	began := time.Now()
	nm := drainNodes(t, pool, nodes...)
	drained(t, nm.Name)
	t.Logf("%d apps have left %d nodes after %s", apps, len(nodes), time.Since(began).Round(time.Millisecond))
	for i := range apps {
		name := fmt.Sprintf("web-%02d", i)
		asBefore(t, namespace, name, 1)
		wasAvailable(t, available, name, 1)
	}
}

// surgeReported reports whether the evacuator of Deployments is active and has reported progress,
// but has not completed.
func surgeReported(e *v1alpha1.Evacuation) bool {
	s := &e.Status
	return s.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDeployment && s.ActiveEvacuatorSince != nil &&
		s.EvacuationProgressTimestamp != nil && !s.ActiveEvacuatorCompleted
}

// TestStuckSurge drains pods whose replacements cannot start. Their Evacuations must be blocked,
// and after the drain is cancelled, nothing may be left of the surge.
func TestStuckSurge(t *testing.T) {
	t.Parallel()
	// stays cancels the drain, and checks that the pod was not evicted and the Deployment is as
	// before.
	stays := func(t *testing.T, namespace string, nm *v1alpha1.NodeMaintenance, e *v1alpha1.Evacuation) {
		t.Helper()
		must.Do(t, cluster.As(t).Maintenances().Delete(t.Context(), nm.Name, metav1.DeleteOptions{}))
		asBefore(t, namespace, "web", 1)
		pod, err := cluster.As(t).Pods(namespace).Get(t.Context(), e.Spec.PodRef.Name, metav1.GetOptions{})
		if err != nil || pod.UID != e.Spec.PodRef.UID || pod.DeletionTimestamp != nil {
			t.Errorf("the drained pod is %v (%v)", pod, err)
		}
	}
	// With this short timeout, the server reports a stuck surge soon.
	soon := annotated(v1alpha1.AnnotationSurgeTimeout, "5s")
	t.Run("without room", func(t *testing.T) {
		t.Parallel()
		pool, nodes := cluster.NewPool(t, 1, true)
		namespace := cluster.NewNamespace(t)
		single(t, namespace, "web", pool, minAvailable(1), soon)
		pod := livePods(t, namespace)[0]
		nm := drainNodes(t, pool, nodes...)
		e := evacuationFor(t, &pod, "has a report of the surge", surgeReported)
		blocked(t, e, v1alpha1.ReasonSurgePending)
		progressing(t, nm.Name, metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
		stays(t, namespace, nm, e)
	})
	t.Run("with a quota", func(t *testing.T) {
		t.Parallel()
		pool, _ := cluster.NewPool(t, 2, true)
		namespace := cluster.NewNamespace(t)
		node := single(t, namespace, "web", pool, minAvailable(1), soon)
		pod := livePods(t, namespace)[0]
		quotas := cluster.As(t).Kube.CoreV1().ResourceQuotas(namespace)
		must.Get(quotas.Create(t.Context(), &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "small"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
		}, metav1.CreateOptions{}))(t)
		framework.Eventually(t, "the quota counts the pod", func(ctx context.Context) (bool, error) {
			q, err := quotas.Get(ctx, "small", metav1.GetOptions{})
			return err == nil && q.Status.Used.Pods().Value() == 1, err
		})
		nm := drainNodes(t, pool, node)
		e := evacuationFor(t, &pod, "has a report of the surge", surgeReported)
		blocked(t, e, v1alpha1.ReasonSurgePending)
		if pods := livePods(t, namespace); len(pods) != 1 {
			t.Errorf("got %d pods, want one because of the quota", len(pods))
		}
		stays(t, namespace, nm, e)
	})
}

// TestSurgeAgainstGitOps resets the number of replicas as a GitOps tool does. Haulout must stop the
// surge, and the app must always have the replicas of its manifest.
func TestSurgeAgainstGitOps(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	single(t, namespace, "web", pool, minAvailable(1))
	pod := livePods(t, namespace)[0]
	available := watchAvailability(t, namespace)
	nm := drainNodes(t, pool, nodes...)
	const resets = 2
	for range resets {
		scaledTo(t, namespace, "web", 2)
		merge(t, namespace, "deployment", "web", `{"spec":{"replicas":1}}`)
	}
	e := evacuationFor(t, &pod, "has the eviction as its active evacuator", func(e *v1alpha1.Evacuation) bool {
		return e.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction
	})
	if e.Status.ActiveEvacuatorSince == nil || e.Status.EvacuationProgressTimestamp != nil {
		t.Errorf("the status is %+v, want the eviction active, without a report", e.Status)
	}
	blocked(t, e, v1alpha1.ReasonPodDisruptionBudget)
	eventsReach(t, namespace, "web", map[string]int{
		"SurgeStarted": resets, "SurgeDissolved": resets, "SurgeDeclined": 1,
	})
	// Before the drain is cancelled, the pod has the lowest deletion cost. It must be restored.
	must.Do(t, cluster.As(t).Maintenances().Delete(t.Context(), nm.Name, metav1.DeleteOptions{}))
	asBefore(t, namespace, "web", 1)
	wasAvailable(t, available, "web", 1)
}

// TestFailedPodOfAnEarlierRollout drains a Deployment with a failed pod that a kubelet has evicted.
// Since the next rollout, the failed pod belongs to an older ReplicaSet.
func TestFailedPodOfAnEarlierRollout(t *testing.T) {
	t.Parallel()
	pool, _ := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	single(t, namespace, "web", pool, minAvailable(1))
	merge(t, namespace, "pod", livePods(t, namespace)[0].Name, `{"status":{"phase":"Failed","reason":"Evicted"}}`, "--subresource=status")
	merge(t, namespace, "deployment", "web", `{"spec":{"template":{"metadata":{"annotations":{"example.com/rollout":"2"}}}}}`)
	framework.Until(t, "the rollout is complete",
		cluster.As(t).Kube.AppsV1().Deployments(namespace), "web", func(d *appsv1.Deployment) bool {
			return d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == 1 &&
				d.Status.Replicas == 1 && d.Status.AvailableReplicas == 1
		})
	node := ""
	for _, pod := range livePods(t, namespace) {
		if pod.Status.Phase == corev1.PodRunning {
			node = pod.Spec.NodeName
		}
	}
	available := watchAvailability(t, namespace)
	nm := drainNodes(t, pool, node)
	drained(t, nm.Name)
	wasAvailable(t, available, "web", 1)
}

// TestDeploymentThatToleratesTheCordon drains the only node of a Deployment. The pods tolerate the
// cordon and are recreated on the node.
func TestDeploymentThatToleratesTheCordon(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	single(t, namespace, "web", pool, nil, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	})
	pod := livePods(t, namespace)[0]
	available := watchAvailability(t, namespace)
	nm := drainNodes(t, pool, nodes...)
	e := evacuationFor(t, &pod, "has a report of the surge", surgeReported)
	blocked(t, e, v1alpha1.ReasonRecreated, "tolerates the cordon taint node.kubernetes.io/unschedulable")
	progressing(t, nm.Name, metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
	if pods := livePods(t, namespace); len(pods) > 2 {
		t.Errorf("%d pods were started, want 2 at most", len(pods))
	}
	cluster.NewNodes(t, pool, true, pool+"-spare")
	merge(t, namespace, "deployment", "web",
		`{"spec":{"template":{"spec":{"tolerations":[{"key":"`+framework.Pool+`","operator":"Exists"}]}}}}`)
	drained(t, nm.Name)
	asBefore(t, namespace, "web", 1)
	wasAvailable(t, available, "web", 1)
}

// TestNoPodCanBeCreated drains the only pod of an app while Pod Security refuses new pods in its
// namespace.
func TestNoPodCanBeCreated(t *testing.T) {
	t.Parallel()
	pool, _ := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	node := single(t, namespace, "web", pool, nil, annotated(v1alpha1.AnnotationSurgeTimeout, "10s"))
	pod := livePods(t, namespace)[0]
	available := watchAvailability(t, namespace)
	merge(t, "", "namespace", namespace, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	nm := drainNodes(t, pool, node)
	blocked(t, evacuationFor(t, &pod, "is created", isOurs), v1alpha1.ReasonReplicaFailure, "PodSecurity")
	progressing(t, nm.Name, metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
	merge(t, "", "namespace", namespace, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null}}}`)
	drained(t, nm.Name)
	asBefore(t, namespace, "web", 1)
	wasAvailable(t, available, "web", 1)
}
