// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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

	// finishTimeout ends the call that deletes the pod of an interrupted eviction. With it the last
	// deletion ends well before the disruption controller forgets the entry, the difference between
	// two machines' clocks included.
	finishTimeout = 15 * time.Second

	// finishGrace is how long a call that is under way when the queue is told to stop may go on, so
	// as not to interrupt it in just that place.
	finishGrace = 4 * time.Second
)

// noteGranted keeps since when the budget's status has listed each name. The times in the status
// are those of another clock.
func (l *lane) noteGranted(now time.Time) {
	listed := l.budget.Status.DisruptedPods
	for pod := range l.granted {
		if _, still := listed[pod]; !still {
			delete(l.granted, pod)
		}
	}
	for pod := range listed {
		if _, known := l.granted[pod]; !known {
			l.granted[pod] = now
		}
	}
}

// interrupted reports whether the budget has granted the eviction of a pod and it was not carried
// out. An entry whose age is not known waits for the disruption controller.
func (l *lane) interrupted(it *item, now time.Time) bool {
	since, listed := l.granted[it.Pod]
	if !listed {
		return false
	}
	granted := l.budget.Status.DisruptedPods[it.Pod].Time
	seen, age := now.Sub(since), now.Sub(granted)
	return seen >= interruptedAfter && seen < interruptedUntil && age >= -clockTolerance && age < interruptedUntil && !granted.Before(it.created)
}

// pickInterrupted takes the pods out of the lanes whose evictions are to be finished.
func (q *Queue) pickInterrupted(now time.Time) []call {
	var picked []call
	for _, l := range q.ring {
		if !l.anyInterrupted(now) {
			continue
		}
		for it := range l.members {
			// One that rests for another reason than its budget was just refused.
			waits := it.phase == phaseWaiting || it.phase == phaseResting && it.restsForBudget
			if waits && q.mayCall(l) && l.interrupted(it, now) {
				picked = q.begin(picked, it, passGranted, now)
			}
		}
	}
	return picked
}

// anyInterrupted spares the look at all members while no name has been listed for long, as is the
// rule.
func (l *lane) anyInterrupted(now time.Time) bool {
	for _, since := range l.granted {
		if now.Sub(since) >= interruptedAfter {
			return true
		}
	}
	return false
}

// call makes the call that a pass gives the right to.
func (q *Queue) call(ctx context.Context, c call) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(c.it.UID)}}
	if c.pass == passGranted {
		logger(ctx, c.it).Info("Finishing an eviction that was interrupted after its budget had granted it")
		ctx, cancel := context.WithTimeout(ctx, finishTimeout)
		defer cancel()
		return q.host.Finish(ctx, c.it.Evacuation.Namespace, c.it.Pod, options)
	}
	return q.host.Evict(ctx, evictionOf(c.it, options))
}

// untilFinished returns a context for one call, which outlives the end of its parent for a while.
func untilFinished(ctx context.Context) (context.Context, context.CancelFunc) {
	callCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(finishGrace, cancel)
		context.AfterFunc(callCtx, func() { timer.Stop() })
	})
	return callCtx, func() {
		stop()
		cancel()
	}
}
