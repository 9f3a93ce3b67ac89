// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
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
	"haulout.dev/haulout/pkg/controller/loop"
	nodecontroller "haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/host/rights"
)

func ownedBy(value string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationCordonedBy, withStorage(value))
	}
}

// withStorage adds the ID of our storage to a value of the form name/UID. It returns any other
// value unchanged.
func withStorage(value string) string {
	if !strings.HasPrefix(value, `{"`) || strings.Contains(value, "storage") {
		return value
	}
	return `{"storage":"` + testStorage + `","maintenances":` + value + `}`
}

func to[T any](v T) *T { return &v }

const (
	stageIdle     = v1alpha1.NodeMaintenanceStageIdle
	stageDrain    = v1alpha1.NodeMaintenanceStageDrain
	stageCordon   = v1alpha1.NodeMaintenanceStageCordon
	stageComplete = v1alpha1.NodeMaintenanceStageComplete
)

func TestCordonAndComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("foreign", cordoned), newNode("green", inPool("green")),
			newMaintenance("m", createdAt(stageCordon)))
		f.step("m")
		f.wantCordon("one", true, "m")
		f.wantCordon("foreign", true)
		f.wantCordon("green", false)
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNotRequested)
		if got := f.nm("m").Status.ObservedGeneration; got != 1 {
			t.Errorf("got observedGeneration %d, want 1", got)
		}

		f.enter("m", stageComplete)
		f.step("m")
		f.wantCordon("one", false)
		f.wantCordon("foreign", true)
		if got := f.nm("m").Finalizers; len(got) > 0 {
			t.Errorf("got finalizers %v, want none", got)
		}
	})
}

func TestIdleWritesToNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m", createdAt(stageIdle)))
		f.step("m")
		f.wantCordon("one", false)
		f.wantEvacuating()
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNotRequested)
		if got := f.nodeStatus("m", "one").PodsPendingEvacuation; got != 1 {
			t.Errorf("podsPendingEvacuation = %d, want 1", got)
		}
		if f.rights.asked > 0 {
			t.Error("the authorizer was asked for an Idle maintenance, which writes to no node")
		}
	})
}

func TestIdleToCompleteMakesSchedulable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("foreign", cordoned), newNode("refused", cordoned), newNode("held"),
			newMaintenance(
				"m", createdAt(stageIdle),
			), newMaintenance("holder", createdAt(stageCordon), func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields = []corev1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"held"}},
				}
			}))
		f.rights.refused.Insert("refused")
		f.step("holder")
		f.step("m")
		f.enter("m", stageComplete)
		f.step("m")
		f.wantCordon("foreign", false)
		f.wantCordon("refused", true)
		f.wantCordon("held", true, "holder")
		f.wantEvent(EventNotAuthorized)
	})
}

// TestCreatedAndImmediatelyDeleted deletes a maintenance before its first sync.
func TestCreatedAndImmediatelyDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("foreign", cordoned), newMaintenance("m"))
		f.enter("m", stageComplete)
		f.step("m")
		f.wantCordon("one", false)
		f.wantCordon("foreign", true)
		if got := f.nm("m").Finalizers; len(got) > 0 {
			t.Errorf("got finalizers %v, want none", got)
		}
	})
}

// TestStaleCacheDoesNotCordonAgain: the maintenance is completed between an event and the write
// that it causes.
func TestStaleCacheDoesNotCordonAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"))
		f.syncOnce("m")
		ended := newMaintenance("m")
		atStage(stageComplete)(ended)
		f.maintenance.PrependReactor("get", "nodemaintenances",
			func(clienttesting.Action) (bool, runtime.Object, error) { return true, ended, nil })
		f.authorized()
		if err := f.nodes.Sync(f.ctx, "one"); !loop.IsOnlyConflict(err) {
			t.Errorf("got error %v, want a conflict", err)
		}
		f.wantCordon("one", false)
	})
}

// TestMaintenanceThatHasNotBegunTakesTheCordonOver covers a second maintenance that its controller
// has not synced yet.
func TestMaintenanceThatHasNotBegunTakesTheCordonOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("a", createdAt(stageCordon)))
		f.step("a")
		f.create(newMaintenance("b", createdAt(stageCordon)))
		f.enter("a", stageComplete)
		f.step("a")
		f.wantCordon("one", true, "b")
		if finalizers := f.nm("a").Finalizers; len(finalizers) > 0 {
			t.Errorf("got finalizers %v of a, want none: it cordons no node", finalizers)
		}
		f.enter("b", stageComplete)
		f.step("b")
		f.wantCordon("one", false)
	})
}

func TestNodesThatStopMatchingAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("p", "one", 0), newPod("q", "two", 0),
			newMaintenance("m"))
		f.step("m")
		f.wantEvacuating("p", "q")
		f.updateNode("one", inPool("green"))
		f.step("m")
		// Neither a label that is removed and added again nor a change of another field of the
		// maintenance releases the node.
		nm := f.nm("m")
		nm.Spec.Reason = "kernel"
		nm.Generation++
		if _, err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.step("m")
		f.wantCordon("one", true, "m")
		f.wantEvacuating("p", "q")
		f.wait(selection.Lingering)
		f.step("m")
		f.wantCordon("one", false)
		f.wantCordon("two", true, "m")
		f.wantEvacuating("q")
		if got := len(f.nm("m").Status.NodeStatuses); got != 1 {
			t.Errorf("got %d node statuses, want 1", got)
		}
	})
}

func TestRecreatedNodeIsANewNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m", planning(upTo(1000))))
		f.step("m")
		f.deletePod("p")
		f.step("m")
		if err := f.host.CoreV1().Nodes().Delete(f.ctx, "one", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		again := newNode("one")
		again.UID = "again"
		f.create(again)
		f.create(newPod("q", "one", 5000))
		f.create(newPod("r", "one", 500))
		asked := f.rights.asked
		f.step("m")
		f.wantCordon("one", true, "m")
		// The first node had reached the last wave. This node is in its first wave.
		f.wantEvacuating("r")
		if f.rights.asked == asked {
			t.Error("the new node was not authorized")
		}
		if got := f.nodeStatus("m", "one").NodeRef.UID; got != "again" {
			t.Errorf("got the status of node %s", got)
		}
	})
}

func TestCordonIsRestoredUntilAnotherClientKeepsRemovingIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m", createdAt(stageCordon)))
		f.step("m")
		uncordon := func() {
			node := f.node("one")
			node.Spec.Unschedulable = false
			node.Labels["scaled"] = strconv.Itoa(rand.Int())
			if _, err := f.host.CoreV1().Nodes().Update(f.ctx, node,
				metav1.UpdateOptions{FieldManager: "autoscaler"}); err != nil {
				t.Fatal(err)
			}
		}
		for range nodestate.FightLimit {
			uncordon()
			f.step("m")
			f.wantCordon("one", true, "m")
			f.wantEvent(nodecontroller.EventCordonRestored)
			f.wait(time.Second)
		}
		uncordon()
		f.step("m")
		f.wantCordon("one", true, "m")
		if event := f.wantEvent(
			nodecontroller.EventCordonFight,
		); !strings.HasPrefix(event, corev1.EventTypeWarning) || !strings.Contains(event, "autoscaler") {
			t.Errorf("got event %q, want a warning that names the field manager", event)
		}
		// From now on the controller waits longer before it restores the cordon.
		uncordon()
		f.step("m")
		f.wantCordon("one", false, "m")
		f.wait(nodestate.FightPause)
		f.step("m")
		f.wantCordon("one", true, "m")
	})
}

func TestRefusedNodesAreNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("p", "one", 0), newPod("q", "two", 0),
			newMaintenance("m"))
		f.rights.refused.Insert("two")
		f.step("m")
		f.wantCordon("one", true, "m")
		f.wantCordon("two", false)
		f.wantEvacuating("p")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNotAuthorized)
		if got, want := f.nodeStatus("m",
			"two").DrainMessage, `Not drained: user "jane" may not maintain this node.`; got != want {
			t.Errorf("got message %q, want %q", got, want)
		}
		f.wantEvent(EventNotAuthorized)

		f.deletePod("p")
		f.wait(nodestate.SettleTime)
		f.step("m")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNotAuthorized)
	})
}

func TestRevokedRightUncordonsNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m", planning(upTo(10))))
		f.step("m")
		f.rights.refused.Insert("one")
		f.wait(rights.AnswerTTL + time.Second)
		f.create(newPod("q", "one", 0))
		f.step("m")
		f.wantCordon("one", true, "m")
		f.wantEvacuating("p")

		f.enter("m", stageComplete)
		f.step("m")
		f.wantCordon("one", false)
		f.wantEvacuating()
	})
}

func TestAuthorizerThatFailsStopsTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		f.rights.err = errors.New("not reachable")
		f.cached()
		f.syncOnce("m")
		f.authorized()
		if err := f.reconcileNodes(); !errors.Is(err, f.rights.err) {
			t.Errorf("got error %v, want that of the authorizer", err)
		}
		f.wantCordon("one", false)
		f.wantEvacuating()
		f.syncOnce("m")
		f.cached()
		f.wait(loop.VisibleAfter)
		f.syncOnce("m")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNodeNotCordoned)
		f.wantProgressing("m", metav1.ConditionFalse, v1alpha1.ReasonProgressSyncFailed)
	})
}

func TestConflictOnANodeIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m", createdAt(stageCordon)))
		failed := false
		f.host.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if failed {
				return false, nil, nil
			}
			failed = true
			if patch := string(
				action.(clienttesting.PatchAction).GetPatch(),
			); !strings.Contains(patch, `"resourceVersion"`) || !strings.Contains(patch, `"uid":"uid-one"`) {
				t.Errorf("got patch %s, want preconditions", patch)
			}
			return true, nil, apierrors.NewConflict(corev1.Resource("nodes"), "one", errors.New("changed"))
		})
		f.step("m")
		f.wantCordon("one", true, "m")
		if !failed {
			t.Error("the test met no conflict")
		}
	})
}

