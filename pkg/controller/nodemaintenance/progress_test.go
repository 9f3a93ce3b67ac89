// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"fmt"
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

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestMostPodsThatWereGone(t *testing.T) {
	ref := maintenancev1alpha1.NodeReference{Name: "one", UID: "uid-one"}
	wave := []maintenancev1alpha1.DrainPlanEntry{upTo(1000)}
	entry := func(peak, left, gonePeak int32, targets ...maintenancev1alpha1.DrainPlanEntry) maintenancev1alpha1.NodeMaintenanceNodeStatus {
		return maintenancev1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: ref, PodsPeak: peak, PodsPendingEvacuation: left, PodsGonePeak: gonePeak, DrainTargets: targets,
		}
	}
	for name, test := range map[string]struct {
		before *maintenancev1alpha1.NodeMaintenanceNodeStatus
		now    maintenancev1alpha1.NodeMaintenanceNodeStatus
		want   int32
		more   bool
	}{
		"a node that has just joined": {now: entry(5, 5, 0, wave...), want: 0},
		"a pod has left":              {before: ptr.To(entry(5, 5, 0, wave...)), now: entry(5, 4, 0, wave...), want: 1, more: true},
		"a pod has come back":         {before: ptr.To(entry(5, 3, 2, wave...)), now: entry(5, 4, 0, wave...), want: 2},
		"it has left again":           {before: ptr.To(entry(5, 4, 2, wave...)), now: entry(5, 3, 0, wave...), want: 2},
		"another one has left, too":   {before: ptr.To(entry(5, 3, 2, wave...)), now: entry(5, 2, 0, wave...), want: 3, more: true},
		"more pods have come than were there": {
			before: ptr.To(entry(5, 3, 2, wave...)), now: entry(30, 30, 0, wave...), want: 2,
		},
		"more of those have left": {before: ptr.To(entry(30, 28, 2, wave...)), now: entry(30, 27, 0, wave...), want: 3, more: true},
		"a wave has opened":       {before: ptr.To(entry(5, 4, 2, wave...)), now: entry(5, 4, 0, upTo(2000)), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			nm := newMaintenance("m")
			if test.before != nil {
				nm.Status.NodeStatuses = []maintenancev1alpha1.NodeMaintenanceNodeStatus{*test.before}
			}
			test.now.PodsGonePeak = gonePeakOf(nm, &test.now)
			is.Equal(t, test.now.PodsGonePeak, test.want)
			next := &maintenancev1alpha1.NodeMaintenanceStatus{NodeStatuses: []maintenancev1alpha1.NodeMaintenanceNodeStatus{test.now}}
			is.Equal(t, moreGone(nm, next), test.more, "progress")
		})
	}
}

