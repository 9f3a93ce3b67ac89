// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// AgentHeartbeat is the interval at which a node agent writes NodeAgentReady while a
	// maintenance holds its node. The agent reads its Node at the same interval to find out whether
	// a maintenance holds it.
	AgentHeartbeat = time.Minute
	// AgentIdleHeartbeat is the interval while no maintenance holds the node, and the interval of
	// the agent's other conditions.
	AgentIdleHeartbeat = 5 * time.Minute
	// missedHeartbeats is the number of missed heartbeats after which an agent counts as gone.
	missedHeartbeats = 3
	// AgentSilence is the maximum age of an agent's heartbeat, relative to the heartbeat of the
	// kubelet.
	AgentSilence = missedHeartbeats * AgentIdleHeartbeat
)

// HasNodeAgent reports whether a node has a node agent that can stop and restart its static pods,
// according to its condition. A crashed agent leaves the condition True, so an agent without
// heartbeats counts as gone.
func HasNodeAgent(node *corev1.Node) bool {
	agent := NodeCondition(node, v1alpha1.NodeConditionAgentReady)
	return agent.Status == corev1.ConditionTrue && !isSilent(node, &agent)
}

// AgentHeartbeatOf returns the interval at which the agent of a node writes NodeAgentReady.
func AgentHeartbeatOf(node *corev1.Node) time.Duration {
	if heldSince(node).IsZero() {
		return AgentIdleHeartbeat
	}
	return AgentHeartbeat
}

// isSilent reports whether an agent has missed its heartbeats. It compares the agent with the
// kubelet, because both use the clock of the node, and because the node is reconciled when one of
// them writes. A kubelet writes every 5 minutes.
//
// While a maintenance holds the node, the agent writes more often, but not before the hold began.
// An older agent never writes more often, and it does not write NodeAgentRunning. So the shorter
// interval only applies if NodeAgentRunning has heartbeats, too: after an older agent has replaced
// a newer one, this condition remains without heartbeats.
func isSilent(node *corev1.Node, agent *corev1.NodeCondition) bool {
	last, kubelet := agent.LastHeartbeatTime.Time, NodeCondition(node, corev1.NodeReady).LastHeartbeatTime
	running, held := NodeCondition(node, v1alpha1.NodeConditionAgentRunning).LastHeartbeatTime, heldSince(node)
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

// heldSince returns the time since which maintenances hold a node; zero if none does. The time
// comes from the clock of the server. If the clock of the node differs, the time in which an idle
// agent must react differs by as much.
func heldSince(node *corev1.Node) time.Time {
	if held := NodeCondition(node, v1alpha1.NodeConditionMaintenanceInProgress); held.Status == corev1.ConditionTrue {
		return held.LastTransitionTime.Time
	}
	return time.Time{}
}

// NodeCondition returns a condition of a node; an empty one if the node does not have it.
func NodeCondition(node *corev1.Node, conditionType corev1.NodeConditionType) corev1.NodeCondition {
	if node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == conditionType {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}
