// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// Reasons of the condition GracefulNodeShutdownInProgress.
const (
	// ReasonWaitingForDrain (True): the pods are evicted through the API.
	ReasonWaitingForDrain = "WaitingForDrain"
	// ReasonEvictingPods (True): Haulout does not respond, and the agent evicts the pods.
	ReasonEvictingPods = "EvictingPods"
	// ReasonEndingPodsLocally (True): the agent ends the pods on the node.
	ReasonEndingPodsLocally = "EndingPodsLocally"
	// ReasonReleasing (True): the machine goes down.
	ReasonReleasing = "Releasing"
	// ReasonNoShutdown (False): no shutdown is pending.
	ReasonNoShutdown = "NoShutdown"
	// ReasonCancelled (False): the last shutdown was cancelled.
	ReasonCancelled = "Cancelled"
	// ReasonShutdownVanished (False): the service manager has forgotten the shutdown, and the agent
	// keeps its maintenance.
	ReasonShutdownVanished = "ShutdownVanished"
	// ReasonRebooted (False): the machine has booted after a shutdown.
	ReasonRebooted = "Rebooted"
)

// Reasons of the conditions NodeAgentRunning and NodeAgentReady.
const (
	// ReasonRunning (NodeAgentRunning, True): the agent runs and delays shutdowns.
	ReasonRunning = "Running"
	// ReasonNoLock (NodeAgentRunning, False): the agent runs and does not delay shutdowns.
	ReasonNoLock = "NoLock"
	// ReasonSafeMode (False): the agent has no usable configuration or kubeconfig, or it crashes.
	ReasonSafeMode = "SafeMode"
	// ReasonKubeletUnit (False): the kubelet is not the main process of its configured unit. The
	// agent drains the node, but ends no pods on it and stops no static pods.
	ReasonKubeletUnit = "KubeletUnit"
	// ReasonReady (NodeAgentReady, True): the agent can stop and restart static pods.
	ReasonReady = "Ready"
	// ReasonStaticPodsUnavailable (NodeAgentReady, False): the agent runs but cannot stop and
	// restart static pods.
	ReasonStaticPodsUnavailable = "StaticPodsUnavailable"
	// ReasonStopped (False): the agent was uninstalled.
	ReasonStopped = "Stopped"
)

// Reasons of the events about the node.
const (
	// EventDetected: a shutdown was requested. About the node.
	EventDetected = "NodeShutdownDetected"
	// EventDraining: pods are evicted through the API. About the node.
	EventDraining = "NodeShutdownDraining"
	// EventRefused: the API refuses the maintenance. About the node.
	EventRefused = "NodeShutdownMaintenanceRefused"
	// EventEvicting: Haulout does not respond, and the agent evicts the pods of the node itself,
	// within their budgets. About the node.
	EventEvicting = "NodeShutdownEvictingPods"
	// EventLocal: the agent ends the pods on the node. About the node.
	EventLocal = "NodeShutdownEndingPodsLocally"
	// EventReleased: the machine goes down. About the node.
	EventReleased = "NodeShutdownReleased"
	// EventCancelled: the shutdown was cancelled. About the node.
	EventCancelled = "NodeShutdownCancelled"
	// EventVanished: the service manager has forgotten the shutdown. About the node.
	EventVanished = "NodeShutdownVanished"
	// EventRebooted: the machine has booted after a shutdown. About the node.
	EventRebooted = "NodeShutdownRebooted"
)

// maxConditionMessage is the maximum length of a message in bytes: the Node object must stay small,
// and an API error can be long.
const maxConditionMessage = 1024

// shutdownReason returns spec.reason of the maintenance of a shutdown.
func shutdownReason(kind string) string {
	switch kind {
	case "reboot":
		return v1alpha1.ShutdownReasonReboot
	case "poweroff":
		return v1alpha1.ShutdownReasonPowerOff
	}
	return v1alpha1.ShutdownReason
}

// StoppedConditions returns the conditions NodeAgentReady and NodeAgentRunning of a node whose
// agent is uninstalled.
func StoppedConditions(version string) []corev1.NodeCondition {
	var stopped []corev1.NodeCondition
	for _, of := range []corev1.NodeConditionType{v1alpha1.NodeConditionAgentReady, v1alpha1.NodeConditionAgentRunning} {
		stopped = append(stopped, corev1.NodeCondition{
			Type: of, Status: corev1.ConditionFalse, Reason: ReasonStopped, Message: fmt.Sprintf("haulout-node-agent %s was uninstalled", version),
		})
	}
	return stopped
}

