/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package preemption

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/drain/budget"
)

const (
	// maxWaiting is the maximum number of pods and groups that wait for a budget. Beyond it the
	// least important ones wait for another event, as all do with kube-scheduler.
	maxWaiting = 10_000
	// wakeInterval is the shortest time between two calls for the same pod.
	wakeInterval = time.Second
)

// waiter is a pending pod, or a group of them, that waits for a budget.
type waiter struct {
	uid      types.UID
	priority int32
	pods     []*corev1.Pod

	budgets sets.Set[types.NamespacedName]
	// woken is when it was last woken.
	woken time.Time
}

// waitingRoom has the pods that budgets hold up and has the scheduler try them again when a budget
// opens: the scheduling queue does not know that budgets hold up pods. It lives in memory only; a
// new leader tries every pending pod anyway.
type waitingRoom struct {
	handle fwk.Handle
	pods   corelisters.PodLister
	clock  clock.PassiveClock
	queue  workqueue.TypedDelayingInterface[types.UID]
	// opened is called for each budget that allows more disruptions than before, and gone for each
	// pod that is deleted.
	opened func(types.NamespacedName)
	gone   func(types.UID)

	mu      sync.Mutex
	waiters map[types.UID]*waiter
	// timed has the pods that wait for a time.
	timed map[types.UID][]*corev1.Pod
}

// newWaitingRoom returns an empty room that watches budgets, PriorityClasses and pods.
func newWaitingRoom(ctx context.Context, handle fwk.Handle) (*waitingRoom, error) {
	informers := handle.SharedInformerFactory()
	w := &waitingRoom{
		handle:  handle,
		pods:    informers.Core().V1().Pods().Lister(),
		clock:   clock.RealClock{},
		queue:   workqueue.NewTypedDelayingQueue[types.UID](),
		opened:  func(types.NamespacedName) {},
		gone:    func(types.UID) {},
		waiters: map[types.UID]*waiter{},
		timed:   map[types.UID][]*corev1.Pod{},
	}
	handlers := map[string]struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandlerFuncs
	}{
		"PodDisruptionBudgets": {informers.Policy().V1().PodDisruptionBudgets().Informer(), cache.ResourceEventHandlerFuncs{
			UpdateFunc: w.budgetChanged,
			DeleteFunc: w.budgetGone,
		}},
		"PriorityClasses": {informers.Scheduling().V1().PriorityClasses().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.classChanged() },
			UpdateFunc: w.classUpdated,
			DeleteFunc: func(any) { w.classChanged() },
		}},
		"Pods": {informers.Core().V1().Pods().Informer(), cache.ResourceEventHandlerFuncs{
			UpdateFunc: w.podUpdated,
			DeleteFunc: w.podGone,
		}},
	}
	for kind, each := range handlers {
		if _, err := each.informer.AddEventHandler(each.handler); err != nil {
			return nil, fmt.Errorf("watch %s: %w", kind, err)
		}
	}
	go func() {
		<-ctx.Done()
		w.queue.ShutDown()
	}()
	go w.run(ctx)
	return w, nil
}

// enter has the pods wait for the budgets.
func (w *waitingRoom) enter(who waiter, budgets sets.Set[types.NamespacedName]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	who.budgets = budgets
	if known, ok := w.waiters[who.uid]; ok {
		who.woken = known.woken
	} else if len(w.waiters) >= maxWaiting && !w.makeRoom(who.priority) {
		return
	}
	w.waiters[who.uid] = &who
	waitingPods.Set(float64(len(w.waiters)))
}

// makeRoom removes the least important waiter if it is less important than the priority.
func (w *waitingRoom) makeRoom(priority int32) bool {
	var least *waiter
	for _, each := range w.waiters {
		if least == nil || each.priority < least.priority {
			least = each
		}
	}
	if least.priority >= priority {
		return false
	}
	delete(w.waiters, least.uid)
	return true
}

// leave ends the wait of a pod or group.
func (w *waitingRoom) leave(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiters, uid)
	waitingPods.Set(float64(len(w.waiters)))
}

// wakeAt has a pod or group tried again at a time.
func (w *waitingRoom) wakeAt(uid types.UID, pods []*corev1.Pod, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timed[uid] = pods
	w.queue.AddAfter(uid, at.Sub(w.clock.Now()))
}

