// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestRolloutTakesAllNodes(t *testing.T) {
	plan := []v1alpha1.DrainPlanEntry{{PodPriority: v1alpha1.MaxPodPriority, Behavior: new(v1alpha1.DrainBehaviorWaitCompleted), WaitSeconds: new(int32(60))}}
	planned := func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Template.DrainPlan = plan }
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newNode("c"), newNode("d"), newNode("other", func(n *corev1.Node) { n.Labels = nil }), newRollout(planned))
		most := 0
		w.played = func() { most = max(most, len(w.rollout().Status.Current)) }
		w.start()
		w.untilReason(v1alpha1.ReasonRolloutComplete)
		is.Equal(t, most, 2, "units at the same time, at most")
		is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 4, Done: 4})
		is.Equal(t, len(w.maintenances()), 4, "maintenances")
		first := w.maintenance("kernel-a-1")
		is.Equal(t, first.Labels[v1alpha1.LabelRollout], "kernel")
		is.Equal(t, first.Annotations[v1alpha1.AnnotationRolloutUnit], "a")
		is.Equal(t, metav1.GetControllerOf(first).UID, types.UID("uid-kernel"))
		is.Equal(t, first.Spec.RequestedBy.Username, "ann")
		is.Equal(t, first.Spec.Reason, "kernel 6.12")
		is.Equal(t, first.Spec.Task.Worker, "reboot.maintenance.haulout.dev")
		is.True(t, equality.Semantic.DeepEqual(first.Spec.DrainPlan, plan), "got the drain plan %+v", first.Spec.DrainPlan)
		is.Equal(t, len(w.rollout().Status.Current), 0, "units in the status")
		for _, conditionType := range []string{v1alpha1.ConditionComplete, v1alpha1.ConditionReady} {
			is.True(t, meta.IsStatusConditionTrue(w.rollout().Status.Conditions, conditionType), "%s is not True", conditionType)
		}
		told := w.told()
		for _, want := range []string{
			"UnitStarted: Unit a starts: 1 node (a)", "UnitDone: Unit a is done, and in service again: 1 node (a)", "RolloutComplete: Every matching node is done",
		} {
			is.True(t, slices.Contains(told, want), "no event %q in %q", want, told)
		}
		// A rollout at rest writes nothing.
		writes := len(w.api.Actions())
		w.rest(time.Hour)
		for _, action := range w.api.Actions()[writes:] {
			is.True(t, action.GetVerb() == "list" || action.GetVerb() == "get", "%s %s of a complete rollout", action.GetVerb(), action.GetResource().Resource)
		}
	})
}

// TestWritesPerTrip counts what the controller writes for each node, when each step of a trip takes
// a second. Units in work at the same time share the writes of phases and counters.
func TestWritesPerTrip(t *testing.T) {
	for limit, most := range map[int32]int{1: 6, 10: 4} {
		bubble.Run(t, fmt.Sprint("limit ", limit), func(t *testing.T) {
			const nodes = 40
			objects := []runtime.Object{newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
				r.Spec.Limits = []v1alpha1.RolloutLimit{{MaxUnavailable: new(intstr.FromInt32(limit))}}
			})}
			for i := range nodes {
				objects = append(objects, newNode(fmt.Sprintf("n%02d", i)))
			}
			w := newWorld(t, objects...)
			w.start()
			w.untilReason(v1alpha1.ReasonRolloutComplete)
			writes := 0
			for _, action := range w.api.Actions() {
				isOurs := action.GetVerb() == "create" && action.GetResource().Resource == "nodemaintenances" ||
					action.GetVerb() == "patch" || action.GetSubresource() == "status"
				if isOurs {
					writes++
				}
			}
			t.Logf("%d writes for %d nodes", writes, nodes)
			is.True(t, writes <= most*nodes, "%d writes for %d nodes, allowed: %d for each", writes, nodes, most)
		})
	}
}

