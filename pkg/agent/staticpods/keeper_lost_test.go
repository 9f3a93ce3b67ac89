// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestAllPodsReturnWithoutTheAPIs(t *testing.T) {
	forbidden := apierrors.NewForbidden(maintenancesResource.GroupResource(), "update", errors.New("no"))
	noHaulout := func(w *world) { w.setNoAPI(forbidden) }
	for name, tc := range map[string]struct {
		happens func(*world)
		want    bool
	}{
		"when both are lost for five minutes": {func(w *world) { w.loseAll(); w.pass(7 * time.Minute) }, true},
		"not before":                          {func(w *world) { w.loseAll(); w.pass(4 * time.Minute) }, false},
		"when Haulout is lost for an hour":    {func(w *world) { noHaulout(w); w.pass(63 * time.Minute) }, true},
		"not while Haulout is updated":        {func(w *world) { noHaulout(w); w.pass(50 * time.Minute) }, false},
		"not while the machine goes down": {func(w *world) {
			w.mu.Lock()
			w.leaving = true
			w.mu.Unlock()
			w.loseAll()
			w.pass(2 * time.Hour)
		}, false},
		"not when both are lost twice for a short time": {func(w *world) {
			for range 3 {
				w.loseAll()
				w.pass(4 * time.Minute)
				w.find()
				w.pass(2 * time.Minute)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := drained(t)
				w.pass(2 * time.Minute)
				tc.happens(w)
				if got := w.kubelet.uid("web") != ""; got != tc.want {
					t.Errorf("the pod runs: %t, want %t", got, tc.want)
				}
				if n := w.countEvents("Warning StaticPodRestoredWithoutAPI"); n > 0 != tc.want {
					t.Errorf("got %d events", n)
				}
			})
		})
	}
}

// An older agent has parked a pod without a note of the cluster, and the API never answers: that pod
// may be the API server.
func TestAControlPlaneOfAnOlderAgentReturnsWithoutTheAPIs(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest string
		want     bool
	}{
		"kube-apiserver": {control("web"), true},
		"another pod":    {manifestOf("web"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil, drain("update", 1000))
				w.stop()
				w.loseAll()
				w.write(".nm-parked/uid-update/web.yaml", tc.manifest)
				w.run()
				w.pass(4 * time.Minute)
				w.want(".nm-parked/uid-update/web.yaml")
				w.pass(3 * time.Minute)
				want := ".nm-parked/uid-update/web.yaml"
				if tc.want {
					want = "manifests/web.yaml"
				}
				w.want(want)
			})
		})
	}
}

func TestHoldingNeedsNoAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.loseAll()
		w.stop()
		w.run()
		w.write("manifests/web.yaml", manifestOf("web"))
		w.until("it is parked", func() bool { return slices.Equal(w.list(), []string{".nm-parked/uid-update/web.yaml"}) })
	})
}

// TestWhatFailsForAMinuteIsReported has Haulout, and then the folder, fail without an end.
func TestWhatFailsForAMinuteIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.stop()
		w.setNoAPI(errors.New("the server could not find the requested resource"))
		k := w.newKeeper()
		k.reconcile(t.Context())
		if got := k.Problem(); got != "" {
			t.Errorf("got the problem %q immediately", got)
		}
		w.pass(2 * time.Minute)
		k.reconcile(t.Context())
		if got := k.Problem(); !strings.Contains(got, "could not find the requested resource") || w.countEvents("StaticPodsNotAsTheyShouldBe") != 1 {
			t.Errorf("got the problem %q and the events %q", got, w.events)
		}
		w.setNoAPI(nil)
		w.editMaintenance("update", inStage(complete))
		k.folder.files = refusing{name: "web.yaml"}
		for range 3 {
			w.pass(2 * time.Minute)
			k.reconcile(t.Context())
		}
		if got := k.Problem(); !strings.Contains(got, "web.yaml") || w.countEvents("StaticPodsNotAsTheyShouldBe") != 2 {
			t.Errorf("got the problem %q and the events %q", got, w.events)
		}
		k.folder.files = osFiles{}
		w.pass(2 * time.Minute)
		k.reconcile(t.Context())
		if got := k.Problem(); got != "" {
			t.Errorf("got the problem %q after the restore", got)
		}
		w.want("manifests/web.yaml")
	})
}
