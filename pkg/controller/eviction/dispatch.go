// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/host/inflight"
)

// step returns the evictions to send now, and the time of the next step if there is no event
// before; zero if only an event can cause the next step.
func (q *Queue) step() (due []*call, next time.Time) {
	q.mu.Lock()
	defer q.unlock()
	now := q.cfg.Clock.Now()
	q.stepped = true
	q.applyBudgets(now)
	for it := q.resting.first(); it != nil && !it.due.After(now); it = q.resting.first() {
		q.place(it, now)
	}
	if !now.Before(q.pausedUntil) {
		due = q.pick(now)
	}
	next = q.tidy(now)
	evictionsInFlight.Set(float64(q.inFlight))
	countLanes(q.ring)
	return due, next
}

// pick takes as many pods from the lanes as may be sent now. It takes pods whose evictions were
// interrupted first, then pods that have not been tried, round robin over the lanes. If there are
// none of these, it takes the pod that was tried the longest time ago. So no pod is tried again
// before all other pods were tried.
func (q *Queue) pick(now time.Time) (picked []*call) {
	q.budgetLanes.awake = awakePerLane(q.ring, now)
	for _, l := range q.ring {
		for _, it := range l.interrupted(now) {
			if q.mayCall(l) {
				picked = q.begin(picked, it, passGranted, now)
			}
		}
	}
	for idle := 0; idle < len(q.ring); idle++ {
		q.turn = (q.turn + 1) % len(q.ring)
		if it, p := q.offer(q.ring[q.turn], now); it != nil && it.tried == 0 {
			picked = q.begin(picked, it, p, now)
			idle = -1
		}
	}
	for {
		var next *item
		var right pass
		for _, l := range q.ring {
			if it, p := q.offer(l, now); it != nil && (next == nil || it.tried < next.tried) {
				next, right = it, p
			}
		}
		if next == nil {
			return picked
		}
		picked = q.begin(picked, next, right, now)
	}
}

// offer returns the pod of a lane that may be sent now, or nil.
func (q *Queue) offer(l lane, now time.Time) (*item, pass) {
	if !q.mayCall(l) {
		return nil, passPlain
	}
	return l.offer(now)
}

// mayCall reports whether another call of the lane may be sent. A call with conflicts on a budget
// sleeps in the API server for up to ten seconds, and pods without budgets must not wait for such
// calls. So pods with budgets get at most half of the calls.
func (q *Queue) mayCall(l lane) bool {
	return q.inFlight < q.calls.limit && (!l.common().protected || q.protected < max(1, q.calls.limit/2))
}

// awakePerLane returns the maximum number of awake calls for each lane of a budget.
func awakePerLane(lanes []lane, now time.Time) int {
	moving := 0
	for _, l := range lanes {
		if l.moves(now) {
			moving++
		}
	}
	return max(1, laneAwake/max(1, moving))
}

// begin adds the call for an item to picked, unless the cached pod can no longer be evicted.
func (q *Queue) begin(picked []*call, it *item, p pass, now time.Time) []*call {
	it.leaveLine()
	pod := q.present(it)
	if pod == nil {
		// The cached pod has changed, and the event of that change follows. An eviction would
		// identify the pod only by its name, and could use up budget for another pod.
		q.place(it, now)
		return picked
	}
	q.tries++
	c := &call{Request: it.Request, it: it, pod: pod, lane: it.lane, pass: p, number: q.tries, sent: now, limit: q.calls.limit}
	c.lane.begin(c)
	q.inFlight++
	if c.lane.common().protected {
		q.protected++
	}
	it.phase, it.askedAgain = phaseInFlight, false
	q.cfg.InFlight.Add(inflight.Eviction{Evacuation: c.Evacuation, Pod: c.Pod, UID: c.UID})
	return append(picked, c)
}

