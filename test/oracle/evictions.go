// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// lag is how long the server may take to see a withdrawal and stop, and a watch to tell, on a
	// machine that is busy.
	lag = 2 * time.Second
	// stampLag is how much earlier than the moment itself its stamp may be, which is cut to a
	// second.
	stampLag = time.Second
)

// Judge adds what the calls to kube-apiserver, of whose callers server is the one to judge, say
// about evictions, and whether Evacuations that ended told the truth. Everything has to have been
// seen by then. evictions is how many there were.
func (w *Witness) Judge(calls []Call, server string) (found []string, evictions int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found = slices.Clone(w.found)
	for i := range calls {
		call := &calls[i]
		if call.Subresource != "eviction" || call.User != server {
			continue
		}
		evictions++
		if text := w.unlawful(call); text != "" {
			found = append(found, text)
		}
	}
	for _, e := range w.ended {
		left, known := w.left[e.pod]
		switch {
		case e.reason == v1alpha1.ReasonCancelled:
		case !known:
			found = append(found, fmt.Sprintf("Evacuation %s says %s, and its pod has not left", e.name, e.reason))
		case left.After(e.at.Add(lag)):
			found = append(found,
				fmt.Sprintf("Evacuation %s said %s %v before its pod had left", e.name, e.reason, left.Sub(e.at)))
		}
	}
	return found, evictions
}

// unlawful says why the server must not have sent an eviction, refused or not.
func (w *Witness) unlawful(call *Call) string {
	what := fmt.Sprintf("pod %s/%s (%s) was to be evicted at %s",
		call.Namespace, call.Name, call.UID, call.Received.UTC().Format("15:04:05.000"))
	if call.UID == "" {
		return what + " without saying which pod of that name is meant"
	}
	states := w.states[call.UID]
	blind := slices.ContainsFunc(w.blind, func(s span) bool { return s.has(call.Received) })
	if len(states) == 0 && !blind {
		return what + " although it never had an Evacuation"
	}
	for i, s := range states {
		if !mayBeEvicted(s.class) || !s.asked || s.gone {
			continue
		}
		// It was up for eviction from then on until the next state that says otherwise.
		if call.Received.Before(s.since.Add(-stampLag)) {
			continue
		}
		if i+1 == len(states) || !call.Received.After(states[i+1].at.Add(lag)) {
			return ""
		}
	}
	if blind && !w.knownBetter(states, call.Received) {
		return ""
	}
	return what + ", which was not its turn: " + describe(states, call.Received)
}

// mayBeEvicted reports whether a pod may be evicted while a class is active. The evacuator of
// DaemonSet pods has them evicted in its own name, since nothing comes after it for them.
func mayBeEvicted(class string) bool {
	return class == v1alpha1.EvacuatorClassEviction || class == v1alpha1.EvacuatorClassDaemonSet
}

// knownBetter reports whether what was seen after a blind spot tells that the eviction had no turn
// within it: it was still an evacuator's.
func (w *Witness) knownBetter(states []state, at time.Time) bool {
	for _, s := range states {
		if s.at.After(at) {
			return s.created.Before(at.Add(-stampLag)) && !mayBeEvicted(s.class) && s.asked && !s.gone
		}
	}
	return false
}

// describe tells the states around a moment.
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
