// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
)

// noValue is the value of a column without meaning in the current stage.
const noValue = "-"

// tableConvertor returns the columns of kubectl get; -o wide shows those of priority 1.
type tableConvertor struct{ observed observation }

// notObserved is appended to the stage while no controller has observed the maintenance.
const notObserved = " (not observed)"

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the maintenance."},
	{Name: "Stage", Type: "string", Description: "Desired stage of the maintenance: Idle, Cordon, Drain or Complete; with (not observed) if no controller has observed it for a minute."},
	{Name: "Nodes", Type: "integer", Description: "Number of nodes under maintenance."},
	{Name: "Drained", Type: "string", Description: "Number of nodes without pods that the plan covers, and number of all nodes; only in stage Drain."},
	{Name: "Pending", Type: "integer", Description: "Pods that the plan covers and whose evacuation has not been requested yet."},
	{Name: "Evacuating", Type: "integer", Description: "Pods that are being evacuated."},
	{Name: "Blocked", Type: "integer", Description: "Evacuating pods that cannot leave."},
	{Name: "Age", Type: "string", Description: "Time since the maintenance was created."},
	{Name: "Reason", Type: "string", Priority: 1, Description: "Why the nodes are under maintenance."},
	{Name: "Target", Type: "string", Priority: 1, Description: "The last wave whose pods are being evacuated."},
	{Name: "Selector", Type: "string", Priority: 1, Description: "Selector of the nodes."},
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
		return c.cells(nm, name, age), nil
	})
	return table, err
}

func (c tableConvertor) cells(nm *maintenance.NodeMaintenance, name, age string) []any {
	var drained int
	var pending, evacuating, blocked int64
	var target *maintenance.DrainPlanEntry
	nodes := nm.Status.NodeStatuses
	for i := range nodes {
		node := &nodes[i]
		pending += int64(node.PodsPendingEvacuation)
		evacuating += int64(node.PodsEvacuating)
		blocked += int64(node.PodsBlocked)
		// A node without a target is not drained: its requester may not drain it, or it is not
		// cordoned yet and its pods have not been counted.
		if len(node.DrainTargets) > 0 && node.PodsPendingEvacuation == 0 && node.PodsEvacuating == 0 {
			drained++
		}
		for j := range node.DrainTargets {
			if t := &node.DrainTargets[j]; target == nil || planorder.Before(planKey(target), planKey(t)) {
				target = t
			}
		}
	}
	drainedText := noValue
	if nm.Spec.Stage == maintenance.NodeMaintenanceStageDrain {
		drainedText = fmt.Sprintf("%d/%d", drained, len(nodes))
	}
	stage := string(nm.Spec.Stage)
	if c.observed.isOverdue(nm) {
		stage += notObserved
	}
	return []any{
		name, stage, int64(len(nodes)), drainedText, pending, evacuating, blocked, age,
		cmp.Or(nm.Spec.Reason, noValue), describeTarget(target), describeNodeSelector(nm.Spec.NodeSelector),
	}
}

func planKey(e *maintenance.DrainPlanEntry) planorder.Key {
	return planorder.Key{Type: string(e.PodType), Priority: e.PodPriority, Selector: e.PodSelector}
}

func describeTarget(target *maintenance.DrainPlanEntry) string {
	if target == nil {
		return noValue
	}
	text := fmt.Sprintf("%s<=%d", target.PodType, target.PodPriority)
	if !planorder.SelectsAll(target.PodSelector) {
		text += " " + metav1.FormatLabelSelector(target.PodSelector)
	}
	return text
}

func describeNodeSelector(selector *corev1.NodeSelector) string {
	if selector == nil {
		return noValue
	}
	terms := make([]string, 0, len(selector.NodeSelectorTerms))
	for _, term := range selector.NodeSelectorTerms {
		var requirements []string
		for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			requirements = append(requirements, describeRequirement(r))
		}
		terms = append(terms, strings.Join(requirements, ","))
	}
	return cmp.Or(strings.Join(terms, " || "), noValue)
}

// describeRequirement formats a requirement like label selectors on the command line.
func describeRequirement(r corev1.NodeSelectorRequirement) string {
	values := strings.Join(r.Values, ",")
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		if len(r.Values) == 1 {
			return r.Key + "=" + values
		}
		return fmt.Sprintf("%s in (%s)", r.Key, values)
	case corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 1 {
			return r.Key + "!=" + values
		}
		return fmt.Sprintf("%s notin (%s)", r.Key, values)
	case corev1.NodeSelectorOpExists:
		return r.Key
	case corev1.NodeSelectorOpDoesNotExist:
		return "!" + r.Key
	case corev1.NodeSelectorOpGt:
		return r.Key + ">" + values
	case corev1.NodeSelectorOpLt:
		return r.Key + "<" + values
	}
	return fmt.Sprintf("%s %s (%s)", r.Key, r.Operator, values)
}
