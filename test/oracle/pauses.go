// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Pause is the time from the last pod of a wave being gone from all nodes of a maintenance until
// the first pod of its next wave is told to go, by an eviction or by the scale-down that ends a
// surge.
type Pause struct {
	Maintenance string
	// From and To are the waves, counted from 1.
	From, To int
	Length   time.Duration
}

// Pauses returns the pauses of all maintenances. The wave before has to have left all their nodes;
// of the next one only those nodes count that no other maintenance drains, which might hold it up
// or have opened it already. The time of an eviction is when kube-apiserver received the call, that
// of a scale-down when its event came, that of a pod's end when kube-apiserver answered its
// deletion or, if that is earlier, when its event came.
func (h *History) Pauses(calls []Call, rules Rules) ([]Pause, error) {
	h.straighten()
	dockets, err := h.dockets(rules)
	if err != nil {
		return nil, err
	}
	told := h.firstTold(calls)
	ended := h.ends(calls)
	nodes := h.nodesByName()
	var pauses []Pause
	for _, d := range dockets {
		// Of each wave that had pods: when its last pod was gone, and when the first was evicted
		// that only this maintenance waited with.
		last, first := map[int]time.Time{}, map[int]time.Time{}
		for uid, wave := range d.waves {
			p := h.pods[uid]
			begin, ok := told[uid]
			node := nodes.at(p.Spec.NodeName, p.asked.at)
			if !ok || node == nil || d.drainingSince(p.asked) == nil || d.joined(node, p.asked.at) == nil {
				continue
			}
			last[wave] = later(last[wave], ended[uid])
			shared := slices.ContainsFunc(dockets, func(other *docket) bool {
				return other != d && other.drainingSince(p.asked) != nil && other.joined(node, p.asked.at) != nil
			})
			if earliest, ok := first[wave]; !shared && (!ok || begin.Before(earliest)) {
				first[wave] = begin
			}
		}
		waves := slices.Sorted(maps.Keys(last))
		for i := 1; i < len(waves); i++ {
			begin, ok := first[waves[i]]
			end := last[waves[i-1]]
			if length := begin.Sub(end); ok && !end.IsZero() && length > 0 {
				pauses = append(pauses, Pause{
					Maintenance: d.last.Name, From: waves[i-1] + 1, To: waves[i] + 1, Length: length,
				})
			}
		}
	}
	return pauses, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Median returns the middle one of some pauses.
func Median(pauses []Pause) time.Duration {
	if len(pauses) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(pauses), func(a, b Pause) int { return cmp.Compare(a.Length, b.Length) })
	return sorted[len(sorted)/2].Length
}

func (p Pause) String() string {
	return fmt.Sprintf("%s, wave %d to %d: %v", p.Maintenance, p.From, p.To, p.Length.Round(time.Millisecond))
}

// firstTold returns when each pod that a maintenance has asked for was first told to go.
func (h *History) firstTold(calls []Call) map[types.UID]time.Time {
	out := firstEvictions(calls)
	for uid := range h.byPod {
		if _, ok := out[uid]; !ok && h.evacuated(uid) {
			out[uid] = h.pods[uid].asked.seen
		}
	}
	return out
}

// evacuated reports whether a pod that a maintenance has asked for was told to go, in any way.
func (h *History) evacuated(uid types.UID) bool {
	p := h.pods[uid]
	return p != nil && p.asked.at != never &&
		slices.ContainsFunc(h.byPod[uid], func(e *evacuationRecord) bool { return e.made != nil })
}

// firstEvictions returns when the eviction of each pod was first tried.
func firstEvictions(calls []Call) map[types.UID]time.Time {
	out := map[types.UID]time.Time{}
	for _, call := range calls {
		if call.Subresource != "eviction" || call.UID == "" {
			continue
		}
		if before, ok := out[call.UID]; !ok || call.Received.Before(before) {
			out[call.UID] = call.Received
		}
	}
	return out
}

// ends returns when the pods that are gone had ended.
func (h *History) ends(calls []Call) map[types.UID]time.Time {
	deletions := map[types.NamespacedName][]Call{}
	for _, call := range calls {
		if call.Deleted() {
			name := types.NamespacedName{Namespace: call.Namespace, Name: call.Name}
			deletions[name] = append(deletions[name], call)
		}
	}
	out := map[types.UID]time.Time{}
	for uid, p := range h.pods {
		if p.gone.at == never {
			continue
		}
		end := p.gone.seen
		for _, call := range deletions[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] {
			// Of several pods of that name it is the deletion of the one whose event came after it.
			if call.Received.After(p.bound.seen) && call.Received.Before(p.gone.seen) && call.Answered.Before(end) {
				end = call.Answered
			}
		}
		out[uid] = end
	}
	return out
}
