// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestStops: what stops a rollout releases the units that no worker has claimed, and lets the
// others finish.
func TestStops(t *testing.T) {
	for name, test := range map[string]struct {
		stop func(*v1alpha1.NodeMaintenanceRolloutSpec)
		// want is the reason of Progressing, and withdrawn the annotation of the released unit; ""
		// if the unit goes on.
		want, withdrawn string
	}{
		"stage Complete": {
			stop: func(spec *v1alpha1.NodeMaintenanceRolloutSpec) { spec.Stage = v1alpha1.RolloutStageComplete },
			want: v1alpha1.ReasonStopped, withdrawn: next.WithdrawnStopped,
		},
		"the end of a window with Withdraw": {
			stop: func(spec *v1alpha1.NodeMaintenanceRolloutSpec) {
				spec.Windows = []v1alpha1.RolloutWindow{{Start: new(metav1.NewTime(time.Now().Add(-time.Hour))), Duration: metav1.Duration{Duration: time.Hour}}}
				spec.WhenClosed = v1alpha1.RolloutClosedWithdraw
			},
			want: v1alpha1.ReasonOutsideWindow, withdrawn: next.WithdrawnClosed,
		},
		"the end of a window with Finish": {
			stop: func(spec *v1alpha1.NodeMaintenanceRolloutSpec) {
				spec.Windows = []v1alpha1.RolloutWindow{{Start: new(metav1.NewTime(time.Now().Add(-time.Hour))), Duration: metav1.Duration{Duration: time.Hour}}}
				spec.WhenClosed = v1alpha1.RolloutClosedFinish
			},
			want: v1alpha1.ReasonOutsideWindow,
		},
		"a hold": {
			stop: func(spec *v1alpha1.NodeMaintenanceRolloutSpec) {
				spec.Holds = []v1alpha1.RolloutHold{{Name: "ceph", Stops: v1alpha1.RolloutHoldStarts}}
			},
			want: v1alpha1.ReasonHeld,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newNode("a"), newNode("b"), newNode("c"), newNode("d"), newRollout())
			w.scripts["b"], w.scripts["c"] = claimed, drainStuck
			w.start()
			w.untilPhase("b", v1alpha1.RolloutPhaseClaimed)
			w.untilPhase("c", v1alpha1.RolloutPhaseDraining)
			w.change(test.stop)
			w.untilReason(test.want)
			w.rest(5 * time.Minute)
			is.Equal(t, w.phase("b"), v1alpha1.RolloutPhaseClaimed)
			is.Equal(t, w.maintenance("kernel-c-1").Annotations[v1alpha1.AnnotationWithdrawn], test.withdrawn)
			is.Equal(t, w.phase("c") == "", test.withdrawn != "", "unit c has left the status")
			is.True(t, w.maintenance("kernel-d-1") == nil, "unit d has started")
			w.scripts["b"] = ""
			w.until("unit b is done", time.Second, func() bool { return w.phase("b") == "" })
			is.Equal(t, next.OutcomeOf(w.maintenance("kernel-b-1")), next.Done)
			ready := meta.IsStatusConditionTrue(w.rollout().Status.Conditions, v1alpha1.ConditionReady)
			is.Equal(t, ready, test.want == v1alpha1.ReasonStopped, "Ready")
		})
	}
}

// TestNodesOfAnOverRollout: no event of a node causes a sync of a rollout that is over.
func TestNodesOfAnOverRollout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Stage = v1alpha1.RolloutStageComplete }))
		w.start()
		w.untilReason(v1alpha1.ReasonStopped)
		w.rest(time.Minute)
		must.Get(w.host.CoreV1().Nodes().Create(t.Context(), newNode("b"), metav1.CreateOptions{}))(t)
		w.rest(5 * time.Minute)
		is.Equal(t, w.rollout().Status.Nodes.Total, 1, "nodes before the resync")
		w.until("the resync", time.Second, func() bool { return w.rollout().Status.Nodes.Total == 2 })
	})
}

func TestStopsDrainsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newNode("c"), newRollout())
		w.scripts["b"], w.scripts["c"] = claimed, drainStuck
		w.start()
		w.untilPhase("b", v1alpha1.RolloutPhaseClaimed)
		w.untilPhase("c", v1alpha1.RolloutPhaseDraining)
		until := metav1.NewTime(time.Now().Add(20 * time.Minute))
		w.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) {
			spec.Holds = []v1alpha1.RolloutHold{{Name: "ceph", Stops: v1alpha1.RolloutHoldDrains, Until: &until}}
		})
		w.until("the drain is paused", time.Second, func() bool { return w.maintenance("kernel-c-1").Spec.Paused })
		is.Equal(t, w.reason(), v1alpha1.ReasonHeld)
		is.Equal(t, w.phase("b"), v1alpha1.RolloutPhaseClaimed)
		// A hold may last for longer than the deadline of the drain.
		w.until("the hold is over", time.Second, func() bool { return !w.maintenance("kernel-c-1").Spec.Paused })
		late := time.Since(until.Time)
		is.True(t, late >= 0 && late < 10*time.Second, "resumed %s after the end of the hold", late)
		is.Equal(t, w.maintenance("kernel-c-1").Spec.Stage, v1alpha1.NodeMaintenanceStageDrain)
	})
}

// TestStopsDrainsPausesRacks: a worker has one node of a unit, and another one is drained.
func TestStopsDrainsPausesRacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rack := func(n *corev1.Node) { n.Labels["rack"] = "r1" }
		w := newWorld(t, newNode("a", rack), newNode("b", rack), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.UnitKey = "rack" }))
		w.scripts["a"], w.scripts["b"] = claimed, drainStuck
		w.start()
		w.until("a worker has node a", time.Second, func() bool {
			task, err := w.api.MaintenanceV1alpha1().NodeTasks().Get(t.Context(), "a", metav1.GetOptions{})
			return err == nil && task.Status.State == v1alpha1.NodeTaskClaimed
		})
		w.holdDrains()
		w.until("the drain is paused", time.Second, func() bool { return w.maintenance("kernel-r1-1").Spec.Paused })
	})
}

// TestStopsDrainsPausesOffers: the nodes of tasks in stage Cordon are offered without a drain.
func TestStopsDrainsPausesOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Template.Task.Stage = v1alpha1.NodeTaskStageCordon }))
		w.scripts["a"] = noOneClaims
		w.start()
		w.untilPhase("a", v1alpha1.RolloutPhaseOffered)
		w.holdDrains()
		w.until("the maintenance is paused", time.Second, func() bool { return w.maintenance("kernel-a-1").Spec.Paused })
		is.Equal(t, w.maintenance("kernel-a-1").Spec.Stage, v1alpha1.NodeMaintenanceStageCordon)
		w.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) { spec.Holds = nil })
		w.until("it is resumed", time.Second, func() bool { return !w.maintenance("kernel-a-1").Spec.Paused })
	})
}

// holdDrains adds a hold that stops drains.
func (w *world) holdDrains() {
	w.Helper()
	w.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) {
		spec.Holds = []v1alpha1.RolloutHold{{Name: "ceph", Stops: v1alpha1.RolloutHoldDrains}}
	})
}

func TestPauseOfUserStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout())
		w.scripts["a"] = drainStuck
		w.start()
		w.untilPhase("a", v1alpha1.RolloutPhaseDraining)
		nm := w.maintenance("kernel-a-1")
		nm.Spec.Paused, nm.Status.Pause = true, &v1alpha1.NodeMaintenancePause{By: "bob"}
		must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
		w.untilReason(v1alpha1.ReasonHeld)
		is.True(t, strings.Contains(w.message(), `kernel-a-1 is paused by user "bob"`), "got the message %q", w.message())
		w.rest(2 * time.Hour)
		is.True(t, w.maintenance("kernel-a-1").Spec.Paused, "the rollout has resumed what a user has paused")
	})
}

