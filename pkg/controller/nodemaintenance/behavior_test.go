// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/testing/is"
)

const (
	toWait = v1alpha1.DrainBehaviorWaitCompleted
	toSkip = v1alpha1.DrainBehaviorSkip
)

// jobs are the pods with the label job.
func jobs(pod *corev1.Pod) { pod.Labels = map[string]string{"job": "backup"} }

// forJobs adds an entry for the jobs to the plan. A wait ends some seconds after the begin of stage
// Drain, which is noon.
func forJobs(podType v1alpha1.PodType, behavior v1alpha1.DrainBehavior, waitSeconds int32) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{{
			PodType: podType, PodPriority: v1alpha1.MaxPodPriority, Behavior: &behavior, WaitSeconds: &waitSeconds,
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"job": "backup"}},
		}}
		for i := range nm.Status.StageStatuses {
			nm.Status.StageStatuses[i].StartTimestamp = &metav1.Time{Time: noon}
		}
	}
}

// share adds another maintenance of all nodes, with the targets of the subject in its status.
func (w *world) share(nm *v1alpha1.NodeMaintenance) {
	other := &member{NodeMaintenance: nm, nodes: w.facts.subject.nodes, inside: w.facts.subject.inside}
	for _, node := range other.inside {
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: refOf(node), DrainTargets: []v1alpha1.DrainPlanEntry{upTo(1000000000)},
		})
	}
	w.facts.draining = append(w.facts.draining, other)
}

// TestPodsThatMayComplete drains a node on which a job runs beside another pod and a critical one.
func TestPodsThatMayComplete(t *testing.T) {
	w := newWorld(t, newMaintenance("m", forJobs(v1alpha1.PodTypeDefault, toWait, 3600)), newNode("one"))
	w.run(newPod("backup", "one", 0, jobs))
	w.run(newPod("web", "one", 0))
	w.run(newPod("critical", "one", 2000000000))
	d := w.wantAsked("web")
	w.wantReasons(d, "DrainInProgress", "Draining")
	is.Equal(t, w.entry(d, "one").DrainMessage, "Evacuating")
	_, message := d.condition(v1alpha1.ConditionProgressing)
	wantPart(t, message, "; waiting for 1 pod to complete (until 2026-11-01T13:00:00Z), such as default/backup")
	is.True(t, d.wake <= time.Hour, "wakes after %s", d.wake)

	w.gone("web")
	w.facts.now = noon.Add(50 * time.Minute)
	d = w.wantAsked()
	w.wantReasons(d, "DrainInProgress", "WaitingForCompletion")
	entry := w.entry(d, "one")
	is.True(t, ptr.Deref(entry.PodsWaiting, 0) == 1 && entry.PodsPendingEvacuation == 2 && entry.PodsEvacuating == 0, "got the entry %+v", entry)
	is.Equal(t, entry.DrainMessage, "Waiting for 1 pod to complete (until 2026-11-01T13:00:00Z), such as default/backup")
	is.Equal(t, d.wake, 10*time.Minute, "wakes after")

	w.facts.now = noon.Add(time.Hour)
	w.wantReasons(w.wantAsked("backup"), "DrainInProgress", "Draining")
	w.gone("backup")
	w.wantAsked("critical")
}

// TestWaitsForCompletionDoNotStall lets a job run for a day, in a wave of its own.
func TestWaitsForCompletionDoNotStall(t *testing.T) {
	w := newWorld(t, newMaintenance("m", forJobs(v1alpha1.PodTypeDefault, toWait, 0)), newNode("one"))
	w.run(newPod("backup", "one", 0, jobs))
	w.run(newPod("critical", "one", 2000000000))
	first := w.wantAsked()
	w.wantReasons(first, "DrainInProgress", "WaitingForCompletion")
	is.True(t, d0(first).StartTime != nil, "the wave has no start")
	later := w.after(24 * time.Hour)
	w.wantReasons(later, "DrainInProgress", "WaitingForCompletion")
	is.True(t, later.status.LastProgressTimestamp.Equal(first.status.LastProgressTimestamp), "the time of the last progress has changed")
	is.Equal(t, later.wake, time.Duration(0), "wakes after")

	// The next wave begins now, and must not be stalled.
	w.gone("backup")
	d := w.wantAsked("critical")
	w.wantReasons(d, "DrainInProgress", "Draining")
	is.True(t, d.status.LastProgressTimestamp.Time.Equal(w.facts.now), "the last progress was at %s", d.status.LastProgressTimestamp)
}

