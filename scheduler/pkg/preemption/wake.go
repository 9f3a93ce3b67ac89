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
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"haulout.dev/haulout/pkg/drain/pdb"
)

const (
	// maxWaiting is the maximum number of pods and groups in a waitingRoom. The least important
	// ones beyond it are tried again only when another event activates them, as with
	// kube-scheduler.
	maxWaiting = 10_000
	// wakeInterval is the interval of checks of all waiters, and the minimum time between two
	// activations of a pod.
	wakeInterval = time.Second
	// trialTimeout is the maximum time for which a woken waiter delays the next one. The attempt of
	// the woken waiter may end without a search for victims, for example because the pod fits now.
	trialTimeout = 10 * time.Second
	// settleTime is the pause after a waiter has found victims, before the next waiter is woken.
	// During this time, the status of the budget may not include the disruptions of these victims.
	settleTime = 2 * time.Second
)

// anyBudget stands for all budgets. A change of a PriorityClass counts as a change of anyBudget.
var anyBudget = types.NamespacedName{}

// waiter is a pending pod or group that searches for victims or waits.
type waiter struct {
	uid      types.UID
	priority int32
	pods     []*corev1.Pod

	// searching is set during a search, which may already have read any budget.
	searching bool
	// budgets are the budgets for which the waiter waits.
	budgets sets.Set[types.NamespacedName]
	// opened has the budgets that have begun to allow more disruptions since the last attempt
	// began. If the value is true, the waiter is woken even if the budget allows no disruption,
	// because the budget may no longer protect some pods.
	opened map[types.NamespacedName]bool
	// at is the time at which a refusal ends and the waiter is woken, whatever the budgets allow.
	// Zero means never.
	at time.Time
	// woken is the time of the last activation of the waiter. tries is the budget of which the
	// waiter reserves one allowed disruption until the time until. No other waiter is woken for it.
	woken, until time.Time
	tries        types.NamespacedName
}

func (who *waiter) isTime(now time.Time) bool { return !who.at.IsZero() && !now.Before(who.at) }

// waitingRoom has the pods and groups that wait for budgets, and activates them when a budget
// allows more disruptions: the scheduling queue has no event for that. It wakes the most important
// waiter first. If the attempt fails, or if the budget allows further disruptions, it wakes the
// next waiter. The waiters are only in memory; a new leader tries every pending pod anyway.
type waitingRoom struct {
	*memory
	handle  fwk.Handle
	budgets policylisters.PodDisruptionBudgetLister
	logger  klog.Logger

	mu      sync.Mutex
	waiters map[types.UID]*waiter
	// counted is the number of waiters that this room has added to the gauge. Rooms of all profiles
	// add to the same gauge.
	counted int
}

// newWaitingRoom returns an empty room that watches budgets, PriorityClasses and pods.
func newWaitingRoom(ctx context.Context, handle fwk.Handle) (*waitingRoom, error) {
	informers := handle.SharedInformerFactory()
	w := &waitingRoom{
		memory:  newMemory(informers.Core().V1().Pods().Lister()),
		handle:  handle,
		budgets: informers.Policy().V1().PodDisruptionBudgets().Lister(),
		logger:  logger(ctx),
		waiters: map[types.UID]*waiter{},
	}
	return w, w.watch(informers)
}

// enter returns the entry of a pod or group, which it creates if necessary.
func (w *waitingRoom) enter(who waiter) *waiter {
	if w.waiters[who.uid] == nil {
		w.waiters[who.uid] = &who
	}
	known := w.waiters[who.uid]
	known.pods = who.pods
	return known
}

// begin must be called before a search reads budgets, and end when its result is known. A budget
// that changes between the two calls counts as changed after the search.
func (w *waitingRoom) begin(who waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.enter(who)
	known.searching, known.opened = true, map[types.NamespacedName]bool{}
}

// end makes a pod or group wait for the budgets that prevented its preemption. The next waiter may
// be woken immediately or, if the search found victims, after settleTime.
func (w *waitingRoom) end(uid types.UID, o outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	who, now := w.waiters[uid], w.clock.Now()
	if who == nil {
		return
	}
	hadPlace := now.Before(who.until)
	who.searching, who.until = false, time.Time{}
	if o.searched {
		who.budgets = nil
	}
	if o.searched && !o.found {
		who.at = w.nextTry(uid, o.held.pods)
		if o.held.any() {
			who.budgets = o.held.budgets.Clone().Insert(anyBudget)
		}
	}
	maps.DeleteFunc(who.opened, func(name types.NamespacedName, _ bool) bool { return !who.budgets.Has(name) })
	switch {
	case hadPlace && o.searched && o.found && o.restricted:
		who.until = now.Add(settleTime)
	case hadPlace || len(who.opened) > 0:
		w.wake()
	}
}