// place moves an item to its lane or to the resting items, or parks or removes it.
func (q *Queue) place(it *item, now time.Time) {
	it.leaveLine()
	pod := q.present(it)
	accepted := it.phase == phaseAccepted && it.due.After(now)
	if pod == nil || !accepted {
		q.cfg.InFlight.Remove(it.UID)
	}
	if pod != nil && !accepted {
		// A pod that is no longer in the cache stays podLeaving until its event arrives. If it
		// counted as serving, another pod of its owner could be evicted.
		q.ownerLanes.stays(it.UID)
	}
	switch {
	case it.removed && !(accepted && pod != nil):
		q.leaveLane(it)
		if q.byUID[it.UID] == it {
			delete(q.byUID, it.UID)
		}
		return
	case accepted:
		// Keep the blocker: the next event of the pod clears it, so no status write is needed now.
		q.leaveLane(it)
		q.resting.add(it)
		return
	case pod == nil:
		it.trouble, it.several = nil, nil
		q.park(it)
		q.updateState(it, now)
		return
	}
	it.read(pod)
	matching := q.matchBudgets(it, pod)
	if len(matching) > 1 {
		it.several = severalBudgets(matching, it.several, now)
		q.park(it)
		q.updateState(it, now)
		return
	}
	it.several = nil
	if l := q.laneOf(pod, matching, now); l != it.lane {
		q.leaveLane(it)
		it.lane = l
		it.otherBudgetDecides()
	}
	it.lane.common().join(it, pod)
	if it.restUntil.After(now) {
		it.phase, it.due = phaseResting, it.restUntil
		q.resting.add(it)
		if it.restsForBudget {
			it.lane.common().refused = true
		}
	} else {
		it.phase = phaseWaiting
		it.lane.common().wait(it)
	}
	q.updateState(it, now)
}

// park removes an item from its lane until there is an event of its pod or of a budget, or its
// state may be reported.
func (q *Queue) park(it *item) {
	q.leaveLane(it)
	it.phase = phaseParked
}

// severalBudgets returns the trouble of a pod that several budgets select. The pod counts as
// blocked after the same time as one whose budget is closed: for a moment, a budget that gets
// another name or passes its pods on to another one selects them beside its successor.
func severalBudgets(matching []*policyv1.PodDisruptionBudget, former *trouble, now time.Time) *trouble {
	t := &trouble{pdb.ExplainSeveral(matching), now.Add(blockedAfter)}
	if former != nil {
		t.from = former.from
	}
	return t
}

// present returns the item's pod from the cache. It returns nil if the cache has no pod or another
// pod of that name, or if the pod is stopping or finished.
func (q *Queue) present(it *item) *corev1.Pod {
	pod, err := q.pods.Pods(it.Evacuation.Namespace).Get(it.Pod)
	if err != nil || pod.UID != it.UID || !canBeAsked(pod) {
		return nil
	}
	return pod
}

// laneOf returns the lane of a pod: the lane of its budget, of its owner, or of all other pods.
func (q *Queue) laneOf(pod *corev1.Pod, matching []*policyv1.PodDisruptionBudget, now time.Time) lane {
	if len(matching) > 0 {
		return q.lane(laneKey{NamespacedName: pdb.NameOf(matching[0])}, func() lane { return newBudgetLane(&q.budgetLanes, matching[0], now) })
	}
	owner, takesTurns := q.ownerLanes.ownerOf(pod)
	if !takesTurns {
		return q.lane(laneKey{}, func() lane { return &freeLane{newGroup()} })
	}
	l := q.lane(keyOfOwner(pod.Namespace, owner.UID), func() lane { return newOwnerLane(&q.ownerLanes, now) })
	l.(*ownerLane).read(owner, metav1.GetControllerOfNoCopy(pod), now)
	return l
}

// lane returns the lane with a key and creates it if necessary.
func (q *Queue) lane(key laneKey, create func() lane) lane {
	l, ok := q.lanes[key]
	if !ok {
		l = create()
		l.common().key = key
		q.lanes[key], q.ring = l, append(q.ring, l)
	}
	return l
}

func (q *Queue) leaveLane(it *item) {
	if it.lane != nil {
		delete(it.lane.common().members, it)
		it.lane = nil
	}
}

// tidy drops the lanes that are done, reviews the other lanes, and returns the time of the next
// step if there is no event before. Work that is due but was not started waits for an answer, so it
// needs no time.
func (q *Queue) tidy(now time.Time) (next time.Time) {
	wakeAt := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	kept, turn := q.ring[:0], q.turn
	for i, l := range q.ring {
		if !l.isDone(now) {
			kept = append(kept, l)
			q.review(l.common(), now)
			l.addWakeTimes(wakeAt)
			continue
		}
		if i <= turn {
			q.turn--
		}
		delete(q.lanes, l.common().key)
		l.drop()
	}
	clear(q.ring[len(kept):])
	q.ring = kept
	if it := q.resting.first(); it != nil {
		wakeAt(it.due)
	}
	wakeAt(q.pausedUntil)
	for _, c := range q.churn {
		wakeAt(c.next)
	}
	return next
}
