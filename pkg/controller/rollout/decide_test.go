// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestMaintenanceName(t *testing.T) {
	long := strings.Repeat("a", 250)
	for name, test := range map[string]struct {
		unit    string
		attempt int
		want    string
	}{
		"a node":                              {"node-1.example.com", 1, "kernel-node-1.example.com-1"},
		"a later attempt":                     {"node-1", 12, "kernel-node-1-12"},
		"a label with other characters":       {"Rack_1", 1, ""},
		"another label that looks like it":    {"rack-1", 1, "kernel-rack-1-1"},
		"the longest name of a node":          {long, 1, ""},
		"the longest name, a hundredth time":  {long, 100, ""},
		"a label that ends with an underline": {"a__", 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := maintenanceName("kernel", test.unit, test.attempt)
			is.True(t, test.want == "" || got == test.want, "got %q, want %q", got, test.want)
			is.True(t, strings.HasPrefix(got, "kernel-") && strings.HasSuffix(got, fmt.Sprintf("-%d", test.attempt)), "got %q", got)
			is.True(t, len(validation.IsDNS1123Subdomain(got)) == 0, "%q is not a valid name", got)
		})
	}
	is.True(t, maintenanceName("kernel", "Rack_1", 1) != maintenanceName("kernel", "rack_1", 1), "two units have the same name")
}

// TestPhaseOfUnit: the phase is that of the node with the most work left.
func TestPhaseOfUnit(t *testing.T) {
	type node struct {
		task, record v1alpha1.NodeTaskState
		gone         bool
	}
	for name, test := range map[string]struct {
		a, b   node
		ending bool
		want   v1alpha1.RolloutPhase
	}{
		"no node is drained":                 {want: v1alpha1.RolloutPhaseDraining},
		"one is drained":                     {a: node{task: v1alpha1.NodeTaskOffered}, want: v1alpha1.RolloutPhaseDraining},
		"both are offered":                   {a: node{task: v1alpha1.NodeTaskOffered}, b: node{task: v1alpha1.NodeTaskOffered}, want: v1alpha1.RolloutPhaseOffered},
		"one is claimed, one verified":       {a: node{task: v1alpha1.NodeTaskClaimed}, b: node{task: v1alpha1.NodeTaskVerifying}, want: v1alpha1.RolloutPhaseClaimed},
		"one is verified, one done":          {a: node{task: v1alpha1.NodeTaskVerifying}, b: node{record: v1alpha1.NodeTaskDone}, want: v1alpha1.RolloutPhaseVerifying},
		"one has failed, one is drained":     {a: node{task: v1alpha1.NodeTaskFailed}, want: v1alpha1.RolloutPhaseFailed},
		"one is done, one does not exist":    {a: node{record: v1alpha1.NodeTaskDone}, b: node{gone: true}, want: v1alpha1.RolloutPhaseReleasing},
		"an old record of a failure":         {a: node{record: v1alpha1.NodeTaskFailed}, b: node{record: v1alpha1.NodeTaskDone}, want: v1alpha1.RolloutPhaseDraining},
		"the end waits for the worker":       {a: node{task: v1alpha1.NodeTaskClaimed}, ending: true, want: v1alpha1.RolloutPhaseClaimed},
		"the end does not wait for a failed": {a: node{task: v1alpha1.NodeTaskFailed}, ending: true, want: v1alpha1.RolloutPhaseReleasing},
	} {
		t.Run(name, func(t *testing.T) {
			nm := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "kernel-r-1", UID: "uid-nm"}}
			nm.Spec.Stage = v1alpha1.NodeMaintenanceStageDrain
			if test.ending {
				nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
			}
			f := &facts{nodes: map[string]*corev1.Node{}, tasks: map[string]*v1alpha1.NodeTask{}}
			unit := &v1alpha1.RolloutUnit{Unit: "r", Maintenance: nm.Name}
			for i, n := range []node{test.a, test.b} {
				name := []string{"a", "b"}[i]
				ref := v1alpha1.NodeReference{Name: name, UID: newNode(name).UID}
				unit.Nodes = append(unit.Nodes, ref)
				if !n.gone {
					f.nodes[name] = newNode(name)
				}
				if n.task != "" {
					f.tasks[name] = build.With(&v1alpha1.NodeTask{}, func(task *v1alpha1.NodeTask) {
						task.Spec.Maintenance.UID, task.Status.State = nm.UID, n.task
					})
				}
				if n.record != "" {
					nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
						NodeRef: ref, Task: &v1alpha1.NodeMaintenanceNodeTask{State: n.record},
					})
				}
			}
			is.Equal(t, f.phaseOf(unit, nm), test.want)
		})
	}
}

