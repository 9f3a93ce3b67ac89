// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
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
	// trialTimeout is how long a waiter that was woken keeps the next one from being woken. Its
	// attempt may never come to a search for victims, for example because it fits by then.
	trialTimeout = 10 * time.Second
	// settleTime is how long after a waiter found victims the next one is woken: until then, the
	// budget does not show what the first has used up.
	settleTime = 2 * time.Second
)

// anyBudget is a name for all budgets: it opens when a PriorityClass changes.
var anyBudget = types.NamespacedName{}

// expired is the key in the queue for trials that end by time.
const expired types.UID = ""

// waiter is a pending pod, or a group of them, that waits for a budget.
type waiter struct {
	uid      types.UID
	priority int32
	pods     []*corev1.Pod

	budgets sets.Set[types.NamespacedName]
	// due are the budgets that have opened since its last attempt.
	due sets.Set[types.NamespacedName]
	// woken is when it was last woken.
	woken time.Time
}

// opening is what is left of a budget that has opened.
type opening struct {
	// left is how many waiters may be tried at the same time: as many as the budget has room for.
	left int
	// all means that each waiter is tried, one after the other, whatever room the budget has: pods
	// may be free of it.
	all bool
}

// trial is the attempt of a waiter that was woken because a budget opened.
type trial struct {
	budget types.NamespacedName
	ends   time.Time
}

// search is a search for victims that is under way. It has the budgets that opened since it began,
// and whether for all: it may have read them before.
type search struct {
	opened map[types.NamespacedName]bool
}

// waitingRoom has the pods that budgets hold up and has the scheduler try them again when a budget
// opens: the scheduling queue does not know that budgets hold up pods. The most important waiter is
// tried first. If its attempt fails, or does not use the budget up, the next one follows. The room
// is in memory only; a new leader tries every pending pod anyway.
type waitingRoom struct {
	handle  fwk.Handle
	pods    corelisters.PodLister
	budgets policylisters.PodDisruptionBudgetLister
	clock   clock.PassiveClock
	queue   workqueue.TypedDelayingInterface[types.UID]
	// opened is called for each budget that has changed for the better, and gone for each pod that
	// is deleted.
	opened func(types.NamespacedName)
	gone   func(types.UID)

	mu      sync.Mutex
	waiters map[types.UID]*waiter
	// ofPod has the waiter of each pod.
	ofPod    map[types.UID]types.UID
	openings map[types.NamespacedName]*opening
	trials   map[types.UID]trial
	searches sets.Set[*search]
	// timed has the pods that wait for a time.
	timed map[types.UID][]*corev1.Pod
	// counted is this room's part of the gauge, which rooms of other profiles share.
	counted int
}

// newWaitingRoom returns an empty room that watches budgets, PriorityClasses and pods.
func newWaitingRoom(ctx context.Context, handle fwk.Handle) (*waitingRoom, error) {
	informers := handle.SharedInformerFactory()
	w := &waitingRoom{
		handle:   handle,
		pods:     informers.Core().V1().Pods().Lister(),
		budgets:  informers.Policy().V1().PodDisruptionBudgets().Lister(),
		clock:    clock.RealClock{},
		queue:    workqueue.NewTypedDelayingQueue[types.UID](),
		opened:   func(types.NamespacedName) {},
		gone:     func(types.UID) {},
		waiters:  map[types.UID]*waiter{},
		ofPod:    map[types.UID]types.UID{},
		openings: map[types.NamespacedName]*opening{},
		trials:   map[types.UID]trial{},
		searches: sets.New[*search](),
		timed:    map[types.UID][]*corev1.Pod{},
	}
	if err := w.watch(informers); err != nil {
		return nil, err
	}
	go func() {
		<-ctx.Done()
		w.queue.ShutDown()
	}()
	go w.run(ctx)
	return w, nil
}

