// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// newOffered returns a fixture in which maintenance m offers node one.
func newOffered(t *testing.T, modify ...func(*v1alpha1.NodeMaintenance)) *fixture {
	t.Helper()
	f := newFixture(t, newNode("one", isReady), newMaintenance("m", append([]func(*v1alpha1.NodeMaintenance){withTask}, modify...)...))
	f.work()
	f.wait(10 * time.Second)
	f.work()
	f.wantTask("one", v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskOffered)
	return f
}

// answers returns a reaction that answers each request with an object or an error.
func answers(object runtime.Object, err error) clienttesting.ReactionFunc {
	return func(clienttesting.Action) (bool, runtime.Object, error) { return true, object, err }
}

// liveNode and livePod are what the API has, and the caches do not have yet.
func liveNode(change func(*corev1.Node)) func(*fixture) {
	return func(f *fixture) {
		node := f.node("one")
		change(node)
		f.host.PrependReactor("get", "nodes", answers(node, nil))
	}
}

func livePod(modify ...func(*corev1.Pod)) func(*fixture) {
	return func(f *fixture) {
		f.host.PrependReactor("list", "pods", answers(&corev1.PodList{Items: []corev1.Pod{*newPod("late", "one", 0, modify...)}}, nil))
	}
}

func liveMaintenance(change func(*v1alpha1.NodeMaintenance)) func(*fixture) {
	return func(f *fixture) {
		nm := f.nm("m")
		change(nm)
		f.maintenance.PrependReactor("get", "nodemaintenances", answers(nm, nil))
	}
}

// TestAClaimReadsTheNode changes the clusters after the offer, and before the caches show it. The
// claim of a worker is then refused, or waits for the caches.
func TestAClaimReadsTheNode(t *testing.T) {
	lost := errors.New("etcd has lost it")
	for name, test := range map[string]struct {
		live func(*fixture)
		// refusal is the end of the event if the claim is refused, failure a part of the error if
		// it waits. The claim is granted if both are "".
		refusal, failure string
	}{
		"nothing has changed":        {live: func(*fixture) {}},
		"a pod is on the node again": {live: livePod(), refusal: "pod default/late is on the node again"},
		"a pod that has ended":       {live: livePod(func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })},
		"a pod of a DaemonSet":       {live: livePod(ofDaemonSet)},
		"a pod on another node":      {live: livePod(func(pod *corev1.Pod) { pod.Spec.NodeName = "two" })},
		"the node was uncordoned":    {live: liveNode(func(node *corev1.Node) { node.Spec.Unschedulable = false }), refusal: "the node was made schedulable"},
		"the node was reinstalled":   {live: liveNode(func(node *corev1.Node) { node.UID = "uid-new" }), refusal: "the node is gone"},
		"the node is gone": {live: func(f *fixture) {
			f.host.PrependReactor("get", "nodes", answers(nil, apierrors.NewNotFound(corev1.Resource("nodes"), "one")))
		}, refusal: "the node is gone"},
		"the maintenance has ended":    {live: liveMaintenance(func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete }), refusal: "NodeMaintenance m has ended"},
		"the maintenance was replaced": {live: liveMaintenance(func(nm *v1alpha1.NodeMaintenance) { nm.UID = "uid-other" }), refusal: "NodeMaintenance m has ended"},
		"the maintenance has changed":  {live: liveMaintenance(func(nm *v1alpha1.NodeMaintenance) { nm.Generation++ }), failure: "the maintenance has changed"},
		"the pods cannot be read":      {live: func(f *fixture) { f.host.PrependReactor("list", "pods", answers(nil, lost)) }, failure: lost.Error()},
		"the node cannot be read":      {live: func(f *fixture) { f.host.PrependReactor("get", "nodes", answers(nil, lost)) }, failure: lost.Error()},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newOffered(t)
			tasks := f.maintenance.MaintenanceV1alpha1().NodeTasks()
			task := must.Get(tasks.Get(f.ctx, "one", metav1.GetOptions{}))(t)
			claim(&task.Status)
			must.Get(tasks.UpdateStatus(f.ctx, task, metav1.UpdateOptions{}))(t)
			f.cached()
			test.live(f)
			err := f.tasks.Sync(f.ctx, "one")
			is.True(t, test.failure == "" && err == nil || test.failure != "" && err != nil && strings.Contains(err.Error(), test.failure), "got the error %v, want %q", err, test.failure)
			task, err = tasks.Get(f.ctx, "one", metav1.GetOptions{})
			switch {
			case test.refusal != "":
				is.True(t, apierrors.IsNotFound(err), "the task was not withdrawn: %v, %v", task, err)
				event := f.wantEvent("NodeTaskWithdrawn")
				is.True(t, strings.HasSuffix(event, ": "+test.refusal), "got the event %q", event)
			case test.failure != "":
				is.Equal(t, task.Status.State, v1alpha1.NodeTaskOffered)
			default:
				is.Equal(t, task.Status.State, v1alpha1.NodeTaskClaimed)
			}
		})
	}
}

