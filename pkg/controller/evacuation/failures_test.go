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
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestFailures(t *testing.T) {
	one, two := errors.New("denied by policy"), errors.New("denied\nby \x1b[31mwebhook")
	key := types.NamespacedName{Namespace: "shop", Name: "web"}
	type step struct {
		at             time.Duration
		err            error
		recorded, last string
	}
	for name, steps := range map[string][]step{
		"an error that ends within a minute is not recorded": {
			{0, one, "", ""}, {59 * time.Second, one, "", ""}, {time.Minute, nil, "", ""},
		},
		"an error that lasts is recorded once": {
			{0, one, "", ""},
			{time.Minute, one, "denied by policy", "denied by policy"}, {time.Hour, one, "", "denied by policy"},
		},
		"an error with another text is recorded as one line": {
			{0, one, "", ""}, {time.Minute, two, "denied by [31mwebhook", "denied by [31mwebhook"},
			{2 * time.Minute, one, "denied by policy", "denied by policy"},
		},
		"the minute starts again after a success": {
			{0, one, "", ""}, {time.Minute, one, "denied by policy", "denied by policy"},
			{2 * time.Minute, nil, "", ""},
			{3 * time.Minute, one, "", ""}, {4 * time.Minute, one, "denied by policy", "denied by policy"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := failures{all: map[types.NamespacedName]failing{}}
			for _, s := range steps {
				now := start.Add(s.at)
				if got := f.note(key, s.err, false, now); got != s.recorded {
					t.Errorf("after %s: got error %q to record, want %q", s.at, got, s.recorded)
				}
				if got := f.of(key, now); got != s.last {
					t.Errorf("after %s: got error %q that lasts, want %q", s.at, got, s.last)
				}
			}
		})
	}
}

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
				if passed := w.clock.Since(start); passed < failingAfter {
					t.Errorf("got the event after %s, want not before %s", passed, failingAfter)
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
		if passed := w.clock.Since(start); passed < failingAfter {
			t.Errorf("the Evacuation was blocked after %s, want not before %s", passed, failingAfter)
		}
		if w.host.sent() != 0 {
			t.Errorf("got %d evictions, want none", w.host.sent())
		}
	})
}