// begin is called before a search reads budgets, and end after its result is known.
func (w *waitingRoom) begin() *search {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &search{opened: map[types.NamespacedName]bool{}}
	w.searches.Insert(s)
	return s
}

func (w *waitingRoom) end(s *search) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.searches.Delete(s)
}

// enter has a pod or group wait for the budgets that its search has found in the way. A budget that
// has opened since the search began counts as opened now.
func (w *waitingRoom) enter(s *search, who waiter, budgets sets.Set[types.NamespacedName]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.wakeNext()
	if known := w.waiters[who.uid]; known != nil {
		who.woken = known.woken
	}
	w.endTrial(who.uid)
	w.remove(who.uid)
	// The lister changes before the handlers are called, which remove the pods that are in it now.
	who.pods = slices.DeleteFunc(slices.Clone(who.pods), func(pod *corev1.Pod) bool { return w.pending(pod) == nil })
	if len(who.pods) == 0 || len(w.waiters) >= maxWaiting && !w.makeRoom(who.priority) {
		return
	}
	who.budgets, who.due = budgets.Clone().Insert(anyBudget), sets.New[types.NamespacedName]()
	w.waiters[who.uid] = &who
	for _, pod := range who.pods {
		w.ofPod[pod.UID] = who.uid
	}
	w.count()
	for name, all := range s.opened {
		if who.budgets.Has(name) {
			who.due.Insert(name)
			w.reopen(name, all)
		}
	}
}

// pending returns the pod as it is now, or nil if it is gone or bound.
func (w *waitingRoom) pending(known *corev1.Pod) *corev1.Pod {
	pod, err := w.pods.Pods(known.Namespace).Get(known.Name)
	if err != nil || pod.UID != known.UID || pod.Spec.NodeName != "" {
		return nil
	}
	return pod
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
	w.remove(least.uid)
	return true
}

// leave ends the wait of a pod or group that no budget holds up.
func (w *waitingRoom) leave(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(uid)
	w.endTrial(uid)
	w.wakeNext()
}

// leaveWithVictims ends the wait of a pod or group that uses up budgets.
func (w *waitingRoom) leaveWithVictims(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(uid)
	if t, tried := w.trials[uid]; tried {
		t.ends = w.clock.Now().Add(settleTime)
		w.trials[uid] = t
		w.queue.AddAfter(expired, settleTime)
	}
}

// stay ends an attempt that did not come to a search.
func (w *waitingRoom) stay(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endTrial(uid)
	w.wakeNext()
}

// leavePod forgets a pod that is bound or gone, and its waiter if that has no other.
func (w *waitingRoom) leavePod(pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.timed, pod)
	uid, waits := w.ofPod[pod]
	if !waits {
		return
	}
	delete(w.ofPod, pod)
	who := w.waiters[uid]
	who.pods = slices.DeleteFunc(slices.Clone(who.pods), func(each *corev1.Pod) bool { return each.UID == pod })
	if len(who.pods) == 0 {
		w.remove(uid)
		w.endTrial(uid)
		w.wakeNext()
	}
}

func (w *waitingRoom) remove(uid types.UID) {
	if who := w.waiters[uid]; who != nil {
		for _, pod := range who.pods {
			delete(w.ofPod, pod.UID)
		}
		delete(w.waiters, uid)
		w.count()
	}
}

func (w *waitingRoom) count() {
	waitingPods.Add(float64(len(w.waiters) - w.counted))
	w.counted = len(w.waiters)
}

// wakeAt has a pod or group tried again at a time.
func (w *waitingRoom) wakeAt(uid types.UID, pods []*corev1.Pod, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timed[uid] = pods
	w.queue.AddAfter(uid, at.Sub(w.clock.Now()))
}

// open has the waiters of a budget tried again that has opened: as many as it has room for, or all
// of them.
func (w *waitingRoom) open(name types.NamespacedName, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.searches {
		s.opened[name] = s.opened[name] || all
	}
	awaited := false
	for _, each := range w.waiters {
		if each.budgets.Has(name) {
			each.due.Insert(name)
			awaited = true
		}
	}
	if awaited {
		w.reopen(name, all)
		w.wakeNext()
	}
}

