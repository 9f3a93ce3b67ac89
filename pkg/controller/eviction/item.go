// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/drain/pdb"
)

// phase is where a pod stands on its way out.
type phase int

const (
	// phaseParked: nothing can be sent for it now, because of what the pod is; an event of the pod
	// or of a budget changes that.
	phaseParked phase = iota
	// phaseWaiting: it waits in its lane.
	phaseWaiting
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
	Request
	added time.Time
	phase phase
	// lane is nil while the item is parked.
	lane *lane
	// notReady, cost and created are what the order in the lane depends on; they are copied so that
	// a heap never compares what may change under it.
	notReady bool
	cost     int32
	created  time.Time
	// owner is what the pod belongs to: the remedies for a closed budget depend on it.
	owner pdb.Owner
	// tried is the number of the item's last try among those of the queue; 0 if it has not been
	// tried.
	tried uint64

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
	// takenFrom is the owner that counts the pod as missing because its eviction was sent.
	takenFrom *owned
	// waitsIn is the lane of an owner for whose other pods the item is known to wait.
	waitsIn *lane
	// blocker and note are what the outside sees.
	blocker *Blocker
	note    string
	// starved: the blocker is the lane's budget.
	starved bool

	heap  *itemHeap
	index int
}

// read copies from the pod what the order depends on.
func (it *item) read(pod *corev1.Pod) {
	it.created = pod.CreationTimestamp.Time
	it.notReady = !pdb.IsReady(pod)
	if it.owner = pdb.OwnerOf(metav1.GetControllerOfNoCopy(pod)); it.ReplacedFirst {
		it.owner = pdb.OwnerDeployment
	}
	it.cost, _ = deletioncost.Of(pod)
}
