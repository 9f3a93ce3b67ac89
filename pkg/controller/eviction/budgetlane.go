// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"maps"
	"time"

	policyv1 "k8s.io/api/policy/v1"

	"haulout.dev/haulout/pkg/drain/pdb"
)

const (
	// laneCalls is the maximum number of calls in flight under one budget. Two calls that update
	// the budget at the same time conflict: the API server retries one of them after half a second,
	// up to twenty times. Up to about this number, calls almost never fail, and the budget is
	// always in use.
	laneCalls = 24
	// laneAwake is the maximum number of those calls that are awake, not sleeping after a conflict.
	// A lane begins with one and gets one more for each answer without a conflict. All lanes that
	// move share this number, and each has at least one: more would cause conflicts while the API
	// server is busy anyway.
	laneAwake = 6
	// asleepAfter is after how long a call counts as sleeping in the API server because of a
	// conflict. Another pod can be evicted meanwhile: a sleeping call costs nothing.
	asleepAfter = 80 * time.Millisecond
	// conflictDelay is the shortest time that an eviction with a conflict takes: the API server
	// sleeps that long before it retries.
	conflictDelay = 400 * time.Millisecond

	// unconfirmedFor is how long an accepted eviction is subtracted from what the budget's status
	// allows, if the status never lists it.
	unconfirmedFor = 5 * time.Second

	// blockedAfter is how long a budget has to be closed before its pods count as blocked, and how
	// long it has to be open before they no longer do. Without it, a budget that opens and closes
	// would cost two status writes of every pod each time.
	blockedAfter = 10 * time.Second

	// steadyAfter is how long the numbers of healthy and expected pods must not change before the
	// unhealthy pods count as stuck. Until then they may be starting.
	steadyAfter = time.Minute

	// firstProbeAfter is how long a closed lane waits for a watch event of its budget before it
	// sends a probe, in case the cache is stale. The wait doubles with every probe.
	firstProbeAfter = 10 * time.Second
	maxProbeDelay   = 15 * time.Minute
	// probeInterval is the shortest time between two probes of all closed lanes together.
	probeInterval = 6 * time.Second
)

// The API server evicts in two steps: it adds the pod's name to the status of the budget, then it
// deletes the pod. If the client or the API server is killed between the two, the budget is used up
// and the pod still exists. The disruption controller removes the name only after two minutes, and
// until then a budget of one allows nothing. So the queue does the second step: the budget has
// already granted the eviction.
const (
	// interruptedAfter is how long a name has to be listed, and its pod unchanged, before the
	// eviction counts as interrupted.
	interruptedAfter = 5 * time.Second
	// interruptedUntil is the maximum age of an entry, by its own time and by our clock since we
	// first saw it. The entry must still exist when the pod is deleted: otherwise the budget would
	// also grant another eviction.
	interruptedUntil = 90 * time.Second

	// clockTolerance is how far ahead of our clock the time of an entry may be. Beyond that the
	// clocks differ too much, and the age of the entry is unknown.
	clockTolerance = 5 * time.Second
)

// budgetLane has the pods of one PodDisruptionBudget, because every eviction under it is an update
// of that object. While the budget is closed, the lane offers only rare probes.
type budgetLane struct {
	group
	*budgetLanes
	budget *policyv1.PodDisruptionBudget

	// limit bounds the awake calls of this lane.
	limit concurrency
	// unconfirmed has the evictions that are missing in the cached status of the budget, by pod
	// name, with the time of their answer; zero while there is none.
	unconfirmed map[string]time.Time
	// granted has, by pod name, when we first saw a pod in disruptedPods of the budget's status.
	granted map[string]time.Time
	// refusedAt is the resourceVersion of the budget with which the API refused an eviction that
	// the status allowed.
	refusedAt string

	// open reports that the budget allows a disruption, according to its status and the last
	// answers; since is the time of the last change of open.
	open  bool
	since time.Time
	// steadySince is when the numbers of healthy or expected pods last changed.
	steadySince time.Time

	// probeAt is when the lane's next probe is due.
	probeAt    time.Time
	probeDelay time.Duration
}

// budgetLanes has the state that the lanes of all budgets share.
type budgetLanes struct {
	// probeAllowedAt is when one of the lanes may send the next probe.
	probeAllowedAt time.Time
	// awake is the maximum number of awake calls of each lane.
	awake int
}

