// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/drain/pdb"
)

// phase is the state of a pod in the queue.
type phase int

const (
	// phaseWaiting: the pod waits in its lane.
	phaseWaiting phase = iota
	// phaseParked: the pod cannot be evicted until an event of the pod or of a budget.
	phaseParked
	// phaseResting: the pod waits for its back-off to end.
	phaseResting
	// phaseInFlight: its eviction was sent and has not been answered.
	phaseInFlight
	// phaseAccepted: its eviction was accepted. It is sent again only if the pod is unchanged after
	// resendAfter.
	phaseAccepted
)

// item is one pod that is to be evicted.
type item struct {
	// Request is replaced as a whole if the pod is requested again.
	*Request
	added time.Time
	// removed: the request was withdrawn after the eviction had been sent. The item is kept until
	// the outcome is known, so that a pod that is requested again is not evicted twice.
	removed bool
	// askedAgain: the pod was requested after its last call began. If that call found its
	// Evacuation withdrawn, this may no longer be true.
	askedAgain bool
	phase      phase
	// lane is nil while the item is parked or accepted. line is the line in which it waits for its
	// turn or for the end of its back-off; nil if it does not wait.
	lane lane
	line *line

	// notReady, cost and created are copied from the pod, so that the order of a line does not
	// change with the pod. tried is the number of the last call; 0 if there was none.
	notReady bool
	cost     int32
	created  time.Time
	tried    uint64

	// labels are the pod's labels when its budgets were last looked up, and budgets the names of
	// the budgets that select it; matched is whether its budgets have been looked up.
	labels  labels.Set
	budgets []string
	matched bool

	// due is when the back-off ends or, for an accepted eviction, resendAfter.
	due time.Time
	// failures is the number of consecutive failures, which determines the next back-off.
	failures int
	// restsForBudget: the back-off also ends when the budget opens.
	restsForBudget bool

	failed int32
	// trouble is nil unless the last answer was about this pod.
	trouble *trouble
	// deniedSince is when admission began to refuse the pod, and denial its last message;
	// failingSince is when its evictions began to fail for temporary reasons.
	deniedSince, failingSince time.Time
	denial                    string
	// blocker and note are the reported state. starved: the blocker comes from the lane's budget.
	// told: the note names the pods that the item waits for.
	blocker       *Blocker
	note          string
	starved, told bool
}

// read copies the fields of the pod that determine its order.
func (it *item) read(pod *corev1.Pod) {
	it.notReady, it.created = !pdb.IsReady(pod), pod.CreationTimestamp.Time
	it.cost, _ = deletioncost.Of(pod)
}

// isSent reports whether the pod's eviction is in flight or accepted.
func (it *item) isSent() bool {
	return it.phase == phaseInFlight || it.phase == phaseAccepted
}

// canBeAsked reports whether the pod is neither stopping nor finished.
func canBeAsked(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// line is a sorted list of items. An item is in at most one line, and the fields that determine its
// order do not change while it is there.
type line struct {
	items []*item
	order func(a, b *item) int
}

// byTurn is the order within a lane: first pods that have not been tried, by deletion cost, then
// the younger pods first. Tried pods follow, the one with the oldest try first.
func byTurn(a, b *item) int {
	return cmp.Or(cmp.Compare(a.tried, b.tried), cmp.Compare(a.cost, b.cost), b.created.Compare(a.created), cmp.Compare(a.UID, b.UID))
}

// byDue is the order of resting items.
func byDue(a, b *item) int {
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.UID, b.UID))
}

func (l *line) first() *item {
	if len(l.items) == 0 {
		return nil
	}
	return l.items[0]
}

func (l *line) add(it *item) {
	at, _ := slices.BinarySearchFunc(l.items, it, l.order)
	l.items = slices.Insert(l.items, at, it)
	it.line = l
}

// leaveLine removes the item from its line, if it has one.
func (it *item) leaveLine() {
	l := it.line
	if l == nil {
		return
	}
	if at, _ := slices.BinarySearchFunc(l.items, it, l.order); at > 0 {
		l.items = slices.Delete(l.items, at, at+1)
	} else {
		// No other item moves.
		l.items[0], l.items = nil, l.items[1:]
	}
	it.line = nil
}
