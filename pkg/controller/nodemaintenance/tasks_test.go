// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func isReady(node *corev1.Node) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
}

func withTask(nm *v1alpha1.NodeMaintenance) {
	nm.Spec.Task = &v1alpha1.NodeMaintenanceTask{Worker: "w.example.com", Stage: v1alpha1.NodeTaskStageDrain}
}

// setReadiness sets the condition Ready of node one.
func (f *fixture) setReadiness(status corev1.ConditionStatus) {
	f.t.Helper()
	f.updateNode("one", func(node *corev1.Node) {
		for i := range node.Status.Conditions {
			if node.Status.Conditions[i].Type == corev1.NodeReady {
				node.Status.Conditions[i].Status = status
			}
		}
	})
	f.cached()
}

// work runs all controllers until nothing changes, with time for statuses that are written late.
func (f *fixture) work() {
	f.t.Helper()
	for range 20 {
		f.wait(2 * time.Second)
		before := f.stored() + taskStates(f.taskList())
		for _, nm := range f.maintenanceList() {
			f.step(nm.Name)
		}
		for _, node := range []string{"one", "two"} {
			if err := f.tasks.Sync(f.ctx, node); err != nil && !loop.IsOnlyConflict(err) {
				f.t.Fatal(err)
			}
		}
		f.cached()
		if f.stored()+taskStates(f.taskList()) == before {
			return
		}
	}
	f.t.Fatal("the tasks do not converge")
}

func taskStates(tasks []*v1alpha1.NodeTask) string {
	var all []string
	for _, task := range tasks {
		all = append(all, task.Name+" "+string(task.Status.State)+" "+task.Status.Holder)
	}
	return strings.Join(all, ",")
}

// reportTask writes the status of a NodeTask as a worker does, and runs the controllers.
func (f *fixture) reportTask(node string, change func(*v1alpha1.NodeTaskStatus)) {
	f.t.Helper()
	f.writeTask(node, change)
	f.cached()
	f.work()
}

// writeTask writes the status of a NodeTask as a worker does.
func (f *fixture) writeTask(node string, change func(*v1alpha1.NodeTaskStatus)) {
	f.t.Helper()
	tasks := f.maintenance.MaintenanceV1alpha1().NodeTasks()
	task := must.Get(tasks.Get(f.ctx, node, metav1.GetOptions{}))(f.t)
	change(&task.Status)
	must.Get(tasks.UpdateStatus(f.ctx, task, metav1.UpdateOptions{}))(f.t)
}

func claim(status *v1alpha1.NodeTaskStatus) { status.Holder = "agent-7" }
func done(status *v1alpha1.NodeTaskStatus)  { status.Result = v1alpha1.NodeTaskResultDone }

// wantTask checks the state of a NodeTask, and the state that its maintenance m records.
func (f *fixture) wantTask(node string, state, recorded v1alpha1.NodeTaskState) {
	f.t.Helper()
	task, err := f.maintenance.MaintenanceV1alpha1().NodeTasks().Get(f.ctx, node, metav1.GetOptions{})
	switch {
	case state == "":
		is.True(f.t, apierrors.IsNotFound(err), "task %s: got error %v, want none of the name", node, err)
	case err != nil:
		f.t.Errorf("task %s: %v", node, err)
	default:
		is.Equal(f.t, task.Status.State, state)
	}
	var got v1alpha1.NodeTaskState
	if entry := f.nodeStatus("m", node).Task; entry != nil {
		got = entry.State
	}
	is.Equal(f.t, got, recorded)
}

// newClaimed returns a fixture in which a worker works on node one for maintenance m.
func newClaimed(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	f := newFixture(t, append(objects, newNode("one", isReady), newMaintenance("m", withTask, createdMinute(1)), newPod("web", "one", 0))...)
	f.work()
	f.wantEvacuating("web")
	f.wantTask("one", "", "")
	f.deletePod("web")
	f.wait(10 * time.Second)
	f.work()
	f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainComplete)
	f.wantTask("one", v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskOffered)
	f.reportTask("one", claim)
	f.wantTask("one", v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskClaimed)
	return f
}

