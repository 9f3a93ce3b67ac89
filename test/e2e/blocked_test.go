// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// serverRole is the name of the server's ClusterRole.
const serverRole = "haulout-apiserver"

// evacuate creates an Evacuation with an instigator that is not a maintenance, and removes the
// instigator after the test.
func evacuate(t *testing.T, pod *corev1.Pod, modify ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	t.Helper()
	evacuations := cluster.As(t).Evacuations(pod.Namespace)
	e := must.Get(evacuations.Create(t.Context(), evacuationOf(pod, modify...), metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		// Ignore the error: the Evacuation may not exist any longer.
		_, _ = evacuations.Patch(context.Background(), e.Name, types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	})
	return e
}

// blocked waits until an Evacuation is blocked for a reason. The message must contain the words,
// which name the blocking object and the advice.
func blocked(t *testing.T, e *v1alpha1.Evacuation, reason string, words ...string) {
	t.Helper()
	var condition *metav1.Condition
	framework.Eventually(
		t, fmt.Sprintf("pod %s is blocked: %s", e.Spec.PodRef.Name, reason),
		func(ctx context.Context) (bool, error) {
			now, err := cluster.As(t).Evacuations(e.Namespace).Get(ctx, e.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			condition = meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionBlocked)
			if condition == nil || condition.Status != metav1.ConditionTrue || condition.Reason != reason {
				return false, fmt.Errorf("status is %+v", now.Status)
			}
			return true, nil
		},
	)
	if condition.LastTransitionTime.Before(&e.CreationTimestamp) {
		t.Errorf("Blocked is True since %s, before the Evacuation was created", condition.LastTransitionTime)
	}
	for _, word := range words {
		is.True(t, strings.Contains(condition.Message, word), "the message of %s does not contain %q: %s", reason, word, condition.Message)
	}
}

// notBlocked waits until an Evacuation is not blocked.
func notBlocked(t *testing.T, e *v1alpha1.Evacuation) {
	t.Helper()
	framework.Eventually(
		t, "pod "+e.Spec.PodRef.Name+" is not blocked",
		func(ctx context.Context) (bool, error) {
			now, err := cluster.As(t).Evacuations(e.Namespace).Get(ctx, e.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			return !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionBlocked), nil
		},
	)
}

// leaves waits until the pod of an Evacuation is gone, and checks that the Evacuation is not
// blocked.
func leaves(t *testing.T, e *v1alpha1.Evacuation) {
	t.Helper()
	framework.Eventually(t, "pod "+e.Spec.PodRef.Name+" has left", func(ctx context.Context) (bool, error) {
		now, err := cluster.As(t).Evacuations(e.Namespace).Get(ctx, e.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return conditionIs(now.Status.Conditions, v1alpha1.ConditionComplete, metav1.ConditionTrue,
			v1alpha1.ReasonPodDeleted) &&
			!meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionBlocked), nil
	})
}

// merge patches an object of the host cluster.
func merge(t *testing.T, namespace, resource, name, patch string, more ...string) {
	t.Helper()
	cluster.MustKubectl(
		t, "", append([]string{"patch", resource, name, "-n", namespace, "--type=merge", "-p", patch}, more...)...,
	)
}

// blockedCase tests one cause that blocks a pod, with its own node and namespace.
type blockedCase func(t *testing.T, pool, node, namespace string)

// TestBlocked tests the causes that block a pod. The condition must name the blocking object and
// the advice, and be False after the cause has ended.
func TestBlocked(t *testing.T) {
	t.Parallel() // the test mostly waits
	for name, try := range map[string]blockedCase{
		"by a budget at its limit":                        blockedByBudget,
		"by two budgets":                                  blockedByTwoBudgets,
		"by pods that crash":                              blockedByCrashingPods,
		"by a finalizer and by a failed kubelet":          blockedAfterItsGrace,
		"by an evacuator that has stopped":                blockedByEvacuator,
		"by a user who recreates the pod":                 blockedByReturn,
		"by a namespace that cannot have new Evacuations": blockedByNamespace,
		"by another drain that it blocks as well":         blockedByEachOther,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, nodes := cluster.NewPool(t, 1, true)
			try(t, pool, nodes[0], cluster.NewNamespace(t))
		})
	}
}

