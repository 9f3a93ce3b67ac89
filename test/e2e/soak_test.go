// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// soakRounds and fullSoakRounds are the numbers of drains of a soak test in its two sizes.
const soakRounds, fullSoakRounds = 6, 200

// grounds are the objects of a soak test. A user has cordoned one node, and has added the drain
// taint to another one.
type grounds struct {
	namespace       string
	nodes           []string
	cordoned, taint string
}

// TestNothingDiffersAfterManyDrains repeats drains that it completes or deletes at random moments,
// and kills the server at random. After each drain, the cluster must be as before: the replicas,
// strategies and annotations of Deployments and autoscalers, the annotations of pods, the taints
// and cordons of nodes. The pods without other replicas, with and without a budget, must always be
// available.
func TestNothingDiffersAfterManyDrains(t *testing.T) {
	random, rounds := framework.Random(t), soakRounds
	if framework.Full(t) {
		rounds = fullSoakRounds
	}
	pool, nodes := cluster.NewPool(t, 5, true)
	g := &grounds{namespace: cluster.NewNamespace(t), nodes: nodes, cordoned: nodes[3], taint: nodes[2]}
	g.start(t, pool)
	available := watchAvailability(t, g.namespace)
	before := g.look(t)
	maintenances := cluster.As(t).Maintenances()
	for round := range rounds {
		chosen := g.choose(random)
		nm := must.Get(maintenances.Create(
			t.Context(),
			framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, chosen...)
			}),
			metav1.CreateOptions{},
		))(t)
		moments := []string{
			"immediately", "when pods have Evacuations", "when pods have left",
			"when DaemonSet pods are drain targets",
		}
		moment, kill, complete := moments[random.IntN(len(moments))], random.IntN(3) == 0, random.IntN(2) == 0
		t.Logf("round %d: cancel %s of %v %s; kill the server: %v, complete it first: %v",
			round, nm.Name, chosen, moment, kill, complete)
		g.waitUntil(t, nm.Name, moment)
		if kill {
			cluster.KillServer(t)
			must.Do(t, cluster.Up())
		}
		if complete {
			stage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
		}
		cluster.MustKubectl(t, "", "delete", "nodemaintenance", nm.Name, "--timeout=90s")
		g.settle(t)
		framework.Eventually(t, "the cluster is as before", func(context.Context) (bool, error) {
			if diff := cmp.Diff(before, g.look(t)); diff != "" {
				return false, fmt.Errorf("(-before +now):\n%s", diff)
			}
			return true, nil
		})
		// Reset the replicas of the app: an autoscaler without metrics never scales down, and at
		// its limit it would prevent the next surge.
		cluster.MustKubectl(t, "", "scale", "deployment", "scaled", "-n", g.namespace, "--replicas=2")
		g.settle(t)
	}
	wasAvailable(t, available, "single", 1)
	wasAvailable(t, available, "none", 1)
}

// choose returns one or two nodes to drain. It excludes one of the schedulable nodes, because a
// surge for which no node has room waits for minutes, which TestStuckSurge tests. It excludes a
// random node, because otherwise all pods would move to a node that is never drained.
func (g *grounds) choose(random *rand.Rand) []string {
	spared := []int{0, 1, 4}[random.IntN(3)]
	nodes := slices.Delete(slices.Clone(g.nodes), spared, spared+1)
	random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return nodes[:1+random.IntN(2)]
}

// start creates the workloads: an app whose pods can move, an app with its own deletion cost and a
// budget that allows no disruption, two apps with a single replica, with and without a budget, an
// app with an autoscaler, and a DaemonSet.
func (g *grounds) start(t *testing.T, pool string) {
	t.Helper()
	daemonSet(t, g.namespace, pool, "logs", len(g.nodes))
	cluster.Deployment(t, g.namespace, "web", pool, 4, framework.WithSurge)
	cluster.Budget(t, g.namespace, "web", 1)
	cluster.Deployment(t, g.namespace, "stuck", pool, 4, func(d *appsv1.Deployment) {
		d.Spec.Template.Annotations = map[string]string{corev1.PodDeletionCost: "5"}
	})
	cluster.Budget(t, g.namespace, "stuck", 0)
	single(t, g.namespace, "single", pool, minAvailable(1))
	single(t, g.namespace, "none", pool, nil)
	cluster.Deployment(t, g.namespace, "scaled", pool, 2, framework.WithSurge)
	must.Get(cluster.As(t).Kube.AutoscalingV2().HorizontalPodAutoscalers(g.namespace).Create(
		t.Context(),
		&autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: "scaled"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
					APIVersion: "apps/v1", Kind: "Deployment", Name: "scaled",
				},
				MinReplicas: ptr.To[int32](2), MaxReplicas: 4,
			},
		},
		metav1.CreateOptions{},
	))(t)
	cluster.MustKubectl(t, "", "cordon", g.cordoned)
	cluster.MustKubectl(t, "", "taint", "node", g.taint, v1alpha1.TaintDrain+":NoSchedule")
}

