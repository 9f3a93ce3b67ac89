// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// AgentHeartbeat is how often a node agent writes NodeAgentReady while a maintenance holds its
	// node, and how often it reads its Node to learn that.
	AgentHeartbeat = time.Minute
	// AgentIdleHeartbeat is how often it writes it otherwise, and all its other conditions.
	AgentIdleHeartbeat = 5 * time.Minute
	// missedHeartbeats is how many heartbeats an agent has missed when it is taken for gone.
	missedHeartbeats = 3
	// AgentSilence is how much older than the heartbeat of the kubelet that of an agent may be in
	// any case.
	AgentSilence = missedHeartbeats * AgentIdleHeartbeat
)

// HasNodeAgent reports whether a node has a node agent that can stop and restart its static pods,
// as its condition shows. An agent that crashed leaves the condition True, so one that is silent is
// gone.
func HasNodeAgent(node *corev1.Node) bool {
	agent := conditionOf(node, v1alpha1.NodeConditionAgentReady)
	return agent.Status == corev1.ConditionTrue && !isSilent(node, &agent)
}

// AgentHeartbeatOf returns how often the agent of a node writes NodeAgentReady.
func AgentHeartbeatOf(node *corev1.Node) time.Duration {
	if heldSince(node).IsZero() {
		return AgentIdleHeartbeat
	}
	return AgentHeartbeat
}

// isSilent reports whether an agent has missed its heartbeats. The agent and the kubelet are
// compared with each other, because both write the clock of the node, and because a node is
// reconciled when one of them writes. A kubelet writes every 5 minutes.
//
// The agent of a node that a maintenance holds writes more often, but not before the hold began. An
// older agent, which does not write NodeAgentRunning either, never does. That condition has to have
// heartbeats, too: one that a newer agent left before it was replaced by an older one has none.
func isSilent(node *corev1.Node, agent *corev1.NodeCondition) bool {
	last, kubelet := agent.LastHeartbeatTime.Time, conditionOf(node, corev1.NodeReady).LastHeartbeatTime
	running, held := conditionOf(node, v1alpha1.NodeConditionAgentRunning).LastHeartbeatTime, heldSince(node)
	switch {
	case last.IsZero():
		return false
	case kubelet.After(last.Add(AgentSilence)):
		return true
	case held.IsZero() || last.After(running.Add(AgentSilence)):
		return false
	case held.After(last):
		last = held
	}
	return kubelet.After(last.Add(missedHeartbeats * AgentHeartbeat))
}

// heldSince returns since when maintenances hold a node, zero if none does. This is the clock of
// the server: if it differs from that of the node, so does the time within which an agent that was
// idle has to answer.
func heldSince(node *corev1.Node) time.Time {
	if held := conditionOf(node, v1alpha1.NodeConditionMaintenanceInProgress); held.Status == corev1.ConditionTrue {
		return held.LastTransitionTime.Time
	}
	return time.Time{}
}

// conditionOf returns a condition of a node, an empty one if it has none.
func conditionOf(node *corev1.Node, conditionType corev1.NodeConditionType) corev1.NodeCondition {
	if node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == conditionType {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}
