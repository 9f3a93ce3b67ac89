// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

const (
	firstRest       = time.Second
	maxBudgetRest   = 15 * time.Minute
	maxTroubleRest  = 5 * time.Minute
	maxOverloadRest = maxRetryAfter

	// failingAfter is how long evictions of a pod have to fail, for reasons that may pass, before
	// the pod is called blocked.
	failingAfter = time.Minute
)

// trouble is what blocks one pod, whatever its lane does.
type trouble struct {
	Blocker
	// from is when the pod is called blocked by it.
	from time.Time
}

// settle draws the consequences of an answer for the pod itself.
func (it *item) settle(a answer, deniedAfter time.Duration, now time.Time) {
	it.trouble = nil
	it.phase = phaseWaiting
	it.noteTime(a.verdict, now)
	switch a.verdict {
	case verdictAccepted, verdictGone:
		it.phase, it.due, it.failures = phaseAccepted, now.Add(resendAfter), 0
	case verdictBudgetClosed:
		it.failed++
		it.rest(now, maxBudgetRest, true)
	case verdictBudgetStale:
		// The lane waits in its stead.
	case verdictDenied:
		it.denial = wording.Sentence(a.message)
		it.block(it.deniedSince.Add(deniedAfter), v1alpha1.ReasonEvictionDenied, "The eviction is refused: "+it.denial+
			" It is tried again. Ask who runs the webhook or the policy, or delete the pod by hand.")
		it.rest(now, maxBudgetRest, false)
	case verdictOverloaded:
		it.block(it.failingSince.Add(failingAfter), v1alpha1.ReasonEvictionError,
			"kube-apiserver answers that it cannot evict the pod now: "+wording.Sentence(a.message)+" It is tried again. Check kube-apiserver.")
		it.rest(now, maxOverloadRest, false)
		it.due = latest(it.due, now.Add(a.retryAfter))
	case verdictUnknown:
		it.block(it.failingSince.Add(failingAfter), v1alpha1.ReasonEvictionError,
			"The eviction gets no answer in time, and the pod is still there: "+wording.Sentence(a.message)+
				" It is tried again. Check kube-apiserver, and that admission webhooks for pods/eviction are quick.")
		it.rest(now, maxTroubleRest, false)
	case verdictTooManyDisruptedPods:
		it.trouble = &trouble{Blocker: *tooManyDisruptedPods(wording.Sentence(a.message))}
		it.rest(now, maxBudgetRest, true)
	case verdictNamespaceTerminating:
		it.block(it.failingSince.Add(failingAfter), v1alpha1.ReasonEvictionError,
			"The namespace is being deleted, in which pods cannot be evicted, and the pod has not been deleted with it: "+
				wording.Sentence(a.message)+" Check the namespace's conditions, or delete the pod by hand.")
		it.rest(now, maxTroubleRest, false)
	case verdictForbidden:
		it.block(now, v1alpha1.ReasonEvictionForbidden,
			"The eviction is forbidden: "+wording.Sentence(a.message)+" Grant the server the right, or delete the pod by hand.")
		it.rest(now, maxTroubleRest, false)
	case verdictSeveralBudgets:
		it.block(now, v1alpha1.ReasonMultiplePodDisruptionBudgets,
			"The pod is selected by more than one PodDisruptionBudget, which the eviction API refuses. "+
				"Change their selectors or delete all but one.")
		it.rest(now, maxTroubleRest, false)
	case verdictFailed:
		it.block(now, v1alpha1.ReasonEvictionError, "The eviction fails: "+wording.Sentence(a.message)+" It is tried again.")
		it.rest(now, maxTroubleRest, false)
	default:
		it.rest(now, maxTroubleRest, false)
	}
}

// block has the pod called blocked from a time on.
func (it *item) block(from time.Time, reason, message string) {
	it.trouble = &trouble{Blocker: Blocker{Reason: reason, Message: message}, from: from}
}

// noteTime keeps since when answers of a kind have been coming. Answers that a budget gives come
// after admission has agreed.
func (it *item) noteTime(v verdict, now time.Time) {
	switch v {
	case verdictDenied:
		if it.deniedSince.IsZero() {
			it.deniedSince = now
		}
		it.failingSince = time.Time{}
	case verdictOverloaded, verdictUnknown, verdictNamespaceTerminating:
		if it.failingSince.IsZero() {
			it.failingSince = now
		}
	case verdictForbidden, verdictFailed:
		it.failingSince = time.Time{}
	default:
		it.deniedSince, it.failingSince, it.denial = time.Time{}, time.Time{}, ""
	}
}

// inherit takes up what blocked the pod before this queue knew it, until the first answer says
// more.
func (it *item) inherit(b *Blocker, deniedAfter time.Duration, now time.Time) {
	it.blocker, it.starved = b, b != nil
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

// rest puts the pod's next eviction off, each time for twice as long.
func (it *item) rest(now time.Time, longest time.Duration, forBudget bool) {
	pause := firstRest << min(it.failures, 20)
	it.failures++
	it.phase, it.due, it.restsForBudget = phaseResting, now.Add(min(pause, longest)), forBudget
}
