// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/drain/pdb"
)

// budgetUse has the pods of the whole drain under a budget that sometimes allows a disruption. Dry
// runs of the Eviction API do not use up the budget. So they allow each of the pods, although only
// one of them may be evicted.
type budgetUse struct {
	budget *policyv1.PodDisruptionBudget
	pods   []*leavingPod
	// byWave is the number of pods in each wave. The replacements of one wave restore the budget
	// before the next wave starts.
	byWave map[int]int
	// unready is the number of protected pods that are not ready.
	unready int
	// pinned are the pods that can start again only on nodes that maintenances hold.
	pinned []*leavingPod
}

func (u *budgetUse) add(pod *leavingPod) {
	u.pods = append(u.pods, pod)
	u.byWave[pod.wave.index]++
	if !pod.Ready {
		u.unready++
	}
}

// rounds returns the number of groups in which the pods leave if the budget continues to allow the
// same number of disruptions. broken is true if the budget splits a wave.
func (u *budgetUse) rounds(allowed int) (rounds int, broken bool) {
	for _, pods := range u.byWave {
		rounds += (pods + allowed - 1) / allowed
		broken = broken || pods > allowed
	}
	return rounds, broken
}

// addUnprotected records a pod that waits for other pods of its owner: no budget protects it, it is
// ready, and no surge replaces it first.
func (t *trouble) addUnprotected(pod *leavingPod) {
	if t.UnprotectedAllAtOnce || !pod.Ready || !pod.Restarts || pod.Owner == nil || pod.Surge != nil {
		return
	}
	owner := fmt.Sprintf("%s %s/%s", pod.Owner.Kind, pod.Namespace, pod.Owner.Name)
	if pod.Deployment != "" {
		owner = fmt.Sprintf("Deployment %s/%s", pod.Namespace, pod.Deployment)
	}
	t.unprotected[owner] = append(t.unprotected[owner], pod)
}

// addTurns adds the pods of owners with several unprotected pods, and the owners with most pods
// first.
func (t *trouble) addTurns() {
	owners := slices.SortedFunc(maps.Keys(t.unprotected), func(a, b string) int {
		return cmp.Or(-cmp.Compare(len(t.unprotected[a]), len(t.unprotected[b])), strings.Compare(a, b))
	})
	for _, owner := range owners {
		if pods := t.unprotected[owner]; len(pods) > 1 {
			for _, pod := range pods {
				t.of(v1alpha1.PreviewEffectDelayed, v1alpha1.ReasonTurnsByOwner).add(pod, owner)
			}
		}
	}
}

// addUse adds a blocker if the budget prevents or delays the drain.
func (t *trouble) addUse(u *budgetUse) {
	allowed := pdb.Allowed(u.budget)
	if allowed <= 0 {
		refusal := u.refusal()
		b := t.of(v1alpha1.PreviewEffectNotNow, refusal.Reason, u.budget)
		b.Message, b.pods = refusal.Message, u.pods
		return
	}
	if len(u.pinned) > allowed {
		t.addPinned(u, allowed)
		return
	}
	rounds, broken := u.rounds(allowed)
	if !broken {
		return
	}
	b := t.of(v1alpha1.PreviewEffectDelayed, v1alpha1.ReasonPodDisruptionBudget, u.budget)
	b.pods, b.Rounds = u.pods, int32(rounds)
	b.Message = fmt.Sprintf("PodDisruptionBudget %s allows %d of these %d pods at the same time, so they leave in %d groups, each when the replacements of the previous group are ready.",
		u.budget.Name, allowed, len(u.pods), rounds)
}

// addPinned adds pods that cannot start again before their nodes are released. The budget allows
// only some of them to be missing, so all further pods stay until a user acts.
func (t *trouble) addPinned(u *budgetUse, allowed int) {
	b := t.of(v1alpha1.PreviewEffectNever, v1alpha1.ReasonBudgetPodsCordoned, u.budget)
	b.pods = u.pinned
	b.Message = fmt.Sprintf("PodDisruptionBudget %s allows %s at the same time, but the volumes or node selectors of %s bind them to nodes of this maintenance: "+
		"after %d have left, the other pods stay until those nodes are released. Drain the nodes one after the other, "+
		"or remove a node from the node selector when it is drained and the work on it is done.",
		u.budget.Name, wording.Count(allowed, "disruption"), wording.Count(len(u.pinned), "pod"), allowed)
}

// isPinned reports whether a pod can start again only on nodes that maintenances hold.
func (t *trouble) isPinned(pod *leavingPod) bool {
	if pod.Tied {
		return true
	}
	for _, claim := range pod.Claims {
		if t.Pinned.Has(types.NamespacedName{Namespace: pod.Namespace, Name: claim}) {
			return true
		}
	}
	return false
}

// refusal returns the reason why the budget allows no disruption now.
func (u *budgetUse) refusal() pdb.Refusal {
	if u.unready > 0 {
		if refusal, held := pdb.HeldByUnhealthy(u.budget, false, false); held {
			return refusal
		}
	}
	return pdb.Explain(u.budget, pdb.OwnerNone)
}

// opensWithOneMore reports whether a budget that allows no eviction now would allow one if one more
// pod was healthy.
func opensWithOneMore(budget *policyv1.PodDisruptionBudget) bool {
	if pdb.Allowed(budget) > 0 || !pdb.IsCurrent(budget) || pdb.Explain(budget, pdb.OwnerNone).Reason != v1alpha1.ReasonPodDisruptionBudget {
		return false
	}
	return budget.Status.CurrentHealthy >= pdb.DesiredHealthy(budget, budget.Status.ExpectedPods+1)
}
