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
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func nodeWith(conditions ...corev1.NodeCondition) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-one"}, Status: corev1.NodeStatus{Conditions: conditions}}
}

func agentReady(status corev1.ConditionStatus) corev1.NodeCondition {
	return corev1.NodeCondition{Type: "maintenance.haulout.dev/NodeAgentReady", Status: status}
}

// heartbeats returns a node whose kubelet has written its condition that long after the agent.
func heartbeats(later time.Duration) *corev1.Node {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	agent, kubelet := agentReady(corev1.ConditionTrue), corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	agent.LastHeartbeatTime, kubelet.LastHeartbeatTime = metav1.NewTime(now), metav1.NewTime(now.Add(later))
	return nodeWith(kubelet, agent)
}

var agentCases = map[string]struct {
	node *corev1.Node
	want bool
}{
	"no node":            {},
	"no condition":       {node: nodeWith()},
	"the agent is ready": {node: nodeWith(agentReady(corev1.ConditionTrue)), want: true},
	"the agent wrote 3 minutes before the kubelet":   {node: heartbeats(3 * time.Minute), want: true},
	"the agent has been silent for longer than that": {node: heartbeats(3*time.Minute + time.Second)},
	"the kubelet is stopped, the agent is not":       {node: heartbeats(-time.Hour), want: true},
	"the agent has stopped":                          {node: nodeWith(agentReady(corev1.ConditionFalse))},
	"the agent does not know":                        {node: nodeWith(agentReady(corev1.ConditionUnknown))},
	"another condition is True":                      {node: nodeWith(corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})},
	"a similar condition is True":                    {node: nodeWith(corev1.NodeCondition{Type: "NodeAgentReady", Status: corev1.ConditionTrue})},
	"the agent is ready, behind another":             {node: nodeWith(corev1.NodeCondition{Type: corev1.NodeReady}, agentReady(corev1.ConditionTrue)), want: true},
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

// ownerNode has one node and no other owner.
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
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "one", UID: "uid-one", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "one"},
	}
	for name, test := range agentCases {
		t.Run(name, func(t *testing.T) {
			want := BuiltIn{}
			if test.want {
				want.Class = "kubelet.k8s.io"
			}
			got, err := BuiltInOf(t.Context(), pod, sets.New(maintenancev1alpha1.EvacuatorClassKubelet), ownerNode{test.node})
			if err != nil || got != want {
				t.Errorf("BuiltInOf() = %+v, %v, want %+v", got, err, want)
			}
			got, err = BuiltInOf(t.Context(), pod, sets.New[string](), ownerNode{test.node})
			if err != nil || got != (BuiltIn{}) {
				t.Errorf("with the evacuator disabled: BuiltInOf() = %+v, %v, want none", got, err)
			}
		})
	}
}