// TestInterruptedDeletionIsFinished covers an Idle maintenance and an API server that was killed
// during its deletion.
func TestInterruptedDeletionIsFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deleting := func(finalizers ...string) func(*v1alpha1.NodeMaintenance) {
			return func(nm *v1alpha1.NodeMaintenance) {
				createdAt(stageIdle)(nm)
				nm.DeletionTimestamp, nm.Finalizers = &metav1.Time{Time: time.Now()}, finalizers
			}
		}
		f := newFixture(t, newNode("one"), newMaintenance("left", deleting()),
			newMaintenance("held", deleting("example.com/held")))
		var deleted []string
		f.maintenance.PrependReactor("delete", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
			d := action.(clienttesting.DeleteActionImpl)
			if p := d.DeleteOptions.Preconditions; p == nil || p.UID == nil || *p.UID != types.UID("uid-"+d.Name) {
				t.Errorf("got preconditions %v, want the UID", p)
			}
			deleted = append(deleted, d.Name)
			return false, nil, nil
		})
		f.step("left")
		f.step("held")
		if len(deleted) > 0 {
			t.Errorf("the controller deleted %q while the API server may still do it", deleted)
		}
		f.wait(deletionPatience)
		f.step("left")
		f.step("held")
		if !slices.Equal(deleted, []string{"left"}) {
			t.Errorf("the controller deleted %q, want left", deleted)
		}
		if got := f.maintenanceList(); len(got) != 1 || got[0].Name != "held" {
			t.Errorf("got %d maintenances, want held", len(got))
		}
	})
}

func TestSweepReleasesNodesOfDeletedMaintenances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", cordoned, ownedBy(`{"gone":"1"}`)),
			newNode("two", inPool("other"), cordoned, ownedBy(`{"gone":"1","m":"uid-m"}`)),
			newNode("foreign", cordoned), newMaintenance("m", selecting("other"), createdAt(stageCordon)),
			newPod("p", "one", 0), ourEvacuation("p", "one"))
		f.sweep()
		f.wantCordon("one", false)
		f.wantCordon("two", true, "m")
		f.wantCordon("foreign", true)
		f.wantEvacuating()
	})
}

func TestSweepReadsTheMaintenanceBeforeItReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", cordoned, ownedBy(`{"m":"uid-m"}`)))
		f.maintenance.PrependReactor("get", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, newMaintenance("m"), nil
		})
		f.sweep()
		f.wantCordon("one", true, "m")
	})
}

// TestHeartbeatsDoNotStopTheCordon: a field of a node that the controller does not read changes.
// The controller still needs the latest resourceVersion of the node.
func TestHeartbeatsDoNotStopTheCordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", func(node *corev1.Node) { node.ResourceVersion = "1" }),
			newMaintenance("m", createdAt(stageCordon)))
		f.step("m")
		f.wantCordon("one", true, "m")
		f.updateNode("one", func(node *corev1.Node) { node.ResourceVersion, node.Spec.Unschedulable = "2", false })
		f.host.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if patch := string(action.(clienttesting.PatchAction).GetPatch()); !strings.Contains(patch, `"resourceVersion":"3"`) {
				t.Errorf("got patch %s, want the latest resourceVersion", patch)
			}
			return false, nil, nil
		})
		f.cached()
		f.updateNode("one", func(node *corev1.Node) { node.ResourceVersion = "3" })
		f.eventually("the selection has the latest version", func() bool { return f.selection.NodesOf("m")[0].ResourceVersion == "3" })
		f.step("m")
		f.wantCordon("one", true, "m")
	})
}

func TestNoEvacuationWhileANodeCannotBeCordoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("p", "one", 0), newMaintenance("m"))
		refused := errors.New("no")
		f.host.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.(clienttesting.PatchAction).GetName() == "two" {
				return true, nil, refused
			}
			return false, nil, nil
		})
		try := func() {
			f.cached()
			f.syncOnce("m")
			f.authorized()
			if err := f.reconcileNodes(); !errors.Is(err, refused) {
				t.Errorf("got error %v, want %v", err, refused)
			}
			f.wait(statusPace)
		}
		for range 4 {
			try()
		}
		f.wantCordon("one", true, "m")
		f.wantEvacuating()
		if got, want := f.nodeStatus("m", "one").DrainMessage, "Waiting for node two."; got != want {
			t.Errorf("got message %q, want %q", got, want)
		}
		f.wait(loop.VisibleAfter)
		for range 3 {
			try()
		}
		// The other nodes drain, and the message of the maintenance names this node.
		f.wantEvacuating("p")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNodeNotCordoned)
		if got, want := f.nodeStatus("m", "two").DrainMessage, "Not drained: cordon node two: no"; got != want {
			t.Errorf("got message %q, want %q", got, want)
		}
	})
}
