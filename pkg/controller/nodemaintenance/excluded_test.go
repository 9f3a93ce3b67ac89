// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
)

func onExcluded(policy v1alpha1.ExcludedNodePolicy) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.OnExcludedNode = policy }
}

// TestWavesContinueWithoutAnExcludedNode has a pod of the first wave on a node that is refused, and
// one of the second wave on another node.
func TestWavesContinueWithoutAnExcludedNode(t *testing.T) {
	for name, policy := range map[string]v1alpha1.ExcludedNodePolicy{"by default": "", "if asked to": v1alpha1.ExcludedNodeContinue} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, newNode("one"), newNode("two"), newPod("critical", "one", 2000000000), newPod("low", "two", 0),
					newMaintenance("m", onExcluded(policy)))
				f.rights.refused.Insert("two")
				f.step("m")
				f.wantEvacuating("critical")
				f.wantDrained("m", metav1.ConditionFalse, v1alpha1.ReasonNotAuthorized)
				f.wantEvent(EventNotAuthorized) // of the node
				if e := f.wantEvent(EventNotAuthorized); !strings.Contains(e, `Node two is skipped: user "jane" may not maintain the node; later waves do not wait`) {
					t.Errorf("got event %q", e)
				}
				is.Equal(t, f.told(EventNodeExcluded), 0, "further events about the node")
			})
		})
	}
}

func TestWavesWaitForAnExcludedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("early", "one", 0), newPod("critical", "one", 2000000000), newPod("low", "two", 0),
			newMaintenance("m", onExcluded(v1alpha1.ExcludedNodeWait)))
		f.rights.refused.Insert("two")
		f.step("m")
		f.wantEvacuating("early")
		f.wantEvent(EventNotAuthorized) // of the node
		if e := f.wantEvent(EventNotAuthorized); !strings.Contains(e, "later waves wait until its pods have left (onExcludedNode: Wait)") {
			t.Errorf("got event %q", e)
		}
		f.deletePod("early")
		f.wait(statusPace)
		f.step("m")
		f.wantEvacuating()
		is.Equal(t, f.nodeStatus("m", "one").DrainMessage, "Waiting for node two.", "message of node one")
		f.wantProgressing("m", metav1.ConditionTrue, v1alpha1.ReasonProgressWaiting)
		for _, condition := range []string{v1alpha1.ConditionDrained, v1alpha1.ConditionProgressing} {
			message := conditionOf(f.nm("m"), condition).Message
			is.True(t, strings.Contains(message, "later waves wait until its pods have left (onExcludedNode: Wait)"), "%s says %q", condition, message)
		}
		f.restart()
		f.step("m")
		f.wantEvacuating()

		f.change("m", onExcluded(v1alpha1.ExcludedNodeContinue))
		f.step("m")
		f.wantEvacuating("critical")
		f.change("m", onExcluded(v1alpha1.ExcludedNodeWait))
		f.step("m")
		f.wantEvacuating("critical")
	})
}

func TestWavesOpenWhenTheExcludedNodeIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newPod("critical", "one", 2000000000), newPod("low", "two", 0),
			newMaintenance("m", onExcluded(v1alpha1.ExcludedNodeWait)))
		f.rights.refused.Insert("two")
		f.step("m")
		f.wantEvacuating()
		f.deletePod("low")
		f.step("m")
		f.wantEvacuating("critical")
	})
}