func (w *waitingRoom) reopen(name types.NamespacedName, all bool) {
	o := w.openings[name]
	if o == nil {
		o = &opening{}
		w.openings[name] = o
	}
	o.all = o.all || all
	o.left = w.room(name)
	if o.all {
		o.left = max(o.left, 1)
	}
	for _, t := range w.trials {
		if t.budget == name && o.left > 0 {
			o.left--
		}
	}
}

func (w *waitingRoom) room(name types.NamespacedName) int {
	b, err := w.budgets.PodDisruptionBudgets(name.Namespace).Get(name.Name)
	if err != nil {
		return 0
	}
	return budget.Room(b)
}

// endTrial lets the next waiter have the place of one that was tried.
func (w *waitingRoom) endTrial(uid types.UID) {
	t, tried := w.trials[uid]
	if !tried {
		return
	}
	delete(w.trials, uid)
	if o := w.openings[t.budget]; o != nil {
		o.left++
	}
}

// wakeNext wakes the most important of the waiters that are due, as many as the openings allow.
func (w *waitingRoom) wakeNext() {
	if len(w.openings) == 0 {
		return
	}
	var due []*waiter
	for _, each := range w.waiters {
		if len(each.due) > 0 {
			due = append(due, each)
		}
	}
	slices.SortFunc(due, func(x, y *waiter) int {
		return cmp.Or(cmp.Compare(y.priority, x.priority), x.woken.Compare(y.woken))
	})
	awaited := sets.New[types.NamespacedName]()
	for _, each := range due {
		if _, tried := w.trials[each.uid]; !tried {
			w.try(each)
		}
		awaited = awaited.Union(each.due)
	}
	maps.DeleteFunc(w.openings, func(name types.NamespacedName, _ *opening) bool { return !awaited.Has(name) })
}

// try wakes a waiter if one of its budgets has a place for it.
func (w *waitingRoom) try(who *waiter) {
	for name := range who.due {
		o := w.openings[name]
		if o == nil || o.left == 0 || !o.all && w.room(name) == 0 {
			continue
		}
		o.left--
		who.due.Clear()
		delay := max(0, wakeInterval-w.clock.Since(who.woken))
		w.trials[who.uid] = trial{budget: name, ends: w.clock.Now().Add(delay + trialTimeout)}
		w.queue.AddAfter(who.uid, delay)
		w.queue.AddAfter(expired, delay+trialTimeout)
		return
	}
}

// endTrials ends the trials whose time is over.
func (w *waitingRoom) endTrials() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var next time.Time
	for uid, t := range w.trials {
		if !w.clock.Now().Before(t.ends) {
			w.endTrial(uid)
		} else if next.IsZero() || t.ends.Before(next) {
			next = t.ends
		}
	}
	if !next.IsZero() {
		w.queue.AddAfter(expired, next.Sub(w.clock.Now()))
	}
	w.wakeNext()
}

// run activates pods until the queue is shut down.
func (w *waitingRoom) run(ctx context.Context) {
	for {
		uid, stopped := w.queue.Get()
		if stopped {
			return
		}
		if uid == expired {
			w.endTrials()
		} else {
			w.activate(ctx, uid)
		}
		w.queue.Done(uid)
	}
}

func (w *waitingRoom) activate(ctx context.Context, uid types.UID) {
	pods := map[string]*corev1.Pod{}
	for _, known := range w.dueNow(uid) {
		if pod := w.pending(known); pod != nil {
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

// dueNow returns the pods to activate, and notes that they are. It returns none if they were
// activated less than a wakeInterval ago, and queues them again.
func (w *waitingRoom) dueNow(uid types.UID) []*corev1.Pod {
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
