// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

type planEntry struct {
	rank     int
	priority int64
	selector labels.Selector
	// key is the index of the entry's key in the plan.
	key int
}

func (e *planEntry) covers(pod *Pod) bool {
	return typeRank(pod.Type) == e.rank && int64(pod.Priority) <= e.priority && matches(e.selector, pod)
}

// planKey is a key of a plan, together with the selector of its entry.
type planKey struct {
	key
	selector *metav1.LabelSelector
	compiled labels.Selector
	// generic is the index in the plan of the key that selects all pods of the same type, or -1.
	generic int
}

type progress struct {
	name    string
	created time.Time
	// id is the index of the maintenance among all maintenances.
	id      int
	entries []planEntry
	keys    []planKey
	// holds are the nodes of the maintenance, sorted by name.
	holds []*hold
	// isHeld is set if a node has not been observed as cordoned, so that no target may be raised
	// yet.
	isHeld bool
	// excluded are the nodes for whose pods the maintenance only waits, sorted by name.
	excluded []*Node
	// frontier is the index of the first entry that has live pods left on any node, or
	// len(entries).
	frontier int
	// behind are the excluded nodes with live pods at the frontier. waitsOutside is set if no other
	// node has such pods.
	behind       []string
	waitsOutside bool
	// own has, for each key, the target of the plan at the frontier.
	own       reach
	component *component
	// stocked is set once waits, stuck and limiter have been computed.
	stocked bool
	// waits are the nodes that the maintenance waits for: nodes that are not cordoned, and nodes
	// with live pods that are leaving. stuck are the nodes with live pods at the frontier.
	waits, stuck nodeList
	// limiter is the maintenance because of which the pods at the frontier are not asked to leave.
	limiter *progress
}

// hold is a node that a maintenance holds.
type hold struct {
	name string
	by   *progress
	node *nodeState
	// index is the index of the hold among the holds of the node.
	index int
	// before has the targets in the maintenance's status.
	before []v1alpha1.DrainPlanEntry
	// first is the index of the first entry that covers a live pod on the node, or len(by.entries).
	first      int
	uncordoned bool
}

func (m *progress) compile(plan []v1alpha1.DrainPlanEntry) error {
	m.entries, m.keys = make([]planEntry, 0, len(plan)), nil
	places := make(map[key]int, len(plan))
	for i := range plan {
		e := &plan[i]
		k := entryKey(e)
		place, known := places[k]
		if !known {
			s, err := compileSelector(e.PodSelector)
			if err != nil {
				return fmt.Errorf("plan entry %d: %w", i, err)
			}
			place = len(m.keys)
			places[k] = place
			m.keys = append(m.keys, planKey{key: k, selector: e.PodSelector, compiled: s})
		}
		m.entries = append(m.entries, planEntry{
			rank: typeRank(k.podType), priority: int64(e.PodPriority), selector: m.keys[place].compiled, key: place,
		})
	}
	for i := range m.keys {
		generic, known := places[m.keys[i].generically()]
		if !known {
			generic = -1
		}
		m.keys[i].generic = generic
	}
	return nil
}

// index returns the index of the first entry that covers the pod, or len(m.entries).
func (m *progress) index(pod *Pod) int {
	for i := range m.entries {
		if m.entries[i].covers(pod) {
			return i
		}
	}
	return len(m.entries)
}

// advance computes the frontier, and the targets at the frontier.
func (m *progress) advance() {
	m.frontier = len(m.entries)
	for _, h := range m.holds {
		m.frontier = min(m.frontier, h.first)
	}
	inside := m.frontier
	for _, n := range m.excluded {
		first := len(m.entries)
		for i := range n.Pods {
			first = min(first, m.index(&n.Pods[i]))
		}
		if first < m.frontier {
			m.frontier, m.behind = first, nil
		}
		if first == m.frontier && !m.finished() {
			m.behind = append(m.behind, n.Name)
		}
	}
	m.waitsOutside = m.frontier < inside
	m.own = m.upTo(m.frontier)
}

// finished reports whether the plan covers no remaining live pod.
func (m *progress) finished() bool { return m.frontier == len(m.entries) }

// held reports whether the maintenance must not raise targets yet.
func (m *progress) held() bool { return m.isHeld }

// upTo returns the targets of the entries up to and including the given one. A selector that the
// plan names only in a later entry gets the priority that all pods of its type have reached.
func (m *progress) upTo(frontier int) reach {
	r := nowhere(len(m.keys))
	for i := 0; i <= frontier && i < len(m.entries); i++ {
		r[m.entries[i].key] = max(r[m.entries[i].key], m.entries[i].priority)
	}
	for i := range m.keys {
		if generic := m.keys[i].generic; generic >= 0 {
			r[i] = max(r[i], r[generic])
		}
	}
	return r
}

// reach has, for each key of a list, the highest priority of pods that are asked to leave.
type reach []int64

// unreached is the priority of a key that is not reached.
const unreached = math.MinInt64

func nowhere(keys int) reach {
	r := make(reach, keys)
	for i := range r {
		r[i] = unreached
	}
	return r
}
