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

	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	nodecontroller "haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
)

// These tests cover drains without progress: the status must report that.

func TestDecideProgressing(t *testing.T) {
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	since := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	failing := []loop.Failure{
		{About: "node a", Since: since, Text: "forbidden"}, {About: "node b", Since: since, Text: "forbidden"},
	}
	for name, test := range map[string]struct {
		facts progressFacts
		want  verdict
	}{
		"complete": {progressFacts{ending: true}, verdict{yes, "Complete", "All nodes are released"}},
		"nodes are being released": {
			progressFacts{ending: true, held: []string{"a", "b"}}, verdict{yes, "Complete", "2 nodes are still to be released: a, b"},
		},
		"a node that a worker has": {
			progressFacts{ending: true, held: []string{"a"}, why: ". Node a: a worker has it"}, verdict{yes, "Complete", "1 node is still to be released: a. Node a: a worker has it"},
		},
		"a node cannot be released": {
			progressFacts{ending: true, held: []string{"a"}, problems: failing[:1]},
			verdict{no, "Complete", "1 node is still to be released: a. node a: forbidden (since 2026-11-01T12:00:00Z)"},
		},
		"a stage of a newer server": {
			progressFacts{unknown: "Paused", problems: failing},
			verdict{no, "NotRequested", "This version of the server does not know the stage Paused: the nodes stay cordoned and no pod is asked to leave; " +
				"the stage can change to Complete"},
		},
		"no drain": {progressFacts{}, verdict{yes, "NotRequested", "The stage asks no pod to leave"}},
		"a node cannot be cordoned outside of a drain": {
			progressFacts{problems: failing},
			verdict{no, "SyncFailed", "node a: forbidden (since 2026-11-01T12:00:00Z); and 1 more"},
		},
		"drained": {
			progressFacts{draining: true, drained: true, problems: failing},
			verdict{yes, "Drained", "Nothing is left to do in stage Drain"},
		},
		"blocked before stalled": {
			progressFacts{draining: true, blocked: true, worst: "shop/a (X)", stalledSince: &metav1.Time{Time: since}},
			verdict{no, "Blocked", "Every pod that is asked to leave is blocked: shop/a (X)"},
		},
		"stalled before a failure": {
			progressFacts{
				draining: true, stalledSince: &metav1.Time{Time: since}, progress: "1 pod left", problems: failing[:1],
			},
			verdict{
				no, "Stalled",
				"No progress since 2026-11-01T12:00:00Z: 1 pod left. node a: forbidden (since 2026-11-01T12:00:00Z)",
			},
		},
		"a failure, and other nodes progress": {
			progressFacts{draining: true, moves: true, problems: failing[:1]},
			verdict{yes, "SyncFailed", "node a: forbidden (since 2026-11-01T12:00:00Z)"},
		},
		"a failure, and no node progresses": {
			progressFacts{draining: true, problems: failing[:1]},
			verdict{no, "SyncFailed", "node a: forbidden (since 2026-11-01T12:00:00Z)"},
		},
		"waiting": {
			progressFacts{draining: true, waits: "Every node waits"},
			verdict{yes, "Waiting", "Every node waits"},
		},
		"draining": {
			progressFacts{draining: true, moves: true, progress: "3 pods left"},
			verdict{yes, "Draining", "3 pods left"},
		},
		"new nodes are ignored": {
			progressFacts{draining: true, progress: "3 pods left", ignored: []string{"n1", "n2", "n3", "n4"}},
			verdict{yes, "Draining", "3 pods left; 4 new nodes are ignored (newNodes: Ignore): n1, n2, n3 and 1 more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decideProgressing(test.facts); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestLastProgress(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	before := &metav1.Time{Time: now.Add(-10 * time.Minute)}
	for name, test := range map[string]struct {
		before   *metav1.Time
		movement movement
		want     time.Time
	}{
		"the drain begins":      {nil, movement{}, now},
		"no progress":           {before, movement{}, before.Time},
		"a pod left":            {before, movement{moreGone: true}, now},
		"a wave opened":         {before, movement{targetsChanged: true}, now},
		"an evacuator reported": {before, movement{moved: now.Add(-time.Minute)}, now.Add(-time.Minute)},
		"the clock is behind":   {&metav1.Time{Time: now.Add(time.Hour)}, movement{moreGone: true}, now.Add(time.Hour)},
		"an old report":         {before, movement{moved: now.Add(-time.Hour)}, before.Time},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lastProgress(test.before, test.movement, now); !got.Time.Equal(test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestNodesAreReleasedOneByOne covers three nodes, and one Evacuation that cannot be withdrawn.
func TestNodesAreReleasedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newNode("three"), newPod("p", "two", 0),
			newPod("q", "three", 0), newMaintenance("m"))
		f.step("m")
		f.wantEvacuating("p", "q")
		failing := true
		f.maintenance.PrependReactor("patch", "evacuations", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if failing && strings.Contains(action.(clienttesting.PatchAction).GetName(), "-p") {
				return true, nil, errors.New("a policy says no")
			}
			return false, nil, nil
		})
		f.enter("m", stageComplete)
		try := func() {
			for range 3 {
				f.cached()
				f.syncOnce("m")
				f.cached()
				_ = f.withdraw() // fails for p, as intended
				f.cached()
				if err := f.reconcileNodes(); err != nil {
					t.Fatal(err)
				}
				f.wait(statusPace)
			}
		}
		try()
		f.wantCordon("one", false)
		f.wantCordon("three", false)
		f.wantCordon("two", true, "m")
		f.wait(loop.VisibleAfter)
		try()
		f.wantProgressing("m", metav1.ConditionFalse, v1alpha1.ReasonProgressComplete)
		if got := f.nodeStatus("m", "two").DrainMessage; !strings.HasPrefix(got, "Not released: ") || !strings.Contains(
			got, "a policy says no",
		) {
			t.Errorf("got message %q, want why the node is not released", got)
		}
		if got := f.nodeStatus("m", "one").DrainMessage; got != "" {
			t.Errorf("got message %q of a released node, want none", got)
		}
		f.wantEvent(EventNotProgressing)
		failing = false
		try()
		f.wantCordon("two", false)
		if finalizers := f.nm("m").Finalizers; len(finalizers) > 0 {
			t.Errorf("got finalizers %v", finalizers)
		}
		f.wantProgressing("m", metav1.ConditionTrue, v1alpha1.ReasonProgressComplete)
	})
}

func TestRefusedEvacuationsAreBlockers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		f.maintenance.PrependReactor("create", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInvalid(
				v1alpha1.SchemeGroupVersion.WithKind("Evacuation").GroupKind(), "p", nil,
			)
		})
		for range 3 {
			f.step("m")
			f.wait(nodestate.RequestPatience)
		}
		f.step("m")
		if got := f.nodeStatus("m", "one"); got.PodsBlocked != 1 || !strings.Contains(got.DrainMessage,
			"no Evacuation for 1 pod, such as default/p: ") {
			t.Errorf("got status %+v", got)
		}
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonDrainBlocked)
		f.wantProgressing("m", metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
	})
}

func TestFailedSyncIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		f.step("m")
		f.wait(nodestate.SettleTime)
		f.deletePod("p")
		f.cached()
		if err := f.reconcileNodes(); err != nil {
			t.Fatal(err)
		}
		f.host.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the API server is on fire")
		})
		for range 2 {
			f.cachedMaintenances()
			if err := f.timedSync(f.ctx, "m"); err == nil {
				t.Fatal("no error")
			}
			f.wait(loop.VisibleAfter)
		}
		c := conditionOf(f.nm("m"), v1alpha1.ConditionProgressing)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonProgressSyncFailed || !strings.Contains(c.Message, "on fire") {
			t.Errorf("got Progressing %+v", c)
		}
		f.wantEvent(EventNotProgressing)
	})
}

// cachedMaintenances waits until the caches have the maintenances and the Evacuations, for tests in
// which pods cannot be listed.
func (f *fixture) cachedMaintenances() {
	f.t.Helper()
	f.eventually("the cache shows the maintenance", func() bool {
		cached, err := f.maintenanceLister.Get("m")
		return err == nil && cached.ResourceVersion == f.nm("m").ResourceVersion && len(f.cachedPods()) == 0
	})
}

// TestNodeThatIsUncordonedRepeatedlyDelaysOnlyItsOwnPods covers another client that uncordons node
// two repeatedly.
func TestNodeThatIsUncordonedRepeatedlyDelaysOnlyItsOwnPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newMaintenance("m", planning(upTo(1000))),
			newPod("first", "one", 0), newPod("second", "one", 5000), newPod("other", "two", 0))
		f.step("m")
		f.wantEvacuating("first", "other")
		for range nodestate.FightLimit + 1 {
			f.updateNode("two", func(node *corev1.Node) { node.Spec.Unschedulable = false })
			f.step("m")
		}
		f.deletePod("first")
		f.step("m")
		f.wantEvacuating("other", "second")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNodeNotCordoned)
		if got, want := f.nodeStatus("m",
			"two").DrainMessage, "Not drained: another client keeps removing its cordon"; got != want {
			t.Errorf("got message %q, want %q", got, want)
		}
		f.wait(nodestate.FightWindow + time.Second)
		f.step("m")
		if got := f.nodeStatus("m", "two").DrainMessage; strings.HasPrefix(got, "Not drained") {
			t.Errorf("got message %q after the other client has stopped", got)
		}
	})
}

