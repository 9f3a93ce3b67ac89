/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package plan

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// nodeState is one node in the course of planning.
type nodeState struct {
	*Node
	// seen is the last call that it was part of, touched the last one in which its pods or its
	// answer changed.
	seen, touched uint64
	// renewed says that the pods may have changed, recalled that what a status says has changed,
	// fresh that the node has to be decided anew.
	renewed, recalled, fresh bool
	// holds are those of the maintenances that drain the node, oldest first.
	holds []*hold
	group *group
	// before is what the statuses say the node has reached, by key of the group.
	before reach
	// lowest is the lowest priority of a live pod, by key of the group: all that has to be known to
	// say which entries cover a pod.
	lowest []int64
	// plain is the answer before contradictions are decided, answer the one that counts.
	plain, answer *answer
	// moving says whether a live pod is asked to leave.
	moving, overridden bool
	// targets are those in the result.
	targets   Targets
	published bool
}

// noPod is the lowest priority where there is no pod.
const noPod = math.MaxInt64

// recall finds the group of the node and joins what the statuses say.
func (p *Planner) recall(n *nodeState) error {
	g, err := p.group(n.holds, nil)
	if err != nil {
		return err
	}
	// Keys that no plan of the present knows come last, whichever status they stand in, in an order
	// that does not depend on it.
	var strangers []planKey
	for _, h := range n.holds {
		at := -1
		for i := range h.before {
			if at = g.find(&h.before[i], at); at < 0 {
				strangers = append(strangers, planKey{key: entryKey(&h.before[i]), selector: h.before[i].PodSelector})
			}
		}
	}
	if len(strangers) > 0 {
		slices.SortFunc(strangers, compareStrangers)
		strangers = slices.CompactFunc(strangers, func(a, b planKey) bool { return compareStrangers(a, b) == 0 })
		if g, err = p.group(n.holds, strangers); err != nil {
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

func compareStrangers(a, b planKey) int {
	return cmp.Or(strings.Compare(string(a.podType), string(b.podType)), strings.Compare(a.selector.String(), b.selector.String()))
}

// measure looks at the pods.
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
		first := len(h.by.entries)
		for e, k := range g.members[i].entries {
			if n.lowest[k] <= h.by.entries[e].priority {
				first = e
				break
			}
		}
		if h.first != first {
			h.first, h.by.stale = first, true
		}
	}
}

// decide finds out what the node is asked for, and whether pods have to leave for it.
func (n *nodeState) decide(call uint64) {
	if len(n.holds) == 0 || !n.fresh && n.group.changed != call {
		return
	}
	n.fresh = false
	plain := n.group.answer(n.before, n.group.limit)
	if n.plain != plain {
		n.plain, n.touched = plain, call
	}
	// What the others say of it may have changed as well.
	n.holds[0].by.component.dirty = true
	n.take(plain, call)
}

// take makes an answer the one that counts.
func (n *nodeState) take(a *answer, call uint64) {
	moving := a.moves(n.lowest)
	if n.answer != a || n.moving != moving {
		n.answer, n.moving, n.touched = a, moving, call
	}
}

// movesFor says whether a pod of the node that the maintenance's frontier waits for is asked to
// leave.
func (n *nodeState) movesFor(h *hold) bool {
	g, reached := n.group, n.answer.reached
	undecided := false
	for e, k := range g.members[h.index].entries {
		if e > h.by.frontier {
			break
		}
		types := g.types[h.by.entries[e].rank]
		for other := types.from; other < types.to; other++ {
			// A pod has to be covered by the entry and by a target. Where one of the two is about
			// all pods, it is enough to look at the other.
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

// sameEntries says whether two lists of entries are the same, or at least equal.
func sameEntries(a, b []maintenancev1alpha1.DrainPlanEntry) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	for i := range a {
		if a[i].PodPriority != b[i].PodPriority || a[i].PodType != b[i].PodType || !sameSelector(a[i].PodSelector, b[i].PodSelector) {
			return false
		}
	}
	return true
}

func sameSelector(a, b *metav1.LabelSelector) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a == b || maps.Equal(a.MatchLabels, b.MatchLabels) &&
		slices.EqualFunc(a.MatchExpressions, b.MatchExpressions, func(a, b metav1.LabelSelectorRequirement) bool {
			return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
		})
}
