// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/host/inflight"
)

const (
	// callTimeout is longer than the API server may take for an eviction: twenty conflicts of half
	// a second on the pod, and as many on the budget.
	callTimeout = 40 * time.Second
	// resendAfter is how long a pod may look untouched in the cache after its eviction was
	// accepted.
	resendAfter = time.Minute
	// overloadPause is how long nothing is sent to an overloaded API server that does not say
	// itself.
	overloadPause = time.Second
)

// call is an eviction on its way.
type call struct {
	it   *item
	lane *lane
	pass pass
	sent time.Time
	// budgetVersion is the resourceVersion of the budget that the pass was derived from.
	budgetVersion string
	// allowed and laneAllowed are how many calls were allowed, of the queue and of the lane, when
	// it was sent.
	allowed, laneAllowed int
	// unready: the pod was sent without room in its budget because it was not ready.
	unready bool
}

// step sends what may be sent, reviews who is blocked, and returns when there is something to do
// next; zero if only an event can tell.
func (q *Queue) step(ctx context.Context, calls *sync.WaitGroup) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
	q.stepped = true
	q.applyBudgets(now)
	for it := q.resting.first(); it != nil && !it.due.After(now); it = q.resting.first() {
		if q.sent[it.UID] == it {
			q.forget(it)
			continue
		}
		q.place(it, now)
	}
	if !now.Before(q.pausedUntil) {
		for _, c := range append(q.pickInterrupted(now), q.pick(now)...) {
			calls.Go(func() { q.send(ctx, c) })
		}
	}
	q.tidyLanes(now)
	q.review(now)
	evictionsInFlight.Set(float64(q.inFlight))
	countLanes(q.ring)
	return q.wakeAt(now)
}

// pick takes as many pods out of the lanes as may be sent now. It first takes pods that have not
// been tried, one lane after another. Only when no such pod is left, it takes pods that have been
// tried, in the order of their last tries, the oldest first. So no pod is tried again before all
// other pods had their turn.
func (q *Queue) pick(now time.Time) []call {
	awake := q.awakePerLane(now)
	return q.pickRetries(q.pickFirstTries(nil, awake, now), awake, now)
}

func (q *Queue) pickFirstTries(picked []call, awake int, now time.Time) []call {
	for idle := 0; idle < len(q.ring); {
		q.turn = (q.turn + 1) % len(q.ring)
		l := q.ring[q.turn]
		it, p := q.offer(l, awake, now)
		if it == nil || it.tried != 0 || !l.take(p, q.probes, now) {
			idle++
			continue
		}
		idle = 0
		picked = q.begin(picked, it, p, now)
	}
	return picked
}

func (q *Queue) pickRetries(picked []call, awake int, now time.Time) []call {
	for {
		var next *item
		var pass pass
		for _, l := range q.ring {
			if it, p := q.offer(l, awake, now); it != nil && (next == nil || it.tried < next.tried) {
				next, pass = it, p
			}
		}
		if next == nil {
			return picked
		}
		if next.lane.take(pass, q.probes, now) {
			picked = q.begin(picked, next, pass, now)
		}
	}
}

// offer returns the pod of a lane that may be sent now, nil if there is none.
func (q *Queue) offer(l *lane, awake int, now time.Time) (*item, pass) {
	if !q.mayCall(l) {
		return nil, passNone
	}
	if l.owner != nil {
		q.decideTurn(l, now)
	}
	return l.offer(awake, now)
}

// mayCall reports whether another call of the lane may be in flight.
func (q *Queue) mayCall(l *lane) bool {
	if q.inFlight >= q.concurrency.limit {
		return false
	}
	return l.isFree() || q.budgeted < q.concurrency.forBudgets()
}

// awakePerLane is how many calls each lane may have awake.
func (q *Queue) awakePerLane(now time.Time) int {
	moving := 0
	for _, l := range q.ring {
		if l.moves(now) {
			moving++
		}
	}
	return max(1, laneAwake/max(1, moving))
}

