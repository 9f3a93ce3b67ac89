// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	nodecontroller "haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/nodetask"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func ofRollout(nm *v1alpha1.NodeMaintenance) {
	nm.Labels = map[string]string{v1alpha1.LabelRollout: "kernel"}
	nm.OwnerReferences = build.Owner("maintenance.haulout.dev/v1alpha1", "NodeMaintenanceRollout", "kernel", "uid-kernel")
}

// newClaimedTrip takes a node without pods out of service, until a worker has it. Only events cause
// syncs.
func newClaimedTrip(t *testing.T, nm *v1alpha1.NodeMaintenance) *fixture {
	t.Helper()
	f := newFixture(t, newNode("one", isReady))
	informertest.Versioned(t, f.maintenance)
	f.maintenance.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		must.Get(meta.Accessor(action.(clienttesting.CreateAction).GetObject()))(t).SetResourceVersion("1")
		return false, nil, nil
	})
	f.turnOn(v1alpha1.EvacuatorClassDaemonSet)
	go f.run(2)
	go f.tasks.Run(f.ctx, 2)
	in := func(state v1alpha1.NodeTaskState) func() bool {
		return func() bool {
			task, err := f.maintenance.MaintenanceV1alpha1().NodeTasks().Get(f.ctx, "one", metav1.GetOptions{})
			return err == nil && task.Status.State == state
		}
	}
	f.create(nm)
	f.ticking("the node is offered", in(v1alpha1.NodeTaskOffered))
	f.writeTask("one", claim)
	f.ticking("the claim is granted", in(v1alpha1.NodeTaskClaimed))
	return f
}

// records returns a function that reports whether a maintenance records a state of the work on the
// node.
func (f *fixture) records(maintenance string, state v1alpha1.NodeTaskState) func() bool {
	return func() bool {
		task := f.nodeStatus(maintenance, "one").Task
		return task != nil && task.State == state
	}
}

// newTrip takes a node without pods out of service, with five seconds of work. Only events cause
// syncs.
func newTrip(t *testing.T, nm *v1alpha1.NodeMaintenance) *fixture {
	t.Helper()
	f := newClaimedTrip(t, nm)
	f.wait(5 * time.Second)
	f.writeTask("one", done)
	f.ticking("the work is recorded", f.records(nm.Name, v1alpha1.NodeTaskDone))
	return f
}

// TestDoneNodeBeforeItsRelease has work that is done, and a node that is not released: its
// DaemonSet pods return, and the node does not show any more that it is drained.
func TestDoneNodeBeforeItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTrip(t, newMaintenance("m", withTask))
		isDone := f.clock.Now()
		f.ticking("DaemonSet pods may return", func() bool { return !nodestate.HasTaint(f.node("one"), v1alpha1.TaintDrain) })
		f.ticking("the node is only held", func() bool {
			return !slices.ContainsFunc(f.node("one").Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == v1alpha1.NodeConditionDrained })
		})
		is.True(t, f.clock.Since(isDone) < 2*time.Second, "it took %s", f.clock.Since(isDone))
		f.wantCordon("one", true, "m")
	})
}

// TestWritesOfATrip takes a node without pods out of service and back. It counts what the server
// and the worker write.
func TestWritesOfATrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTrip(t, newMaintenance("m", withTask, ofRollout))
		f.enter("m", stageComplete)
		f.ticking("the node is released", func() bool { return len(f.nm("m").Finalizers) == 0 })
		f.wait(time.Minute)
		f.wantCordon("one", false)

		// The fake host refuses no write of a stale cache: a repeated patch counts once.
		writes, patches := map[string]int{}, map[string]bool{}
		for _, action := range append(f.host.Actions(), f.maintenance.Actions()...) {
			what := action.GetVerb() + " " + strings.TrimSuffix(action.GetResource().Resource+"/"+action.GetSubresource(), "/")
			if patch, isPatch := action.(clienttesting.PatchAction); isPatch {
				text := what + string(patch.GetPatch())
				if patches[text] {
					continue
				}
				patches[text] = true
			}
			writes[what]++
		}
		for what, most := range map[string]int{
			// The cordon, the taint that keeps DaemonSet pods off, and the release.
			"patch nodes": 3,
			// The node is being drained, is drained, and is released.
			"patch nodes/status": 3,
			// Before the cordon, after it, drained, claimed, done, and released.
			"update nodemaintenances/status": 6,
			// The worker claims the node and reports the end of its work; the server grants the
			// claim and verifies the work.
			"create nodetasks": 1, "update nodetasks/status": 4,
		} {
			is.True(t, writes[what] > 0 && writes[what] <= most, "%s: got %d, allowed: %d", what, writes[what], most)
		}
		events := map[string]bool{}
		for len(f.recorder.Events) > 0 {
			events[strings.Fields(<-f.recorder.Events)[1]] = true
		}
		is.Slices(t, slices.Sorted(maps.Keys(events)), []string{
			nodecontroller.EventNodeDrainStarted, nodecontroller.EventNodeDrained, nodecontroller.EventCordoned, nodecontroller.EventUncordoned,
			nodetask.EventClaimed, nodetask.EventOffered, nodetask.EventVerified,
		}, "events")
	})
}

// TestEndOfATripAtWork ends the maintenance of a rollout just after a worker has claimed the node:
// the end is not urgent, but it is recorded long before the worker is done.
func TestEndOfATripAtWork(t *testing.T) {
	for name, end := range map[string]func(*fixture){
		"completed": func(f *fixture) { f.enter("m", stageComplete) },
		"deleted": func(f *fixture) {
			nm := f.nm("m")
			nm.DeletionTimestamp = &metav1.Time{Time: f.clock.Now()}
			nm.Generation++
			must.Get(f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm, metav1.UpdateOptions{}))(t)
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newClaimedTrip(t, newMaintenance("m", withTask, ofRollout))
			f.ticking("the claim is recorded", f.records("m", v1alpha1.NodeTaskClaimed))
			end(f)
			isRecorded := func() bool { return f.nm("m").Status.ObservedGeneration == f.nm("m").Generation }
			synctest.Wait()
			is.True(t, !isRecorded(), "the end was recorded immediately: %v", f.nm("m").Status)
			ended := f.clock.Now()
			f.ticking("the end is recorded", isRecorded)
			is.True(t, f.clock.Since(ended) < 2*time.Second, "it took %s", f.clock.Since(ended))
			entry := f.nodeStatus("m", "one")
			is.Equal(t, entry.Reason, v1alpha1.NodeStatusReleasing)
			is.Equal(t, entry.DrainMessage, `Released when worker "agent-7" is done with it`)
			is.True(t, f.records("m", v1alpha1.NodeTaskClaimed)(), "the claim is not recorded any more: %v", entry)
			f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNotRequested)
			f.wait(time.Minute)
			f.wantCordon("one", true, "m")

			f.writeTask("one", done)
			f.ticking("the maintenance is over", func() bool {
				all := f.maintenanceList() // a deleted one is gone
				return len(all) == 0 || v1alpha1.IsDone(all[0])
			})
			f.wantCordon("one", false)
		})
	}
}
