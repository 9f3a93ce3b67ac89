// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
)

func ready(node *corev1.Node) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
}

func ofServer(pod *corev1.Pod) {
	yes := true
	pod.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "haulout", UID: "rs", Controller: &yes},
	}
}

func TestRecreatedOwnPodIsKept(t *testing.T) {
	// The pod is created in the same second as the cordon, then later, and then earlier according
	// to the clock of kube-apiserver.
	testAnOwnPodThatComesBack(t, time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	testAnOwnPodThatComesBack(t, time.Date(2026, 11, 1, 12, 1, 0, 0, time.UTC))
	testAnOwnPodThatComesBack(t, time.Date(2026, 11, 1, 11, 58, 0, 0, time.UTC))
}

// TestOwnPodLeavesWhateverTheClocksSay: a pod of the server is on the node when the hold begins,
// and the clock of kube-apiserver, which created the pod, is a minute ahead of the server's clock.
func TestOwnPodLeavesWhateverTheClocksSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("away", inPool("green"), ready), newMaintenance("m"),
			newPod("haulout-1", "one", 0, ofServer, func(pod *corev1.Pod) {
				pod.CreationTimestamp = metav1.NewTime(time.Date(2026, 11, 1, 12, 1, 0, 0, time.UTC))
			}))
		f.step("m")
		f.wantEvacuating("haulout-1")
		f.step("m")
		f.wantEvacuating("haulout-1")
	})
}

func testAnOwnPodThatComesBack(t *testing.T, created time.Time) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("away", inPool("green")),
			newMaintenance("m"), newPod("haulout-1", "one", 0, ofServer), newPod("web", "one", 0))
		f.step("m")
		f.wantEvacuating("web")
		f.deletePod("web")
		f.step("m")
		f.wantEvacuating("haulout-1")
		f.deletePod("haulout-1")
		f.create(newPod("haulout-9", "one", 0, ofServer, func(pod *corev1.Pod) {
			pod.UID, pod.CreationTimestamp = "again", metav1.NewTime(created)
		}))
		f.step("m")
		f.wantEvacuating()
		f.wait(nodestate.SettleTime)
		f.step("m")
		f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft)
		if kept := f.nodeStatus("m", "one").PodsKept; kept != 1 {
			t.Errorf("got %d pods kept, want 1", kept)
		}
	})
}
