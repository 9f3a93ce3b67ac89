// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/registry/maintenance/table"
)

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the task, which is that of the node."},
	{Name: "State", Type: "string", Description: "State of the work: Offered, Claimed, Verifying, Done or Failed."},
	{Name: "Worker", Type: "string", Description: "Class of the workers that may claim the node."},
	{Name: "Holder", Type: "string", Description: "Worker that claims the node."},
	{Name: "For", Type: "string", Description: "How long the work has been in this state."},
	{Name: "Progress", Type: "string", Description: "Time since the last report of the worker."},
	{Name: "Message", Type: "string", Description: "What the server waits for, or why the work has failed; otherwise the last message of the worker."},
}

func newTable(clock clock.PassiveClock) table.Convertor[*maintenance.NodeTask] {
	since := func(t *metav1.Time) string {
		if t.IsZero() {
			return table.NoValue
		}
		return table.Duration(clock.Since(t.Time))
	}
	return table.Convertor[*maintenance.NodeTask]{Columns: columns, Cells: func(task *maintenance.NodeTask, name, _ string) ([]any, error) {
		status := &task.Status
		message := protocol.OneLine(cmp.Or(status.ServerMessage, status.Message), protocol.MaxTaskMessage)
		return []any{
			name, string(status.State), task.Spec.Worker, cmp.Or(protocol.OneLine(status.Holder, protocol.MaxTaskMessage), table.NoValue), since(status.StateTime), since(status.ProgressTime),
			cmp.Or(message, table.NoValue),
		}, nil
	}}
}