func createdAtSecond(second int64) func(*corev1.Node) {
	return func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(time.Unix(second, 0)) }
}

func TestNewNodes(t *testing.T) {
	ignoring := func(*v1alpha1.NodeMaintenance) {}
	joining := func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NewNodes = v1alpha1.NewNodesPolicyJoin
	}
	for name, test := range map[string]struct {
		policy func(*v1alpha1.NodeMaintenance)
		node   *corev1.Node
		joins  bool
	}{
		"a node that is created later is ignored":                {ignoring, newNode("late", createdAtSecond(200)), false},
		"a node that is created later joins with newNodes: Join": {joining, newNode("late", createdAtSecond(200)), true},
		"a node that existed and is labelled later joins": {
			ignoring, newNode("old", createdAtSecond(50), inPool("green")), true,
		},
		"a node that is registered again under the same name joins": {
			ignoring, newNode("one", createdAtSecond(200), func(n *corev1.Node) { n.UID = "again" }), true,
		},
		"a node as old as the newest node at the start joins": {ignoring, newNode("late", createdAtSecond(100)), true},
		"a new leader decides the same":                       {ignoring, newNode("late", createdAtSecond(101)), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lined := func(nm *v1alpha1.NodeMaintenance) {
					nm.Status.NewestNodeTimestamp = &metav1.Time{Time: time.Unix(100, 0)}
				}
				objects := []runtime.Object{newNode("one", createdAtSecond(100)), newMaintenance("m", test.policy, lined)}
				if test.node.Name == "old" {
					objects = append(objects, test.node.DeepCopy())
				}
				f := newFixture(t, objects...)
				f.step("m")
				f.wantCordon("one", true, "m")
				switch test.node.Name {
				case "old":
					f.updateNode("old", inPool("blue"))
				case "one":
					if err := f.host.CoreV1().Nodes().Delete(f.ctx, "one", metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
					f.wait(statusPace)
					f.step("m")
					if got := f.nodeStatus("m", "one").Reason; got != v1alpha1.NodeStatusGone {
						t.Errorf("got the reason %q of a node that is gone", got)
					}
					f.create(test.node)
				default:
					f.create(test.node)
				}
				if !test.joins {
					f.cached()
					f.wantEnqueued("m")
				}
				f.restart()
				f.wait(nodestate.SettleTime)
				f.step("m")
				if test.joins {
					f.wantCordon(test.node.Name, true, "m")
				} else {
					f.wantCordon(test.node.Name, false)
					if c := conditionOf(
						f.nm("m"), v1alpha1.ConditionProgressing,
					); c == nil || !strings.Contains(c.Message, "1 new node is ignored (newNodes: Ignore): late") {
						t.Errorf("got Progressing %+v", c)
					}
				}
			})
		})
	}
}

// TestNodesOfAnotherStorageAreKept starts a server whose storage does not have the maintenances
// that hold the nodes.
func TestNodesOfAnotherStorageAreKept(t *testing.T) {
	foreign := `{"storage":"another","maintenances":{"m":"1"},"taints":["maintenance.haulout.dev/held"]}`
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", cordoned, taintedWith(heldTaint), ownedBy(foreign), taintedBy(foreign)))
		f.sweep()
		f.wantEvent(nodecontroller.EventForeignMarks)
		node := f.node("one")
		if !node.Spec.Unschedulable || len(node.Spec.Taints) != 1 || node.Annotations[v1alpha1.AnnotationCordonedBy] != foreign {
			t.Errorf("the node of another storage was changed: %+v %v", node.Spec, node.Annotations)
		}
		f.adopted = "another"
		f.restart()
		f.sweep()
		f.wantCordon("one", false)
		f.wantTaints("one", []corev1.Taint{})
	})
}

