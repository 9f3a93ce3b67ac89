// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestCountersAreWrittenWithAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("p", "one", 0), newPod("q", "one", 0),
			newPod("r", "one", 0))
		f.step("m")
		f.later("m", statusPace)
		if got := f.nodeStatus("m", "one").PodsEvacuating; got != 3 {
			t.Fatalf("got podsEvacuating %d, want 3", got)
		}
		f.without("m", "p")
		if got := f.nodeStatus("m", "one").PodsEvacuating; got != 3 {
			t.Errorf("got podsEvacuating %d before the pause has ended, want 3", got)
		}
		f.later("m", statusPace)
		is.Equal(t, f.nodeStatus("m", "one").PodsEvacuating, 2, "podsEvacuating")
	})
}

// TestOmittedMessagesKeepReasons: a new leader reads from the status which nodes the previous one
// was releasing.
func TestOmittedMessagesKeepReasons(t *testing.T) {
	c, _, _ := newController(t)
	nm := newMaintenance("m")
	entry := maintenancev1alpha1.NodeMaintenanceNodeStatus{Reason: maintenancev1alpha1.NodeStatusReleasing, DrainMessage: "Being released"}
	nm.Status.NodeStatuses = []maintenancev1alpha1.NodeMaintenanceNodeStatus{entry}
	c.dropMessages(nm)
	if got := nm.Status.NodeStatuses[0]; got.DrainMessage != "" || !maintenancev1alpha1.IsBeingReleased(&got) {
		t.Errorf("got the entry %+v, want the reason alone", got)
	}
}

func TestStatusThatIsTooLargeHasNoMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		refuse := func(always bool) clienttesting.ReactionFunc {
			return func(action clienttesting.Action) (bool, runtime.Object, error) {
				nm := action.(clienttesting.UpdateAction).GetObject().(*maintenancev1alpha1.NodeMaintenance)
				if len(nm.Status.NodeStatuses) == 0 {
					return false, nil, nil
				}
				entry := &nm.Status.NodeStatuses[0]
				isNew := entry.PodsEvacuating+entry.PodsPendingEvacuation == 0
				if always && isNew || entry.DrainMessage != "" {
					return true, nil, apierrors.NewGenericServerResponse(http.StatusRequestEntityTooLarge, "put",
						maintenancev1alpha1.Resource("nodemaintenances"), "m", "", 0, false)
				}
				return false, nil, nil
			}
		}
		f.maintenance.PrependReactor("update", "nodemaintenances", refuse(false))
		f.step("m")
		f.wantEvacuating("p")
		conditions := f.nm("m").Status.Conditions
		if i := slices.IndexFunc(conditions, func(c metav1.Condition) bool {
			return c.Type == maintenancev1alpha1.ConditionNodeMessagesOmitted && c.Status == metav1.ConditionTrue
		}); i < 0 {
			t.Errorf("got conditions %v, want one about the omitted messages", conditions)
		}

		f.maintenance.PrependReactor("update", "nodemaintenances", refuse(true))
		f.deletePod("p")
		for range 2 {
			f.wait(loop.VisibleAfter)
			f.cached()
			if err := f.Controller.timedSync(f.ctx, "m"); !apierrors.IsRequestEntityTooLargeError(err) {
				t.Errorf("got error %v, want that the status is too large", err)
			}
		}
		f.wantEvent(EventStatusTooLarge)
		// The stored status stays, and a condition tells why it is not updated.
		f.wantProgressing("m", metav1.ConditionFalse, maintenancev1alpha1.ReasonProgressSyncFailed)
	})
}

// TestDeletedNodesAreDroppedFromTheStatus has a maintenance that any new node joins, and deletes a
// node as an autoscaler does every hour.
func TestDeletedNodesAreDroppedFromTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		joining := func(nm *maintenancev1alpha1.NodeMaintenance) {
			nm.Spec.NewNodes = maintenancev1alpha1.NewNodesPolicyJoin
		}
		f := newFixture(t, newNode("one"), newNode("two"), newMaintenance("m", joining))
		f.step("m")
		must.Do(t, f.host.CoreV1().Nodes().Delete(f.ctx, "one", metav1.DeleteOptions{}))
		f.later("m", statusPace)
		var names []string
		for _, node := range f.nm("m").Status.NodeStatuses {
			names = append(names, node.NodeRef.Name)
		}
		is.True(t, slices.Equal(names, []string{"two"}), "got nodes %q in the status, want node two", names)
	})
}

// TestNewLeaderGoesOnReleasing narrows the selector, and starts a new leader before the deselected
// nodes are released.
func TestNewLeaderGoesOnReleasing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two", inPool("green")), newPod("p", "one", 0),
			newMaintenance("m", selecting("blue", "green")))
		f.step("m")
		f.later("m", time.Minute)
		f.wantEvacuating("p")

		nm := f.nm("m")
		selecting("green")(nm)
		nm.Generation++
		must.Get(f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm, metav1.UpdateOptions{}))(t)
		f.cached()
		f.syncOnce("m")
		f.cached()
		if got := f.nodeStatus("m", "one"); !maintenancev1alpha1.IsBeingReleased(&got) {
			t.Fatalf("got status %+v of a node that the selector leaves out, want it to be released", got)
		}
		f.restart()
		if got := f.selection.NodesOf("m"); len(got) != 1 || got[0].Name != "two" {
			t.Errorf("the new leader selects %d nodes, want node two", len(got))
		}
		f.step("m")
		f.wantEvacuating()
		f.wantCordon("one", false)
	})
}

// TestPodsWhoseEvacuatorIsTurnedOffAreKept turns the evacuator of DaemonSet pods off in the middle
// of a drain.
func TestPodsWhoseEvacuatorIsTurnedOffAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("logger", "one", 0, ofDaemonSet), newMaintenance("m"))
		f.turnOn(maintenancev1alpha1.EvacuatorClassDaemonSet)
		f.step("m")
		f.later("m", time.Minute)
		f.wantEvacuating("logger")
		f.evacuatorsOn.Clear()
		f.restart()
		f.step("m")
		f.wantEvacuating()
	})
}
