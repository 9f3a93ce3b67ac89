// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// static makes a pod a mirror pod of its node.
func static(pod *corev1.Pod) {
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: pod.Spec.NodeName, UID: newNode(pod.Spec.NodeName).UID, Controller: ptr.To(true),
	}}
}

// agent adds the condition of a node agent that keeps no static pod.
func agent(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(node *corev1.Node) {
		keeping("")(node)
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == v1alpha1.NodeConditionAgentReady
		})
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: v1alpha1.NodeConditionAgentReady, Status: status,
		})
	}
}

// keeping adds the annotation of a node agent that keeps a static pod.
func keeping(pod string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		kept := map[string]protocol.KeptReason{}
		if pod != "" {
			kept["default/"+pod] = protocol.KeptServesAPI
		}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeptStaticPods, protocol.EncodeKeptStaticPods("", false, kept))
	}
}

// TestAPodThatBecomesKept runs the controllers, so that only the event of the annotation causes
// syncs.
func TestAPodThatBecomesKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", agent(corev1.ConditionTrue)), newMaintenance("m"), newPod("proxy", "one", 0, static))
		f.turnOn(v1alpha1.EvacuatorClassKubelet)
		go f.run(2)
		f.soon("the static pod is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"proxy"}) })
		f.updateNode("one", keeping("proxy"))
		f.soon("the Evacuation is withdrawn", func() bool { return len(f.evacuating()) == 0 })
		f.ticking("the maintenance is drained", func() bool { return isDrained(f.nm("m")) })
		f.updateNode("one", keeping(""))
		f.soon("the static pod is asked to leave again", func() bool { return slices.Equal(f.evacuating(), []string{"proxy"}) })
	})
}

// TestAgentsThatComeAndGo runs the controllers, so that only the events of the condition cause
// syncs.
func TestAgentsThatComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("proxy", "one", 0, static))
		f.turnOn(v1alpha1.EvacuatorClassKubelet)
		go f.run(2)
		drained := func(status corev1.ConditionStatus) func() bool { return f.shows("one", status) }
		f.ticking("the static pod is kept", func() bool { return isDrained(f.nm("m")) && len(f.evacuating()) == 0 })
		f.ticking("the node is drained", drained(corev1.ConditionTrue))

		f.updateNode("one", agent(corev1.ConditionTrue))
		f.soon("the static pod is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"proxy"}) })
		f.soon("the maintenance is not drained any more", func() bool { return !isDrained(f.nm("m")) })
		f.soon("the node is not drained any more", drained(corev1.ConditionFalse))

		f.updateNode("one", agent(corev1.ConditionFalse))
		f.soon("the Evacuation is withdrawn", func() bool { return len(f.evacuating()) == 0 })
		f.ticking("the maintenance is drained again", func() bool { return isDrained(f.nm("m")) })
		f.ticking("the node is drained again", drained(corev1.ConditionTrue))
	})
}

// TestAgentsThatComeAndGoBeforeTheirWave: because of a pod on another node, the wave of static pods
// has not started. So no Evacuation is created or withdrawn because of the agent.
func TestAgentsThatComeAndGoBeforeTheirWave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newMaintenance("m"), newPod("proxy", "one", 0, static), newPod("web", "two", 0))
		f.turnOn(v1alpha1.EvacuatorClassKubelet)
		go f.run(2)
		f.ticking("the other pod is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"web"}) })
		f.ticking("the node is drained", f.shows("one", corev1.ConditionTrue))
		for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionTrue} {
			f.updateNode("one", agent(status))
			waits := status == corev1.ConditionTrue
			f.soon("the maintenance counts the static pod", func() bool {
				nm := f.nodeStatus("m", "one")
				return (nm.PodsPendingEvacuation == 1) == waits && (nm.PodsKept == 0) == waits
			})
			f.soon("the node shows it", f.shows("one", map[bool]corev1.ConditionStatus{true: corev1.ConditionFalse, false: corev1.ConditionTrue}[waits]))
		}
		f.wantEvacuating("web")
	})
}

// shows returns a function that reports whether the condition Drained of a node has the given
// status.
func (f *fixture) shows(node string, status corev1.ConditionStatus) func() bool {
	return func() bool {
		return slices.ContainsFunc(f.node(node).Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == v1alpha1.NodeConditionDrained && c.Status == status
		})
	}
}

// soon waits for a condition that an event has to cause. A node reports returned pods after half a
// minute. The periodic resync of the controllers is later, so it cannot be the cause.
func (f *fixture) soon(what string, condition func() bool) {
	f.t.Helper()
	begun := time.Now()
	f.ticking(what, condition)
	if took := time.Since(begun); took > time.Minute {
		f.t.Errorf("%s only after %s", what, took)
	}
}