// TestFirstUnitIsAlone: the first unit shows whether the work succeeds. When it fails, one node is
// disturbed, and not all.
func TestFirstUnitIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout())
		w.scripts["a"] = workFails
		w.start()
		w.untilReason(v1alpha1.ReasonHalted)
		w.rest(time.Hour)
		is.Equal(t, len(w.maintenances()), 1, "maintenances")
		is.Equal(t, w.phase("a"), v1alpha1.RolloutPhaseFailed)
		is.Equal(t, w.rollout().Status.Current[0].Message, "WorkerFailed: no space left")
		is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Failed: 1, Waiting: 1})
		is.True(t, meta.IsStatusConditionTrue(w.rollout().Status.Conditions, v1alpha1.ConditionStalled), "not Stalled: %s", w.message())
		told := strings.Join(w.told(), "\n")
		is.True(t, strings.Contains(told, "UnitFailed: Unit a has failed: WorkerFailed: no space left"), "no event about the unit:\n%s", told)
		is.True(t, strings.Contains(told, "RolloutHalted: 1 unit failed"), "no event about the rollout:\n%s", told)
		// A user repairs the node and deletes the task.
		w.scripts["a"] = ""
		must.Do(t, w.api.MaintenanceV1alpha1().NodeTasks().Delete(t.Context(), "a", metav1.DeleteOptions{}))
		w.untilReason(v1alpha1.ReasonRolloutComplete)
		is.Equal(t, len(w.maintenances()), 2, "maintenances")
	})
}

// TestAnnouncementNeedsTheDecidedRollout: a user adds a hold after the decision, and before the
// write that announces the unit.
func TestAnnouncementNeedsTheDecidedRollout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout())
		var held atomic.Bool
		w.api.PrependReactor("update", "nodemaintenancerollouts", func(action clienttesting.Action) (bool, runtime.Object, error) {
			sent := action.(clienttesting.UpdateAction).GetObject().(*v1alpha1.NodeMaintenanceRollout)
			if held.Load() || len(sent.Status.Current) == 0 {
				return false, nil, nil
			}
			held.Store(true)
			stored := must.Get(w.api.Tracker().Get(action.GetResource(), "", "kernel"))(t).(*v1alpha1.NodeMaintenanceRollout).DeepCopy()
			stored.Spec.Holds = []v1alpha1.RolloutHold{{Name: "ceph", By: "bob", Reason: "rebuild", Stops: v1alpha1.RolloutHoldStarts}}
			stored.Generation++
			stored.ResourceVersion = "900"
			must.Do(t, w.api.Tracker().Update(action.GetResource(), stored, ""))
			return false, nil, nil // it is refused if it has the version of the decision
		})
		w.start()
		w.untilReason(v1alpha1.ReasonHeld)
		w.rest(time.Hour)
		is.Equal(t, len(w.maintenances()), 0, "maintenances")
		is.True(t, strings.Contains(w.message(), `Hold ceph by user "bob": rebuild`), "got the message %q", w.message())
		is.True(t, strings.Contains(strings.Join(w.told(), "\n"), `RolloutHeld: Hold ceph by user "bob": rebuild`), "no event")
		w.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) { spec.Holds = nil })
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

// TestAnnouncedUnitSurvivesTheLeader: a leader announces a unit and ends before it creates the
// maintenance, or before it sees the answer.
func TestAnnouncedUnitSurvivesTheLeader(t *testing.T) {
	for name, stores := range map[string]bool{"the maintenance does not exist": false, "the maintenance exists": true} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newNode("a"), newRollout())
			var broken atomic.Bool
			broken.Store(true)
			w.api.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if !broken.Load() {
					return false, nil, nil
				}
				if stores {
					nm := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance).DeepCopy()
					nm.UID, nm.ResourceVersion, nm.Generation = "uid-first", "7", 1
					err := w.api.Tracker().Create(action.GetResource(), nm, "")
					is.True(t, err == nil || apierrors.IsAlreadyExists(err), "create: %v", err)
				}
				return true, nil, errors.New("connection lost")
			})
			w.start()
			w.until("the unit is announced", 0, func() bool { return w.phase("a") == v1alpha1.RolloutPhaseStarting })
			w.stop()
			broken.Store(false)
			w.start()
			w.untilReason(v1alpha1.ReasonRolloutComplete)
			is.Equal(t, len(w.maintenances()), 1, "maintenances")
			is.Equal(t, w.maintenances()[0].Name, "kernel-a-1")
		})
	}
}

