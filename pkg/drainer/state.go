// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package drainer

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// State is what a stage of a maintenance leads to.
type State string

const (
	// Observed is the state in which the server has seen the maintenance.
	Observed State = "observed"
	// Cordoned is the state in which all nodes are cordoned.
	Cordoned State = "cordoned"
	// Drained is the state in which all pods have left the nodes.
	Drained State = "drained"
	// Complete is the state in which all nodes are released. A maintenance that is deleted has
	// released its nodes.
	Complete State = "complete"
	// Deleted is the state in which the object is deleted, too.
	Deleted State = "deleted"
)

var stages = map[State]v1alpha1.NodeMaintenanceStage{
	Observed: v1alpha1.NodeMaintenanceStageIdle,
	Cordoned: v1alpha1.NodeMaintenanceStageCordon,
	Drained:  v1alpha1.NodeMaintenanceStageDrain,
	Complete: v1alpha1.NodeMaintenanceStageComplete,
}

// StateOf returns the state that a stage leads to; Observed for a stage that this version does not
// know.
func StateOf(stage v1alpha1.NodeMaintenanceStage) State {
	for state, its := range stages {
		if its == stage {
			return state
		}
	}
	return Observed
}

// Stage returns the stage that leads to the state; empty for Deleted.
func (s State) Stage() v1alpha1.NodeMaintenanceStage { return stages[s] }

// The causes of a WaitError, with the exit code of `kubectl maintenance` for each.
var (
	// ErrTimeout means that the deadline of the context has passed and that nothing is blocked. The
	// server continues (exit code 2).
	ErrTimeout = errors.New("the state is not reached yet")
	// ErrBlocked means that the deadline of the context has passed, and that a user must act before
	// the maintenance can go on. The server keeps trying (exit code 3).
	ErrBlocked = errors.New("a user must act")
	// ErrEnded means that another client has completed or deleted the maintenance (exit code 4).
	ErrEnded = errors.New("the maintenance has ended")
	// ErrPaused means that the deadline of the context has passed while the maintenance was paused
	// (exit code 5).
	ErrPaused = errors.New("the maintenance is paused")
	// ErrPodsKept means that the nodes are drained, except for pods that the server keeps running
	// on purpose, such as those of a DaemonSet that would be recreated. A program that expects them
	// goes on (exit code 6).
	ErrPodsKept = errors.New("pods are kept")
)

// WaitError is what ended a wait before its aim, or what a program must know at its end.
type WaitError struct {
	// Err is ErrTimeout, ErrBlocked, ErrEnded, ErrPaused or ErrPodsKept.
	Err error
	// Name is the name of the maintenance, and State is what the program waited for.
	Name  string
	State State
	// Maintenance is the maintenance as it was read last; nil if it was deleted.
	Maintenance *v1alpha1.NodeMaintenance
	// Condition is the condition that has the cause, for ErrBlocked and ErrPodsKept.
	Condition *metav1.Condition
}

// Error implements error.
func (e *WaitError) Error() string {
	switch {
	case errors.Is(e.Err, ErrBlocked):
		return fmt.Sprintf("nodemaintenance %s is not %s yet: %v (%s: %s)", e.Name, e.State, e.Err, e.Condition.Reason, e.Condition.Message)
	case errors.Is(e.Err, ErrPodsKept):
		return fmt.Sprintf("nodemaintenance %s is %s, but %v: %s", e.Name, e.State, e.Err, e.Condition.Message)
	case errors.Is(e.Err, ErrEnded):
		how := "completed"
		if e.Maintenance == nil {
			how = "deleted"
		}
		return fmt.Sprintf("nodemaintenance %s was %s before it was %s", e.Name, how, e.State)
	}
	return fmt.Sprintf("nodemaintenance %s is not %s yet: %v", e.Name, e.State, e.Err)
}

// Unwrap returns Err.
func (e *WaitError) Unwrap() error { return e.Err }

// Reached reports whether a maintenance has reached a state. It returns a WaitError with ErrEnded
// if the maintenance can no longer reach it, and true and a WaitError with ErrPodsKept if the nodes
// are drained except for pods that are kept.
//
// It is for programs that must not wait, such as controllers; they learn from Stuck what the
// maintenance waits for.
func Reached(nm *v1alpha1.NodeMaintenance, state State) (bool, error) {
	switch {
	case state == Deleted:
		return false, nil
	case state == Complete:
		return v1alpha1.IsDone(nm), nil
	case v1alpha1.IsEnding(nm):
		return true, &WaitError{Err: ErrEnded, Name: nm.Name, State: state, Maintenance: nm}
	case nm.Status.ObservedGeneration < nm.Generation:
		return false, nil
	case state == Cordoned:
		return v1alpha1.IsHolding(nm) && isCordoned(nm), nil
	case state != Drained:
		return true, nil
	}
	drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	switch {
	case drained == nil || drained.Status != metav1.ConditionTrue:
		return false, nil
	case drained.Reason == v1alpha1.ReasonDrainCompleteWithPodsLeft:
		return true, &WaitError{Err: ErrPodsKept, Name: nm.Name, State: state, Maintenance: nm, Condition: drained}
	}
	return true, nil
}

// gone is Reached for a maintenance that does not exist any more.
func gone(name string, state State) (bool, error) {
	if state == Complete || state == Deleted {
		return true, nil
	}
	return true, &WaitError{Err: ErrEnded, Name: name, State: state}
}

// isCordoned reports whether all nodes of a maintenance are cordoned. It is also for a maintenance
// in stage Drain, whose condition Ready is about the drain.
func isCordoned(nm *v1alpha1.NodeMaintenance) bool {
	return glance.Nodes(nm) > 0 && !slices.ContainsFunc(nm.Status.NodeStatuses, func(node v1alpha1.NodeMaintenanceNodeStatus) bool {
		return glance.IsOutside(&node)
	})
}

// Stuck returns the condition that reports that a maintenance needs an action of a user to make
// progress, or nil. In stage Cordon, Ready reports the nodes that are not cordoned; in stage Drain,
// Drained does.
func Stuck(nm *v1alpha1.NodeMaintenance) *metav1.Condition {
	if c := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing); c != nil && c.Status == metav1.ConditionFalse {
		return c
	}
	var c *metav1.Condition
	switch nm.Spec.Stage {
	case v1alpha1.NodeMaintenanceStageCordon:
		c = meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionReady)
	case v1alpha1.NodeMaintenanceStageDrain:
		c = meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	}
	if c == nil || c.Status == metav1.ConditionTrue {
		return nil
	}
	switch c.Reason {
	case v1alpha1.ReasonDrainBlocked, v1alpha1.ReasonNotAuthorized, v1alpha1.ReasonNoNodes, v1alpha1.ReasonNodeNotCordoned, v1alpha1.ReasonTooManyMaintenances:
		return c
	}
	return nil
}
