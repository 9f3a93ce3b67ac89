// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
)

// ourEvacuation returns the Evacuation of a pod that newPod returned.
func ourEvacuation(pod, node string, modify ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	p := newPod(pod, node, 0)
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: protocol.CanonicalName(p.Name, p.UID),
			Finalizers: []string{v1alpha1.FinalizerInstigatorNodeMaintenance},
		},
		Spec: v1alpha1.EvacuationSpec{
			NodeName: node, PodRef: v1alpha1.PodReference{Name: p.Name, UID: p.UID},
		},
	}
	for _, m := range modify {
		m(e)
	}
	return e
}

const foreignInstigator = v1alpha1.FinalizerInstigatorPrefix + "example.com"

func instigatedBy(finalizers ...string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.Finalizers = finalizers }
}

func forbidden(e *v1alpha1.Evacuation) {
	e.Status.EvacuationCancellationPolicy = v1alpha1.EvacuationCancellationPolicyForbid
}

func withCondition(conditionType, reason string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		e.Status.Conditions = append(e.Status.Conditions,
			metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: reason})
	}
}

func TestDrainInWaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newMaintenance("m", planning(upTo(1000))),
			newPod("low-one", "one", 10), newPod("low-two", "two", 1000), newPod("high-one", "one", 5000),
			newPod("finished", "one", 0, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			newPod("daemon", "two", 0, ofDaemonSet))
		f.step("m")
		f.wantEvacuating("low-one", "low-two")
		f.deletePod("low-one")
		f.step("m")
		f.wantEvacuating("low-two")
		f.wait(time.Second)
		f.step("m")
		want := v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef:      v1alpha1.NodeReference{Name: "one", UID: "uid-one"},
			DrainTargets: []v1alpha1.DrainPlanEntry{upTo(1000)}, DrainMessage: "Waiting for node two.",
			PodsPendingEvacuation: 1, PodsPeak: 2, PodsGonePeak: 1,
		}
		if got := f.nodeStatus("m", "one"); !reflect.DeepEqual(got, want) {
			t.Errorf("got status %+v of node one, want %+v", got, want)
		}
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress)

		f.deletePod("low-two")
		f.step("m")
		f.wantEvacuating("high-one")
		f.deletePod("high-one")
		f.step("m")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress)
		f.wait(nodestate.SettleTime)
		f.step("m")
		f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainCompleteWithPodsLeft)
		if got := f.nodeStatus("m", "two").PodsKept; got != 1 {
			t.Errorf("got podsKept %d, want 1", got)
		}
		f.wantEvent(EventDrained)

		f.create(newPod("late", "one", 0))
		f.step("m")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress)
		f.wantEvacuating("late")
	})
}

// TestOrderOfWrites checks that the writes come in an order in which a crash between two of them is
// harmless.
func TestOrderOfWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("p", "one", 0), newMaintenance("m"))
		for range 2 {
			f.cached()
			f.syncOnce("m")
		}
		f.wantEvacuating()
		f.authorized()
		if err := f.reconcileNodes(); err != nil {
			t.Fatal(err)
		}
		// The nodes are cordoned. No pod has an Evacuation until the cache has the cordons.
		f.wantCordon("one", true, "m")
		f.wantCordon("two", true, "m")
		f.wantEvacuating()
		created := 0
		f.maintenance.PrependReactor("create", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
			created++
			// Do not use the client here: its lock is held while a reactor runs.
			stored, err := f.maintenance.Tracker().Get(v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances"), "", "m")
			if err != nil {
				t.Error(err)
				return false, nil, nil
			}
			for _, node := range stored.(*v1alpha1.NodeMaintenance).Status.NodeStatuses {
				if len(node.DrainTargets) == 0 {
					t.Errorf("an Evacuation is created before the targets of node %s are stored", node.NodeRef.Name)
				}
			}
			return false, nil, nil
		})
		f.step("m")
		f.wantEvacuating("p")
		if created != 1 {
			t.Errorf("got %d requests to create an Evacuation, want 1", created)
		}
	})
}

// TestDrainedNeedsALiveListWithoutPods covers first a pod that is bound to a node, then one that is
// nominated for it; both are missing in the cache.
func TestDrainedNeedsALiveListWithoutPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"))
		f.step("m")
		f.wait(nodestate.SettleTime)
		hidden := newPod("hidden", "one", 0)
		nominee := newPod("nominee", "", 0, nominated("one"))
		f.host.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			live, asked := map[string]corev1.Pod{
				"spec.nodeName=one": *hidden, "spec.nodeName=,status.phase=Pending": *nominee,
			}[action.(clienttesting.ListAction).GetListRestrictions().Fields.String()]
			return asked, &corev1.PodList{Items: []corev1.Pod{live}}, nil
		})
		for _, pod := range []*corev1.Pod{hidden, nominee} {
			f.wait(time.Second)
			f.step("m")
			f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress)
			f.wantShown("one", map[*corev1.Pod][]string{hidden: shownDraining, nominee: shownDrained}[pod]...)
			pod.Status.Phase = corev1.PodSucceeded
		}
		f.step("m")
		f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainComplete)
	})
}

