// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// queued is a queue of evictions that knows the budget of each Evacuation.
type queued struct {
	evictions
	budgets map[types.NamespacedName]types.NamespacedName
}

func (q queued) State(evacuation types.NamespacedName) eviction.State {
	return eviction.State{Known: true, Budget: q.budgets[evacuation]}
}

type listOf struct {
	maintenancelisters.NodeMaintenanceLister
	items []*v1alpha1.NodeMaintenance
}

func (l listOf) List(labels.Selector) ([]*v1alpha1.NodeMaintenance, error) {
	return l.items, nil
}

// manyBudgets returns a controller in whose caches a namespace has 5,000 budgets and, on three
// cordoned nodes, 30 pods of budget app-0 that never get ready and 30 pods that each wait for
// another budget.
func manyBudgets(t *testing.T) (*Controller, cache.Indexer) {
	t.Helper()
	client := fake.NewClientset()
	c, _ := newIdleController(t, client, newEvacuation())
	host := informers.NewSharedInformerFactory(client, 0)
	budgets := host.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer()
	pods := host.Core().V1().Pods().Informer().GetIndexer()
	nodes := host.Core().V1().Nodes()
	add := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5000 {
		b := budgetOf(fmt.Sprintf("app-%d", i))
		b.Status.ExpectedPods = 40
		add(budgets.Add(b))
	}
	known := queued{budgets: map[types.NamespacedName]types.NamespacedName{}}
	beta := newMaintenance()
	for n := range 3 {
		node := cordoned(fmt.Sprintf("node-%d", n))
		add(nodes.Informer().GetIndexer().Add(node))
		beta.Status.NodeStatuses = append(beta.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: node.Name, UID: node.UID},
		})
		for p := range 10 {
			add(pods.Add(podOn(fmt.Sprintf("down-%d-%d", n, p), "app-0", node.Name, corev1.ConditionFalse)))
			app := fmt.Sprintf("app-%d", 1+10*n+p)
			waits := podOn(fmt.Sprintf("waits-%d-%d", n, p), app, node.Name, corev1.ConditionTrue)
			add(pods.Add(waits))
			e := newEvacuation(withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget, 0))
			e.Name, e.UID, e.Spec.NodeName = protocol.CanonicalName(waits.Name, waits.UID), waits.UID, node.Name
			e.Spec.PodRef = v1alpha1.PodReference{Name: waits.Name, UID: waits.UID}
			add(c.evacuationIndexer.Add(e))
			known.budgets[keyOf(e)] = key(app)
		}
	}
	c.budgetLister, c.podLister, c.nodeLister = policylisters.NewPodDisruptionBudgetLister(budgets), podcache.PodLister(pods), nodes.Lister()
	c.maintenanceLister, c.evictions = listOf{c.maintenanceLister, []*v1alpha1.NodeMaintenance{beta}}, known
	return c, pods
}

// TestStandoffIsCheapAmongManyBudgets: why the budget of one pod is closed must not cost time for
// each budget of the namespace.
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

// TestPodsThatCountNowhereInAStandoff: a pod that has finished or is terminating neither waits for
// a budget nor keeps one closed.
func TestPodsThatCountNowhereInAStandoff(t *testing.T) {
	for name, ends := range map[string]func(*corev1.Pod){
		"terminating": terminatingUntil(time.Hour), "succeeded": inPhase(corev1.PodSucceeded), "failed": inPhase(corev1.PodFailed),
	} {
		t.Run(name, func(t *testing.T) {
			c, pods := manyBudgets(t)
			for _, ended := range []*corev1.Pod{
				podOn("down-0-0", "app-0", "node-0", corev1.ConditionFalse), podOn("waits-0-0", "app-1", "node-0", corev1.ConditionTrue),
			} {
				ends(ended)
				must.Do(t, pods.Update(ended))
			}
			facts := c.factsOf(budgetOf("app-0"), start)
			if got := len(facts.down); got != 29 {
				t.Errorf("got %d pods that are down, want the 29 others", got)
			}
			if got := len(c.rivals(facts, start)); got != 29 {
				t.Errorf("got %d pods that wait on the nodes of the pods that are down, want the 29 others", got)
			}
		})
	}
}
