// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	versioned "haulout.dev/haulout/pkg/generated/clientset/versioned"
	typed "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// refuseWrites makes the API refuse updates of a subresource of Evacuations.
func (w *world) refuseWrites(subresource string) {
	w.api.client.Lock()
	defer w.api.client.Unlock()
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
		w.until("20 minutes have passed", time.Second, func(*v1alpha1.Evacuation) bool {
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
			hasReason(v1alpha1.ConditionBlocked, v1alpha1.ReasonEvictionError))
		if passed := w.clock.Since(start); passed < loop.VisibleAfter {
			t.Errorf("the Evacuation was blocked after %s, want not before %s", passed, loop.VisibleAfter)
		}
		is.Equal(t, w.host.sent(), 0, "evictions")
	})
}

func TestCancelledEvacuationIsReleasedWithoutItsStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(), newPod(), newNode(corev1.ConditionTrue), newBudget("1", 0))
		w.host.answer(refuse)
		w.until("the eviction is active", 0, hasClass(evict))
		w.refuseWrites("status")
		w.until("the refusal is reported", time.Second, func(*v1alpha1.Evacuation) bool { return len(w.events.Events) > 0 })
		w.expectEvent(EventBlocked)
		w.api.edit(t, w.target, deleting)
		w.until("the Evacuation is released", time.Second, gone)
		w.expectEvent(EventCancelled)
	})
}

func TestReleaseWaitsForTheLastStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(deleting), newNode(corev1.ConditionTrue))
		w.refuseWrites("status")
		w.until("the Evacuation is released", time.Second, gone)
		if passed := w.clock.Since(start); passed < loop.VisibleAfter {
			t.Errorf("the Evacuation was released after %s, want not before %s", passed, loop.VisibleAfter)
		}
	})
}

func TestForbiddenCancellationWaitsForItsStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forbidding := withStatus(func(st *v1alpha1.EvacuationStatus) { st.EvacuationCancellationPolicy = forbid })
		w := newWorld(t, 0, turnOfA(reported(0, "moving"), forbidding, deleting), newPod(), newNode(corev1.ConditionTrue))
		w.refuseWrites("status")
		w.until("an hour has passed", time.Second, func(e *v1alpha1.Evacuation) bool {
			return e == nil || w.clock.Since(start) > time.Hour
		})
		is.True(t, w.get() != nil, "the Evacuation was released at %s although its evacuator forbids it", w.clock.Since(start))
	})
}

// hangs is part of the names of the Evacuations for which a webhook takes 10 s.
const hangs = "hangs-"

// hanging is a client whose writes of Evacuations with hangs in their names hang.
type hanging struct {
	versioned.Interface
	answers *atomic.Bool
}

type hangingGroup struct {
	typed.MaintenanceV1alpha1Interface
	answers *atomic.Bool
}

type hangingEvacuations struct {
	typed.EvacuationInterface
	answers *atomic.Bool
}

func (h hanging) MaintenanceV1alpha1() typed.MaintenanceV1alpha1Interface {
	return hangingGroup{h.Interface.MaintenanceV1alpha1(), h.answers}
}

func (g hangingGroup) Evacuations(namespace string) typed.EvacuationInterface {
	return hangingEvacuations{g.MaintenanceV1alpha1Interface.Evacuations(namespace), g.answers}
}

func (e hangingEvacuations) UpdateStatus(
	ctx context.Context, obj *v1alpha1.Evacuation, o metav1.UpdateOptions,
) (*v1alpha1.Evacuation, error) {
	if !strings.Contains(obj.Name, hangs) || e.answers.Load() {
		return e.EvacuationInterface.UpdateStatus(ctx, obj, o)
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
	}
	return nil, apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com": context deadline exceeded`))
}

// TestHangingWritesDoNotHoldBackOthers covers more Evacuations with hanging writes than the workers
// can try within the backoff.
func TestHangingWritesDoNotHoldBackOthers(t *testing.T) {
	const broken = 40
	newPair := func(name string) (*corev1.Pod, *v1alpha1.Evacuation) {
		pod := newPod(func(p *corev1.Pod) { p.Name, p.UID = name, types.UID("uid-"+name) })
		return pod, newEvacuation(func(e *v1alpha1.Evacuation) {
			e.Name, e.UID = protocol.CanonicalName(name, pod.UID), types.UID("uid-e-"+name)
			e.Spec.PodRef = v1alpha1.PodReference{Name: name, UID: pod.UID}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		host := []runtime.Object{newNode(corev1.ConditionTrue)}
		var evacuations []*v1alpha1.Evacuation
		for i := range broken {
			pod, evacuation := newPair(fmt.Sprintf("%s%d", hangs, i))
			host, evacuations = append(host, pod), append(evacuations, evacuation)
		}
		pod, sound := newPair("sound")
		w := newWorld(t, 0, evacuations[0], append(host, pod)...)
		add := func(e *v1alpha1.Evacuation) {
			t.Helper()
			must.Do(w, w.api.client.Tracker().Add(e))
			synctest.Wait()
		}
		for _, evacuation := range evacuations[1:] {
			add(evacuation)
		}
		go func() {
			for {
				select {
				case <-w.events.Events: // the buffer of the recorder is full
				case <-t.Context().Done():
					return
				}
			}
		}()
		<-time.After(10 * time.Minute)
		added := time.Now()
		w.target = sound
		add(sound)
		w.until("the sound pod has left", time.Second, podDeleted)
		if took := time.Since(added); took > 2*time.Second {
			t.Errorf("the sound Evacuation took %s", took)
		}
		w.answers.Store(true)
		answered := time.Now()
		for _, w.target = range evacuations {
			w.until("the webhook answers", time.Second, podDeleted)
		}
		if took := time.Since(answered); took > 2*time.Minute {
			t.Errorf("the others took %s after the webhook had answered", took)
		}
	})
}