// TestHostileAnnotationsStopNoOtherNode covers three nodes. The annotation of the first names a
// maintenance that cannot exist, so its cordon counts as the cordon of a user. The annotation of
// the second has far too many names. The third is to be released.
func TestHostileAnnotationsStopNoOtherNode(t *testing.T) {
	many := []string{}
	for i := range 10000 {
		many = append(many, fmt.Sprintf(`"m%d":"%d"`, i, i))
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("hostile", cordoned,
			ownedBy(`{"storage":"`+testStorage+`","maintenances":{"a/b":"x"}}`)),
			newNode("crowded", cordoned,
				ownedBy(`{"storage":"`+testStorage+`","maintenances":{`+strings.Join(many, ",")+`}}`)),
			newNode("left", cordoned, ownedBy(`{"gone":"1"}`)))
		reads := 0
		f.maintenance.PrependReactor("get", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
			reads++
			if name := action.(clienttesting.GetAction).GetName(); name == "a/b" {
				t.Errorf("got a read of maintenance %q", name)
			}
			return false, nil, nil
		})
		if err := f.reconcileNodes(); err != nil {
			t.Fatal(err)
		}
		f.wantCordon("left", false)
		f.wantCordon("crowded", false)
		if !f.node("hostile").Spec.Unschedulable {
			t.Error("node hostile was uncordoned for a maintenance that cannot exist")
		}
		if reads > marks.MaxMaintenances+1 {
			t.Errorf("got %d reads for the names on two nodes", reads)
		}
	})
}

// TestNodesThatDoNotFitInTheStatusAreNotSelected covers more nodes than fit into the status.
func TestNodesThatDoNotFitInTheStatusAreNotSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wide := func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NewNodes = v1alpha1.NewNodesPolicyJoin
			for i := range 100 {
				nm.Spec.DrainPlan = append(nm.Spec.DrainPlan, v1alpha1.DrainPlanEntry{
					PodPriority: 1000, PodType: v1alpha1.PodTypeDefault,
					PodSelector: &metav1.LabelSelector{
						MatchLabels: map[string]string{"app": fmt.Sprintf("%s-%03d", strings.Repeat("a", 59), i)},
					},
				})
			}
		}
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m", wide))
		f.step("m")
		f.wantCordon("one", true, "m")
		plan := f.nm("m").Spec.DrainPlan
		fits := size.MaxStatusBytes / (size.StatusBytes(plan, 2) - size.StatusBytes(plan, 1))
		for i := range fits {
			f.create(newNode(fmt.Sprintf("late-%04d", i)))
		}
		f.cached()
		f.syncOnce("m")
		f.cached()
		if err := f.reconcileNodes(); err != nil {
			t.Fatal(err)
		}
		f.wantCordon("late-0000", false)
		// The node in the status drains.
		f.wait(statusPace)
		f.step("m")
		f.wantEvacuating("p")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNodeNotCordoned)
		// The test compares the beginning of the message, up to the number of nodes.
		if got := f.nodeStatus("m", "late-0000").DrainMessage; !strings.HasPrefix(got, "Not drained: the status of ") {
			t.Errorf("got message %q, want why the node is not drained", got)
		}
	})
}