func (q *Queue) isStillThere(it *item) bool {
	pod := q.cached(it)
	return pod != nil && canBeAsked(pod)
}

// cached returns the item's own pod from the cache, nil if the cache has none or another of that
// name.
func (q *Queue) cached(it *item) *corev1.Pod {
	pod, err := q.pods.Pods(it.Evacuation.Namespace).Get(it.Pod)
	if err != nil || pod.UID != it.UID {
		return nil
	}
	return pod
}

// canBeAsked reports whether the pod has not yet been asked to stop nor stopped by itself.
func canBeAsked(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// begin adds the call for an item to those picked, unless it must not be made after all.
func (q *Queue) begin(picked []call, it *item, p pass, now time.Time) []call {
	it.leaveHeap()
	if !q.isStillThere(it) {
		// The cache has moved on and its event is on the way. An eviction by name would use up
		// budget for another pod.
		q.place(it, now)
		return picked
	}
	// First, so that a client that withdraws the Evacuation either finds the eviction in flight or
	// prevents it.
	q.underway.Add(inflight.Eviction{Evacuation: it.Evacuation, Pod: it.Pod, UID: it.UID})
	if !q.wanted(it.Request) {
		q.underway.Remove(it.UID)
		q.park(it, nil)
		return picked
	}
	l := it.lane
	c := call{it: it, lane: l, pass: p, sent: now, allowed: q.concurrency.limit, laneAllowed: l.awake.limit}
	if !l.isFree() {
		c.budgetVersion = l.budget.ResourceVersion
		c.unready = p == passFree
		q.budgeted++
	}
	if p != passFree && p != passGranted {
		l.unconfirmed[it.Pod] = time.Time{}
	}
	if l.owner != nil {
		l.owner.take(it.UID)
		it.takenFrom = l.owner
	}
	q.tries++
	it.phase, it.tried = phaseInFlight, q.tries
	l.sending[it] = now
	q.inFlight++
	return append(picked, c)
}

// send makes one call. It is the only place where the queue talks to the API, and it does so
// without the lock.
func (q *Queue) send(ctx context.Context, c call) {
	ctx, cancel := untilFinished(ctx)
	defer cancel()
	it := c.it
	pod := q.cached(it)
	err := q.call(ctx, c)
	took := q.clock.Since(c.sent)
	a := answerOf(err, c.unready)
	evictionsTotal.WithLabelValues(string(a.verdict)).Inc()
	logger(ctx, it).V(4).Info("Eviction answered", "answer", a.verdict, "took", took, "message", a.message)
	mayHaveCounted := a.verdict == verdictUnknown
	if mayHaveCounted {
		a = q.reread(ctx, it, a)
	}
	if a.verdict == verdictAccepted && pod != nil {
		q.evicted(pod, c.budgetVersion != "")
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	q.settle(c, a, mayHaveCounted, took)
	q.wake()
}

func evictionOf(it *item, options metav1.DeleteOptions) *policyv1.Eviction {
	return &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: it.Evacuation.Namespace, Name: it.Pod}, DeleteOptions: &options}
}

// reread finds out what has become of a pod whose eviction got lost.
func (q *Queue) reread(ctx context.Context, it *item, a answer) answer {
	pod, err := q.host.Pod(ctx, it.Evacuation.Namespace, it.Pod)
	switch {
	case apierrors.IsNotFound(err):
		return answer{verdict: verdictGone}
	case err != nil:
		return answer{verdict: verdictOverloaded, message: err.Error()}
	case pod.UID != it.UID:
		return answer{verdict: verdictGone}
	case pod.DeletionTimestamp != nil:
		return answer{verdict: verdictAccepted}
	}
	return a
}

