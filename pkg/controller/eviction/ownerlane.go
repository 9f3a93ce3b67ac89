// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/host/owners"
)

// ownerReadEvery is the time for which the cached state of an owner is used while none of its pods
// changes.
const ownerReadEvery = time.Second

// ownerLane has the pods of one owner that no budget protects. At most a share of the owner's pods
// may be missing. The state of the lane may be lost: it comes from the informers except since and
// writtenOff, and a new leader resets these two fields, which can only lengthen the wait.
type ownerLane struct {
	group
	*ownerLanes
	owners.Workload
	// controller is the controller of the pod with which the owner was last read, at the time
	// readAt. readAt is zero if one of the owner's pods has changed since.
	controller metav1.OwnerReference
	readAt     time.Time
	keys       sets.Set[laneKey]

	// pods are the owner's pods that are neither finished nor terminating: a terminating pod and
	// its replacement must not both count in most. serving is the number of pods in state
	// podServing.
	pods    map[types.UID]podState
	serving int
	// most is the highest number of pods that the owner had at the same time.
	most int

	// since is the time at which the patience begins: the time of the newest eviction or, if there
	// was none, of the creation of the lane. writtenOff is the number of pods that were missing
	// when the patience last ended. The lane does not wait for these pods again.
	since      time.Time
	writtenOff int

	// waitsUntil is the time from which a ready pod may be evicted without an event. waitsSince is
	// the time at which pods began to wait. Both are zero while no pod waits.
	waitsUntil, waitsSince time.Time
}

// podState determines how the lane counts a pod of the owner. The lane does not count a pod in
// state 0.
type podState int

const (
	podUnready podState = iota + 1
	podServing
	// podLeaving: an eviction of the pod was sent, but the cached pod is still ready.
	podLeaving
)

// ownerLanes indexes the lanes of owners by the namespace and UID of the controllers of their pods,
// and by the pods that they count. The namespace is necessary because a pod of another namespace
// may name any UID as its controller.
type ownerLanes struct {
	// owners is nil if pods without a budget do not wait for each other.
	owners       Owners
	share        Percent
	patience     time.Duration
	byController map[laneKey]*ownerLane
	byPod        map[types.UID]*ownerLane
}

func newOwnerLane(all *ownerLanes, now time.Time) *ownerLane {
	return &ownerLane{group: newGroup(), ownerLanes: all, keys: sets.Set[laneKey]{}, pods: map[types.UID]podState{}, since: now}
}

// ownerOf returns the owner of a pod that no budget protects. It returns false if the owner's pods
// do not wait for each other.
func (all *ownerLanes) ownerOf(pod *corev1.Pod) (owner owners.Workload, takesTurns bool) {
	controller := metav1.GetControllerOfNoCopy(pod)
	if all.owners == nil || controller == nil || pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		return owners.Workload{}, false
	}
	return all.owners.Of(pod.Namespace, controller)
}

// podChanged handles an event of a pod. It reports whether a lane counts the pod, so that other
// pods may wait for it. A controller releases a pod whose labels no longer match: the pod then has
// another controller or none, and no longer counts for the previous owner.
func (all *ownerLanes) podChanged(pod *corev1.Pod, gone bool) (concerned bool) {
	var is *ownerLane
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil && !gone {
		is = all.byController[keyOfOwner(pod.Namespace, controller.UID)]
	}
	was := all.byPod[pod.UID]
	if was != nil && was != is {
		was.set(pod.UID, 0)
	}
	if is != nil {
		is.see(pod)
	}
	return was != nil || is != nil
}

// stays makes a pod count as serving again if its eviction was sent but the pod does not leave.
func (all *ownerLanes) stays(pod types.UID) {
	if l := all.byPod[pod]; l != nil && l.pods[pod] == podLeaving {
		l.set(pod, podServing)
	}
}

func keyOfOwner(namespace string, uid types.UID) laneKey {
	return laneKey{NamespacedName: types.NamespacedName{Namespace: namespace}, owner: uid}
}

// read updates the owner of the lane, and counts the pods of controllers that are new to the lane.
func (l *ownerLane) read(owner owners.Workload, controller *metav1.OwnerReference, now time.Time) {
	l.Workload, l.controller = owner, *controller
	for _, uid := range owner.Controllers {
		at := keyOfOwner(l.key.Namespace, uid)
		if l.byController[at] == l {
			continue
		}
		l.byController[at] = l
		l.keys.Insert(at)
		for _, pod := range l.owners.Pods(l.key.Namespace, uid) {
			l.see(pod)
		}
	}
	l.readAt = now
}

