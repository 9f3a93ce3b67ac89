// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// lag is the time that, on a busy machine, the server may take to stop after a cancellation,
	// and a watch may take to deliver an event.
	lag = 2 * time.Second
	// stampLag is the maximum error of a timestamp, which is truncated to a second.
	stampLag = time.Second
)

// state is the state of an Evacuation until the next observation.
type state struct {
	// at is the time of the observation. since is the timestamp of the active evacuator, if earlier
	// than at, otherwise at.
	at, since time.Time
	created   time.Time
	class     string
	// asked is set if the Evacuation is not complete and Haulout may evict its pod for it.
	asked bool
	gone  bool
}

// statesOf returns the states of the Evacuations of each pod, in order.
func statesOf(log Log) map[types.UID][]state {
	states := map[types.UID][]state{}
	for o, e := range Each[*v1alpha1.Evacuation](log) {
		now := state{
			at: o.Seen, since: o.Seen, created: e.CreationTimestamp.Time, class: e.Status.ActiveEvacuatorClass,
			gone: o.Type == watch.Deleted,
			// Haulout evicts the pod of a withdrawn Evacuation that a foreign finalizer keeps if a
			// maintenance still drains the pod. The log does not show here whether one does.
			asked: (!isWithdrawn(e) || heldByOthers(e)) && !isComplete(e),
		}
		if stamp := e.Status.ActiveEvacuatorSince; stamp != nil && stamp.Time.Before(now.at) {
			now.since = stamp.Time
		}
		states[e.Spec.PodRef.UID] = append(states[e.Spec.PodRef.UID], now)
	}
	return states
}

// OutOfTurn describes the evictions that a user requested at a time at which no Evacuation of the
// pod allowed them, whether granted or refused. It also returns the number of the user's evictions.
func OutOfTurn(log Log, user string) (found []string, evictions int) {
	states := statesOf(log)
	for i := range log.Calls {
		call := &log.Calls[i]
		if call.Subresource != "eviction" || call.User != user {
			continue
		}
		evictions++
		blind := log.isInGap(call.Received)
		if text := unlawful(call, states[call.UID], blind); text != "" {
			found = append(found, text)
		}
	}
	return found, evictions
}

// unlawful returns the reason why the server was not allowed to request an eviction, or "".
func unlawful(call *Call, states []state, blind bool) string {
	what := fmt.Sprintf("pod %s/%s (%s) was to be evicted at %s",
		call.Namespace, call.Name, call.UID, call.Received.UTC().Format("15:04:05.000"))
	if call.UID == "" {
		return what + " without the UID of the pod"
	}
	if len(states) == 0 && !blind {
		return what + " although it never had an Evacuation"
	}
	for i, s := range states {
		if !mayBeEvicted(s.class) || !s.asked || s.gone {
			continue
		}
		// The pod may be evicted until the next state.
		if call.Received.Before(s.since.Add(-stampLag)) {
			continue
		}
		if i+1 == len(states) || !call.Received.After(states[i+1].at.Add(lag)) {
			return ""
		}
	}
	if blind && !knownBetter(states, call.Received) {
		return ""
	}
	return what + ", which no Evacuation allowed then: " + describe(states, call.Received)
}

// mayBeEvicted reports whether a pod may be evicted while a class is active. The evacuator of
// DaemonSet pods requests their eviction itself, because no class follows it.
func mayBeEvicted(class string) bool {
	return class == v1alpha1.EvacuatorClassEviction || class == v1alpha1.EvacuatorClassDaemonSet
}

// knownBetter reports whether the first state after a gap excludes the eviction within the gap:
// another evacuator was still active.
func knownBetter(states []state, at time.Time) bool {
	for _, s := range states {
		if s.at.After(at) {
			return s.created.Before(at.Add(-stampLag)) && !mayBeEvicted(s.class) && s.asked && !s.gone
		}
	}
	return false
}

// describe returns the states around a moment.
func describe(states []state, at time.Time) string {
	next := slices.IndexFunc(states, func(s state) bool { return s.at.After(at) })
	if next < 0 {
		next = len(states)
	}
	var text strings.Builder
	for _, s := range states[max(0, next-3):min(len(states), next+1)] {
		fmt.Fprintf(&text, "[%s class %q asked for %v gone %v] ",
			s.at.UTC().Format("15:04:05.000"), s.class, s.asked, s.gone)
	}
	return text.String()
}

// EndedEarly describes the Evacuations that are complete because their pod has left, although the
// pod had not left.
func EndedEarly(log Log) []string {
	left := map[types.UID]time.Time{}
	for o, pod := range Each[*corev1.Pod](log) {
		if _, known := left[pod.UID]; !known && (o.Type == watch.Deleted || isFinished(pod)) {
			left[pod.UID] = o.Seen
		}
	}
	var found []string
	ended := map[types.UID]bool{}
	for o, e := range Each[*v1alpha1.Evacuation](log) {
		if o.Type == watch.Deleted || !isComplete(e) || ended[e.UID] {
			continue
		}
		ended[e.UID] = true
		name, reason := e.Namespace+"/"+e.Name, completionOf(e)
		at, known := left[e.Spec.PodRef.UID]
		switch {
		case reason == v1alpha1.ReasonCancelled:
		case !known:
			found = append(found, fmt.Sprintf("Evacuation %s is complete with reason %s, and its pod has not left", name, reason))
		case at.After(o.Seen.Add(lag)):
			found = append(found,
				fmt.Sprintf("Evacuation %s was complete with reason %s %v before its pod had left", name, reason, at.Sub(o.Seen)))
		}
	}
	return found
}
