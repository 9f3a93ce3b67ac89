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
	// probeInterval is how often the closed lanes together may ask the API whether it sees what the
	// cache does: ten times a minute.
	probeInterval = 6 * time.Second
)

// The API server evicts in two steps: it takes the pod's name into the status of the budget, then
// it deletes the pod. Where it is interrupted between them, because its client was killed or it was
// itself, the budget is used up and the pod is still there. The disruption controller forgets such
// a name only after two minutes, and a budget of one allows nothing for as long. We take the second
// step ourselves: the budget has already paid for it.
const (
	// interruptedAfter is how long a name has to be listed with its pod untouched before the
	// eviction is taken for interrupted.
	interruptedAfter = 5 * time.Second
	// interruptedUntil is how old an entry may be, by its own time and by ours since we saw it. It
	// must still be there when the pod is deleted, or the budget would pay for another one.
	interruptedUntil = 90 * time.Second

	// clockTolerance is how far ahead of our clock the time of an entry may be. Beyond that the
	// clocks disagree, and the age of the entry is not known.
	clockTolerance = 5 * time.Second
)

// budgetLane has the pods of one PodDisruptionBudget, because every eviction under it is an update
// of that one object. While the budget is closed, the lane offers nothing but rare probes.
type budgetLane struct {
	group
	*budgetLanes
	budget *policyv1.PodDisruptionBudget

	// limit is how many calls may be awake.
	limit concurrency
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

	// probeAt is when the lane's next probe is due.
	probeAt    time.Time
	probeDelay time.Duration
}

// budgetLanes is what the lanes of all budgets share.
type budgetLanes struct {
	// probeAllowedAt is when one of them may send the next probe.
	probeAllowedAt time.Time
	// awake is how many calls of each lane may be awake.
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

// observe takes in a version of the budget and reports whether it allows a disruption.
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
		// Why it allows nothing may have changed.
		l.reviewBy(latest(now, l.since.Add(blockedAfter)))
	}
	return allows
}

// noteGranted keeps since when the budget's status has listed each name. The times in the status
// are those of another clock.
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

// hasRoom reports whether the budget would let another eviction pass, as far as we know.
func (l *budgetLane) hasRoom(now time.Time) bool {
	return l.open && pdb.Allowed(l.budget) > l.pending(now)
}

// pending is how many evictions the status of the budget does not show yet.
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

// nextProbe is when the lane may offer a pod although its budget seems closed. An offer makes no
// other lane wait, only a call does: the queue chooses from the offers.
func (l *budgetLane) nextProbe() time.Time {
	return latest(l.probeAt, l.probeAllowedAt)
}

func (l *budgetLane) moves(now time.Time) bool {
	return (l.first() != nil || len(l.sending) > 0) && (l.open || now.Sub(l.since) < blockedAfter)
}

// interrupted: the budget has granted the eviction of such a pod, and it was not carried out. An
// entry whose age is not known waits for the disruption controller.
func (l *budgetLane) interrupted(now time.Time) (found []*item) {
	long := false
	for _, since := range l.granted {
		long = long || now.Sub(since) >= interruptedAfter
	}
	if !long { // As is the rule, which spares the look at all members.
		return nil
	}
	for it := range l.members {
		since, listed := l.granted[it.Pod]
		// One that rests for another reason than its budget was just refused.
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

func (l *budgetLane) settle(c *call, a answer, now time.Time) {
	l.group.settle(c, a, now)
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
		// The status has let a pod go, unless it has changed since that pod was sent.
		if l.budget.ResourceVersion == c.budgetVersion {
			l.refusedAt = c.budgetVersion
			if l.open {
				l.close(now)
			}
		}
		if l.open && c.pass == passProbe && a.verdict == verdictBudgetClosed {
			// The budget opened while it refused the probe, which must not make the pod miss that.
			c.it.phase, c.it.failures = phaseWaiting, 0
		}
	}
	if c.took < conflictDelay {
		// One that met a conflict says neither that more would do nor that fewer would be quicker.
		l.limit.good()
	}
}

// judge keeps the former answer while it is still true, so that the numbers of a busy budget are
// not written into every waiting pod's status.
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

func (l *budgetLane) setAlarm(ring func(time.Time)) {
	l.group.setAlarm(ring)
	for _, since := range l.granted {
		ring(since.Add(interruptedAfter))
	}
	if l.first() == nil {
		return
	}
	if !l.open {
		ring(l.nextProbe())
	}
	for _, sent := range l.sending {
		ring(sent.Add(asleepAfter))
	}
	for _, accepted := range l.unconfirmed {
		if !accepted.IsZero() {
			ring(accepted.Add(unconfirmedFor))
		}
	}
}
