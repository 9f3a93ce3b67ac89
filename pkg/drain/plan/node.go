// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

type nodeState struct {
	*Node
	// holds are the holds of all maintenances that drain the node, oldest maintenance first.
	holds []*hold
	group *group
	// before are the targets that the node has reached according to the statuses, by key of the
	// group.
	before reach
	// lowest has, by key of the group, the lowest priority of a live pod. This is sufficient to
	// determine which entries cover a pod.
	lowest []int64
	// plain is the answer before override, and answer the final answer.
	plain, answer *answer
	// moving is set if a live pod is asked to leave.
	moving bool
}

// noPod is the value in lowest if there is no pod.
const noPod = math.MaxInt64

// recall finds the group of the node, and merges the targets that the statuses have for it.
func (p *planning) recall(n *nodeState) error {
	g, err := p.group(n.holds, nil)
	if err != nil {
		return err
	}
	// Keys that are not in a current plan come last, in an order that does not depend on the
	// statuses.
	var otherKeys []planKey
	for _, h := range n.holds {
		at := -1
		for i := range h.before {
			if at = g.find(&h.before[i], at); at < 0 {
				otherKeys = append(otherKeys, planKey{key: entryKey(&h.before[i]), selector: h.before[i].PodSelector})
			}
		}
	}
	if len(otherKeys) > 0 {
		slices.SortFunc(otherKeys, compareKeys)
		otherKeys = slices.CompactFunc(otherKeys, func(a, b planKey) bool { return compareKeys(a, b) == 0 })
		if g, err = p.group(n.holds, otherKeys); err != nil {
			return err
		}
	}
	n.group, n.before = g, nowhere(len(g.keys))
	for _, h := range n.holds {
		at := -1
		for i := range h.before {
			at = g.find(&h.before[i], at)
			n.before[at] = max(n.before[at], int64(h.before[i].PodPriority))
		}
	}
	return nil
}

func compareKeys(a, b planKey) int {
	return cmp.Or(strings.Compare(string(a.podType), string(b.podType)), strings.Compare(a.selector.String(), b.selector.String()))
}

// measure computes the lowest priority of the pods by key, and the first entry of each hold that
// covers a pod.
func (n *nodeState) measure() {
	g := n.group
	n.lowest = make([]int64, len(g.keys))
	for i := range n.lowest {
		n.lowest[i] = noPod
	}
	for i := range n.Pods {
		pod := &n.Pods[i]
		priority := int64(pod.Priority)
		types := g.types[typeRank(pod.Type)]
		for k := types.from; k < types.to; k++ {
			if priority < n.lowest[k] && matches(g.keys[k].compiled, pod) {
				n.lowest[k] = priority
			}
		}
	}
	for i, h := range n.holds {
		h.first = len(h.by.entries)
		for e, k := range g.members[i].entries {
			if n.lowest[k] <= h.by.entries[e].priority {
				h.first = e
				break
			}
		}
	}
}

// decide computes the targets of the node, and whether pods have to leave.
func (n *nodeState) decide() {
	if len(n.holds) == 0 {
		return
	}
	n.plain = n.group.answer(n.before, n.group.limit)
	n.take(n.plain)
}

// take sets the final answer of the node.
func (n *nodeState) take(a *answer) {
	n.answer, n.moving = a, a.moves(n.lowest)
}

// movesFor reports whether the node has a pod that the maintenance waits for at its frontier and
// that is asked to leave.
func (n *nodeState) movesFor(h *hold) bool {
	g, reached := n.group, n.answer.reached
	undecided := false
	for e, k := range g.members[h.index].entries {
		if e > h.by.frontier {
			break
		}
		types := g.types[h.by.entries[e].rank]
		for other := types.from; other < types.to; other++ {
			// Both the entry and a target must cover a pod. If one of the two covers all pods, only
			// the other has to be checked.
			limit := min(h.by.entries[e].priority, reached[other])
			switch {
			case other == k || g.keys[other].all():
				if n.lowest[k] <= limit {
					return true
				}
			case g.keys[k].all():
				if n.lowest[other] <= limit {
					return true
				}
			case n.lowest[k] <= limit && n.lowest[other] <= limit:
				undecided = true
			}
		}
	}
	return undecided && slices.ContainsFunc(n.Pods, func(pod Pod) bool {
		return h.by.index(&pod) <= h.by.frontier && n.answer.targets.Cover(pod)
	})
}

// SameEntries reports whether two plans, or two lists of targets, are equal.
func SameEntries(a, b []v1alpha1.DrainPlanEntry) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	for i := range a {
		if a[i].PodPriority != b[i].PodPriority || a[i].PodType != b[i].PodType || !planorder.SameSelector(a[i].PodSelector, b[i].PodSelector) ||
			!ptr.Equal(a[i].Behavior, b[i].Behavior) || !ptr.Equal(a[i].WaitSeconds, b[i].WaitSeconds) {
			return false
		}
	}
	return true
}