// d0 returns the first wave of a decision.
func d0(d *decision) v1alpha1.NodeMaintenanceWave { return d.status.Waves[0] }

// TestTheEndOfAWaitIsProgress covers a job that is asked to leave after a long wait.
func TestTheEndOfAWaitIsProgress(t *testing.T) {
	w := newWorld(t, newMaintenance("m", forJobs(v1alpha1.PodTypeDefault, toWait, 86400)), newNode("one"))
	w.run(newPod("backup", "one", 0, jobs))
	w.wantReasons(w.wantAsked(), "DrainInProgress", "WaitingForCompletion")
	w.facts.now = noon.Add(24 * time.Hour)
	w.wantReasons(w.wantAsked("backup"), "DrainInProgress", "Draining")
	w.wantReasons(w.after(DefaultStallTimeout), "DrainBlocked", "Stalled")
}

func TestSkippedPods(t *testing.T) {
	for name, test := range map[string]struct {
		podType v1alpha1.PodType
		pod     func(*corev1.Pod)
		message string
	}{
		"an ordinary pod": {v1alpha1.PodTypeDefault, jobs, "except the kept pods: pod that the drain plan skips of default/p (1)"},
		"a static pod of a node with an agent": {
			v1alpha1.PodTypeStatic, func(p *corev1.Pod) { static(p); jobs(p) }, "1 static pod keeps running until the machine goes down",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMaintenance("m", forJobs(test.podType, toSkip, 0)), newNode("one", agent(corev1.ConditionTrue), keeping("other")))
			w.evacuators.Insert(classKubelet)
			w.run(newPod("p", "one", 0, test.pod))
			w.run(newPod("web", "one", 0))
			w.wantAsked("web")
			w.gone("web")
			w.facts.live = ptr.To("")
			d := w.wantAsked()
			w.wantReasons(d, podsKept, "Drained")
			_, message := d.condition(v1alpha1.ConditionDrained)
			wantPart(t, message, test.message)
			entry := w.entry(d, "one")
			is.True(t, entry.PodsKept == 1 && entry.PodsPendingEvacuation == 0, "got the entry %+v", entry)
		})
	}
}

func TestTheStrictestPlanDecides(t *testing.T) {
	all := v1alpha1.PodTypeDefault
	for name, test := range map[string]struct {
		plan, other          func(*v1alpha1.NodeMaintenance)
		paused               bool
		asked                []string
		waiting, kept        int32
		drained, progressing string
	}{
		"another maintenance drains what this one skips": {
			plan: forJobs(all, toSkip, 0), other: planning(), asked: []string{"p"}, drained: "DrainInProgress", progressing: "Draining",
		},
		"another maintenance drains what this one lets complete": {
			plan: forJobs(all, toWait, 0), other: planning(), asked: []string{"p"}, drained: "DrainInProgress", progressing: "Draining",
		},
		"another maintenance lets complete what this one skips": {
			plan: forJobs(all, toSkip, 0), other: forJobs(all, toWait, 0), waiting: 1, drained: "DrainInProgress", progressing: "WaitingForCompletion",
		},
		"both skip": {plan: forJobs(all, toSkip, 0), other: forJobs(all, toSkip, 0), kept: 1, drained: podsKept, progressing: "Drained"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMaintenance("m", test.plan), newNode("one"))
			w.run(newPod("p", "one", 0, jobs))
			w.facts.live = ptr.To("")
			w.share(newMaintenance("other", test.other))
			d, _ := w.decide()
			// Both have the same targets now.
			w.facts.draining[1].Status.NodeStatuses = d.status.NodeStatuses
			d = w.wantAsked(test.asked...)
			w.wantReasons(d, test.drained, test.progressing)
			entry := w.entry(d, "one")
			is.True(t, ptr.Deref(entry.PodsWaiting, 0) == test.waiting && entry.PodsKept == test.kept, "got the entry %+v", entry)
		})
	}
}