func newBudgetLane(all *budgetLanes, budget *policyv1.PodDisruptionBudget, now time.Time) *budgetLane {
	l := &budgetLane{
		group: newGroup(), budgetLanes: all, budget: budget, limit: concurrency{limit: 1, most: laneAwake},
		unconfirmed: map[string]time.Time{}, granted: map[string]time.Time{}, open: true, since: now, steadySince: now,
	}
	l.protected = true
	l.observe(budget, now)
	return l
}

// observe processes a new version of the budget and reports whether it allows a disruption.
func (l *budgetLane) observe(budget *policyv1.PodDisruptionBudget, now time.Time) (allows bool) {
	if was, is := l.budget.Status, budget.Status; was.CurrentHealthy != is.CurrentHealthy || was.ExpectedPods != is.ExpectedPods {
		l.steadySince = now
	}
	l.budget = budget
	l.noteGranted(now)
	allows = pdb.Allowed(budget) > 0 && budget.ResourceVersion != l.refusedAt
	switch {
	case allows && !l.open:
		l.open, l.since = true, now
		l.reviewBy(now.Add(blockedAfter))
	case !allows && l.open:
		l.close(now)
	case !allows:
		// The cause may have changed.
		l.reviewBy(latest(now, l.since.Add(blockedAfter)))
	}
	return allows
}

// noteGranted records when each name first appeared in the budget's status. The times in the status
// come from another clock.
func (l *budgetLane) noteGranted(now time.Time) {
	listed := l.budget.Status.DisruptedPods
	maps.DeleteFunc(l.granted, func(pod string, _ time.Time) bool {
		_, still := listed[pod]
		return !still
	})
	for pod := range listed {
		delete(l.unconfirmed, pod)
		if _, known := l.granted[pod]; !known {
			l.granted[pod] = now
		}
	}
}

func (l *budgetLane) close(now time.Time) {
	l.open, l.since = false, now
	l.probeDelay = firstProbeAfter
	l.probeAt = now.Add(l.probeDelay)
	l.reviewBy(now.Add(blockedAfter))
}

// hasRoom reports whether the budget allows another eviction, as far as the queue knows.
func (l *budgetLane) hasRoom(now time.Time) bool {
	return l.open && pdb.Allowed(l.budget) > l.pending(now)
}

// pending returns the number of unconfirmed evictions.
func (l *budgetLane) pending(now time.Time) int {
	maps.DeleteFunc(l.unconfirmed, func(_ string, accepted time.Time) bool {
		return !accepted.IsZero() && now.Sub(accepted) >= unconfirmedFor
	})
	return len(l.unconfirmed)
}

func (l *budgetLane) offer(now time.Time) (*item, pass) {
	it, unready := l.first(), l.unready.first()
	if it == nil || !l.hasSlot(now) {
		return nil, passPlain
	}
	hasRoom := l.hasRoom(now)
	switch {
	case unready != nil && (it == unready || !hasRoom) && pdb.LetsUnreadyGo(l.budget):
		return unready, passUnready
	case hasRoom:
		return it, passPlain
	case !l.open && l.pending(now) == 0 && !now.Before(l.nextProbe()):
		return it, passProbe
	}
	return nil, passPlain
}

// hasSlot reports whether another call under the budget may be sent.
func (l *budgetLane) hasSlot(now time.Time) bool {
	if len(l.sending) >= laneCalls {
		return false
	}
	busy := 0
	for _, sent := range l.sending {
		if now.Sub(sent) < asleepAfter {
			busy++
		}
	}
	return busy < min(l.limit.limit, l.awake)
}

// nextProbe returns when the lane may offer a pod although its budget is closed in the cache. The
// offer alone does not delay the probes of other lanes, only a call does: the queue does not take
// every offer.
func (l *budgetLane) nextProbe() time.Time {
	return latest(l.probeAt, l.probeAllowedAt)
}

func (l *budgetLane) moves(now time.Time) bool {
	return (l.first() != nil || len(l.sending) > 0) && (l.open || now.Sub(l.since) < blockedAfter)
}