// TestUnitStartsOnce: the cache gets the maintenance of an announced unit while a sync reads it.
func TestUnitStartsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout())
		w.lateIndex = true
		w.start()
		w.untilReason(v1alpha1.ReasonRolloutComplete)
		is.Equal(t, len(w.maintenances()), 2, "maintenances")
	})
}

// TestAnnouncedUnitIsGivenUp: the unit may no longer start when the next leader finds it announced
// without a maintenance.
func TestAnnouncedUnitIsGivenUp(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*v1alpha1.NodeMaintenanceRollout, *corev1.Node)
		refused string
		want    string
	}{
		"a hold": {change: func(r *v1alpha1.NodeMaintenanceRollout, _ *corev1.Node) {
			r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "ceph", Stops: v1alpha1.RolloutHoldStarts}}
		}, want: v1alpha1.ReasonHeld},
		"a user has cordoned the node": {change: func(_ *v1alpha1.NodeMaintenanceRollout, node *corev1.Node) {
			node.Spec.Unschedulable = true
		}, want: v1alpha1.ReasonNodesSkipped},
		"the node meets doneWhen": {change: func(r *v1alpha1.NodeMaintenanceRollout, _ *corev1.Node) {
			r.Spec.Template.Task.DoneWhen = "node.status.nodeInfo.kernelVersion == '6.11.0'"
		}, want: v1alpha1.ReasonRolloutComplete},
		"the right is revoked": {refused: "assign reboot.maintenance.haulout.dev", want: v1alpha1.ReasonNotAuthorized},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			node, r := newNode("a"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
				r.Status.Current = []v1alpha1.RolloutUnit{{
					Unit: "a", Maintenance: "kernel-a-1", Nodes: []v1alpha1.NodeReference{{Name: "a", UID: "uid-a"}}, Phase: v1alpha1.RolloutPhaseStarting,
				}}
			})
			if test.change != nil {
				test.change(r, node)
			}
			w := newWorld(t, node, r)
			w.refused.set(test.refused, true)
			w.start()
			w.untilReason(test.want)
			w.rest(2 * time.Minute)
			is.Equal(t, len(w.rollout().Status.Current), 0, "units in the status")
			is.Equal(t, len(w.maintenances()), 0, "maintenances")
		})
	}
}

// TestNodesAreReadFromTheAPI: the cache does not show yet that another user has cordoned the node.
func TestNodesAreReadFromTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout())
		var lagging atomic.Bool
		lagging.Store(true)
		w.host.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return lagging.Load(), newNode("a", func(n *corev1.Node) { n.Spec.Unschedulable = true }), nil
		})
		w.start()
		w.rest(30 * time.Second)
		is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 1, Waiting: 1})
		is.Equal(t, w.reason(), "", "the reason before any unit has started")
		w.untilReason(v1alpha1.ReasonProgressSyncFailed)
		is.True(t, strings.HasSuffix(w.message(), ": unit a does not start: the caches are older than the API"), "got the message %q", w.message())
		w.rest(5 * time.Minute)
		is.Equal(t, len(w.maintenances()), 0, "maintenances while the API and the cache differ")
		lagging.Store(false)
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

// TestUnreadableNode: an error that lasts is named, and other units end meanwhile.
func TestUnreadableNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newNode("c"), newNode("d"), newRollout())
		w.scripts["c"] = claimed
		w.host.PrependReactor("get", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return action.(clienttesting.GetAction).GetName() == "d", nil, errors.New("etcd has lost it")
		})
		w.start()
		w.until("the error is named", time.Second, func() bool {
			return strings.Contains(w.message(), "; requests fail since 2000-01-01T") && strings.HasSuffix(w.message(), ": read node d: etcd has lost it")
		})
		w.scripts["c"] = ""
		cleared := time.Now()
		w.until("unit c is done", time.Second, func() bool { return w.rollout().Status.Nodes.Done == 3 })
		is.True(t, time.Since(cleared) < time.Minute, "unit c was done after %s", time.Since(cleared))
	})
}

