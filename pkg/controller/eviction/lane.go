// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"haulout.dev/haulout/pkg/drain/pdb"
)

const (
	// laneCalls bounds the calls in flight under one budget. Two that meet on a budget cost the API
	// server a conflict, upon which one of them sleeps for half a second, up to twenty times. Up to
	// about as many as this they hardly ever fail, and the budget is in use all the time.
	laneCalls = 24
	// laneAwake bounds those of them that may be awake. A lane begins with one and gets one more
	// for each answer that met no conflict. Lanes that move share that many, so as not to meet on
	// their budgets for nothing where the API server has enough to do: each has one at least.
	laneAwake = 6
	// asleepAfter is how long a call may take before it is taken to have met a conflict and to
	// sleep in the API server. Another pod can be sent during that time: a call that sleeps costs
	// nothing.
	asleepAfter = 80 * time.Millisecond
	// conflictDelay is the least an eviction takes that met a conflict: the API server sleeps that
	// long before it tries again.
	conflictDelay = 400 * time.Millisecond

	// unconfirmedFor is how long an accepted eviction is subtracted from what the budget's status
	// allows, if the status never lists it.
	unconfirmedFor = 5 * time.Second

	// blockedAfter is how long a budget has to allow nothing before its pods are called blocked,
	// and how long it has to stay open before they no longer are. A drain that moves in steps would
	// otherwise write every pod's status twice for each step.
	blockedAfter = 10 * time.Second

	// steadyAfter is how long the numbers of healthy and expected pods have to stay as they are
	// before the unhealthy ones are held to have stuck, and not only to be starting.
	steadyAfter = time.Minute

	// firstProbeAfter is how long a closed lane waits for its watch event before it doubts the
	// cache; the wait doubles with every probe.
	firstProbeAfter = 10 * time.Second
	maxProbeDelay   = 15 * time.Minute
)

// lane is a group of pods: the pods that share a budget, the pods of one owner that have no budget,
// or the pods that have neither a budget nor an owner.
type lane struct {
	// budgetName is empty for the pods without budget.
	budgetName types.NamespacedName
	budget     *policyv1.PodDisruptionBudget
	members    map[*item]struct{}
	// ready and unready are the members that wait, apart because a budget may let only pods go that
	// are not ready.
	ready, unready itemHeap

	// owner is the workload of a lane of pods without budgets that take turns; nil for other lanes.
	owner *owned

	// awake is how many calls may be awake. It is not used for the pods without budget: only the
	// queue bounds theirs.
	awake concurrency
	// sending are the calls in flight, and when they were sent.
	sending map[*item]time.Time
	// unconfirmed are the evictions that the cached status of the budget does not show yet, by pod
	// name; the time is zero until the answer.
	unconfirmed map[string]time.Time
	// granted is since when the budget's status has listed pods as about to be disrupted, by name.
	granted map[string]time.Time
	// refusedAt is the resourceVersion of the budget under which the API refused although the
	// status would have let a pod go.
	refusedAt string

	// open is whether the budget allows a disruption, as far as its status and the API say, and
	// since is since when.
	open  bool
	since time.Time

	// steadySince is since when the budget has counted as many healthy pods of as many.
	steadySince time.Time

	probeAt    time.Time
	probeDelay time.Duration
	// reviewAt is when a member may become blocked or unblocked by the passing of time.
	reviewAt time.Time
}

// newLane returns a lane for a budget, or for the pods without one if it is nil.
func newLane(name types.NamespacedName, budget *policyv1.PodDisruptionBudget, now time.Time) *lane {
	l := &lane{
		budgetName:  name,
		budget:      budget,
		members:     map[*item]struct{}{},
		ready:       itemHeap{less: (*item).before},
		unready:     itemHeap{less: (*item).before},
		awake:       concurrency{limit: 1, most: laneAwake},
		sending:     map[*item]time.Time{},
		unconfirmed: map[string]time.Time{},
		granted:     map[string]time.Time{},
		open:        true,
		since:       now,
		steadySince: now,
	}
	if budget == nil {
		return l
	}
	l.noteGranted(now)
	if pdb.Allowed(budget) == 0 {
		l.close(now)
	}
	return l
}

func (l *lane) isFree() bool {
	return l.budget == nil
}

func (l *lane) isIdle(now time.Time) bool {
	l.expireUnconfirmed(now)
	return len(l.members) == 0 && len(l.sending) == 0 && len(l.unconfirmed) == 0
}

func (l *lane) close(now time.Time) {
	l.open, l.since = false, now
	l.probeDelay = firstProbeAfter
	l.probeAt = now.Add(l.probeDelay)
	l.reviewBy(now.Add(blockedAfter))
}

