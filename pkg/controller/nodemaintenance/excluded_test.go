// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
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
				if e := f.wantEvent(EventNodeExcluded); !strings.Contains(e, `User "jane" may not maintain 1 selected node (skipped); later waves do not wait`) {
					t.Errorf("got event %q", e)
				}
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
		if e := f.wantEvent(EventNodeExcluded); !strings.Contains(e, "later waves wait until its pods have left (onExcludedNode: Wait)") {
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
