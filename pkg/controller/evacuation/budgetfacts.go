// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/pdb"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

const (
	// factsFresh is how long the pods of a namespace that are down are cached: many pods wait for
	// the same budget, and a namespace may have thousands of budgets.
	factsFresh = 10 * time.Second
	// maxRivalNodes and maxRivals limit the search for a drain that blocks this one.
	maxRivalNodes, maxRivals = 3, 10
)

// downPods is a short-lived cache of the pods that are down, by namespace.
type downPods struct {
	mu    sync.Mutex
	known map[string]knownDown
}

type knownDown struct {
	pods []labelledDown
	at   time.Time
}

// labelledDown is a pod that is down, with the labels that budgets select it by.
type labelledDown struct {
	downPod
	labels labels.Set
}

// get returns the pods of a namespace that are down, and calls read if the cached ones are too old.
func (p *downPods) get(namespace string, now time.Time, read func() []labelledDown) []labelledDown {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k, ok := p.known[namespace]; ok && now.Sub(k.at) < factsFresh {
		return k.pods
	}
	for other, k := range p.known {
		if now.Sub(k.at) >= factsFresh {
			delete(p.known, other)
		}
	}
	pods := read()
	p.known[namespace] = knownDown{pods, now}
	return pods
}

// standoff explains why the budget that blocks a pod allows no disruption, if maintenances are the
// cause. It reads caches, and a few pods without a node live. It returns nil if a read fails.
func (c *Controller) standoff(ctx context.Context, pod *corev1.Pod, state eviction.State, now time.Time) *eviction.Blocker {
	if state.Blocker == nil || !slices.Contains(refinable, state.Blocker.Reason) {
		return nil
	}
	budget := c.budget(state.Budget)
	if budget == nil {
		return nil
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	facts := c.factsOf(budget, now).without(key)
	if !facts.mayOpen() {
		return nil
	}
	facts.down = append(facts.down, c.pinned(ctx, facts.unscheduled)...)
	if !facts.wouldOpen() {
		return nil
	}
	return explainStandoff(key, c.holdersOf(pod.Spec.NodeName), facts, c.rivals(facts, now))
}

// budget returns the budget that the queue of evictions has found for a pod, or nil.
func (c *Controller) budget(name types.NamespacedName) *policyv1.PodDisruptionBudget {
	if name.Name == "" {
		return nil
	}
	budget, err := c.budgetLister.PodDisruptionBudgets(name.Namespace).Get(name.Name)
	if err != nil {
		return nil
	}
	return budget
}

func (c *Controller) factsOf(budget *policyv1.PodDisruptionBudget, now time.Time) budgetFacts {
	facts := budgetFacts{
		name: pdb.NameOf(budget), healthy: budget.Status.CurrentHealthy, desired: budget.Status.DesiredHealthy,
	}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return facts
	}
	for _, pod := range c.down.get(budget.Namespace, now, func() []labelledDown { return c.readDown(budget.Namespace) }) {
		switch {
		case !selector.Matches(pod.labels):
		case pod.node == "":
			facts.unscheduled = append(facts.unscheduled, pod.pod)
		default:
			facts.down = append(facts.down, pod.downPod)
		}
	}
	return facts
}

// readDown returns the pods of a namespace that are not ready and are on, or nominated for, a
// cordoned node that maintenances hold, and without a node those that the scheduler has found none
// for. They are sorted by name. Finished and terminating pods are not among them: no budget expects
// them to get ready.
func (c *Controller) readDown(namespace string) []labelledDown {
	pods, err := c.podLister.Pods(namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	var down []labelledDown
	holders := map[string][]string{}
	for _, pod := range pods {
		node := podcache.NodeOf(pod)
		if isUnschedulable(pod) && pod.DeletionTimestamp == nil {
			key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			down = append(down, labelledDown{downPod{pod: key}, pod.Labels})
			continue
		}
		if node == "" || pdb.IsReady(pod) || !drainplan.IsLive(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		if _, known := holders[node]; !known {
			holders[node] = c.holdersOf(node)
		}
		if len(holders[node]) > 0 {
			key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			down = append(down, labelledDown{downPod{pod: key, node: node, holders: holders[node]}, pod.Labels})
		}
	}
	slices.SortFunc(down, func(a, b labelledDown) int { return strings.Compare(a.pod.Name, b.pod.Name) })
	return down
}

// holdersOf returns the names of the maintenances that hold a node, in order; none if the node is
// not cordoned.
func (c *Controller) holdersOf(nodeName string) []string {
	node, err := c.nodeLister.Get(nodeName)
	if err != nil || !node.Spec.Unschedulable {
		return nil
	}
	maintenances, err := c.maintenanceLister.List(labels.Everything())
	if err != nil {
		return nil
	}
	var names []string
	ref := v1alpha1.NodeReference{Name: node.Name, UID: node.UID}
	for _, nm := range maintenances {
		if v1alpha1.IsHolding(nm) && v1alpha1.NodeStatusOf(nm, ref) != nil {
			names = append(names, nm.Name)
		}
	}
	slices.Sort(names)
	return names
}

// rivals returns pods that wait for another budget on the nodes of the pods that are down.
func (c *Controller) rivals(facts budgetFacts, now time.Time) []rival {
	nodes := map[string][]string{}
	for _, d := range facts.down {
		if len(nodes) < maxRivalNodes {
			nodes[d.node] = d.holders
		}
	}
	var found []rival
	for node, holders := range nodes {
		for _, evacuation := range c.waitingForBudgets(node) {
			pod, err := c.podLister.Pods(evacuation.Namespace).Get(evacuation.Spec.PodRef.Name)
			if err != nil || pod.UID != evacuation.Spec.PodRef.UID || isFinished(pod) || pod.DeletionTimestamp != nil {
				// It waits for no budget any more, and its Evacuation is about to show that.
				continue
			}
			if budget := c.budget(c.evictions.State(keyOf(evacuation)).Budget); budget != nil && pdb.NameOf(budget) != facts.name {
				key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
				found = append(found, rival{pod: key, holders: holders, budget: c.factsOf(budget, now)})
			}
		}
	}
	slices.SortFunc(found, func(a, b rival) int {
		return cmp.Or(strings.Compare(a.pod.Namespace, b.pod.Namespace), strings.Compare(a.pod.Name, b.pod.Name))
	})
	return found
}

// waitingForBudgets returns the first Evacuations on a node that wait for a budget. They are
// sorted, so that messages name the same ones each time.
func (c *Controller) waitingForBudgets(node string) []*v1alpha1.Evacuation {
	objects, err := c.evacuationIndexer.ByIndex(podcache.EvacuationsByNode, node)
	if err != nil {
		return nil
	}
	var waiting []*v1alpha1.Evacuation
	for _, object := range objects {
		if evacuation, ok := object.(*v1alpha1.Evacuation); ok {
			if blocker := blockerOf(&evacuation.Status); blocker != nil && slices.Contains(refinable, blocker.Reason) {
				waiting = append(waiting, evacuation)
			}
		}
	}
	slices.SortFunc(waiting, func(a, b *v1alpha1.Evacuation) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Spec.PodRef.Name, b.Spec.PodRef.Name))
	})
	return waiting[:min(maxRivals, len(waiting))]
}
