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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
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

// An older agent has parked a pod and has not recorded the cluster. The API never responds: the
// parked pod may be the API server.
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

// TestWhatFailsForAMinuteIsReported makes Haulout fail permanently, and then the folder.
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

// A Node that was deleted and has joined again is another Node, which the maintenance does not
// select.
func TestARecreatedNodeReleasesThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000, func(nm *v1alpha1.NodeMaintenance) {
			nm.Status.NodeStatuses[1].NodeRef.UID = "uid-node-7"
		}))
		must.Do(t, w.kube.Tracker().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "uid-of-the-cluster"}}))
		w.pass(3 * time.Minute) // the agent reads it
		w.add(evacuationOf("web"))
		w.untilReported("has stopped")
		w.editEvacuation("web", departed)
		w.pass(3 * time.Minute)
		w.want(".nm-parked/uid-update/web.yaml")
		w.editNode(func(n *corev1.Node) { n.UID = "uid-of-the-next-node" })
		w.until("it is restored", func() bool { return slices.Equal(w.list(), []string{"manifests/web.yaml"}) })
	})
}

func TestMirrorPodThatWasRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The Evacuation has the UID of an older mirror pod of the same name.
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
		e := evacuationOf("web")
		e.Spec.PodRef.UID = types.UID("older")
		w.add(e)
		w.wantHappened("run web", "TERM web", "stop web")
	})
}

func TestARestoreThatWasInterruptedIsFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.stop()
		if _, err := w.folder(refusing{name: "web.yaml"}).restore(all); err == nil {
			t.Error("got no error")
		}
		// The agent already decided to restore the pod, so it needs no API.
		w.setNoAPI(errors.New("connection refused"))
		w.run()
		w.wantHappened("run web", "TERM web", "stop web", "run web")
		w.want("manifests/web.yaml")
	})
}
