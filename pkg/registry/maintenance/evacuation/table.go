// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"context"
	"fmt"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// columns are the columns of "kubectl get evacuations". kubectl itself prints the namespace. Only
// the wide output has the name, which is long and mostly repeats the name of the pod.
var columns = []metav1.TableColumnDefinition{
	{Name: "Pod", Type: "string", Description: "Pod that has to leave its node."},
	{Name: "Node", Type: "string", Description: "Node the pod ran on when the evacuation was requested."},
	{Name: "Evacuator", Type: "string", Description: "Class of the active evacuator."},
	{Name: "Progress", Type: "string", Description: "Time since the active evacuator last reported."},
	{Name: "Evictions", Type: "integer", Description: "Calls of the Eviction API that a budget refused."},
	{Name: "Blocked", Type: "string", Description: "Reason why the pod cannot leave at the moment."},
	{Name: "Age", Type: "string", Description: "Time since the evacuation was requested."},
	{Name: "Message", Type: "string", Priority: 1, Description: "Why the pod is blocked; otherwise the last report about the pod."},
	{Name: "Expected", Type: "string", Priority: 1, Description: "Time until the active evacuator expects the pod to be gone."},
	{Name: "Name", Type: "string", Format: "name", Priority: 1, Description: "Name of the evacuation."},
}

const (
	none    = "<none>"
	unknown = "<unknown>"
)

type tableConvertor struct {
	clock clock.PassiveClock
}

var _ rest.TableConvertor = &tableConvertor{}

// ConvertToTable implements rest.TableConvertor.
func (c *tableConvertor) ConvertToTable(_ context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	switch t := object.(type) {
	case *maintenance.Evacuation:
		table.ResourceVersion = t.ResourceVersion
		table.Rows = []metav1.TableRow{c.row(t)}
	case *maintenance.EvacuationList:
		table.ListMeta = t.ListMeta
		table.Rows = make([]metav1.TableRow, 0, len(t.Items))
		for i := range t.Items {
			table.Rows = append(table.Rows, c.row(&t.Items[i]))
		}
	default:
		return nil, fmt.Errorf("cannot print a %T as Evacuation", object)
	}
	if options, ok := tableOptions.(*metav1.TableOptions); !ok || !options.NoHeaders {
		table.ColumnDefinitions = columns
	}
	return table, nil
}

func (c *tableConvertor) row(evacuation *maintenance.Evacuation) metav1.TableRow {
	status := evacuation.Status
	blockedReason, message := "", status.Message
	if condition := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked); condition != nil {
		switch {
		case condition.Status == metav1.ConditionTrue:
			// Show the reason and message of the condition Blocked instead of those of the
			// evacuator, since that message has a remedy.
			blockedReason, message = condition.Reason, condition.Message
		case condition.Reason == v1alpha1.ReasonPodStopping:
			// The evacuation is over, so show its result.
			message = condition.Message
		}
	}
	return metav1.TableRow{
		Cells: []any{
			evacuation.Spec.PodRef.Name,
			cmp.Or(evacuation.Spec.NodeName, none),
			cmp.Or(status.ActiveEvacuatorClass, none),
			c.since(status.EvacuationProgressTimestamp, none),
			int64(status.FailedEvictionCounter),
			cmp.Or(blockedReason, none),
			c.since(&evacuation.CreationTimestamp, unknown),
			cmp.Or(message, none),
			c.until(status.ExpectedEvacuationFinishTime),
			evacuation.Name,
		},
		Object: runtime.RawExtension{Object: evacuation},
	}
}

func (c *tableConvertor) since(t *metav1.Time, absent string) string {
	if t.IsZero() {
		return absent
	}
	return duration.HumanDuration(c.clock.Since(t.Time))
}

func (c *tableConvertor) until(t *metav1.Time) string {
	if t.IsZero() {
		return none
	}
	left := t.Sub(c.clock.Now())
	if left < 0 {
		return duration.HumanDuration(-left) + " overdue"
	}
	return duration.HumanDuration(left)
}
