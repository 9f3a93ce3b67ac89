// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// paused pauses a maintenance at noon as the API server does, by user bob.
func paused(nm *v1alpha1.NodeMaintenance) {
	nm.Spec.Paused = true
	nm.Status.Pause = &v1alpha1.NodeMaintenancePause{By: "bob", Since: metav1.NewTime(noon)}
}

// resumed ends a pause as the API server does.
func resumed(at time.Time) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.Paused, nm.Status.Pause = false, nil
		if nm.Status.LastProgressTimestamp != nil {
			nm.Status.LastProgressTimestamp = &metav1.Time{Time: at}
		}
	}
}

func begun(e *v1alpha1.Evacuation) {
	e.Status.EvacuationProgressTimestamp = &metav1.Time{Time: noon}
}

func (w *world) pause()  { paused(w.facts.subject.NodeMaintenance) }
func (w *world) resume() { resumed(w.facts.now)(w.facts.subject.NodeMaintenance) }

// unwanted returns the names of the pods whose Evacuations a decision withdraws.
func (d *decision) unwanted() []string {
	names := []string{}
	for _, n := range d.counts {
		for _, e := range n.unwanted {
			names = append(names, e.Spec.PodRef.Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestPauseWithdrawsWhatHasNotBegun(t *testing.T) {
	for name, test := range map[string]struct {
		pod      func(*corev1.Pod)
		with     []func(*v1alpha1.Evacuation)
		unwanted []string
	}{
		"an Evacuation without a report is withdrawn": {unwanted: []string{"p"}},
		"an Evacuation that waits for its eviction is withdrawn": {unwanted: []string{"p"}, with: []func(*v1alpha1.Evacuation){
			func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorClass = v1alpha1.EvacuatorClassEviction },
		}},
		"an Evacuation stays if its evacuator has reported":     {with: []func(*v1alpha1.Evacuation){begun}},
		"an Evacuation stays if it cannot be cancelled":         {with: []func(*v1alpha1.Evacuation){forbidden}},
		"an Evacuation stays if its pod is terminating":         {pod: terminatingAt(noon, time.Minute)},
		"the Evacuation of another instigator is not withdrawn": {with: []func(*v1alpha1.Evacuation){instigatedBy(foreignInstigator)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMaintenance("m"), newNode("one"))
			pod := newPod("p", "one", 0)
			if test.pod != nil {
				test.pod(pod)
			}
			w.run(pod)
			w.wantAsked("p")
			w.run(pod, evacuated(test.with...))
			w.pause()
			d := w.wantAsked()
			is.Slices(t, d.unwanted(), test.unwanted, "withdrawn")
			w.wantReasons(d, "Paused", "Paused")
			w.resume()
			is.Slices(t, w.after(time.Second).unwanted(), nil, "withdrawn after the resume")
		})
	}
}

func TestPauseOpensNoWave(t *testing.T) {
	w := newWorld(t, newMaintenance("m", planning(upTo(100))), newNode("one"))
	w.run(newPod("low", "one", 0))
	w.run(newPod("high", "one", 1000))
	before := w.entry(w.wantAsked("low"), "one").DrainTargets
	w.pause()
	w.gone("low")
	d := w.wantAsked()
	is.Slices(t, w.entry(d, "one").DrainTargets, before, "targets")
	is.Equal(t, w.entry(d, "one").DrainMessage, "Paused", "message of the node")
	w.run(newPod("another", "one", 0))
	w.wantAsked()
	w.resume()
	w.wantAsked("another")
	w.gone("another")
	w.wantAsked("high")
}

func TestConditionsOfAPause(t *testing.T) {
	none := func(*world) {}
	pod := func(w *world) { w.run(newPod("p", "one", 0)) }
	for name, test := range map[string]struct {
		stage                v1alpha1.NodeMaintenanceStage
		given                func(*world)
		drained, progressing string
	}{
		"a pause in stage Idle has no effect":           {stageIdle, pod, "NotRequested", "NotRequested"},
		"a pause in stage Cordon has no effect":         {stageCordon, pod, "NotRequested", "NotRequested"},
		"a drain with pods is paused":                   {stageDrain, pod, "Paused", "Paused"},
		"a drain without pods is drained":               {stageDrain, none, "DrainComplete", "Drained"},
		"a drain that waits for a live list is paused":  {stageDrain, func(w *world) { w.facts.unconfirmed = []string{"one"} }, "Paused", "Paused"},
		"a drain with kept pods is drained":             {stageDrain, func(w *world) { w.run(newPod("d", "one", 0, ofDaemonSet)) }, podsKept, "Drained"},
		"a drain without nodes has none":                {stageDrain, func(w *world) { w.facts.subject.nodes, w.facts.subject.inside = nil, nil }, "NoNodesSelected", "Paused"},
		"a drain whose requester lost a node is paused": {stageDrain, func(w *world) { pod(w); w.outside("one", exclusion{reason: v1alpha1.NodeStatusNotAuthorized}) }, "Paused", "Paused"},
		"a drain whose pods are all blocked is paused": {stageDrain, func(w *world) {
			w.run(newPod("p", "one", 0), evacuated(begun, withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodFinalizer)))
		}, "Paused", "Paused"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMaintenance("m", createdAt(test.stage), paused), newNode("one"))
			w.facts.live = ptr.To("")
			test.given(w)
			d := w.after(0)
			w.wantReasons(d, test.drained, test.progressing)
			is.True(t, d.status.Pause != nil && d.status.Pause.By == "bob", "got the pause %v, want the one by bob", d.status.Pause)
			if test.progressing == "Paused" {
				_, message := d.condition(v1alpha1.ConditionProgressing)
				for _, part := range []string{`user "bob"`, "2026-11-01T12:00:00Z", "kubectl maintenance resume m"} {
					wantPart(t, message, part)
				}
			}
		})
	}
}

