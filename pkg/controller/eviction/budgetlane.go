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
	// up to twenty times. Up to about this number, calls almost never fail because of that, and
	// there is always a call that updates the budget.
	laneCalls = 24
	// laneAwake is the maximum number of awake calls: calls that do not sleep in the API server
	// after a conflict. A lane begins with one awake call, and may have one more after each answer
	// without a conflict. The lanes that move share this number, and each may have at least one.
	// More calls would cause conflicts while the API server is busy anyway.
	laneAwake = 6
	// asleepAfter is the time after which a call counts as sleeping in the API server because of a
	// conflict. A sleeping call causes no load, so another pod can be evicted at the same time.
	asleepAfter = 80 * time.Millisecond
	// conflictDelay is the shortest time that an eviction with a conflict takes: the API server
	// sleeps for that time before it retries.
	conflictDelay = 400 * time.Millisecond

	// unconfirmedFor is how long an accepted eviction is subtracted from what the budget's status
	// allows, if the status never lists it.
	unconfirmedFor = 5 * time.Second

	// blockedAfter is how long a budget must allow no disruption before its pods count as blocked,
	// and how long it must allow one before they no longer do. Without it, each change of a budget
	// between the two would cost two status writes of every pod.
	blockedAfter = 10 * time.Second

	// steadyAfter is how long the numbers of healthy and expected pods must stay the same before
	// the unhealthy pods count as stuck. Until then they may be starting.
	steadyAfter = time.Minute

	// reviewAfter is the longest time between a change of a budget that has been closed for
	// blockedAfter and the review of its pods. Several changes may follow each other: first the
	// spec changes, then the status.
	reviewAfter = time.Second

	// reviewInterval is the shortest time between two reviews of a lane, since a review looks at
	// all of its members.
	reviewInterval = time.Second

	// firstProbeAfter is how long a closed lane waits for a watch event of its budget before it
	// sends a probe, since the cache may be stale. The wait doubles with every probe.
	firstProbeAfter = 10 * time.Second
	maxProbeDelay   = 15 * time.Minute
	// probeInterval is the shortest time between two probes of all closed lanes together.
	probeInterval = 6 * time.Second
)

// The API server evicts in two steps: it adds the pod's name to the status of the budget, then it
// deletes the pod. If the client or the API server is killed between the two steps, the name uses
// up the budget and the pod still exists. The disruption controller removes the name only after two
// minutes. Until then a budget for one pod allows no disruption. So the queue makes the second
// step, for which the budget has already granted the eviction.
const (
	// interruptedAfter is how long a name must be listed, and its pod unchanged, before the
	// eviction counts as interrupted.
	interruptedAfter = 5 * time.Second
	// interruptedUntil is the maximum age of an entry, according to its timestamp and according to
	// our clock since we first observed it. The entry must still exist when the pod is deleted.
	// Otherwise the budget would also allow another eviction.
	interruptedUntil = 90 * time.Second

	// clockTolerance is how far the timestamp of an entry may be ahead of our clock. If it is
	// further ahead, the clocks differ too much, and the age of the entry is unknown.
	clockTolerance = 5 * time.Second
)

// budgetLane has the pods of one PodDisruptionBudget, because every eviction under the budget
// updates that object. A lane is closed while its budget allows no disruption. Then it offers only
// rare probes.
type budgetLane struct {
	group
	*budgetLanes
	budget *policyv1.PodDisruptionBudget

	// limit is the limit of awake calls of this lane.
	limit concurrency
	// unconfirmed has the evictions that are not in the cached status of the budget yet, by pod
	// name, with the time of their answer. The time is zero until the answer arrives.
	unconfirmed map[string]time.Time
	// granted has, by pod name, the time at which we first observed a pod in disruptedPods of the
	// budget's status.
	granted map[string]time.Time
	// refusedAt is the resourceVersion of the budget at which the API refused an eviction although
	// the status allowed it.
	refusedAt string

	// open is set if the budget allows a disruption, according to its status and the last answers.
	// since is the time of the last change of open. opened is set once the lane has opened.
	open, opened bool
	since        time.Time
	// steadySince is the time at which the number of healthy or expected pods last changed.
	steadySince time.Time

	// staleSince is the time at which the spec became newer than the status; zero if it is not.
	staleSince time.Time

	// probeAt is the time of the lane's next probe.
	probeAt    time.Time
	probeDelay time.Duration
}