// TestOthersStartBeforeAFailedStart: the unit that starts first never does. It keeps no other unit
// from its place, and starts when it can.
func TestOthersStartBeforeAFailedStart(t *testing.T) {
	for name, failing := range map[string]func(w *world, broken *atomic.Bool){
		"its node cannot be read": func(w *world, broken *atomic.Bool) {
			w.host.PrependReactor("get", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return broken.Load() && action.(clienttesting.GetAction).GetName() == "a", nil, errors.New("etcd has lost it")
			})
		},
		"its maintenance is refused": func(w *world, broken *atomic.Bool) {
			w.api.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
				nm := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance)
				return broken.Load() && nm.Name == "kernel-a-1", nil, apierrors.NewForbidden(v1alpha1.Resource("nodemaintenances"), nm.Name, errors.New("a policy refuses it"))
			})
		},
		"the caches are older than the API": func(w *world, broken *atomic.Bool) {
			w.host.PrependReactor("get", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return broken.Load() && action.(clienttesting.GetAction).GetName() == "a", newNode("a", func(n *corev1.Node) { n.Spec.Unschedulable = true }), nil
			})
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newNode("a"), newNode("b"), newNode("c"), newNode("d"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
				r.Spec.Limits[0].MaxUnavailable = new(intstr.FromInt32(1))
			}))
			var broken atomic.Bool
			broken.Store(true)
			failing(w, &broken)
			w.start()
			w.until("the others are done", time.Second, func() bool { return w.rollout().Status.Nodes.Done == 3 })
			broken.Store(false)
			w.untilReason(v1alpha1.ReasonRolloutComplete)
		})
	}
}

// TestFailedStart: no node can be read. The rollout says that no unit starts, and asks less often.
func TestFailedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout())
		var broken atomic.Bool
		broken.Store(true)
		var reads atomic.Int32
		w.host.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			reads.Add(1)
			return broken.Load(), nil, errors.New("forbidden")
		})
		w.start()
		w.untilReason(v1alpha1.ReasonProgressSyncFailed)
		is.True(t, strings.HasPrefix(w.message(), "The server cannot start a unit; requests fail since 2000-01-01T"), "got the message %q", w.message())
		is.True(t, meta.IsStatusConditionFalse(w.rollout().Status.Conditions, v1alpha1.ConditionProgressing), "Progressing is not False")
		is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 1, Waiting: 1})
		// After five minutes, the answer of the authorizer expires.
		before, stored := reads.Load(), w.rollout()
		w.rest(3 * time.Minute)
		is.True(t, reads.Load()-before <= 4, "%d reads in three minutes", reads.Load()-before)
		is.Equal(t, w.rollout().ResourceVersion, stored.ResourceVersion)
		broken.Store(false)
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

func TestUnreadableExpression(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Template.Task.DoneWhen = "node.(" }))
		w.start()
		w.untilReason(v1alpha1.ReasonProgressSyncFailed)
		is.True(t, strings.HasPrefix(w.message(), "The server cannot decide about the rollout; requests fail since 2000-01-01T"), "got the message %q", w.message())
	})
}

// TestFirstStartNeedsAllAnnouncements: the cache of a new leader does not have yet what the former
// leader has announced for a rollout. The unit that does not start therefore is still the first.
func TestFirstStartNeedsAllAnnouncements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "ceph", Stops: v1alpha1.RolloutHoldStarts}}
		}))
		w.start()
		w.untilReason(v1alpha1.ReasonHeld)
		var lists atomic.Int32
		w.api.PrependReactor("list", "nodemaintenancerollouts", func(clienttesting.Action) (bool, runtime.Object, error) {
			newer := newRollout(func(r *v1alpha1.NodeMaintenanceRollout) { r.ResourceVersion = "999999" })
			return lists.Add(1) == 1, &v1alpha1.NodeMaintenanceRolloutList{Items: []v1alpha1.NodeMaintenanceRollout{*newer}}, nil
		})
		w.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) { spec.Holds = nil })
		w.until("the rollouts are listed", 0, func() bool { return lists.Load() == 1 })
		is.Equal(t, len(w.maintenances()), 0, "maintenances while the cache lags")
		w.until("a unit starts", time.Second, func() bool { return len(w.maintenances()) > 0 })
		is.Equal(t, w.maintenances()[0].Name, "kernel-a-1")
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

func TestNodesAtTheGoalAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b", func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "6.12.3" }),
			newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
				r.Spec.Template.Task.DoneWhen = "node.status.nodeInfo.kernelVersion.startsWith('6.12.')"
			}))
		w.start()
		w.untilReason(v1alpha1.ReasonRolloutComplete)
		is.Equal(t, len(w.maintenances()), 1, "maintenances")
		is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Done: 2})
		// A new node that is not at the goal joins.
		must.Get(w.host.CoreV1().Nodes().Create(t.Context(), newNode("c"), metav1.CreateOptions{}))(t)
		w.until("the new node is done", time.Second, func() bool { return w.rollout().Status.Nodes.Done == 3 })
	})
}

func TestBlockedUnitIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout())
		w.scripts["a"] = drainStuck
		w.played = func() {
			if nm := w.maintenance("kernel-a-1"); nm != nil && !v1alpha1.IsEnding(nm) {
				meta.SetStatusCondition(&nm.Status.Conditions, metav1.Condition{
					Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDrainBlocked, Message: "Pod shop/db-0 stays",
				})
				must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
			}
		}
		w.start()
		w.untilReason(v1alpha1.ReasonNodesBlocked)
		is.Equal(t, w.maintenance("kernel-a-1").Annotations[v1alpha1.AnnotationWithdrawn], next.WithdrawnBlocked)
		is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 2, Done: 1, Blocked: 1})
		told := strings.Join(w.told(), "\n")
		is.True(t, strings.Contains(told, "UnitBlocked: Unit a was not ready for a worker in time: "+v1alpha1.ReasonDrainBlocked+": Pod shop/db-0 stays. The unit"), "no event:\n%s", told)
		withdrawn := v1alpha1.StageEntered(w.maintenance("kernel-a-1"), v1alpha1.NodeMaintenanceStageComplete)
		w.until("the second attempt", time.Second, func() bool { return w.maintenance("kernel-a-2") != nil })
		waited := time.Since(withdrawn)
		is.True(t, waited >= 10*time.Minute && waited < 11*time.Minute, "the second attempt began after %s", waited)
		w.scripts["a"] = ""
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

// TestUnitIsTriedAgainAfterItsNodesLeft removes the label of a node during its drain for a moment.
func TestUnitIsTriedAgainAfterItsNodesLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout())
		w.scripts["a"] = drainStuck
		w.start()
		w.untilPhase("a", v1alpha1.RolloutPhaseDraining)
		w.relabel("a", "green")
		w.until("the unit is withdrawn", time.Second, func() bool { return v1alpha1.IsDone(w.maintenance("kernel-a-1")) })
		w.relabel("a", "blue")
		w.untilReason(v1alpha1.ReasonNodesBlocked)
		is.Equal(t, w.maintenance("kernel-a-1").Annotations[v1alpha1.AnnotationWithdrawn], next.WithdrawnGone)
		told := strings.Join(w.told(), "\n")
		is.True(t, strings.Contains(told, "UnitBlocked: The nodes of unit a were deleted, or left the rollout."), "no event:\n%s", told)
		w.scripts["a"] = ""
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

func TestReleasedUnitIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout())
		w.scripts["a"] = drainStuck
		w.start()
		w.untilPhase("a", v1alpha1.RolloutPhaseDraining)
		nm := w.maintenance("kernel-a-1")
		nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
		must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
		w.untilReason(v1alpha1.ReasonNodesSkipped)
		w.rest(2 * time.Hour)
		is.Equal(t, w.rollout().Status.Nodes, v1alpha1.RolloutNodes{Total: 1, Skipped: 1})
		told := strings.Join(w.told(), "\n")
		is.True(t, strings.Contains(told, "UnitReleasedByUser: A user has completed NodeMaintenance kernel-a-1"), "no event:\n%s", told)
		w.scripts["a"] = ""
		nm = w.maintenance("kernel-a-1")
		nm.Annotations[v1alpha1.AnnotationRetried] = "true"
		must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