// TestNobodyDrainsANodeInHands creates pods and maintenances while a worker has the node.
func TestNobodyDrainsANodeInHands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newClaimed(t)
		f.create(newPod("late", "one", 0))
		f.create(newMaintenance("ann", createdMinute(2)))
		f.create(newMaintenance("", shutdownOf("one", "boot-1")))
		f.work()
		f.wantEvacuating()
		f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft)
		f.wantDrained("ann", metav1.ConditionFalse, v1alpha1.ReasonNodeTaskInProgress)
		f.wantProgressing("ann", metav1.ConditionTrue, v1alpha1.ReasonProgressWaiting)
		is.Equal(t, f.nodeStatus("ann", "one").Reason, v1alpha1.NodeStatusNodeTaskInProgress)
		message := f.drainedMessage("ann")
		is.True(t, strings.Contains(message, `worker "agent-7" works on it for NodeMaintenance m`), "no worker in %q", message)
		var shutdown string
		for _, nm := range f.maintenanceList() {
			if nm.Name != "m" && nm.Name != "ann" {
				shutdown = nm.Name
			}
		}
		f.wantDrained(shutdown, metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft)
		is.Equal(t, f.nodeStatus(shutdown, "one").PodsKept, 1)
		f.wait(time.Hour)
		f.work()
		f.wantProgressing("ann", metav1.ConditionTrue, v1alpha1.ReasonProgressWaiting)

		f.reportTask("one", done)
		f.wantTask("one", "", v1alpha1.NodeTaskDone)
		f.wantEvacuating() // m holds the node until all its nodes are done
		f.enter("m", v1alpha1.NodeMaintenanceStageComplete)
		f.work()
		f.wantEvacuating("late")
		f.wantTask("one", "", v1alpha1.NodeTaskDone)
		is.True(t, v1alpha1.IsDone(f.nm("m")), "m still holds its nodes: %v", f.nm("m").Status)
	})
}

// TestAShutdownDrainsANodeWithItsPods shuts down a node that was offered in stage Cordon, while a
// worker has it and after the work has failed: its pods leave as without the worker.
func TestAShutdownDrainsANodeWithItsPods(t *testing.T) {
	inCordon := func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.Stage, nm.Spec.Task.Stage = v1alpha1.NodeMaintenanceStageCordon, v1alpha1.NodeTaskStageCordon
	}
	for name, result := range map[string]v1alpha1.NodeTaskResult{"claimed": "", "failed": v1alpha1.NodeTaskResultFailed} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newFixture(t, newNode("one", isReady), newPod("log", "one", 0, ofDaemonSet), newPod("web", "one", 0))
			f.turnOn(v1alpha1.EvacuatorClassDaemonSet)
			f.create(newMaintenance("m", withTask, inCordon, createdMinute(1)))
			f.work()
			f.reportTask("one", claim)
			f.reportTask("one", func(status *v1alpha1.NodeTaskStatus) { status.Result = result })
			f.create(newMaintenance("ann", createdMinute(2)))
			f.work()
			f.wantEvacuating()
			shutdown := newMaintenance("", shutdownOf("one", "boot-1"))
			f.create(shutdown)
			f.work()
			f.wantEvacuating("web")
			f.wantDrained(shutdown.Name, metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress)
			f.wantDrained("ann", metav1.ConditionFalse, v1alpha1.ReasonNodeTaskInProgress)
			f.deletePod("web")
			f.work()
			f.wantEvacuating("log")
			f.wantTaints("one", []corev1.Taint{heldTaint, drainTaint}, "ann", "m", shutdown.Name)
			f.enter("ann", v1alpha1.NodeMaintenanceStageComplete)
			f.deletePod("log")
			f.wait(10 * time.Second)
			f.work()
			f.wantDrained(shutdown.Name, metav1.ConditionTrue, v1alpha1.ReasonDrainComplete)
			drained := conditionOfNode(f.node("one"), v1alpha1.NodeConditionDrained)
			is.True(t, drained != nil && drained.Status == corev1.ConditionTrue, "got the condition %v of the node", drained)
		})
	}
}