// shutdownCondition returns the condition GracefulNodeShutdownInProgress for a decision.
func shutdownCondition(in *input, d *decision) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: corev1.NodeGracefulNodeShutdownInProgress, Status: corev1.ConditionTrue}
	st := &d.next
	deadline := st.Signal.Deadline.UTC().Format("15:04:05 UTC")
	switch st.Phase {
	case state.Detected:
		c.Reason = ReasonWaitingForDrain
		c.Message = agentAction("create", "a NodeMaintenance", in.api.failure)
		c.Message += prefixed(", ", d.why) + "; the machine goes down at " + deadline
	case state.Maintaining:
		c.Reason = ReasonWaitingForDrain
		c.Message = "NodeMaintenance " + st.Maintenance.Name
		if in.drain != nil {
			c.Message += fmt.Sprintf(": %d pods left", in.drain.PodsLeft) + prefixed(", ", in.drain.Message)
		}
		c.Message += prefixed(", ", d.why) + "; the machine goes down at " + deadline
	case state.Evicting:
		c.Reason = ReasonEvictingPods
		c.Message = evictingMessage(in) + prefixed(", ", d.why) + "; the machine goes down at " + deadline
	case state.LocalRun:
		c.Reason = ReasonEndingPodsLocally
		c.Message = fmt.Sprintf("ending the pods on the node, bucket %d, by %s", st.Local.Bucket, deadline) + prefixed(", ", d.why)
	case state.Releasing, state.Down:
		c.Reason = ReasonReleasing
		c.Message = "the agent stops delaying the shutdown" + prefixed(", ", d.why)
	default:
		c.Status = corev1.ConditionFalse
		c.Reason, c.Message = idleReason(in, d)
	}
	c.Message = cut(c.Message)
	return c
}

func evictingMessage(in *input) string {
	if !in.host.ok {
		return "waiting for kube-apiserver to evict the pods of the node" + prefixed(": ", in.host.failure)
	}
	message := fmt.Sprintf("evicting the pods of the node: %d left", len(in.host.pods)-in.host.stay())
	for i := range in.host.pods { // one refused pod is enough as an example
		if pod := &in.host.pods[i]; in.host.refused[pod.UID].message != "" {
			return message + fmt.Sprintf(", %d refused, such as %s/%s: %s", len(in.host.refused), pod.Namespace, pod.Name, in.host.refused[pod.UID].message)
		}
	}
	return message
}

// idleReason returns reason and message while no shutdown is pending.
func idleReason(in *input, d *decision) (reason, message string) {
	st := &d.next
	switch {
	case st.Phase == state.Cancelled && st.Maintenance != nil:
		return ReasonCancelled, "the shutdown was cancelled; " + agentAction("complete", "NodeMaintenance "+st.Maintenance.Name, in.api.failure)
	case st.Phase == state.Cancelled || d.outcome == outcomeCancelled:
		return ReasonCancelled, "the shutdown was cancelled"
	case st.Maintenance != nil:
		return ReasonShutdownVanished, "the service manager was restarted and has lost the pending shutdown; NodeMaintenance " +
			st.Maintenance.Name + " is kept: request the shutdown again, or complete the NodeMaintenance"
	case d.outcome == outcomeRebooted:
		return ReasonRebooted, "the machine has booted after a shutdown"
	}
	return ReasonNoShutdown, "no shutdown is pending"
}

// runningCondition returns the condition NodeAgentRunning, which reports that the agent runs and
// delays shutdowns.
func runningCondition(version, reason, limit string, machine *MachineState, problems []string) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: v1alpha1.NodeConditionAgentRunning, Status: corev1.ConditionTrue, Reason: ReasonRunning}
	switch {
	case limit != "":
		c.Status, c.Reason = corev1.ConditionFalse, reason
	case !machine.LockHeld:
		c.Status, c.Reason = corev1.ConditionFalse, ReasonNoLock
	}
	c.Message = agentMessage(version, limit, machine, problems)
	return c
}

// readyCondition returns the condition NodeAgentReady, which reports that the agent may stop static
// pods. reason is the reason of a limitation of the agent; empty if the agent has no limitation.
func readyCondition(version, reason, staticProblem string, machine *MachineState, problems []string) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: v1alpha1.NodeConditionAgentReady, Status: corev1.ConditionTrue, Reason: ReasonReady}
	if staticProblem != "" {
		c.Status, c.Reason = corev1.ConditionFalse, cmp.Or(reason, ReasonStaticPodsUnavailable)
	}
	c.Message = agentMessage(version, staticProblem, machine, problems)
	return c
}

// agentMessage returns the message of the conditions NodeAgentRunning and NodeAgentReady.
func agentMessage(version, problem string, machine *MachineState, problems []string) string {
	parts := []string{"haulout-node-agent " + version, "does not delay shutdowns"}
	if machine.LockHeld {
		parts[1] = fmt.Sprintf("delays shutdowns by up to %s", machine.Delay)
	}
	if problem != "" {
		parts = append(parts, problem)
	}
	for _, other := range problems {
		if other != problem {
			parts = append(parts, other)
		}
	}
	return cut(strings.Join(parts, "; "))
}

// agentAction returns a clause about an action of the agent, or about its failure if there is one.
func agentAction(verb, object, failure string) string {
	if failure != "" {
		return fmt.Sprintf("the agent cannot %s %s: %s", verb, object, failure)
	}
	return fmt.Sprintf("the agent %ss %s", verb, object)
}

// prefixed returns a text with a prefix; empty if the text is empty.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// cut makes a message one line of at most maxConditionMessage bytes.
func cut(message string) string {
	if message = protocol.OneLine(message, len(message)); len(message) <= maxConditionMessage {
		return message
	}
	return wording.Cut(message, maxConditionMessage-3) + "..."
}
