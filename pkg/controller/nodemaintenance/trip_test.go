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

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	nodecontroller "haulout.dev/haulout/pkg/controller/node"
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

// TestWritesOfATrip takes a node without pods out of service and back, with five seconds of work.
// Only events cause syncs. It counts what the server and the worker write.
func TestWritesOfATrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		f.create(newMaintenance("m", withTask, ofRollout))
		f.ticking("the node is offered", in(v1alpha1.NodeTaskOffered))
		report(claim)
		f.ticking("the claim is granted", in(v1alpha1.NodeTaskClaimed))
		f.wait(5 * time.Second)
		report(done)
		f.ticking("the work is recorded", func() bool {
			task := f.nodeStatus("m", "one").Task
			return task != nil && task.State == v1alpha1.NodeTaskDone
		})
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
			// The cordon, the taint that keeps DaemonSet pods off, its removal, and the release.
			"patch nodes": 4,
			// The node is being drained, is drained, is held for its release, and is released.
			"patch nodes/status": 4,
			// Before the cordon, after it, drained, claimed, done, and released; the message and
			// the release may need one more.
			"update nodemaintenances/status": 7,
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
