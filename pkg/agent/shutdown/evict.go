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
	// bindGrace is the time after the cordon in which the scheduler may still bind a pod to the
	// node.
	bindGrace = 5 * time.Second
	// After a refusal, the agent waits evictionRetry before it tries to evict the pod again. The
	// pause doubles up to maxEvictionRetry.
	evictionRetry    = 5 * time.Second
	maxEvictionRetry = 30 * time.Second
	// maxEvictions is the number of pods that are evicted at the same time.
	maxEvictions = 16
)

// hostFacts are the results of requests to kube-apiserver: the agent lists the pods of its node and
// evicts them.
type hostFacts struct {
	apiFacts
	// pods is the last list, which was requested at listed.
	pods   []Pod
	listed time.Time
	// cordoned is the time at which the agent found the node unschedulable; zero before.
	cordoned time.Time
	// evicting is set while evictions are in flight. evicted is the time at which the last
	// evictions returned.
	evicting bool
	evicted  time.Time
	refused  map[types.UID]refusal
}

// stay counts the number of pods that cannot be evicted.
func (f *hostFacts) stay() (n int) {
	for i := range f.pods {
		if f.pods[i].Stays {
			n++
		}
	}
	return n
}

type refusal struct {
	// next is the time of the next attempt. pause is the pause after the last refusal.
	next    time.Time
	pause   time.Duration
	message string
}

// after returns the refusal that replaces r after another refusal of the API. It uses the
// Retry-After of the response only up to the longest pause, because a webhook can set any value.
func (r refusal) after(now time.Time, retryAfter time.Duration, message string) refusal {
	pause := min(max(2*r.pause, evictionRetry), maxEvictionRetry)
	wait := max(pause, min(retryAfter, maxEvictionRetry))
	return refusal{next: now.Add(wait), pause: pause, message: message}
}

// evicting decides while the agent evicts the pods of its node. It returns false when the agent
// must not evict any longer.
func (d *decision) evicting(s *settings, in *input, why string) bool {
	st := &d.next
	if st.Phase != state.Evicting {
		st.Phase = state.Evicting
		d.event(corev1.EventTypeWarning, EventEvicting, "evicting the pods of the node within their budgets: %s", why)
	}
	if in.api.refusals >= minFailures && (st.Maintenance == nil || st.Maintenance.UID == "") {
		st.Refused, d.maintenance = true, taskNone
	}
	isCordoned, stay := !in.host.cordoned.IsZero(), in.host.stay()
	if settled := in.host.cordoned.Add(bindGrace); len(in.host.pods) == stay && isCordoned && !in.host.listed.Before(settled) {
		if stay == 0 || s.engine == "" {
			d.releasing(in, "all pods were evicted")
		} else {
			d.endLocally(s, in, fmt.Sprintf("all pods were evicted, except %d that cannot be evicted", stay))
		}
		return false
	}
	// Without the cordon, the scheduler would bind the replacements to the node that just became
	// empty. A user, or the server at the end of a maintenance, may undo it at any time.
	d.cordon = true
	// A list that was requested before the last eviction returned may be out of date.
	if isCordoned && st.Local == nil && !in.host.evicting && in.host.listed.After(in.host.evicted) {
		d.evictions = evictions(s, in)
	}
	return true
}

// evictions returns the pods to evict now. The entries of the table follow each other: an entry
// begins when the pods of the earlier entries are gone, or when the time until the local end is
// just enough for this and the later entries. The agent retries the pods of earlier entries that
// the API refused to evict.
//
// A node may not read budgets, so the agent treats each pod as if it had no budget: of each owner,
// it evicts one pod of this node at a time.
func evictions(s *settings, in *input) []Pod {
	end := in.deadline.Add(-releaseReserve)
	if s.engine != "" {
		end = localStart(s, in)
	}
	open := openEntries(s, in, end)
	busy := map[podOwner]bool{}
	// asked is set for an entry if each of its pods is terminating or was evicted, except pods that
	// name their own evacuator.
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

// openEntries returns the index of the last entry whose pods may be evicted.
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

// podOwner identifies the owner of a pod. A pod in another namespace may name the same UID.
type podOwner struct {
	namespace string
	uid       types.UID
}

// ownerOf returns the owner of a pod. A pod without an owner is its own owner.
func ownerOf(pod *Pod) podOwner {
	return podOwner{pod.Namespace, cmp.Or(pod.Owner, pod.UID)}
}

func wasKilled(killed []state.KilledPod, uid types.UID) bool {
	return slices.ContainsFunc(killed, func(p state.KilledPod) bool { return p.UID == uid })
}
