// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func ready(node *corev1.Node) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
}

func ofServer(pod *corev1.Pod) {
	pod.OwnerReferences = build.Owner("apps/v1", "ReplicaSet", "haulout", "rs")
}

func TestOwnPodsAreLastOfTheirWave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t,
			newNode("one"), newNode("two"), newNode("away", inPool("green"), ready),
			newMaintenance("m", planning(upTo(1000), upTo(2000))),
			newPod(
				"haulout-1", "one", 500, ofServer,
			), newPod("haulout-2", "two", 500, ofServer), newPod("web", "two", 700), newPod("late", "one", 2000))
		f.step("m")
		f.wantEvacuating("web")
		f.without("m", "web")
		f.wantEvacuating("haulout-1", "haulout-2")
		f.without("m", "haulout-1", "haulout-2")
		f.wantEvacuating("late")
	})
}

func TestRecreatedOwnPodIsKept(t *testing.T) {
	// Created in the same second as the cordon, later, and before it by the clock of
	// kube-apiserver, which is another one.
	testAnOwnPodThatComesBack(t, time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	testAnOwnPodThatComesBack(t, time.Date(2026, 11, 1, 12, 1, 0, 0, time.UTC))
	testAnOwnPodThatComesBack(t, time.Date(2026, 11, 1, 11, 58, 0, 0, time.UTC))
}

// TestOwnPodLeavesWhateverTheClocksSay: a pod of the server is on the node when it is held, and the
// clock of kube-apiserver, which created the pod, is a minute ahead of that of the server.
func TestOwnPodLeavesWhateverTheClocksSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("away", inPool("green"), ready), newMaintenance("m"),
			newPod("haulout-1", "one", 0, ofServer, func(pod *corev1.Pod) {
				pod.CreationTimestamp = metav1.NewTime(time.Date(2026, 11, 1, 12, 1, 0, 0, time.UTC))
			}))
		f.step("m")
		f.wantEvacuating("haulout-1")
		f.step("m")
		f.wantEvacuating("haulout-1")
	})
}

func testAnOwnPodThatComesBack(t *testing.T, created time.Time) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("away", inPool("green")),
			newMaintenance("m"), newPod("haulout-1", "one", 0, ofServer), newPod("web", "one", 0))
		f.step("m")
		f.wantEvacuating("web")
		f.without("m", "web")
		f.wantEvacuating("haulout-1")
		f.deletePod("haulout-1")
		f.create(newPod("haulout-9", "one", 0, ofServer, func(pod *corev1.Pod) {
			pod.UID, pod.CreationTimestamp = "again", metav1.NewTime(created)
		}))
		f.step("m")
		f.wantEvacuating()
		f.later("m", nodestate.SettleTime)
		f.wantDrained("m", metav1.ConditionTrue, maintenancev1alpha1.ReasonDrainCompleteWithPodsLeft)
		is.Equal(t, f.nodeStatus("m", "one").PodsKept, 1, "pods kept")
	})
}

// TestEvacuationsOfADeselectedNodeAreWithdrawn has a user narrow the selector because a node cannot
// be written.
func TestEvacuationsOfADeselectedNodeAreWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		f.step("m")
		f.wantEvacuating("p")
		f.state.Troubles.Note("one", "test", "a policy refuses the taint")
		f.wait(2 * time.Minute)
		nm := f.nm("m")
		nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"green"}
		nm.Generation++
		must.Get(f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm, metav1.UpdateOptions{}))(t)
		f.cached()
		must.Do(t, f.withdraw())
		f.syncOnce("m")
		f.cached()
		must.Do(t, f.withdraw())
		f.wantEvacuating()
	})
}