// interrupted returns the pods whose eviction the budget has granted, but which were not deleted.
// If the age of an entry is unknown, the disruption controller has to remove it.
func (l *budgetLane) interrupted(now time.Time) (found []*item) {
	long := false
	for _, since := range l.granted {
		long = long || now.Sub(since) >= interruptedAfter
	}
	if !long { // The common case: no loop over all members.
		return nil
	}
	for it := range l.members {
		since, listed := l.granted[it.Pod]
		// A pod that rests for another reason was just refused.
		waits := it.phase == phaseWaiting || it.phase == phaseResting && it.restsForBudget
		granted := l.budget.Status.DisruptedPods[it.Pod].Time
		seen, age := now.Sub(since), now.Sub(granted)
		if listed && waits && seen >= interruptedAfter && seen < interruptedUntil && age >= -clockTolerance && age < interruptedUntil && !granted.Before(it.created) {
			found = append(found, it)
		}
	}
	return found
}

func (l *budgetLane) begin(c *call) {
	l.group.begin(c)
	c.budgetVersion, c.laneLimit = l.budget.ResourceVersion, l.limit.limit
	if c.pass == passProbe {
		l.probeDelay = min(2*l.probeDelay, maxProbeDelay)
		l.probeAt, l.probeAllowedAt = c.sent.Add(l.probeDelay), c.sent.Add(probeInterval)
	}
	if c.pass == passProbe || c.pass == passPlain {
		l.unconfirmed[c.Pod] = time.Time{}
	}
}

func (l *budgetLane) handleAnswer(c *call, a answer, now time.Time) {
	l.group.handleAnswer(c, a, now)
	if _, counted := l.unconfirmed[c.Pod]; counted {
		delete(l.unconfirmed, c.Pod)
		if a.lost || a.verdict == verdictAccepted {
			l.unconfirmed[c.Pod] = now
		}
	}
	switch a.verdict {
	case verdictUnknown:
		l.limit.bad(c.laneLimit)
		return
	case verdictOverloaded, verdictDenied, verdictWithdrawn:
		return
	case verdictBudgetClosed, verdictBudgetStale, verdictTooManyDisruptedPods:
		// If the budget has not changed since the call, its status allowed the eviction wrongly.
		if l.budget.ResourceVersion == c.budgetVersion {
			l.refusedAt = c.budgetVersion
			if l.open {
				l.close(now)
			}
		}
		if l.open && c.pass == passProbe && a.verdict == verdictBudgetClosed {
			// The budget opened during the probe: the pod must not back off.
			c.it.phase, c.it.failures = phaseWaiting, 0
		}
	}
	if c.took < conflictDelay {
		// A call with a conflict changes nothing: it is no sign for more calls, nor for fewer.
		l.limit.good()
	}
}

// judge keeps the previous blocker while its reason is the same: otherwise the changing numbers of
// a busy budget would be written into the status of every waiting pod.
func (l *budgetLane) judge(it *item, now time.Time) (b *Blocker, note string, until time.Time) {
	if it.starved {
		b = it.blocker
	}
	if l.open {
		if until = l.since.Add(blockedAfter); b == nil || !now.Before(until) {
			return nil, "", time.Time{}
		}
		return b, "", until
	}
	if until = latest(l.since, it.added).Add(blockedAfter); now.Before(until) {
		return b, "", until
	}
	until = l.steadySince.Add(steadyAfter)
	why, held := pdb.HeldByUnhealthy(l.budget, !it.notReady, !now.Before(until))
	if !held {
		why = pdb.Explain(l.budget, l.members[it])
	}
	if b == nil || b.Reason != why.Reason {
		b = &why
	}
	return b, "", until
}

func (l *budgetLane) isDone(now time.Time) bool {
	return l.group.isDone(now) && l.pending(now) == 0
}

func (l *budgetLane) addWakeTimes(add func(time.Time)) {
	l.group.addWakeTimes(add)
	for _, since := range l.granted {
		add(since.Add(interruptedAfter))
	}
	if l.first() == nil {
		return
	}
	if !l.open {
		add(l.nextProbe())
	}
	for _, sent := range l.sending {
		add(sent.Add(asleepAfter))
	}
	for _, accepted := range l.unconfirmed {
		if !accepted.IsZero() {
			add(accepted.Add(unconfirmedFor))
		}
	}
}
