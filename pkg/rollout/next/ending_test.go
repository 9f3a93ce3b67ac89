// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// ending is a unit of two nodes, n0 and n1, that has drained for 30 minutes without a movement.
type ending struct {
	nodes   []string
	members []Member
	tasks   []*v1alpha1.NodeTask
	stage   v1alpha1.RolloutStage
	closed  bool
	policy  v1alpha1.RolloutClosedPolicy
	nm      *v1alpha1.NodeMaintenance
	// deadline is that of the rollout, nil if it has none.
	deadline *int32
}

// result is the task of node i in the status of the maintenance.
func result(i int, state v1alpha1.NodeTaskState) func(*ending) {
	return func(e *ending) { e.nm.Status.NodeStatuses[i].Task = &v1alpha1.NodeMaintenanceNodeTask{State: state} }
}

func offered(name, holder string, state v1alpha1.NodeTaskState) func(*ending) {
	return func(e *ending) {
		e.tasks = append(e.tasks, (&simTask{name: name, maintenance: "unit", holder: holder, state: state}).object())
	}
}

func only(nodes ...string) func(*ending) { return func(e *ending) { e.nodes = nodes } }

func moved(d time.Duration) func(*ending) {
	return func(e *ending) { e.nm.Status.LastProgressTimestamp = ptr.To(ago(d)) }
}

// takenOut takes node n1 out of the maintenance.
func takenOut(e *ending) { e.nm.Status.NodeStatuses = e.nm.Status.NodeStatuses[:1] }

// cordons puts the maintenance into stage Cordon, for some time.
func cordons(d time.Duration) func(*ending) {
	return func(e *ending) {
		e.nm.Spec.Stage = v1alpha1.NodeMaintenanceStageCordon
		e.nm.Status.StageStatuses = []v1alpha1.StageStatus{{Name: e.nm.Spec.Stage, StartTimestamp: ptr.To(ago(d))}}
	}
}

// deadline is how long the drain may stand still.
func deadline(d time.Duration) func(*ending) {
	return func(e *ending) { e.deadline = ptr.To(int32(d.Seconds())) }
}

// drained is drained since a time, and the drain began hours before it.
func drained(d time.Duration) func(*ending) {
	return func(e *ending) {
		*e.nm.Status.StageStatuses[0].StartTimestamp = ago(9 * time.Hour)
		e.nm.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionDrained, Status: metav1.ConditionTrue, LastTransitionTime: ago(d)}}
	}
}

func condition(kind, reason string, status metav1.ConditionStatus) func(*ending) {
	return func(e *ending) {
		e.nm.Status.Conditions = append(e.nm.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason})
	}
}

