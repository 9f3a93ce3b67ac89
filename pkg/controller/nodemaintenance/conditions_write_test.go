// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	nodecontroller "haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/rights"
)

// settleConditions reconciles all nodes until their conditions no longer change.
func (f *fixture) settleConditions() {
	f.t.Helper()
	for range 10 {
		before := f.stored()
		f.cached()
		for _, node := range f.nodeList() {
			if err := f.nodes.Sync(f.ctx, node.Name); err != nil {
				f.t.Fatalf("reconcile the conditions of node %s: %v", node.Name, err)
			}
		}
		f.cached()
		if f.stored() == before {
			return
		}
	}
	f.t.Fatal("the conditions do not converge")
}

// wantShown checks the conditions of a node, "Type=Status", in the order of their types.
func (f *fixture) wantShown(name string, want ...string) {
	f.t.Helper()
	got := []string{}
	node := f.node(name)
	for _, c := range node.Status.Conditions {
		got = append(got, string(c.Type)+"="+string(c.Status))
	}
	slices.Sort(got)
	if !slices.Equal(got, append([]string{}, want...)) {
		f.t.Errorf("node %s: conditions %q, want %q", name, got, want)
	}
	if value, there := node.Annotations[v1alpha1.AnnotationConditionsBy]; there && len(want) == 0 {
		f.t.Errorf("node %s still has the annotation %s", name, value)
	}
}

var (
	shownCordoned = []string{"MaintenanceInProgress=True"}
	shownDraining = []string{"DrainInProgress=True", "Drained=False", "MaintenanceInProgress=True"}
	shownDrained  = []string{"DrainInProgress=False", "Drained=True", "MaintenanceInProgress=True"}
)

// showing adds conditions, "Type=Status Reason", to a node without our annotation.
func showing(conditions ...string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		for _, c := range conditions {
			var conditionType, status, reason string
			if _, err := fmt.Sscanf(strings.Replace(c, "=", " ", 1), "%s %s %s", &conditionType, &status,
				&reason); err != nil {
				panic(err)
			}
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: corev1.NodeConditionType(conditionType), Status: corev1.ConditionStatus(status), Reason: reason,
			})
		}
	}
}

// shownFor adds conditions, "Type=Status", to a node, with the annotation that records them as ours
// and as conditions of a maintenance.
func shownFor(
	name string, uid types.UID, stage v1alpha1.NodeMaintenanceStage, conditions ...string,
) func(*corev1.Node) {
	return func(node *corev1.Node) {
		record := marks.Conditions{Maintenances: map[string]marks.Recorded{name: {UID: uid, Stage: stage}}}
		for _, c := range conditions {
			conditionType, _, _ := strings.Cut(c, "=")
			if conditionOfNode(node, corev1.NodeConditionType(conditionType)) != nil {
				continue // a condition of another client
			}
			record.Conditions = append(record.Conditions, corev1.NodeConditionType(conditionType))
			showing(c + " " + v1alpha1.NodeReasonPrefix)(node)
		}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationConditionsBy,
			record.Encode(testStorage))
	}
}

func conditionOfNode(node *corev1.Node, conditionType corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == conditionType {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

func TestConditionsFollowTheStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("other", inPool("green")), newPod("p", "one", 0),
			newMaintenance("m", createdAt(stageIdle)))
		f.step("m")
		f.settleConditions()
		f.wantShown("one")
		f.enter("m", stageCordon)
		f.authorized()
		f.settleConditions()
		f.wantShown("one", shownCordoned...)
		f.step("m")
		f.wantEvent(nodecontroller.EventNodeMaintenanceStarted)
		f.enter("m", stageDrain)
		f.step("m")
		f.settleConditions()
		f.wantShown("one", shownDraining...)
		f.wantEvent(nodecontroller.EventNodeDrainStarted)
		f.wait(nodestate.SettleTime)
		f.settleConditions()
		f.wantShown("one", shownDraining...)
		f.deletePod("p")
		f.settleConditions()
		f.wantShown("one", shownDrained...)
		f.wantEvent(nodecontroller.EventNodeDrained)
		f.create(newPod("q", "one", 0))
		f.settleConditions()
		f.wantShown("one", shownDraining...)
		f.wantEvent(nodecontroller.EventNodeDrainResumed)
		f.enter("m", stageComplete)
		f.step("m")
		f.wantShown("one")
		f.wantEvent(nodecontroller.EventUncordoned)
		f.wantShown("other")
	})
}

