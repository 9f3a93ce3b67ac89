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

package eviction

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/eviction/pdb"
)

const (
	// callTimeout is longer than the API server may take for an eviction: twenty conflicts of half a second on the pod, and as many on the
	// budget.
	callTimeout = 40 * time.Second
	// resendAfter is how long a pod may look untouched in the cache after its eviction was accepted.
	resendAfter = time.Minute
	// overloadPause is how long nothing is sent to an overloaded API server that does not say itself.
	overloadPause = time.Second

	// firstCalls is how many evictions may be in flight when there was none. Quick answers double that.
	firstCalls = 50
	// budgetedCalls bounds those of pods with budgets, all together: a call that meets a conflict sleeps in the API server, and keeps a seat of
	// its priority level from others.
	budgetedCalls = 50

	firstRest      = time.Second
	maxBudgetRest  = 15 * time.Minute
	maxTroubleRest = 5 * time.Minute
)

// call is an eviction on its way.
type call struct {
	it   *item
	lane *lane
	pass pass
	sent time.Time
	// budgetVersion is the resourceVersion of the budget that the pass was derived from.
	budgetVersion string
	// unready: the pod was sent without room in its budget because it was not ready.
	unready bool
}

// step sends what may be sent, reviews who is blocked, and returns when there is something to do next; zero if only an event can tell.
func (q *Queue) step(ctx context.Context, calls *sync.WaitGroup) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
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
	if it, pod := q.pickLowered(now); it != nil {
		calls.Go(func() { q.lower(ctx, it, pod) })
	}
	q.tidyLanes(now)
	q.review(now)
	evictionsInFlight.Set(float64(q.inFlight))
	countLanes(q.ring)
	return q.wakeAt(now)
}

// pick takes as many pods out of the lanes as may be sent now, one lane after another.
func (q *Queue) pick(now time.Time) []call {
	var picked []call
	awake := q.awakePerLane(now)
	for idle := 0; idle < len(q.ring); {
		q.turn = (q.turn + 1) % len(q.ring)
		l := q.ring[q.turn]
		if !q.mayCall(l) {
			idle++
			continue
		}
		it, p := l.next(now, awake, q.probes)
		if p == passNone {
			idle++
			continue
		}
		idle = 0
		it.leaveHeap()
		if !q.isStillThere(it) {
			// The cache has moved on and its event is on the way. An eviction by name would use up budget for another pod.
			q.place(it, now)
			continue
		}
		if !q.wanted(it.Request) {
			q.park(it, nil)
			continue
		}
		picked = append(picked, q.begin(it, p, now))
	}
	if q.inFlight == 0 {
		q.window.restart(firstCalls, now)
	}
	q.full = max(len(q.free.sending), q.budgeted()) >= q.window.limit
	return picked
}

// mayCall says whether another call of the lane may be in flight. Those for pods with and without budgets do not take the window from each other.
func (q *Queue) mayCall(l *lane) bool {
	if q.inFlight >= q.window.ceiling {
		return false
	}
	if l.isFree() {
		return len(l.sending) < q.window.limit
	}
	return q.budgeted() < min(budgetedCalls, q.window.limit)
}

// budgeted is how many calls are in flight for pods with budgets.
func (q *Queue) budgeted() int {
	return q.inFlight - len(q.free.sending)
}

// awakePerLane is how many calls each lane may have awake.
func (q *Queue) awakePerLane(now time.Time) int {
	moving := 0
	for _, l := range q.ring {
		if l.moves(now) {
			moving++
		}
	}
	return max(1, laneCeiling/max(1, moving))
}

func (q *Queue) isStillThere(it *item) bool {
	pod := q.cached(it)
	return pod != nil && canBeAsked(pod)
}

// cached returns the item's own pod from the cache, nil if the cache has none or another of that name.
func (q *Queue) cached(it *item) *corev1.Pod {
	pod, err := q.pods.Pods(it.Evacuation.Namespace).Get(it.Pod)
	if err != nil || pod.UID != it.UID {
		return nil
	}
	return pod
}

