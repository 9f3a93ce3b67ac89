// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/golden"
	"haulout.dev/haulout/pkg/testing/is"
)

// inEachState has the objects for each state of an Evacuation, and what brings the state about.
var inEachState = map[glance.StateWord]struct {
	evacuation *v1alpha1.Evacuation
	objects    []runtime.Object
	reach      func(*world)
}{
	glance.StateWaiting: {
		newEvacuation(withEvacuators(classA)), []runtime.Object{newPod()},
		func(w *world) { w.until("the evacuator is active", 0, hasClass(classA)) },
	},
	glance.StateMoving: {
		newEvacuation(withEvacuators(classA)), []runtime.Object{newPod()},
		func(w *world) {
			w.until("the evacuator is active", 0, hasClass(classA))
			w.api.edit(w.T, w.target, reported(0, "The pod is being copied"))
		},
	},
	glance.StateBlocked: {
		newEvacuation(), []runtime.Object{newPod(), newBudget("1", 0)},
		func(w *world) {
			w.host.answer(refuse)
			w.until("the Evacuation is blocked", time.Second, hasReason(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget))
		},
	},
	glance.StateGone: {
		newEvacuation(), []runtime.Object{newPod()},
		func(w *world) { w.until("the pod is deleted", 0, podDeleted) },
	},
	glance.StateEnded: {
		newEvacuation(), []runtime.Object{newPod(inPhase(corev1.PodSucceeded))},
		func(w *world) {
			w.until("the pod has terminated", 0, hasReason(v1alpha1.ConditionComplete, v1alpha1.ReasonPodTerminated))
		},
	},
	glance.StateCancelled: {
		// An Evacuation that can be cancelled is deleted immediately. This one ends without an
		// eviction.
		turnOfA(reported(0, "The pod is being copied"), withStatus(func(st *v1alpha1.EvacuationStatus) {
			st.EvacuationCancellationPolicy = forbid
		})),
		[]runtime.Object{newPod()},
		func(w *world) {
			w.api.edit(w.T, w.target, withFinalizers())
			w.api.edit(w.T, w.target, withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true }))
			w.until("the Evacuation is cancelled", 0, hasReason(v1alpha1.ConditionComplete, v1alpha1.ReasonCancelled))
		},
	},
}

// TestEachStateForGitOps writes an Evacuation in each state, on which test/gitops runs the health
// checks of GitOps tools.
func TestEachStateForGitOps(t *testing.T) {
	for word, state := range inEachState {
		bubble.Run(t, string(word), func(t *testing.T) {
			objects := []runtime.Object{newNode(corev1.ConditionTrue)}
			for _, object := range state.objects {
				objects = append(objects, object.DeepCopyObject())
			}
			w := newWorld(t, 0, state.evacuation.DeepCopy(), objects...)
			// A cancelled Evacuation is deleted right after its status is written.
			w.api.keep()
			state.reach(w)
			e := w.get()
			is.Equal(t, glance.State(e), word, "the state")
			e.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Evacuation"))
			e.ResourceVersion, e.ManagedFields = "1", nil
			golden.GitOps(t, "evacuation-"+string(word), e)
		})
	}
}
