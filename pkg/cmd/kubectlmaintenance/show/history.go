// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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

// The events of the server that repeat a record of the status. They are shown only if the status
// does not have the record.
const (
	eventStageStarted = "StageStarted"
	eventDrained      = "Drained"
	eventPaused       = "DrainPaused"
)

// History returns the records of the past in the status of a maintenance and the events about it,
// the oldest first. The status keeps the stages; the cluster deletes events after an hour, unless
// it is configured otherwise. The object names the user of the last stage, and the events those of
// all stages.
func History(nm *v1alpha1.NodeMaintenance, events []eventsv1.Event) []Moment {
	moments := []Moment{{Time: nm.CreationTimestamp, What: "Created", Detail: nm.Spec.Reason}}
	told := map[string]string{}
	for i := range events {
		e := &events[i]
		if e.Regarding.Kind == "NodeMaintenance" && e.Reason == eventStageStarted {
			stage, by, _ := strings.Cut(e.Note, ", ")
			told[stage] = by
			continue
		}
		moments = append(moments, momentOf(e, nm))
	}
	moments = append(moments, stagesOf(nm, told)...)
	has := func(reason string) bool {
		return slices.ContainsFunc(moments, func(m Moment) bool { return m.What == reason && m.Object == "" })
	}
	drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	if drained != nil && drained.Status == metav1.ConditionTrue && !has(eventDrained) {
		// The message of the condition describes the present.
		detail := "All pods had left the nodes"
		if drained.Reason == v1alpha1.ReasonDrainCompleteWithPodsLeft {
			detail += ", except the kept pods"
		}
		moments = append(moments, Moment{Time: drained.LastTransitionTime, What: eventDrained, Detail: detail})
	}
	if pause := nm.Status.Pause; pause != nil && !has(eventPaused) {
		moments = append(moments, Moment{Time: pause.Since, What: eventPaused, Detail: "paused by " + pause.By})
	}
	if nm.DeletionTimestamp != nil {
		moments = append(moments, Moment{Time: *nm.DeletionTimestamp, What: "Deletion requested"})
	}
	slices.SortStableFunc(moments, func(a, b Moment) int { return a.Time.Compare(b.Time.Time) })
	return moments
}

// stagesOf returns the stages that a maintenance has entered. told has the users whom events name.
func stagesOf(nm *v1alpha1.NodeMaintenance, told map[string]string) []Moment {
	var moments []Moment
	for _, stage := range nm.Status.StageStatuses {
		if stage.StartTimestamp != nil {
			what := "Stage " + string(stage.Name)
			moments = append(moments, Moment{Time: *stage.StartTimestamp, What: what, Detail: told[what]})
		}
	}
	// The requester may have changed the nodes, and not the stage.
	if by := v1alpha1.RequesterOf(nm); by != "" && len(moments) > 0 {
		last := &moments[len(moments)-1]
		last.Detail = cmp.Or(last.Detail, "last requester: "+by)
	}
	// A request for a later stage enters the stages before it, too.
	for i := len(moments) - 2; i >= 0; i-- {
		if next := &moments[i+1]; moments[i].Detail == "" && moments[i].Time.Equal(&next.Time) {
			moments[i].Detail = next.Detail
		}
	}
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

// detailColumns is the least width of the column DETAIL. On a narrower screen, the details are
// below the moments.
const detailColumns = 24

// HistoryTable shows one row for each moment, with the time since the first.
func HistoryTable(moments []Moment, o Options) []screen.Line {
	rows, styles, details := [][]string{{"TIME", "AFTER", "WHAT"}}, []screen.Style{screen.Faint}, []string{"DETAIL"}
	for _, m := range moments {
		style, detail := screen.Plain, m.Detail
		if m.Warning {
			style = screen.Warning
		}
		if m.Object != "" {
			detail = m.Object + ": " + detail
		}
		rows = append(rows, []string{m.Time.UTC().Format(time.RFC3339), ago(m.Time.Time, moments[0].Time.Time), m.What})
		styles, details = append(styles, style), append(details, detail)
	}
	left, start := table("", rows, styles), 0
	for _, l := range left {
		start = max(start, len([]rune(l.Text))+2)
	}
	var lines []screen.Line
	for i, l := range left {
		if start+detailColumns > o.columns() {
			lines = append(lines, l)
			if i > 0 {
				lines = append(lines, wrap("    ", details[i], o.columns(), l.Style)...)
			}
			continue
		}
		pad := strings.Repeat(" ", start)
		beside := wrap(pad, details[i], o.columns(), l.Style)
		if len(beside) > 0 {
			l.Text += pad[len([]rune(l.Text)):] + beside[0].Text[start:]
			beside = beside[1:]
		}
		lines = append(append(lines, l), beside...)
	}
	return lines
}

// Present shows the conditions of a maintenance, below its history: their messages describe the
// present, not the time of their last change.
func Present(nm *v1alpha1.NodeMaintenance, o Options) []screen.Line {
	var lines []screen.Line
	for _, c := range nm.Status.Conditions {
		progress := c.Type == v1alpha1.ConditionDrained || c.Type == v1alpha1.ConditionProgressing
		if !progress || c.Reason == v1alpha1.ReasonNotRequested || c.Reason == v1alpha1.ReasonProgressNotRequested {
			continue
		}
		style := screen.Plain
		if _, actionNeeded := obstacleActions[c.Reason]; actionNeeded {
			style = screen.Warning
		}
		lines = append(lines, wrap("  ", fmt.Sprintf("%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message), o.columns(), style)...)
	}
	if len(lines) == 0 {
		return nil
	}
	return append([]screen.Line{{}, line(screen.Heading, "NOW")}, lines...)
}
