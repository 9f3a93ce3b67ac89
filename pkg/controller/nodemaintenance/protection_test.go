// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	nodecontroller "haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/testing/bubble"
)

const doNotDisrupt = "karpenter.sh/do-not-disrupt"

// protectionPolicy is a policy that refuses the annotations for autoscalers.
type protectionPolicy struct {
	on bool
	// refused is the number of refused writes, and refusal their error.
	refused int
	refusal error
}

// refusals are errors of policies that refuse a write, by the kind of the policy.
var refusals = map[string]error{
	"a ValidatingAdmissionPolicy": apierrors.NewForbidden(corev1.Resource("nodes"), "one", errors.New("a policy refuses it")),
	"a webhook without a code": &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusBadRequest, Message: `admission webhook "kyverno" denied the request: a policy refuses it`,
	}},
}

// newProtectionFixture starts a server that protects held nodes, in a cluster with a policy.
func newProtectionFixture(t *testing.T, objects ...runtime.Object) (*fixture, *protectionPolicy) {
	t.Helper()
	f := newFixture(t, objects...)
	f.evacuatorsOn.Insert(v1alpha1.EvacuatorClassDaemonSet)
	f.protect = true
	f.restart()
	policy := &protectionPolicy{on: true, refusal: refusals["a ValidatingAdmissionPolicy"]}
	f.host.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := string(action.(clienttesting.PatchAction).GetPatch())
		if !policy.on || !strings.Contains(patch, `"`+doNotDisrupt+`":`) {
			return false, nil, nil
		}
		policy.refused++
		return true, nil, policy.refusal
	})
	return f, policy
}

// wantProtected checks whether a node has an annotation for autoscalers, and whether its mark
// records the annotation.
func (f *fixture) wantProtected(has, recorded bool) {
	f.t.Helper()
	node := f.node("one")
	if _, got := node.Annotations[doNotDisrupt]; got != has {
		f.t.Errorf("the node has the annotation: %v, want %v", got, has)
	}
	if got := slices.Contains(marks.ReadProtection(node).Annotations, doNotDisrupt); got != recorded {
		f.t.Errorf("the mark records the annotation: %v, want %v", got, recorded)
	}
}

// TestRefusedProtectionDoesNotStopADrain covers policies that are older than the server.
func TestRefusedProtectionDoesNotStopADrain(t *testing.T) {
	for kind, refusal := range refusals {
		bubble.Run(t, kind, func(t *testing.T) {
			f, policy := newProtectionFixture(t, newNode("one"), newMaintenance("m"), newPod("app", "one", 0), newPod("logger", "one", 0, ofDaemonSet))
			policy.refusal = refusal
			f.step("m")
			f.wantCordon("one", true, "m")
			f.wantEvacuating("app")
			f.wantProtected(false, false)
			if event := f.wantEvent(nodecontroller.EventNotProtected); !strings.Contains(event, "a policy refuses it") {
				t.Errorf("the event %q does not have the refusal", event)
			}
			f.deletePod("app")
			f.step("m")
			f.wantTaints("one", ours(), "m")
			f.wantEvacuating("logger")
			if policy.refused != 1 {
				t.Errorf("%d writes were refused, want 1", policy.refused)
			}

			policy.on = false
			f.wait(10 * time.Minute)
			f.step("m")
			f.wantProtected(true, true)
		})
	}
}

func TestRefusedProtectionDoesNotStopARelease(t *testing.T) {
	for kind, refusal := range refusals {
		bubble.Run(t, kind, func(t *testing.T) {
			f, policy := newProtectionFixture(t, newNode("one"), newMaintenance("m"))
			policy.refusal = refusal
			policy.on = false
			f.step("m")
			f.wantProtected(true, true)

			policy.on = true
			f.enter("m", stageComplete)
			f.step("m")
			f.wantCordon("one", false)
			f.wantTaints("one", []corev1.Taint{})
			f.wantProtected(true, true)
			if event := f.wantEvent(nodecontroller.EventNotProtected); !strings.Contains(event, doNotDisrupt) {
				t.Errorf("the event %q does not name the annotation that stays", event)
			}

			policy.on = false
			f.wait(10 * time.Minute)
			f.step("m")
			f.wantProtected(false, false)
		})
	}
}

// TestProtectionThatAnOlderServerLeaves covers an upgrade in which an older server, which does not
// know the annotations, leads for a while and releases the node.
func TestProtectionThatAnOlderServerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, policy := newProtectionFixture(t, newNode("one"), newMaintenance("m"))
		policy.on = false
		f.step("m")
		f.wantProtected(true, true)
		f.enter("m", stageComplete)
		f.updateNode("one", func(node *corev1.Node) {
			node.Spec.Unschedulable, node.Spec.Taints = false, nil
			delete(node.Annotations, v1alpha1.AnnotationCordonedBy)
			delete(node.Annotations, v1alpha1.AnnotationTaintedBy)
		})
		f.restart()
		f.step("m")
		f.wantProtected(false, false)
	})
}

// TestProtectionThatIsTurnedOffIsRefused covers a held node that the server cannot expose again.
func TestProtectionThatIsTurnedOffIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, policy := newProtectionFixture(t, newNode("one"), newMaintenance("m"))
		policy.on = false
		f.step("m")
		policy.on, f.protect = true, false
		f.restart()
		f.step("m")
		f.wantProtected(true, true)
		f.wantEvent(nodecontroller.EventNotProtected)
	})
}