// TestPodsAreCountedBeforeTheDrain covers a maintenance in stage Cordon.
func TestPodsAreCountedBeforeTheDrain(t *testing.T) {
	w := newWorld(t, newMaintenance("m", forJobs(v1alpha1.PodTypeDefault, toSkip, 0), createdAt(v1alpha1.NodeMaintenanceStageCordon)), newNode("one"))
	w.run(newPod("backup", "one", 0, jobs))
	w.run(newPod("web", "one", 0))
	entry := w.entry(w.wantAsked(), "one")
	is.True(t, entry.PodsKept == 1 && entry.PodsPendingEvacuation == 1, "got the entry %+v", entry)
}

// TestAPausedDrainWaitsForNothing pauses a drain that waits for a job.
func TestAPausedDrainWaitsForNothing(t *testing.T) {
	w := newWorld(t, newMaintenance("m", forJobs(v1alpha1.PodTypeDefault, toWait, 0)), newNode("one"))
	w.run(newPod("backup", "one", 0, jobs))
	w.wantAsked()
	w.facts.subject.Spec.Paused = true
	d := w.wantAsked()
	w.wantReasons(d, "Paused", "Paused")
	is.Equal(t, w.entry(d, "one").DrainMessage, "Paused")
}

// TestAnEvacuationEndsWithItsMaintenance has a maintenance that drains a job, and one that lets it
// complete.
func TestAnEvacuationEndsWithItsMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("backup", "one", 0, jobs),
			newMaintenance("waits", forJobs(v1alpha1.PodTypeDefault, toWait, 0)), newMaintenance("drains"))
		for range 2 {
			f.step("waits")
			f.step("drains")
			f.wait(statusPace)
		}
		f.wantEvacuating("backup")
		f.enter("drains", v1alpha1.NodeMaintenanceStageComplete)
		f.step("drains")
		f.step("waits")
		f.wantEvacuating()
		f.wait(statusPace)
		f.step("waits")
		f.wantProgressing("waits", metav1.ConditionTrue, v1alpha1.ReasonProgressWaitingForCompletion)
		if e := f.wantEvent(EventWaveStarted); !strings.Contains(e, "asked to leave") && !strings.Contains(e, "may complete") {
			t.Errorf("got event %q", e)
		}
	})
}

// TestANodeIsDrainedBesideSkippedPods checks the conditions of the node and of the maintenance.
func TestANodeIsDrainedBesideSkippedPods(t *testing.T) {
	for behavior, want := range map[v1alpha1.DrainBehavior]metav1.ConditionStatus{
		toSkip: metav1.ConditionTrue, toWait: metav1.ConditionFalse,
	} {
		t.Run(string(behavior), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, newNode("one"), newPod("backup", "one", 0, jobs), newMaintenance("m", forJobs(v1alpha1.PodTypeDefault, behavior, 0)))
				f.step("m")
				f.wait(nodestate.SettleTime)
				f.step("m")
				f.wantEvacuating()
				reason, shown := podsKept, shownDrained
				if want == metav1.ConditionFalse {
					reason, shown = v1alpha1.ReasonDrainInProgress, shownDraining
				}
				f.wantDrained("m", want, reason)
				f.wantShown("one", shown...)
			})
		})
	}
}
