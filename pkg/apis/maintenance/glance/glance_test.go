// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package glance

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	yes = metav1.ConditionTrue
	no  = metav1.ConditionFalse
)

type mod func(*v1alpha1.NodeMaintenance)

// maintenance returns a maintenance of two nodes whose status the controllers have written.
func maintenance(stage v1alpha1.NodeMaintenanceStage, mods ...mod) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Generation: 3, Finalizers: []string{v1alpha1.FinalizerMaintenanceCompletion}},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: stage},
		Status: v1alpha1.NodeMaintenanceStatus{ObservedGeneration: 3, Nodes: 2, NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{
			{NodeRef: v1alpha1.NodeReference{Name: "node-1"}}, {NodeRef: v1alpha1.NodeReference{Name: "node-2"}},
		}},
	}
	for _, m := range mods {
		m(nm)
	}
	return nm
}

func condition(conditionType string, status metav1.ConditionStatus, reason string) mod {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.Conditions = append(nm.Status.Conditions, metav1.Condition{Type: conditionType, Status: status, Reason: reason})
	}
}

func ready(status metav1.ConditionStatus, reason string) mod {
	return condition(v1alpha1.ConditionReady, status, reason)
}

func drained(status metav1.ConditionStatus, reason string) mod {
	return condition(v1alpha1.ConditionDrained, status, reason)
}

func progressing(status metav1.ConditionStatus, reason string) mod {
	return condition(v1alpha1.ConditionProgressing, status, reason)
}

func paused(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = true }

func outdated(nm *v1alpha1.NodeMaintenance) { nm.Status.ObservedGeneration-- }

func unobserved(nm *v1alpha1.NodeMaintenance) {
	nm.Generation, nm.Status = 1, v1alpha1.NodeMaintenanceStatus{}
	ready(metav1.ConditionUnknown, v1alpha1.ReasonNotObserved)(nm)
}

func withoutNodes(nm *v1alpha1.NodeMaintenance) { nm.Status.Nodes, nm.Status.NodeStatuses = 0, nil }

func onNodes(reason v1alpha1.NodeStatusReason) mod {
	return func(nm *v1alpha1.NodeMaintenance) {
		for i := range nm.Status.NodeStatuses {
			nm.Status.NodeStatuses[i].Reason = reason
		}
	}
}

func dropped(nm *v1alpha1.NodeMaintenance) { nm.Finalizers = nil }

func deleted(nm *v1alpha1.NodeMaintenance) {
	nm.DeletionTimestamp = ptr.To(metav1.NewTime(time.Unix(1, 0)))
}