// TestSilentAuthorizerOfAPlannedMaintenanceDelaysNoOther has the authorizer give no answer about
// the user of a maintenance in stage Idle.
func TestSilentAuthorizerOfAPlannedMaintenanceDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"),
			newMaintenance("planned", createdAt(stageIdle), func(nm *maintenancev1alpha1.NodeMaintenance) {
				nm.Spec.RequestedBy = &authenticationv1.UserInfo{Username: "slow"}
			}))
		f.advertise = true
		f.rights.silent, f.rights.answer = "slow", make(chan struct{})
		defer close(f.rights.answer)
		f.restart()
		f.step("m")
		f.wantCordon("one", true, "m")
		f.advance("m", stageComplete)
		f.wantCordon("one", false)
		f.wantShown("one")
		if nm := f.nm("m"); len(nm.Finalizers) > 0 {
			t.Errorf("maintenance m has not ended, conditions %v", nm.Status.Conditions)
		}
	})
}

func TestRefusedJoinsAreBlockers(t *testing.T) {
	evacuation := maintenancev1alpha1.SchemeGroupVersion.WithKind("Evacuation").GroupKind()
	for name, tt := range map[string]struct {
		answer  error
		blocked int32
	}{
		"a join that is invalid": {apierrors.NewInvalid(evacuation, "p", nil), 1},
		"a join that admission forbids": {
			apierrors.NewForbidden(maintenancev1alpha1.Resource("evacuations"), "p", nil), 1,
		},
		"but not a join that conflicts with another write": {
			apierrors.NewConflict(maintenancev1alpha1.Resource("evacuations"), "p", nil), 0,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"),
				ourEvacuation("p", "one", instigatedBy(foreignInstigator)))
			refuses := true
			f.maintenance.PrependReactor("patch", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
				return refuses, nil, tt.answer
			})
			for range 3 {
				f.step("m")
				f.wait(nodestate.RequestPatience)
			}
			f.step("m")
			got := f.nodeStatus("m", "one")
			if got.PodsBlocked != tt.blocked || got.PodsEvacuating != 1 ||
				strings.Contains(got.DrainMessage, "such as default/p: join evacuation ") != (tt.blocked > 0) {
				t.Errorf("got status %+v, want %d blocked pods", got, tt.blocked)
			}
			if tt.blocked > 0 {
				f.wantProgressing("m", metav1.ConditionFalse, maintenancev1alpha1.ReasonProgressBlocked)
			}
			refuses = false
			f.later("m", nodestate.Backoff(4))
			f.later("m", statusPace)
			if got := f.nodeStatus("m", "one"); got.PodsBlocked != 0 || !nodestate.IsOurs(f.evacuationList()[0]) {
				t.Errorf("got status %+v after the join was accepted, want no blocked pod", got)
			}
		})
	}
}

func TestRequestsForEvacuationsNameTheMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one",
			0), newMaintenance("m", func(nm *maintenancev1alpha1.NodeMaintenance) {
			nm.Spec.Reason = "kernel\nupdate"
		}))
		f.step("m")
		for _, e := range f.evacuationList() {
			if got := e.Annotations[maintenancev1alpha1.AnnotationLeavesFor]; got != "NodeMaintenance m (kernel update)" {
				t.Errorf("got message %q of the request", got)
			}
		}
		f.wantEvacuating("p")
	})
}

// static makes a mirror pod on its node.
func static(pod *corev1.Pod) {
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	pod.OwnerReferences = build.Owner("v1", "Node", pod.Spec.NodeName, newNode(pod.Spec.NodeName).UID)
}

// agent sets the condition of a node agent that keeps no static pod.
func agent(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(node *corev1.Node) {
		keeping("")(node)
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == maintenancev1alpha1.NodeConditionAgentReady
		})
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: maintenancev1alpha1.NodeConditionAgentReady, Status: status,
		})
	}
}

// keeping has the agent keep a static pod.
func keeping(pod string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		kept := map[string]protocol.KeptReason{}
		if pod != "" {
			kept["default/"+pod] = protocol.KeptServesAPI
		}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, maintenancev1alpha1.AnnotationKeptStaticPods, protocol.EncodeKeptStaticPods("", kept))
	}
}

