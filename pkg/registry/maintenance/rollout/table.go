// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/maintenance/table"
)

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the rollout."},
	{Name: "Stage", Type: "string", Description: "Desired stage of the rollout: Idle, Roll or Complete."},
	{Name: "Done", Type: "string", Description: "Number of nodes that need no work any more, and number of all matching nodes."},
	{Name: "Running", Type: "integer", Description: "Number of nodes whose unit runs."},
	{Name: "Failed", Type: "integer", Description: "Number of nodes whose unit has failed."},
	{Name: "State", Type: "string", Description: "Reason of the condition Progressing: Rolling, or why no further unit starts."},
	{Name: "Window", Type: "string", Description: "Time for which the window stays open, or until the next one opens."},
	{Name: "Age", Type: "string", Description: "Time since the rollout was created."},
}

func newTable(clock clock.PassiveClock) table.Convertor[*maintenance.NodeMaintenanceRollout] {
	return table.Convertor[*maintenance.NodeMaintenanceRollout]{Columns: columns, Cells: func(r *maintenance.NodeMaintenanceRollout, name, age string) ([]any, error) {
		nodes, state := &r.Status.Nodes, table.NoValue
		if progressing := apimeta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing); progressing != nil {
			state = progressing.Reason
		}
		return []any{
			name, string(r.Spec.Stage), fmt.Sprintf("%d/%d", nodes.Done, nodes.Total), int64(nodes.Running), int64(nodes.Failed), state,
			windowText(r.Status.Window, clock), age,
		}, nil
	}}
}

// windowText describes the state of the windows. Without windows units may always start.
func windowText(status *maintenance.RolloutWindowStatus, clock clock.PassiveClock) string {
	switch {
	case status == nil:
		return table.NoValue
	case status.Open && status.Until == nil:
		return "open"
	case status.Open:
		return "open " + left(status.Until, clock)
	case status.Until == nil:
		return "closed"
	}
	return "in " + left(status.Until, clock)
}

func left(until *metav1.Time, clock clock.PassiveClock) string {
	return table.Duration(until.Sub(clock.Now()))
}
