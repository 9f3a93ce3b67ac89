// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// control returns a manifest of kube-apiserver.
func control(name string) string {
	return strings.Replace(manifestOf(name), "example/app", "registry/kube-apiserver:v1", 1)
}

func TestPodsThatAreKeptAreNotParked(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest string
		prepare  func(*world)
		reason   protocol.KeptReason
		// fact is published beside the pods.
		fact string
	}{
		"a program of a control plane": {manifest: control("web"), reason: "ControlPlaneNode", fact: `"controlPlane":true,`},
		"a pod of a Node with a label of a control plane": {
			manifest: manifestOf("web"), reason: "ControlPlaneNode",
			prepare: func(w *world) {
				w.editNode(func(n *corev1.Node) { n.Labels = map[string]string{"node-role.kubernetes.io/etcd": ""} })
			},
		},
		"a pod that may be the way to the API server": {
			manifest: manifestOf("web", "  hostNetwork: true"), reason: "ServesTheAPI", prepare: func(w *world) { w.server = "https://127.0.0.1:6443" },
		},
		"a pod that the configuration keeps": {
			manifest: manifestOf("web"), reason: "KeptByConfiguration", prepare: func(w *world) { w.policy.Keep = []string{"default/web"} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, map[string]string{"manifests/web.yaml": tc.manifest}, drain("update", 1000))
				if tc.prepare != nil {
					w.stop()
					tc.prepare(w)
					w.run()
				}
				// Simulate a server that has not read the list of kept pods.
				w.add(evacuationOf("web"))
				if got := w.untilReported("keeps running until the machine goes down (" + string(tc.reason) + ")"); got.done {
					t.Errorf("got %+v, want the evacuator to stay", got)
				}
				w.pass(5 * time.Minute)
				w.want("manifests/web.yaml")
				if n := w.countEvents("Warning StaticPodNotStopped"); n != 1 {
					t.Errorf("got %d events, want one", n)
				}
				if got, want := w.published(), `{"bootID":"boot-1",`+tc.fact+`"pods":{"default/web-node-7":"`+string(tc.reason)+`"}}`; got != want {
					t.Errorf("published %s, want %s", got, want)
				}
			})
		})
	}
}

// A server that is older than the agent waits for pods that the agent keeps.
func TestPodsThatAreKeptInVainAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": control("web")}, drain("update", 1000))
		w.stop()
		k := w.newKeeper()
		w.runKeeper(k)
		if n := k.Refused(); n != 0 {
			t.Errorf("got %d pods before a server requests their end, want 0", n)
		}
		w.add(evacuationOf("web"))
		w.untilReported("keeps running until the machine goes down")
		if n := k.Refused(); n != 1 {
			t.Errorf("got %d pods, want 1", n)
		}
		w.editEvacuation("web", func(e *v1alpha1.Evacuation) { e.Finalizers = nil })
		w.until("the server no longer requests the end of the pod", func() bool { return k.Refused() == 0 })
	})
}

func TestKeptPodsArePublishedBeforeTheAgentIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")})
		w.stop()
		w.loseAll()
		k := w.newKeeper()
		k.reconcile(t.Context())
		if got := k.Problem(); !strings.Contains(got, "not published yet") {
			t.Errorf("got the problem %q before anything is published", got)
		}
		w.find()
		k.reconcile(t.Context())
		if got := k.Problem(); got != "" {
			t.Errorf("got the problem %q", got)
		}
	})
}

// TestKeptPodsArePublishedSoonAfterABoot makes the kubelet register after the agent has started.
// Until then the Node has the previous boot ID, and the server ignores what the agent publishes for
// the new boot.
func TestKeptPodsArePublishedSoonAfterABoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")})
		w.stop()
		k := w.newKeeper()
		k.BootID = "boot-2"
		w.runKeeper(k)
		w.pass(time.Minute)
		w.editNode(func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" })
		w.pass(relistPeriod + time.Second)
		if got, want := w.published(), `{"bootID":"boot-2"}`; got != want {
			t.Errorf("published %s %s after the kubelet has registered, want %s", got, relistPeriod, want)
		}
	})
}

func TestWhatIsKeptIsPublishedOnEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")})
		publishes := func(want string) {
			t.Helper()
			w.until("the Node has "+want, func() bool { return w.published() == want })
		}
		publishes(`{"bootID":"boot-1"}`)
		w.write("manifests/api.yaml", control("api"))
		publishes(`{"bootID":"boot-1","controlPlane":true,"pods":{"default/api-node-7":"ControlPlaneNode","default/web-node-7":"ControlPlaneNode"}}`)
		w.remove("manifests/api.yaml")
		publishes(`{"bootID":"boot-1"}`)
		w.editNode(func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" })
		publishes(`{"bootID":"boot-2"}`)
		w.editNode(func(n *corev1.Node) { n.Annotations = nil })
		publishes(`{"bootID":"boot-2"}`)
	})
}

// TestAPodThatBecomesKeptComesBack has a pod that an agent has parked and that the next version of
// the agent keeps.
func TestAPodThatBecomesKeptComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.stop()
		w.policy.Keep = []string{"default/*"}
		w.run()
		w.wantHappened("run web", "TERM web", "stop web", "run web")
		w.want("manifests/web.yaml")
	})
}

// TestAnUndecidedPodStaysParked: the agent starts again, and cannot find out whether the pod serves
// the API.
func TestAnUndecidedPodStaysParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web", "  hostNetwork: true")}, drain("update", 1000))
		w.add(evacuationOf("web"))
		w.untilReported("has stopped")
		w.editEvacuation("web", departed)
		w.stop()
		w.server = "https://:6443" // as if its name could not be resolved
		w.run()
		<-time.After(time.Minute)
		is.True(t, !slices.Contains(w.list(), "manifests/web.yaml"), "the pod was restored: %v", w.list())
	})
}

// A manifest that is a relative link only resolves in the static pod folder.
func TestALinkedManifestThatIsKeptComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, drain("update", 1000))
		w.write("data/web.yaml", control("web"))
		w.write(".nm-parked/uid-update/web.yaml", "-> ../data/web.yaml")
		w.until("it is restored", func() bool { return slices.Contains(w.list(), "manifests/web.yaml") })
	})
}
