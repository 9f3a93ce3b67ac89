// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/testing/is"
)

// reached are the words of maintenances that have reached their stage.
var reached = []glance.StatusWord{glance.StatusIdle, glance.StatusCordoned, glance.StatusDrained, glance.StatusComplete}

// wantReady checks that the conditions Ready and Stalled agree with the word of a maintenance that
// the controller has decided about. Tools that follow kstatus report the maintenance as current if
// Ready is True, as failed if Stalled is True, and otherwise as in progress.
func wantReady(t *testing.T, nm *v1alpha1.NodeMaintenance) (word glance.StatusWord, reason string) {
	t.Helper()
	word = glance.Status(nm)
	ready := conditionOf(nm, v1alpha1.ConditionReady)
	want := metav1.ConditionFalse
	if slices.Contains(reached, word) {
		want = metav1.ConditionTrue
	}
	if ready == nil || ready.Status != want || ready.ObservedGeneration != nm.Generation || ready.Message == "" {
		t.Errorf("%s: got %+v, want Ready=%s of generation %d with a message", word, ready, want, nm.Generation)
		return word, ""
	}
	is.Equal(t, nm.Status.ObservedGeneration, nm.Generation, "the observed generation")
	is.Equal(t, meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionStalled), word == glance.StatusStalled, "Stalled")
	is.True(t, word == glance.StatusStalled || conditionOf(nm, v1alpha1.ConditionStalled) == nil, "%s with a condition Stalled", word)
	return word, ready.Reason
}

// wantUnobserved checks the word after a user has paused or resumed a maintenance and before the
// controller decides about it: only the spec can tell.
func wantUnobserved(t *testing.T, nm *v1alpha1.NodeMaintenance) {
	t.Helper()
	nm = nm.DeepCopy()
	nm.Generation++
	nm.Spec.Paused = !nm.Spec.Paused
	word := glance.Status(nm)
	is.Equal(t, word == glance.StatusPaused, v1alpha1.IsPaused(nm), "the word is Paused")
	is.True(t, word == glance.StatusIdle || !slices.Contains(reached, word), "got the word %s before a decision", word)
}

func uncordon(w *world) { w.nodes[0].Spec.Unschedulable = false }

func excluding(reason v1alpha1.NodeStatusReason) func(*world) {
	return func(w *world) { w.outside("one", exclusion{reason: reason, why: "some text", since: noon}) }
}

func withPod(modify ...func(*v1alpha1.Evacuation)) func(*world) {
	return func(w *world) { w.run(newPod("p", "one", 0), evacuated(modify...)) }
}

func failing(w *world) {
	w.facts.problems = []loop.Failure{{About: "sync", Since: noon, Text: "no answer"}}
}

func pausing(w *world) { paused(w.facts.subject.NodeMaintenance) }

func confirmed(w *world) { w.facts.live = ptr.To("") }

func later(w *world) { w.after(DefaultStallTimeout) }

// aWhileAgo makes the last progress too long ago for the movement of a failing drain.
func aWhileAgo(w *world) {
	w.after(0)
	w.facts.now = w.facts.now.Add(2 * loop.VisibleAfter)
}