// canBeAsked says whether the pod has not yet been asked to stop nor stopped by itself.
func canBeAsked(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

func (q *Queue) begin(it *item, p pass, now time.Time) call {
	c := call{it: it, lane: it.lane, pass: p, sent: now}
	if !it.lane.isFree() {
		c.budgetVersion = it.lane.budget.ResourceVersion
		c.unready = p == passFree
	}
	if p != passFree && p != passGranted {
		it.lane.unconfirmed[it.Pod] = time.Time{}
	}
	it.phase = phaseInFlight
	it.lane.sending[it] = now
	q.inFlight++
	return c
}

// send makes one call. It is the only place where the queue talks to the API, and it does so without the lock.
func (q *Queue) send(ctx context.Context, c call) {
	ctx, cancel := untilFinished(ctx)
	defer cancel()
	it := c.it
	err := q.call(ctx, c)
	took := q.clock.Since(c.sent)
	a := answerOf(err, c.unready)
	evictionsTotal.WithLabelValues(string(a.verdict)).Inc()
	logger(ctx, it).V(4).Info("Eviction answered", "answer", a.verdict, "took", took, "message", a.message)
	mayHaveCounted := a.verdict == verdictUnknown
	if mayHaveCounted {
		a = q.reread(ctx, it, a)
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

// settle takes in an answer: the lane and the queue learn their pace from it, the pod goes where it belongs now.
func (q *Queue) settle(c call, a answer, mayHaveCounted bool, took time.Duration) {
	now := q.clock.Now()
	q.inFlight--
	delete(c.lane.sending, c.it)
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
	c.it.settle(a, now)
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

// pace adapts how many calls may be in flight.
func (q *Queue) pace(c call, a answer, took time.Duration, now time.Time) {
	if a.verdict == verdictOverloaded {
		q.window.bad(c.sent, now)
		q.pausedUntil = now.Add(max(overloadPause, a.retryAfter))
		return
	}
	if c.lane.isFree() && took >= slowAnswer {
		q.window.bad(c.sent, now)
		return
	}
	if q.full {
		q.window.good()
	}
	switch {
	case c.lane.isFree():
	case a.verdict == verdictUnknown:
		c.lane.window.bad(c.sent, now)
	case took < conflictDelay:
		// One that met a conflict says neither that more would do nor that fewer would be quicker.
		c.lane.window.good()
	}
}

// settle draws the consequences of an answer for the pod itself.
func (it *item) settle(a answer, now time.Time) {
	it.trouble = nil
	it.phase = phaseWaiting
	switch a.verdict {
	case verdictAccepted, verdictGone:
		it.phase, it.due, it.failures = phaseAccepted, now.Add(resendAfter), 0
	case verdictBudgetClosed:
		it.failed++
		it.rest(now, maxBudgetRest, true)
	case verdictBudgetStale, verdictOverloaded:
		// The lane, or the queue, waits in its stead.
	case verdictTooManyDisruptedPods:
		it.trouble = tooManyDisruptedPods(sentence(a.message))
		it.rest(now, maxBudgetRest, true)
	case verdictForbidden:
		it.trouble = &Blocker{
			Reason:  maintenancev1alpha1.ReasonEvictionForbidden,
			Message: "The eviction is forbidden: " + sentence(a.message) + " Grant the server the right, or delete the pod by hand.",
		}
		it.rest(now, maxTroubleRest, false)
	case verdictSeveralBudgets:
		it.trouble = &Blocker{
			Reason: maintenancev1alpha1.ReasonMultiplePodDisruptionBudgets,
			Message: "The pod is selected by more than one PodDisruptionBudget, which the eviction API refuses. " +
				"Change their selectors or delete all but one.",
		}
		it.rest(now, maxTroubleRest, false)
	case verdictFailed:
		it.trouble = &Blocker{
			Reason:  maintenancev1alpha1.ReasonEvictionError,
			Message: "The eviction fails: " + sentence(a.message) + " It is tried again.",
		}
		it.rest(now, maxTroubleRest, false)
	default:
		it.rest(now, maxTroubleRest, false)
	}
}

// sentence ends what the API server says with a full stop; it often leaves that out.
func sentence(s string) string {
	return strings.TrimRight(s, ". ") + "."
}

// rest puts the pod's next eviction off, each time for twice as long.
func (it *item) rest(now time.Time, longest time.Duration, forBudget bool) {
	pause := firstRest << min(it.failures, 20)
	it.failures++
	it.phase, it.due, it.restsForBudget = phaseResting, now.Add(min(pause, longest)), forBudget
}

// place puts an item where it belongs: into the lane of its budget, to rest, or aside.
func (q *Queue) place(it *item, now time.Time) {
	it.leaveHeap()
	if it.phase == phaseAccepted && it.due.After(now) {
		// What blocked it stays on show: the pod's own change will tell that it is over, with one write of the status instead of two.
		q.leaveLane(it)
		q.resting.add(it)
		return
	}
	pod := q.cached(it)
	if pod == nil || !canBeAsked(pod) {
		q.park(it, nil)
		return
	}
	if it.phase == phaseParked {
		it.trouble = nil
	}
	if bad := it.read(pod); bad != "" {
		q.badCost(pod, bad)
	}
	var matching []*policyv1.PodDisruptionBudget
	if pdb.Holds(pod) {
		matching = q.budgets.of(pod)
	}
	if len(matching) > 1 {
		q.park(it, severalBudgets(matching))
		return
	}
	q.joinLane(it, q.laneOf(matching, now), now)
	if it.phase == phaseResting && it.due.After(now) {
		q.resting.add(it)
	} else {
		it.phase = phaseWaiting
		it.lane.waiting.add(it)
	}
	q.show(it, q.blockerOf(it, now))
}

// park sets an item aside until an event of its pod or of a budget.
func (q *Queue) park(it *item, why *Blocker) {
	q.leaveLane(it)
	it.phase, it.trouble = phaseParked, why
	q.show(it, why)
}

func (q *Queue) laneOf(matching []*policyv1.PodDisruptionBudget, now time.Time) *lane {
	if len(matching) == 0 {
		return q.free
	}
	name := pdb.NameOf(matching[0])
	l := q.lanes[name]
	if l == nil {
		l = newLane(name, matching[0], now)
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

// tidyLanes drops the lanes that nobody needs.
func (q *Queue) tidyLanes(now time.Time) {
	kept := q.ring[:0]
	for _, l := range q.ring {
		if l.isFree() || !l.isIdle(now) {
			kept = append(kept, l)
			continue
		}
		delete(q.lanes, l.budgetName)
	}
	clear(q.ring[len(kept):])
	q.ring = kept
}

// wakeAt is when the queue has something to do even if nothing happens. What is due already waits for an answer, not for a time.
func (q *Queue) wakeAt(now time.Time) time.Time {
	w := alarm{now: now}
	if it := q.resting.first(); it != nil {
		w.ring(it.due)
	}
	w.ring(q.pausedUntil)
	q.lowering.setAlarm(&w)
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