// TestBlockedByRights removes a permission of the server that other tests need, so it does not run
// in parallel.
func TestBlockedByRights(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 1, true)
	blockedByRights(t, pool, nodes[0], cluster.NewNamespace(t))
}

func blockedByRights(t *testing.T, pool, node, namespace string) {
	t.Helper()
	roles := cluster.As(t).Kube.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), serverRole, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	whole := slices.Clone(role.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "pods/eviction")
	})
	if role, err = roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	restored := false
	restore := func(ctx context.Context) {
		if restored {
			return
		}
		restored = true
		role.Rules = whole
		if _, err := roles.Update(ctx, role, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { restore(context.Background()) })
	pod := cluster.PodOn(t, namespace, "web", pool, node)
	framework.Eventually(t, "the server has lost the right", func(context.Context) (bool, error) {
		out, _, _ := cluster.Kubectl(t, "", "auth", "can-i", "create", "pods/eviction",
			"--as=system:serviceaccount:haulout-system:haulout-apiserver")
		return strings.TrimSpace(out) == "no", nil
	})
	e := evacuate(t, pod)
	blocked(t, e, v1alpha1.ReasonEvictionForbidden, "pods/eviction", "Grant the server the right")
	restore(t.Context())
	leaves(t, e)
}

func blockedByBudget(t *testing.T, pool, node, namespace string) {
	t.Helper()
	pod := cluster.PodOn(t, namespace, "web", pool, node)
	controlled(t, namespace, pool, "web", 1)
	cluster.Budget(t, namespace, "web", 0)
	e := evacuate(t, pod)
	blocked(t, e, v1alpha1.ReasonPodDisruptionBudget, "PodDisruptionBudget web", "never allows an eviction (maxUnavailable 0)")
	merge(t, namespace, "pdb", "web", `{"spec":{"maxUnavailable":1}}`)
	leaves(t, e)
}

func blockedByTwoBudgets(t *testing.T, pool, node, namespace string) {
	t.Helper()
	pod := cluster.PodOn(t, namespace, "web", pool, node, func(p *corev1.Pod) { p.Labels["tier"] = "front" })
	controlled(t, namespace, pool, "web", 1)
	cluster.Budget(t, namespace, "web", 1)
	cluster.MustKubectl(t, "", "create", "poddisruptionbudget", "front", "-n", namespace, "--selector=tier=front",
		"--min-available=0")
	e := evacuate(t, pod)
	blocked(t, e, v1alpha1.ReasonMultiplePodDisruptionBudgets, "front, web", "delete all but one")
	cluster.MustKubectl(t, "", "delete", "pdb", "front", "-n", namespace)
	leaves(t, e)
}

func blockedByCrashingPods(t *testing.T, pool, node, namespace string) {
	t.Helper()
	controlled(t, namespace, pool, "web", 3)
	cluster.Budget(t, namespace, "web", 1)
	pods := livePods(t, namespace)
	for _, pod := range pods[:2] {
		merge(t, namespace, "pod", pod.Name,
			`{"status":{"conditions":[{"type":"Ready","status":"False","reason":"ContainersNotReady"}]}}`,
			"--subresource=status")
	}
	framework.Eventually(t, "the disruption controller has counted the pods", func(ctx context.Context) (bool, error) {
		budget, err := cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "web",
			metav1.GetOptions{})
		return err == nil && budget.Status.CurrentHealthy == 1, err
	})
	sick, healthy := evacuate(t, &pods[0]), evacuate(t, &pods[2])
	for _, e := range []*v1alpha1.Evacuation{sick, healthy} {
		blocked(t, e, v1alpha1.ReasonUnhealthyPodsHoldBudget, "PodDisruptionBudget web", "2 of 3 pods", "AlwaysAllow")
	}
	merge(t, namespace, "pdb", "web", `{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`)
	leaves(t, sick)
	merge(t, namespace, "pod", pods[1].Name, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
		"--subresource=status")
	leaves(t, healthy)
}

