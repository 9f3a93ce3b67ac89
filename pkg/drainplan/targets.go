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
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Targets are the drain targets of a node, ready to be asked which pods they cover. The zero value covers nothing.
type Targets struct {
	// Entries are the targets as the status shows them: by pod type, the entry for all pods before those with a selector. They are shared
	// and must not be changed.
	Entries   []maintenancev1alpha1.DrainPlanEntry
	selectors []labels.Selector
}

// CompileTargets makes the targets that a status shows ready for use.
func CompileTargets(entries []maintenancev1alpha1.DrainPlanEntry) (Targets, error) {
	t := Targets{Entries: entries, selectors: make([]labels.Selector, len(entries))}
	for i := range entries {
		s, err := compileSelector(entries[i].PodSelector)
		if err != nil {
			return Targets{}, fmt.Errorf("entry %d: %w", i, err)
		}
		t.selectors[i] = s
	}
	return t, nil
}

// Cover says whether the pod is asked to leave.
func (t Targets) Cover(pod Pod) bool {
	for i := range t.Entries {
		if t.Entries[i].PodType == pod.Type && pod.Priority <= t.Entries[i].PodPriority && matches(t.selectors[i], pod) {
			return true
		}
	}
	return false
}

// CoverAny says whether one of the pods is asked to leave.
func (t Targets) CoverAny(pods []Pod) bool {
	return slices.ContainsFunc(pods, t.Cover)
}

// compileSelector returns nil for a selector of all pods.
func compileSelector(s *metav1.LabelSelector) (labels.Selector, error) {
	if planorder.SelectsAll(s) {
		return nil, nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

func matches(s labels.Selector, pod Pod) bool {
	return s == nil || s.Matches(pod.Labels)
}

// key identifies a target: the pods of a type that a selector, written canonically, selects.
type key struct {
	podType  maintenancev1alpha1.PodType
	selector string
}

func (k key) generic() key { return key{podType: k.podType} }

// reach is how far each key has come: the highest priority that is asked to leave. A key that is absent has not come anywhere.
type reach map[key]int32

// raise lifts a key to a priority unless it is there already.
func (r reach) raise(k key, priority int32) {
	if old, ok := r[k]; !ok || priority > old {
		r[k] = priority
	}
}

// normalize lifts every selector to the priority that all pods of its type have reached.
func (r reach) normalize() {
	for k, priority := range r {
		if all, ok := r[k.generic()]; ok && all > priority {
			r[k] = all
		}
	}
}

func typeRank(t maintenancev1alpha1.PodType) int {
	rank, _ := planorder.TypeRank(string(t))
	return rank
}

// vocabulary gives the keys of one node their order and their selectors back. Keys stand in the order in which the plans of the node's
// maintenances, oldest first, name them, so that all of these show the same list.
type vocabulary struct {
	place     map[key]int
	selectors map[key]*metav1.LabelSelector
}

func newVocabulary() *vocabulary {
	return &vocabulary{place: map[key]int{}, selectors: map[key]*metav1.LabelSelector{}}
}

func (v *vocabulary) learn(k key, selector *metav1.LabelSelector) {
	if _, known := v.place[k]; !known {
		v.place[k] = len(v.place)
		v.selectors[k] = selector
	}
}

func (v *vocabulary) compare(a, b key) int {
	return cmp.Or(
		cmp.Compare(typeRank(a.podType), typeRank(b.podType)),
		compareGenericFirst(a, b),
		cmp.Compare(v.place[a], v.place[b]),
	)
}

func compareGenericFirst(a, b key) int {
	switch {
	case a.selector == "" && b.selector != "":
		return -1
	case a.selector != "" && b.selector == "":
		return 1
	}
	return 0
}

// entries writes a reach down as drain targets.
func (v *vocabulary) entries(r reach) []maintenancev1alpha1.DrainPlanEntry {
	keys := make([]key, 0, len(r))
	for k := range r {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, v.compare)
	out := make([]maintenancev1alpha1.DrainPlanEntry, 0, len(keys))
	for _, k := range keys {
		e := maintenancev1alpha1.DrainPlanEntry{PodType: k.podType, PodPriority: r[k]}
		if k.selector != "" {
			e.PodSelector = v.selectors[k]
		}
		out = append(out, e)
	}
	return out
}

func entryKey(e *maintenancev1alpha1.DrainPlanEntry) key {
	t := e.PodType
	if t == "" {
		t = maintenancev1alpha1.PodTypeDefault
	}
	return key{podType: t, selector: planorder.CanonicalSelector(e.PodSelector)}
}
