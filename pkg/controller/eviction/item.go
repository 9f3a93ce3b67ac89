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

// phase is where a pod stands on its way out.
type phase int

const (
	// phaseWaiting: it waits in its lane.
	phaseWaiting phase = iota
	// phaseParked: nothing can be sent for it now, because of what the pod is; an event of the pod
	// or of a budget changes that.
	phaseParked
	// phaseResting: it waits for its back-off to end.
	phaseResting
	// phaseInFlight: its eviction has been sent and not been answered.
	phaseInFlight
	// phaseAccepted: it has been asked to stop. It is not asked again, unless it is still there
	// unchanged a good while later.
	phaseAccepted
)

// item is one pod that is to be evicted.
type item struct {
	// Request is replaced as a whole if the pod is requested again.
	*Request
	added time.Time
	// removed: the request was taken back after the eviction had been sent. The item is kept until
	// the outcome is known: a pod that is requested again gets it back and is not sent twice.
	removed bool
	// askedAgain: the pod was requested after its last call began. What made that call needless may
	// have ended since.
	askedAgain bool
	phase      phase
	// lane is nil while the item is parked or accepted. line is where it waits for its turn or for
	// a time, if it does.
	lane lane
	line *line

	// notReady, cost and created are copied from the pod, so that the order of a line never changes
	// under it. tried is the number of the last try among those of the queue; 0 if there was none.
	notReady bool
	cost     int32
	created  time.Time
	tried    uint64

	// labels are the pod's labels when its budgets were last looked up, and budgets the names of
	// the budgets that select it; matched is whether its budgets have been looked up.
	labels  labels.Set
	budgets []string
	matched bool

	// due is when the item's rest, or the wait after its acceptance, ends.
	due time.Time
	// failures in a row, from which the next rest follows.
	failures int
	// restsForBudget: the rest ends as soon as the budget opens.
	restsForBudget bool

	failed int32
	// trouble is nil unless the last answer was about this pod.
	trouble *trouble
	// deniedSince is since when admission has refused the pod, and denial what it said last;
	// failingSince is since when its evictions have failed for reasons that may pass.
	deniedSince, failingSince time.Time
	denial                    string
	// blocker and note are what the outside sees. starved: the blocker is the lane's budget. told:
	// the note says for which other pods the item waits.
	blocker       *Blocker
	note          string
	starved, told bool
}

// read copies from the pod what the order depends on.
func (it *item) read(pod *corev1.Pod) {
	it.notReady, it.created = !pdb.IsReady(pod), pod.CreationTimestamp.Time
	it.cost, _ = deletioncost.Of(pod)
}

// isSent reports whether the pod's eviction was sent and has not been refused.
func (it *item) isSent() bool {
	return it.phase == phaseInFlight || it.phase == phaseAccepted
}

// canBeAsked reports whether the pod has not yet been asked to stop nor stopped by itself.
func canBeAsked(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// line is a list of items in an order. An item is in one line at most, and the fields that the
// order depends on do not change while it is.
type line struct {
	items []*item
	order func(a, b *item) int
}

// byTurn is the order within a lane: pods that have not been tried go first, those that are cheaper
// to lose before others, then younger pods. The others follow, the one whose last try is the
// longest ago first.
func byTurn(a, b *item) int {
	return cmp.Or(cmp.Compare(a.tried, b.tried), cmp.Compare(a.cost, b.cost), b.created.Compare(a.created), cmp.Compare(a.UID, b.UID))
}

// byDue is the order of items that wait for a time.
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

// leaveLine takes the item out of the line that it is in, if any.
func (it *item) leaveLine() {
	l := it.line
	if l == nil {
		return
	}
	if at, _ := slices.BinarySearchFunc(l.items, it, l.order); at > 0 {
		l.items = slices.Delete(l.items, at, at+1)
	} else {
		// No other item has to move.
		l.items[0], l.items = nil, l.items[1:]
	}
	it.line = nil
}
