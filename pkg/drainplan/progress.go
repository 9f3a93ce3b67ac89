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

package drainplan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// planEntry is an entry of a plan, ready for use.
type planEntry struct {
	index    int
	key      key
	priority int32
	selector labels.Selector
}

// progress is one maintenance in the course of planning.
type progress struct {
	*Maintenance
	entries []planEntry
	byType  [3][]planEntry
	// frontier is the index of the first entry that has live pods left on any node, or len(entries).
	frontier int
	// first holds, for each node, the index of the first entry that covers a live pod there, or len(entries).
	first map[string]int
	// own is what the plan asks for up to the frontier.
	own reach
	// named are the keys that the plan knows, reached or not.
	named map[key]bool
	// waits are the nodes that hold the maintenance up: those not cordoned and those with live pods that are leaving. Sorted by name.
	waits []string
}

func newProgress(m *Maintenance) (*progress, error) {
	p := &progress{Maintenance: m, first: make(map[string]int, len(m.Nodes)), named: map[key]bool{}}
	for i := range m.Plan {
		e := &m.Plan[i]
		s, err := compileSelector(e.PodSelector)
		if err != nil {
			return nil, fmt.Errorf("maintenance %s: plan entry %d: %w", m.Name, i, err)
		}
		k := entryKey(e)
		p.entries = append(p.entries, planEntry{index: i, key: k, priority: e.PodPriority, selector: s})
		rank := typeRank(k.podType)
		p.byType[rank] = append(p.byType[rank], p.entries[i])
		p.named[k] = true
	}
	return p, nil
}

// index returns the first entry that covers the pod, or len(p.entries).
func (p *progress) index(pod Pod) int {
	for _, e := range p.byType[typeRank(pod.Type)] {
		if pod.Priority <= e.priority && matches(e.selector, pod) {
			return e.index
		}
	}
	return len(p.entries)
}

// advance finds the frontier and what is asked for up to there.
func (p *progress) advance(nodes map[string]*Node) {
	p.frontier = len(p.entries)
	for _, name := range p.Nodes {
		first := len(p.entries)
		for _, pod := range nodes[name].Pods {
			if first = min(first, p.index(pod)); first == 0 {
				break
			}
		}
		p.first[name] = first
		p.frontier = min(p.frontier, first)
	}
	p.own = p.upTo(p.frontier)
}

// finished says whether no live pod is left that the plan covers.
func (p *progress) finished() bool { return p.frontier == len(p.entries) }

// held says whether the maintenance must not raise anything yet.
func (p *progress) held() bool { return len(p.Uncordoned) > 0 }

// upTo returns what the entries up to and with the given one ask for. Of a type that is reached, the selectors that the plan names later are
// listed too, at the priority that all pods of the type have reached.
func (p *progress) upTo(frontier int) reach {
	r := reach{}
	for i := 0; i <= frontier && i < len(p.entries); i++ {
		r.raise(p.entries[i].key, p.entries[i].priority)
	}
	for k := range p.named {
		if all, ok := r[k.generic()]; ok {
			r.raise(k, all)
		}
	}
	return r
}

// at returns what the plan asks for at a key of its own or of another maintenance; a selector that it does not name is reached as far as
// all pods of the type are.
func (p *progress) at(k key) (int32, bool) {
	if priority, ok := p.own[k]; ok {
		return priority, true
	}
	priority, ok := p.own[k.generic()]
	return priority, ok
}

func (p *progress) before(node string) []maintenancev1alpha1.DrainPlanEntry {
	return p.Before[node]
}