// TestNominatedPodsWithSchedulingGatesDoNotCount covers a pod that another client has nominated.
// Because of its gate the scheduler does not try the pod, and so does not clear the nomination.
func TestNominatedPodsWithSchedulingGatesDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("nominee", "", 0, func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, NominatedNodeName: "one"}
		}))
		f.step("m")
		f.wait(nodestate.SettleTime)
		f.step("m")
		f.wantDrained("m", metav1.ConditionTrue, v1alpha1.ReasonDrainComplete)
		f.wantEvacuating()
		// Without its gate the scheduler may bind the pod.
		pod := f.pods()[0]
		pod.Spec.SchedulingGates = nil
		if _, err := f.host.CoreV1().Pods(pod.Namespace).Update(f.ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.step("m")
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress)
	})
}

func TestEvacuationsOfOtherInstigatorsAreJoinedAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("p", "one",
			0), newPod("q", "one", 0), newPod("r", "one", 0),
			ourEvacuation("p", "one", instigatedBy(foreignInstigator)), ourEvacuation("q", "one", forbidden))
		f.step("m")
		f.wantEvacuating("p", "q", "r")
		f.enter("m", stageComplete)
		f.step("m")
		f.wantEvacuating()
		left := map[string][]string{}
		for _, e := range f.evacuationList() {
			left[e.Spec.PodRef.Name] = e.Finalizers
		}
		// p has another instigator, q cannot be cancelled any more, and r is deleted.
		if len(left) != 2 || !slices.Equal(left["p"], []string{foreignInstigator}) || len(left["q"]) != 0 {
			t.Errorf("got Evacuations %v", left)
		}
		f.wantCordon("one", false)
	})
}

func TestEvacuationsStayWhileAnotherMaintenanceWantsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two",
			inPool("green")), newPod("p", "one", 0), newPod("q", "two", 0),
			newMaintenance("a", selecting("blue", "green"), createdMinute(1)), newMaintenance("b", createdMinute(2)))
		for range 3 {
			f.step("a")
			f.step("b")
		}
		f.wantEvacuating("p", "q")
		f.enter("a", stageComplete)
		f.step("a")
		f.wantEvacuating("p")
		f.wantCordon("one", true, "b")
		f.wantCordon("two", false)
		f.enter("b", stageComplete)
		f.step("b")
		f.wantEvacuating()
		f.wantCordon("one", false)
	})
}

func TestPodsInTerminatingNamespacesAreCountedAndNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		refused := 0
		f.maintenance.PrependReactor("create", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
			refused++
			err := apierrors.NewForbidden(v1alpha1.Resource("evacuations"), "p",
				errors.New("the namespace is being terminated"))
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
			return true, nil, err
		})
		f.step("m")
		f.wait(statusPace)
		f.step("m")
		if refused != 1 {
			t.Errorf("got %d requests, want 1", refused)
		}
		f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonDrainInProgress)
		if got, want := f.nodeStatus("m",
			"one").DrainMessage, "Evacuating; 1 pod of terminating namespaces: default/p"; got != want {
			t.Errorf("got drainMessage %q, want %q", got, want)
		}
		want := "1 pod left, 0 of them evacuating, 0 blocked; 1 pod cannot be evacuated because of namespaces that are being deleted: default (1)"
		if got := meta.FindStatusCondition(f.nm("m").Status.Conditions, v1alpha1.ConditionDrained).Message; got != want {
			t.Errorf("got message %q, want %q", got, want)
		}
	})
}

func TestMessageNamesPodsOfTerminatingNamespaces(t *testing.T) {
	pods := func(names ...string) []*nodestate.Pod {
		var out []*nodestate.Pod
		for _, name := range names {
			out = append(out, &nodestate.Pod{Namespace: "blue", Name: name})
		}
		return out
	}
	long := strings.Repeat("x", 60)
	for sentence, tc := range map[string]struct {
		planned string
		refused []*nodestate.Pod
		want    string
	}{
		"no pod in a terminating namespace": {"Evacuating", nil, "Evacuating"},
		"a pod is named":                    {"Evacuating", pods("web"), "Evacuating; 1 pod of terminating namespaces: blue/web"},
		"several pods, in the order of their names": {
			"Evacuating", pods("b", "a"), "Evacuating; 2 pods of terminating namespaces: blue/a, blue/b",
		},
		"more pods than fit": {
			"Evacuating", pods(long, long),
			"Evacuating; 2 pods of terminating namespaces: blue/" + long + ", blue/xxxxxxx…",
		},
		"a message of the plan that leaves no room": {strings.Repeat("m", 90), pods("web"), strings.Repeat("m", 90)},
	} {
		t.Run(sentence, func(t *testing.T) {
			n := &nodeCount{refused: tc.refused}
			got := n.messageOf(tc.planned)
			if got != tc.want {
				t.Errorf("got message %q, want %q", got, tc.want)
			}
			if len(got) > 128 {
				t.Errorf("got %d bytes", len(got))
			}
		})
	}
}

