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

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
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

func TestThePeakOfANodeNeverFalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m", atStage(maintenancev1alpha1.NodeMaintenanceStageCordon)),
			newPod("p", "one", 0), newPod("q", "one", 0), newPod("r", "one", 0))
		want := func(peak int32) {
			t.Helper()
			f.wait(statusPace)
			f.step("m")
			if got := f.nodeStatus("m", "one").PodsPeak; got != peak {
				t.Errorf("got podsPeak %d, want %d", got, peak)
			}
		}
		want(0)
		f.deletePod("r")
		f.enter("m", maintenancev1alpha1.NodeMaintenanceStageDrain)
		want(2)
		f.deletePod("p")
		want(2)
		f.create(newPod("s", "one", 0))
		f.create(newPod("t", "one", 0))
		want(3)
		f.deletePod("q")
		f.deletePod("s")
		want(3)
	})
}

// TestOmittedMessagesKeepWhatIsReleased: a new leader reads from the status which nodes the
// previous one was releasing.
func TestOmittedMessagesKeepWhatIsReleased(t *testing.T) {
	c, _, _ := newController(t)
	nm := newMaintenance("m")
	for _, message := range []string{
		"1 pod left", maintenancev1alpha1.DrainMessageReleasing, maintenancev1alpha1.DrainMessageNotReleased + "forbidden", MessageNodeGone,
	} {
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, maintenancev1alpha1.NodeMaintenanceNodeStatus{DrainMessage: message})
	}
	c.dropMessages(nm)
	var got []string
	for _, entry := range nm.Status.NodeStatuses {
		got = append(got, entry.DrainMessage)
	}
	if want := []string{"", maintenancev1alpha1.DrainMessageReleasing, maintenancev1alpha1.DrainMessageReleasing, ""}; !slices.Equal(got, want) {
		t.Errorf("got messages %q, want %q", got, want)
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