// TestEndWaitsForTheWorker: a user completes or deletes the maintenance of a unit whose node a
// worker has. The unit keeps its place until the worker is done.
func TestEndWaitsForTheWorker(t *testing.T) {
	for name, end := range map[string]func(*v1alpha1.NodeMaintenance){
		"completed": func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete },
		"deleted":   func(nm *v1alpha1.NodeMaintenance) { nm.DeletionTimestamp = new(metav1.Now()) },
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newNode("a"), newNode("b"), newRollout())
			w.scripts["a"] = claimed
			w.start()
			w.untilPhase("a", v1alpha1.RolloutPhaseClaimed)
			nm := w.maintenance("kernel-a-1")
			end(nm)
			must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
			w.rest(time.Hour)
			is.Equal(t, w.phase("a"), v1alpha1.RolloutPhaseClaimed)
			is.True(t, w.maintenance("kernel-b-1") == nil, "unit b has started")
			w.scripts["a"] = ""
			w.untilReason(v1alpha1.ReasonRolloutComplete)
			is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Done: 2})
		})
	}
}

// TestOtherMaintenanceIsNamed: a node is not offered while a user has a maintenance of their own.
func TestOtherMaintenanceIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout())
		w.scripts["a"] = drainStuck
		w.start()
		w.untilPhase("a", v1alpha1.RolloutPhaseDraining)
		byHand := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
		byHand.Spec.Stage, byHand.Spec.NodeSelector = v1alpha1.NodeMaintenanceStageDrain, build.Labelled("pool", "blue")
		must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().Create(t.Context(), byHand, metav1.CreateOptions{}))(t)
		w.until("it is named", time.Second, func() bool {
			current := w.rollout().Status.Current
			return len(current) == 1 && current[0].Message == "NodeMaintenance by-hand holds node a, too"
		})
	})
}

// TestLostRightIsNamed: a node is not offered while the requester may not assign the workers.
func TestLostRightIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.ProgressDeadlineSeconds = new(int32(604800)) }))
		w.scripts["a"] = drainStuck
		w.start()
		w.untilPhase("a", v1alpha1.RolloutPhaseDraining)
		w.refused.set("assign reboot.maintenance.haulout.dev", true)
		w.until("it is named", time.Second, func() bool {
			current := w.rollout().Status.Current
			return len(current) == 1 && current[0].Message == `user "ann" may not assign workers "reboot.maintenance.haulout.dev"`
		})
	})
}

// TestRightToOtherNodesIsNotNamed: the requester may not maintain a node that is in no unit.
func TestRightToOtherNodesIsNotNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.ProgressDeadlineSeconds = new(int32(604800)) }))
		w.scripts["a"] = drainStuck
		w.start()
		w.untilPhase("a", v1alpha1.RolloutPhaseDraining)
		for _, about := range []string{"delete ", "maintain ", "delete b", "maintain b"} {
			w.refused.set(about, true)
		}
		w.untilReason(v1alpha1.ReasonNotAuthorized)
		is.Equal(t, w.message(), `User "ann" may not maintain 1 of the nodes: b`)
		w.rest(time.Minute)
		is.Equal(t, w.rollout().Status.Current[0].Message, "")
	})
}

// TestTwoRolloutsOverTheSameNodes: limits count what the other rollout has taken.
func TestTwoRolloutsOverTheSameNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Name, r.UID = "runtime", "uid-runtime"
		})
		w := newWorld(t, newNode("a"), newNode("b"), newNode("c"), newNode("d"), newRollout(), second)
		most := 0
		w.played = func() { most = max(most, w.out()) }
		w.start()
		w.untilBothDone("runtime", 4)
		is.Equal(t, most, 2, "nodes that are out, at most")
	})
}

// wantsKernel makes a rollout want a version of the kernel.
func wantsKernel(version string) func(*v1alpha1.NodeMaintenanceRollout) {
	return func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Template.Task.DoneWhen = "node.status.nodeInfo.kernelVersion == '" + version + "'"
	}
}

