// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	nodecontroller "haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/marks"
)

var (
	heldTaint  = corev1.Taint{Key: v1alpha1.TaintHeld, Effect: corev1.TaintEffectPreferNoSchedule}
	drainTaint = corev1.Taint{Key: "maintenance.haulout.dev/drain", Effect: "NoSchedule"}
	otherTaint = corev1.Taint{Key: "example.com/gpu", Value: "yes", Effect: "NoExecute"}
)

func taintedWith(taints ...corev1.Taint) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Spec.Taints = taints }
}

func taintedBy(value string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationTaintedBy, withStorage(value))
	}
}

// wantTaints checks the taints of a node, and which maintenances its annotation names.
func (f *fixture) wantTaints(name string, taints []corev1.Taint, by ...string) {
	f.t.Helper()
	node := f.node(name)
	for i := range node.Spec.Taints {
		node.Spec.Taints[i].TimeAdded = nil
	}
	if !slices.Equal(node.Spec.Taints, taints) {
		f.t.Errorf("node %s: got taints %v, want %v", name, node.Spec.Taints, taints)
	}
	if got := slices.Sorted(maps.Keys(marks.TaintedBy(node))); !slices.Equal(got, by) {
		f.t.Errorf("node %s: got tainted by %v, want %v", name, got, by)
	}
	if _, there := node.Annotations[v1alpha1.AnnotationTaintedBy]; there && len(by) == 0 {
		f.t.Errorf("node %s still has the annotation", name)
	}
}

func ours() []corev1.Taint { return []corev1.Taint{heldTaint, drainTaint} }

func newTaintFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	f := newFixture(t, objects...)
	f.turnOn(v1alpha1.EvacuatorClassDaemonSet)
	return f
}

func TestTaintIsAddedWithTheFirstDaemonSetTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTaintFixture(t, newNode("one",
			taintedWith(otherTaint)), newNode("two"), newNode("green", inPool("green")), newMaintenance("m"),
			newPod("app", "one", 0), newPod("logger-1", "one", 0,
				ofDaemonSet), newPod("logger-2", "two", 0, ofDaemonSet))
		f.step("m")
		f.wantEvacuating("app")
		f.wantTaints("one", []corev1.Taint{otherTaint, heldTaint}, "m")
		f.wantTaints("two", []corev1.Taint{heldTaint}, "m")

		f.deletePod("app")
		f.step("m")
		f.wantEvacuating("logger-1", "logger-2")
		f.wantTaints("one", []corev1.Taint{otherTaint, heldTaint, drainTaint}, "m")
		f.wantTaints("two", ours(), "m")
		f.wantTaints("green", nil)

		f.restart()
		f.deletePod("logger-1")
		f.deletePod("logger-2")
		f.step("m")
		f.wantTaints("two", ours(), "m")

		f.enter("m", stageComplete)
		f.step("m")
		f.wantTaints("one", []corev1.Taint{otherTaint})
		f.wantTaints("two", []corev1.Taint{})
		f.wantCordon("two", false)
	})
}

func TestNoTaintWithoutTheEvacuator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("logger", "one", 0, ofDaemonSet))
		f.step("m")
		f.wantTaints("one", []corev1.Taint{heldTaint}, "m")
		f.wantEvacuating()
	})
}

func TestDaemonSetPodsHaveNoEvacuationBeforeTheTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTaintFixture(t, newNode("one"), newNode("two"), newMaintenance("m"),
			newPod("logger-1", "one", 0, ofDaemonSet), newPod("logger-2", "two", 0, ofDaemonSet))
		refuse := true
		f.host.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			patch := action.(clienttesting.PatchAction)
			if refuse && patch.GetName() == "one" && strings.Contains(string(patch.GetPatch()), drainTaint.Key) {
				return true, nil, apierrors.NewConflict(corev1.Resource("nodes"), "one", nil)
			}
			return false, nil, nil
		})
		f.step("m")
		f.wantTaints("one", []corev1.Taint{heldTaint}, "m")
		f.wantTaints("two", ours(), "m")
		f.wantEvacuating("logger-2")
		refuse = false
		f.step("m")
		f.wantTaints("one", ours(), "m")
		f.wantEvacuating("logger-1", "logger-2")
	})
}

// TestRefusedTaintIsReported covers a policy that refuses the taint of a cordoned node, so that its
// DaemonSet pods never get an Evacuation.
func TestRefusedTaintIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTaintFixture(t, newNode("one"), newMaintenance("m"), newPod("logger", "one", 0, ofDaemonSet))
		f.host.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), drainTaint.Key) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "one",
					errors.New("a policy refuses it"))
			}
			return false, nil, nil
		})
		failed := 0
		try := func() {
			f.authorized()
			f.syncOnce("m")
			f.authorized()
			if err := f.reconcileNodes(); err != nil {
				failed++
			}
			f.wait(statusPace)
		}
		for range 6 {
			try()
		}
		f.wantTaints("one", []corev1.Taint{heldTaint}, "m")
		f.wait(loop.VisibleAfter)
		for range 3 {
			try()
		}
		f.wantEvacuating()
		f.wantProgressing("m", metav1.ConditionFalse, v1alpha1.ReasonProgressSyncFailed)
		if message := f.nodeStatus("m", "one").DrainMessage; !strings.Contains(message,
			"a policy refuses it") || failed == 0 {
			t.Errorf("message %q after %d attempts, want why the node has no taint", message, failed)
		}
	})
}

func TestTaintThatAUserRemovesIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTaintFixture(t, newNode("one"), newMaintenance("m"), newPod("logger", "one", 0, ofDaemonSet))
		f.step("m")
		for range nodestate.FightLimit + 1 {
			f.updateNode("one", taintedWith())
			f.step("m")
			f.wantTaints("one", ours(), "m")
			f.wantEvent(nodecontroller.EventTaintRestored)
		}
		f.updateNode("one", taintedWith())
		f.step("m")
		f.wantTaints("one", nil, "m")
		f.wait(nodestate.FightPause)
		f.step("m")
		f.wantTaints("one", ours(), "m")
	})
}

func TestTaintOfADeletedMaintenanceIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTaintFixture(t, newNode("one", cordoned), newNode("two", taintedWith(drainTaint)), newMaintenance("m"),
			newPod("logger", "one", 0, ofDaemonSet))
		f.step("m")
		f.wantTaints("one", ours(), "m")
		if err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Delete(f.ctx, "m",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.restart()
		f.sweep()
		f.wantTaints("one", []corev1.Taint{})
		f.wantTaints("two", []corev1.Taint{drainTaint})
		f.wantCordon("one", true)
	})
}
