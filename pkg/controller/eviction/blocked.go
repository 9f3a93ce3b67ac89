// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

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

	// otherBudgetFailures is the number of failures that count once another budget, or none,
	// decides about a pod. Its back-off is about a minute. A tenant may change which budget that is
	// many times a second.
	otherBudgetFailures = 6

	// changeEvery, times the number of pods of the queue, is the average time between two changes
	// of what is reported about a pod, at most mostChangeEvery. changesInARow do not wait for it,
	// and neither do the first blocker of a pod that has none, nor the end of a pod. A change of
	// the message alone, about the same budget, waits until changesInARow are possible. Tenants may
	// change, create and delete budgets many times a second. Each change may concern every pod of a
	// drain, and cost a write of its status. So all pods together cause at most about five such
	// writes a second, unless there are more than 1,500 pods.
	changeEvery     = 200 * time.Millisecond
	mostChangeEvery = 5 * time.Minute
	changesInARow   = 2
	// changeCheck is the longest time between two checks whether a change still has to wait. A wait
	// becomes shorter when pods leave the queue.
	changeCheck = time.Minute
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
		"The pod is selected by more than one PodDisruptionBudget, which the eviction API refuses. Change their selectors or delete all but one.", maxTroubleRest, true,
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
			// One failure says little, and it may take long until the pod is tried again.
			it.failingSince, what.reason = now, ""
		}
		from = it.failingSince.Add(failingAfter)
	case verdictForbidden, verdictFailed:
		it.failingSince = time.Time{}
	default:
		// The API server checks the budget only after admission has allowed the eviction.
		it.deniedSince, it.failingSince, it.denial = time.Time{}, time.Time{}, ""
	}
	it.phase, it.trouble, it.restUntil = phaseWaiting, nil, time.Time{}
	if what.reason != "" {
		it.trouble = &trouble{Blocker{Reason: what.reason, Message: strings.ReplaceAll(what.text, "%s", said)}, from}
	}
	if what.rest > 0 {
		it.restsForBudget, it.answeredAt = what.forBudget, now
		it.restUntil = now.Add(min(firstRest<<min(it.failures, 20), what.rest))
		it.failures++
	}
	switch a.verdict {
	case verdictAccepted, verdictGone:
		it.phase, it.due, it.failures = phaseAccepted, now.Add(resendAfter), 0
	case verdictBudgetClosed:
		it.failed++
	case verdictOverloaded:
		it.restUntil = latest(it.restUntil, now.Add(a.retryAfter))
	}
}

// inherit sets the blocker that the previous leader has stored, or that is left from an evacuator.
// The first answer replaces it, or the first review if it comes from a budget.
func (it *item) inherit(b *Blocker, deniedAfter time.Duration, now time.Time) {
	it.blocker, it.source = b, source{starved: b != nil}
	if b == nil {
		return
	}
	if _, ofBudget := wording.BudgetIn(b.Message); !ofBudget {
		it.about = laneKey{NamespacedName: types.NamespacedName{Namespace: it.Evacuation.Namespace}} // no lane
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
	g.reviewAt, g.reviewedAt = time.Time{}, now
	for it := range g.members {
		q.updateState(it, now)
	}
}

// updateState updates the blocker and the note of an item, and reports a change. The trouble of the
// item takes precedence over the blocker of its lane.
func (q *Queue) updateState(it *item, now time.Time) {
	j := judgement{}
	if it.lane != nil {
		j = it.lane.judge(it, now)
	}
	switch t := cmp.Or(it.several, it.trouble); {
	case t == nil:
	case !now.Before(t.from):
		j.blocker, j.source = &t.Blocker, source{about: j.about, told: j.told}
	case it.lane == nil:
		j = judgement{it.blocker, it.note, it.source, t.from}
	case !j.until.After(now) || t.from.Before(j.until):
		j.until = t.from
	}
	if j.note == "" && it.denial != "" {
		j.note = "The eviction is refused for now: " + it.denial + " The server retries."
	}
	if j.note == "" && it.note != "" {
		j.note = "The pod waits for its eviction." // the former note no longer applies
	}
	if same := it.blocker != nil && j.blocker != nil && *it.blocker == *j.blocker || it.blocker == j.blocker; !same || it.note != j.note {
		if at := q.changeAt(it, &j, now); at.After(now) {
			if j.until.After(now) && j.until.Before(at) {
				at = j.until
			}
			q.reviewBy(it, at)
			return
		}
		it.changes.ReserveN(now, 1)
		it.blocker, it.note = j.blocker, j.note
		q.report(it)
	}
	it.source = j.source
	if j.until.After(now) {
		q.reviewBy(it, j.until)
	}
}

// reviewBy makes the next review of an item happen at t at the latest.
func (q *Queue) reviewBy(it *item, t time.Time) {
	switch {
	case it.lane != nil:
		it.lane.common().reviewBy(t)
	case it.phase == phaseParked:
		it.due = t
		q.resting.add(it)
	}
}

// changeAt returns the time at which the reported state of an item may change to j, or at which it
// has to be checked again.
func (q *Queue) changeAt(it *item, j *judgement, now time.Time) time.Time {
	every := min(time.Duration(len(q.byUID))*changeEvery, mostChangeEvery)
	it.changes.SetLimitAt(now, rate.Every(every))
	needed := 1.0
	switch {
	case it.lane == nil && it.several == nil:
		return now // the pod is gone
	case it.blocker == nil && j.blocker != nil:
		return now
	case it.blocker != nil && j.blocker != nil && it.blocker.Reason == j.blocker.Reason && it.about == j.about && it.follows == j.follows:
		needed = changesInARow
	}
	return now.Add(min(time.Duration((needed-it.changes.TokensAt(now))*float64(every)), changeCheck))
}

// report records that the state of an item has changed, so that Changed is called for it.
func (q *Queue) report(it *item) {
	if !it.removed {
		q.changed = append(q.changed, it.Evacuation)
	}
}
