// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/maintenance/table"
)

// columns are the columns of "kubectl get evacuations". kubectl itself prints the namespace. Only
// the wide output has the name, which is long and mostly repeats the name of the pod.
var columns = []metav1.TableColumnDefinition{
	{Name: "Pod", Type: "string", Description: "Pod that has to leave its node."},
	{Name: "State", Type: "string", Description: "State of the evacuation in one word: Waiting, Moving, Blocked, Gone, Ended or Cancelled."},
	{Name: "Node", Type: "string", Description: "Node the pod ran on when the evacuation was requested."},
	{Name: "Evacuator", Type: "string", Description: "Class of the active evacuator."},
	{Name: "For", Type: "string", Description: "How long the evacuation has been in this state."},
	{Name: "Blocked", Type: "string", Description: "Reason why the pod cannot leave at the moment."},
	{Name: "Age", Type: "string", Description: "Time since the evacuation was requested."},
	{Name: "Message", Type: "string", Priority: 1, Description: "Why the pod is blocked; otherwise the last report about the pod. The first 120 characters."},
	{Name: "Expected", Type: "string", Priority: 1, Description: "Time until the active evacuator expects the pod to be gone."},
	{Name: "Name", Type: "string", Format: "name", Priority: 1, Description: "Name of the evacuation."},
}

// maxMessage is the maximum number of characters of a message in the table, and cut ends a message
// that was longer.
const (
	maxMessage = 120
	cut        = "..."
)

const (
	none    = "<none>"
	unknown = "<unknown>"
)

func newTable(clock clock.PassiveClock) table.Convertor[*maintenance.Evacuation] {
	return table.Convertor[*maintenance.Evacuation]{Columns: columns, Cells: func(internal *maintenance.Evacuation, _, _ string) ([]any, error) {
		return cells(internal, clock)
	}}
}

func cells(internal *maintenance.Evacuation, clock clock.PassiveClock) ([]any, error) {
	evacuation := &v1alpha1.Evacuation{}
	if err := v1alpha1.Convert_maintenance_Evacuation_To_v1alpha1_Evacuation(internal, evacuation, nil); err != nil {
		return nil, err
	}
	status, state := &evacuation.Status, glance.State(evacuation)
	blockedReason, message := none, status.Message
	condition := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked)
	switch {
	case state == glance.StateBlocked:
		// Show the reason and message of the condition Blocked instead of those of the evacuator,
		// since that message has a remedy.
		blockedReason, message = condition.Reason, condition.Message
	case condition != nil && condition.Reason == v1alpha1.ReasonPodStopping:
		// The evacuator has nothing left to do, so show what the pod does.
		message = condition.Message
	}
	return []any{
		evacuation.Spec.PodRef.Name,
		string(state),
		cmp.Or(evacuation.Spec.NodeName, none),
		cmp.Or(status.ActiveEvacuatorClass, none),
		since(glance.StateSince(evacuation), clock),
		blockedReason,
		since(evacuation.CreationTimestamp, clock),
		cmp.Or(shorten(message), none),
		until(status.ExpectedEvacuationFinishTime, state, clock),
		evacuation.Name,
	}, nil
}

func since(t metav1.Time, clock clock.PassiveClock) string {
	if t.IsZero() {
		return unknown
	}
	return table.Duration(clock.Since(t.Time))
}

// until returns the time until the end that the evacuator of an evacuation expects.
func until(t *metav1.Time, state glance.StateWord, clock clock.PassiveClock) string {
	if t.IsZero() || glance.IsOver(state) {
		return none
	}
	left := t.Sub(clock.Now())
	if left < 0 {
		return table.Duration(-left) + " overdue"
	}
	return table.Duration(left)
}

// shorten returns a message as one line of at most maxMessage characters.
func shorten(message string) string {
	line := []rune(protocol.OneLine(message, len(message)))
	if len(line) <= maxMessage {
		return string(line)
	}
	return strings.TrimRight(string(line[:maxMessage-len(cut)]), " ") + cut
}
