/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package protocol

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// AgentSilence is how much older than the heartbeat of the kubelet that of the node agent may be.
// The agent writes its own every minute.
const AgentSilence = 3 * time.Minute

// HasNodeAgent reports whether a node has a node agent that can stop and restart its static pods,
// as its condition shows. An agent that crashed leaves the condition True: one whose heartbeat is
// older than AgentSilence is gone. The heartbeats of agent and kubelet are compared with each
// other, because both are from the clock of the node, and because a node is reconciled when one of
// them writes. A kubelet writes its own every 5 minutes.
func HasNodeAgent(node *corev1.Node) bool {
	if node == nil {
		return false
	}
	var agent, kubelet corev1.NodeCondition
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case maintenancev1alpha1.NodeConditionAgentReady:
			agent = c
		case corev1.NodeReady:
			kubelet = c
		}
	}
	silent := !agent.LastHeartbeatTime.IsZero() && kubelet.LastHeartbeatTime.After(agent.LastHeartbeatTime.Add(AgentSilence))
	return agent.Status == corev1.ConditionTrue && !silent
}
