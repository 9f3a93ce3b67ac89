// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// keps are the KEPs that Haulout implements, in the order of docs/keps.md.
var keps = []string{"KEP-4212", "KEP-2712", "KEP-2255", "KEP-3280", "KEP-4802"}

// kepLists are the lists of each KEP, and the columns of each list.
var kepLists = []struct {
	title   string
	columns int
}{{"differences", 3}, {"not covered", 2}}

// reasonWords is the minimum number of words of a reason.
const reasonWords = 4

// TestEachKEPHasItsLists checks that docs/keps.md has both lists for each KEP, and that each row of
// a list has a reason.
func TestEachKEPHasItsLists(t *testing.T) {
	page := read(t, "docs/keps.md")
	for _, kep := range keps {
		for _, list := range kepLists {
			title := fmt.Sprintf("%s: %s", kep, list.title)
			for _, fault := range faultsOf(section(page, title), list.columns) {
				t.Errorf("docs/keps.md, %s: %s", title, fault)
			}
		}
	}
}

// TestRowsWithoutReasonsAreFound checks faultsOf.
func TestRowsWithoutReasonsAreFound(t *testing.T) {
	const table = "| the KEP | why |\n|---|---|\n"
	for name, tt := range map[string]struct{ section, want string }{
		"a complete list":        {table + "| a gate | an installation is the gate |\n", ""},
		"no list":                {"", "has no table"},
		"no rows":                {table, "has no row"},
		"no reason":              {table + "| a gate | |\n", `the reason of "a gate" is shorter than 4 words`},
		"a reason of one word":   {table + "| a gate | none |\n", `the reason of "a gate" is shorter than 4 words`},
		"a row without its cell": {table + "| a gate |\n", `row "a gate" has 1 cells, want 2`},
		"no column of reasons": {
			"| the KEP | note |\n|---|---|\n| a gate | an installation is the gate |\n", `the last column is "note", want "why"`,
		},
		"two rows of one thing": {
			table + strings.Repeat("| a gate | an installation is the gate |\n", 2), `row "a gate" is there twice`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, strings.Join(faultsOf(tt.section, 2), "; "), tt.want, "faults")
		})
	}
}

// section returns the text of a page below a heading, up to the next heading; "" if the page does
// not have the heading.
func section(page, title string) string {
	_, text, _ := strings.Cut(page, "\n### "+title+"\n")
	text, _, _ = strings.Cut(text, "\n#")
	return text
}

// faultsOf returns what is wrong with the list in a section.
func faultsOf(section string, columns int) (faults []string) {
	rows := rowsOf(section)
	if len(rows) < 2 {
		return []string{"has no table"}
	}
	if last := rows[0][len(rows[0])-1]; last != "why" {
		faults = append(faults, fmt.Sprintf("the last column is %q, want %q", last, "why"))
	}
	if len(rows) == 2 {
		faults = append(faults, "has no row")
	}
	seen := sets.New[string]()
	for _, row := range rows[2:] {
		switch {
		case len(row) != columns:
			faults = append(faults, fmt.Sprintf("row %q has %d cells, want %d", row[0], len(row), columns))
		case seen.Has(row[0]):
			faults = append(faults, fmt.Sprintf("row %q is there twice", row[0]))
		case len(strings.Fields(row[columns-1])) < reasonWords:
			faults = append(faults, fmt.Sprintf("the reason of %q is shorter than %d words", row[0], reasonWords))
		}
		seen.Insert(row[0])
	}
	return faults
}

// rowsOf returns the cells of the rows of a table, with its header and the line below it.
func rowsOf(section string) (rows [][]string) {
	for line := range strings.Lines(section) {
		line, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !isRow {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

// kepFields are the fields that KEP-4212 has. The types below a field with "*" are those of the KEP
// as a whole.
var kepFields = sets.New(
	"spec", "spec.nodeSelector", "spec.stage", "spec.drainPlan*", "spec.reason",
	"status", "status.stageStatuses*", "status.conditions", "status.nodeStatuses[]",
	"status.nodeStatuses[].nodeRef", "status.nodeStatuses[].nodeRef.name", "status.nodeStatuses[].drainTargets*",
	"status.nodeStatuses[].drainMessage", "status.nodeStatuses[].podsPendingEvacuation", "status.nodeStatuses[].podsEvacuating",

	"spec.podRef*", "spec.progressDeadlineSeconds", "spec.evacuators*",
	"status.activeEvacuatorClass", "status.activeEvacuatorCompleted", "status.evacuationProgressTimestamp",
	"status.expectedEvacuationFinishTime", "status.evacuationCancellationPolicy", "status.failedEvictionCounter", "status.message",
)

// TestFieldsBesideTheKEPAreListed checks that docs/keps.md names each field that KEP-4212 does not
// have.
func TestFieldsBesideTheKEPAreListed(t *testing.T) {
	list := section(read(t, "docs/keps.md"), "KEP-4212: differences")
	fields := 0
	for _, kind := range []reflect.Type{reflect.TypeFor[v1alpha1.NodeMaintenance](), reflect.TypeFor[v1alpha1.Evacuation]()} {
		for _, path := range fieldsBesideTheKEP(kind, "") {
			fields++
			is.True(t, strings.Contains(list, "`"+path+"`"), "docs/keps.md does not list the field %s of %s", path, kind.Name())
		}
	}
	must.True(t, fields >= 15, "found only %d fields", fields)
}

// fieldsBesideTheKEP returns the paths of the fields of a type that are not in kepFields. It omits
// the fields below such a field.
func fieldsBesideTheKEP(structure reflect.Type, prefix string) (paths []string) {
	for field := range structure.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || field.Type.PkgPath() == "k8s.io/apimachinery/pkg/apis/meta/v1" {
			continue
		}
		path, below := prefix+name, field.Type
		if below.Kind() == reflect.Slice && below.Elem().Kind() == reflect.Struct && kepFields.Has(path+"[]") {
			path, below = path+"[]", below.Elem()
		}
		switch {
		case kepFields.Has(path + "*"):
		case !kepFields.Has(path):
			paths = append(paths, path)
		case below.Kind() == reflect.Struct:
			paths = append(paths, fieldsBesideTheKEP(below, path+".")...)
		}
	}
	return paths
}