func TestDecideReady(t *testing.T) {
	blocked := withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget)
	for name, test := range map[string]struct {
		stage  v1alpha1.NodeMaintenanceStage
		empty  bool
		mods   []func(*world)
		want   glance.StatusWord
		reason string
	}{
		"Idle":               {stage: stageIdle, want: glance.StatusIdle, reason: "Idle"},
		"Idle and failing":   {stage: stageIdle, mods: []func(*world){failing}, want: glance.StatusIdle, reason: "Idle"},
		"Idle without nodes": {stage: stageIdle, empty: true, want: glance.StatusNoNodes, reason: "NoNodesSelected"},

		"Cordon":                       {stage: stageCordon, want: glance.StatusCordoned, reason: "Cordoned"},
		"Cordon and failing":           {stage: stageCordon, mods: []func(*world){failing}, want: glance.StatusCordoned, reason: "Cordoned"},
		"Cordon without nodes":         {stage: stageCordon, empty: true, want: glance.StatusNoNodes, reason: "NoNodesSelected"},
		"Cordon of a node to cordon":   {stage: stageCordon, mods: []func(*world){uncordon}, want: glance.StatusCordoning, reason: "Cordoning"},
		"Cordon without the right":     {stage: stageCordon, mods: []func(*world){excluding(v1alpha1.NodeStatusNotAuthorized)}, want: glance.StatusNotAuthorized, reason: "NotAuthorized"},
		"Cordon that is fought over":   {stage: stageCordon, mods: []func(*world){excluding(v1alpha1.NodeStatusNotCordoned)}, want: glance.StatusNotCordoned, reason: "NodeNotCordoned"},
		"Cordon of a node that's full": {stage: stageCordon, mods: []func(*world){excluding(v1alpha1.NodeStatusTooManyMaintenances)}, want: glance.StatusNotCordoned, reason: "TooManyMaintenances"},

		"Drain":                         {stage: stageDrain, mods: []func(*world){withPod()}, want: glance.StatusDraining, reason: "DrainInProgress"},
		"Drain without nodes":           {stage: stageDrain, empty: true, want: glance.StatusNoNodes, reason: "NoNodesSelected"},
		"Drain without nodes for long":  {stage: stageDrain, empty: true, mods: []func(*world){later, later}, want: glance.StatusNoNodes, reason: "NoNodesSelected"},
		"Drain of a node to cordon":     {stage: stageDrain, mods: []func(*world){withPod(), uncordon}, want: glance.StatusWaiting, reason: "DrainInProgress"},
		"Drain without the right":       {stage: stageDrain, mods: []func(*world){excluding(v1alpha1.NodeStatusNotAuthorized)}, want: glance.StatusNotAuthorized, reason: "NotAuthorized"},
		"Drain that is fought over":     {stage: stageDrain, mods: []func(*world){excluding(v1alpha1.NodeStatusNotCordoned)}, want: glance.StatusNotCordoned, reason: "NodeNotCordoned"},
		"Drain of a node that's full":   {stage: stageDrain, mods: []func(*world){excluding(v1alpha1.NodeStatusTooManyMaintenances), aWhileAgo}, want: glance.StatusNotCordoned, reason: "SyncFailed"},
		"Drain that is blocked":         {stage: stageDrain, mods: []func(*world){withPod(blocked)}, want: glance.StatusBlocked, reason: "Blocked"},
		"Drain that is stalled":         {stage: stageDrain, mods: []func(*world){withPod(), later, later}, want: glance.StatusStalled, reason: "Stalled"},
		"Drain that fails":              {stage: stageDrain, mods: []func(*world){withPod(), aWhileAgo, failing}, want: glance.StatusFailing, reason: "SyncFailed"},
		"Drain that fails and moves":    {stage: stageDrain, mods: []func(*world){withPod(), failing}, want: glance.StatusFailing, reason: "DrainInProgress"},
		"Drain that waits for the list": {stage: stageDrain, mods: []func(*world){func(w *world) { w.facts.unconfirmed = []string{"one"} }}, want: glance.StatusDraining, reason: "DrainInProgress"},
		"paused":                        {stage: stageDrain, mods: []func(*world){pausing, withPod()}, want: glance.StatusPaused, reason: "Paused"},
		"paused without the right":      {stage: stageDrain, mods: []func(*world){pausing, withPod(), excluding(v1alpha1.NodeStatusNotAuthorized)}, want: glance.StatusPaused, reason: "Paused"},
		"paused without nodes":          {stage: stageDrain, empty: true, mods: []func(*world){pausing}, want: glance.StatusNoNodes, reason: "NoNodesSelected"},
		"paused and drained":            {stage: stageDrain, mods: []func(*world){pausing, confirmed}, want: glance.StatusDrained, reason: "DrainComplete"},
		"drained":                       {stage: stageDrain, mods: []func(*world){confirmed}, want: glance.StatusDrained, reason: "DrainComplete"},

		"Complete": {stage: stageComplete, want: glance.StatusComplete, reason: "Complete"},
		"Complete with a node to release": {stage: stageComplete, mods: []func(*world){func(w *world) { w.facts.held = sets.New("one") }},
			want: glance.StatusReleasing, reason: "Complete"},
		"a stage of a newer server": {stage: "Reboot", want: glance.StatusFailing, reason: "NotRequested"},
	} {
		t.Run(name, func(t *testing.T) {
			nm := newMaintenance("m", createdAt(test.stage))
			w := newWorld(t, nm, newNode("one"), newNode("two"))
			if test.empty {
				w = newWorld(t, nm)
			}
			for _, modify := range test.mods {
				modify(w)
			}
			w.decide()
			word, reason := wantReady(t, w.facts.subject.NodeMaintenance)
			is.Equal(t, word, test.want, "the word")
			is.Equal(t, reason, test.reason, "the reason of Ready")
		})
	}
}