func TestDrainedIsShownOnlyAfterTheSchedulerDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"))
		f.step("m")
		f.settleConditions()
		f.wantShown("one", shownDraining...)
		f.wait(nodestate.SettleTime)
		f.settleConditions()
		f.wantShown("one", shownDrained...)
		// The new leader need not wait, since the previous leader has waited.
		f.restart()
		f.settleConditions()
		f.wantShown("one", shownDrained...)
		// A user cordoned the node again. The scheduler may have bound a pod while the node was
		// schedulable.
		f.wait(time.Minute)
		f.updateNode("one", func(node *corev1.Node) { node.Spec.Unschedulable = false })
		f.cached()
		f.updateNode("one", cordoned)
		f.settleConditions()
		f.wantShown("one", shownDraining...)
	})
}

func TestEachNewPodIsNotTwoWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"))
		f.step("m")
		f.wait(nodestate.SettleTime)
		f.settleConditions()
		writes := f.conditionPatches()
		for i := range 20 {
			name := fmt.Sprintf("p-%d", i)
			f.create(newPod(name, "one", 0))
			f.settleConditions()
			f.wantShown("one", shownDraining...)
			f.deletePod(name)
			f.settleConditions()
			f.wait(time.Second)
		}
		if got := f.conditionPatches() - writes; got != 1 {
			t.Errorf("got %d writes within %v, want one", got, 20*time.Second)
		}
		f.wait(30 * time.Second)
		f.settleConditions()
		f.wantShown("one", shownDrained...)
	})
}

func (f *fixture) conditionPatches() int {
	n := 0
	for _, a := range f.host.Actions() {
		if a.Matches("patch", "nodes/status") {
			n++
		}
	}
	return n
}

func TestADrainIsFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{newNode("one"), newMaintenance("m")}
		for i := range 30 {
			objects = append(objects, newPod(fmt.Sprintf("p-%d", i), "one", int32(i)))
		}
		f := newFixture(t, objects...)
		f.step("m")
		f.settleConditions()
		for i := range 30 {
			f.deletePod(fmt.Sprintf("p-%d", i))
			f.settleConditions()
			f.wait(time.Second)
		}
		f.step("m")
		f.enter("m", stageComplete)
		f.step("m")
		f.settleConditions()
		f.wantShown("one")
		// There are three writes: when the drain begins, when the node is drained, and when it is
		// released.
		if got := f.conditionPatches(); got != 3 {
			t.Errorf("got %d writes, want 3", got)
		}
	})
}

func TestNoConditionWithoutTheRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", cordoned), newNode("two", cordoned), newMaintenance("m"),
			newMaintenance("idle", createdAt(stageIdle)))
		f.advertise = true
		f.restart()
		f.rights.refused.Insert("one")
		f.step("m")
		f.wait(nodestate.SettleTime)
		f.settleConditions()
		f.wantShown("one")
		f.wantShown("two", append(slices.Clone(shownDrained), "MaintenancePlanned=True")...)
		// The node keeps its conditions after the requester has lost the right.
		f.rights.refused.Insert("two")
		f.wait(rights.AnswerTTL + time.Second)
		f.settleConditions()
		f.wantShown("two", "DrainInProgress=False", "Drained=False", "MaintenanceInProgress=True")
		f.rights.err = fmt.Errorf("no answer")
		f.wait(rights.AnswerTTL + time.Second)
		f.authorized()
		if err := f.nodes.Sync(f.ctx, "two"); !errors.Is(err, f.rights.err) {
			t.Errorf("got error %v, want that of the authorizer", err)
		}
	})
}

func TestPlannedMaintenancesAreShownOnlyOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("other", inPool("green")), newMaintenance("m", createdAt(stageIdle)))
		f.settleConditions()
		f.wantShown("one")
		if f.rights.asked != 0 {
			t.Errorf("got %d reviews for an idle maintenance, want none", f.rights.asked)
		}
		f.advertise = true
		f.restart()
		f.settleConditions()
		f.wantShown("one", "MaintenancePlanned=True")
		f.wantShown("other")
		f.updateNode("one", func(node *corev1.Node) { node.Labels["pool"] = "red" })
		f.settleConditions()
		f.wantShown("one")
		f.updateNode("one", func(node *corev1.Node) { node.Labels["pool"] = "blue" })
		f.settleConditions()
		f.wantShown("one", "MaintenancePlanned=True")
		// A process without the option removes the condition that the previous process added.
		f.advertise = false
		f.restart()
		f.settleConditions()
		f.wantShown("one")
		f.advertise = true
		f.restart()
		f.settleConditions()
		if err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Delete(f.ctx, "m",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.settleConditions()
		f.wantShown("one")
	})
}

func TestLeftoverConditionsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := showing("Drained=True Manual", "Ready=True KubeletReady")
		f := newFixture(t, newNode(
			"one", foreign, shownFor("gone", "uid-gone", stageDrain, shownDraining...),
		), newNode("two", shownFor("m", "uid-m", stageCordon, shownCordoned...)),
			newMaintenance("m", func(nm *v1alpha1.NodeMaintenance) { nm.UID = "another" }))
		f.step("m")
		f.settleConditions()
		f.wantShown("one", "DrainInProgress=True", "Drained=True", "MaintenanceInProgress=True", "Ready=True")
		f.wantShown("two", shownDraining...)
		if err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Delete(f.ctx, "m",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.settleConditions()
		f.wantShown("one", "Drained=True", "Ready=True")
		f.wantShown("two")
	})
}

func TestRecreatedNodeHasNoConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"))
		f.step("m")
		f.wait(nodestate.SettleTime)
		f.settleConditions()
		f.wantShown("one", shownDrained...)
		if err := f.host.CoreV1().Nodes().Delete(f.ctx, "one", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.create(newNode("one", func(node *corev1.Node) { node.UID = "second" }))
		f.step("m")
		f.settleConditions()
		f.wantShown("one", shownDraining...)
	})
}

func TestUncordonOfAUserRemovesDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"))
		f.step("m")
		f.wait(nodestate.SettleTime)
		f.settleConditions()
		f.wantShown("one", shownDrained...)
		f.wait(time.Second)
		f.updateNode("one", func(node *corev1.Node) { node.Spec.Unschedulable = false })
		f.settleConditions()
		f.wantShown("one", shownDraining...)
	})
}

func TestConflictIsDecidedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m", createdAt(stageCordon)))
		f.step("m")
		f.enter("m", v1alpha1.NodeMaintenanceStageDrain)
		taken := f.node("one")
		showing("Drained=True Manual")(taken)
		conflicts := 1
		f.host.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetSubresource() != "status" || conflicts == 0 {
				return false, nil, nil
			}
			conflicts--
			// Do not use the client here: its lock is held while a reactor runs.
			if err := f.host.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), taken, ""); err != nil {
				t.Error(err)
			}
			return true, nil, apierrors.NewConflict(corev1.Resource("nodes"), "one", fmt.Errorf("another client has changed it"))
		})
		if err := f.nodes.Sync(f.ctx, "one"); err != nil {
			t.Fatal(err)
		}
		f.wantShown("one", "DrainInProgress=True", "Drained=True", "MaintenanceInProgress=True")
		if reason := conditionOfNode(f.node("one"),
			v1alpha1.NodeConditionDrained).Reason; reason != "Manual" {
			t.Errorf("the condition of another client now has the reason %s", reason)
		}
	})
}

// TestRunKeepsConditions runs the controller, so that only events cause syncs.
func TestRunKeepsConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("stale", inPool("green"),
			shownFor("gone", "uid-gone", stageCordon, shownCordoned...)), newPod("p", "one", 0),
			newMaintenance("m", createdAt(stageIdle)))
		go f.run(1)
		shows := func(node string, want ...string) {
			t.Helper()
			f.ticking(fmt.Sprintf("node %s shows %q", node, want), func() bool {
				got := []string{}
				for _, c := range f.node(node).Status.Conditions {
					got = append(got, string(c.Type)+"="+string(c.Status))
				}
				slices.Sort(got)
				return slices.Equal(got, want)
			})
		}
		shows("stale")
		f.enter("m", stageCordon)
		shows("one", shownCordoned...)
		f.enter("m", stageDrain)
		shows("one", shownDraining...)
		f.deletePod("p")
		shows("one", shownDrained...)
		f.create(newPod("q", "one", 0))
		shows("one", shownDraining...)
		f.deletePod("q")
		shows("one", shownDrained...)
		f.enter("m", stageComplete)
		shows("one")
	})
}