// TestEachExcludedNodeHasAnEvent lets two nodes fail one after the other, with the same reason.
func TestEachExcludedNodeHasAnEvent(t *testing.T) {
	for name, room := range map[string]bool{"with messages": true, "without room for messages": false} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newFixture(t, newNode("one"), newNode("two"), newNode("three"), newPod("p", "one", 0), newMaintenance("m"))
			if !room {
				f.refuseMessages()
			}
			broken := sets.New[string]()
			f.host.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return broken.Has(action.(clienttesting.PatchAction).GetName()), nil, errors.New("a policy refuses it")
			})
			events := func() int {
				told := 0
				for range 5 {
					f.cached()
					f.syncOnce("m")
					f.authorized()
					_ = f.reconcileNodes() // fails for the broken nodes
					f.wait(statusPace)
					told += f.told(EventNodeExcluded)
				}
				return told
			}
			for i, node := range []string{"two", "three"} {
				broken.Insert(node)
				f.updateNode(node, func(n *corev1.Node) { n.Spec.Unschedulable = false })
				is.Equal(t, events(), 0, "events while node "+node+" may recover")
				f.wait(loop.VisibleAfter)
				want := 1
				if i > 0 && !room {
					want = 0
				}
				is.Equal(t, events(), want, "events about node "+node)
				is.Equal(t, f.nodeStatus("m", node).Reason, v1alpha1.NodeStatusNotCordoned, "reason of node "+node)
			}
		})
	}
}

// refuseMessages makes the storage refuse a status with messages of nodes.
func (f *fixture) refuseMessages() {
	f.maintenance.PrependReactor("update", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		nm := action.(clienttesting.UpdateAction).GetObject().(*v1alpha1.NodeMaintenance)
		for i := range nm.Status.NodeStatuses {
			if nm.Status.NodeStatuses[i].DrainMessage != "" {
				return true, nil, apierrors.NewGenericServerResponse(http.StatusRequestEntityTooLarge, "put",
					v1alpha1.Resource("nodemaintenances"), nm.Name, "", 0, false)
			}
		}
		return false, nil, nil
	})
}

// told returns how often an event with the reason was sent since the last call.
func (f *fixture) told(reason string) int {
	n := 0
	for len(f.recorder.Events) > 0 {
		if strings.Contains(<-f.recorder.Events, " "+reason+" ") {
			n++
		}
	}
	return n
}

// TestFastForwardIsReportedOnceWithoutMessages joins a node that another maintenance has drained
// further, with a status without room for the messages of nodes.
func TestFastForwardIsReportedOnceWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two", inPool("green")), newPod("critical", "one", 2000000000), newPod("low", "two", 0),
			newMaintenance("old", createdMinute(0)))
		f.refuseMessages()
		f.step("old")
		f.wantEvacuating("critical")
		f.told("")
		f.create(newMaintenance("young", selecting("blue", "green"), createdMinute(1)))
		told := 0
		for range 10 {
			f.step("young")
			f.wait(statusPace)
			told += f.told(EventFastForwarded)
		}
		is.Equal(t, f.nodeStatus("young", "one").Reason, v1alpha1.NodeStatusFastForwarded, "reason of node one")
		is.Equal(t, f.nodeStatus("young", "one").DrainMessage, "", "message of node one")
		is.Equal(t, told, 1, "events about the node")
	})
}

// TestACancelledDrainAsksNoPodWhereAnotherIsExcluded cancels a drain on a node that another one
// selects, still with the targets from before it was excluded.
func TestACancelledDrainAsksNoPodWhereAnotherIsExcluded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ofBob := func(nm *v1alpha1.NodeMaintenance) { nm.Spec.RequestedBy.Username = "bob" }
		waves := planning(upTo(1000), upTo(10000))
		f := newFixture(t, newNode("one"), newPod("low", "one", 0), newPod("high", "one", 5000), newMaintenance("a", waves), newMaintenance("b", waves, ofBob))
		both := func() {
			t.Helper()
			for range 2 {
				f.step("a")
				f.step("b")
			}
		}
		both()
		f.wantEvacuating("low")
		f.rights.refused.Insert("bob on one")
		f.wait(rights.AnswerTTL + time.Second)
		both()
		f.wantEvacuating("low")
		f.deletePod("low")
		f.wait(time.Second)
		both()
		f.wantEvacuating("high")
		f.enter("a", stageComplete)
		both()
		f.wantEvacuating()
	})
}