// blockedAfterItsGrace tests two pods at the same time, because both must exceed their grace
// period: a pod with a finalizer, and a pod on a node without a kubelet. The test sets the node
// conditions and taints that the control plane would set after a minute.
func blockedAfterItsGrace(t *testing.T, pool, node, namespace string) {
	t.Helper()
	const name, hold = "web", "e2e.haulout.dev/hold"
	held := evacuate(t,
		cluster.PodOn(t, namespace, "held", pool, node, func(p *corev1.Pod) { p.Finalizers = []string{hold} }))
	pool, nodes := cluster.NewPool(t, 1, false)
	node = nodes[0]
	answers := func(status corev1.ConditionStatus) {
		merge(t, "", "node", node,
			fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q,"reason":"Test"}]}}`, status),
			"--subresource=status")
	}
	answers(corev1.ConditionTrue)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: framework.PodSpec(pool)}
	pod.Spec.NodeName = node
	pod = must.Get(cluster.As(t).Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	merge(t, namespace, "pod", name, `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`,
		"--subresource=status")
	answers(corev1.ConditionUnknown)
	e := evacuate(t, pod)
	blocked(t, held, v1alpha1.ReasonPodFinalizer, hold, "Check the controllers")
	merge(t, namespace, "pod", "held", `{"metadata":{"finalizers":null}}`)
	leaves(t, held)
	blocked(t, e, v1alpha1.ReasonNodeUnreachable, node, "Bring the node back", corev1.TaintNodeOutOfService)
	answers(corev1.ConditionTrue)
	blocked(t, e, v1alpha1.ReasonPodTerminating, node, "has not stopped")
	cluster.MustKubectl(t, "", "delete", "pod", name, "-n", namespace, "--force", "--grace-period=0")
	leaves(t, e)
}

func blockedByEvacuator(t *testing.T, pool, node, namespace string) {
	t.Helper()
	const class, next = "mover.example.com", "helper.example.com"
	pod := cluster.PodOn(t, namespace, "web", pool, node, func(p *corev1.Pod) {
		p.Annotations = map[string]string{
			v1alpha1.AnnotationEvacuatorPrefix + class: "20000", v1alpha1.AnnotationEvacuatorPrefix + next: "15000",
		}
	})
	e := evacuate(t, pod, func(e *v1alpha1.Evacuation) { e.Spec.ProgressDeadlineSeconds = ptr.To[int32](20) })
	blocked(t, e, v1alpha1.ReasonEvacuatorNotProgressing, "Evacuator "+class, next+" becomes active",
		"Check that the controller behind it runs")
	report := []byte(`{"status":{"message":"copying"}}`)
	must.Get(cluster.As(t).Evacuations(namespace).
		Patch(t.Context(), e.Name, types.MergePatchType, report, metav1.PatchOptions{}, "status"))(t)
	notBlocked(t, e)
}

func blockedByReturn(t *testing.T, pool, node, namespace string) {
	t.Helper()
	for range 3 {
		leaves(t, evacuate(t, cluster.PodOn(t, namespace, "installer", pool, node)))
	}
	e := evacuate(t, cluster.PodOn(t, namespace, "installer", pool, node))
	blocked(t, e, v1alpha1.ReasonRecreated, "Pod installer, which has no owner", node, "3 times",
		"Stop what recreates it there")
	leaves(t, e)
}

// blockedByNamespace tests a terminating namespace. No Evacuation can be created there, so the
// maintenance reports the cause.
func blockedByNamespace(t *testing.T, pool, node, namespace string) {
	t.Helper()
	const hold = "e2e.haulout.dev/hold"
	cluster.PodOn(t, namespace, "web", pool, node, func(p *corev1.Pod) { p.Finalizers = []string{hold} })
	cluster.MustKubectl(t, "", "delete", "namespace", namespace, "--wait=false")
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	framework.Eventually(
		t, "Drained names the namespace, and the message of the node names the pod",
		func(ctx context.Context) (bool, error) {
			now, err := cluster.As(t).Maintenances().Get(ctx, nm.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			condition := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionDrained)
			if condition == nil || condition.Status != metav1.ConditionFalse ||
				!strings.Contains(condition.Message, "namespaces that are being deleted: "+namespace) {
				return false, fmt.Errorf("status is %+v", now.Status)
			}
			want := "Evacuating; 1 pod of terminating namespaces: " + namespace + "/web"
			if of := now.Status.NodeStatuses[0]; of.DrainMessage != want || of.PodsPendingEvacuation != 1 {
				return false, fmt.Errorf("node status is %+v, want message %q", of, want)
			}
			return true, nil
		},
	)
	merge(t, namespace, "pod", "web", `{"metadata":{"finalizers":null}}`)
	drained(t, nm.Name)
}

// blockedByEachOther drains two nodes with two maintenances. Each node has the only ready pod of
// one of two budgets. The other pods of each budget are on the other node and cannot become ready
// there.
func blockedByEachOther(t *testing.T, pool, node, namespace string) {
	t.Helper()
	other := node + "-other"
	cluster.NewNodes(t, pool, true, other)
	budgets := cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace)
	inStage := func(node string) *v1alpha1.NodeMaintenance {
		return cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon, onNodes(node)))
	}
	app := func(name, here, there string) (ready *corev1.Pod) {
		of := func(p *corev1.Pod) { p.Labels = map[string]string{"app": name} }
		ready = cluster.PodOn(t, namespace, name, pool, here, of)
		for _, down := range []string{name + "-down-1", name + "-down-2"} {
			cluster.PodOn(t, namespace, down, pool, there, of)
			merge(t, namespace, "pod", down,
				`{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Test"}]}}`, "--subresource=status")
		}
		cluster.MustKubectl(t, "", "create", "pdb", name, "-n", namespace, "--selector=app="+name, "--min-available=2")
		framework.Until(t, "budget "+name+" has counted",
			budgets, name, func(budget *policyv1.PodDisruptionBudget) bool {
				return budget.Status.ExpectedPods == 3 && budget.Status.CurrentHealthy == 1
			})
		return ready
	}
	first, second := inStage(node), inStage(other)
	unschedulable(t, true, node, other)
	web, db := app("web", node, other), app("db", other, node)

	setStage(t, first.Name, v1alpha1.NodeMaintenanceStageDrain)
	ofWeb := evacuationFor(t, web, "is created", isOurs)
	blocked(t, ofWeb, v1alpha1.ReasonBudgetPodsCordoned, "web-down-1 on node "+other, second.Name)
	setStage(t, second.Name, v1alpha1.NodeMaintenanceStageDrain)
	ofDB := evacuationFor(t, db, "is created", isOurs)
	blocked(t, ofDB, v1alpha1.ReasonBudgetPodsCordoned, "db-down-1 on node "+node, first.Name)

	// Follow the advice of the message: complete one maintenance. Then the pods of the other budget
	// become ready on its node.
	setStage(t, first.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, node)
	for _, down := range []string{"db-down-1", "db-down-2"} {
		merge(t, namespace, "pod", down, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
			"--subresource=status")
	}
	leaves(t, ofDB)
}

// controlled creates pods with a controller, because budgets need one. The controller adopts a bare
// pod with the same label.
func controlled(t *testing.T, namespace, pool, app string, replicas int32) {
	t.Helper()
	labels := map[string]string{"app": app}
	sets := cluster.As(t).Kube.AppsV1().ReplicaSets(namespace)
	must.Get(sets.Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: framework.PodSpec(pool),
			},
		},
	}, metav1.CreateOptions{}))(t)
	framework.Until(t, "the pods of "+app+" are ready", sets, app, func(set *appsv1.ReplicaSet) bool {
		return set.Status.ReadyReplicas == replicas
	})
}

// livePods returns the pods of a namespace that are not being deleted.
func livePods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	list := must.Get(cluster.As(t).Pods(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}
