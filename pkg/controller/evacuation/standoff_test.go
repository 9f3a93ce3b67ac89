// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: name}
}

func TestExplainStandoff(t *testing.T) {
	down := func(pod, node string) downPod { return downPod{pod: key(pod), node: node, maintenance: "beta"} }
	for name, tt := range map[string]struct {
		healthy, desired int32
		down             []downPod
		want             string
	}{
		"no pod is down": {healthy: 1, desired: 1},
		"a pod is down on a cordoned node": {
			healthy: 1, desired: 1, down: []downPod{down("web-2", "b")}, want: "web-2 on node b (NodeMaintenance beta).",
		},
		"the budget would refuse without pods that are down": {healthy: 1, desired: 3, down: []downPod{down("web-2", "b")}},
		"the message names at most three pods": {
			healthy: 1, desired: 1,
			down: []downPod{down("web-2", "b"), down("web-3", "b"), down("web-4", "c"), down("web-5", "c"), down("web-6", "c")},
			want: "web-2 on node b (NodeMaintenance beta), web-3 on node b (NodeMaintenance beta), web-4 on node c (NodeMaintenance beta), and 2 more.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			budget := budgetOf("web")
			budget.Status.CurrentHealthy, budget.Status.DesiredHealthy = tt.healthy, tt.desired
			got := explainStandoff(budget, tt.down)
			if got == nil {
				is.True(t, tt.want == "", "got no blocker, want %q", tt.want)
				return
			}
			is.True(t, tt.want != "" && got.Reason == v1alpha1.ReasonBudgetPodsCordoned && strings.Contains(got.Message, tt.want), "got blocker %+v, want %q in it", got, tt.want)
		})
	}
}

// labelled sets the label app of a pod.
func labelled(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"app": app} }
}

func podOn(name, app, node string, ready corev1.ConditionStatus) *corev1.Pod {
	return newPod(labelled(app), func(p *corev1.Pod) {
		p.Name, p.UID, p.Spec.NodeName = name, types.UID("uid-"+name), node
		p.Status.Conditions[0].Status = ready
	})
}

func budgetOf(app string) *policyv1.PodDisruptionBudget {
	b := newBudget("1", 0)
	b.Name, b.UID, b.Spec.Selector = app, types.UID("uid-"+app), &metav1.LabelSelector{
		MatchLabels: map[string]string{"app": app},
	}
	b.Status.CurrentHealthy, b.Status.DesiredHealthy, b.Status.ExpectedPods = 1, 1, 2
	return b
}

func cordoned(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.NodeSpec{Unschedulable: true},
	}
}

// TestStandoffIsReported covers a pod that waits for its budget, whose other pod is down on another
// node.
func TestStandoffIsReported(t *testing.T) {
	here, there := cordoned(testNode), cordoned("node-8")
	for name, tt := range map[string]struct {
		there *corev1.Node
		want  string
	}{
		"the other pod is down on a node that is not cordoned": {
			there: &corev1.Node{ObjectMeta: there.ObjectMeta}, want: "UnhealthyPodsHoldBudget",
		},
		"the other pod is down on a cordoned node": {there: there, want: "BudgetPodsCordoned"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, 0, newEvacuation(), newPod(labelled("web")), here, tt.there,
				podOn("web-2", "web", "node-8", corev1.ConditionFalse),
				podOn("api-1", "api", "node-8", corev1.ConditionTrue),
				podOn("api-2", "api", testNode, corev1.ConditionFalse), budgetOf("web"), budgetOf("api"))
			w.host.answer(refuse)
			must.Do(w, w.api.client.Tracker().Add(asking("alpha", here)))
			must.Do(w, w.api.client.Tracker().Add(asking("beta", there)))
			w.until("the condition has the reason "+tt.want, time.Second,
				hasReason(v1alpha1.ConditionBlocked, tt.want))
			before := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionBlocked).Message
			version := w.get().ResourceVersion
			end := w.clock.Now().Add(5 * time.Minute)
			w.until("five minutes have passed", 5*time.Second, func(*v1alpha1.Evacuation) bool {
				return w.clock.Now().After(end)
			})
			e := w.get()
			got := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
			if got.Message != before || got.Reason != tt.want {
				t.Errorf("got condition %+v after five minutes, want message %q", got, before)
			}
			if e.Status.FailedEvictionCounter == 0 && e.ResourceVersion != version {
				t.Errorf("got resourceVersion %s, want no write since %s", e.ResourceVersion, version)
			}
		})
	}
}