// TestAMaintenanceEndsAfterItsWorker completes a maintenance whose node a worker has, and
// uncordons the node.
func TestAMaintenanceEndsAfterItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newClaimed(t)
		f.enter("m", v1alpha1.NodeMaintenanceStageComplete)
		f.work()
		f.wantCordon("one", true, "m")
		f.updateNode("one", func(node *corev1.Node) { node.Spec.Unschedulable = false })
		f.cached()
		f.work()
		f.wantCordon("one", true, "m")
		is.Equal(t, f.nodeStatus("m", "one").Reason, v1alpha1.NodeStatusReleasing)
		f.reportTask("one", done)
		f.wantCordon("one", false)
		f.wantTask("one", "", v1alpha1.NodeTaskDone)
		is.True(t, v1alpha1.IsDone(f.nm("m")), "m still holds its nodes: %v", f.nm("m").Status)
	})
}

// TestATaskThatIsDeletedStartsOver deletes the NodeTask of failed work: the node is drained and
// offered again.
func TestATaskThatIsDeletedStartsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newClaimed(t)
		f.reportTask("one", func(status *v1alpha1.NodeTaskStatus) { status.Result = v1alpha1.NodeTaskResultFailed })
		f.wantTask("one", v1alpha1.NodeTaskFailed, v1alpha1.NodeTaskFailed)
		is.Equal(t, f.nodeStatus("m", "one").Task.Reason, v1alpha1.NodeTaskWorkerFailed)
		f.create(newPod("late", "one", 0))
		f.work()
		f.wantEvacuating()
		must.Do(t, f.maintenance.MaintenanceV1alpha1().NodeTasks().Delete(f.ctx, "one", metav1.DeleteOptions{}))
		f.work()
		f.wantEvacuating("late")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress)
		f.wantTask("one", "", "")
		f.deletePod("late")
		f.wait(10 * time.Second)
		f.work()
		f.wantTask("one", v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskOffered)
	})
}

// TestDaemonSetPodsReturnAfterTheWork reads the drain taint: without their DaemonSet pods nodes may
// never be Ready.
func TestDaemonSetPodsReturnAfterTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", isReady), newPod("log", "one", 0, ofDaemonSet))
		f.turnOn(v1alpha1.EvacuatorClassDaemonSet)
		f.create(newMaintenance("m", withTask))
		f.work()
		f.wantEvacuating("log")
		f.deletePod("log")
		f.wait(10 * time.Second)
		f.work()
		f.reportTask("one", claim)
		f.wantTaints("one", []corev1.Taint{heldTaint, drainTaint}, "m")
		f.setReadiness(corev1.ConditionFalse)
		f.reportTask("one", done)
		f.wantTask("one", v1alpha1.NodeTaskVerifying, v1alpha1.NodeTaskVerifying)
		f.wantTaints("one", []corev1.Taint{heldTaint}, "m")
		f.wantCordon("one", true, "m")
		f.create(newPod("log-2", "one", 0, ofDaemonSet))
		f.setReadiness(corev1.ConditionTrue)
		f.work()
		f.wantEvacuating()
		f.wantTask("one", "", v1alpha1.NodeTaskDone)
		f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft)
		f.wantCordon("one", true, "m")
		is.Equal(t, conditionOf(f.nm("m"), v1alpha1.ConditionProgressing).Message,
			"The work on all nodes is done; they return to service when the maintenance is completed")
	})
}

// TestALongHolderFits has a user with a long name as the worker: a message that is too long would
// make each write of the status fail.
func TestALongHolderFits(t *testing.T) {
	w := newWorld(t, newMaintenance("m", withTask), newNode("one"))
	w.facts.tasks = map[string]*v1alpha1.NodeTask{"one": {
		Spec:   v1alpha1.NodeTaskSpec{Maintenance: v1alpha1.NodeTaskMaintenance{Name: "m", UID: "uid-m"}},
		Status: v1alpha1.NodeTaskStatus{State: v1alpha1.NodeTaskClaimed, Holder: strings.Repeat("a", 128)},
	}}
	_, message := releaseOf(w.facts, "one")
	is.True(t, strings.HasPrefix(message, "Released when worker") && len(message) <= drainplan.MaxMessageBytes, "got %q", message)
}