// wake has the n most important of those tried again that match; all of them if n is negative.
func (w *waitingRoom) wake(n int, matches func(*waiter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var chosen []*waiter
	for _, each := range w.waiters {
		if matches(each) {
			chosen = append(chosen, each)
		}
	}
	slices.SortFunc(chosen, func(x, y *waiter) int { return int(int64(y.priority) - int64(x.priority)) })
	if n >= 0 && len(chosen) > n {
		chosen = chosen[:n]
	}
	for _, each := range chosen {
		w.queue.AddAfter(each.uid, wakeInterval-w.clock.Since(each.woken))
	}
}

// run activates pods until the queue is shut down.
func (w *waitingRoom) run(ctx context.Context) {
	for {
		uid, stopped := w.queue.Get()
		if stopped {
			return
		}
		w.activate(ctx, uid)
		w.queue.Done(uid)
	}
}

func (w *waitingRoom) activate(ctx context.Context, uid types.UID) {
	pods := map[string]*corev1.Pod{}
	for _, known := range w.due(uid) {
		pod, err := w.pods.Pods(known.Namespace).Get(known.Name)
		if err == nil && pod.UID == known.UID && pod.Spec.NodeName == "" {
			pods[pod.Namespace+"/"+pod.Name] = pod
		}
	}
	if len(pods) == 0 {
		return
	}
	logger(ctx).V(4).Info("A budget may have room for a pending pod", "pods", len(pods), "uid", uid)
	wokenPods.Inc()
	w.handle.Activate(logger(ctx), pods)
}

// due returns the pods to activate, and notes that they are. It returns none if they were activated
// less than a wakeInterval ago, and queues them again.
func (w *waitingRoom) due(uid types.UID) []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := w.timed[uid]
	delete(w.timed, uid)
	who, waits := w.waiters[uid]
	if !waits {
		return pods
	}
	if rest := wakeInterval - w.clock.Since(who.woken); rest > 0 {
		w.queue.AddAfter(uid, rest)
		return nil
	}
	who.woken = w.clock.Now()
	return who.pods
}

func (w *waitingRoom) budgetChanged(before, after any) {
	earlier, ok := before.(*policyv1.PodDisruptionBudget)
	later, okToo := after.(*policyv1.PodDisruptionBudget)
	if !ok || !okToo {
		return
	}
	name := budget.NameOf(later)
	waits := func(each *waiter) bool { return each.budgets.Has(name) }
	if earlier.UID != later.UID || earlier.Generation != later.Generation {
		w.opened(name)
		w.wake(-1, waits)
		return
	}
	if n := budget.Room(later) - budget.Room(earlier); n > 0 {
		w.opened(name)
		w.wake(n, waits)
	}
}

func (w *waitingRoom) budgetGone(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if b, ok := object.(*policyv1.PodDisruptionBudget); ok {
		name := budget.NameOf(b)
		w.opened(name)
		w.wake(-1, func(each *waiter) bool { return each.budgets.Has(name) })
	}
}

func (w *waitingRoom) classChanged() {
	w.wake(-1, func(*waiter) bool { return true })
}

func (w *waitingRoom) classUpdated(before, after any) {
	earlier, ok := before.(*schedulingv1.PriorityClass)
	later, okToo := after.(*schedulingv1.PriorityClass)
	if ok && okToo && earlier.Annotations[ThresholdAnnotation] != later.Annotations[ThresholdAnnotation] {
		w.classChanged()
	}
}

// podUpdated notices that a pod has found a node.
func (w *waitingRoom) podUpdated(before, after any) {
	earlier, ok := before.(*corev1.Pod)
	later, okToo := after.(*corev1.Pod)
	if ok && okToo && earlier.Spec.NodeName == "" && later.Spec.NodeName != "" {
		w.leave(later.UID)
	}
}

func (w *waitingRoom) podGone(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if pod, ok := object.(*corev1.Pod); ok {
		w.leave(pod.UID)
		w.mu.Lock()
		delete(w.timed, pod.UID)
		w.mu.Unlock()
		w.gone(pod.UID)
	}
}
