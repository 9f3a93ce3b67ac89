// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
)

// These tests make several decisions in a row. Each decision reads the status of the previous one.

func TestDecideThePeakNeverFalls(t *testing.T) {
	w := newWorld(t, newMaintenance("m", createdAt(stageCordon)), newNode("one"))
	for _, name := range []string{"p", "q", "r"} {
		w.run(newPod(name, "one", 0))
	}
	want := func(peak int32) {
		t.Helper()
		if got := w.entry(w.after(time.Second), "one").PodsPeak; got != peak {
			t.Errorf("got podsPeak %d, want %d", got, peak)
		}
	}
	want(0)
	w.gone("r")
	atStage(stageDrain)(w.facts.subject.NodeMaintenance)
	w.facts.draining = []*member{w.facts.subject}
	want(2)
	w.gone("p")
	want(2)
	w.run(newPod("s", "one", 0))
	w.run(newPod("t", "one", 0))
	want(3)
	w.gone("q", "s")
	want(3)
}

func TestDecideStalled(t *testing.T) {
	w := newWorld(t, newMaintenance("m"), newNode("one"))
	w.run(newPod("p", "one", 0))
	d := w.after(0)
	w.wantReasons(d, "DrainInProgress", "Draining")
	if d.wake != DefaultStallTimeout {
		t.Errorf("wakes after %s, want when the drain counts as stalled", d.wake)
	}
	w.wantReasons(w.after(DefaultStallTimeout), "DrainBlocked", "Stalled")
	w.run(newPod("q", "one", 0))
	w.after(time.Second)
	w.gone("p")
	w.wantReasons(w.after(time.Second), "DrainInProgress", "Draining")
}

// TestDecidePodsThatKeepComingAreNoProgress covers a user who creates a pod on the held node every
// minute, each with other labels, so that none counts as the recreation of another.
func TestDecidePodsThatKeepComingAreNoProgress(t *testing.T) {
	w := newWorld(t, newMaintenance("m"), newNode("one"))
	w.run(newPod("stuck", "one", 0))
	w.after(0)
	for i := range 60 {
		guest := newPod(fmt.Sprintf("guest-%03d", i), "one", 0, func(p *corev1.Pod) { p.Labels = map[string]string{"n": p.Name} })
		w.run(guest)
		w.after(20 * time.Second)
		terminatingAt(w.facts.now, 30*time.Second)(guest)
		w.run(guest, evacuated())
		w.after(20 * time.Second)
		w.gone(guest.Name)
		w.after(20 * time.Second)
	}
	w.wantReasons(w.after(0), "DrainBlocked", "Stalled")
	t.Log("the one that was there leaves, and another comes")
	w.gone("stuck")
	w.run(newPod("late", "one", 0))
	w.after(time.Second)
	w.gone("late")
	w.run(newPod("later", "one", 0))
	w.wantReasons(w.after(time.Second), "DrainBlocked", "Stalled")
	w.gone("later")
	w.facts.live = ptr.To("")
	w.wantReasons(w.after(time.Second), "DrainComplete", "Drained")
}

// terminatingAt makes a pod terminate since the given time, with a grace period.
func terminatingAt(at time.Time, grace time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: at.Add(grace)}, ptr.To(int64(grace/time.Second))
	}
}

// TestDecideGracePeriodIsProgressOnlyForAWhile covers one pod that uses its whole grace period.
func TestDecideGracePeriodIsProgressOnlyForAWhile(t *testing.T) {
	for name, test := range map[string]struct {
		grace, moves time.Duration
	}{
		"an hour":                  {time.Hour, time.Hour},
		"exactly the longest":      {protocol.DefaultLongGrace, protocol.DefaultLongGrace},
		"a year, of which 2 hours": {365 * 24 * time.Hour, protocol.DefaultLongGrace},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMaintenance("m"), newNode("one"))
			w.run(newPod("p", "one", 0, terminatingAt(noon, test.grace)))
			for w.after(0); w.facts.now.Sub(noon) < test.moves; {
				w.after(5 * time.Minute)
			}
			w.wantReasons(w.after(DefaultStallTimeout-2*time.Minute), "DrainInProgress", "Draining")
			w.wantReasons(w.after(10*time.Minute), "DrainBlocked", "Stalled")
		})
	}
}

func TestDecideOwnPodsAreLastOfTheirWave(t *testing.T) {
	w := newWorld(t, newMaintenance("m", planning(upTo(1000), upTo(2000))), newNode("one"), newNode("two"))
	own := func(p *nodestate.Pod) { p.Own = true }
	w.run(newPod("haulout-1", "one", 500), own)
	w.run(newPod("haulout-2", "two", 500), own)
	w.run(newPod("web", "two", 700))
	w.run(newPod("late", "one", 2000))
	w.wantAsked("web")
	w.gone("web")
	w.wantAsked("haulout-1", "haulout-2")
	w.gone("haulout-1", "haulout-2")
	w.wantAsked("late")
}

