// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/drain/pdb"
)

// ownerReadEvery is how long what is known about an owner is used while none of its pods changes.
const ownerReadEvery = time.Second

// ownerKey identifies an owner, or a controller of pods, with its pods in one namespace. A pod may
// name any UID as its controller's: without the namespace, pods of another namespace would count as
// those of the owner.
type ownerKey struct {
	namespace string
	uid       types.UID
}

// owned is the workload of a lane of pods that no budget protects. It is a cache: all but since and
// writtenOff is read from the informers, and those begin again with the leader, which makes pods
// wait longer and never shorter.
type owned struct {
	Owner
	// namespace is the namespace of the owner's pods. By it and controller the owner is read again,
	// and readAt is when it was; zero if one of its pods has changed.
	namespace  string
	controller metav1.OwnerReference
	readAt     time.Time

	// registered are the controllers by whose UID the owner is found.
	registered []types.UID
	// pods are the owner's pods that are neither finished nor terminating, and whether they are
	// available; available counts those. A pod that terminates beside its replacement must not
	// count twice in most.
	pods      map[types.UID]bool
	available int
	// most is how many pods there have been at a time.
	most int
	// taken are the available pods whose eviction has been sent and not been seen in the cache.
	taken map[types.UID]struct{}

	writtenOff int
	since      time.Time

	// granted is whether a pod that is ready may leave. waitsUntil is when one may if nothing
	// happens, and waitsSince since when pods wait; both are zero while none does.
	granted                bool
	waitsUntil, waitsSince time.Time
}

// see takes in a pod as it is, and reports whether it is one of the owner's pods from now on.
func (o *owned) see(pod *corev1.Pod) bool {
	if !canBeAsked(pod) {
		o.gone(pod.UID)
		return false
	}
	o.lose(pod.UID)
	available := pdb.IsReady(pod)
	o.pods[pod.UID] = available
	if available {
		o.available++
	} else {
		delete(o.taken, pod.UID)
	}
	o.most = max(o.most, len(o.pods))
	return true
}

// gone takes in that a pod is gone, or is no longer one of the owner's.
func (o *owned) gone(pod types.UID) {
	o.lose(pod)
	delete(o.taken, pod)
}

func (o *owned) lose(pod types.UID) {
	if o.pods[pod] {
		o.available--
	}
	delete(o.pods, pod)
}

// take counts a pod whose eviction is sent as missing.
func (o *owned) take(pod types.UID) {
	if o.pods[pod] {
		o.taken[pod] = struct{}{}
	}
}

// settle takes in whether the pod that was taken leaves.
func (o *owned) settle(pod types.UID, leaves bool, now time.Time) {
	if leaves {
		o.since = now
	} else {
		delete(o.taken, pod)
	}
}

func (o *owned) workload() workload {
	w := workload{desired: o.Desired, serving: o.available - len(o.taken), writtenOff: o.writtenOff, since: o.since}
	if w.desired < 0 {
		w.desired = o.most
	}
	return w
}

// note says for whom the pods of the lane wait.
func (o *owned) note(most Percent) string {
	desired := o.workload().desired
	return fmt.Sprintf("The pod waits for other pods of %s %s to be available: no PodDisruptionBudget protects them, so that at most %d of %d may be missing.",
		o.Kind, o.Name, most.of(desired), desired)
}

// decideTurn has the owner of a lane decide whether one of its pods that are ready may leave now.
func (q *Queue) decideTurn(l *lane, now time.Time) {
	o := l.owner
	if l.ready.first() == nil {
		o.waitsSince, o.waitsUntil = time.Time{}, time.Time{}
		return
	}
	q.readOwner(o, now)
	w := o.workload()
	w.unanswered = len(l.sending) > 0
	o.granted, o.writtenOff, o.waitsUntil = w.turn(q.policy.UnprotectedMaxUnavailable, q.policy.UnprotectedPatience, now)
	if !o.granted && o.waitsSince.IsZero() {
		o.waitsSince = now
		l.reviewBy(now.Add(blockedAfter))
	}
}