// settle takes in an answer: the lane and the queue learn their pace from it, the pod goes where it
// belongs now.
func (q *Queue) settle(c call, a answer, mayHaveCounted bool, took time.Duration) {
	now := q.clock.Now()
	q.inFlight--
	if !c.lane.isFree() {
		q.budgeted--
	}
	delete(c.lane.sending, c.it)
	if o := c.lane.owner; o != nil {
		o.settle(c.it.UID, a.verdict == verdictAccepted || a.verdict == verdictGone, now)
	}
	q.pace(c, a, took, now)
	if _, counted := c.lane.unconfirmed[c.it.Pod]; counted {
		if mayHaveCounted || a.verdict == verdictAccepted {
			c.lane.unconfirmed[c.it.Pod] = now
		} else {
			delete(c.lane.unconfirmed, c.it.Pod)
		}
	}
	switch a.verdict {
	case verdictBudgetClosed, verdictBudgetStale, verdictTooManyDisruptedPods:
		c.lane.refuse(c.budgetVersion, now)
	}
	c.it.settle(a, q.policy.DeniedAfter, now)
	if c.it.phase != phaseAccepted || !q.isStillThere(c.it) {
		q.underway.Remove(c.it.UID)
	}
	if a.verdict == verdictBudgetClosed && c.pass == passProbe && c.lane.open {
		// The budget opened while it refused the probe, which must not make the pod miss that.
		c.it.due, c.it.failures = now, 0
	}
	if q.sent[c.it.UID] == c.it {
		q.leaveLane(c.it)
		if c.it.phase == phaseAccepted && q.isStillThere(c.it) {
			q.resting.add(c.it)
		} else {
			q.forget(c.it)
		}
		return
	}
	q.place(c.it, now)
	if a.verdict == verdictBudgetClosed {
		q.changed(c.it.Evacuation)
	}
}

// pace adapts how many calls may be in flight. What admission or a lost connection says about one
// pod tells nothing about the others.
func (q *Queue) pace(c call, a answer, took time.Duration, now time.Time) {
	switch a.verdict {
	case verdictOverloaded:
		q.concurrency.bad(c.allowed)
		if q.overloadedBy != "" && q.overloadedBy != c.it.UID {
			q.pausedUntil = latest(q.pausedUntil, now.Add(max(overloadPause, a.retryAfter)))
		}
		q.overloadedBy = c.it.UID
	case verdictUnknown:
		if !c.lane.isFree() {
			c.lane.awake.bad(c.laneAllowed)
		}
	case verdictDenied:
	default:
		q.concurrency.good()
		q.overloadedBy = ""
		if !c.lane.isFree() && took < conflictDelay {
			// One that met a conflict says neither that more would do nor that fewer would be
			// quicker.
			c.lane.awake.good()
		}
	}
}

// place puts an item where it belongs: into the lane of its budget, to rest, or aside.
func (q *Queue) place(it *item, now time.Time) {
	it.leaveHeap()
	if it.phase == phaseAccepted && it.due.After(now) {
		// What blocked it stays on show: the pod's own change will tell that it is over, with one
		// write of the status instead of two.
		q.leaveLane(it)
		q.resting.add(it)
		return
	}
	q.underway.Remove(it.UID)
	pod := q.cached(it)
	if pod == nil || !canBeAsked(pod) {
		q.park(it, nil)
		return
	}
	if it.phase == phaseParked {
		it.trouble = nil
	}
	it.read(pod)
	q.matchBudgets(it, pod.Labels)
	var matching []*policyv1.PodDisruptionBudget
	if pdb.Holds(pod) {
		matching = q.budgetsOf(it)
	}
	if len(matching) > 1 {
		q.park(it, severalBudgets(matching))
		return
	}
	if it.takenFrom != nil {
		// It was to leave and is still there, or was refused.
		delete(it.takenFrom.taken, it.UID)
		it.takenFrom = nil
	}
	if len(matching) == 0 {
		q.joinLane(it, q.ownerLane(it, pod, now), now)
	} else {
		q.joinLane(it, q.budgetLane(matching[0], now), now)
	}
	if it.phase == phaseResting && it.due.After(now) {
		q.resting.add(it)
	} else {
		it.phase = phaseWaiting
		it.lane.add(it)
	}
	if t := it.trouble; t != nil && t.from.After(now) {
		it.lane.reviewBy(t.from)
	}
	if it.lane.owner != nil {
		it.lane.reviewBy(now.Add(blockedAfter))
	}
	q.show(it, q.blockerOf(it, now))
}

