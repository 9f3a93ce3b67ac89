// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
)

func TestMostPodsThatWereGone(t *testing.T) {
	ref := v1alpha1.NodeReference{Name: "one", UID: "uid-one"}
	wave := []v1alpha1.DrainPlanEntry{upTo(1000)}
	entry := func(peak, left, gonePeak int32, targets ...v1alpha1.DrainPlanEntry) v1alpha1.NodeMaintenanceNodeStatus {
		return v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: ref, PodsPeak: peak, PodsPendingEvacuation: left, PodsGonePeak: gonePeak, DrainTargets: targets,
		}
	}
	for name, test := range map[string]struct {
		before *v1alpha1.NodeMaintenanceNodeStatus
		now    v1alpha1.NodeMaintenanceNodeStatus
		want   int32
		more   bool
	}{
		"a node that has just joined":     {now: entry(5, 5, 0, wave...), want: 0},
		"a pod has left":                  {before: ptr.To(entry(5, 5, 0, wave...)), now: entry(5, 4, 0, wave...), want: 1, more: true},
		"a pod has come back":             {before: ptr.To(entry(5, 3, 2, wave...)), now: entry(5, 4, 0, wave...), want: 2},
		"the returned pod has left again": {before: ptr.To(entry(5, 4, 2, wave...)), now: entry(5, 3, 0, wave...), want: 2},
		"another pod has left, too":       {before: ptr.To(entry(5, 3, 2, wave...)), now: entry(5, 2, 0, wave...), want: 3, more: true},
		"more pods have come than were there": {
			before: ptr.To(entry(5, 3, 2, wave...)), now: entry(30, 30, 0, wave...), want: 2,
		},
		"more pods than ever have left": {before: ptr.To(entry(30, 28, 2, wave...)), now: entry(30, 27, 0, wave...), want: 3, more: true},
		"a wave has opened":             {before: ptr.To(entry(5, 4, 2, wave...)), now: entry(5, 4, 0, upTo(2000)), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			nm := newMaintenance("m")
			if test.before != nil {
				nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{*test.before}
			}
			test.now.PodsGonePeak = gonePeakOf(nm, &test.now)
			if test.now.PodsGonePeak != test.want {
				t.Errorf("got %d, want %d", test.now.PodsGonePeak, test.want)
			}
			next := &v1alpha1.NodeMaintenanceStatus{NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{test.now}}
			if got := moreGone(nm, next); got != test.more {
				t.Errorf("got progress %t, want %t", got, test.more)
			}
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
		"no pod moves":                                     {},
		"the latest move counts":                           {moves: []time.Time{ago(5), ago(1), ago(3)}, want: ago(1)},
		"a pod that terminates moves now":                  {moves: []time.Time{ago(5), ago(-60)}, want: now},
		"the move of a returned pod does not count":        {moves: []time.Time{ago(1)}, cameBack: 1},
		"one of two moves does not count after one return": {moves: []time.Time{ago(5), ago(1)}, cameBack: 1, want: ago(5)},
		"more have come back than move":                    {moves: []time.Time{ago(5), ago(1)}, cameBack: 3},
		"more are gone, and none moves":                    {cameBack: -1},
		"more are gone, and one moves":                     {moves: []time.Time{ago(1)}, cameBack: -1, want: ago(1)},
	} {
		t.Run(name, func(t *testing.T) {
			n := &nodeCount{moves: test.moves}
			entry := &v1alpha1.NodeMaintenanceNodeStatus{PodsPeak: 10, PodsEvacuating: 5, PodsGonePeak: 5 + test.cameBack}
			if got := n.movedAt(entry, now); !got.Equal(test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestRefusedStatusIsTold covers a policy that refuses every status write, so that only an event
// can report it.
func TestRefusedStatusIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		policy := "require-owner"
		f.maintenance.PrependReactor("update", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(v1alpha1.Resource("nodemaintenances"), "m", errors.New("denied by policy "+policy))
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