// TestDecideBlockedCountsThePodsThatAreAsked: a pod of the server that is not asked yet does not
// count, nor one of a later wave that another client evacuates.
func TestDecideBlockedCountsThePodsThatAreAsked(t *testing.T) {
	w := newWorld(t, newMaintenance("m", planning(upTo(1000), upTo(2000))), newNode("one"))
	own := func(p *nodestate.Pod) { p.Own = true }
	byBudget := withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget)
	w.run(newPod("haulout-1", "one", 500), own)
	w.run(newPod("web", "one", 500), evacuated(byBudget))
	w.run(newPod("late", "one", 2000), evacuated(instigatedBy(foreignInstigator), byBudget))
	d := w.wantAsked()
	w.wantReasons(d, "DrainBlocked", "Blocked")
	if message := conditionOf(&v1alpha1.NodeMaintenance{Status: d.status}, v1alpha1.ConditionProgressing).Message; strings.Contains(message, "late") {
		t.Errorf("the message %q names a pod that is not asked", message)
	}
	w.run(newPod("web", "one", 500), evacuated())
	w.wantReasons(w.after(time.Second), "DrainInProgress", "Draining")
	w.gone("web")
	w.wantAsked("haulout-1")
	w.run(newPod("haulout-1", "one", 500), own, evacuated(byBudget))
	w.wantReasons(w.after(time.Second), "DrainBlocked", "Blocked")
}

// TestAPauseBeforeTheDrainIsNoStall resumes a maintenance in stage Idle, and begins its drain a day
// later.
func TestAPauseBeforeTheDrainIsNoStall(t *testing.T) {
	w := newWorld(t, newMaintenance("m"), newNode("one"))
	w.run(newPod("web", "one", 0))
	w.wantAsked("web")
	nm := w.facts.subject.NodeMaintenance
	nm.Status.LastProgressTimestamp = &metav1.Time{Time: w.facts.now.Add(-24 * time.Hour)}
	w.wantReasons(w.after(0), "DrainBlocked", "Stalled")
	nm.Status.StageStatuses[len(nm.Status.StageStatuses)-1].StartTimestamp = &metav1.Time{Time: w.facts.now}
	nm.Status.LastProgressTimestamp = &metav1.Time{Time: w.facts.now.Add(-24 * time.Hour)}
	w.wantReasons(w.after(0), "DrainInProgress", "Draining")
}

func TestDecideStaticPodsLeaveLast(t *testing.T) {
	w := newWorld(t, newMaintenance("m"), newNode("one", agent(corev1.ConditionTrue)), newNode("two", agent(corev1.ConditionFalse)), newNode("three"))
	w.evacuators = sets.New(classKubelet)
	w.run(newPod("web", "one", 0))
	for _, node := range []string{"one", "two", "three"} {
		w.run(newPod("proxy-"+node, node, 2000001000, static))
	}
	w.wantAsked("web")
	w.gone("web")
	w.wantAsked("proxy-one")
	w.gone("proxy-one")
	w.facts.live = ptr.To("")
	d := w.after(time.Minute)
	w.wantReasons(d, podsKept, "Drained")
	for node, want := range map[string]int32{"one": 0, "two": 1, "three": 1} {
		if got := w.entry(d, node).PodsKept; got != want {
			t.Errorf("got podsKept %d of node %s, want %d", got, node, want)
		}
	}
}

// TestDecideStaticPodsThatAreKept covers a node whose agent keeps one of its two pods. On the
// control-plane node all static pods are kept, even if its agent does not keep them.
func TestDecideStaticPodsThatAreKept(t *testing.T) {
	controlPlane := func(node *corev1.Node) { node.Labels["node-role.kubernetes.io/control-plane"] = "" }
	w := newWorld(t, newMaintenance("m"), newNode("one", agent(corev1.ConditionTrue), keeping("balancer")), newNode("two", agent(corev1.ConditionTrue), controlPlane))
	w.evacuators = sets.New(classKubelet)
	w.run(newPod("balancer", "one", 0, static))
	w.run(newPod("web", "one", 0, static))
	w.run(newPod("etcd", "two", 0, static))
	w.wantAsked("web")
	w.gone("web")
	w.facts.live = ptr.To("")
	d := w.after(time.Minute)
	w.wantReasons(d, podsKept, "Drained")
	_, message := d.condition(v1alpha1.ConditionDrained)
	wantPart(t, message, "static pod (ServesTheAPI) of default/balancer")
	wantPart(t, message, "static pod (ControlPlaneNode) of default/etcd")
	wantPart(t, message, "2 static pods keep running until the machine goes down")
}

