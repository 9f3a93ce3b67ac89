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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestStagesAndWavesAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		f.step("m")
		if e := f.wantEvent(EventStageStarted); !strings.Contains(e, "Stage Drain, requested by jane") {
			t.Errorf("got event %q", e)
		}
		if e := f.wantEvent(EventWaveStarted); !strings.Contains(e,
			"Default pods up to priority 1000000000 are asked to leave 1 node") {
			t.Errorf("got event %q", e)
		}
		f.deletePod("p")
		f.step("m")
		f.wait(nodestate.SettleTime)
		f.step("m")
		f.wantEvent(EventDrained)
		f.create(newPod("q", "one", 0))
		f.step("m")
		if e := f.wantEvent(EventDrainedNoLonger); !strings.Contains(e, "1 pod left") {
			t.Errorf("got event %q", e)
		}
		// The pod was created a moment ago, so the drain is not stalled.
		f.wantProgressing("m", metav1.ConditionTrue, v1alpha1.ReasonProgressDraining)
		f.enter("m", stageComplete)
		f.cached()
		if e := f.wantEvent(EventStageStarted); !strings.Contains(e, "Stage Complete") {
			t.Errorf("got event %q", e)
		}
	})
}

// TestNamesOfUsersInEvents has a requester whose name would change the terminal of a reader.
func TestNamesOfUsersInEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m", func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.RequestedBy.Username = "jane\x1b[2J\n"
		}))
		f.step("m")
		if e := f.wantEvent(EventStageStarted); !strings.Contains(e, "Stage Drain, requested by jane[2J") {
			t.Errorf("got event %q", e)
		}
	})
}

// TestOnlyWavesWithPodsAreEvents drains a pod of the first wave and a critical one.
func TestOnlyWavesWithPodsAreEvents(t *testing.T) {
	w := newWorld(t, newMaintenance("m"), newNode("one"))
	w.run(newPod("p", "one", 0))
	w.run(newPod("critical", "one", 2000000000))
	started := func() []string {
		before := w.facts.subject.NodeMaintenance
		w.after(time.Second)
		var priorities []string
		for _, i := range startedWaves(before, w.facts.subject.NodeMaintenance) {
			entry := before.Spec.DrainPlan[i]
			priorities = append(priorities, fmt.Sprintf("%s %d", entry.PodType, entry.PodPriority))
		}
		return priorities
	}
	is.Slices(t, started(), []string{"Default 1000000000"}, "at first")
	is.Slices(t, started(), nil, "while the pod is left")
	w.gone("p")
	is.Slices(t, started(), []string{"Default 2000000000"}, "when the pod is gone")
	w.gone("critical")
	is.Slices(t, started(), nil, "when no pod is left")
}

// TestRefusalsAreReportedOnceWithoutMessages covers a status without room for the messages of
// nodes.
func TestRefusalsAreReportedOnceWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("p", "one", 0), newMaintenance("m"))
		f.rights.refused.Insert("two")
		f.refuseMessages()
		for range 10 {
			f.step("m")
			f.wait(statusPace)
		}
		// One event is about the node and one about the maintenance.
		if told := f.told(EventNotAuthorized); told != 2 {
			t.Errorf("got %d events about one refused node, want 2", told)
		}
	})
}

// TestAuthorizerThatFailsForANodeStopsNoOther covers an authorizer that fails for one of two nodes.
func TestAuthorizerThatFailsForANodeStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("p", "one", 0), newPod("q", "two", 0),
			newMaintenance("m"))
		f.rights.failing = map[string]error{"two": errors.New("not reachable")}
		try := func() {
			for range 3 {
				f.cached()
				f.syncOnce("m")
				f.cached()
				_ = f.reconcileNodes() // node two fails, as intended
				f.wait(statusPace)
			}
		}
		try()
		f.wantCordon("one", true, "m")
		f.wantCordon("two", false)
		f.wantEvacuating()
		f.wait(loop.VisibleAfter)
		try()
		f.wantEvacuating("p")
		f.wantCordon("two", false)
		if got := f.nodeStatus("m", "two").DrainMessage; !strings.HasPrefix(got, "Not drained: ") || !strings.Contains(
			got, "may maintain node two",
		) {
			t.Errorf("got message %q", got)
		}
		f.rights.failing = nil
		try()
		f.wantEvacuating("p", "q")
		f.wantCordon("two", true, "m")
	})
}