func TestDescribeWork(t *testing.T) {
	node := func(state v1alpha1.NodeTaskState) v1alpha1.NodeMaintenanceNodeStatus {
		return v1alpha1.NodeMaintenanceNodeStatus{Task: &v1alpha1.NodeMaintenanceNodeTask{State: state}}
	}
	done, vanished := node(v1alpha1.NodeTaskDone), node(v1alpha1.NodeTaskGone)
	deleted := v1alpha1.NodeMaintenanceNodeStatus{Reason: v1alpha1.NodeStatusGone}
	const all = "The work on all nodes is done; they return to service when the maintenance is completed"
	for name, test := range map[string]struct {
		nodes []v1alpha1.NodeMaintenanceNodeStatus
		want  string
	}{
		"no node":                          {nil, ""},
		"all done":                         {[]v1alpha1.NodeMaintenanceNodeStatus{done, done}, all},
		"the others do not exist any more": {[]v1alpha1.NodeMaintenanceNodeStatus{done, vanished, deleted}, all},
		"no node exists any more":          {[]v1alpha1.NodeMaintenanceNodeStatus{vanished, deleted}, ""},
		"the only node is not offered":     {[]v1alpha1.NodeMaintenanceNodeStatus{{}}, "The work is done on 0 of 1 node"},
		"a node is not offered":            {[]v1alpha1.NodeMaintenanceNodeStatus{done, {}, vanished}, "The work is done on 1 of 2 nodes"},
		"a node is being verified":         {[]v1alpha1.NodeMaintenanceNodeStatus{done, node(v1alpha1.NodeTaskVerifying)}, "The work is done on 1 of 2 nodes"},
		"the work on a node has failed":    {[]v1alpha1.NodeMaintenanceNodeStatus{node(v1alpha1.NodeTaskFailed), done}, "The work is done on 1 of 2 nodes"},
		"a deleted node is in hands": {
			[]v1alpha1.NodeMaintenanceNodeStatus{done, {Reason: v1alpha1.NodeStatusGone, Task: node(v1alpha1.NodeTaskClaimed).Task}},
			"The work is done on 1 of 2 nodes",
		},
	} {
		t.Run(name, func(t *testing.T) { is.Equal(t, describeWork(newMaintenance("m", withTask), test.nodes), test.want) })
	}
	is.Equal(t, describeWork(newMaintenance("m"), []v1alpha1.NodeMaintenanceNodeStatus{{}}), "")
	is.Equal(t, describeWork(newMaintenance("m", withTask, atStage(v1alpha1.NodeMaintenanceStageCordon)), []v1alpha1.NodeMaintenanceNodeStatus{{}}), "")
}

// TestANodeVanishesInHands deletes a node that a worker has, and registers it again.
func TestANodeVanishesInHands(t *testing.T) {
	vanish := func(f *fixture) {
		must.Do(f.t, f.host.CoreV1().Nodes().Delete(f.ctx, "one", metav1.DeleteOptions{}))
		f.cached()
		f.work()
		f.wantTask("one", v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskClaimed)
	}
	synctest.Test(t, func(t *testing.T) {
		f := newClaimed(t)
		vanish(f)
		f.create(newNode("one", isReady, func(node *corev1.Node) { node.UID = "uid-new" }))
		f.create(newPod("late", "one", 0))
		f.work()
		f.wantCordon("one", true, "m")
		f.wantEvacuating()
		f.reportTask("one", done)
		f.wantTask("one", "", v1alpha1.NodeTaskDone)
		entry := f.nodeStatus("m", "one")
		is.Equal(t, entry.NodeRef.UID, "uid-new")
		is.True(t, entry.Task.StartTime != nil && entry.Task.EndTime != nil, "no times in %v", entry.Task)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newClaimed(t)
		vanish(f)
		f.wait(time.Hour)
		f.work()
		f.wantTask("one", "", v1alpha1.NodeTaskGone)
	})
}

