// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func nodeWith(conditions ...corev1.NodeCondition) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-one"}, Status: corev1.NodeStatus{Conditions: conditions}}
}

func agentReady(status corev1.ConditionStatus) corev1.NodeCondition {
	return corev1.NodeCondition{Type: "maintenance.haulout.dev/NodeAgentReady", Status: status}
}

// heartbeats returns a node whose kubelet has written its condition the given time after the agent
// has written both of its
// conditions.
func heartbeats(later time.Duration, modify ...func(node *corev1.Node, kubelet time.Time)) *corev1.Node {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	agent, kubelet := agentReady(corev1.ConditionTrue), corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	agent.LastHeartbeatTime, kubelet.LastHeartbeatTime = metav1.NewTime(now), metav1.NewTime(now.Add(later))
	running := agent
	running.Type = "maintenance.haulout.dev/NodeAgentRunning"
	node := nodeWith(kubelet, agent, running)
	for _, m := range modify {
		m(node, now.Add(later))
	}
	return node
}

// held returns a modifier that makes a maintenance hold the node since the given time before the
// last heartbeat of the kubelet.
func held(before time.Duration) func(*corev1.Node, time.Time) {
	return func(node *corev1.Node, kubelet time.Time) {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: "MaintenanceInProgress", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(kubelet.Add(-before)),
		})
	}
}

// older returns a modifier that makes an older agent, which does not write NodeAgentRunning,
// replace the agent the given time ago.
func older(ago time.Duration) func(*corev1.Node, time.Time) {
	return func(node *corev1.Node, _ time.Time) {
		running := &node.Status.Conditions[2]
		running.LastHeartbeatTime = metav1.NewTime(running.LastHeartbeatTime.Add(-ago))
	}
}

// neverNewer removes the condition that an older agent does not write.
func neverNewer(node *corev1.Node, _ time.Time) {
	node.Status.Conditions = append(node.Status.Conditions[:2:2], node.Status.Conditions[3:]...)
}

// notHeldAnyMore releases the node.
func notHeldAnyMore(node *corev1.Node, _ time.Time) {
	node.Status.Conditions[len(node.Status.Conditions)-1].Status = corev1.ConditionFalse
}

var agentCases = map[string]struct {
	node *corev1.Node
	want bool
}{
	"no node":                                  {},
	"no condition":                             {node: nodeWith()},
	"the agent is ready":                       {node: nodeWith(agentReady(corev1.ConditionTrue)), want: true},
	"the agent is stopped":                     {node: nodeWith(agentReady(corev1.ConditionFalse))},
	"the status is Unknown":                    {node: nodeWith(agentReady(corev1.ConditionUnknown))},
	"another condition is True":                {node: nodeWith(corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})},
	"a similar condition is True":              {node: nodeWith(corev1.NodeCondition{Type: "NodeAgentReady", Status: corev1.ConditionTrue})},
	"the agent is ready, behind another":       {node: nodeWith(corev1.NodeCondition{Type: corev1.NodeReady}, agentReady(corev1.ConditionTrue)), want: true},
	"the kubelet is stopped, the agent is not": {node: heartbeats(-time.Hour, held(2*time.Hour)), want: true},

	"idle, and 15 minutes before the kubelet": {node: heartbeats(15 * time.Minute), want: true},
	"idle, and silent for longer than that":   {node: heartbeats(15*time.Minute + time.Second)},
	"held, and 3 minutes before the kubelet":  {node: heartbeats(3*time.Minute, held(time.Hour)), want: true},
	"held, and silent for longer than that":   {node: heartbeats(3*time.Minute+time.Second, held(time.Hour))},
	"released, and silent for longer than that": {
		node: heartbeats(3*time.Minute+time.Second, held(time.Hour), notHeldAnyMore), want: true,
	},

	"idle for 4 minutes when the hold began":  {node: heartbeats(4*time.Minute, held(0)), want: true},
	"3 minutes after that":                    {node: heartbeats(7*time.Minute, held(3*time.Minute)), want: true},
	"still silent after that":                 {node: heartbeats(7*time.Minute+time.Second, held(3*time.Minute+time.Second))},
	"gone for 20 minutes when the hold began": {node: heartbeats(20*time.Minute, held(0))},

	"older, held, 5 minutes before the kubelet":         {node: heartbeats(5*time.Minute, held(time.Hour), neverNewer), want: true},
	"older, held, 15 minutes before the kubelet":        {node: heartbeats(15*time.Minute, held(time.Hour), neverNewer), want: true},
	"older, held, silent for longer than that":          {node: heartbeats(15*time.Minute+time.Second, held(time.Hour), neverNewer)},
	"older again, after a newer one":                    {node: heartbeats(5*time.Minute, held(time.Hour), older(16*time.Minute)), want: true},
	"newer, and its other heartbeat is 5 minutes older": {node: heartbeats(5*time.Minute, held(time.Hour), older(5*time.Minute))},
}

func TestHasNodeAgent(t *testing.T) {
	for name, test := range agentCases {
		t.Run(name, func(t *testing.T) {
			if got := HasNodeAgent(test.node); got != test.want {
				t.Errorf("HasNodeAgent() = %v, want %v", got, test.want)
			}
		})
	}
}