// TestGoalOfDoneNode: what ran on a node before its work is not stored, so the work is not undone
// because a value is the same again.
func TestGoalOfDoneNode(t *testing.T) {
	for name, test := range map[string]struct {
		doneWhen string
		done     bool
		want     next.Goal
	}{
		"no expression":                   {"", false, next.NoGoal},
		"false":                           {"node.status.nodeInfo.kernelVersion == '6.12'", false, next.GoalUnmet},
		"true":                            {"node.status.nodeInfo.kernelVersion == '6.11.0'", false, next.GoalMet},
		"an error counts as false":        {"node.status.nodeInfo.kernalVersion == '6.12'", false, next.GoalUnmet},
		"a reboot before the work":        {"node.status.nodeInfo.bootID != before.bootID", false, next.GoalUnmet},
		"a reboot, when the work is done": {"node.status.nodeInfo.bootID != before.bootID", true, next.GoalMet},
		"false, when the work is done":    {"node.status.nodeInfo.kernelVersion == '6.12'", true, next.GoalUnmet},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Controller{goals: map[string]*goal{}}
			g, err := c.goalOf(newRollout(func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Template.Task.DoneWhen = test.doneWhen }))
			if err != nil {
				t.Fatal(err)
			}
			got, _ := g.of(newNode("a"), test.done)
			is.Equal(t, got, test.want)
		})
	}
}

// TestProgressingOfReason: a rollout is Progressing while a unit runs, and while no node matches.
func TestProgressingOfReason(t *testing.T) {
	for reason, want := range map[string]metav1.ConditionStatus{
		v1alpha1.ReasonRolling: metav1.ConditionTrue, v1alpha1.ReasonNoNodes: metav1.ConditionTrue, v1alpha1.ReasonAtLimit: metav1.ConditionFalse,
		v1alpha1.ReasonHeld: metav1.ConditionFalse, v1alpha1.ReasonRolloutComplete: metav1.ConditionFalse,
	} {
		d := &decision{}
		d.setConditions(&facts{rollout: next.Rollout{Object: newRollout()}, cluster: next.NewCluster(next.Facts{})}, &next.Decision{Reason: reason})
		is.Equal(t, meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProgressing).Status, want, reason)
	}
}

// TestConditionsStayWhileAsking: the server does not know yet whether a unit may start, maybe while
// something else of the rollout fails.
func TestConditionsStayWhileAsking(t *testing.T) {
	c := &Controller{queue: loop.NewQueue(loop.Config[string]{Name: "test", Clock: clock.RealClock{}})}
	t.Cleanup(c.queue.ShutDown)
	for _, failing := range []*loop.Failure{nil, {}} {
		now := time.Now()
		r := newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Generation, r.Status.ObservedGeneration = 2, 1
			r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonIdle}}
		})
		f := &facts{asking: true, failing: failing, rollout: next.Rollout{Members: []next.Member{{Node: "a"}}, Object: r}}
		f.cluster = next.NewCluster(next.Facts{
			Now: now, Nodes: next.NewNodes([]next.Node{next.NewNode(newNode("a"), nil, now)}), MaxUnavailablePercent: 100,
			Exists: func(string) bool { return false },
		})
		d := decide(f)
		is.Equal(t, len(d.start), 1, "units to start")
		is.Equal(t, len(must.Get(c.confirm(t.Context(), r, f, d))(t)), 0, "units that start")
		is.Equal(t, d.status.Conditions[0].Reason, v1alpha1.ReasonIdle)
		is.Equal(t, d.status.ObservedGeneration, 1)
	}
}

// TestBrokenExpressionNamesOneNode: doneWhen fails on all nodes, which are listed in any order.
func TestBrokenExpressionNamesOneNode(t *testing.T) {
	c := &Controller{goals: map[string]*goal{}}
	f := &facts{nodes: map[string]*corev1.Node{}, rollout: next.Rollout{Object: newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Template.Task.DoneWhen = "node.status.nodeInfo.kernalVersion == '6.12'"
	})}}
	f.goal = must.Get(c.goalOf(f.rollout.Object))(t)
	must.Do(t, f.selectNodes([]*corev1.Node{newNode("b"), newNode("a"), newNode("c")}))
	is.Equal(t, f.broken, "doneWhen fails for node a: no such key: kernalVersion")
}

func TestUndo(t *testing.T) {
	const met, unmet = "6.11.0", "6.12.0" // nodes have the first one
	for name, test := range map[string]struct {
		first, second int
		goal          string // of the second one
		want          bool
	}{
		"the first undoes the second":     {first: 2, second: 1, goal: unmet, want: true},
		"the node changed before":         {first: 1, second: 2, goal: unmet},
		"both are met":                    {first: 2, second: 1, goal: met},
		"the second has no goal":          {first: 2, second: 1},
		"the first has not worked on it":  {second: 1, goal: unmet},
		"the second has not worked on it": {first: 1, goal: unmet},
	} {
		t.Run(name, func(t *testing.T) {
			c, node := &Controller{goals: map[string]*goal{}}, newNode("a")
			newWork := func(name string, at int, kernel string) *workOf {
				r := newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
					if r.Name = name; kernel != "" {
						r.Spec.Template.Task.DoneWhen = "node.status.nodeInfo.kernelVersion == '" + kernel + "'"
					}
				})
				w := &workOf{done: map[types.UID]time.Time{}, goal: must.Get(c.goalOf(r))(t)}
				if at > 0 {
					w.done[node.UID] = time.Unix(int64(at), 0)
				}
				return w
			}
			first, second := newWork("first", test.first, met), newWork("second", test.second, test.goal)
			is.Equal(t, first.undo(second, node), test.want)
		})
	}
}