// TestReadyAgreesWithTheWord makes decisions in 500 random worlds.
func TestReadyAgreesWithTheWord(t *testing.T) {
	stages := []v1alpha1.NodeMaintenanceStage{stageIdle, stageCordon, stageDrain, stageDrain, stageDrain, stageComplete}
	reasons := []v1alpha1.NodeStatusReason{v1alpha1.NodeStatusNotAuthorized, v1alpha1.NodeStatusNotCordoned, v1alpha1.NodeStatusTooManyMaintenances}
	words := sets.New[glance.StatusWord]()
	for seed := range 500 {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		names := []string{"one", "two", "three"}[:r.IntN(4)]
		nm := newMaintenance("m", createdAt(stages[r.IntN(len(stages))]))
		w := newWorld(t, nm)
		for _, name := range names {
			w.nodes = append(w.nodes, newNode(name, cordoned))
		}
		w.facts.subject.inside = slices.Clone(w.nodes)
		for _, node := range w.nodes {
			w.facts.subject.nodes = append(w.facts.subject.nodes, memberNode{Node: node})
		}
		for _, name := range names {
			switch r.IntN(8) {
			case 0:
				w.outside(name, exclusion{reason: reasons[r.IntN(len(reasons))], why: "some text", since: noon})
			case 1:
				w.node(name).Spec.Unschedulable = false
			case 2:
				w.facts.held = sets.New(name)
			}
		}
		for i := range r.IntN(4) * min(1, len(names)) {
			pod := newPod("p-"+strconv.Itoa(i), names[r.IntN(len(names))], int32(r.IntN(2))*2000000000)
			w.run(pod)
			if r.IntN(2) == 0 {
				w.run(pod, evacuated(withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget)))
			}
		}
		if r.IntN(2) == 0 {
			confirmed(w)
		}
		if r.IntN(6) == 0 {
			pausing(w)
		}
		for range r.IntN(4) {
			if r.IntN(4) == 0 {
				failing(w)
			}
			w.after(time.Duration(r.IntN(2)) * DefaultStallTimeout)
			word, _ := wantReady(t, w.facts.subject.NodeMaintenance)
			words.Insert(word)
			wantUnobserved(t, w.facts.subject.NodeMaintenance)
		}
		if t.Failed() {
			t.Fatalf("in the world of seed %d", seed)
		}
	}
	is.Equal(t, words.Len(), 15, "the number of different words")
}

func TestReadyOfFailedSync(t *testing.T) {
	failed := verdict{metav1.ConditionFalse, v1alpha1.ReasonProgressSyncFailed, "no answer"}
	ready := verdict{metav1.ConditionTrue, "X", "y"}
	no, yes := metav1.ConditionFalse, metav1.ConditionTrue
	for name, test := range map[string]struct {
		stage    v1alpha1.NodeMaintenanceStage
		drained  metav1.ConditionStatus
		observed int64
		want     verdict
	}{
		"Idle":                           {stageIdle, no, 2, ready},
		"Cordon":                         {stageCordon, no, 2, ready},
		"Drain":                          {stageDrain, no, 2, failed},
		"drained":                        {stageDrain, yes, 2, ready},
		"Complete":                       {stageComplete, no, 2, failed},
		"Idle with another selector":     {stageIdle, no, 1, failed},
		"Cordon that was Idle":           {stageCordon, no, 1, failed},
		"Cordon that is new":             {stageCordon, no, 0, failed},
		"drained, with another selector": {stageDrain, yes, 1, failed},
	} {
		t.Run(name, func(t *testing.T) {
			nm := newMaintenance("m", createdAt(test.stage))
			nm.Generation, nm.Status.ObservedGeneration = 2, test.observed
			setCondition(nm, &nm.Status, v1alpha1.ConditionReady, ready, noon)
			setCondition(nm, &nm.Status, v1alpha1.ConditionDrained, verdict{test.drained, "X", ""}, noon)
			is.Equal(t, readyOfFailed(nm, failed), test.want)
			nm.Status.Conditions = nil
			is.Equal(t, readyOfFailed(nm, failed), failed, "without the condition Ready")
		})
	}
}