// park sets an item aside until an event of its pod or of a budget.
func (q *Queue) park(it *item, why *Blocker) {
	q.leaveLane(it)
	it.phase, it.trouble = phaseParked, nil
	if why != nil {
		it.trouble = &trouble{Blocker: *why}
	}
	q.show(it, why)
}

func (q *Queue) budgetLane(budget *policyv1.PodDisruptionBudget, now time.Time) *lane {
	name := pdb.NameOf(budget)
	l := q.lanes[name]
	if l == nil {
		l = newLane(name, budget, now)
		q.lanes[name] = l
		q.ring = append(q.ring, l)
	}
	return l
}

func (q *Queue) joinLane(it *item, l *lane, now time.Time) {
	if it.lane == l {
		return
	}
	q.leaveLane(it)
	it.lane = l
	l.members[it] = struct{}{}
	if !l.isFree() && !l.open {
		l.reviewBy(now.Add(blockedAfter))
	}
}

func (q *Queue) leaveLane(it *item) {
	if it.lane != nil {
		delete(it.lane.members, it)
		it.lane = nil
	}
}

// tidyLanes drops the lanes without pods and calls.
func (q *Queue) tidyLanes(now time.Time) {
	kept := q.ring[:0]
	for _, l := range q.ring {
		switch {
		case l == q.free || !l.isIdle(now) || l.owner != nil && !l.owner.isDone(q.policy.UnprotectedPatience, now):
			kept = append(kept, l)
		case l.owner != nil:
			q.dropOwner(l.owner)
		default:
			delete(q.lanes, l.budgetName)
		}
	}
	clear(q.ring[len(kept):])
	q.ring = kept
}

// wakeAt is when the queue has something to do even if nothing happens. What is due already waits
// for an answer, not for a time.
func (q *Queue) wakeAt(now time.Time) time.Time {
	w := alarm{now: now}
	if it := q.resting.first(); it != nil {
		w.ring(it.due)
	}
	w.ring(q.pausedUntil)
	for _, c := range q.churn {
		w.ring(c.next)
	}
	for _, l := range q.ring {
		l.setAlarm(&w)
	}
	return w.at
}

// alarm keeps the earliest of the times that are still to come; zero if there is none.
type alarm struct {
	now, at time.Time
}

func (w *alarm) ring(t time.Time) {
	if t.After(w.now) && (w.at.IsZero() || t.Before(w.at)) {
		w.at = t
	}
}

// DefaultMaxConcurrent is how many evictions may be in flight, unless an option says something
// else.
const DefaultMaxConcurrent = 200

// concurrency is how many calls may be in flight: half as many after an answer that means trouble,
// one more after each good one.
type concurrency struct {
	limit, most int
}

func (c *concurrency) good() {
	c.limit = min(c.limit+1, c.most)
}

// bad takes in a bad answer to a call that was sent when sentUnder calls were allowed. Half of that
// is allowed now: the answers to calls that were sent together halve it once.
func (c *concurrency) bad(sentUnder int) {
	c.limit = max(1, min(c.limit, sentUnder/2))
}

// forBudgets is how many of the calls may be those of pods with budgets. A call that meets a
// conflict on a budget sleeps in the API server for up to ten seconds, and pods without budgets
// must not wait for those.
func (c *concurrency) forBudgets() int {
	return max(1, c.limit/2)
}
