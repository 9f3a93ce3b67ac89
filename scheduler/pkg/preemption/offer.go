// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"haulout.dev/haulout/pkg/drain/pdb"
)

// rules determine which pods may be victims for a pending pod. They do not change and are safe for
// concurrent use.
type rules struct {
	// priority is the priority of the pending pod, or of its group.
	priority   int32
	thresholds thresholds
	budgets    *pdb.Index
	// refused reports whether the Eviction API has recently refused to evict the pod.
	refused func(types.UID) bool
	now     time.Time
}

// restrict reports whether budgets can protect any pod from the preemptor. If not, upstream chooses
// from all pods.
func (r *rules) restrict() bool {
	return r.thresholds.exceed(r.priority)
}

type protection struct {
	// selecting has the budgets that select the pod. used has the budgets in selecting whose
	// allowed disruptions decrease when the pod is removed.
	selecting, used []*policyv1.PodDisruptionBudget
	// guarded is set if the pending pod must not break these budgets.
	guarded bool
	// starts is set if the pod will be guarded when it runs, which the scheduler's cache shows
	// late. Before it runs, the Eviction API evicts it regardless of its budgets.
	starts bool
}

func (r *rules) protectionOf(pod *corev1.Pod) protection {
	p := protection{selecting: r.budgets.Of(pod)}
	for _, b := range p.selecting {
		if pdb.UsesUp(b, pod, r.now) {
			p.used = append(p.used, b)
		}
	}
	if len(p.selecting) > 0 && r.thresholds.of(pod) > r.priority {
		p.guarded = len(p.used) > 0
		p.starts = !p.guarded && pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil
	}
	return p
}

// evictable reports whether the Eviction API will probably evict a guarded pod if its budget allows
// a disruption. The API never evicts a pod that several budgets select.
func (r *rules) evictable(pod *corev1.Pod, p protection) bool {
	return len(p.selecting) == 1 && !r.refused(pod.UID)
}

// rooms has the remaining allowed disruptions of budgets.
type rooms map[types.NamespacedName]int

func (left rooms) of(b *policyv1.PodDisruptionBudget) int {
	if n, counted := left[pdb.NameOf(b)]; counted {
		return n
	}
	return pdb.Room(b)
}

// takeAll subtracts the disruptions of the pods of a unit, but not below zero.
func (left rooms) takeAll(unit []protection) {
	for _, p := range unit {
		for _, b := range p.used {
			left[pdb.NameOf(b)] = max(0, left.of(b)-1)
		}
	}
}

// unit is a possible victim with the protections of its pods.
type unit[V upstream.Victim] struct {
	victim      V
	protections []protection
	guarded     bool
}

// offer splits the victims into two lists. Any combination of victims in offered can be chosen
// without breaking a budget of a guarded pod. The victims in held must not be chosen. A victim with
// several pods is not split. The result depends only on the arguments.
func offer[V upstream.Victim](r *rules, victims []V) (offered, held []V) {
	var possible []unit[V]
	guarded := false
	for _, victim := range victims {
		if victim.Priority() >= r.priority {
			// This is not a possible victim; upstream will reject it.
			offered = append(offered, victim)
			continue
		}
		u := unit[V]{victim: victim}
		for _, pod := range victim.Pods() {
			p := r.protectionOf(pod.GetPod())
			u.protections = append(u.protections, p)
			u.guarded = u.guarded || p.guarded
		}
		guarded = guarded || u.guarded
		possible = append(possible, u)
	}
	if !guarded {
		return victims, nil
	}
	// Upstream may also choose victims that are not guarded, and these use up the same budgets.
	left := rooms{}
	for _, u := range possible {
		if !u.guarded {
			left.takeAll(u.protections)
		}
	}
	// Process the least important victims first, so that they get the allowed disruptions.
	slices.SortStableFunc(possible, func(x, y unit[V]) int {
		switch {
		case upstream.MoreImportantVictim(x.victim, y.victim):
			return 1
		case upstream.MoreImportantVictim(y.victim, x.victim):
			return -1
		}
		return 0
	})
	// kept has the budgets of the guarded pods in offered. These budgets must not break.
	kept := sets.New[types.NamespacedName]()
	for _, u := range possible {
		if u.guarded && !take(r, u, left, kept) {
			held = append(held, u.victim)
			continue
		}
		offered = append(offered, u.victim)
	}
	return offered, held
}

