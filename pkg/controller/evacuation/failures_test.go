// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
)

// refuseWrites makes the API refuse updates of a subresource of Evacuations.
func (w *world) refuseWrites(subresource string) {
	w.api.client.PrependReactor(
		"update", "evacuations",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetSubresource() != subresource {
				return false, nil, nil
			}
			return true, nil, apierrors.NewForbidden(evacuationsResource.GroupResource(), "x",
				errors.New("denied by policy all-or-nothing"))
		},
	)
}

func TestStatusThatCannotBeWrittenIsRecordedAsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(), newPod(), newNode(corev1.ConditionTrue), newBudget("1", 0))
		w.host.answer(refuse)
		w.until("the eviction is active", 0, hasClass(evict))
		w.refuseWrites("status")
		var got []string
		w.until("20 minutes have passed", time.Second, func(*maintenancev1alpha1.Evacuation) bool {
			select {
			case e := <-w.events.Events:
				got = append(got, e)
				if passed := w.clock.Since(start); passed < loop.VisibleAfter {
					t.Errorf("got the event after %s, want not before %s", passed, loop.VisibleAfter)
				}
			default:
			}
			return w.clock.Since(start) > 20*time.Minute
		})
		if len(got) != 1 || !strings.Contains(got[0], EventBlocked) ||
			!strings.Contains(got[0], "denied by policy all-or-nothing") {
			t.Errorf("got events %q, want one with the error", got)
		}
	})
}

func TestEvacuationThatCannotBeReleasedIsBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(), newPod(), newNode(corev1.ConditionTrue), newBudget("1", 0))
		w.until("the eviction is active", 0, hasClass(evict))
		w.refuseWrites("")
		w.api.edit(t, w.target, deleting)
		w.until("the Evacuation is blocked", time.Second,
			hasReason(maintenancev1alpha1.ConditionBlocked, maintenancev1alpha1.ReasonEvictionError))
		if passed := w.clock.Since(start); passed < loop.VisibleAfter {
			t.Errorf("the Evacuation was blocked after %s, want not before %s", passed, loop.VisibleAfter)
		}
		if w.host.sent() != 0 {
			t.Errorf("got %d evictions, want none", w.host.sent())
		}
	})
}