// TestContradiction: two rollouts want different kernels, and none of them is complete. Both name
// the other one. When a user stops one, the other one continues.
func TestContradiction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout(wantsKernel("6.12")))
		w.works(map[string]string{"uid-kernel": "6.12", "uid-back": "6.11"})
		w.scripts["b"] = drainStuck
		w.start()
		w.until("the first one has done a node", time.Second, func() bool { return w.rollout().Status.Nodes.Done == 1 })
		back := newRollout(wantsKernel("6.11"), func(r *v1alpha1.NodeMaintenanceRollout) { r.Name, r.UID = "back", "uid-back" })
		must.Get(w.api.MaintenanceV1alpha1().NodeMaintenanceRollouts().Create(t.Context(), back, metav1.CreateOptions{}))(t)
		second := func(reason, message string) bool {
			r := must.Get(w.api.MaintenanceV1alpha1().NodeMaintenanceRollouts().Get(t.Context(), "back", metav1.GetOptions{}))(t)
			progressing := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing)
			return progressing != nil && progressing.Reason == reason && strings.Contains(progressing.Message, message)
		}
		w.until("the second one is held", time.Second, func() bool {
			return second(v1alpha1.ReasonHeld, "Rollout kernel wants the opposite for node a")
		})
		w.until("the first one names the second one", time.Second, func() bool {
			return w.message() == "Rollout back wants the opposite for node a; stop one of the two"
		})
		w.rest(time.Hour)
		is.True(t, w.maintenance("back-b-1") == nil, "the second node has made the trip too")
		w.scripts["b"] = ""
		w.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) { spec.Stage = v1alpha1.RolloutStageComplete })
		w.until("the second one is complete", time.Second, func() bool { return second(v1alpha1.ReasonRolloutComplete, "Every matching node is done") })
	})
}

// TestTheNextVersion: the rollout of the previous version is complete, and no user has stopped it.
func TestTheNextVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout(wantsKernel("6.12")))
		w.works(map[string]string{"uid-kernel": "6.12", "uid-next": "6.18"})
		w.start()
		w.untilReason(v1alpha1.ReasonRolloutComplete)
		next := newRollout(wantsKernel("6.18"), func(r *v1alpha1.NodeMaintenanceRollout) { r.Name, r.UID = "next", "uid-next" })
		must.Get(w.api.MaintenanceV1alpha1().NodeMaintenanceRollouts().Create(t.Context(), next, metav1.CreateOptions{}))(t)
		w.untilBothDone("next", 2)
		w.rest(time.Hour)
		is.Equal(t, w.reason(), v1alpha1.ReasonRolloutComplete)
		is.Equal(t, w.message(), "Every matching node is done")
		is.True(t, w.maintenance("kernel-a-2") == nil, "the first one has worked on the node again")
		updated := newNode("c")
		updated.Status.NodeInfo.KernelVersion = "6.18"
		must.Get(w.host.CoreV1().Nodes().Create(t.Context(), updated, metav1.CreateOptions{}))(t)
		w.untilReason(v1alpha1.ReasonHeld)
		w.rest(time.Hour)
		is.True(t, w.maintenance("kernel-c-1") == nil, "the first one has worked on a new node, which has the next version")
	})
}

// TestTheClockOpensWindowsAndBeginsHolds: a window opens, and later a hold begins, and nothing else
// happens.
func TestTheClockOpensWindowsAndBeginsHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		isPunctual := func(what string, at metav1.Time) {
			t.Helper()
			late := time.Since(at.Time)
			is.True(t, late >= 0 && late < 10*time.Second, "%s %s after its time", what, late)
		}
		// A resync comes after ten minutes.
		opens := metav1.NewTime(time.Now().Add(7 * time.Minute).Truncate(time.Second))
		w := newWorld(t, newNode("a"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Spec.Windows = []v1alpha1.RolloutWindow{{Start: &opens, Duration: metav1.Duration{Duration: time.Hour}}}
		}))
		w.scripts["a"] = drainStuck
		w.start()
		w.untilReason(v1alpha1.ReasonOutsideWindow)
		w.until("the unit starts", time.Second, func() bool { return w.maintenance("kernel-a-1") != nil })
		isPunctual("the unit starts", opens)
		begins := metav1.NewTime(time.Now().Add(5 * time.Minute).Truncate(time.Second))
		w.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) {
			spec.Holds = []v1alpha1.RolloutHold{{Name: "power", From: &begins, Stops: v1alpha1.RolloutHoldDrains}}
		})
		w.until("the drain is paused", time.Second, func() bool { return w.maintenance("kernel-a-1").Spec.Paused })
		isPunctual("the drain is paused", begins)
	})
}