// take subtracts the disruptions of a unit from the budgets. It returns false if a guarded pod
// cannot be evicted, or if a budget of a guarded pod would be exceeded.
func take[V upstream.Victim](r *rules, u unit[V], left rooms, kept sets.Set[types.NamespacedName]) bool {
	own, needed := sets.New[types.NamespacedName](), map[types.NamespacedName]int{}
	for i, p := range u.protections {
		if p.guarded && !r.evictable(u.victim.Pods()[i].GetPod(), p) {
			return false
		}
		for _, b := range p.used {
			needed[pdb.NameOf(b)]++
			if p.guarded {
				own.Insert(pdb.NameOf(b))
			}
		}
	}
	for _, p := range u.protections {
		for _, b := range p.used {
			name := pdb.NameOf(b)
			if (own.Has(name) || kept.Has(name)) && needed[name] > left.of(b) {
				return false
			}
		}
	}
	left.takeAll(u.protections)
	maps.Copy(kept, own)
	return true
}

// breaks returns the first guarded pod whose budget would be exceeded if all of the pods were
// removed, and the reason. It applies the rule of offer to victims that are already chosen.
func (r *rules) breaks(pods []*corev1.Pod) (broken *corev1.Pod, why string) {
	protections := make([]protection, 0, len(pods))
	needed := map[types.NamespacedName]int{}
	for _, pod := range pods {
		p := r.protectionOf(pod)
		protections = append(protections, p)
		for _, b := range p.used {
			needed[pdb.NameOf(b)]++
		}
	}
	for i, p := range protections {
		if !p.guarded {
			continue
		}
		if len(p.selecting) > 1 {
			return pods[i], pdb.ExplainSeveral(p.selecting).Message
		}
		if r.refused(pods[i].UID) {
			return pods[i], "Its eviction was refused recently."
		}
		for _, b := range p.used {
			if room := pdb.Room(b); needed[pdb.NameOf(b)] > room {
				return pods[i], "PodDisruptionBudget " + b.Name + " allows no further disruption."
			}
		}
	}
	return nil, ""
}

// sortByDoubt sorts guarded victims so that the ones which the Eviction API will most likely refuse
// come first: a refusal then comes before the evictions of the others. These are the pods that it
// has refused before, and then the pods whose budgets have the least room beyond these victims.
func (r *rules) sortByDoubt(victims []*corev1.Pod, wasRefused func(types.UID) bool) {
	needed := map[types.NamespacedName]int{}
	for _, pod := range victims {
		for _, b := range r.budgets.Of(pod) {
			needed[pdb.NameOf(b)]++
		}
	}
	spare := func(pod *corev1.Pod) int {
		least := math.MaxInt
		for _, b := range r.budgets.Of(pod) {
			least = min(least, pdb.Room(b)-needed[pdb.NameOf(b)])
		}
		return least
	}
	slices.SortStableFunc(victims, func(x, y *corev1.Pod) int {
		if before := wasRefused(x.UID); before != wasRefused(y.UID) {
			if before {
				return -1
			}
			return 1
		}
		return cmp.Compare(spare(x), spare(y))
	})
}

// heldPods has the guarded pods that must not become victims.
type heldPods struct {
	threshold int32
	budgets   sets.Set[types.NamespacedName]
	pods      sets.Set[types.UID]
}

// heldOf describes the guarded pods among the given pods. For a victim with several pods, pass all
// pods of the victim: the budget of any of them may protect it.
func (r *rules) heldOf(pods []*corev1.Pod) heldPods {
	held := heldPods{threshold: noThreshold, budgets: sets.New[types.NamespacedName](), pods: sets.New[types.UID]()}
	for _, pod := range pods {
		p := r.protectionOf(pod)
		budgets := p.used
		if p.guarded {
			// A pod with several budgets can only be evicted after all but one of them are deleted.
			budgets = p.selecting
			held.threshold = max(held.threshold, r.thresholds.of(pod))
			held.pods.Insert(pod.UID)
		}
		for _, b := range budgets {
			held.budgets.Insert(pdb.NameOf(b))
		}
	}
	return held
}

func (h heldPods) any() bool { return len(h.pods) > 0 }

func (h *heldPods) add(more heldPods) {
	if !more.any() {
		return
	}
	if !h.any() {
		*h = heldPods{threshold: noThreshold, budgets: sets.New[types.NamespacedName](), pods: sets.New[types.UID]()}
	}
	h.threshold = max(h.threshold, more.threshold)
	maps.Copy(h.budgets, more.budgets)
	maps.Copy(h.pods, more.pods)
}

func podsOf[V upstream.Victim](victims []V) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, victim := range victims {
		for _, pod := range victim.Pods() {
			pods = append(pods, pod.GetPod())
		}
	}
	return pods
}
