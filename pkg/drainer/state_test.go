// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package drainer

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

const (
	idle     = v1alpha1.NodeMaintenanceStageIdle
	cordon   = v1alpha1.NodeMaintenanceStageCordon
	drain    = v1alpha1.NodeMaintenanceStageDrain
	complete = v1alpha1.NodeMaintenanceStageComplete
)

// inStage returns a maintenance of a node that the server has observed. Conditions have the form
// "Type=Status Reason".
func inStage(stage v1alpha1.NodeMaintenanceStage, conditions ...string) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "nm", UID: "uid", Generation: 1, Finalizers: []string{v1alpha1.FinalizerMaintenanceCompletion}},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: stage},
		Status: v1alpha1.NodeMaintenanceStatus{
			ObservedGeneration: 1, NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "a"}}},
		},
	}
	for _, c := range conditions {
		state, reason, _ := strings.Cut(c, " ")
		kind, status, _ := strings.Cut(state, "=")
		nm.Status.Conditions = append(nm.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: "because",
		})
	}
	return nm
}

func unobserved(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	nm.Generation++
	return nm
}

func released(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	nm.Finalizers = nil
	return nm
}

func deleted(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	nm.DeletionTimestamp = new(metav1.Now())
	return nm
}

func withNode(nm *v1alpha1.NodeMaintenance, reason v1alpha1.NodeStatusReason) *v1alpha1.NodeMaintenance {
	nm.Status.NodeStatuses[0].Reason = reason
	return nm
}

func TestReached(t *testing.T) {
	for name, test := range map[string]struct {
		nm    *v1alpha1.NodeMaintenance
		state State
		want  bool
		err   error
	}{
		"a new object is not observed":            {nm: unobserved(inStage(idle)), state: Observed},
		"observed":                                {nm: inStage(idle), state: Observed, want: true},
		"cordoned":                                {nm: inStage(cordon), state: Cordoned, want: true},
		"a node in stage Idle is not cordoned":    {nm: inStage(idle), state: Cordoned},
		"a node is not cordoned":                  {nm: withNode(inStage(cordon), v1alpha1.NodeStatusNotCordoned), state: Cordoned},
		"a node is not authorized":                {nm: withNode(inStage(cordon), v1alpha1.NodeStatusNotAuthorized), state: Cordoned},
		"a node has too many maintenances":        {nm: withNode(inStage(cordon), v1alpha1.NodeStatusTooManyMaintenances), state: Cordoned},
		"the conditions are from an earlier spec": {nm: unobserved(inStage(drain, "Drained=True DrainComplete")), state: Drained},
		"no condition yet":                        {nm: inStage(drain), state: Drained},
		"pods leave":                              {nm: inStage(drain, "Drained=False DrainInProgress"), state: Drained},
		"drained":                                 {nm: inStage(drain, "Drained=True DrainComplete"), state: Drained, want: true},
		"drained with kept pods":                  {nm: inStage(drain, "Drained=True DrainCompleteWithPodsLeft"), state: Drained, want: true, err: ErrPodsKept},
		"cordoned with kept pods":                 {nm: inStage(drain, "Drained=True DrainCompleteWithPodsLeft"), state: Cordoned, want: true},
		"completed during a drain":                {nm: inStage(complete), state: Drained, want: true, err: ErrEnded},
		"deleted during a drain":                  {nm: deleted(inStage(drain)), state: Drained, want: true, err: ErrEnded},
		"nodes are being released":                {nm: inStage(complete), state: Complete},
		"not in stage Complete":                   {nm: inStage(drain, "Drained=True DrainComplete"), state: Complete},
		"released":                                {nm: released(inStage(complete)), state: Complete, want: true},
		"released and not deleted":                {nm: released(inStage(complete)), state: Deleted},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Reached(test.nm, test.state)
			is.True(t, got == test.want && errors.Is(err, test.err) && (err == nil) == (test.err == nil),
				"got %t, %v, want %t, %v", got, err, test.want, test.err)
		})
	}
}

func TestStates(t *testing.T) {
	for _, stage := range []v1alpha1.NodeMaintenanceStage{idle, cordon, drain, complete} {
		is.Equal(t, StateOf(stage).Stage(), stage)
	}
	is.Equal(t, StateOf("Repair"), Observed, "the state of a stage of a newer server")
}

// TestStuck tests the condition on which the exit codes depend.
func TestStuck(t *testing.T) {
	for name, test := range map[string]struct {
		nm   *v1alpha1.NodeMaintenance
		want string
	}{
		"no conditions yet": {nm: inStage(drain)},
		"pods leave":        {nm: inStage(drain, "Drained=False DrainInProgress", "Progressing=True Draining")},
		"the maintenance waits for another one": {
			nm: inStage(drain, "Drained=False DrainInProgress", "Progressing=True Waiting"),
		},
		"all pods are blocked": {
			nm: inStage(drain, "Drained=False DrainBlocked", "Progressing=False Blocked"), want: "Blocked",
		},
		"the maintenance stalls while pods seem to leave": {
			nm: inStage(drain, "Drained=False DrainInProgress", "Progressing=False Stalled"), want: "Stalled",
		},
		"a write fails and no other node makes progress": {
			nm: inStage(drain, "Drained=False DrainInProgress", "Progressing=False SyncFailed"), want: "SyncFailed",
		},
		"a write fails while pods leave": {
			nm: inStage(drain, "Drained=False DrainInProgress", "Progressing=True SyncFailed"),
		},
		"a node is not cordoned": {
			nm: inStage(drain, "Drained=False NodeNotCordoned", "Progressing=True Draining"), want: "NodeNotCordoned",
		},
		"a node is not authorized": {
			nm: inStage(drain, "Drained=False NotAuthorized", "Progressing=True Draining"), want: "NotAuthorized",
		},
		"no node is selected": {nm: inStage(drain, "Drained=False NoNodesSelected"), want: "NoNodesSelected"},
		"blocked, with only one of the two conditions": {
			nm: inStage(drain, "Drained=False DrainBlocked"), want: "DrainBlocked",
		},
		"drained":  {nm: inStage(drain, "Drained=True DrainComplete", "Progressing=True Drained")},
		"cordoned": {nm: inStage(cordon, "Drained=False NotRequested", "Progressing=True NotRequested")},
		"a cordon that fails": {
			nm: inStage(cordon, "Drained=False NotRequested", "Progressing=False SyncFailed"), want: "SyncFailed",
		},
		"complete, with the conditions from stage Drain": {
			nm: inStage(complete, "Drained=False DrainBlocked",
				"Progressing=True Complete"),
		},
		"complete, and a node is not released": {
			nm: inStage(complete, "Progressing=False Complete"), want: "Complete",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if c := Stuck(test.nm); c != nil {
				got = c.Reason
			}
			is.Equal(t, got, test.want)
		})
	}
}