// TestANodeIsReinstalledWithoutItsLabels: the labels come after the node, once before the worker is
// done and once after that.
func TestANodeIsReinstalledWithoutItsLabels(t *testing.T) {
	label := func(node *corev1.Node) { node.Labels = map[string]string{"pool": "blue"} }
	for name, atOnce := range map[string]bool{"before the work is done": true, "after the work is done": false} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newClaimed(t)
			must.Do(t, f.host.CoreV1().Nodes().Delete(f.ctx, "one", metav1.DeleteOptions{}))
			f.cached()
			f.work()
			f.create(newNode("one", isReady, func(node *corev1.Node) { node.UID, node.Labels = "uid-new", nil }))
			f.work()
			f.wantCordon("one", true, "m")
			f.wantTask("one", v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskClaimed)
			is.Equal(t, f.nodeStatus("m", "one").DrainMessage, "Node was registered again, and the selector does not match it yet")
			if atOnce {
				f.updateNode("one", label)
			} else {
				f.reportTask("one", done)
			}
			f.wantCordon("one", true, "m")
			f.wait(time.Minute)
			f.work()
			f.wantCordon("one", true, "m")
			if atOnce {
				f.reportTask("one", done)
			} else {
				f.updateNode("one", label)
			}
			f.work()
			f.wantTask("one", "", v1alpha1.NodeTaskDone)
			is.Equal(t, f.nodeStatus("m", "one").NodeRef.UID, "uid-new")
			f.wait(time.Minute)
			f.work()
			f.wantTask("one", "", v1alpha1.NodeTaskDone)
			f.wantCordon("one", true, "m")
			f.enter("m", v1alpha1.NodeMaintenanceStageComplete)
			f.work()
			f.wantCordon("one", false)
		})
	}
}

// TestANodeIsMadeAgainAfterAFailure: an autoscaler gives the name of a node on which the work has
// failed to a node of another pool, which stays in service.
func TestANodeIsMadeAgainAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newClaimed(t)
		f.reportTask("one", func(status *v1alpha1.NodeTaskStatus) { status.Result = v1alpha1.NodeTaskResultFailed })
		must.Do(t, f.host.CoreV1().Nodes().Delete(f.ctx, "one", metav1.DeleteOptions{}))
		f.cached()
		f.work()
		f.wantTask("one", v1alpha1.NodeTaskFailed, v1alpha1.NodeTaskFailed)
		f.create(newNode("one", isReady, inPool("green"), func(node *corev1.Node) { node.UID = "uid-new" }))
		f.work()
		f.wantCordon("one", false)
		is.Equal(t, len(f.taskList()), 0, "tasks")
	})
}

// TestANodeIsReinstalledForAUserWithoutTheRight: the requester may maintain the nodes of a pool,
// and the new node has no pool yet. The maintenance selects it by name, as those of rollouts do.
func TestANodeIsReinstalledForAUserWithoutTheRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newClaimed(t)
		must.Do(t, f.host.CoreV1().Nodes().Delete(f.ctx, "one", metav1.DeleteOptions{}))
		f.cached()
		f.work()
		f.rights.refused.Insert("one")
		f.create(newNode("one", isReady, func(node *corev1.Node) { node.UID = "uid-new" }))
		f.work()
		f.wantCordon("one", true, "m")
		f.reportTask("one", func(status *v1alpha1.NodeTaskStatus) { status.Result = v1alpha1.NodeTaskResultFailed })
		f.wait(time.Minute)
		f.work()
		f.wantTask("one", v1alpha1.NodeTaskFailed, v1alpha1.NodeTaskFailed)
		f.wantCordon("one", true, "m")
	})
}

// TestNoWorkerReleases lets the deadline of a claim pass.
func TestNoWorkerReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", isReady), newMaintenance("m", withTask))
		f.work()
		f.wait(10 * time.Second)
		f.work()
		f.wantTask("one", v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskOffered)
		f.wait(time.Hour)
		f.work()
		is.Equal(t, f.nm("m").Spec.Stage, v1alpha1.NodeMaintenanceStageComplete)
		is.Equal(t, f.nm("m").Annotations[v1alpha1.AnnotationWithdrawn], "NoWorker")
		f.work()
		f.wantTask("one", "", v1alpha1.NodeTaskFailed)
		is.Equal(t, f.nodeStatus("m", "one").Task.Reason, v1alpha1.NodeTaskNoWorker)
		f.wantCordon("one", false)
	})
}
