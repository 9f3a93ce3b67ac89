// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// Moment is one entry of the history of a maintenance.
type Moment struct {
	Time metav1.Time `json:"time"`
	// What is a stage, a condition or the reason of an event.
	What string `json:"what"`
	// Object is the affected object, such as a node; empty for the maintenance itself.
	Object string `json:"object,omitempty"`
	// Detail is the message of the condition or the event.
	Detail string `json:"detail,omitempty"`
	// Warning is set if the moment needs attention.
	Warning bool `json:"warning,omitempty"`
}

// History returns the records in the status of a maintenance and the events about it, the oldest
// first. The status keeps the stages; the cluster deletes events after an hour, unless it is
// configured otherwise.
func History(nm *v1alpha1.NodeMaintenance, events []eventsv1.Event) []Moment {
	by := ""
	if nm.Spec.RequestedBy != nil && nm.Spec.RequestedBy.Username != "" {
		by = ", requested by " + nm.Spec.RequestedBy.Username
	}
	moments := []Moment{{Time: nm.CreationTimestamp, What: "Created", Detail: nm.Spec.Reason}}
	for i, stage := range nm.Status.StageStatuses {
		if stage.StartTimestamp == nil {
			continue
		}
		m := Moment{Time: *stage.StartTimestamp, What: "Stage " + string(stage.Name)}
		if i == len(nm.Status.StageStatuses)-1 {
			m.Detail = "the current stage" + by
		}
		moments = append(moments, m)
	}
	if drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained); drained != nil && drained.Reason != v1alpha1.ReasonNotRequested {
		detail := drained.Reason + ": " + drained.Message
		if drained.Status != metav1.ConditionTrue {
			// The message may be newer than the last transition of the condition.
			detail = "now " + detail
		}
		moments = append(moments, Moment{
			Time: drained.LastTransitionTime, What: "Drained is " + string(drained.Status), Detail: detail,
			Warning: drained.Status != metav1.ConditionTrue && drained.Reason != v1alpha1.ReasonDrainInProgress,
		})
	}
	c := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
	if c != nil && c.Reason != v1alpha1.ReasonProgressNotRequested {
		moments = append(moments, Moment{
			Time: c.LastTransitionTime, What: "Progressing is " + string(c.Status), Detail: "now " + c.Reason + ": " + c.Message,
			Warning: c.Status == metav1.ConditionFalse,
		})
	}
	if nm.DeletionTimestamp != nil {
		moments = append(moments, Moment{Time: *nm.DeletionTimestamp, What: "Deletion requested"})
	}
	for i := range events {
		moments = append(moments, momentOf(&events[i], nm))
	}
	slices.SortStableFunc(moments, func(a, b Moment) int { return a.Time.Compare(b.Time.Time) })
	return moments
}

func momentOf(e *eventsv1.Event, nm *v1alpha1.NodeMaintenance) Moment {
	at := cmp.Or(e.EventTime.UTC(), e.DeprecatedFirstTimestamp.UTC(), e.CreationTimestamp.UTC())
	m := Moment{Time: metav1.NewTime(at), What: e.Reason, Detail: e.Note, Warning: e.Type == corev1.EventTypeWarning}
	if e.Regarding.Name != nm.Name || e.Regarding.Kind != "NodeMaintenance" {
		m.Object = e.Regarding.Kind + "/" + e.Regarding.Name
	}
	if e.Series != nil && e.Series.Count > 1 {
		m.Detail += " (" + wording.Count(e.Series.Count, "time") + ")"
	}
	return m
}

// HistoryTable shows one row for each moment, with the time since the first.
func HistoryTable(moments []Moment) []screen.Line {
	rows, styles := [][]string{{"TIME", "AFTER", "WHAT", "OBJECT", "DETAIL"}}, []screen.Style{screen.Faint}
	for _, m := range moments {
		style := screen.Plain
		if m.Warning {
			style = screen.Warning
		}
		rows = append(rows, []string{m.Time.UTC().Format(time.RFC3339), ago(m.Time.Time, moments[0].Time.Time), m.What, cmp.Or(m.Object, "-"), m.Detail})
		styles = append(styles, style)
	}
	return table("", rows, styles)
}
