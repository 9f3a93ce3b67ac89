// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Counts says how much of the protocol was seen: who has seen nothing has nothing to say.
type Counts struct {
	// Evacuations were ever there; HandOvers gave a turn to another one than the first; Completed,
	// Cancelled and Vanished are how they ended: with their pod gone, with no instigator that asked
	// for them, without a word.
	Evacuations, HandOvers, Completed, Cancelled, Vanished int
	// Forbidden were such that an evacuator did not allow to be cancelled.
	Forbidden int
	// Blocked said at any time that they did not get on, by the reason that they named.
	Blocked map[string]int
}

func (c Counts) String() string {
	return fmt.Sprintf(
		"%d Evacuations, %d hand-overs; %d completed, %d were cancelled, %d vanished; %d could not be cancelled "+
			"for a while; blocked were %v",
		c.Evacuations, c.HandOvers, c.Completed, c.Cancelled, c.Vanished, c.Forbidden, c.Blocked,
	)
}

// state is what an Evacuation was from a moment on.
type state struct {
	// at is when it was seen, since what the server has stamped it with if that tells it better.
	at, since time.Time
	created   time.Time
	class     string
	// asked: an instigator asks for it, and it is not complete.
	asked bool
	gone  bool
}

// ended is an Evacuation that says that its pod is gone.
type ended struct {
	name, reason string
	pod          types.UID
	at           time.Time
}

// Witness judges whether Evacuations follow their protocol. It sees what happens to Evacuations and
// pods, and holds what must not have happened.
type Witness struct {
	startDeadline time.Duration

	mu    sync.Mutex
	found []string
	// live are the Evacuations that there are, by their UID; first says which of them is that of a
	// pod.
	live  map[types.UID]*v1alpha1.Evacuation
	first map[types.UID]types.NamespacedName
	// states are what the Evacuations of a pod were, one after the other.
	states map[types.UID][]state
	ended  []ended
	pods   map[types.UID]*corev1.Pod
	// left is when pods were gone or had ended.
	left map[types.UID]time.Time
	// blind are the times in which events were missed.
	blind   []span
	counts  Counts
	counted map[string]bool
}

type span struct{ from, to time.Time }

func (s span) has(t time.Time) bool { return !t.Before(s.from) && !t.After(s.to) }

// NewWitness returns a witness that has seen nothing yet. startDeadline is how long evacuators have
// for their first report at least.
func NewWitness(startDeadline time.Duration) *Witness {
	return &Witness{
		startDeadline: startDeadline, live: map[types.UID]*v1alpha1.Evacuation{},
		first: map[types.UID]types.NamespacedName{}, states: map[types.UID][]state{}, pods: map[types.UID]*corev1.Pod{},
		left: map[types.UID]time.Time{}, counted: map[string]bool{}, counts: Counts{Blocked: map[string]int{}},
	}
}

// Found returns what has been found to break the protocol so far, without what only Judge can find.
func (w *Witness) Found() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.found)
}

// Report enters something that another check has found.
func (w *Witness) Report(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report(format, args...)
}

func (w *Witness) report(format string, args ...any) {
	w.found = append(w.found, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// Counts says how much was seen.
func (w *Witness) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := w.counts
	counts.Blocked = maps.Clone(w.counts.Blocked)
	return counts
}

// Blind says that events of Evacuations may have been missed between two moments.
func (w *Witness) Blind(from, to time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blind = append(w.blind, span{from, to})
}

// Evacuations returns the Evacuations that exist, in the order of their names.
func (w *Witness) Evacuations() []*v1alpha1.Evacuation {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*v1alpha1.Evacuation, 0, len(w.live))
	for _, e := range w.live {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *v1alpha1.Evacuation) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return list
}

// Pods returns the pods that have not left, in the order of their names.
func (w *Witness) Pods() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*corev1.Pod, 0, len(w.pods))
	for _, p := range w.pods {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return list
}

