// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package glance describes the state of a NodeMaintenance or an Evacuation in one word, and its
// progress in a few numbers. The tables of the server, the plugin and the metrics use it, so that
// they never contradict each other.
package glance

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// StatusWord is the state of a NodeMaintenance in one word.
type StatusWord string

const (
	// StatusIdle means that the maintenance is announced and changes nothing.
	StatusIdle StatusWord = "Idle"
	// StatusNoNodes means that the selector matches no node.
	StatusNoNodes StatusWord = "NoNodes"
	// StatusNotAuthorized means that the requester may not maintain a selected node.
	StatusNotAuthorized StatusWord = "NotAuthorized"
	// StatusNotCordoned means that the server cannot keep a selected node cordoned, or that too
	// many other maintenances hold it. It takes precedence over StatusFailing: the condition
	// Progressing reports such a node as a failure, too.
	StatusNotCordoned StatusWord = "NotCordoned"
	// StatusCordoning means that some nodes are not cordoned yet, in stage Cordon.
	StatusCordoning StatusWord = "Cordoning"
	// StatusCordoned means that all nodes are cordoned, in stage Cordon.
	StatusCordoned StatusWord = "Cordoned"
	// StatusDraining means that pods are leaving.
	StatusDraining StatusWord = "Draining"
	// StatusWaiting means that no pod is asked to leave: every node waits for other nodes, other
	// maintenances, a cordon or pods that the plan lets complete.
	StatusWaiting StatusWord = "Waiting"
	// StatusBlocked means that every pod that is asked to leave is blocked.
	StatusBlocked StatusWord = "Blocked"
	// StatusStalled means that the drain has made no progress for longer than --stall-timeout.
	StatusStalled StatusWord = "Stalled"
	// StatusFailing means that other requests of the server fail, or that this version of the
	// server does not know the stage.
	StatusFailing StatusWord = "Failing"
	// StatusPaused means that a user has paused the drain, and that pods are left, or that the
	// server has not observed the pause yet.
	StatusPaused StatusWord = "Paused"
	// StatusDrained means that all pods that the plan covers have left the nodes.
	StatusDrained StatusWord = "Drained"
	// StatusReleasing means that some nodes are not released yet, in stage Complete.
	StatusReleasing StatusWord = "Releasing"
	// StatusComplete means that all nodes are released.
	StatusComplete StatusWord = "Complete"
)

// StateWord is the state of an Evacuation in one word.
type StateWord string

const (
	// StateWaiting means that the pod is asked to leave, and that its evacuator has not reported.
	// It may have been stopping for a few seconds, since most pods stop before that is worth a
	// write.
	StateWaiting StateWord = "Waiting"
	// StateMoving means that the pod is stopping, or that its evacuator works on it.
	StateMoving StateWord = "Moving"
	// StateBlocked means that the pod cannot leave at the moment.
	StateBlocked StateWord = "Blocked"
	// StateGone means that the pod no longer exists.
	StateGone StateWord = "Gone"
	// StateEnded means that the pod has succeeded or failed by itself.
	StateEnded StateWord = "Ended"
	// StateCancelled means that the evacuation was cancelled and the pod stays.
	StateCancelled StateWord = "Cancelled"
)

// Status returns the state of a maintenance. Idle, Cordoned, Drained and Complete are the states
// that a stage has to reach: the condition Ready is then True. They need a status of the current
// generation.
func Status(nm *v1alpha1.NodeMaintenance) StatusWord {
	isObserved := nm.Status.ObservedGeneration == nm.Generation
	switch {
	case v1alpha1.IsDone(nm):
		return StatusComplete
	case v1alpha1.IsEnding(nm):
		if isObserved && isTrue(nm, v1alpha1.ConditionReady) {
			return StatusComplete
		}
		return StatusReleasing
	case isObserved && Nodes(nm) == 0:
		return StatusNoNodes
	}
	switch nm.Spec.Stage {
	case v1alpha1.NodeMaintenanceStageIdle:
		return StatusIdle
	case v1alpha1.NodeMaintenanceStageCordon:
		return cordonStatus(nm, isObserved)
	case v1alpha1.NodeMaintenanceStageDrain:
		return drainStatus(nm, isObserved)
	}
	return StatusFailing
}

