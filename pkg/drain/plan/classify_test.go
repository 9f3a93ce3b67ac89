// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

const nodeUID = types.UID("node-uid")

func owned(apiVersion, kind string, uid types.UID, modify ...func(*corev1.Pod)) *corev1.Pod {
	yes := true
	return build.With(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			OwnerReferences: []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, UID: uid, Controller: &yes}},
		},
	}, modify...)
}

func mirror(p *corev1.Pod) {
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
}

func tolerating(t corev1.Toleration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{t} }
}

func TestTypeOf(t *testing.T) {
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want v1alpha1.PodType
	}{
		"a bare pod":                                       {&corev1.Pod{}, typeDefault},
		"a pod of a ReplicaSet":                            {owned("apps/v1", "ReplicaSet", "x"), typeDefault},
		"a pod of a DaemonSet":                             {owned("apps/v1", "DaemonSet", "x"), typeDaemonSet},
		"a pod of another DaemonSet":                       {owned("apps.kruise.io/v1alpha1", "DaemonSet", "x"), typeDefault},
		"a mirror pod":                                     {owned("v1", "Node", nodeUID, mirror), typeStatic},
		"a mirror pod of an earlier node":                  {owned("v1", "Node", "old", mirror), typeDefault},
		"a pod of a ReplicaSet with the mirror annotation": {owned("apps/v1", "ReplicaSet", "x", mirror), typeDefault},
		"a pod of a node without the mirror annotation":    {owned("v1", "Node", nodeUID), typeDefault},
		"a pod of a DaemonSet with the mirror annotation":  {owned("apps/v1", "DaemonSet", "x", mirror), typeDaemonSet},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, TypeOf(test.pod, nodeUID), test.want)
		})
	}
}

func TestKept(t *testing.T) {
	none := sets.New[string]()
	all := sets.New(v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet)
	publishing := func(status corev1.ConditionStatus, kept string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationKeptStaticPods: kept}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: v1alpha1.NodeConditionAgentReady, Status: status},
			}},
		}
	}
	nodeWith := func(status corev1.ConditionStatus) *corev1.Node { return publishing(status, `{"bootID":""}`) }
	named := func(p *corev1.Pod) { p.Namespace, p.Name = "kube-system", "proxy-n1" }
	daemon := func(modify ...func(*corev1.Pod)) *corev1.Pod { return owned("apps/v1", "DaemonSet", "x", modify...) }
	for name, test := range map[string]struct {
		pod        *corev1.Pod
		node       *corev1.Node
		evacuators sets.Set[string]
		want       KeptReason
	}{
		"a Default pod leaves": {pod: &corev1.Pod{}, evacuators: none, want: ""},
		"a Default pod that tolerates every taint leaves": {
			pod: owned("apps/v1", "ReplicaSet", "x",
				tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})),
			evacuators: none, want: "",
		},
		"a DaemonSet pod without its evacuator stays": {pod: daemon(), evacuators: none, want: KeptDaemonSet},
		"a DaemonSet pod with its evacuator leaves":   {pod: daemon(), evacuators: all, want: ""},
		"a DaemonSet pod that tolerates every taint stays": {
			pod: daemon(tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})), evacuators: all,
			want: KeptTolerant,
		},
		"a DaemonSet pod that tolerates the drain taint stays": {
			pod: daemon(tolerating(corev1.Toleration{
				Key: v1alpha1.TaintDrain, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoSchedule,
			})),
			evacuators: all, want: KeptTolerant,
		},
		"a DaemonSet pod that tolerates only NoExecute taints leaves": {
			pod: daemon(tolerating(corev1.Toleration{
				Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			})),
			evacuators: all, want: "",
		},
		"a DaemonSet pod that tolerates another taint leaves": {
			pod:        daemon(tolerating(corev1.Toleration{Key: "other", Operator: corev1.TolerationOpExists})),
			evacuators: all, want: "",
		},
		"a static pod without an agent stays": {
			pod: owned("v1", "Node", nodeUID, mirror), evacuators: all, want: KeptStatic,
		},
		"a static pod with an agent that has stopped stays": {
			pod:        owned("v1", "Node", nodeUID, mirror),
			node:       nodeWith(corev1.ConditionFalse),
			evacuators: all,
			want:       KeptStatic,
		},
		"a static pod with an agent stays if the evacuator is disabled": {
			pod:        owned("v1", "Node", nodeUID, mirror),
			node:       nodeWith(corev1.ConditionTrue),
			evacuators: none,
			want:       KeptStatic,
		},
		"a static pod with an agent leaves": {
			pod: owned("v1", "Node", nodeUID, mirror), node: nodeWith(corev1.ConditionTrue), evacuators: all, want: "",
		},
		"a static pod that the agent keeps stays": {
			pod:        owned("v1", "Node", nodeUID, mirror, named),
			node:       publishing(corev1.ConditionTrue, `{"bootID":"","pods":{"kube-system/proxy-n1":"ServesTheAPI"}}`),
			evacuators: all,
			want:       "static pod (ServesTheAPI)",
		},
		"a static pod stays with an agent that has not published what it keeps": {
			pod:        owned("v1", "Node", nodeUID, mirror),
			node:       publishing(corev1.ConditionTrue, ""),
			evacuators: all,
			want:       "static pod (NotPublished)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.node == nil {
				test.node = &corev1.Node{}
			}
			is.Equal(t, Kept(test.pod, TypeOf(test.pod, nodeUID), test.node, test.evacuators), test.want)
		})
	}
}

func TestKeptStaticReason(t *testing.T) {
	for reason, test := range map[KeptReason]struct {
		static bool
		want   protocol.KeptReason
	}{
		KeptStatic:                      {static: true},
		"static pod (ControlPlaneNode)": {static: true, want: protocol.KeptControlPlane},
		KeptTolerant:                    {},
		"":                              {},
	} {
		if got := reason.KeptStatic(); got != test.want || reason.IsStatic() != test.static {
			t.Errorf("%q: got the reason %q, static %t, want %q, %t", reason, got, reason.IsStatic(), test.want, test.static)
		}
	}
}

func TestIsLive(t *testing.T) {
	for name, test := range map[string]struct {
		phase corev1.PodPhase
		// grace is the grace period of the deletion. A negative value means that the pod is not
		// being deleted.
		grace int64
		want  bool
	}{
		"a pod that waits for the scheduler":                     {phase: corev1.PodPending, grace: -1, want: true},
		"a pod that runs":                                        {phase: corev1.PodRunning, grace: -1, want: true},
		"a pod that is being stopped":                            {phase: corev1.PodRunning, grace: 30, want: true},
		"a pod that was deleted by force":                        {phase: corev1.PodRunning, grace: 0, want: true},
		"a pod that has succeeded":                               {phase: corev1.PodSucceeded, grace: -1},
		"a pod that has failed":                                  {phase: corev1.PodFailed, grace: -1},
		"a deleted pod whose volumes the kubelet has to unmount": {phase: corev1.PodSucceeded, grace: 30, want: true},
		"a deleted pod that has failed and is not unmounted yet": {phase: corev1.PodFailed, grace: 30, want: true},
		"a deleted pod that only a finalizer keeps":              {phase: corev1.PodSucceeded, grace: 0},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{Phase: test.phase}}
			if test.grace >= 0 {
				pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{}, &test.grace
			}
			is.Equal(t, IsLive(pod), test.want)
		})
	}
}
