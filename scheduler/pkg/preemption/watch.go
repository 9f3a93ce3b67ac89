// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/drain/budget"
)

// watch has the room learn what opens budgets, and which pods are no longer pending.
func (w *waitingRoom) watch(factory informers.SharedInformerFactory) error {
	handlers := map[string]struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandlerFuncs
	}{
		"PodDisruptionBudgets": {factory.Policy().V1().PodDisruptionBudgets().Informer(), cache.ResourceEventHandlerFuncs{
			UpdateFunc: w.budgetChanged,
			DeleteFunc: w.budgetGone,
		}},
		"PriorityClasses": {factory.Scheduling().V1().PriorityClasses().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.open(anyBudget, true) },
			UpdateFunc: w.classUpdated,
			DeleteFunc: func(any) { w.open(anyBudget, true) },
		}},
		"Pods": {factory.Core().V1().Pods().Informer(), cache.ResourceEventHandlerFuncs{
			UpdateFunc: w.podUpdated,
			DeleteFunc: w.podGone,
		}},
	}
	for kind, each := range handlers {
		if _, err := each.informer.AddEventHandler(each.handler); err != nil {
			return fmt.Errorf("watch %s: %w", kind, err)
		}
	}
	return nil
}

func (w *waitingRoom) budgetChanged(before, after any) {
	earlier, ok := before.(*policyv1.PodDisruptionBudget)
	later, okToo := after.(*policyv1.PodDisruptionBudget)
	if !ok || !okToo {
		return
	}
	// Pods may be free of a budget whose spec has changed, and pods that are not ready of one whose
	// others are.
	all := earlier.UID != later.UID || earlier.Generation != later.Generation || !budget.LetsUnreadyGo(earlier) && budget.LetsUnreadyGo(later)
	if all || budget.Room(later) > budget.Room(earlier) {
		w.opened(budget.NameOf(later))
		w.open(budget.NameOf(later), all)
	}
}

func (w *waitingRoom) budgetGone(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if b, ok := object.(*policyv1.PodDisruptionBudget); ok {
		w.opened(budget.NameOf(b))
		w.open(budget.NameOf(b), true)
	}
}

func (w *waitingRoom) classUpdated(before, after any) {
	earlier, ok := before.(*schedulingv1.PriorityClass)
	later, okToo := after.(*schedulingv1.PriorityClass)
	if ok && okToo && earlier.Annotations[ThresholdAnnotation] != later.Annotations[ThresholdAnnotation] {
		w.open(anyBudget, true)
	}
}

func (w *waitingRoom) podUpdated(before, after any) {
	earlier, ok := before.(*corev1.Pod)
	later, okToo := after.(*corev1.Pod)
	if !ok || !okToo || later.Spec.NodeName == "" {
		return
	}
	if earlier.Spec.NodeName == "" {
		w.leavePod(later.UID)
		return
	}
	// The end of a pod that is terminating wakes whom it helps.
	if later.DeletionTimestamp == nil && differForBudgets(earlier, later) && w.isUsed() {
		w.openFreed(earlier, later)
	}
}

func differForBudgets(x, y *corev1.Pod) bool {
	return budget.IsReady(x) != budget.IsReady(y) || budget.Holds(x) != budget.Holds(y) || !maps.Equal(x.Labels, y.Labels)
}

func (w *waitingRoom) isUsed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiters) > 0 || len(w.searches) > 0
}

// openFreed opens the budgets that no longer select a pod or that it no longer uses up: it may be a
// victim now.
func (w *waitingRoom) openFreed(earlier, later *corev1.Pod) {
	budgets, err := w.budgets.PodDisruptionBudgets(later.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	index, now := budget.NewIndex(budgets), w.clock.Now()
	still := index.Of(later)
	for _, b := range index.Of(earlier) {
		if !slices.Contains(still, b) || budget.UsesUp(b, earlier, now) && !budget.UsesUp(b, later, now) {
			w.open(budget.NameOf(b), true)
		}
	}
}

func (w *waitingRoom) podGone(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if pod, ok := object.(*corev1.Pod); ok {
		w.leavePod(pod.UID)
		w.gone(pod.UID)
	}
}