func TestStatus(t *testing.T) {
	const (
		idle, cordon     = v1alpha1.NodeMaintenanceStageIdle, v1alpha1.NodeMaintenanceStageCordon
		drain, completed = v1alpha1.NodeMaintenanceStageDrain, v1alpha1.NodeMaintenanceStageComplete
	)
	inProgress := drained(no, v1alpha1.ReasonDrainInProgress)
	for name, test := range map[string]struct {
		nm   *v1alpha1.NodeMaintenance
		want StatusWord
	}{
		"Idle":                   {maintenance(idle, ready(yes, "Idle")), StatusIdle},
		"Idle, not observed yet": {maintenance(idle, unobserved), StatusIdle},
		"Idle without nodes":     {maintenance(idle, withoutNodes), StatusNoNodes},
		"Idle and paused":        {maintenance(idle, paused, ready(yes, "Idle")), StatusIdle},
		"Idle and deleted, held by a foreign finalizer": {maintenance(idle, deleted, dropped), StatusComplete},

		"Cordon, not observed yet":          {maintenance(cordon, unobserved), StatusCordoning},
		"Cordon without nodes":              {maintenance(cordon, withoutNodes, ready(no, v1alpha1.ReasonNoNodes)), StatusNoNodes},
		"Cordon whose nodes are gone":       {maintenance(cordon, onNodes(v1alpha1.NodeStatusGone)), StatusNoNodes},
		"Cordon whose nodes are released":   {maintenance(cordon, onNodes(v1alpha1.NodeStatusReleasing)), StatusNoNodes},
		"Cordon, ready":                     {maintenance(cordon, ready(yes, "Cordoned")), StatusCordoned},
		"Cordon, ready before a change":     {maintenance(cordon, ready(yes, "Cordoned"), outdated), StatusCordoning},
		"Cordon without the right":          {maintenance(cordon, ready(no, v1alpha1.ReasonNotAuthorized)), StatusNotAuthorized},
		"Cordon that another user removes":  {maintenance(cordon, ready(no, v1alpha1.ReasonNodeNotCordoned)), StatusNotCordoned},
		"Cordon of nodes with many holders": {maintenance(cordon, ready(no, v1alpha1.ReasonTooManyMaintenances)), StatusNotCordoned},
		"Cordon that is not written yet":    {maintenance(cordon, ready(no, "Cordoning")), StatusCordoning},

		"Drain, not observed yet":      {maintenance(drain, unobserved), StatusDraining},
		"Drain, observed in Cordon":    {maintenance(drain, outdated, ready(yes, "Cordoned"), drained(no, v1alpha1.ReasonNotRequested), progressing(yes, v1alpha1.ReasonProgressNotRequested)), StatusDraining},
		"Drain without nodes":          {maintenance(drain, withoutNodes, drained(no, v1alpha1.ReasonNoNodes)), StatusNoNodes},
		"paused":                       {maintenance(drain, paused, inProgress, progressing(no, v1alpha1.ReasonPaused)), StatusPaused},
		"paused without the right":     {maintenance(drain, paused, drained(no, v1alpha1.ReasonNotAuthorized), progressing(no, v1alpha1.ReasonPaused)), StatusPaused},
		"paused and failing":           {maintenance(drain, paused, inProgress, progressing(no, v1alpha1.ReasonProgressSyncFailed)), StatusPaused},
		"paused a moment ago":          {maintenance(drain, paused, outdated, inProgress, progressing(yes, v1alpha1.ReasonProgressDraining)), StatusPaused},
		"paused while it is stalled":   {maintenance(drain, paused, outdated, inProgress, progressing(no, v1alpha1.ReasonProgressStalled)), StatusPaused},
		"paused and drained":           {maintenance(drain, paused, drained(yes, v1alpha1.ReasonDrainComplete), progressing(yes, v1alpha1.ReasonProgressDrained)), StatusDrained},
		"paused, not observed yet":     {maintenance(drain, paused, unobserved), StatusPaused},
		"paused without nodes":         {maintenance(drain, paused, withoutNodes, drained(no, v1alpha1.ReasonNoNodes)), StatusNoNodes},
		"resumed a moment ago":         {maintenance(drain, outdated, drained(no, v1alpha1.ReasonPaused), progressing(no, v1alpha1.ReasonPaused)), StatusDraining},
		"drained":                      {maintenance(drain, drained(yes, v1alpha1.ReasonDrainComplete), progressing(yes, v1alpha1.ReasonProgressDrained)), StatusDrained},
		"drained with kept pods":       {maintenance(drain, drained(yes, v1alpha1.ReasonDrainCompleteWithPodsLeft), progressing(yes, v1alpha1.ReasonProgressDrained)), StatusDrained},
		"drained before a change":      {maintenance(drain, outdated, drained(yes, v1alpha1.ReasonDrainComplete), progressing(yes, v1alpha1.ReasonProgressDrained)), StatusDraining},
		"drained, then failing":        {maintenance(drain, drained(yes, v1alpha1.ReasonDrainComplete), progressing(no, v1alpha1.ReasonProgressSyncFailed)), StatusDrained},
		"stalled":                      {maintenance(drain, drained(no, v1alpha1.ReasonDrainBlocked), progressing(no, v1alpha1.ReasonProgressStalled)), StatusStalled},
		"stalled without the right":    {maintenance(drain, drained(no, v1alpha1.ReasonNotAuthorized), progressing(no, v1alpha1.ReasonProgressStalled)), StatusStalled},
		"blocked":                      {maintenance(drain, drained(no, v1alpha1.ReasonDrainBlocked), progressing(no, v1alpha1.ReasonProgressBlocked)), StatusBlocked},
		"failing and still":            {maintenance(drain, inProgress, progressing(no, v1alpha1.ReasonProgressSyncFailed)), StatusFailing},
		"failing and moving":           {maintenance(drain, inProgress, progressing(yes, v1alpha1.ReasonProgressSyncFailed)), StatusFailing},
		"not authorized and draining":  {maintenance(drain, drained(no, v1alpha1.ReasonNotAuthorized), progressing(yes, v1alpha1.ReasonProgressDraining)), StatusNotAuthorized},
		"not authorized and failing":   {maintenance(drain, drained(no, v1alpha1.ReasonNotAuthorized), progressing(yes, v1alpha1.ReasonProgressSyncFailed)), StatusFailing},
		"not cordoned":                 {maintenance(drain, drained(no, v1alpha1.ReasonNodeNotCordoned), progressing(yes, v1alpha1.ReasonProgressSyncFailed)), StatusNotCordoned},
		"not cordoned and still":       {maintenance(drain, drained(no, v1alpha1.ReasonNodeNotCordoned), progressing(no, v1alpha1.ReasonProgressSyncFailed)), StatusNotCordoned},
		"too many maintenances":        {maintenance(drain, drained(no, v1alpha1.ReasonTooManyMaintenances), progressing(yes, v1alpha1.ReasonProgressSyncFailed)), StatusNotCordoned},
		"waiting":                      {maintenance(drain, inProgress, progressing(yes, v1alpha1.ReasonProgressWaiting)), StatusWaiting},
		"draining":                     {maintenance(drain, inProgress, progressing(yes, v1alpha1.ReasonProgressDraining)), StatusDraining},
		"a stage of a newer server":    {maintenance("Reboot", ready(no, v1alpha1.ReasonProgressNotRequested), progressing(no, v1alpha1.ReasonProgressNotRequested)), StatusFailing},
		"Complete, not observed yet":   {maintenance(completed, outdated, ready(yes, v1alpha1.ReasonDrainComplete), drained(yes, v1alpha1.ReasonDrainComplete)), StatusReleasing},
		"Complete, nodes left":         {maintenance(completed, ready(no, v1alpha1.ReasonProgressComplete), progressing(yes, v1alpha1.ReasonProgressComplete)), StatusReleasing},
		"Complete, not to be released": {maintenance(completed, ready(no, v1alpha1.ReasonProgressComplete), progressing(no, v1alpha1.ReasonProgressComplete)), StatusReleasing},
		"Complete, released":           {maintenance(completed, ready(yes, v1alpha1.ReasonProgressComplete), progressing(yes, v1alpha1.ReasonProgressComplete)), StatusComplete},
		"Complete of an older server":  {maintenance(completed, dropped, progressing(yes, v1alpha1.ReasonProgressComplete)), StatusComplete},
		"Complete without nodes":       {maintenance(completed, withoutNodes, dropped, ready(yes, v1alpha1.ReasonProgressComplete)), StatusComplete},
		"Drain, being deleted":         {maintenance(drain, deleted, outdated, drained(yes, v1alpha1.ReasonDrainComplete), ready(yes, v1alpha1.ReasonDrainComplete)), StatusReleasing},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Status(test.nm); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestState(t *testing.T) {
	with := func(conditions ...metav1.Condition) v1alpha1.EvacuationStatus {
		return v1alpha1.EvacuationStatus{ActiveEvacuatorClass: v1alpha1.EvacuatorClassEviction, Conditions: conditions}
	}
	complete := func(reason string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionComplete, Status: yes, Reason: reason}
	}
	blocked := metav1.Condition{Type: v1alpha1.ConditionBlocked, Status: yes, Reason: v1alpha1.ReasonPodDisruptionBudget}
	waits := metav1.Condition{Type: v1alpha1.ConditionBlocked, Status: no, Reason: v1alpha1.ReasonPodWaits}
	leaving := metav1.Condition{Type: v1alpha1.ConditionLeaving, Status: yes, Reason: v1alpha1.ReasonPodStopping}
	reported := with()
	reported.EvacuationProgressTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	blockedAfterReport := *reported.DeepCopy()
	blockedAfterReport.Conditions = []metav1.Condition{blocked}
	for name, test := range map[string]struct {
		status v1alpha1.EvacuationStatus
		want   StateWord
	}{
		"new":                             {with(), StateWaiting},
		"it waits for other pods":         {with(waits), StateWaiting},
		"its budget allows no disruption": {with(blocked), StateBlocked},
		"its evacuator has reported":      {reported, StateMoving},
		"blocked after a report":          {blockedAfterReport, StateBlocked},
		"the pod is stopping":             {with(leaving), StateMoving},
		"the pod does not stop":           {with(leaving, blocked), StateBlocked},
		"the pod is gone":                 {with(complete(v1alpha1.ReasonPodDeleted)), StateGone},
		"gone after it was blocked":       {with(blocked, leaving, complete(v1alpha1.ReasonPodDeleted)), StateGone},
		"the pod has succeeded":           {with(complete(v1alpha1.ReasonPodTerminated)), StateEnded},
		"cancelled":                       {with(complete(v1alpha1.ReasonCancelled)), StateCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			if got := State(&v1alpha1.Evacuation{Status: test.status}); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestNumbers(t *testing.T) {
	target := []v1alpha1.DrainPlanEntry{{PodPriority: 1}}
	started := &metav1.Time{Time: time.Unix(1, 0)}
	draining := maintenance(v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.PodsGone = 9
		nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{
			{PodsPendingEvacuation: 1, PodsEvacuating: 3, PodsBlocked: 2, PodsPeak: 8, DrainTargets: target},
			{PodsPeak: 2, DrainTargets: target},
			{Reason: v1alpha1.NodeStatusNotAuthorized},
			{Reason: v1alpha1.NodeStatusGone, DrainTargets: target},
			{Reason: v1alpha1.NodeStatusReleasing, DrainTargets: target},
		}
		nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{
			{Entry: 0, PodsPeak: 9, StartTime: started, EndTime: started}, {Entry: 2, PodsPeak: 3, PodsLeft: 3, StartTime: started}, {Entry: 5, PodsPeak: 1, PodsLeft: 1},
		}
	})
	older := draining.DeepCopy()
	older.Status.PodsGone = 0
	idle := draining.DeepCopy()
	idle.Spec.Stage = v1alpha1.NodeMaintenanceStageIdle
	ended := draining.DeepCopy()
	ended.Spec.Stage, ended.Status.Nodes, ended.Status.NodeStatuses = v1alpha1.NodeMaintenanceStageComplete, 3, nil
	type numbers struct{ nodes, drained, gone, all, blocked, wave int }
	for name, test := range map[string]struct {
		nm   *v1alpha1.NodeMaintenance
		want numbers
	}{
		"draining":                                 {draining, numbers{nodes: 3, drained: 1, gone: 9, all: 13, blocked: 2, wave: 3}},
		"draining, of an older server":             {older, numbers{nodes: 3, drained: 1, gone: 6, all: 10, blocked: 2, wave: 3}},
		"idle, other maintenances drain the nodes": {idle, numbers{nodes: 3, drained: 1, gone: 9, all: 13}},
		"complete, without its nodes":              {ended, numbers{nodes: 3, gone: 9, all: 13}},
		"a maintenance without status":             {maintenance(v1alpha1.NodeMaintenanceStageDrain, unobserved), numbers{}},
	} {
		t.Run(name, func(t *testing.T) {
			gone, all := Pods(test.nm)
			got := numbers{Nodes(test.nm), DrainedNodes(test.nm), gone, all, BlockedPods(test.nm), Wave(test.nm)}
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