// TestPauseStopsTheClock covers a pause that is longer than the stall timeout. A drain that was
// drained before stays so.
func TestPauseStopsTheClock(t *testing.T) {
	w := newWorld(t, newMaintenance("m"), newNode("one"))
	w.run(newPod("p", "one", 0))
	w.after(0)
	w.after(DefaultStallTimeout - time.Second)
	w.pause()
	d := w.after(2 * time.Second)
	w.wantReasons(d, "Paused", "Paused")
	is.Equal(t, d.wake, time.Duration(0), "wake of a paused drain")
	w.wantReasons(w.after(24*time.Hour), "Paused", "Paused")
	w.resume()
	d = w.after(time.Second)
	w.wantReasons(d, "DrainInProgress", "Draining")
	is.Equal(t, d.wake, DefaultStallTimeout-time.Second, "wake after the resume")
	w.wantReasons(w.after(DefaultStallTimeout-2*time.Second), "DrainInProgress", "Draining")
	w.wantReasons(w.after(time.Second), "DrainBlocked", "Stalled")
	w.gone("p")
	w.facts.live = ptr.To("")
	w.wantReasons(w.after(time.Second), "DrainComplete", "Drained")
	w.pause()
	w.wantReasons(w.after(time.Hour), "DrainComplete", "Drained")
	w.run(newPod("q", "one", 0))
	w.wantReasons(w.after(time.Hour), "Paused", "Paused")
}

// TestPausesChangeNothingInTheEnd drains the same pods with and without pauses at random moments.
// The evacuators begin, and the pods leave, in any order.
func TestPausesChangeNothingInTheEnd(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, newMaintenance("m", planning(upTo(100), upTo(200))), newNode("one"), newNode("two"))
		w.facts.live = ptr.To("")
		for i := range 2 + random.IntN(8) {
			w.run(newPod(fmt.Sprintf("p-%d", i), []string{"one", "two"}[random.IntN(2)], int32(random.IntN(4)*100)))
		}
		var targets []v1alpha1.NodeMaintenanceNodeStatus
		for range 400 {
			subject := w.facts.subject.NodeMaintenance
			switch was := subject.Spec.Paused; {
			case !was && random.IntN(6) == 0:
				w.pause()
			case was && random.IntN(4) == 0:
				w.resume()
			}
			d, asked := w.decide()
			if isPaused := w.facts.subject.Spec.Paused; isPaused {
				is.True(t, len(asked) == 0, "seed %d: %q are asked to leave during a pause", seed, asked)
				for i := range targets {
					is.Slices(t, d.status.NodeStatuses[i].DrainTargets, targets[i].DrainTargets, "targets during a pause")
				}
			}
			targets = d.status.NodeStatuses
			for _, name := range d.unwanted() {
				p := w.pods[name]
				is.True(t, p.Evacuation.Status.EvacuationProgressTimestamp == nil, "seed %d: the begun Evacuation of %s is withdrawn", seed, name)
				w.change(name, func(p *nodestate.Pod) { p.Evacuation, p.Ours = nil, false })
			}
			for _, name := range slices.Sorted(maps.Keys(w.pods)) {
				switch p := w.pods[name]; {
				case p.Evacuation == nil:
				case p.Evacuation.Status.EvacuationProgressTimestamp == nil:
					if random.IntN(3) == 0 {
						w.change(name, evacuated(begun))
					}
				case random.IntN(4) == 0:
					w.gone(name)
				}
			}
			w.facts.now = w.facts.now.Add(time.Duration(random.IntN(300)) * time.Second)
		}
		w.resume()
		w.wantReasons(w.after(0), "DrainComplete", "Drained")
		must.True(t, !t.Failed(), "seed %d", seed)
	}
}