// TestSilenceOfANodeAgent simulates an agent and a kubelet that write to their node for 40 minutes.
// A maintenance begins to hold the node while the agent is idle, absent or dead.
func TestSilenceOfANodeAgent(t *testing.T) {
	const end, kubeletPeriod, step = 40 * time.Minute, 5 * time.Minute, 5 * time.Second
	start := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	// run returns the time at which the agent is first treated as absent, or end. The agent reads
	// its node every minute, and is killed at the time dies.
	run := func(looks, writes, hold, dies time.Duration) time.Duration {
		node := heartbeats(0, held(0), notHeldAnyMore)
		kubelet, agent, running, inProgress := &node.Status.Conditions[0], &node.Status.Conditions[1], &node.Status.Conditions[2], &node.Status.Conditions[3]
		agent.LastHeartbeatTime, running.LastHeartbeatTime, kubelet.LastHeartbeatTime = metav1.NewTime(start), metav1.NewTime(start), metav1.NewTime(start)
		for at := time.Duration(0); at < end; at += step {
			now := metav1.NewTime(start.Add(at))
			if at == hold {
				inProgress.Status, inProgress.LastTransitionTime = corev1.ConditionTrue, now
			}
			if at < dies && at%AgentHeartbeat == looks {
				if now.Sub(agent.LastHeartbeatTime.Time) >= AgentHeartbeatOf(node) {
					agent.LastHeartbeatTime = now
				}
				if now.Sub(running.LastHeartbeatTime.Time) >= AgentIdleHeartbeat {
					running.LastHeartbeatTime = now
				}
			}
			if at%kubeletPeriod == writes {
				kubelet.LastHeartbeatTime = now
			}
			if !HasNodeAgent(node) {
				return at
			}
		}
		return end
	}
	for looks := time.Duration(0); looks < AgentHeartbeat; looks += 4 * step {
		for writes := time.Duration(0); writes < kubeletPeriod; writes += 7 * step {
			for hold := 10 * time.Minute; hold < 17*time.Minute; hold += 11 * step {
				if got := run(looks, writes, hold, end); got != end {
					t.Fatalf("an agent that reads its Node at %v, with a kubelet that writes at %v, is gone at %v; held at %v", looks, writes, got, hold)
				}
				for dies := time.Minute; dies < hold+7*time.Minute; dies += 13 * step {
					got := run(looks, writes, hold, dies)
					if latest := max(hold, dies) + 3*AgentHeartbeat + kubeletPeriod + step; got > latest || got < dies {
						t.Fatalf("an agent that reads its Node at %v and dies at %v, with a kubelet that writes at %v, is gone at %v, held at %v", looks, dies, writes, got, hold)
					}
				}
			}
		}
	}
}

func TestHeartbeatOfANodeAgent(t *testing.T) {
	for name, test := range map[string]struct {
		node *corev1.Node
		want time.Duration
	}{
		"no node":  {want: 5 * time.Minute},
		"idle":     {node: heartbeats(0), want: 5 * time.Minute},
		"held":     {node: heartbeats(0, held(time.Hour)), want: time.Minute},
		"released": {node: heartbeats(0, held(time.Hour), notHeldAnyMore), want: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			if got := AgentHeartbeatOf(test.node); got != test.want {
				t.Errorf("AgentHeartbeatOf() = %v, want %v", got, test.want)
			}
		})
	}
}

// ownerNode implements Owners with one node and no other owner.
type ownerNode struct{ node *corev1.Node }

func (ownerNode) ReplicaSet(context.Context, string, string) (*appsv1.ReplicaSet, error) {
	return nil, nil
}

func (ownerNode) Deployment(context.Context, string, string) (*appsv1.Deployment, error) {
	return nil, nil
}

func (ownerNode) DaemonSet(context.Context, string, string) (*appsv1.DaemonSet, error) {
	return nil, nil
}

func (o ownerNode) Node(context.Context, string) (*corev1.Node, error) { return o.node, nil }

func TestStaticPodsHaveAnEvacuatorWithANodeAgent(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Annotations:     map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
			OwnerReferences: build.Owner("v1", "Node", "one", "uid-one"),
		},
		Spec: corev1.PodSpec{NodeName: "one"},
	}
	for name, test := range agentCases {
		t.Run(name, func(t *testing.T) {
			want := BuiltIn{}
			if test.want {
				want.Class = "kubelet.k8s.io"
			}
			got, err := BuiltInOf(t.Context(), pod, sets.New(v1alpha1.EvacuatorClassKubelet), ownerNode{test.node})
			is.True(t, err == nil && got == want, "BuiltInOf() = %+v, %v, want %+v", got, err, want)
			got, err = BuiltInOf(t.Context(), pod, sets.New[string](), ownerNode{test.node})
			if err != nil || got != (BuiltIn{}) {
				t.Errorf("with the evacuator disabled: BuiltInOf() = %+v, %v, want none", got, err)
			}
		})
	}
}
