// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"strings"
	"time"

	"golang.org/x/time/rate"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/drain/pdb"
)

const (
	firstRest      = time.Second
	maxBudgetRest  = 15 * time.Minute
	maxTroubleRest = 5 * time.Minute

	// failingAfter is how long evictions of a pod may fail for temporary reasons before the pod
	// counts as blocked.
	failingAfter = time.Minute

	// changeEvery, times the number of pods of the queue, is the average time between two changes
	// of what is reported about a pod, at most mostChangeEvery. changesInARow do not wait for it.
	// Neither does the first blocker of a pod that has none, nor the end of a pod. Tenants may
	// change, create and delete budgets many times a second. Each change may concern every pod of a
	// drain, and cost a write of its status. So all pods together cause at most about ten such
	// writes a second, unless there are more than 1,500 pods.
	changeEvery     = 200 * time.Millisecond
	mostChangeEvery = 5 * time.Minute
	changesInARow   = 2
)

// trouble is a blocker that concerns one pod and not its lane.
type trouble struct {
	Blocker
	// from is the time from which the pod counts as blocked.
	from time.Time
}

type consequence struct {
	// reason and text are the reason and the text of the blocker. %s is replaced with the message
	// of kube-apiserver. If reason is empty, the queue records no trouble of the pod.
	reason, text string
	// rest is the longest back-off of the pod; 0 for none. forBudget is set if the back-off also
	// ends when the budget allows a disruption.
	rest      time.Duration
	forBudget bool
}

// consequences has an entry for each answer of the API. If a budget is stale, the whole lane waits,
// so the pod gets no back-off.
var consequences = map[verdict]consequence{
	verdictAccepted:     {},
	verdictGone:         {},
	verdictBudgetStale:  {},
	verdictBudgetClosed: {rest: maxBudgetRest, forBudget: true},
	verdictPodChanged:   {rest: maxTroubleRest},
	verdictDenied: {
		v1alpha1.ReasonEvictionDenied,
		"The eviction is refused: %s The server retries. Ask the owner of the webhook or policy, or delete the pod by hand.", maxBudgetRest, false,
	},
	verdictOverloaded: {
		v1alpha1.ReasonEvictionError,
		"kube-apiserver responds that it cannot evict the pod now: %s The server retries. Check kube-apiserver.", maxRetryAfter, false,
	},
	verdictUnknown: {
		v1alpha1.ReasonEvictionError, "kube-apiserver does not respond to the eviction in time, and the pod still exists: %s The server retries. " +
			"Check kube-apiserver, and that admission webhooks for pods/eviction respond quickly.", maxTroubleRest, false,
	},
	verdictTooManyDisruptedPods: {v1alpha1.ReasonTooManyDisruptedPods, pdb.TooManyDisruptedPods("%s").Message, maxBudgetRest, true},
	verdictNamespaceTerminating: {
		v1alpha1.ReasonEvictionError, "The namespace is being deleted, so its pods cannot be evicted, but the pod still exists: %s " +
			"Check the namespace's conditions, or delete the pod by hand.", maxTroubleRest, false,
	},
	verdictForbidden: {
		v1alpha1.ReasonEvictionForbidden,
		"The eviction is forbidden: %s Grant the server the right, or delete the pod by hand.", maxTroubleRest, false,
	},
	verdictSeveralBudgets: {
		v1alpha1.ReasonMultiplePodDisruptionBudgets,
		"The pod is selected by more than one PodDisruptionBudget, which the eviction API refuses. Change their selectors or delete all but one.", maxTroubleRest, false,
	},
	verdictFailed: {v1alpha1.ReasonEvictionError, "The eviction fails: %s The server retries.", maxTroubleRest, false},
}