// reviewBy asks for a review no later than at t.
func (l *lane) reviewBy(t time.Time) {
	if l.reviewAt.IsZero() || t.Before(l.reviewAt) {
		l.reviewAt = t
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// observe takes in a new version of the budget and reports whether it allows a disruption.
func (l *lane) observe(budget *policyv1.PodDisruptionBudget, now time.Time) (allows bool) {
	if was, is := l.budget.Status, budget.Status; was.CurrentHealthy != is.CurrentHealthy || was.ExpectedPods != is.ExpectedPods {
		l.steadySince = now
	}
	l.budget = budget
	l.noteGranted(now)
	for pod := range l.unconfirmed {
		if _, listed := budget.Status.DisruptedPods[pod]; listed {
			delete(l.unconfirmed, pod)
		}
	}
	allows = pdb.Allowed(budget) > 0 && budget.ResourceVersion != l.refusedAt
	switch {
	case allows && !l.open:
		l.open, l.since = true, now
		l.reviewBy(now.Add(blockedAfter))
	case !allows && l.open:
		l.close(now)
	case !allows:
		// Why it allows nothing may have changed.
		l.reviewBy(latest(now, l.since.Add(blockedAfter)))
	}
	return allows
}

// room is how many more evictions the budget would let pass, as far as we know.
func (l *lane) room(now time.Time) int {
	if !l.open {
		return 0
	}
	l.expireUnconfirmed(now)
	return pdb.Allowed(l.budget) - len(l.unconfirmed)
}

func (l *lane) expireUnconfirmed(now time.Time) {
	for pod, accepted := range l.unconfirmed {
		if !accepted.IsZero() && now.Sub(accepted) >= unconfirmedFor {
			delete(l.unconfirmed, pod)
		}
	}
}

// pass is the right to send an eviction.
type pass int

const (
	passNone pass = iota
	// passFree: the pod has no budget.
	passFree
	// passBudget: the budget has room.
	passBudget
	// passProbe: the budget has none according to the cache, which is doubted.
	passProbe
	// passGranted: the budget has let the pod go already, see interruptedAfter.
	passGranted
)

// add has an item wait in the lane.
func (l *lane) add(it *item) {
	if it.notReady {
		l.unready.add(it)
	} else {
		l.ready.add(it)
	}
}

// anyWaits reports whether an item waits in the lane.
func (l *lane) anyWaits() bool {
	return l.ready.first() != nil || l.unready.first() != nil
}

// offer returns the pod of the lane that may be evicted now, if any. Of the calls under a budget no
// more than awake may be so.
func (l *lane) offer(awake int, now time.Time) (*item, pass) {
	if !l.anyWaits() || !l.isFree() && !l.hasSlot(now, awake) {
		return nil, passNone
	}
	unready := l.unready.first()
	if l.isFree() {
		if l.owner == nil || l.owner.granted {
			return firstOf(l.ready.first(), unready), passFree
		}
		// A pod that does not serve is no loss.
		return unready, passFree
	}
	if unready != nil && pdb.LetsUnreadyGo(l.budget) {
		if ready := l.ready.first(); l.room(now) > 0 && firstOf(unready, ready) == ready {
			return ready, passBudget
		}
		return unready, passFree
	}
	it := firstOf(l.ready.first(), unready)
	if l.room(now) > 0 {
		return it, passBudget
	}
	if l.isProbeDue(now) {
		return it, passProbe
	}
	return nil, passNone
}

// firstOf returns the one of two items, either of which may be nil, that goes before the other.
func firstOf(x, y *item) *item {
	if x == nil || y != nil && y.before(x) {
		return y
	}
	return x
}

// take makes use of a pass and reports whether it may: probes of all lanes together are few.
func (l *lane) take(p pass, probes flowcontrol.PassiveRateLimiter, now time.Time) bool {
	if p != passProbe {
		return true
	}
	if !probes.TryAccept() {
		l.probeAt = now.Add(probeInterval)
		return false
	}
	l.probeDelay = min(2*l.probeDelay, maxProbeDelay)
	l.probeAt = now.Add(l.probeDelay)
	return true
}

// refuse closes the lane although the status let a pod go, unless the status has changed since that
// pod was sent.
func (l *lane) refuse(sentUnder string, now time.Time) {
	if l.budget == nil || l.budget.ResourceVersion != sentUnder {
		return
	}
	l.refusedAt = sentUnder
	if l.open {
		l.close(now)
	}
}

// moves reports whether the lane has calls to make and is not stuck.
func (l *lane) moves(now time.Time) bool {
	return !l.isFree() && (l.anyWaits() || len(l.sending) > 0) && (l.open || now.Sub(l.since) < blockedAfter)
}

// hasSlot reports whether another call under the budget may be sent.
func (l *lane) hasSlot(now time.Time, awake int) bool {
	if len(l.sending) >= laneCalls {
		return false
	}
	busy := 0
	for _, sent := range l.sending {
		if now.Sub(sent) < asleepAfter {
			busy++
		}
	}
	return busy < min(l.awake.limit, awake)
}

func (l *lane) isProbeDue(now time.Time) bool {
	l.expireUnconfirmed(now)
	return !l.open && len(l.unconfirmed) == 0 && !now.Before(l.probeAt)
}

// setAlarm names the times at which the lane has something to do even if nothing happens.
func (l *lane) setAlarm(w *alarm) {
	w.ring(l.reviewAt)
	for _, since := range l.granted {
		w.ring(since.Add(interruptedAfter))
	}
	if l.owner != nil {
		w.ring(l.owner.waitsUntil)
	}
	if l.isFree() || !l.anyWaits() {
		return
	}
	if !l.open {
		w.ring(l.probeAt)
	}
	for _, sent := range l.sending {
		w.ring(sent.Add(asleepAfter))
	}
	for _, accepted := range l.unconfirmed {
		if !accepted.IsZero() {
			w.ring(accepted.Add(unconfirmedFor))
		}
	}
}