func TestDescribeBlockers(t *testing.T) {
	blocker := func(n int32, reason string, effect v1alpha1.PreviewEffect) v1alpha1.PreviewBlocker {
		return v1alpha1.PreviewBlocker{Effect: effect, Reason: reason, PodCount: n}
	}
	budget := blocker(2, "PodDisruptionBudget", "Never")
	budget.Budgets = []v1alpha1.PreviewBudget{{Namespace: "shop", Name: "web"}}
	bare := blocker(1, "NoController", "Lost")
	bare.Pods = []v1alpha1.PreviewPodReference{{Namespace: "shop", Name: "job"}}
	for name, test := range map[string]struct {
		preview v1alpha1.NodeMaintenancePreview
		want    string
	}{
		"nothing": {},
		"two": {
			v1alpha1.NodeMaintenancePreview{Blockers: []v1alpha1.PreviewBlocker{budget, bare}},
			"2 pods under budget shop/web: PodDisruptionBudget (Never); 1 pod, such as shop/job: NoController (Lost)",
		},
		"more pods than the message names": {
			v1alpha1.NodeMaintenancePreview{
				Blockers: []v1alpha1.PreviewBlocker{budget, bare, bare, bare}, BlockersOmitted: 5,
			},
			"2 pods under budget shop/web: PodDisruptionBudget (Never); 1 pod, such as shop/job: NoController (Lost); " +
				"1 pod, such as shop/job: NoController (Lost); and 6 more, see the preview",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := describeBlockers(&test.preview); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestDrainNamesItsBlockersWhenItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		previews := 0
		f.maintenance.PrependReactor("get", "nodemaintenances/preview", func(clienttesting.Action) (bool, runtime.Object, error) {
			previews++
			return true, &v1alpha1.NodeMaintenancePreview{Blockers: []v1alpha1.PreviewBlocker{{
				Effect: "Never", Reason: "PodDisruptionBudget", PodCount: 1,
				Budgets: []v1alpha1.PreviewBudget{{Namespace: "default", Name: "b"}},
			}}}, nil
		})
		f.step("m")
		if f.forecasts.queue.Len() != 1 {
			t.Fatal("the drain has begun, and the controller made no preview")
		}
		if err := f.forecasts.reconcile(f.ctx, "m"); err != nil {
			t.Fatal(err)
		}
		// Neither a later change nor a new leader starts the drain again.
		f.restart()
		f.create(newPod("q", "one", 0))
		f.wait(statusPace)
		f.step("m")
		if n := f.forecasts.queue.Len(); n != 0 {
			t.Errorf("got %d previews of a drain that has begun", n)
		}
		const want = "1 pod under budget default/b: PodDisruptionBudget (Never)"
		if e := f.wantEvent(EventDrainForecast); !strings.Contains(e, want) {
			t.Errorf("got event %q", e)
		}
		if previews != 1 {
			t.Errorf("got %d previews for one drain", previews)
		}
	})
}

// TestReadyOfAnOlderServer has a maintenance that a server without the condition Ready completed.
func TestReadyOfAnOlderServer(t *testing.T) {
	for name, conditions := range map[string][]metav1.Condition{
		"stored by an older server":    nil,
		"completed by an older leader": {v1alpha1.NotObserved(metav1.NewTime(noon))},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newFixture(t, newNode("one"), newMaintenance("m", createdAt(stageComplete), func(nm *v1alpha1.NodeMaintenance) {
				nm.Finalizers, nm.Status.Nodes, nm.Status.Conditions = nil, 3, conditions
			}))
			f.step("m")
			nm := f.nm("m")
			ready := conditionOf(nm, v1alpha1.ConditionReady)
			is.True(t, ready != nil && ready.Status == metav1.ConditionTrue && ready.Reason == v1alpha1.ReasonProgressComplete, "got Ready %+v", ready)
			is.Equal(t, nm.Status.ObservedGeneration, nm.Generation, "the observed generation")
			is.Equal(t, nm.Status.Nodes, 3, "the nodes")
		})
	}
}

// TestCompletedMaintenancesAreDeleted: those of a rollout are its memory, but not those that it has
// left behind.
func TestCompletedMaintenancesAreDeleted(t *testing.T) {
	unlabelled := func(nm *v1alpha1.NodeMaintenance) { nm.Labels = nil }
	leftBehind := func(nm *v1alpha1.NodeMaintenance) { nm.OwnerReferences = nil }
	for name, test := range map[string]struct {
		modify []func(*v1alpha1.NodeMaintenance)
		kept   bool
	}{
		"by hand":                  {},
		"of another owner":         {modify: []func(*v1alpha1.NodeMaintenance){ofRollout, unlabelled}},
		"of a rollout":             {modify: []func(*v1alpha1.NodeMaintenance){ofRollout}, kept: true},
		"left behind by a rollout": {modify: []func(*v1alpha1.NodeMaintenance){ofRollout, leftBehind}},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newFixture(t, newNode("one"), newMaintenance("m", test.modify...))
			f.step("m")
			// The time before the maintenance was completed does not count.
			f.wait(20 * time.Hour)
			f.enter("m", stageComplete)
			nm := f.nm("m")
			nm.Status.StageStatuses[len(nm.Status.StageStatuses)-1].StartTimestamp = &metav1.Time{Time: f.clock.Now()}
			if _, err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			f.step("m")
			f.wait(10 * time.Hour)
			f.step("m")
			f.nm("m") // is kept forever by default
			f.completedTTL = 11 * time.Hour
			f.step("m")
			f.nm("m")
			f.wait(time.Hour)
			f.syncOnce("m")
			is.Equal(t, len(f.maintenanceList()) > 0, test.kept, "the maintenance exists after its time to live")
		})
	}
}