// TestDebounce: the delay of a rollout is the time that the syncs of all rollouts take.
func TestDebounce(t *testing.T) {
	for name, c := range map[string]struct {
		costs []time.Duration
		want  time.Duration
	}{
		"none":      {nil, debounce},
		"fast ones": {[]time.Duration{time.Millisecond, 2 * time.Millisecond}, debounce},
		"many":      {slices.Repeat([]time.Duration{40 * time.Millisecond}, 20), 800 * time.Millisecond},
		"too many":  {slices.Repeat([]time.Duration{time.Second}, 20), maxDebounce},
	} {
		t.Run(name, func(t *testing.T) {
			controller := &Controller{}
			for i, cost := range c.costs {
				controller.costs.Set(fmt.Sprint(i), cost)
			}
			is.Equal(t, controller.debounce(), c.want)
		})
	}
}

// TestSameNode: the heartbeats of kubelets enqueue no rollout.
func TestSameNode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"a heartbeat": {func(n *corev1.Node) {
			n.Status.Conditions[0].LastHeartbeatTime, n.Status.Conditions[0].Message = metav1.Unix(60, 0), "kubelet is posting ready status"
			n.Status.Images, n.ResourceVersion = []corev1.ContainerImage{{SizeBytes: 1}}, "2"
		}, true},
		"not Ready":      {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, false},
		"another kernel": {func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "6.12.0" }, false},
		"cordoned":       {func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		"another label":  {func(n *corev1.Node) { n.Labels["zone"] = "z1" }, false},
		"etcd runs on it": {func(n *corev1.Node) {
			n.Annotations = map[string]string{v1alpha1.AnnotationKeptStaticPods: protocol.EncodeKeptStaticPods("boot-1", true, nil)}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			old := newNode("a")
			node := old.DeepCopy()
			c.change(node)
			is.Equal(t, sameNode(old, node), c.want)
		})
	}
}

// TestIsHeartbeat has the writes of workers that change nothing for a rollout, and others.
func TestIsHeartbeat(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.NodeTask)
		want   bool
	}{
		"alive":           {func(task *v1alpha1.NodeTask) { task.Status.ProgressTime = new(metav1.Unix(60, 0)) }, true},
		"takes longer":    {func(task *v1alpha1.NodeTask) { task.Status.ExpectedFinishTime = new(metav1.Unix(90, 0)) }, true},
		"another message": {func(task *v1alpha1.NodeTask) { task.Status.Message = "50%" }, false},
		"another state":   {func(task *v1alpha1.NodeTask) { task.Status.State = v1alpha1.NodeTaskVerifying }, false},
		"another offer":   {func(task *v1alpha1.NodeTask) { task.UID = "uid-2" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			old := &v1alpha1.NodeTask{
				ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid-1"},
				Status: v1alpha1.NodeTaskStatus{
					State: v1alpha1.NodeTaskClaimed, StateTime: new(metav1.Unix(1, 0)), ProgressTime: new(metav1.Unix(30, 0)), Holder: "worker-1", Message: "40%",
				},
			}
			task := old.DeepCopy()
			c.change(task)
			is.Equal(t, isHeartbeat(old, task), c.want)
		})
	}
}

func TestMessages(t *testing.T) {
	f := &facts{broken: "doneWhen fails for node a: no such key"}
	choice := next.Decision{Reason: v1alpha1.ReasonAtLimit, Message: "Unit a waits"}
	is.Equal(t, conditionMessage(f, &choice), "Unit a waits; doneWhen fails for node a: no such key")
}

func TestPublish(t *testing.T) {
	registerMetrics()
	t.Cleanup(func() { publish(nil) })
	waiting := newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Status.Nodes = v1alpha1.RolloutNodes{Total: 9, Done: 3, Waiting: 2, Failed: 1, Skipped: 3}
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonHalted}}
	})
	complete := newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Stage, r.Status.Nodes = v1alpha1.RolloutStageComplete, v1alpha1.RolloutNodes{Total: 100, Done: 100}
	})
	publish([]*v1alpha1.NodeMaintenanceRollout{waiting, complete})
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(`
# HELP haulout_rollout_nodes [ALPHA] Nodes of NodeMaintenanceRollouts in stage Roll, by state: done, waiting, running, blocked, failed or skipped. A node of several rollouts counts for each.
# TYPE haulout_rollout_nodes gauge
haulout_rollout_nodes{state="blocked"} 0
haulout_rollout_nodes{state="done"} 3
haulout_rollout_nodes{state="failed"} 1
haulout_rollout_nodes{state="running"} 0
haulout_rollout_nodes{state="skipped"} 3
haulout_rollout_nodes{state="waiting"} 2
`), "haulout_rollout_nodes"); err != nil {
		t.Error(err)
	}
	value, err := testutil.GetGaugeMetricValue(waitingByReason.WithLabelValues(v1alpha1.ReasonHalted))
	if err != nil || value != 1 {
		t.Errorf("got %v halted rollouts, %v, want 1", value, err)
	}
}
