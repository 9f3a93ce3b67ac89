// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
)

func TestCountersAreWrittenWithAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("p", "one", 0), newPod("q", "one", 0),
			newPod("r", "one", 0))
		f.step("m")
		f.wait(statusPace)
		f.step("m")
		if got := f.nodeStatus("m", "one").PodsEvacuating; got != 3 {
			t.Fatalf("got podsEvacuating %d, want 3", got)
		}
		f.deletePod("p")
		f.step("m")
		if got := f.nodeStatus("m", "one").PodsEvacuating; got != 3 {
			t.Errorf("got podsEvacuating %d before the pause has ended, want 3", got)
		}
		f.wait(statusPace)
		f.step("m")
		if got := f.nodeStatus("m", "one").PodsEvacuating; got != 2 {
			t.Errorf("got podsEvacuating %d, want 2", got)
		}
	})
}

// TestOmittedMessagesKeepReasons: a new leader reads from the status which nodes the previous
// leader was releasing.
func TestOmittedMessagesKeepReasons(t *testing.T) {
	c, _, _ := newController(t)
	nm := newMaintenance("m")
	entry := v1alpha1.NodeMaintenanceNodeStatus{Reason: v1alpha1.NodeStatusReleasing, DrainMessage: "Being released"}
	nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{entry}
	c.dropMessages(nm)
	if got := nm.Status.NodeStatuses[0]; got.DrainMessage != "" || !v1alpha1.IsBeingReleased(&got) {
		t.Errorf("got the entry %+v, want the reason alone", got)
	}
}

func TestStatusThatIsTooLargeHasNoMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		refuse := func(always bool) clienttesting.ReactionFunc {
			return func(action clienttesting.Action) (bool, runtime.Object, error) {
				nm := action.(clienttesting.UpdateAction).GetObject().(*v1alpha1.NodeMaintenance)
				if len(nm.Status.NodeStatuses) == 0 {
					return false, nil, nil
				}
				entry := &nm.Status.NodeStatuses[0]
				isNew := entry.PodsEvacuating+entry.PodsPendingEvacuation == 0
				if always && isNew || entry.DrainMessage != "" {
					return true, nil, apierrors.NewGenericServerResponse(http.StatusRequestEntityTooLarge, "put",
						v1alpha1.Resource("nodemaintenances"), "m", "", 0, false)
				}
				return false, nil, nil
			}
		}
		f.maintenance.PrependReactor("update", "nodemaintenances", refuse(false))
		f.step("m")
		f.wantEvacuating("p")
		conditions := f.nm("m").Status.Conditions
		if i := slices.IndexFunc(conditions, func(c metav1.Condition) bool {
			return c.Type == v1alpha1.ConditionNodeMessagesOmitted && c.Status == metav1.ConditionTrue
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
		// The stored status stays. The condition Progressing has the reason why it is not updated.
		f.wantProgressing("m", metav1.ConditionFalse, v1alpha1.ReasonProgressSyncFailed)
	})
}
