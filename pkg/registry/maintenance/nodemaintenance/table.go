// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// noValue is the value of a column without meaning in the current stage.
const noValue = "-"

// tableConvertor returns the columns of kubectl get; -o wide shows those of priority 1.
type tableConvertor struct{ observed observation }

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
	{Name: "Reason", Type: "string", Priority: 1, Description: "Why the nodes are under maintenance."},
	{Name: "Requested-By", Type: "string", Priority: 1, Description: "User who last set or changed the selector or advanced the stage."},
}

// NewTableConvertor returns the convertor to the table that kubectl get prints.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tableConvertor{observation{clock: clock}}
}

// ConvertToTable implements rest.TableConvertor.
func (c tableConvertor) ConvertToTable(_ context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if options, ok := tableOptions.(*metav1.TableOptions); !ok || !options.NoHeaders {
		table.ColumnDefinitions = columns
	}
	if list, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion = list.GetResourceVersion()
		table.Continue = list.GetContinue()
		table.RemainingItemCount = list.GetRemainingItemCount()
	} else if item, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = item.GetResourceVersion()
	}
	var err error
	table.Rows, err = metatable.MetaToTableRow(object, func(obj runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
		nm, ok := obj.(*maintenance.NodeMaintenance)
		if !ok {
			return nil, fmt.Errorf("a %T is not a NodeMaintenance", obj)
		}
		return c.cells(nm, name, age)
	})
	return table, err
}

func (c tableConvertor) cells(internal *maintenance.NodeMaintenance, name, age string) ([]any, error) {
	nm := &v1alpha1.NodeMaintenance{}
	// The conversion shares the memory of the lists, so it is cheap for large objects.
	if err := v1alpha1.Convert_maintenance_NodeMaintenance_To_v1alpha1_NodeMaintenance(internal, nm, nil); err != nil {
		return nil, err
	}
	nodes, drained, pods, wave := glance.Nodes(nm), noValue, noValue, noValue
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
	if c.observed.isOverdue(internal) {
		stage += notObserved
	}
	return []any{
		name, string(glance.Status(nm)), stage, int64(nodes), drained, pods, int64(glance.BlockedPods(nm)), age,
		wave, cmp.Or(protocol.OneLine(nm.Spec.Reason, len(nm.Spec.Reason)), noValue), cmp.Or(protocol.UserName(v1alpha1.RequesterOf(nm)), noValue),
	}, nil
}