func TestEndOf(t *testing.T) {
	isDone := func(i int) func(*ending) { return result(i, v1alpha1.NodeTaskDone) }
	stopped := func(e *ending) { e.stage = v1alpha1.RolloutStageComplete }
	stalled := moved(time.Hour)
	withdrawn := func(reason string) Ending { return Ending{Now: true, Withdrawn: reason} }
	waits := Ending{Next: now.Add(30 * time.Minute)}
	for name, c := range map[string]struct {
		changes []func(*ending)
		want    Ending
	}{
		"drains":                       {nil, waits},
		"all done":                     {[]func(*ending){isDone(0), isDone(1)}, Ending{Now: true}},
		"done, stopped":                {[]func(*ending){isDone(0), isDone(1), stopped}, Ending{Now: true}},
		"half done":                    {[]func(*ending){isDone(0)}, waits},
		"done or gone":                 {[]func(*ending){isDone(0), result(1, v1alpha1.NodeTaskGone)}, withdrawn(WithdrawnDone)},
		"done or deleted":              {[]func(*ending){isDone(0), only("n0")}, withdrawn(WithdrawnDone)},
		"done or deleted, task left":   {[]func(*ending){isDone(0), only("n0"), offered("n1", "", v1alpha1.NodeTaskClaimed)}, Ending{}},
		"done or taken out":            {[]func(*ending){isDone(0), takenOut}, withdrawn(WithdrawnDone)},
		"taken out, a moment ago":      {[]func(*ending){isDone(0), takenOut, func(e *ending) { e.nm.Generation = 7 }}, waits},
		"taken out, claimed":           {[]func(*ending){isDone(0), takenOut, offered("n1", "w", v1alpha1.NodeTaskClaimed)}, Ending{}},
		"deleted":                      {[]func(*ending){only()}, withdrawn(WithdrawnGone)},
		"labels changed":               {[]func(*ending){func(e *ending) { e.members = nil }}, withdrawn(WithdrawnGone)},
		"labels changed, claimed":      {[]func(*ending){func(e *ending) { e.members = nil }, offered("n0", "w", v1alpha1.NodeTaskClaimed)}, Ending{}},
		"stopped":                      {[]func(*ending){stopped}, withdrawn(WithdrawnStopped)},
		"stopped, offered":             {[]func(*ending){stopped, offered("n0", "", v1alpha1.NodeTaskOffered)}, withdrawn(WithdrawnStopped)},
		"stopped, about to be claimed": {[]func(*ending){stopped, offered("n0", "w", v1alpha1.NodeTaskOffered)}, Ending{}},
		"stopped, claimed":             {[]func(*ending){stopped, offered("n0", "w", v1alpha1.NodeTaskClaimed)}, Ending{}},
		"stopped, verified":            {[]func(*ending){stopped, offered("n0", "w", v1alpha1.NodeTaskVerifying)}, Ending{}},
		"stopped, failed":              {[]func(*ending){stopped, offered("n0", "w", v1alpha1.NodeTaskFailed)}, Ending{}},
		"stopped, claimed by others":   {[]func(*ending){stopped, offered("n0", "w", v1alpha1.NodeTaskClaimed), func(e *ending) { e.tasks[0].Spec.Maintenance.Name = "other" }}, withdrawn(WithdrawnStopped)},
		"closed":                       {[]func(*ending){func(e *ending) { e.closed = true }}, waits},
		"closed, Withdraw":             {[]func(*ending){func(e *ending) { e.closed, e.policy = true, v1alpha1.RolloutClosedWithdraw }}, withdrawn(WithdrawnClosed)},
		"open, Withdraw":               {[]func(*ending){func(e *ending) { e.policy = v1alpha1.RolloutClosedWithdraw }}, waits},
		"does not move":                {[]func(*ending){stalled, func(e *ending) { *e.nm.Status.StageStatuses[0].StartTimestamp = ago(2 * time.Hour) }}, withdrawn(WithdrawnBlocked)},
		"the drain has just begun":     {[]func(*ending){stalled}, waits},
		"moves":                        {[]func(*ending){moved(10 * time.Minute)}, Ending{Next: now.Add(50 * time.Minute)}},
		"waits for jobs":               {[]func(*ending){condition(v1alpha1.ConditionProgressing, v1alpha1.ReasonProgressWaitingForCompletion, metav1.ConditionTrue)}, Ending{}},
		"was never offered in Cordon":  {[]func(*ending){cordons(2 * time.Hour)}, withdrawn(WithdrawnBlocked)},
		"cordons":                      {[]func(*ending){cordons(30 * time.Minute)}, waits},
		"cordons, offered":             {[]func(*ending){cordons(2 * time.Hour), offered("n0", "", v1alpha1.NodeTaskOffered)}, Ending{}},
		"cordons, offered by others":   {[]func(*ending){cordons(2 * time.Hour), offered("n0", "", v1alpha1.NodeTaskOffered), func(e *ending) { e.tasks[0].Spec.Maintenance.Name = "other" }}, withdrawn(WithdrawnBlocked)},
		"cordons, is paused":           {[]func(*ending){cordons(2 * time.Hour), func(e *ending) { e.nm.Spec.Paused = true }}, Ending{}},
		"is drained, offered":          {[]func(*ending){drained(2 * time.Hour), offered("n0", "", v1alpha1.NodeTaskOffered)}, Ending{}},
		"is drained, never offered":    {[]func(*ending){drained(70 * time.Minute)}, withdrawn(WithdrawnBlocked)},
		"is drained, has volumes":      {[]func(*ending){deadline(time.Minute), drained(10 * time.Minute)}, Ending{Next: now.Add(time.Minute)}},
		"was drained a moment ago":     {[]func(*ending){drained(40 * time.Minute)}, waits},
		"is not drained":               {[]func(*ending){condition(v1alpha1.ConditionDrained, "", metav1.ConditionFalse)}, waits},
		"is paused":                    {[]func(*ending){func(e *ending) { e.nm.Spec.Paused = true }}, Ending{}},
		"ends already":                 {[]func(*ending){stopped, func(e *ending) { e.nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete }}, Ending{}},
		"is being deleted":             {[]func(*ending){stopped, func(e *ending) { e.nm.DeletionTimestamp = ptr.To(ago(0)) }}, Ending{}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &simMaintenance{name: "unit", task: true, nodes: []string{"n0", "n1"}, complete: -1, ended: -1}
			e := &ending{nodes: m.nodes, members: []Member{{Node: "n0"}, {Node: "n1"}}, stage: v1alpha1.RolloutStageRoll, nm: m.object()}
			*e.nm.Status.StageStatuses[0].StartTimestamp = ago(30 * time.Minute)
			for _, change := range c.changes {
				change(e)
			}
			var all []Node
			for _, name := range e.nodes {
				all = append(all, Node{Name: name})
			}
			facts := Facts{Now: now, Tasks: e.tasks, Nodes: NewNodes(all)}
			r := &Rollout{Object: &v1alpha1.NodeMaintenanceRollout{}, Members: e.members}
			r.Object.Spec.Stage, r.Object.Spec.WhenClosed, r.Object.Spec.ProgressDeadlineSeconds = e.stage, e.policy, e.deadline
			unit := &v1alpha1.RolloutUnit{Nodes: []v1alpha1.NodeReference{{Name: "n0"}, {Name: "n1"}}}
			is.Equal(t, EndOf(NewCluster(facts), r, unit, e.nm, !e.closed), c.want)
		})
	}
}