// TestDecideTargetsOfANodeAreStoredByEachMaintenance covers a second maintenance of the node that
// has not stored its targets yet: the first one may be completed before that.
func TestDecideTargetsOfANodeAreStoredByEachMaintenance(t *testing.T) {
	w := newWorld(t, newMaintenance("a", createdMinute(1)), newNode("one"))
	other := &member{NodeMaintenance: newMaintenance("b", createdMinute(2)), nodes: w.facts.subject.nodes, inside: w.facts.subject.inside}
	w.facts.draining = append(w.facts.draining, other)
	w.run(newPod("p", "one", 0))
	d := w.wantAsked()
	if _, behind := due(w.facts, d); !behind.Equal(sets.New("b")) {
		t.Errorf("waits for %v, want b", sets.List(behind))
	}
	other.Status.NodeStatuses = slices.Clone(d.status.NodeStatuses)
	w.wantAsked("p")
}

func TestDecideConfirmation(t *testing.T) {
	for name, test := range map[string]struct {
		was         bool
		unconfirmed []string
		unsettled   time.Duration
		live        *string
		// waits is a part of the message while the condition Drained is not True.
		waits   string
		confirm bool
		wake    time.Duration
	}{
		"the scheduler may still bind pods":                     {unconfirmed: []string{"one"}, unsettled: time.Second, waits: "the scheduler may still bind"},
		"a node is not confirmed":                               {unconfirmed: []string{"one"}, waits: "waiting for a live list to confirm it for node one"},
		"all nodes are confirmed, and pods may be nominated":    {confirm: true},
		"a live list has no pod":                                {live: ptr.To("")},
		"a live list has a nominated pod":                       {live: ptr.To("shop/web"), waits: "Pod shop/web was nominated for a node a moment ago", wake: confirmPatience},
		"Drained was True before":                               {was: true},
		"Drained was True, and a node was cordoned again since": {was: true, unconfirmed: []string{"one"}, unsettled: 4 * time.Second, waits: "may still bind"},
		"Drained was True, and that node is confirmed":          {was: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMaintenance("m"), newNode("one"))
			if test.was {
				w.facts.live = ptr.To("")
				w.after(0)
			}
			w.facts.unconfirmed, w.facts.unsettled, w.facts.live = test.unconfirmed, test.unsettled, test.live
			d := w.after(0)
			drained, message := d.condition(v1alpha1.ConditionDrained)
			if want := test.waits == ""; (drained == v1alpha1.ReasonDrainComplete) != want || d.confirm != test.confirm {
				t.Errorf("got Drained %s (%s), asking for a live list: %t", drained, message, d.confirm)
			}
			if test.waits != "" {
				wantPart(t, message, test.waits)
				if test.wake > 0 && d.wake != test.wake {
					t.Errorf("wakes after %s, want %s", d.wake, test.wake)
				}
			}
		})
	}
}

// TestDecideFormerNodes covers a node in the status that the maintenance no longer selects.
func TestDecideFormerNodes(t *testing.T) {
	joining := func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NewNodes = v1alpha1.NewNodesPolicyJoin
	}
	for name, test := range map[string]struct {
		nm      *v1alpha1.NodeMaintenance
		node    formerNode
		trouble string
		// message is the message of the entry, "" if there is no entry.
		message  string
		reason   v1alpha1.NodeStatusReason
		withdraw bool
	}{
		"it is still to be released":                  {message: "Being released", reason: v1alpha1.NodeStatusReleasing, withdraw: true},
		"its release fails":                           {trouble: "no", message: "Not released: no", reason: v1alpha1.NodeStatusNotReleased, withdraw: true},
		"it is released":                              {node: formerNode{released: true}},
		"it is gone and may come back under its name": {node: formerNode{gone: true}, message: "Node is gone", reason: v1alpha1.NodeStatusGone},
		"it is gone, and every new node joins":        {nm: newMaintenance("m", joining), node: formerNode{gone: true}},
		"it is gone, and the maintenance is Idle":     {nm: newMaintenance("m", createdAt(stageIdle)), node: formerNode{gone: true}},
	} {
		t.Run(name, func(t *testing.T) {
			nm := test.nm
			if nm == nil {
				nm = newMaintenance("m")
			}
			w := newWorld(t, nm, newNode("one"))
			targets := []v1alpha1.DrainPlanEntry{upTo(1)}
			test.node.NodeMaintenanceNodeStatus = &v1alpha1.NodeMaintenanceNodeStatus{NodeRef: refOf(newNode("a")), DrainTargets: targets, PodsPeak: 7}
			w.facts.former = []formerNode{test.node}
			if test.trouble != "" {
				w.facts.troubles["a"] = loop.Failure{Since: noon, Text: test.trouble}
			}
			d := w.after(0)
			if got := len(d.status.NodeStatuses) == 2; got != (test.message != "") {
				t.Fatalf("got the nodes %+v", d.status.NodeStatuses)
			}
			if test.message != "" {
				if got := w.entry(d, "a"); got.DrainMessage != test.message || got.Reason != test.reason || len(got.DrainTargets) != 1 || got.PodsPeak != 0 {
					t.Errorf("got the entry %+v, want the message %q and the targets alone", got, test.message)
				}
			}
			if got := slices.Equal(d.withdraw, []string{"a"}); got != test.withdraw {
				t.Errorf("the Evacuations of %q are withdrawn, want those of the node: %t", d.withdraw, test.withdraw)
			}
		})
	}
}

