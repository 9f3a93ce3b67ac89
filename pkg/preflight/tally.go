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

package preflight

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/drainplan"
	"haulout.dev/haulout/pkg/eviction/pdb"
	"haulout.dev/haulout/pkg/surge"
)

// Cause is what several findings of a kind have in common; see Finding for the fields.
type Cause struct {
	// Pods is how many pods it concerns.
	Pods    int
	Left    drainplan.LeftReason
	Budgets []types.NamespacedName
	Why     string
	// Refusal is that of all of them; the zero value if they do not have the same.
	Refusal surge.Refusal
}

// Summary is all findings of a kind.
type Summary struct {
	Kind Kind
	// Pods is how many pods it concerns.
	Pods int
	// Causes are ordered by the number of their pods, the worst first, then by name.
	Causes []Cause
}

// Tally counts findings. The zero value is ready for use.
type Tally struct {
	causes map[causeKey]*Cause
}

type causeKey struct {
	kind Kind
	// name orders causes of the same weight.
	name string
}

// Add counts findings.
func (t *Tally) Add(findings ...Finding) {
	for i := range findings {
		f := &findings[i]
		k := causeKey{f.Kind, nameOf(f)}
		if t.causes == nil {
			t.causes = map[causeKey]*Cause{}
		}
		if t.causes[k] == nil {
			t.causes[k] = &Cause{Left: f.Left, Budgets: namesOf(f), Why: f.Why, Refusal: f.Refusal}
		}
		if t.causes[k].Refusal != f.Refusal {
			t.causes[k].Refusal = surge.Refusal{}
		}
		t.causes[k].Pods++
	}
}

func nameOf(f *Finding) string {
	names := []string{string(f.Left)}
	for _, budget := range namesOf(f) {
		names = append(names, budget.String())
	}
	return strings.Join(names, " ")
}

func namesOf(f *Finding) []types.NamespacedName {
	var names []types.NamespacedName
	for _, budget := range f.Budgets {
		names = append(names, pdb.NameOf(budget))
	}
	return names
}

// Summary returns what was found of a kind.
func (t *Tally) Summary(kind Kind) Summary {
	s := Summary{Kind: kind}
	var keys []causeKey
	for k, cause := range t.causes {
		if k.kind == kind {
			keys = append(keys, k)
			s.Pods += cause.Pods
		}
	}
	slices.SortFunc(keys, func(a, b causeKey) int {
		return cmp.Or(-cmp.Compare(t.causes[a].Pods, t.causes[b].Pods), strings.Compare(a.name, b.name))
	})
	for _, k := range keys {
		s.Causes = append(s.Causes, *t.causes[k])
	}
	return s
}