// wakeAt makes the scheduler try a pod or group again at the given time, because the eviction of
// its victims was refused.
func (w *waitingRoom) wakeAt(who waiter, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.enter(who)
	known.at, known.until = at, time.Time{}
}

// open wakes the waiters of a budget that allows more disruptions: as many waiters as it allows
// disruptions. If all is set, it wakes all waiters, one after the other.
func (w *waitingRoom) open(name types.NamespacedName, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, each := range w.waiters {
		if each.searching || each.budgets.Has(name) {
			each.opened[name] = each.opened[name] || all
		}
	}
	w.wake()
}

// tick runs every wakeInterval. It drops waiters that are bound, gone or beyond maxWaiting, and
// counts the remaining waiters.
func (w *waitingRoom) tick(context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := 0
	for uid, each := range w.waiters {
		each.pods = slices.DeleteFunc(slices.Clone(each.pods), func(known *corev1.Pod) bool {
			pod := w.current(known)
			return pod == nil || pod.Spec.NodeName != ""
		})
		isTried := each.searching || w.clock.Now().Before(each.until)
		switch {
		case len(each.pods) == 0, len(each.budgets) == 0 && each.at.IsZero() && !isTried:
			delete(w.waiters, uid)
		case len(each.budgets) > 0:
			waiting++
		}
	}
	if len(w.waiters) > maxWaiting {
		for _, each := range slices.SortedFunc(maps.Values(w.waiters), compare)[maxWaiting:] {
			delete(w.waiters, each.uid)
		}
	}
	waitingPods.Add(float64(waiting - w.counted))
	w.counted = waiting
	w.wake()
}

// compare sorts the more important waiter first. Among waiters of the same priority, the one that
// was woken least recently is first.
func compare(x, y *waiter) int {
	return cmp.Or(cmp.Compare(y.priority, x.priority), x.woken.Compare(y.woken))
}

// wake wakes the waiters whose refusal has ended. For each budget in opened, it wakes as many
// waiters as the budget allows disruptions, minus the waiters whose attempts are in progress.
func (w *waitingRoom) wake() {
	now, rooms, taken := w.clock.Now(), map[types.NamespacedName]int{}, map[types.NamespacedName]int{}
	var due []*waiter
	for _, each := range w.waiters {
		switch {
		case now.Before(each.until):
			taken[each.tries]++
		case !each.searching && (len(each.opened) > 0 || each.isTime(now)):
			due = append(due, each)
		}
	}
	slices.SortFunc(due, compare)
	place := func(who *waiter) bool {
		for name, all := range who.opened {
			if _, known := rooms[name]; !known {
				rooms[name] = w.room(name)
			}
			if taken[name] < rooms[name] || all && taken[name] == 0 {
				taken[name]++
				who.tries = name
				return true
			}
		}
		return false
	}
	for _, each := range due {
		timed := each.isTime(now)
		// A waiter that was woken less than wakeInterval ago keeps its reservation in taken.
		if !timed && !place(each) || now.Sub(each.woken) < wakeInterval {
			continue
		}
		if !timed {
			each.until = now.Add(trialTimeout)
		}
		each.woken, each.at = now, time.Time{}
		clear(each.opened)
		w.activate(each)
	}
}

func (w *waitingRoom) room(name types.NamespacedName) int {
	b, err := w.budgets.PodDisruptionBudgets(name.Namespace).Get(name.Name)
	if err != nil {
		return 0
	}
	return pdb.Room(b)
}

func (w *waitingRoom) activate(who *waiter) {
	pods := map[string]*corev1.Pod{}
	for _, pod := range who.pods {
		pods[pod.Namespace+"/"+pod.Name] = pod
	}
	w.logger.V(4).Info("A budget may allow a disruption for a pending pod", "pods", len(pods), "uid", who.uid)
	wokenPods.Inc()
	w.handle.Activate(w.logger, pods)
}