// see updates the state in which the lane counts a pod of the owner.
func (l *ownerLane) see(pod *corev1.Pod) {
	if other := l.byPod[pod.UID]; other != nil && other != l {
		other.set(pod.UID, 0)
	}
	switch {
	case !canBeAsked(pod):
		l.set(pod.UID, 0)
	case !pdb.IsReady(pod):
		l.set(pod.UID, podUnready)
	case l.pods[pod.UID] != podLeaving:
		l.set(pod.UID, podServing)
	}
}

// set sets the state of a pod; 0 removes the pod.
func (l *ownerLane) set(pod types.UID, state podState) {
	l.readAt = time.Time{}
	if l.pods[pod] == podServing {
		l.serving--
	}
	if state == 0 {
		delete(l.pods, pod)
		delete(l.byPod, pod)
		return
	}
	if state == podServing {
		l.serving++
	}
	l.pods[pod], l.byPod[pod] = state, l
	l.most = max(l.most, len(l.pods))
}

func (l *ownerLane) offer(now time.Time) (*item, pass) {
	if l.ready.first() == nil {
		l.waitsSince, l.waitsUntil = time.Time{}, time.Time{}
		return l.unready.first(), passPlain
	}
	if l.readAt.IsZero() || now.Sub(l.readAt) >= ownerReadEvery {
		l.readAt = now
		if owner, takesTurns := l.owners.Of(l.key.Namespace, &l.controller); takesTurns && owner.UID == l.UID {
			l.read(owner, &l.controller, now)
		}
	}
	if l.turn(now) {
		return l.first(), passPlain
	}
	if l.waitsSince.IsZero() {
		l.waitsSince = now
		l.reviewBy(now.Add(blockedAfter))
	}
	// A pod that is not ready need not wait for other pods.
	return l.unready.first(), passPlain
}

// turn reports whether a serving pod may be evicted now.
func (l *ownerLane) turn(now time.Time) bool {
	missing := max(0, l.desired()-l.serving)
	l.writtenOff, l.waitsUntil = min(l.writtenOff, missing), time.Time{}
	switch end := l.since.Add(l.patience); {
	case missing-l.writtenOff < l.share.of(l.desired()):
		return true
	case len(l.sending) > 0:
		// The answer may start the patience again.
		return false
	case now.Before(end):
		l.waitsUntil = end
		return false
	}
	l.writtenOff = missing
	return true
}

// desired returns the number of pods that the owner should have.
func (l *ownerLane) desired() int {
	if l.Desired < 0 {
		return l.most
	}
	return l.Desired
}

func (l *ownerLane) begin(c *call) {
	l.group.begin(c)
	if l.pods[c.UID] == podServing {
		l.set(c.UID, podLeaving)
	}
}

func (l *ownerLane) handleAnswer(c *call, a answer, now time.Time) {
	l.group.handleAnswer(c, a, now)
	if a.verdict == verdictAccepted || a.verdict == verdictGone {
		l.since = now
	} else {
		l.stays(c.UID)
	}
}

// judge changes the note only once for each wait, since each change of it costs a status write.
func (l *ownerLane) judge(it *item, now time.Time) judgement {
	var until time.Time
	if !l.waitsSince.IsZero() {
		until = latest(it.added, l.waitsSince).Add(blockedAfter)
	}
	switch waits := it.phase == phaseWaiting && !it.notReady; {
	case waits && it.told && it.about == l.key:
		return judgement{note: it.note, source: it.source}
	case waits && !until.IsZero() && !now.Before(until):
		return judgement{
			note: fmt.Sprintf("The pod waits for other pods of %s %s to be available: no PodDisruptionBudget protects them, so at most %d of %d may be missing.",
				l.Kind, l.Name, l.share.of(l.desired()), l.desired()),
			source: source{about: l.key, told: true},
		}
	}
	return judgement{until: until}
}

// isDone keeps the lane until the patience is over, because since is needed until then.
func (l *ownerLane) isDone(now time.Time) bool {
	if !l.group.isDone(now) || now.Sub(l.since) < l.patience {
		return false
	}
	for _, state := range l.pods {
		if state == podLeaving {
			return false
		}
	}
	return true
}

func (l *ownerLane) drop() {
	for key := range l.keys {
		if l.byController[key] == l {
			delete(l.byController, key)
		}
	}
	for pod := range l.pods {
		delete(l.byPod, pod)
	}
}

func (l *ownerLane) addWakeTimes(add func(time.Time)) {
	l.group.addWakeTimes(add)
	add(l.waitsUntil)
}
