// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package surge

import (
	policyv1 "k8s.io/api/policy/v1"

	"haulout.dev/haulout/pkg/drain/pdb"
)

// Evictions returns how many of the pods that leave are evicted while a surge has the given extra
// replicas. The other pods, as many as there are extra replicas, leave by a scale-down of the extra
// replicas. So the ReplicaSet replaces only the evicted pods, and exactly one pod is started for
// each pod that leaves. evictedOnly are the pods that no scale-down may delete.
func Evictions(leaving, extra, evictedOnly int) int {
	return max(evictedOnly, leaving-extra)
}

// KeepsBudget reports whether a budget is met after a surge of a Deployment ends and all pods are
// healthy. replicas is the number before the surge, and others the number of pods under the budget
// that belong to other workloads. If the budget is not met then, the pods have to leave by
// eviction.
func KeepsBudget(budget *policyv1.PodDisruptionBudget, replicas, others int32) bool {
	return pdb.DesiredHealthy(budget, replicas+others) <= replicas+others
}

// Removable returns how many healthy pods, at most the given number, a scale-down of a Deployment
// from the given replicas may delete under a budget. It returns 0 while the budget allows no
// disruption.
func Removable(budget *policyv1.PodDisruptionBudget, replicas, pods int32) int32 {
	allowed := int32(pdb.Room(budget))
	if allowed == 0 {
		return 0
	}
	// An eviction is subtracted from the allowed disruptions immediately, but from the healthy pods
	// only when the disruption controller has observed it.
	healthy, expected := min(budget.Status.CurrentHealthy, budget.Status.DesiredHealthy+allowed), expectedOf(budget, replicas, 0)
	for pods > 0 && pdb.DesiredHealthy(budget, expected-pods) > healthy-pods {
		pods--
	}
	return max(0, pods)
}