// TestClocksFiveMinutesApart has a worker whose reports are stored by a replica with another clock.
// It is lost when it is silent for its deadline of a minute, and not before.
func TestClocksFiveMinutesApart(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"behind": -5 * time.Minute, "ahead": 5 * time.Minute} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newOffered(t, func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Task.ProgressDeadlineSeconds = ptr.To(int32(60)) })
			report := func(change func(*v1alpha1.NodeTaskStatus)) {
				f.reportTask("one", func(status *v1alpha1.NodeTaskStatus) {
					change(status)
					status.ProgressTime = &metav1.Time{Time: f.clock.Now().Add(ahead).Truncate(time.Second)}
				})
			}
			report(claim)
			for range 20 {
				f.wait(20 * time.Second)
				report(func(*v1alpha1.NodeTaskStatus) {})
				f.wantTask("one", v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskClaimed)
			}
			f.wait(time.Minute + max(0, ahead))
			f.work()
			f.wantTask("one", v1alpha1.NodeTaskFailed, v1alpha1.NodeTaskFailed)
			is.Equal(t, f.nodeStatus("m", "one").Task.Reason, v1alpha1.NodeTaskLost)
		})
	}
}

// TestAnOfferByAnotherClock has an offer that a replica has stored whose clock is behind. It lasts
// for its deadline of a minute.
func TestAnOfferByAnotherClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", isReady), newMaintenance("m", withTask, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Task.ClaimDeadlineSeconds = ptr.To(int32(60))
		}))
		f.maintenance.PrependReactor("create", "nodetasks", func(action clienttesting.Action) (bool, runtime.Object, error) {
			task := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeTask).DeepCopy()
			task.Status = v1alpha1.NodeTaskStatus{State: v1alpha1.NodeTaskOffered, StateTime: &metav1.Time{Time: f.clock.Now().Add(-5 * time.Minute)}}
			return true, task, f.maintenance.Tracker().Create(action.GetResource(), task, "")
		})
		f.work()
		f.wait(10 * time.Second)
		f.work()
		f.wantTask("one", v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskOffered)
		f.wait(20 * time.Second)
		f.work()
		f.wantTask("one", v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskOffered)
		f.wait(time.Minute)
		f.work()
		is.Equal(t, f.nm("m").Annotations[v1alpha1.AnnotationWithdrawn], "NoWorker")
	})
}

// TestARebootWithoutAClaim boots a node that is offered. That is the work if doneWhen says so, and
// nothing otherwise.
func TestARebootWithoutAClaim(t *testing.T) {
	boots := func(f *fixture) {
		f.updateNode("one", func(node *corev1.Node) { node.Status.NodeInfo.BootID = "boot-2" })
		f.cached()
		f.work()
	}
	synctest.Test(t, func(t *testing.T) {
		f := newOffered(t)
		boots(f)
		f.wantTask("one", v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskOffered)
		f.reportTask("one", claim)
		f.wantTask("one", v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskClaimed)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newOffered(t, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Task.DoneWhen = "node.status.nodeInfo.bootID != before.bootID"
		})
		boots(f)
		f.wantTask("one", "", v1alpha1.NodeTaskDone)
		event := f.wantEvent("NodeTaskVerified")
		is.True(t, strings.HasSuffix(event, "The node meets doneWhen without any work"), "got the event %q", event)
	})
}

// TestAClaimBeatsTheWithdrawal has a worker claim the node when the server is about to withdraw the
// offer. Fake clusters compare no versions, so the test does.
func TestAClaimBeatsTheWithdrawal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newOffered(t)
		f.maintenance.PrependReactor("delete", "nodetasks", func(action clienttesting.Action) (bool, runtime.Object, error) {
			stored := must.Get(f.maintenance.Tracker().Get(action.GetResource(), "", "one"))(t).(*v1alpha1.NodeTask).DeepCopy()
			claim(&stored.Status)
			stored.ResourceVersion = "of the claim"
			must.Do(t, f.maintenance.Tracker().Update(action.GetResource(), stored, ""))
			given := action.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions
			if given != nil && given.ResourceVersion != nil && *given.ResourceVersion != stored.ResourceVersion {
				return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), "one", errors.New("it has changed"))
			}
			return false, nil, nil
		})
		f.change("m", func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = true })
		err := f.tasks.Sync(f.ctx, "one")
		is.True(t, apierrors.IsConflict(err), "got the error %v, want a conflict", err)
		task := must.Get(f.maintenance.MaintenanceV1alpha1().NodeTasks().Get(f.ctx, "one", metav1.GetOptions{}))(t)
		is.True(t, task.Status.Holder != "", "the claim is lost: %+v", task.Status)
	})
}
