// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	versioned "haulout.dev/haulout/pkg/generated/clientset/versioned"
	typed "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
)

// hanging is a client of a server whose webhook does not respond for the Evacuations of some pods.
// Such a call takes 10 s, unless its context ends before.
type hanging struct {
	versioned.Interface

	mu sync.Mutex
	// tries counts the calls for each of these pods, and longest is the duration of the longest
	// call.
	tries   map[string]int
	longest time.Duration
}

// hangs is part of the names of these pods and of their Evacuations.
const hangs = "hangs-"

func (h *hanging) MaintenanceV1alpha1() typed.MaintenanceV1alpha1Interface {
	return hangingGroup{h.Interface.MaintenanceV1alpha1(), h}
}

type hangingGroup struct {
	typed.MaintenanceV1alpha1Interface
	h *hanging
}

func (g hangingGroup) Evacuations(namespace string) typed.EvacuationInterface {
	return hangingEvacuations{g.MaintenanceV1alpha1Interface.Evacuations(namespace), g.h}
}

type hangingEvacuations struct {
	typed.EvacuationInterface
	h *hanging
}

func (e hangingEvacuations) Create(ctx context.Context, obj *v1alpha1.Evacuation, o metav1.CreateOptions) (*v1alpha1.Evacuation, error) {
	if err := e.h.call(ctx, obj.Spec.PodRef.Name); err != nil {
		return nil, err
	}
	return e.EvacuationInterface.Create(ctx, obj, o)
}

func (e hangingEvacuations) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (*v1alpha1.Evacuation, error) {
	if err := e.h.call(ctx, name); err != nil {
		return nil, err
	}
	return e.EvacuationInterface.Patch(ctx, name, pt, data, o, subresources...)
}

// call simulates a call for the pod or the Evacuation with this name.
func (h *hanging) call(ctx context.Context, name string) error {
	if !strings.Contains(name, hangs) {
		return nil
	}
	begun := time.Now()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tries[name]++
	h.longest = max(h.longest, time.Since(begun))
	return apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com": context deadline exceeded`))
}

// TestHangingRequestsDoNotHoldBackOthers covers 40 pods whose Evacuations cannot be created or
// joined, on the first node, and 5 other pods.
func TestHangingRequestsDoNotHoldBackOthers(t *testing.T) {
	const broken, sound = 40, 5
	foreign := instigatedBy(foreignInstigator)
	for name, test := range map[string]struct {
		objects func(pod, node string) []runtime.Object
	}{
		"requests that create": {func(pod, node string) []runtime.Object {
			return []runtime.Object{newPod(pod, node, 0)}
		}},
		"requests that join": {func(pod, node string) []runtime.Object {
			return []runtime.Object{newPod(pod, node, 0), ourEvacuation(pod, node, foreign)}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := []runtime.Object{newMaintenance("m"), newNode("a"), newNode("b")}
				for i := range broken {
					objects = append(objects, test.objects(fmt.Sprintf("%s%02d", hangs, i), "a")...)
				}
				for i := range sound {
					objects = append(objects, test.objects(fmt.Sprintf("sound-%d", i), "b")...)
				}
				f := newFixture(t, objects...)
				client := &hanging{Interface: f.maintenance, tries: map[string]int{}}
				f.Controller.maintenance = client
				syncs := 0
				for f.soundEvacuating() != sound && syncs < 10 {
					syncs++
					f.authorized()
					_ = f.Controller.sync(f.ctx, "m")
					f.cached()
					_ = f.reconcileNodes()
					f.cached()
				}
				if got := f.soundEvacuating(); got != sound {
					t.Errorf("after %d syncs: %d sound pods have Evacuations, want %d; tries of the others: %v", syncs, got, sound, client.tries)
				}
				if client.longest > requestTimeout {
					t.Errorf("a request took %v, want at most %v", client.longest, requestTimeout)
				}
				// With a backoff of a minute, the syncs of an hour must not make a call each.
				for begun := time.Now(); time.Since(begun) < time.Hour; f.wait(time.Second) {
					_ = f.Controller.sync(f.ctx, "m")
				}
				for pod, tries := range client.tries {
					if tries > 66 {
						t.Errorf("%s was tried %d times in an hour", pod, tries)
					}
				}
				if len(client.tries) != broken {
					t.Errorf("%d of %d pods were tried", len(client.tries), broken)
				}
			})
		})
	}
}

// soundEvacuating counts our Evacuations of pods whose requests do not hang.
func (f *fixture) soundEvacuating() int {
	n := 0
	for _, pod := range f.evacuating() {
		if strings.HasPrefix(pod, "sound-") {
			n++
		}
	}
	return n
}
