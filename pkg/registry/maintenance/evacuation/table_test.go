// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestTable(t *testing.T) {
	now := start
	before := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	created := func(e *maintenance.Evacuation) { e.CreationTimestamp = before(90 * time.Minute) }
	tests := map[string]struct {
		mods []mod
		want []any
	}{
		"an Evacuation without a report": {
			[]mod{func(e *maintenance.Evacuation) { e.Spec.NodeName = "" }},
			[]any{"web-1", "<none>", "<none>", "<none>", int64(0), "<none>", "<unknown>", "<none>", "<none>", name},
		},
		"an Evacuation that is blocked": {
			[]mod{
				created, active(eviction), counter(12), message("the pod is up for eviction"),
				condition("Blocked", "PodDisruptionBudget"),
				func(e *maintenance.Evacuation) {
					e.Status.Conditions[0].Message = "the budget web allows no disruption"
					e.Status.EvacuationProgressTimestamp = ptr.To(before(45 * time.Second))
				},
			},
			[]any{
				"web-1", "node-7", eviction, "45s", int64(12), "PodDisruptionBudget", "90m",
				"the budget web allows no disruption", "<none>", name,
			},
		},
		"an Evacuation that was blocked": {
			[]mod{
				created, active(eviction), condition("Blocked", "PodDisruptionBudget"),
				func(e *maintenance.Evacuation) {
					e.Status.Conditions[0].Status = metav1.ConditionFalse
				},
			},
			[]any{"web-1", "node-7", eviction, "<none>", int64(0), "<none>", "90m", "<none>", "<none>", name},
		},
		"an Evacuation whose pod is stopping, with another message of the evacuator": {
			[]mod{
				created, active("first.example.com"), message("copying"), condition("Blocked", "PodStopping"),
				func(e *maintenance.Evacuation) {
					e.Status.Conditions[0].Status, e.Status.Conditions[0].Message = metav1.ConditionFalse, "The pod is stopping"
				},
			},
			[]any{
				"web-1", "node-7", "first.example.com", "<none>", int64(0), "<none>", "90m", "The pod is stopping", "<none>", name,
			},
		},
		"an Evacuation that is expected to end": {
			[]mod{created, active("first.example.com"), func(e *maintenance.Evacuation) {
				e.Status.ExpectedEvacuationFinishTime = ptr.To(before(-2 * time.Minute))
			}},
			[]any{"web-1", "node-7", "first.example.com", "<none>", int64(0), "<none>", "90m", "<none>", "2m", name},
		},
		"an Evacuation that should have ended": {
			[]mod{created, active("first.example.com"), func(e *maintenance.Evacuation) {
				e.Status.ExpectedEvacuationFinishTime = ptr.To(before(2 * time.Minute))
			}},
			[]any{
				"web-1", "node-7", "first.example.com", "<none>", int64(0), "<none>", "90m", "<none>", "2m overdue",
				name,
			},
		},
	}
	convertor := &tableConvertor{clock: clocktesting.NewFakePassiveClock(now)}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			table := must.Get(convertor.ConvertToTable(t.Context(), newEvacuation(tt.mods...), &metav1.TableOptions{}))(t)
			if len(table.Rows) != 1 || !slices.Equal(table.Rows[0].Cells, tt.want) {
				t.Errorf("got %v, want %v", table.Rows, tt.want)
			}
		})
	}
}

func TestTableColumns(t *testing.T) {
	convertor := &tableConvertor{clock: clocktesting.NewFakePassiveClock(start)}
	list := &maintenance.EvacuationList{
		ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more", RemainingItemCount: ptr.To[int64](3)},
		Items:    []maintenance.Evacuation{*newEvacuation(), *newEvacuation(forPod("web-2"))},
	}
	table, err := convertor.ConvertToTable(t.Context(), list, nil)
	if err != nil {
		t.Fatal(err)
	}
	var narrow, wide []string
	for _, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			narrow = append(narrow, column.Name)
		} else {
			wide = append(wide, column.Name)
		}
	}
	if want := []string{
		"Pod", "Node", "Evacuator", "Progress", "Evictions", "Blocked", "Age",
	}; !slices.Equal(narrow, want) {
		t.Errorf("columns are %q, want %q", narrow, want)
	}
	if want := []string{"Message", "Expected", "Name"}; !slices.Equal(wide, want) {
		t.Errorf("wide columns are %q, want %q", wide, want)
	}
	if table.ResourceVersion != "7" || table.Continue != "more" || table.RemainingItemCount == nil ||
		*table.RemainingItemCount != 3 {
		t.Errorf("the list's metadata is lost: %+v", table.ListMeta)
	}
	if len(table.Rows) != 2 || len(table.Rows[1].Cells) != len(table.ColumnDefinitions) ||
		table.Rows[1].Cells[0] != "web-2" {
		t.Errorf("got rows %v", table.Rows)
	}

	table, err = convertor.ConvertToTable(t.Context(), list, &metav1.TableOptions{NoHeaders: true})
	is.True(t, err == nil && len(table.ColumnDefinitions) == 0, "without headers: got %v, %v", table, err)
	if _, err := convertor.ConvertToTable(t.Context(), &maintenance.NodeMaintenance{},
		runtime.Object(nil)); err == nil {
		t.Error("a NodeMaintenance was printed as Evacuation")
	}
}
