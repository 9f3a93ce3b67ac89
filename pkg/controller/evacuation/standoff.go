// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
)

// standoffCheck is how often the facts about a closed budget are read again for a pod that waits
// for it.
const standoffCheck = time.Minute

// refinable are the reasons that maintenances may cause: a valid budget allows no disruption.
var refinable = []string{
	v1alpha1.ReasonPodDisruptionBudget, v1alpha1.ReasonUnhealthyPodsHoldBudget,
	v1alpha1.ReasonBudgetPodsCordoned, v1alpha1.ReasonBudgetsHoldEachOther,
}

// budgetFacts are the facts about a PodDisruptionBudget that a standoff depends on.
type budgetFacts struct {
	name types.NamespacedName
	// healthy and desired are the current and the required number of healthy pods.
	healthy, desired int32
	// down are its pods that are not ready and are on, or nominated for, a cordoned node that
	// maintenances hold. They are sorted by name.
	down []downPod
	// unscheduled are its pods that the scheduler has found no node for. Where they can run is only
	// read if the budget is in question.
	unscheduled []types.NamespacedName
}

type downPod struct {
	pod  types.NamespacedName
	node string
	// holders are the maintenances that hold the node.
	holders []string
	// pinned: the pod is on no node, and this one is the first of the cordoned nodes that it is
	// limited to.
	pinned bool
}

// rival is another pod that waits for a budget, on the node of a pod that is down.
type rival struct {
	pod     types.NamespacedName
	holders []string
	budget  budgetFacts
}

// without returns the facts without a pod that itself waits for the budget.
func (f budgetFacts) without(pod types.NamespacedName) budgetFacts {
	f.down = slices.DeleteFunc(slices.Clone(f.down), func(d downPod) bool { return d.pod == pod })
	return f
}

// wouldOpen reports whether the budget would allow a disruption if the pods that are down were
// healthy.
func (f budgetFacts) wouldOpen() bool {
	return len(f.down) > 0 && f.healthy+int32(len(f.down)) > f.desired
}

// mayOpen reports whether the budget would allow a disruption if, of the pods without a node, those
// that are read were healthy as well.
func (f budgetFacts) mayOpen() bool {
	missing := len(f.down) + min(maxPinned, len(f.unscheduled))
	return missing > 0 && f.healthy+int32(missing) > f.desired
}

// explainStandoff explains why the budget of a pod allows no disruption, if maintenances are the
// cause: its other pods are down on cordoned nodes. If on one of these nodes a pod waits for a
// budget whose own pods are down on the nodes of this pod's maintenances, two drains block each
// other. It returns nil if there is another cause.
func explainStandoff(pod types.NamespacedName, holders []string, budget budgetFacts, rivals []rival) *eviction.Blocker {
	budget = budget.without(pod)
	if !budget.wouldOpen() {
		return nil
	}
	for _, r := range rivals {
		if b := explainCycle(pod, holders, budget, r); b != nil {
			return b
		}
	}
	var named []string
	for _, d := range budget.down[:min(3, len(budget.down))] {
		where := "on node"
		if d.pinned {
			where = "which can only run on node"
		}
		named = append(named, fmt.Sprintf("%s %s %s", d.pod.Name, where, d.node))
	}
	if more := len(budget.down) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	return &eviction.Blocker{
		Reason: v1alpha1.ReasonBudgetPodsCordoned,
		Message: fmt.Sprintf("PodDisruptionBudget %s allows no disruption because pods of it are not ready "+
			"on nodes that are under maintenance: %s. It opens when they are ready elsewhere: complete the maintenance "+
			"of one of these nodes, or delete these pods if they may start on another node.%s",
			budget.name.Name, strings.Join(named, ", "), releaseAlone(budget.down)),
	}
}

// explainCycle returns the blocker if a pod and a rival wait for budgets, and the drain of each
// keeps the other's budget from allowing a disruption.
func explainCycle(pod types.NamespacedName, holders []string, budget budgetFacts, r rival) *eviction.Blocker {
	theirs := r.budget.without(r.pod)
	if r.pod == pod || theirs.name == budget.name || !theirs.wouldOpen() {
		return nil
	}
	for _, other := range r.holders {
		if slices.Contains(holders, other) {
			continue
		}
		for _, own := range holders {
			isHeldBy := func(name string) func(downPod) bool {
				return func(d downPod) bool { return slices.Contains(d.holders, name) }
			}
			if !slices.ContainsFunc(budget.down, isHeldBy(other)) || !slices.ContainsFunc(theirs.down, isHeldBy(own)) {
				continue
			}
			return &eviction.Blocker{
				Reason: v1alpha1.ReasonBudgetsHoldEachOther,
				Message: fmt.Sprintf("NodeMaintenances %s and %s hold each other: "+
					"PodDisruptionBudget %s waits for pods on the nodes of %s, and "+
					"PodDisruptionBudget %s of pod %s, which has to leave there, waits for pods on the nodes of %s. "+
					"Complete one of the two and drain its nodes later, or let one of the budgets allow a disruption.",
					own, other, budget.name, other, theirs.name, r.pod, own),
			}
		}
	}
	return nil
}
