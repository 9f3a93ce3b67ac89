// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"cmp"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/maintenance/table"
)

// notObserved is appended to the stage while no controller has observed the maintenance.
const notObserved = " (not observed)"

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the maintenance."},
	{Name: "Status", Type: "string", Description: "State of the maintenance in one word: Idle, NoNodes, NotAuthorized, NotCordoned, Cordoning, Cordoned, Draining, Waiting, Blocked, Stalled, Failing, Paused, Drained, Releasing or Complete."},
	{Name: "Stage", Type: "string", Description: "Desired stage of the maintenance: Idle, Cordon, Drain or Complete; with (not observed) if no controller has observed it for a minute."},
	{Name: "Nodes", Type: "integer", Description: "Number of nodes under maintenance. In stage Complete, their number before."},
	{Name: "Drained", Type: "string", Description: "Number of nodes without pods that the plan covers, and number of all nodes; only in stage Drain."},
	{Name: "Pods", Type: "string", Description: "Number of pods that have left the nodes, and number of all pods that had to leave."},
	{Name: "Blocked", Type: "integer", Description: "Number of pods that cannot leave."},
	{Name: "Age", Type: "string", Description: "Time since the maintenance was created."},
	{Name: "Wave", Type: "string", Priority: 1, Description: "Number of the entry of the drain plan whose pods leave now."},
	{Name: "Task", Type: "string", Priority: 1, Description: "Number of nodes whose work is done, and number of all nodes; with the number of those that have failed."},
	{Name: "Reason", Type: "string", Priority: 1, Description: "Why the nodes are under maintenance."},
	{Name: "Requested-By", Type: "string", Priority: 1, Description: "User who last set or changed the selector or advanced the stage."},
}

// NewTableConvertor returns the convertor to the table that kubectl get prints.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return newTable(observation{clock: clock})
}

func newTable(observed observation) table.Convertor[*maintenance.NodeMaintenance] {
	return table.Convertor[*maintenance.NodeMaintenance]{Columns: columns, Cells: func(nm *maintenance.NodeMaintenance, name, age string) ([]any, error) {
		return cells(nm, observed, name, age)
	}}
}

func cells(internal *maintenance.NodeMaintenance, observed observation, name, age string) ([]any, error) {
	nm := &v1alpha1.NodeMaintenance{}
	// The conversion shares the memory of the lists, so it is cheap for large objects.
	if err := v1alpha1.Convert_maintenance_NodeMaintenance_To_v1alpha1_NodeMaintenance(internal, nm, nil); err != nil {
		return nil, err
	}
	nodes, drained, pods, wave := glance.Nodes(nm), table.NoValue, table.NoValue, table.NoValue
	if nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
		drained = fmt.Sprintf("%d/%d", glance.DrainedNodes(nm), nodes)
	}
	if nm.Status.ObservedGeneration > 0 {
		gone, all := glance.Pods(nm)
		pods = fmt.Sprintf("%d/%d", gone, all)
	}
	if number := glance.Wave(nm); number > 0 {
		wave = strconv.Itoa(number)
	}
	stage := string(nm.Spec.Stage)
	if observed.isOverdue(internal) {
		stage += notObserved
	}
	return []any{
		name, string(glance.Status(nm)), stage, int64(nodes), drained, pods, int64(glance.BlockedPods(nm)), age,
		wave, tasks(nm, nodes), cmp.Or(protocol.OneLine(nm.Spec.Reason, len(nm.Spec.Reason)), table.NoValue), cmp.Or(protocol.UserName(v1alpha1.RequesterOf(nm)), table.NoValue),
	}, nil
}

// tasks counts the nodes whose work is done or has failed.
func tasks(nm *v1alpha1.NodeMaintenance, nodes int) string {
	if nm.Spec.Task == nil {
		return table.NoValue
	}
	states := map[v1alpha1.NodeTaskState]int{}
	for i := range nm.Status.NodeStatuses {
		if entry := &nm.Status.NodeStatuses[i]; entry.Task != nil && entry.Reason != v1alpha1.NodeStatusGone {
			states[entry.Task.State]++
		}
	}
	text := fmt.Sprintf("%d/%d", states[v1alpha1.NodeTaskDone], nodes)
	if failed := states[v1alpha1.NodeTaskFailed]; failed > 0 {
		text += fmt.Sprintf(" (%d failed)", failed)
	}
	return text
}