func TestWhenPodsOfANodeMoved(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	ago := func(minutes int) time.Time { return now.Add(-time.Duration(minutes) * time.Minute) }
	for name, test := range map[string]struct {
		moves    []time.Time
		cameBack int32
		want     time.Time
	}{
		"no pod moves":                    {},
		"the latest one counts":           {moves: []time.Time{ago(5), ago(1), ago(3)}, want: ago(1)},
		"a pod that terminates moves now": {moves: []time.Time{ago(5), ago(-60)}, want: now},
		"one that has come back does not": {moves: []time.Time{ago(1)}, cameBack: 1},
		"one of two that move does not":   {moves: []time.Time{ago(5), ago(1)}, cameBack: 1, want: ago(5)},
		"more have come back than move":   {moves: []time.Time{ago(5), ago(1)}, cameBack: 3},
		"more are gone, and none moves":   {cameBack: -1},
		"more are gone, and one moves":    {moves: []time.Time{ago(1)}, cameBack: -1, want: ago(1)},
	} {
		t.Run(name, func(t *testing.T) {
			n := &nodeCount{moves: test.moves}
			entry := &maintenancev1alpha1.NodeMaintenanceNodeStatus{PodsPeak: 10, PodsEvacuating: 5, PodsGonePeak: 5 + test.cameBack}
			if got := n.movedAt(entry, now); !got.Equal(test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestPodsThatKeepComingAreNoProgress has a user create a pod on the held node every minute, with
// other labels each time, so that none of them is taken for a copy of another.
func TestPodsThatKeepComingAreNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("stuck", "one", 0))
		f.step("m")
		for i := range 60 {
			name := fmt.Sprintf("guest-%03d", i)
			f.create(newPod(name, "one", 0, func(p *corev1.Pod) { p.Labels = map[string]string{"n": name} }))
			f.later("m", 20*time.Second)
			f.terminate(name, 30*time.Second)
			f.later("m", 20*time.Second)
			f.deletePod(name)
			f.later("m", 20*time.Second)
		}
		f.wantProgressing("m", metav1.ConditionFalse, maintenancev1alpha1.ReasonProgressStalled)
		// The one that was there leaves.
		f.deletePod("stuck")
		f.create(newPod("late", "one", 0))
		f.later("m", statusPace)
		f.deletePod("late")
		f.create(newPod("later", "one", 0))
		f.later("m", statusPace)
		f.wantProgressing("m", metav1.ConditionFalse, maintenancev1alpha1.ReasonProgressStalled)
		f.deletePod("later")
		f.later("m", statusPace)
		f.later("m", nodestate.SettleTime)
		f.wantProgressing("m", metav1.ConditionTrue, maintenancev1alpha1.ReasonProgressDrained)
	})
}

// terminate has a pod be deleted with a grace period.
func (f *fixture) terminate(name string, grace time.Duration) {
	f.t.Helper()
	pod := must.Get(f.host.CoreV1().Pods("default").Get(f.ctx, name, metav1.GetOptions{}))(f.t)
	deletedIn(grace)(pod)
	must.Get(f.host.CoreV1().Pods("default").Update(f.ctx, pod, metav1.UpdateOptions{}))(f.t)
}

// deletedIn marks a pod as deleted now, with a grace period.
func deletedIn(grace time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(grace)}
		p.DeletionGracePeriodSeconds = ptr.To(int64(grace / time.Second))
		p.Finalizers = []string{"example.com/stays"}
	}
}

// TestGracePeriodIsProgressOnlyForAWhile has one pod that takes all of its grace period.
func TestGracePeriodIsProgressOnlyForAWhile(t *testing.T) {
	for name, test := range map[string]struct {
		grace, moves time.Duration
	}{
		"an hour":                  {time.Hour, time.Hour},
		"exactly the longest":      {protocol.DefaultLongGrace, protocol.DefaultLongGrace},
		"a year, of which 2 hours": {365 * 24 * time.Hour, protocol.DefaultLongGrace},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("p", "one", 0, deletedIn(test.grace)))
			f.step("m")
			begun := time.Now()
			for time.Since(begun) < test.moves {
				f.later("m", 5*time.Minute)
			}
			f.later("m", DefaultStallTimeout-2*time.Minute)
			f.wantProgressing("m", metav1.ConditionTrue, maintenancev1alpha1.ReasonProgressDraining)
			f.later("m", 10*time.Minute)
			f.wantProgressing("m", metav1.ConditionFalse, maintenancev1alpha1.ReasonProgressStalled)
		})
	}
}

// TestRefusedStatusIsTold has a policy refuse every write of a status, so that only an event can
// tell it.
func TestRefusedStatusIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		policy := "require-owner"
		f.maintenance.PrependReactor("update", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(maintenancev1alpha1.Resource("nodemaintenances"), "m", errors.New("denied by policy "+policy))
		})
		told := func() (texts []string) {
			for {
				select {
				case event := <-f.recorder.Events:
					if strings.Contains(event, EventStatusNotWritten) {
						texts = append(texts, event)
					}
				default:
					return texts
				}
			}
		}
		syncFor := func(d time.Duration) {
			for range d / (10 * time.Second) {
				f.authorized()
				_ = f.timedSync(f.ctx, "m")
				f.cached()
				f.wait(10 * time.Second)
			}
		}
		syncFor(loop.VisibleAfter)
		if got := told(); len(got) != 0 {
			t.Errorf("got events %q within the first minute", got)
		}
		syncFor(time.Hour)
		if got := told(); len(got) != 1 || !strings.Contains(got[0], policy) {
			t.Errorf("got events %q, want one with the reason", got)
		}
		policy = "another"
		syncFor(time.Hour)
		if got := told(); len(got) != 1 || !strings.Contains(got[0], policy) {
			t.Errorf("got events %q, want one with the new reason", got)
		}
	})
}