func cordonStatus(nm *v1alpha1.NodeMaintenance, isObserved bool) StatusWord {
	if isObserved && isTrue(nm, v1alpha1.ConditionReady) {
		return StatusCordoned
	}
	if word, isOutside := outside(reasonOf(nm, v1alpha1.ConditionReady)); isOutside {
		return word
	}
	return StatusCordoning
}

func drainStatus(nm *v1alpha1.NodeMaintenance, isObserved bool) StatusWord {
	progressing := reasonOf(nm, v1alpha1.ConditionProgressing)
	word, isOutside := outside(reasonOf(nm, v1alpha1.ConditionDrained))
	switch {
	case isObserved && isTrue(nm, v1alpha1.ConditionDrained):
		return StatusDrained
	case v1alpha1.IsPaused(nm):
		// The pause is in the spec, so no condition is older than it or outlives it.
		return StatusPaused
	case progressing == v1alpha1.ReasonProgressStalled:
		return StatusStalled
	case progressing == v1alpha1.ReasonProgressBlocked:
		return StatusBlocked
	case word == StatusNotCordoned:
		return word
	case progressing == v1alpha1.ReasonProgressSyncFailed:
		return StatusFailing
	case isOutside:
		return word
	case progressing == v1alpha1.ReasonProgressWaiting, progressing == v1alpha1.ReasonProgressWaitingForCompletion:
		return StatusWaiting
	}
	return StatusDraining
}

// outside returns the state of a maintenance that does not hold one of its nodes, for the reason of
// the condition Drained or Ready.
func outside(reason string) (word StatusWord, isOutside bool) {
	switch reason {
	case v1alpha1.ReasonNotAuthorized:
		return StatusNotAuthorized, true
	case v1alpha1.ReasonNodeNotCordoned, v1alpha1.ReasonTooManyMaintenances:
		return StatusNotCordoned, true
	}
	return "", false
}

// State returns the state of an Evacuation.
func State(e *v1alpha1.Evacuation) StateWord {
	conditions := e.Status.Conditions
	if complete := meta.FindStatusCondition(conditions, v1alpha1.ConditionComplete); complete != nil && complete.Status == metav1.ConditionTrue {
		switch complete.Reason {
		case v1alpha1.ReasonPodTerminated:
			return StateEnded
		case v1alpha1.ReasonCancelled:
			return StateCancelled
		}
		return StateGone
	}
	switch {
	case meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionBlocked):
		return StateBlocked
	case meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionLeaving), e.Status.EvacuationProgressTimestamp != nil:
		return StateMoving
	}
	return StateWaiting
}

// IsOver reports whether an Evacuation in a state is complete.
func IsOver(state StateWord) bool {
	return state == StateGone || state == StateEnded || state == StateCancelled
}

// StateSince returns the time since which an Evacuation has been in its state. It is the creation
// if the state has not changed since then.
func StateSince(e *v1alpha1.Evacuation) metav1.Time {
	last := e.CreationTimestamp
	later := func(at *metav1.Time) {
		if at != nil && last.Before(at) {
			last = *at
		}
	}
	transition := func(conditionType string) {
		if condition := meta.FindStatusCondition(e.Status.Conditions, conditionType); condition != nil {
			later(&condition.LastTransitionTime)
		}
	}
	switch state := State(e); {
	case IsOver(state):
		transition(v1alpha1.ConditionComplete)
		return last
	case state == StateMoving:
		transition(v1alpha1.ConditionLeaving)
		if e.Status.EvacuationProgressTimestamp != nil {
			later(e.Status.ActiveEvacuatorSince)
		}
	}
	transition(v1alpha1.ConditionBlocked)
	return last
}

// Nodes returns the number of nodes of a maintenance: those that it selects and, once it ends,
// those that it selected then. Nodes that are released or that no longer exist do not count.
func Nodes(nm *v1alpha1.NodeMaintenance) int {
	if v1alpha1.IsEnding(nm) {
		return int(nm.Status.Nodes)
	}
	n := 0
	for i := range nm.Status.NodeStatuses {
		if isSelected(&nm.Status.NodeStatuses[i]) {
			n++
		}
	}
	return n
}

