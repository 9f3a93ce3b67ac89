// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// key identifies a drain target.
type key struct {
	podType  v1alpha1.PodType
	selector string
}

// reach has the drain targets of a node: the highest priority for each type and selector.
type reach map[key]int32

func reachOf(targets []v1alpha1.DrainPlanEntry) reach {
	r := reach{}
	for _, e := range targets {
		k := key{podType: e.PodType}
		if e.PodSelector != nil {
			k.selector = metav1.FormatLabelSelector(e.PodSelector)
		}
		if before, ok := r[k]; !ok || before < e.PodPriority {
			r[k] = e.PodPriority
		}
	}
	return r
}

// of returns the priority of a key or, if higher, of the key with the same type and no selector.
func (r reach) of(k key) (priority int32, ok bool) {
	priority, ok = r[k]
	if all, reached := r[key{podType: k.podType}]; reached && (!ok || all > priority) {
		return all, true
	}
	return priority, ok
}

// covers reports whether everything that another reach covers is covered.
func (r reach) covers(other reach) bool {
	for k, priority := range other {
		if mine, ok := r.of(k); !ok || mine < priority {
			return false
		}
	}
	return true
}

// both returns what two reaches have in common.
func both(a, b reach) reach {
	out := reach{}
	for _, r := range []reach{a, b} {
		for k := range r {
			inA, okA := a.of(k)
			if inB, okB := b.of(k); okA && okB {
				out[k] = min(inA, inB)
			}
		}
	}
	return out
}

// either returns what at least one of two reaches covers.
func either(a, b reach) reach {
	out := reach{}
	for _, r := range []reach{a, b} {
		for k, priority := range r {
			if before, ok := out[k]; !ok || before < priority {
				out[k] = priority
			}
		}
	}
	return out
}

func sameTargets(a, b []v1alpha1.DrainPlanEntry) bool {
	x, y := reachOf(a), reachOf(b)
	return x.covers(y) && y.covers(x)
}

// holders has the maintenances that hold a node, with the drain targets in their statuses.
type holders map[types.UID]reach

// all returns the targets that all holders have. There are none if a holder has no targets: no pod
// is asked to leave before that holder also has the targets in its status.
func (h holders) all() reach {
	var out reach
	for _, r := range h {
		if out == nil {
			out = r
		} else {
			out = both(out, r)
		}
	}
	return out
}

// any returns the targets that at least one holder has.
func (h holders) any() reach {
	out := reach{}
	for _, r := range h {
		out = either(out, r)
	}
	return out
}

// wentBack describes the nodes whose drain targets covered less than before while they were held:
// in the status of one maintenance, or because one maintenance released the node and the
// maintenances that still hold it have less than all holders had once agreed on. Maintenances
// without any targets start over: they came so late that no pod was asked to leave since.
func wentBack(log Log) []string {
	h := historyOf(log)
	var found []string
	for uid, changes := range h.changes() {
		held, agreed := holders{}, reach{}
		for _, c := range changes {
			before, was := held[c.maintenance]
			now := reachOf(c.targets)
			if c.held {
				held[c.maintenance] = now
			} else {
				delete(held, c.maintenance)
			}
			switch {
			case was && c.held && !now.covers(before):
				found = append(
					found,
					fmt.Sprintf("drain targets of node %s were lowered in the status of %s: from %v to %v",
						h.nodeName(uid), h.maintenances[c.maintenance].last.Name, before, now),
				)
			case was && !c.held && len(held.any()) > 0 && !held.any().covers(agreed):
				found = append(
					found,
					fmt.Sprintf("drain targets of node %s were lowered when %s released it: from %v to %v",
						h.nodeName(uid), h.maintenances[c.maintenance].last.Name, agreed, held.any()),
				)
			}
			if agreed = either(agreed, held.all()); len(held.any()) == 0 {
				agreed = reach{}
			}
		}
	}
	slices.SortFunc(found, cmp.Compare[string])
	return found
}

func (h *history) nodeName(uid types.UID) string {
	if node := h.nodes[uid]; node != nil {
		return node.last.Name
	}
	return string(uid)
}
