// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/agent/state"
)

const (
	// bindGrace is how long after the cordon the scheduler may still bind a pod to the node.
	bindGrace = 5 * time.Second
	// A pod whose eviction was refused is asked again after evictionRetry, which doubles up to
	// maxEvictionRetry.
	evictionRetry    = 5 * time.Second
	maxEvictionRetry = 30 * time.Second
	// maxEvictions is how many pods are asked at the same time.
	maxEvictions = 16
)

// hostFacts report how kube-apiserver answers when the agent lists the pods of its node, and what
// has become of its evictions.
type hostFacts struct {
	apiFacts
	// pods are those of the last list, which was requested at listed.
	pods   []Pod
	listed time.Time
	// cordoned is when the node was seen to be unschedulable, zero before.
	cordoned time.Time
	// evicting: evictions are in flight; evicted is when the last ones were answered.
	evicting bool
	evicted  time.Time
	// refused are the evictions that were refused.
	refused map[types.UID]refusal
}

// stay returns the number of pods that an eviction does not end.
func (f *hostFacts) stay() (n int) {
	for i := range f.pods {
		if f.pods[i].Stays {
			n++
		}
	}
	return n
}

// refusal is an eviction that was refused.
type refusal struct {
	// next is when the pod may be asked again, pause how long that was after the last refusal.
	next    time.Time
	pause   time.Duration
	message string
}

// after returns what follows from another answer. What an API asks for counts up to the longest
// pause: a webhook chooses that number.
func (r refusal) after(now time.Time, retryAfter time.Duration, message string) refusal {
	pause := min(max(2*r.pause, evictionRetry), maxEvictionRetry)
	wait := max(pause, min(retryAfter, maxEvictionRetry))
	return refusal{next: now.Add(wait), pause: pause, message: message}
}

// evicting decides while the agent evicts the pods of its node. It returns false if that is over.
func (d *decision) evicting(s *settings, in *input, why string) bool {
	st := &d.next
	if st.Phase != state.Evicting {
		st.Phase = state.Evicting
		d.event(corev1.EventTypeWarning, EventEvicting, "evicts the pods of the node within their budgets: %s", why)
	}
	if in.api.refusals >= minFailures && (st.Maintenance == nil || st.Maintenance.UID == "") {
		st.Refused, d.maintenance = true, taskNone
	}
	// Without the cordon, the node that just became empty is where the scheduler would put the
	// replacements.
	d.cordon = in.host.cordoned.IsZero()
	stay := in.host.stay()
	if settled := in.host.cordoned.Add(bindGrace); len(in.host.pods) == stay && !d.cordon && !in.host.listed.Before(settled) {
		if stay == 0 || s.engine == "" {
			d.releasing(in, "all pods were evicted")
		} else {
			d.endLocally(s, in, fmt.Sprintf("all pods were evicted but %d, which eviction does not end", stay))
		}
		return false
	}
	// A list that was requested in the moment of the last answer may be older than it.
	if !d.cordon && st.Local == nil && !in.host.evicting && in.host.listed.After(in.host.evicted) {
		d.evictions = evictions(s, in)
	}
	return true
}

// evictions returns the pods that are asked to leave now. Entries of the table follow each other:
// one begins when the pods of the earlier ones are gone, or when only its time and that of the
// later ones are left before the local end. Until then pods of earlier entries are still asked.
//
// A node may not read budgets, so each pod is taken for one without: of one owner, one pod of this
// node leaves at a time.
func evictions(s *settings, in *input) []Pod {
	end := in.deadline.Add(-releaseReserve)
	if s.engine != "" {
		end = localStart(s, in)
	}
	open := openEntries(s, in, end)
	busy := map[types.UID]bool{}
	// asked: each pod of the entry without an evacuator of its own is leaving, or was asked.
	asked := make([]bool, len(s.buckets))
	for i := range asked {
		asked[i] = true
	}
	var due []Pod
	for _, pod := range in.host.pods {
		index := s.buckets.Index(pod.Priority)
		if pod.Stays || index > open {
			continue
		}
		refused, wasRefused := in.host.refused[pod.UID]
		if pod.Leaving {
			busy[ownerOf(&pod)] = true
			continue
		}
		if !pod.Evacuator && !wasRefused {
			asked[index] = false
		}
		if !in.now.Before(refused.next) {
			due = append(due, pod)
		}
	}
	slices.SortFunc(due, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(s.buckets.Index(a.Priority), s.buckets.Index(b.Priority)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	n := 0
	return slices.DeleteFunc(due, func(pod Pod) bool {
		owner := ownerOf(&pod)
		if busy[owner] || n == maxEvictions || pod.Evacuator && !asked[s.buckets.Index(pod.Priority)] {
			return true
		}
		busy[owner] = true
		n++
		return false
	})
}

// openEntries returns the index of the last entry whose pods are asked.
func openEntries(s *settings, in *input, end time.Time) int {
	occupied := make([]bool, len(s.buckets))
	for i := range in.host.pods {
		if pod := &in.host.pods[i]; !pod.Stays {
			occupied[s.buckets.Index(pod.Priority)] = true
		}
	}
	first := max(slices.Index(occupied, true), 0)
	for i := len(s.buckets) - 1; i > first; i-- {
		if occupied[i] {
			end = end.Add(-s.buckets[i].Period)
			if !in.now.Before(end) {
				return i
			}
		}
	}
	return first
}

// ownerOf returns the UID of the owner of a pod; one without an owner is its own.
func ownerOf(pod *Pod) types.UID {
	return cmp.Or(pod.Owner, pod.UID)
}

func wasKilled(killed []state.KilledPod, uid types.UID) bool {
	return slices.ContainsFunc(killed, func(p state.KilledPod) bool { return p.UID == uid })
}
