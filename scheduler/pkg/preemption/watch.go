// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"

	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/host/podcache"
)

// watch informs the room about budgets that allow more disruptions, and pods that are gone.
func (w *waitingRoom) watch(factory informers.SharedInformerFactory) error {
	_, err := podcache.AddHandlers(
		podcache.Handled{Informer: factory.Policy().V1().PodDisruptionBudgets().Informer(), Handler: podcache.HandlerOf(w.budgetChanged)},
		podcache.Handled{Informer: factory.Scheduling().V1().PriorityClasses().Informer(), Handler: podcache.HandlerOf(w.classChanged)},
		podcache.Handled{Informer: factory.Core().V1().Pods().Informer(), Handler: podcache.HandlerOf(w.podChanged)},
	)
	return err
}

func (w *waitingRoom) budgetChanged(before, after *policyv1.PodDisruptionBudget) {
	if before == nil {
		return
	}
	// A deletion or a change of the spec may end the protection of pods. So may a change to enough
	// healthy pods, if the budget then allows the eviction of pods that are not ready.
	all := after == nil || before.Generation != after.Generation || !pdb.LetsUnreadyGo(before) && pdb.LetsUnreadyGo(after)
	if all || pdb.Room(after) > pdb.Room(before) {
		w.forgetRefusals(pdb.NameOf(before))
		w.open(pdb.NameOf(before), all)
	}
}

func (w *waitingRoom) classChanged(before, after *schedulingv1.PriorityClass) {
	if before == nil || after == nil || before.Annotations[ThresholdAnnotation] != after.Annotations[ThresholdAnnotation] {
		w.open(anyBudget, true)
	}
}

func (w *waitingRoom) podChanged(before, after *corev1.Pod) {
	switch {
	case after == nil:
		w.forgetPod(before.UID)
	case before == nil, before.Spec.NodeName == "", after.DeletionTimestamp != nil:
		// Do nothing. A new or unscheduled pod frees nothing. When a terminating pod is deleted,
		// kube-scheduler itself tries the pending pods again.
	case pdb.IsReady(before) != pdb.IsReady(after), pdb.Holds(before) != pdb.Holds(after), !maps.Equal(before.Labels, after.Labels):
		w.openFreed(before, after)
	}
}

// openFreed wakes the waiters of the budgets that no longer select a pod, or that no longer lose an
// allowed disruption when it is removed: the pod may be a victim now.
func (w *waitingRoom) openFreed(before, after *corev1.Pod) {
	w.mu.Lock()
	used := len(w.waiters) > 0
	w.mu.Unlock()
	if !used {
		return
	}
	budgets, err := w.budgets.PodDisruptionBudgets(after.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	index, now := pdb.NewIndex(budgets), w.clock.Now()
	still := index.Of(after)
	for _, b := range index.Of(before) {
		if !slices.Contains(still, b) || pdb.UsesUp(b, before, now) && !pdb.UsesUp(b, after, now) {
			w.open(pdb.NameOf(b), true)
		}
	}
}