// SeePod enters an event of a pod.
func (w *Witness) SeePod(event watch.EventType, pod *corev1.Pod, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if event == watch.Deleted {
		delete(w.pods, pod.UID)
	} else {
		w.pods[pod.UID] = pod
	}
	over := event == watch.Deleted || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if _, known := w.left[pod.UID]; over && !known {
		w.left[pod.UID] = at
	}
}

// See enters an event of an Evacuation. Others of the same object may have been missed before it
// unless it is consecutive.
func (w *Witness) See(event watch.EventType, e *v1alpha1.Evacuation, at time.Time, consecutive bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.live[e.UID]
	if event == watch.Deleted {
		w.remember(e, at, true)
		delete(w.live, e.UID)
		if before != nil && !isComplete(before) {
			w.counts.Vanished++
		}
		return
	}
	if before == nil {
		w.counts.Evacuations++
		w.checkName(e)
	} else {
		for _, text := range w.broken(before, e, consecutive) {
			w.report("Evacuation %s/%s: %s", e.Namespace, e.Name, text)
		}
	}
	w.count(before, e)
	if isComplete(e) && (before == nil || !isComplete(before)) {
		condition := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionComplete)
		w.ended = append(w.ended, ended{
			name: e.Namespace + "/" + e.Name, reason: condition.Reason, pod: e.Spec.PodRef.UID, at: at,
		})
	}
	w.live[e.UID] = e
	w.remember(e, at, false)
}

// checkName looks whether it is the only Evacuation that the pod may have.
func (w *Witness) checkName(e *v1alpha1.Evacuation) {
	ref := e.Spec.PodRef
	if want := string(ref.UID) + "-" + ref.Name; e.Name != want {
		w.report("Evacuation %s/%s is not named %s after its pod", e.Namespace, e.Name, want)
	}
	name := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
	first, known := w.first[ref.UID]
	if known && first != name {
		w.report("pod %s has two Evacuations, %s and %s", ref.UID, first, name)
	}
	w.first[ref.UID] = name
}

// remember enters what an Evacuation is from now on.
func (w *Witness) remember(e *v1alpha1.Evacuation, at time.Time, gone bool) {
	uid := e.Spec.PodRef.UID
	now := state{
		at: at, since: at, created: e.CreationTimestamp.Time, class: e.Status.ActiveEvacuatorClass, gone: gone,
		// A foreign finalizer does not hold the pod where a drain still wants it to leave.
		asked: (!isWithdrawn(e) || heldByOthers(e)) && !isComplete(e),
	}
	if stamp := e.Status.ActiveEvacuatorSince; stamp != nil && stamp.Time.Before(at) {
		now.since = stamp.Time
	}
	w.states[uid] = append(w.states[uid], now)
}

func (w *Witness) count(before, e *v1alpha1.Evacuation) {
	if before != nil && before.Status.ActiveEvacuatorClass != "" &&
		before.Status.ActiveEvacuatorClass != e.Status.ActiveEvacuatorClass {
		w.counts.HandOvers++
	}
	w.once(e, "forbidden", e.Status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid,
		&w.counts.Forbidden)
	if blocked := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked); blocked != nil &&
		blocked.Status == metav1.ConditionTrue {
		count := w.counts.Blocked[blocked.Reason]
		w.once(e, blocked.Reason, true, &count)
		w.counts.Blocked[blocked.Reason] = count
	}
	if isComplete(e) {
		cancelled := meta.FindStatusCondition(e.Status.Conditions,
			v1alpha1.ConditionComplete).Reason == v1alpha1.ReasonCancelled
		w.once(e, "cancelled", cancelled, &w.counts.Cancelled)
		w.once(e, "completed", !cancelled, &w.counts.Completed)
	}
}

// once counts an Evacuation of which something is true, the first time.
func (w *Witness) once(e *v1alpha1.Evacuation, what string, is bool, counter *int) {
	if key := what + " " + string(e.UID); is && !w.counted[key] {
		w.counted[key] = true
		*counter++
	}
}
