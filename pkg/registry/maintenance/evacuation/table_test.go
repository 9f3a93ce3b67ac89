// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"strings"
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
	const classA = "first.example.com"
	since := func(conditionType string, status metav1.ConditionStatus, reason, message string, d time.Duration) mod {
		return func(e *maintenance.Evacuation) {
			e.Status.Conditions = append(e.Status.Conditions,
				metav1.Condition{Type: conditionType, Status: status, Reason: reason, Message: message, LastTransitionTime: before(d)})
		}
	}
	reported := func(e *maintenance.Evacuation) {
		e.Status.ActiveEvacuatorSince, e.Status.EvacuationProgressTimestamp = ptr.To(before(3*time.Minute)), ptr.To(before(45*time.Second))
	}
	long := strings.Repeat("word ", 40)
	tests := map[string]struct {
		mods []mod
		want []any
	}{
		"an Evacuation without a status": {
			[]mod{func(e *maintenance.Evacuation) { e.Spec.NodeName = "" }},
			[]any{"web-1", "Waiting", "<none>", "<none>", "<unknown>", "<none>", "<unknown>", "<none>", "<none>", name},
		},
		"an Evacuation that waits": {
			[]mod{created, active(eviction), message("the pod will be evicted")},
			[]any{"web-1", "Waiting", "node-7", eviction, "90m", "<none>", "90m", "the pod will be evicted", "<none>", name},
		},
		"an Evacuation that is blocked shows the remedy": {
			[]mod{
				created, active(eviction), message("the pod will be evicted"), reported,
				since("Blocked", metav1.ConditionTrue, "PodDisruptionBudget", "the budget web allows no disruption", 5*time.Minute),
			},
			[]any{"web-1", "Blocked", "node-7", eviction, "5m", "PodDisruptionBudget", "90m", "the budget web allows no disruption", "<none>", name},
		},
		"an Evacuation that was blocked": {
			[]mod{created, active(eviction), since("Blocked", metav1.ConditionFalse, "NotBlocked", "", time.Minute)},
			[]any{"web-1", "Waiting", "node-7", eviction, "60s", "<none>", "90m", "<none>", "<none>", name},
		},
		"an Evacuation whose evacuator has reported": {
			[]mod{created, active(classA), message("copying"), reported},
			[]any{"web-1", "Moving", "node-7", classA, "3m", "<none>", "90m", "copying", "<none>", name},
		},
		"an Evacuation whose pod is stopping, with another message of the evacuator": {
			[]mod{
				created, active(classA), message("copying"), since("Leaving", metav1.ConditionTrue, "PodStopping", "The pod is stopping", 30*time.Second),
				since("Blocked", metav1.ConditionFalse, "PodStopping", "The pod is stopping", time.Minute),
			},
			[]any{"web-1", "Moving", "node-7", classA, "30s", "<none>", "90m", "The pod is stopping", "<none>", name},
		},
		"an Evacuation whose pod is gone does not show what it waited for": {
			[]mod{
				created, active(classA), message("The pod was gone"), reported, since("Blocked", metav1.ConditionTrue, "PodDisruptionBudget", "the budget", time.Hour),
				since("Complete", metav1.ConditionTrue, "PodDeleted", "The pod was gone", time.Minute),
			},
			[]any{"web-1", "Gone", "node-7", classA, "60s", "<none>", "90m", "The pod was gone", "<none>", name},
		},
		"an Evacuation whose pod has ended": {
			[]mod{created, active(classA), since("Complete", metav1.ConditionTrue, "PodTerminated", "", time.Minute)},
			[]any{"web-1", "Ended", "node-7", classA, "60s", "<none>", "90m", "<none>", "<none>", name},
		},
		"an Evacuation that was cancelled": {
			[]mod{created, active(classA), since("Complete", metav1.ConditionTrue, "Cancelled", "", time.Minute)},
			[]any{"web-1", "Cancelled", "node-7", classA, "60s", "<none>", "90m", "<none>", "<none>", name},
		},
		"an Evacuation that is expected to end": {
			[]mod{created, active(classA), func(e *maintenance.Evacuation) {
				e.Status.ExpectedEvacuationFinishTime = ptr.To(before(-2 * time.Minute))
			}},
			[]any{"web-1", "Waiting", "node-7", classA, "90m", "<none>", "90m", "<none>", "2m", name},
		},
		"an Evacuation that should have ended": {
			[]mod{created, active(classA), func(e *maintenance.Evacuation) {
				e.Status.ExpectedEvacuationFinishTime = ptr.To(before(2 * time.Minute))
			}},
			[]any{"web-1", "Waiting", "node-7", classA, "90m", "<none>", "90m", "<none>", "2m overdue", name},
		},
		"a long message is cut": {
			[]mod{created, active(classA), message(long)},
			[]any{"web-1", "Waiting", "node-7", classA, "90m", "<none>", "90m", strings.Repeat("word ", 23) + "wo...", "<none>", name},
		},
		"a message of several lines, with an escape sequence": {
			[]mod{created, active(classA), message("first\n\x1b[31msecond ä")},
			[]any{"web-1", "Waiting", "node-7", classA, "90m", "<none>", "90m", "first [31msecond ä", "<none>", name},
		},
	}
	convertor := newTable(clocktesting.NewFakePassiveClock(now))
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
	convertor := newTable(clocktesting.NewFakePassiveClock(start))
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
		"Pod", "State", "Node", "Evacuator", "For", "Blocked", "Age",
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