// TestRestartsInTheMiddleOfADrain restarts the controller, or makes a write fail, at random moments
// of a drain. The order of the waves must hold, each pod must have one Evacuation, and in the end
// the nodes must be as they were before the drain.
func TestRestartsInTheMiddleOfADrain(t *testing.T) {
	// Read the seed outside of the bubble, in which the clock always starts at the same time.
	seed := uint64(time.Now().UnixNano())
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		objects := []runtime.Object{newMaintenance("m", planning(upTo(1000), upTo(2000))), newNode("foreign", cordoned)}
		priority := map[string]int32{}
		for n := range 3 {
			node := fmt.Sprintf("node-%d", n)
			objects = append(objects, newNode(node))
			for p := range 4 {
				name := fmt.Sprintf("pod-%d-%d", n, p)
				priority[name] = int32(p) * 800
				objects = append(objects, newPod(name, node, priority[name]))
			}
		}
		f := newFixture(t, objects...)
		asked := map[string]int{}
		f.maintenance.PrependReactor("create", "evacuations", func(action clienttesting.Action) (bool, runtime.Object, error) {
			e := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.Evacuation)
			asked[e.Spec.PodRef.Name]++
			for _, pod := range f.pods() {
				if wave(*pod.Spec.Priority) < wave(priority[e.Spec.PodRef.Name]) {
					t.Errorf("seed %d: pod %s has an Evacuation before %s has left", seed, e.Spec.PodRef.Name, pod.Name)
				}
			}
			return false, nil, nil
		})
		flaky := func(clienttesting.Action) (bool, runtime.Object, error) {
			if r.IntN(4) == 0 {
				return true, nil, errors.New("interrupted")
			}
			return false, nil, nil
		}
		f.host.PrependReactor("patch", "nodes", flaky)
		f.maintenance.PrependReactor("update", "nodemaintenances", flaky)
		f.drainToTheEnd(seed, r)
		for name, times := range asked {
			if times != 1 {
				t.Errorf("seed %d: pod %s had %d Evacuations", seed, name, times)
			}
		}
		f.enterDespite("m", stageComplete)
		for range 100 {
			f.cached()
			if err := f.Controller.sync(f.ctx, "m"); err == nil && len(f.nm("m").Finalizers) == 0 {
				break
			}
			f.cached()
			_ = f.reconcileNodes() // may fail, too
		}
		f.wantEvacuating()
		f.wantCordon("foreign", true)
		for n := range 3 {
			f.wantCordon(fmt.Sprintf("node-%d", n), false)
		}
	})
}

func wave(priority int32) int {
	switch {
	case priority <= 1000:
		return 0
	case priority <= 2000:
		return 1
	}
	return 2
}

// drainToTheEnd syncs, retries failed syncs, restarts the controller and deletes evacuating pods
// until Drained is true.
func (f *fixture) drainToTheEnd(seed uint64, r *rand.Rand) {
	f.t.Helper()
	for range 1000 {
		f.cached()
		if r.IntN(5) == 0 {
			f.restart()
		}
		if r.IntN(3) == 0 {
			f.authorized() // a review that ends later would change the decision
			f.wantSameDecision("m")
		}
		_ = f.Controller.sync(f.ctx, "m") // may fail; the result is checked below
		f.cached()
		_ = f.reconcileNodes()
		if isDrained(f.nm("m")) {
			if pods := f.pods(); len(pods) > 0 {
				f.t.Fatalf("seed %d: Drained with %d pods left", seed, len(pods))
			}
			return
		}
		for _, name := range f.evacuating() {
			if r.IntN(3) == 0 {
				f.deletePod(name)
			}
		}
		f.wait(time.Second)
	}
	f.t.Fatalf("seed %d: never drained", seed)
}

// enterDespite enters a stage, and retries failed writes.
func (f *fixture) enterDespite(name string, stage v1alpha1.NodeMaintenanceStage) {
	f.t.Helper()
	f.eventually("the stage is written", func() bool {
		nm := f.nm(name)
		atStage(stage)(nm)
		nm.Generation++
		_, err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm, metav1.UpdateOptions{})
		return err == nil
	})
}
