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
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func ofRollout(nm *v1alpha1.NodeMaintenance) {
	nm.Labels = map[string]string{v1alpha1.LabelRollout: "kernel"}
	nm.OwnerReferences = build.Owner("maintenance.haulout.dev/v1alpha1", "NodeMaintenanceRollout", "kernel", "uid-kernel")
}

// newTrip takes a node without pods out of service, with five seconds of work. Only events cause
// syncs.
func newTrip(t *testing.T, nm *v1alpha1.NodeMaintenance) *fixture {
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
	tasks := f.maintenance.MaintenanceV1alpha1().NodeTasks()
	report := func(change func(*v1alpha1.NodeTaskStatus)) {
		task := must.Get(tasks.Get(f.ctx, "one", metav1.GetOptions{}))(t)
		change(&task.Status)
		must.Get(tasks.UpdateStatus(f.ctx, task, metav1.UpdateOptions{}))(t)
	}
	in := func(state v1alpha1.NodeTaskState) func() bool {
		return func() bool {
			task, err := tasks.Get(f.ctx, "one", metav1.GetOptions{})
			return err == nil && task.Status.State == state
		}
	}
	f.create(nm)
	f.ticking("the node is offered", in(v1alpha1.NodeTaskOffered))
	report(claim)
	f.ticking("the claim is granted", in(v1alpha1.NodeTaskClaimed))
	f.wait(5 * time.Second)
	report(done)
	f.ticking("the work is recorded", func() bool {
		task := f.nodeStatus(nm.Name, "one").Task
		return task != nil && task.State == v1alpha1.NodeTaskDone
	})
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