// TestMessagesAboutNodesThatAreNotHeld compares what Ready and Progressing say about nodes that are
// not cordoned or may not be maintained.
func TestMessagesAboutNodesThatAreNotHeld(t *testing.T) {
	for name, test := range map[string]struct {
		stage         v1alpha1.NodeMaintenanceStage
		mods          []func(*world)
		conditionType string
		want          string
	}{
		"Cordon that is fought over": {
			stageCordon, []func(*world){excluding(v1alpha1.NodeStatusNotCordoned)}, v1alpha1.ConditionReady, "1 node is not held, such as one: some text",
		},
		"Cordon of a node to cordon": {
			stageCordon, []func(*world){uncordon}, v1alpha1.ConditionReady, "Waiting for 1 node to be cordoned",
		},
		"Drain of a node to cordon": {
			stageDrain, []func(*world){withPod(), uncordon}, v1alpha1.ConditionProgressing, "Waiting for 1 node to be cordoned",
		},
		"Drain of a node that the requester may not maintain": {
			stageDrain, []func(*world){excluding(v1alpha1.NodeStatusNotAuthorized)}, v1alpha1.ConditionProgressing,
			`User "jane" may not maintain 1 selected node (skipped)`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMaintenance("m", createdAt(test.stage)), newNode("one"))
			for _, modify := range test.mods {
				modify(w)
			}
			w.decide()
			is.Equal(t, conditionOf(w.facts.subject.NodeMaintenance, test.conditionType).Message, test.want, test.conditionType)
		})
	}
}

// TestNamesOfUsersAreBounded pauses a drain as a user with the longest name that is recorded, and
// with characters that a quote escapes. The conditions fit into the estimate for a status.
func TestNamesOfUsersAreBounded(t *testing.T) {
	by := strings.Repeat("\x00\"\\", 1024/3)
	nm := newMaintenance(strings.Repeat("m", 253), paused, func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.Pause.By, nm.Spec.RequestedBy.Username = by, by
	})
	w := newWorld(t, nm, newNode("one"), newNode("two"))
	withPod()(w)
	w.outside("two", exclusion{reason: v1alpha1.NodeStatusNotAuthorized, why: "some text"})
	w.decide()
	status := &w.facts.subject.Status
	is.Equal(t, status.Pause.By, by, "the recorded name")
	setCondition(nm, status, v1alpha1.ConditionNodeMessagesOmitted, verdict{metav1.ConditionTrue, v1alpha1.ReasonStatusTooLarge, strings.Repeat("x", 200)}, noon)
	rest := *status
	rest.NodeStatuses = nil
	got, limit := rest.Size(), size.StatusBytes(nil, 0)
	is.True(t, got <= limit, "got %d bytes without the nodes, the estimate is %d", got, limit)
	wantPart(t, conditionOf(w.facts.subject.NodeMaintenance, v1alpha1.ConditionReady).Message, `Paused by user "\"\\\"\\`)
}

// TestDecideTotals drains two nodes, one of which is deleted.
func TestDecideTotals(t *testing.T) {
	w := newWorld(t, newMaintenance("m", createdAt(stageCordon)), newNode("one"), newNode("two"))
	for _, name := range []string{"a", "b", "c"} {
		w.run(newPod(name, "one", 0))
	}
	w.run(newPod("d", "two", 0))
	want := func(nodes, gone, all int) {
		t.Helper()
		w.after(time.Second)
		nm := w.facts.subject.NodeMaintenance
		gotGone, gotAll := glance.Pods(nm)
		if glance.Nodes(nm) != nodes || int(nm.Status.Nodes) != nodes || gotGone != gone || int(nm.Status.PodsGone) != gone || gotAll != all {
			t.Errorf("got %d nodes, %d of %d pods, status %d and %d; want %d nodes, %d of %d pods",
				glance.Nodes(nm), gotGone, gotAll, nm.Status.Nodes, nm.Status.PodsGone, nodes, gone, all)
		}
	}
	want(2, 0, 4)
	atStage(stageDrain)(w.facts.subject.NodeMaintenance)
	w.facts.draining = []*member{w.facts.subject}
	want(2, 0, 4)
	w.gone("a")
	want(2, 1, 4)
	w.gone("d")
	want(2, 2, 4)
	t.Log("a pod comes back, and leaves again")
	w.run(newPod("a", "one", 0))
	want(2, 1, 4)
	w.gone("a")
	want(2, 2, 4)
	t.Log("node two is deleted")
	w.nodes = w.nodes[:1]
	w.facts.subject.nodes, w.facts.subject.inside = w.facts.subject.nodes[:1], w.facts.subject.inside[:1]
	former := func() formerNode {
		return formerNode{NodeMaintenanceNodeStatus: v1alpha1.NodeStatusOf(w.facts.subject.NodeMaintenance, v1alpha1.NodeReference{Name: "two", UID: "uid-two"}), gone: true}
	}
	w.facts.former = []formerNode{former()}
	want(1, 2, 4)
	w.facts.former = []formerNode{former()}
	w.gone("b")
	want(1, 3, 4)
	t.Log("the maintenance is completed before pod c has left")
	atStage(stageComplete)(w.facts.subject.NodeMaintenance)
	want(1, 3, 4)
	is.Equal(t, glance.Status(w.facts.subject.NodeMaintenance), glance.StatusComplete)
}