// holdersOf finds the maintenances whose status has a node.
func holdersOf(maintenances ...*v1alpha1.NodeMaintenance) holds.Index {
	return holds.Index{
		On: func(node string) (on []string) {
			for _, nm := range maintenances {
				if slices.ContainsFunc(nm.Status.NodeStatuses, func(n v1alpha1.NodeMaintenanceNodeStatus) bool { return n.NodeRef.Name == node }) {
					on = append(on, nm.Name)
				}
			}
			return on
		},
		Get: func(name string) (*v1alpha1.NodeMaintenance, error) {
			return maintenances[slices.IndexFunc(maintenances, func(nm *v1alpha1.NodeMaintenance) bool { return nm.Name == name })], nil
		},
	}
}

// manyBudgets returns a controller with these objects in its caches: a namespace with 5,000 budgets
// and, on three cordoned nodes, 30 pods of budget app-0 that never become ready.
func manyBudgets(t *testing.T) (*Controller, cache.Indexer) {
	t.Helper()
	client := fake.NewClientset()
	c, _ := newIdleController(t, client, newEvacuation())
	host := informers.NewSharedInformerFactory(client, 0)
	budgets := host.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer()
	pods := host.Core().V1().Pods().Informer().GetIndexer()
	nodes := host.Core().V1().Nodes()
	for i := range 5000 {
		b := budgetOf(fmt.Sprintf("app-%d", i))
		b.Status.ExpectedPods = 40
		must.Do(t, budgets.Add(b))
	}
	beta := newMaintenance()
	for n := range 3 {
		node := cordoned(fmt.Sprintf("node-%d", n))
		must.Do(t, nodes.Informer().GetIndexer().Add(node))
		beta.Status.NodeStatuses = append(beta.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: node.Name, UID: node.UID},
		})
		for p := range 10 {
			must.Do(t, pods.Add(podOn(fmt.Sprintf("down-%d-%d", n, p), "app-0", node.Name, corev1.ConditionFalse)))
		}
	}
	c.budgetLister, c.podLister, c.nodeLister = policylisters.NewPodDisruptionBudgetLister(budgets), podcache.PodLister(pods), nodes.Lister()
	c.holders = holdersOf(beta)
	return c, pods
}

// TestStandoffIsCheapAmongManyBudgets: the time to find out why a budget allows no disruption must
// not depend on the number of budgets in the namespace.
func TestStandoffIsCheapAmongManyBudgets(t *testing.T) {
	c, _ := manyBudgets(t)
	waiting := podOn("web-1", "app-0", "node-0", corev1.ConditionTrue)
	state := eviction.State{
		Known: true, Budget: key("app-0"), Blocker: &eviction.Blocker{Reason: v1alpha1.ReasonPodDisruptionBudget},
	}
	now := start
	if b := c.standoff(t.Context(), waiting, state, now); b == nil || b.Reason != v1alpha1.ReasonBudgetPodsCordoned {
		t.Fatalf("got blocker %+v, want %s", b, v1alpha1.ReasonBudgetPodsCordoned)
	}
	allocations := testing.AllocsPerRun(10, func() {
		now = now.Add(2 * factsFresh)
		c.standoff(t.Context(), waiting, state, now)
	})
	is.True(t, allocations <= 5000, "got %.0f allocations, want fewer than the namespace has budgets", allocations)
}

// TestPodsThatCountNowhereInAStandoff: finished and terminating pods, and the pod that waits for
// the budget, are not the reason why the budget allows no disruption.
func TestPodsThatCountNowhereInAStandoff(t *testing.T) {
	for name, ends := range map[string]func(*corev1.Pod){
		"terminating": terminatingUntil(time.Hour), "succeeded": inPhase(corev1.PodSucceeded), "failed": inPhase(corev1.PodFailed),
	} {
		t.Run(name, func(t *testing.T) {
			c, pods := manyBudgets(t)
			ended := podOn("down-0-0", "app-0", "node-0", corev1.ConditionFalse)
			ends(ended)
			must.Do(t, pods.Update(ended))
			down, _ := c.downOf(budgetOf("app-0"), start)
			is.Equal(t, len(down), 29, "pods that are down")
		})
	}
}

// TestPodThatWaitsDoesNotCloseItsBudget: only the waiting pod itself is down.
func TestPodThatWaitsDoesNotCloseItsBudget(t *testing.T) {
	c, pods := manyBudgets(t)
	waiting := podOn("alone", "app-1", "node-0", corev1.ConditionFalse)
	must.Do(t, pods.Add(waiting))
	state := eviction.State{Known: true, Budget: key("app-1"), Blocker: &eviction.Blocker{Reason: v1alpha1.ReasonPodDisruptionBudget}}
	if b := c.standoff(t.Context(), waiting, state, start); b != nil {
		t.Errorf("got blocker %+v, want none", b)
	}
}
