// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/controller/deletioncost"
)

// A ReplicaSet that is scaled down while one of its pods waits to be evicted would rather lose that
// one than another whose replacement starts a moment later. Pods that wait for longer than a moment
// are therefore given the lowest deletion cost (KEP-2255). Their owners' cost comes back when no
// Evacuation asks for the eviction any more. The queue cannot do that: its process may have ended
// by then.

// lowerAttempts is how often a cost is lowered, deletioncost.LowerAfter apart.
const lowerAttempts = 5

// lowering are the items whose pods are to get the lowest deletion cost.
type lowering struct {
	// aging are the items that have not waited long enough, in the order in which their waits end.
	aging []aging
	// due are the items that have waited long enough.
	due map[*item]struct{}
	// next is when the next write may be sent.
	next time.Time
}

type aging struct {
	it *item
	at time.Time
}

func newLowering() lowering {
	return lowering{due: map[*item]struct{}{}}
}

// add takes in an item at the given time.
func (l *lowering) add(it *item, now time.Time) {
	l.aging = append(l.aging, aging{it, now.Add(deletioncost.LowerAfter)})
}

// setAlarm names the time at which there is something to do even if nothing happens.
func (l *lowering) setAlarm(w *alarm) {
	if len(l.aging) > 0 {
		w.ring(l.aging[0].at)
	}
	if len(l.due) > 0 {
		w.ring(l.next)
	}
}

// pickLowered returns the pod whose cost is to be lowered now, if any: the first in the order of
// its lane, for it would be the first to be evicted, too.
func (q *Queue) pickLowered(now time.Time) (*item, *corev1.Pod) {
	l := &q.lowering
	for len(l.aging) > 0 && !l.aging[0].at.After(now) {
		it := l.aging[0].it
		if q.items[it.Evacuation] == it && q.lowerable(it) != nil {
			l.due[it] = struct{}{}
		}
		l.aging[0].it = nil
		l.aging = l.aging[1:]
	}
	if l.next.After(now) {
		return nil, nil
	}
	for it := q.firstDue(); it != nil; it = q.firstDue() {
		delete(l.due, it)
		if pod := q.lowerable(it); pod != nil {
			l.next = now.Add(deletioncost.LowerEvery)
			return it, pod
		}
	}
	return nil, nil
}

// lowerable returns an item's pod if it is one whose cost can and should be lowered.
func (q *Queue) lowerable(it *item) *corev1.Pod {
	if pod := q.cached(it); pod != nil && canBeAsked(pod) && deletioncost.IsOfReplicaSet(pod) && deletioncost.CanLower(pod) {
		return pod
	}
	return nil
}

// firstDue returns the first of the items that are due and still wait. Those that have been asked
// to leave may come back to wait.
func (q *Queue) firstDue() *item {
	var first *item
	for it := range q.lowering.due {
		if q.items[it.Evacuation] != it {
			delete(q.lowering.due, it)
			continue
		}
		waits := it.phase != phaseInFlight && it.phase != phaseAccepted
		if waits && (first == nil || it.precedes(first)) {
			first = it
		}
	}
	return first
}

// lower gives a pod the lowest deletion cost, without the lock.
func (q *Queue) lower(ctx context.Context, it *item, pod *corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := q.host.Lower(ctx, pod)
	if err == nil {
		logger(ctx, it).V(4).Info("Pod waits to be evicted and got the lowest deletion cost")
		return
	}
	if ctx.Err() != nil {
		return
	}
	logger(ctx, it).Info("Pod waits to be evicted and could not be given the lowest deletion cost", "reason", err.Error())
	q.mu.Lock()
	defer q.mu.Unlock()
	if it.lowerFailures++; it.lowerFailures < lowerAttempts {
		q.lowering.add(it, q.clock.Now())
		q.wake()
	}
}