// readOwner reads an owner again if it may have changed.
func (q *Queue) readOwner(o *owned, now time.Time) {
	if !o.readAt.IsZero() && now.Sub(o.readAt) < ownerReadEvery {
		return
	}
	o.readAt = now
	if owner, needed := q.owners.Of(o.namespace, &o.controller); needed && owner.UID == o.UID {
		q.setOwner(o, owner)
	}
}

// setOwner takes in an owner and the pods of controllers that are new to it.
func (q *Queue) setOwner(o *owned, owner Owner) {
	o.Owner = owner
	for _, controller := range owner.Controllers {
		at := ownerKey{o.namespace, controller}
		if q.byController[at] == o {
			continue
		}
		q.byController[at] = o
		o.registered = append(o.registered, controller)
		for _, pod := range q.owners.Pods(o.namespace, controller) {
			q.see(o, pod)
		}
	}
}

// see has an owner take in one of its pods.
func (q *Queue) see(o *owned, pod *corev1.Pod) {
	if o.see(pod) {
		q.ownerOf[pod.UID] = o
	} else {
		delete(q.ownerOf, pod.UID)
	}
}

// ownerLane returns the lane of a pod that no budget protects: that of its owner, if its pods take
// turns.
func (q *Queue) ownerLane(it *item, pod *corev1.Pod, now time.Time) *lane {
	controller := metav1.GetControllerOfNoCopy(pod)
	if q.owners == nil || controller == nil || pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		return q.free
	}
	if l := it.lane; l != nil && l.owner != nil && slices.Contains(l.owner.Controllers, controller.UID) {
		return l
	}
	owner, needed := q.owners.Of(pod.Namespace, controller)
	if !needed {
		return q.free
	}
	at := ownerKey{pod.Namespace, owner.UID}
	l := q.ownerLanes[at]
	if l == nil {
		l = newLane(types.NamespacedName{}, nil, now)
		l.owner = &owned{pods: map[types.UID]bool{}, taken: map[types.UID]struct{}{}, since: now}
		q.ownerLanes[at] = l
		q.ring = append(q.ring, l)
	}
	l.owner.namespace, l.owner.controller, l.owner.readAt = pod.Namespace, *controller, now
	q.setOwner(l.owner, owner)
	return l
}

// ownedPodChanged takes in an event of a pod whose owner's other pods may wait for it. A controller
// releases a pod whose labels stop matching: the pod then has another controller or none, and no
// longer serves for the owner that counted it.
func (q *Queue) ownedPodChanged(pod *corev1.Pod, gone bool) {
	var is *owned
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil && !gone {
		is = q.byController[ownerKey{pod.Namespace, controller.UID}]
	}
	was := q.ownerOf[pod.UID]
	if was != nil && was != is {
		was.gone(pod.UID)
		delete(q.ownerOf, pod.UID)
	}
	if is != nil {
		q.see(is, pod)
	}
	for _, o := range []*owned{was, is} {
		if o != nil {
			o.readAt = time.Time{}
			q.wake()
		}
	}
}

// isDone reports whether the owner may be forgotten: the time of its newest eviction counts for the
// patience.
func (o *owned) isDone(patience time.Duration, now time.Time) bool {
	return len(o.taken) == 0 && now.Sub(o.since) >= patience
}

func (q *Queue) dropOwner(o *owned) {
	delete(q.ownerLanes, ownerKey{o.namespace, o.UID})
	for _, controller := range o.registered {
		if at := (ownerKey{o.namespace, controller}); q.byController[at] == o {
			delete(q.byController, at)
		}
	}
	for pod := range o.pods {
		if q.ownerOf[pod] == o {
			delete(q.ownerOf, pod)
		}
	}
}