// DrainedNodes returns the number of nodes of a maintenance from which all pods that the plan
// covers have left.
func DrainedNodes(nm *v1alpha1.NodeMaintenance) int {
	n := 0
	for i := range nm.Status.NodeStatuses {
		// A node without a target is not drained: its requester may not drain it, or it is not
		// cordoned yet and its pods have not been counted.
		if node := &nm.Status.NodeStatuses[i]; isSelected(node) && len(node.DrainTargets) > 0 && left(node) == 0 {
			n++
		}
	}
	return n
}

// Pods returns how many pods have left the nodes of a maintenance, and how many had to leave: those
// that have left and those that are left. Once the maintenance ends, it has no counters of its
// nodes any more, and the waves tell how many pods were left.
func Pods(nm *v1alpha1.NodeMaintenance) (gone, all int) {
	gone = int(nm.Status.PodsGone)
	if v1alpha1.IsEnding(nm) {
		all = gone
		for i := range nm.Status.Waves {
			all += int(nm.Status.Waves[i].PodsLeft)
		}
		return gone, all
	}
	ofNodes, remaining := 0, 0
	for i := range nm.Status.NodeStatuses {
		node := &nm.Status.NodeStatuses[i]
		ofNodes += int(Gone(node))
		remaining += left(node)
	}
	// A server without podsGone has stored the status of an older maintenance.
	gone = max(gone, ofNodes)
	return gone, gone + remaining
}

// Gone returns the number of pods that have left a node since its peak.
func Gone(node *v1alpha1.NodeMaintenanceNodeStatus) int32 {
	return max(0, node.PodsPeak-node.PodsPendingEvacuation-node.PodsEvacuating)
}

// BlockedPods returns the number of pods that cannot leave the nodes of a maintenance. Only a drain
// asks pods to leave: in other stages, those of the status are blocked for other maintenances.
func BlockedPods(nm *v1alpha1.NodeMaintenance) int {
	n := 0
	if !v1alpha1.IsDraining(nm) {
		return n
	}
	for i := range nm.Status.NodeStatuses {
		n += int(nm.Status.NodeStatuses[i].PodsBlocked)
	}
	return n
}

// Wave returns the number of the wave that is open, counted from 1 in the order of the plan: the
// last one that has begun and has pods left. It is 0 if there is none.
func Wave(nm *v1alpha1.NodeMaintenance) int {
	if !v1alpha1.IsDraining(nm) {
		return 0
	}
	open := 0
	for i := range nm.Status.Waves {
		if wave := &nm.Status.Waves[i]; wave.StartTime != nil && wave.PodsLeft > 0 {
			open = int(wave.Entry) + 1
		}
	}
	return open
}

// isSelected reports whether a maintenance has a node because its selector matches it.
func isSelected(node *v1alpha1.NodeMaintenanceNodeStatus) bool {
	return !v1alpha1.IsBeingReleased(node) && node.Reason != v1alpha1.NodeStatusGone
}

func left(node *v1alpha1.NodeMaintenanceNodeStatus) int {
	return int(node.PodsPendingEvacuation + node.PodsEvacuating)
}

func isTrue(nm *v1alpha1.NodeMaintenance, conditionType string) bool {
	return meta.IsStatusConditionTrue(nm.Status.Conditions, conditionType)
}

func reasonOf(nm *v1alpha1.NodeMaintenance, conditionType string) string {
	if condition := meta.FindStatusCondition(nm.Status.Conditions, conditionType); condition != nil {
		return condition.Reason
	}
	return ""
}

// IsOutside reports whether a drain goes on without a node, or has to wait until it is cordoned.
func IsOutside(n *v1alpha1.NodeMaintenanceNodeStatus) bool {
	switch n.Reason {
	case v1alpha1.NodeStatusNotCordoned, v1alpha1.NodeStatusNotAuthorized, v1alpha1.NodeStatusTooManyMaintenances:
		return true
	}
	return false
}
