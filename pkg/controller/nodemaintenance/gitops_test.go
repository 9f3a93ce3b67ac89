// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/golden"
	"haulout.dev/haulout/pkg/testing/is"
)

// inEachState has a cluster for each state of a maintenance, which a function brings about for the
// maintenance m.
var inEachState = map[glance.StatusWord]struct {
	objects []runtime.Object
	reach   func(*fixture)
}{
	glance.StatusIdle:     {[]runtime.Object{newNode("one"), newMaintenance("m", createdAt(stageIdle))}, stepped},
	glance.StatusNoNodes:  {[]runtime.Object{newNode("one", inPool("green")), newMaintenance("m")}, stepped},
	glance.StatusCordoned: {[]runtime.Object{newNode("one"), newMaintenance("m", createdAt(stageCordon))}, stepped},
	glance.StatusCordoning: {
		[]runtime.Object{newNode("one"), newNode("two"), newMaintenance("m", createdAt(stageCordon))},
		func(f *fixture) {
			f.host.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return action.(clienttesting.PatchAction).GetName() == "two", nil, errors.New("the API server is slow")
			})
			for range 2 {
				f.syncOnce("m")
				f.authorized()
				_ = f.reconcileNodes() // fails for node two, as intended
				f.cached()
				f.wait(statusPace)
			}
		},
	},
	glance.StatusNotAuthorized: {
		[]runtime.Object{newNode("one"), newMaintenance("m"), newPod("p", "one", 0)},
		func(f *fixture) {
			f.rights.refused.Insert("one")
			f.step("m")
		},
	},
	glance.StatusNotCordoned: {
		[]runtime.Object{
			newNode("one"), newNode("two"), newMaintenance("m", planning(upTo(1000))),
			newPod("first", "one", 0), newPod("second", "one", 5000), newPod("other", "two", 0),
		},
		func(f *fixture) {
			f.step("m")
			for range nodestate.FightLimit + 1 {
				f.updateNode("two", func(node *corev1.Node) { node.Spec.Unschedulable = false })
				f.step("m")
			}
			f.deletePod("first")
			f.step("m")
		},
	},
	glance.StatusDraining: {[]runtime.Object{newNode("one"), newMaintenance("m"), newPod("p", "one", 0), newPod("q", "one", 0)}, stepped},
	glance.StatusWaiting: {
		[]runtime.Object{
			newNode("one"), newNode("two", inPool("green")), newPod("late", "one", 5000), newPod("p", "two", 0),
			newMaintenance("m", planning(upTo(1000))), newMaintenance("slower", planning(upTo(1000)), selecting("blue", "green")),
		},
		func(f *fixture) {
			for range 3 {
				f.step("slower")
				f.step("m")
				f.wait(statusPace)
			}
			f.step("m")
		},
	},
	glance.StatusBlocked: {
		[]runtime.Object{newNode("one"), newMaintenance("m"), newPod("p", "one", 0)},
		func(f *fixture) {
			f.step("m")
			for _, e := range f.evacuationList() {
				withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget)(e)
				if _, err := f.maintenance.MaintenanceV1alpha1().Evacuations(e.Namespace).Update(f.ctx, e, metav1.UpdateOptions{}); err != nil {
					f.t.Fatal(err)
				}
			}
			f.wait(time.Minute)
			f.step("m")
		},
	},
	glance.StatusStalled: {
		[]runtime.Object{newNode("one"), newMaintenance("m"), newPod("p", "one", 0)},
		func(f *fixture) {
			f.step("m")
			f.wait(DefaultStallTimeout)
			f.step("m")
		},
	},
	glance.StatusFailing: {
		[]runtime.Object{newNode("one"), newMaintenance("m"), newPod("p", "one", 0)},
		func(f *fixture) {
			f.step("m")
			f.wait(nodestate.SettleTime)
			f.deletePod("p")
			f.cached()
			if err := f.reconcileNodes(); err != nil {
				f.t.Fatal(err)
			}
			f.host.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("the API server is on fire")
			})
			for range 2 {
				f.cachedMaintenances()
				if err := f.timedSync(f.ctx, "m"); err == nil {
					f.t.Fatal("no error")
				}
				f.wait(loop.VisibleAfter)
			}
		},
	},
	glance.StatusPaused: {
		[]runtime.Object{newNode("one"), newPod("p", "one", 0), newMaintenance("m", func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Paused = true
			nm.Status.Pause = &v1alpha1.NodeMaintenancePause{By: "jane", Since: metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))}
		})},
		stepped,
	},
	glance.StatusDrained: {[]runtime.Object{newNode("one"), newMaintenance("m"), newPod("p", "one", 0)}, drained},
	glance.StatusReleasing: {
		[]runtime.Object{newNode("one"), newMaintenance("m"), newPod("p", "one", 0)},
		func(f *fixture) {
			drained(f)
			f.enter("m", stageComplete)
			f.syncOnce("m")
		},
	},
	glance.StatusComplete: {
		[]runtime.Object{newNode("one"), newMaintenance("m"), newPod("p", "one", 0)},
		func(f *fixture) {
			drained(f)
			f.enter("m", stageComplete)
			f.step("m")
		},
	},
}

func stepped(f *fixture) { f.step("m") }

func drained(f *fixture) {
	f.step("m")
	f.deletePod("p")
	f.wait(nodestate.SettleTime)
	f.step("m")
}

// TestEachStatusForGitOps writes a maintenance in each state, on which test/gitops runs the health
// checks of GitOps tools.
func TestEachStatusForGitOps(t *testing.T) {
	for word, state := range inEachState {
		bubble.Run(t, string(word), func(t *testing.T) {
			var objects []runtime.Object
			for _, object := range state.objects {
				objects = append(objects, object.DeepCopyObject())
			}
			f := newFixture(t, objects...)
			state.reach(f)
			nm := f.nm("m")
			is.Equal(t, glance.Status(nm), word, "the status")
			nm.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance"))
			nm.ResourceVersion, nm.ManagedFields = "1", nil
			golden.GitOps(t, "nodemaintenance-"+string(word), nm)
		})
	}
}