// waitUntil waits until a drain reaches the given moment, or until its end if that is earlier. If a
// pod can never be evicted, the drain counts as ended when all pods with an Evacuation have left or
// are blocked.
func (g *grounds) waitUntil(t *testing.T, maintenance, moment string) {
	t.Helper()
	framework.Eventually(t, moment, func(ctx context.Context) (bool, error) {
		nm, err := cluster.As(t).Maintenances().Get(ctx, maintenance, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		list, err := cluster.As(t).Evacuations(g.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		asked, left, blocked := len(list.Items), 0, 0
		for i := range list.Items {
			conditions := list.Items[i].Status.Conditions
			if conditionIs(conditions, v1alpha1.ConditionComplete, metav1.ConditionTrue, "") {
				left++
			}
			if conditionIs(conditions, v1alpha1.ConditionBlocked, metav1.ConditionTrue, "") {
				blocked++
			}
		}
		ended := conditionIs(nm.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, "") ||
			blocked > 0 && blocked+left == asked
		switch moment {
		case "when pods have Evacuations":
			return ended || asked > 0, nil
		case "when pods have left":
			return ended || left > 0, nil
		case "when DaemonSet pods are drain targets":
			return ended ||
				slices.ContainsFunc(nm.Status.NodeStatuses, func(s v1alpha1.NodeMaintenanceNodeStatus) bool {
					return slices.ContainsFunc(s.DrainTargets, func(e v1alpha1.DrainPlanEntry) bool {
						return e.PodType == v1alpha1.PodTypeDaemonSet
					})
				}), nil
		}
		return true, nil
	})
}

// settle waits until all Evacuations are complete, and all replicas are available.
func (g *grounds) settle(t *testing.T) {
	t.Helper()
	framework.Eventually(t, "all evacuations are complete, and all pods run", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Evacuations(g.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			if !conditionIs(list.Items[i].Status.Conditions, v1alpha1.ConditionComplete, metav1.ConditionTrue, "") {
				return false, fmt.Errorf("the evacuation of %s is not complete", list.Items[i].Spec.PodRef.Name)
			}
		}
		deployments, err := cluster.As(t).Kube.AppsV1().Deployments(g.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range deployments.Items {
			d := &deployments.Items[i]
			if d.Status.ObservedGeneration != d.Generation || d.Status.Replicas != *d.Spec.Replicas ||
				d.Status.AvailableReplicas != *d.Spec.Replicas {
				return false, fmt.Errorf("deployment %s has %d of %d replicas available",
					d.Name, d.Status.AvailableReplicas, *d.Spec.Replicas)
			}
		}
		return true, nil
	})
}

// look returns the state that must not change, by object.
func (g *grounds) look(t *testing.T) map[string]string {
	t.Helper()
	kube, seen := cluster.As(t).Kube, map[string]string{}
	deployments := must.Get(kube.AppsV1().Deployments(g.namespace).List(t.Context(), metav1.ListOptions{}))(t)
	for i := range deployments.Items {
		d := &deployments.Items[i]
		replicas := fmt.Sprint(*d.Spec.Replicas)
		if d.Name == "scaled" {
			// The autoscaler sets this number, and does not scale down without metrics. The test
			// compares the limits of the autoscaler instead.
			replicas = "its autoscaler's"
		}
		seen["deployment "+d.Name] = fmt.Sprint(replicas, " replicas, ", d.Spec.Paused, d.Spec.Strategy.String(), d.Annotations)
	}
	autoscalers := must.Get(kube.AutoscalingV2().HorizontalPodAutoscalers(g.namespace).List(t.Context(),
		metav1.ListOptions{}))(t)
	for i := range autoscalers.Items {
		a := &autoscalers.Items[i]
		seen["autoscaler "+a.Name] = fmt.Sprintf("%d to %d replicas, %v",
			*a.Spec.MinReplicas, a.Spec.MaxReplicas, a.Annotations)
	}
	pods, err := kube.CoreV1().Pods(g.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	for i := range pods.Items {
		// Pods are replaced, so compare the different annotations of each app's pods, not each pod.
		if p := &pods.Items[i]; p.DeletionTimestamp == nil {
			texts := strings.Split(seen["pods of "+p.Labels["app"]], "; ")
			texts = append(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), fmt.Sprint(p.Annotations))
			slices.Sort(texts)
			seen["pods of "+p.Labels["app"]] = strings.Join(slices.Compact(texts), "; ")
		}
	}
	for _, name := range g.nodes {
		node := theNode(t, name)
		// The taint of the user has the same key as Haulout's drain taint.
		if name == g.taint {
			node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
				return taint.Key == v1alpha1.TaintDrain
			})
		}
		var taints []string
		for _, taint := range theNode(t, name).Spec.Taints {
			taints = append(taints, taint.ToString())
		}
		slices.Sort(taints)
		seen["node "+name] = fmt.Sprintf("taints %v, annotations %v, left by maintenances %v",
			taints, slices.Sorted(maps.Keys(node.Annotations)), oracle.LeftOn(node, name == g.cordoned))
	}
	return seen
}