// TestNameOfAnotherUser: a user has created a maintenance with the name of the first attempt.
func TestNameOfAnotherUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newRollout(), &v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: "kernel-a-1"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.NodeMaintenanceStageIdle},
		})
		w.start()
		w.untilReason(v1alpha1.ReasonRolloutComplete)
		is.True(t, w.maintenance("kernel-a-2") != nil, "got no maintenance kernel-a-2")
	})
}

func TestRights(t *testing.T) {
	for name, test := range map[string]struct{ refused, want string }{
		"of the class of workers": {"assign reboot.maintenance.haulout.dev", `User "ann" may not assign workers "reboot.maintenance.haulout.dev"`},
		"to all nodes":            {"delete ", `User "ann" may not maintain 2 of the nodes: a, b`},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newNode("a"), newNode("b"), newRollout())
			w.refused.set(test.refused, true)
			for _, also := range []string{"maintain ", "delete a", "delete b", "maintain a", "maintain b"} {
				w.refused.set(also, test.refused == "delete ")
			}
			w.start()
			w.untilReason(v1alpha1.ReasonNotAuthorized)
			w.rest(time.Minute)
			is.Equal(t, len(w.maintenances()), 0, "maintenances")
			is.Equal(t, w.message(), test.want)
		})
	}
}

func TestRacksLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(rack string) func(*corev1.Node) {
			return func(n *corev1.Node) { n.Labels["example.com/rack"] = rack }
		}
		w := newWorld(t, newNode("a", in("Rack_1")), newNode("b", in("Rack_1")), newNode("c", in("A2")), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Spec.UnitKey, r.Spec.SoakSeconds = "example.com/rack", 300
		}))
		w.scripts["b"] = claimed
		w.start()
		w.untilPhase("A2", v1alpha1.RolloutPhaseSoaking)
		soaks := w.rollout().Status.Current[0].Since.Time
		w.until("the second unit has started", time.Second, func() bool { return w.phase("Rack_1") != "" })
		is.True(t, time.Since(soaks) >= 5*time.Minute, "the second unit has started %s after the first one began to soak", time.Since(soaks))
		w.untilPhase("Rack_1", v1alpha1.RolloutPhaseClaimed)
		w.rest(time.Hour)
		is.Equal(t, w.rollout().Status.Current[0].Message, "node b: worker-1")
		is.True(t, must.Get(w.host.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{}))(t).Spec.Unschedulable, "node a returned without node b")
		w.scripts["b"] = ""
		w.untilReason(v1alpha1.ReasonRolloutComplete)
		is.Equal(t, len(w.maintenances()), 2, "maintenances")
	})
}

func TestSelectorWithoutNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a", func(n *corev1.Node) { n.Labels = nil }), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Spec.Limits = []v1alpha1.RolloutLimit{{MaxUnavailable: new(intstr.FromString("10%"))}}
		}))
		w.start()
		w.untilReason(v1alpha1.ReasonNoNodes)
		is.True(t, meta.IsStatusConditionFalse(w.rollout().Status.Conditions, v1alpha1.ConditionComplete), "Complete is not False")
		is.True(t, meta.IsStatusConditionFalse(w.rollout().Status.Conditions, v1alpha1.ConditionReady), "Ready is not False")
	})
}

// TestServerLimitsAllRollouts has two rollouts without a limit of their own that matters, over ten
// nodes of which a fifth may be out.
func TestServerLimitsAllRollouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wide := func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Spec.Limits = []v1alpha1.RolloutLimit{{MaxUnavailable: new(intstr.FromInt32(10))}}
		}
		second := newRollout(wide, func(r *v1alpha1.NodeMaintenanceRollout) { r.Name, r.UID = "runtime", "uid-runtime" })
		objects := []runtime.Object{newRollout(wide), second}
		for i := range 10 {
			objects = append(objects, newNode(fmt.Sprintf("n%d", i)))
		}
		w := newWorld(t, objects...)
		w.maxUnavailable = 20
		most := 0
		w.played = func() { most = max(most, w.out()) }
		w.start()
		w.untilBothDone("runtime", 10)
		is.Equal(t, most, 2, "nodes that are out, at most")
	})
}