// change updates a maintenance as the API server does, and waits until the cache has it.
func (f *fixture) change(name string, modify func(*v1alpha1.NodeMaintenance)) {
	f.t.Helper()
	nm := f.nm(name)
	modify(nm)
	nm.Generation++
	must.Get(f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm, metav1.UpdateOptions{}))(f.t)
	f.eventually("the cache shows the change", func() bool {
		cached, err := f.maintenanceLister.Get(name)
		return err == nil && cached.Generation == nm.Generation
	})
}

// report makes the evacuator of a pod report.
func (f *fixture) report(pod string) {
	f.t.Helper()
	for _, e := range f.evacuationList() {
		if e.Spec.PodRef.Name == pod {
			begun(e)
			must.Get(f.maintenance.MaintenanceV1alpha1().Evacuations(e.Namespace).UpdateStatus(f.ctx, e, metav1.UpdateOptions{}))(f.t)
		}
	}
	f.cached()
}

func TestPauseAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newMaintenance("m"), newNode("one"), newPod("begun", "one", 0), newPod("waiting", "one", 0))
		f.step("m")
		f.wantEvacuating("begun", "waiting")
		f.report("begun")
		f.change("m", paused)
		wantPart(t, f.wantEvent(EventDrainPaused), `user "bob"`)
		f.step("m")
		f.wantEvacuating("begun")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonPaused)
		f.wantProgressing("m", metav1.ConditionFalse, v1alpha1.ReasonPaused)
		f.wantCordon("one", true, "m")
		f.create(newPod("new", "one", 0))
		f.wait(time.Hour)
		f.step("m")
		f.wantEvacuating("begun")
		is.Equal(t, f.nodeStatus("m", "one").PodsPendingEvacuation, int32(2), "pods that wait for the resume")

		t.Log("a new leader knows the pause")
		f.restart()
		f.step("m")
		f.sweep()
		f.wantEvacuating("begun")

		f.change("m", resumed(f.clock.Now()))
		wantPart(t, f.wantEvent(EventDrainResumed), `user "bob"`)
		f.step("m")
		f.wantEvacuating("begun", "new", "waiting")
		f.wantProgressing("m", metav1.ConditionTrue, v1alpha1.ReasonProgressDraining)
	})
}

func TestMaintenanceThatIsCreatedPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newMaintenance("m", createdAt(stageCordon), paused), newNode("one"), newPod("p", "one", 0))
		f.wantEvent(EventDrainPaused)
		f.step("m")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNotRequested)
		f.enter("m", stageDrain)
		f.step("m")
		f.wantEvacuating()
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonPaused)
		f.change("m", func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = stageComplete })
		f.step("m")
		f.wantCordon("one", false)
	})
}

// TestPauseOfOneOfTwoMaintenances has two maintenances of a node. The paused one has another node,
// whose pods the other one would wait for if it were not paused.
func TestPauseOfOneOfTwoMaintenances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newMaintenance("paused", selecting("blue", "red"), planning(upTo(100))), newMaintenance("other", planning(upTo(100))),
			newNode("shared"), newNode("own", inPool("red")),
			newPod("own-low", "own", 0), newPod("low", "shared", 0), newPod("high", "shared", 1000))
		both := func() {
			for range 3 {
				f.step("paused")
				f.step("other")
			}
		}
		both()
		f.wantEvacuating("low", "own-low")
		f.change("paused", paused)
		both()
		f.wantEvacuating("low")
		f.deletePod("low")
		both()
		f.wantEvacuating("high")
		f.wantProgressing("other", metav1.ConditionTrue, v1alpha1.ReasonProgressDraining)

		t.Log("the other one is completed: the paused one wants no pod to leave")
		f.enter("other", stageComplete)
		both()
		f.wantEvacuating()
		f.wantCordon("shared", true, "paused")
		f.change("paused", resumed(f.clock.Now()))
		f.step("paused")
		f.wantEvacuating("own-low")
	})
}

// TestRequestAfterAPause sends the requests of a decision that was made before the pause.
func TestRequestAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newMaintenance("m"), newNode("one"))
		f.step("m")
		before := f.nm("m")
		f.change("m", paused)
		pod := newPod("p", "one", 0)
		f.create(pod)
		f.cached()
		must.Do(t, f.Controller.create(f.ctx, before, ptr.To(f.state.Classify(pod, f.node("one")))))
		f.cached()
		f.wantEvacuating()
	})
}
