// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestStatesOfTasks(t *testing.T) {
	for state, want := range map[v1alpha1.NodeTaskState]struct{ inHands, delays bool }{
		v1alpha1.NodeTaskOffered:   {false, true},
		v1alpha1.NodeTaskClaimed:   {true, true},
		v1alpha1.NodeTaskVerifying: {true, true},
		v1alpha1.NodeTaskDone:      {true, false},
		v1alpha1.NodeTaskFailed:    {true, false},
		v1alpha1.NodeTaskGone:      {false, false},
		"":                         {false, false},
	} {
		is.Equal(t, IsInHands(state), want.inHands, "IsInHands of", string(state))
		is.Equal(t, DelaysRelease(state), want.delays, "DelaysRelease of", string(state))
	}
}

func TestJobTemplateOf(t *testing.T) {
	for class, want := range map[string]string{
		"kubelet-137.job.maintenance.haulout.dev": "kubelet-137",
		"a.b.job.maintenance.haulout.dev":         "a.b",
		"reboot.maintenance.haulout.dev":          "",
		"job.maintenance.haulout.dev":             "",
		"x.job.maintenance.haulout.dev.example":   "",
	} {
		is.Equal(t, JobTemplateOf(class), want, class)
	}
}

func TestReadinessTaint(t *testing.T) {
	node := &corev1.Node{}
	is.True(t, !HasReadinessTaint(node), "no taint counts")
	node.Spec.Taints = []corev1.Taint{{Key: "readiness.k8s.iox/a"}, {Key: "a"}}
	is.True(t, !HasReadinessTaint(node), "another taint counts")
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "readiness.k8s.io/network", Effect: corev1.TaintEffectNoSchedule})
	is.True(t, HasReadinessTaint(node), "the taint does not count")
}