type budgetLanes struct {
	// probeAllowedAt is the time from which any of the lanes may send the next probe.
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
	if neverOrUnknown(l.budget) && !neverOrUnknown(budget) {
		// Messages that say so are false now.
		l.reviewBy(now.Add(reviewAfter))
	}
	l.budget = budget
	switch {
	case pdb.IsCurrent(budget):
		l.staleSince = time.Time{}
	case l.staleSince.IsZero():
		l.staleSince = now
	}
	l.noteGranted(now)
	allows = pdb.Allowed(budget) > 0 && budget.ResourceVersion != l.refusedAt
	switch {
	case allows && !l.open:
		l.open, l.opened, l.since = true, true, now
		l.reviewBy(now.Add(blockedAfter))
	case !allows && l.open:
		l.close(now)
	case !allows:
		// The cause may have changed, even though the budget still allows no disruption.
		l.reviewBy(latest(now.Add(reviewAfter), l.since.Add(blockedAfter)))
	}
	return allows
}

// noteGranted records when each name first appeared in the budget's status. It uses our clock,
// since the timestamps in the status come from another clock.
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

// nextProbe returns the time from which the lane may offer a pod although its budget allows no
// disruption in the cache. The probes of other lanes are delayed when the call is sent, and not by
// the offer, since the queue does not accept every offer.
func (l *budgetLane) nextProbe() time.Time {
	return latest(l.probeAt, l.probeAllowedAt)
}

func (l *budgetLane) moves(now time.Time) bool {
	return (l.first() != nil || len(l.sending) > 0) && (l.open || now.Sub(l.since) < blockedAfter)
}

// interrupted returns the pods whose eviction the budget has granted, but which were not deleted.
// It omits entries of unknown age, which the disruption controller has to remove.
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
		// A pod that rests for another reason was refused a moment ago.
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
		// If the budget has not changed since the call, its cached status allowed the eviction
		// wrongly.
		if l.budget.ResourceVersion == c.budgetVersion {
			l.refusedAt = c.budgetVersion
			if l.open {
				l.close(now)
			}
		}
		if l.open && c.pass == passProbe && a.verdict == verdictBudgetClosed {
			// The budget began to allow a disruption during the probe, so the pod needs no
			// back-off.
			c.it.endRest()
		}
	}
	if c.took < conflictDelay {
		// A call with a conflict does not show whether the number of concurrent calls is right, so
		// it does not change the limit.
		l.limit.good()
	}
}

// judge returns the previous blocker while its reason stays the same. Without this, the changing
// numbers of a busy budget would be written into the status of every waiting pod. The message about
// a budget that never allows an eviction, or whose status is not known, follows the budget. A
// blocker that is about another budget ends if this one opens now and then.
func (l *budgetLane) judge(it *item, now time.Time) judgement {
	var b *Blocker
	ours, known := it.about == l.key, it.about != laneKey{}
	if it.starved && (!ours || !it.follows || neverOrUnknown(l.budget)) && (ours || !known || !l.opened) {
		b = it.blocker
	}
	kept := func(until time.Time) judgement {
		if b == nil {
			return judgement{until: until}
		}
		return judgement{blocker: b, source: it.source, until: until}
	}
	if l.open {
		until := l.since.Add(blockedAfter)
		if b == nil || !now.Before(until) {
			return judgement{}
		}
		return kept(until)
	}
	if until := latest(l.since, it.added).Add(blockedAfter); now.Before(until) {
		return kept(until)
	}
	// The disruption controller usually follows a new spec within a second.
	if until := l.staleSince.Add(blockedAfter); !l.staleSince.IsZero() && now.Before(until) {
		return kept(until)
	}
	until := l.steadySince.Add(steadyAfter)
	why, held := pdb.HeldByUnhealthy(l.budget, !it.notReady, !now.Before(until))
	_, never := pdb.NeverAllows(l.budget)
	if !held {
		why = pdb.Explain(l.budget, l.members[it])
		if never && it.NotReplaced != "" {
			why = why.NotReplacedFirst(it.Deployment, it.NotReplaced)
		}
	}
	follows := never && (!held || it.notReady) || !pdb.IsCurrent(l.budget)
	if b == nil || b.Reason != why.Reason || (follows || !ours) && b.Message != why.Message {
		b = &why
	}
	return judgement{blocker: b, source: source{about: l.key, starved: true, follows: follows}, until: until}
}

// neverOrUnknown reports whether a budget never allows an eviction, or its status is not known.
func neverOrUnknown(budget *policyv1.PodDisruptionBudget) bool {
	_, never := pdb.NeverAllows(budget)
	return never || !pdb.IsCurrent(budget)
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