// TestDecideRelease covers a maintenance that ends, with two nodes: one is released, one is not.
func TestDecideRelease(t *testing.T) {
	w := newWorld(t, newMaintenance("m"), newNode("one"), newNode("two"))
	w.run(newPod("p", "one", 0))
	w.run(newPod("q", "two", 0))
	w.after(0)
	w.after(0)
	atStage(stageComplete)(w.facts.subject.NodeMaintenance)
	w.facts.held, w.facts.draining = sets.New("two"), nil
	w.facts.troubles["two"] = loop.Failure{Since: noon, Text: "a policy says no"}
	d := w.after(0)
	want := v1alpha1.NodeMaintenanceNodeStatus{NodeRef: refOf(newNode("one"))}
	if got := w.entry(d, "one"); !sameNodeStatus(&got, &want) {
		t.Errorf("got the entry %+v of a released node, want its name alone", got)
	}
	if got := w.entry(d, "two"); got.DrainMessage != "Not released: a policy says no" || len(got.DrainTargets) == 0 || got.PodsPeak != 0 {
		t.Errorf("got the entry %+v of a node that is not released", got)
	}
	w.wantReasons(d, v1alpha1.ReasonNotRequested, v1alpha1.ReasonProgressComplete)
	if !slices.Equal(d.withdraw, []string{"two"}) || d.wake != releaseRetry {
		t.Errorf("withdraws from %q and wakes after %s", d.withdraw, d.wake)
	}
	w.facts.held = nil
	if d = w.after(0); d.wake != 0 || len(d.withdraw) > 0 {
		t.Errorf("withdraws from %q and wakes after %s when all nodes are released", d.withdraw, d.wake)
	}
	if _, message := d.condition(v1alpha1.ConditionProgressing); message != allReleased {
		t.Errorf("got the message %q", message)
	}
}

// TestDecideWaves covers two entries of a plan with pods, and one without.
func TestDecideWaves(t *testing.T) {
	w := newWorld(t, newMaintenance("m", planning(upTo(1000), upTo(2000), upTo(3000))), newNode("one"), newNode("two"), newNode("out"))
	w.outside("out", exclusion{reason: v1alpha1.NodeStatusNotAuthorized, why: "no"})
	w.run(newPod("p", "one", 0))
	w.run(newPod("q", "two", 1000))
	w.run(newPod("late", "one", 2500))
	w.run(newPod("stays", "out", 0))
	want := func(d *decision, want ...v1alpha1.NodeMaintenanceWave) {
		t.Helper()
		if got := d.status.Waves; !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("got the waves %v, want %v", got, want)
		}
	}
	at := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(after)} }
	first := v1alpha1.NodeMaintenanceWave{Entry: 0, PodsPeak: 2, PodsLeft: 2, StartTime: at(0)}
	third := v1alpha1.NodeMaintenanceWave{Entry: 2, PodsPeak: 1, PodsLeft: 1}
	want(w.after(0), first, third)
	w.gone("p")
	first.PodsLeft = 1
	want(w.after(time.Minute), first, third)
	w.gone("q")
	first.PodsLeft, first.EndTime, third.StartTime = 0, at(2*time.Minute), at(2*time.Minute)
	want(w.after(time.Minute), first, third)
	t.Log("a pod comes back")
	w.run(newPod("r", "one", 0))
	first.PodsLeft, first.EndTime = 1, nil
	want(w.after(time.Minute), first, third)
	t.Log("the maintenance ends")
	atStage(stageComplete)(w.facts.subject.NodeMaintenance)
	want(w.after(time.Minute), first, third)
}