// TestAPodThatBecomesKept runs the controllers, which react to the annotation alone.
func TestAPodThatBecomesKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one", agent(corev1.ConditionTrue)), newMaintenance("m"), newPod("proxy", "one", 0, static))
		f.turnOn(maintenancev1alpha1.EvacuatorClassKubelet)
		go f.run(2)
		f.soon("the static pod is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"proxy"}) })
		f.updateNode("one", keeping("proxy"))
		f.soon("the Evacuation is withdrawn", func() bool { return len(f.evacuating()) == 0 })
		f.ticking("the maintenance is drained", func() bool { return isDrained(f.nm("m")) })
		f.updateNode("one", keeping(""))
		f.soon("the static pod is asked to leave again", func() bool { return slices.Equal(f.evacuating(), []string{"proxy"}) })
	})
}

// TestAgentsThatComeAndGo runs the controllers, which react to the events of the condition only.
func TestAgentsThatComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("proxy", "one", 0, static))
		f.turnOn(maintenancev1alpha1.EvacuatorClassKubelet)
		go f.run(2)
		drained := func(status corev1.ConditionStatus) func() bool { return f.shows("one", status) }
		f.ticking("the static pod is kept", func() bool { return isDrained(f.nm("m")) && len(f.evacuating()) == 0 })
		f.ticking("the node is drained", drained(corev1.ConditionTrue))

		f.updateNode("one", agent(corev1.ConditionTrue))
		f.soon("the static pod is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"proxy"}) })
		f.soon("the maintenance is not drained any more", func() bool { return !isDrained(f.nm("m")) })
		f.soon("the node is not drained any more", drained(corev1.ConditionFalse))

		f.updateNode("one", agent(corev1.ConditionFalse))
		f.soon("the Evacuation is withdrawn", func() bool { return len(f.evacuating()) == 0 })
		f.ticking("the maintenance is drained again", func() bool { return isDrained(f.nm("m")) })
		f.ticking("the node is drained again", drained(corev1.ConditionTrue))
	})
}

// TestAgentsThatComeAndGoBeforeTheirWave has the pod of another node keep the wave of static pods
// closed: no Evacuation comes or goes with the agent.
func TestAgentsThatComeAndGoBeforeTheirWave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newMaintenance("m"), newPod("proxy", "one", 0, static), newPod("web", "two", 0))
		f.turnOn(maintenancev1alpha1.EvacuatorClassKubelet)
		go f.run(2)
		f.ticking("the other pod is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"web"}) })
		f.ticking("the node is drained", f.shows("one", corev1.ConditionTrue))
		for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionTrue} {
			f.updateNode("one", agent(status))
			waits := status == corev1.ConditionTrue
			f.soon("the maintenance counts the static pod", func() bool {
				nm := f.nodeStatus("m", "one")
				return (nm.PodsPendingEvacuation == 1) == waits && (nm.PodsKept == 0) == waits
			})
			f.soon("the node shows it", f.shows("one", map[bool]corev1.ConditionStatus{true: corev1.ConditionFalse, false: corev1.ConditionTrue}[waits]))
		}
		f.wantEvacuating("web")
	})
}

// shows returns a function that reports whether the condition Drained of a node has a status.
func (f *fixture) shows(node string, status corev1.ConditionStatus) func() bool {
	return func() bool {
		return slices.ContainsFunc(f.node(node).Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == maintenancev1alpha1.NodeConditionDrained && c.Status == status
		})
	}
}

// soon waits for a condition that an event brings about. A node shows only after half a minute that
// pods have returned. The controllers also look at everything once in a while, which takes longer.
func (f *fixture) soon(what string, condition func() bool) {
	f.t.Helper()
	begun := time.Now()
	f.ticking(what, condition)
	if took := time.Since(begun); took > time.Minute {
		f.t.Errorf("%s only after %s", what, took)
	}
}
