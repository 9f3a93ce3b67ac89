// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
	// standoffCheck is the interval at which the cause is determined again while the budget of a
	// waiting pod allows no disruption.
	standoffCheck = time.Minute
	// factsFresh is how long the list of the pods of a namespace that are down is reused: many pods
	// wait for the same budget, and a namespace may have thousands of budgets.
	factsFresh = 10 * time.Second
)

// refinable are the reasons for which maintenances may be the cause: a valid budget allows no
// disruption.
var refinable = []string{
	v1alpha1.ReasonPodDisruptionBudget, v1alpha1.ReasonUnhealthyPodsHoldBudget, v1alpha1.ReasonBudgetPodsCordoned,
}

// downPod is a pod that is not ready and cannot become ready where it is: it has no node, or is on,
// or nominated for, a cordoned node that maintenances hold.
type downPod struct {
	pod types.NamespacedName
	// node is the node that the pod is on. For a pinned pod, it is the first of the cordoned nodes
	// that the pod is limited to. It is empty if the scheduler has found no node. Where such a pod
	// can run is determined only if its budget allows no disruption.
	node   string
	pinned bool
	// maintenance is the first maintenance that holds the node.
	maintenance string
}

// knownDown has the pods of a namespace that were down at a given time, with their labels, since
// budgets select pods by label.
type knownDown struct {
	pods   []downPod
	labels []labels.Set
	at     time.Time
}

// standoff explains that the budget of the pod allows no disruption because of maintenances. It
// returns nil if there is another cause, or if a read fails. It reads the caches, and reads a few
// pods without a node live.
func (c *Controller) standoff(ctx context.Context, pod *corev1.Pod, state eviction.State, now time.Time) *eviction.Blocker {
	if state.Blocker == nil || state.Budget.Name == "" || !slices.Contains(refinable, state.Blocker.Reason) {
		return nil
	}
	budget, err := c.budgetLister.PodDisruptionBudgets(state.Budget.Namespace).Get(state.Budget.Name)
	if err != nil {
		return nil
	}
	down, unscheduled := c.downOf(budget, now)
	down = slices.DeleteFunc(down, func(d downPod) bool { return d.pod.Name == pod.Name })
	if !wouldOpen(budget, len(down)+min(maxPinned, len(unscheduled))) {
		return nil
	}
	return explainStandoff(budget, append(down, c.pinned(ctx, unscheduled)...))
}

// wouldOpen reports whether a budget would allow a disruption if the given number of its pods
// became healthy.
func wouldOpen(budget *policyv1.PodDisruptionBudget, more int) bool {
	return more > 0 && budget.Status.CurrentHealthy+int32(more) > budget.Status.DesiredHealthy
}

// downOf returns the pods of a budget that are down, and the pods of the budget for which the
// scheduler has found no node.
func (c *Controller) downOf(budget *policyv1.PodDisruptionBudget, now time.Time) (down []downPod, unscheduled []types.NamespacedName) {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return nil, nil
	}
	isOld := func(k knownDown) bool { return now.Sub(k.at) >= factsFresh }
	c.down.Sweep(isOld)
	var known knownDown
	c.down.Change(budget.Namespace, func(before knownDown, found bool) (knownDown, bool) {
		if known = before; !found {
			known = c.readDown(budget.Namespace, now)
		}
		return known, true
	})
	for i, pod := range known.pods {
		switch {
		case !selector.Matches(known.labels[i]):
		case pod.node == "":
			unscheduled = append(unscheduled, pod.pod)
		default:
			down = append(down, pod)
		}
	}
	return down, unscheduled
}

// readDown returns the pods of a namespace that are down, sorted by name. It omits finished and
// terminating pods, which no budget expects to become ready.
func (c *Controller) readDown(namespace string, now time.Time) knownDown {
	known := knownDown{at: now}
	pods, err := c.podLister.Pods(namespace).List(labels.Everything())
	if err != nil {
		return known
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	holders := map[string]string{}
	for _, pod := range pods {
		down := downPod{pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
		switch {
		case pod.DeletionTimestamp != nil, !drainplan.IsLive(pod), pdb.IsReady(pod):
			continue
		case !isUnschedulable(pod):
			down.node = podcache.NodeOf(pod)
			if _, asked := holders[down.node]; !asked {
				holders[down.node] = c.holderOf(down.node)
			}
			if down.maintenance = holders[down.node]; down.maintenance == "" {
				continue
			}
		}
		known.pods, known.labels = append(known.pods, down), append(known.labels, pod.Labels)
	}
	return known
}

// holderOf returns the name of the first maintenance that holds a node, "" if there is none or the
// node is not cordoned.
func (c *Controller) holderOf(nodeName string) string {
	node, err := c.nodeLister.Get(nodeName)
	if err != nil || !node.Spec.Unschedulable {
		return ""
	}
	holders := c.holders.Which(nodeName, func(nm *v1alpha1.NodeMaintenance) bool {
		return v1alpha1.IsHolding(nm) && v1alpha1.NodeStatusOf(nm, v1alpha1.NodeReference{Name: node.Name, UID: node.UID}) != nil
	})
	if len(holders) == 0 {
		return ""
	}
	return holders[0].Name
}

// explainStandoff returns the blocker of a budget that allows no disruption because of its pods
// that are down, or nil if there is another cause.
func explainStandoff(budget *policyv1.PodDisruptionBudget, down []downPod) *eviction.Blocker {
	if !wouldOpen(budget, len(down)) {
		return nil
	}
	var named []string
	for _, d := range down[:min(3, len(down))] {
		where := "on node"
		if d.pinned {
			where = "which can only run on node"
		}
		named = append(named, fmt.Sprintf("%s %s %s (NodeMaintenance %s)", d.pod.Name, where, d.node, d.maintenance))
	}
	if more := len(down) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	return &eviction.Blocker{
		Reason: v1alpha1.ReasonBudgetPodsCordoned,
		Message: fmt.Sprintf("PodDisruptionBudget %s allows no disruption because some of its pods are not ready "+
			"on nodes that are under maintenance: %s. It allows a disruption when they are ready elsewhere: complete the maintenance "+
			"of one of these nodes, or delete these pods if they may start on another node.%s",
			budget.Name, strings.Join(named, ", "), releaseAlone(down)),
	}
}