func (it *item) handleAnswer(a answer, deniedAfter time.Duration, now time.Time) {
	what, said := consequences[a.verdict], wording.Sentence(a.message)
	from := now
	switch a.verdict {
	case verdictDenied:
		if it.deniedSince.IsZero() {
			it.deniedSince = now
		}
		it.failingSince, it.denial = time.Time{}, said
		from = it.deniedSince.Add(deniedAfter)
	case verdictOverloaded, verdictUnknown, verdictNamespaceTerminating:
		if it.failingSince.IsZero() {
			it.failingSince = now
		}
		from = it.failingSince.Add(failingAfter)
	case verdictForbidden, verdictFailed:
		it.failingSince = time.Time{}
	default:
		// The API server checks the budget only after admission has allowed the eviction.
		it.deniedSince, it.failingSince, it.denial = time.Time{}, time.Time{}, ""
	}
	it.phase, it.trouble = phaseWaiting, nil
	if what.reason != "" {
		it.trouble = &trouble{Blocker{Reason: what.reason, Message: strings.ReplaceAll(what.text, "%s", said)}, from}
	}
	if what.rest > 0 {
		it.phase, it.restsForBudget = phaseResting, what.forBudget
		it.due = now.Add(min(firstRest<<min(it.failures, 20), what.rest))
		it.failures++
	}
	switch a.verdict {
	case verdictAccepted, verdictGone:
		it.phase, it.due, it.failures = phaseAccepted, now.Add(resendAfter), 0
	case verdictBudgetClosed:
		it.failed++
	case verdictOverloaded:
		it.due = latest(it.due, now.Add(a.retryAfter))
	}
}

// inherit sets the blocker that the previous leader stored. The first answer replaces it, or the
// first review if it comes from a budget.
func (it *item) inherit(b *Blocker, deniedAfter time.Duration, now time.Time) {
	it.blocker, it.starved, it.outdated = b, b != nil, b != nil
	if b == nil {
		return
	}
	switch b.Reason {
	case v1alpha1.ReasonEvictionDenied:
		it.deniedSince = now.Add(-deniedAfter)
	case v1alpha1.ReasonEvictionError:
		it.failingSince = now.Add(-failingAfter)
	case v1alpha1.ReasonEvictionForbidden:
	default:
		return
	}
	it.trouble = &trouble{Blocker: *b}
}

// review updates the states of the members of a lane, if a member may have become blocked or
// unblocked since the last review.
func (q *Queue) review(g *group, now time.Time) {
	if g.reviewAt.IsZero() || now.Before(g.reviewAt) {
		return
	}
	g.reviewAt = time.Time{}
	for it := range g.members {
		q.updateState(it, now)
	}
}

// updateState updates the blocker and the note of an item, and reports a change. The trouble of the
// item takes precedence over the blocker of its lane.
func (q *Queue) updateState(it *item, now time.Time) {
	at := q.changeAt(it, now)
	waits := at.After(now)
	switch {
	case it.blocker == nil || !waits:
	case it.lane != nil:
		it.lane.common().reviewBy(at)
		return
	case it.trouble != nil: // parked
		it.due = at
		q.resting.add(it)
		return
	}
	var b *Blocker
	var note string
	if it.lane != nil {
		var until time.Time
		if b, note, until = it.lane.judge(it, now); until.After(now) {
			it.lane.common().reviewBy(until)
		}
	}
	it.starved = b != nil
	if t := it.trouble; t != nil && !now.Before(t.from) {
		b, it.starved = &t.Blocker, false
	} else if t != nil && it.lane != nil {
		it.lane.common().reviewBy(t.from)
	}
	if note == "" && it.denial != "" {
		note = "The eviction is refused for now: " + it.denial + " The server retries."
	}
	if note == "" && it.note != "" {
		note = "The pod waits for its eviction." // the former note no longer applies
	}
	if it.note == note && (it.blocker == b || it.blocker != nil && b != nil && *it.blocker == *b) {
		return
	}
	if it.blocker != nil || b == nil {
		if waits && it.lane != nil {
			it.told = false
			it.lane.common().reviewBy(at)
			return
		}
		it.changes.ReserveN(now, 1)
	}
	it.blocker, it.note = b, note
	q.report(it)
}

// changeAt returns the time from which what is reported about an item may change.
func (q *Queue) changeAt(it *item, now time.Time) time.Time {
	every := min(time.Duration(len(q.byUID))*changeEvery, mostChangeEvery)
	it.changes.SetLimitAt(now, rate.Every(every))
	return now.Add(time.Duration((1 - it.changes.TokensAt(now)) * float64(every)))
}

// report records that the state of an item has changed, so that Changed is called for it.
func (q *Queue) report(it *item) {
	if !it.removed {
		q.changed = append(q.changed, it.Evacuation)
	}
}
