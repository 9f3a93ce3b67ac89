// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// slow returns a manifest of a pod that takes some seconds to end.
func slow(name string, seconds int) string {
	return text(name, "  priority: 1", fmt.Sprint("  terminationGracePeriodSeconds: ", seconds))
}

const complete = v1alpha1.NodeMaintenanceStageComplete

// drained returns a world in which the pod web was stopped for the maintenance update.
func drained(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
	w.add(evacuationOf("web"))
	w.untilReported("has stopped")
	w.editEvacuation("web", departed)
	return w
}

func TestAStaticPodStaysStoppedAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web"), "manifests/db.yaml": manifestOf("db")}, drain("update", 1000))
		uid := w.kubelet.uid("web")
		w.add(evacuationOf("web"))
		parked := w.untilReported("terminating static pod default/web-node-7 due to node maintenance update (new kernel)")
		if want := w.start.Add(parked.at + 25*time.Second).Format(time.RFC3339); parked.finish != want {
			t.Errorf("got the expected finish %s, want %s, after the latency of 20s and the grace period of 5s", parked.finish, want)
		}
		w.untilReported("has stopped")
		w.editEvacuation("web", departed)
		w.untilEvent("Normal StaticPodParked ")
		before := []string{"run web", "run db", "TERM web", "stop web"}
		slices.Sort(before[:2])

		// Restart the kubelet, the agent and the machine.
		w.kubelet.stop()
		w.pass(time.Second)
		w.kubelet.restart()
		w.pass(time.Minute)
		w.stop()
		w.run()
		w.pass(time.Minute)
		got := w.kubelet.happened()
		slices.Sort(got[:2])
		is.True(t, slices.Equal(got, before), "got %v, want %v", got, before)
		w.want(".nm-parked/uid-update/web.yaml", "manifests/db.yaml")

		w.editMaintenance("update", inStage(complete))
		w.until("the pod runs again", func() bool { return w.kubelet.uid("web") != "" })
		if got := w.kubelet.uid("web"); got != uid {
			t.Errorf("got the UID %s, want %s as before", got, uid)
		}
		w.want("manifests/web.yaml", "manifests/db.yaml")
		w.wantEntries()
		w.untilEvent("Normal StaticPodRestored ")
	})
}

func TestABootedMachineKeepsItsPodsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.stop()
		w.kubelet.boot()
		w.run()
		w.wantHappened("run web", "TERM web", "stop web")
	})
}

func TestAMaintenanceThatIsDeletedReleasesThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		must.Do(t, w.api.Tracker().Delete(maintenancesResource, "", "update"))
		w.wantHappened("run web", "TERM web", "stop web", "run web")
	})
}

func TestANodeThatLeavesTheMaintenanceReleasesThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.editMaintenance("update", func(nm *v1alpha1.NodeMaintenance) { nm.Status.NodeStatuses = nm.Status.NodeStatuses[:1] })
		w.wantHappened("run web", "TERM web", "stop web", "run web")
	})
}

func paused(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = true }

func TestAPauseKeepsThePodStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.editMaintenance("update", paused)
		w.wantHappened("run web", "TERM web", "stop web")
		w.stop()
		w.run()
		w.pass(time.Hour)
		w.wantHappened("run web", "TERM web", "stop web")
	})
}

func TestAnotherMaintenanceKeepsThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.editNode(markedBy)
		w.add(drain("second", v1alpha1.MaxPodPriority))
		w.pass(time.Minute)
		w.editMaintenance("update", inStage(complete))
		w.wantHappened("run web", "TERM web", "stop web")
		entries, err := w.folder(osFiles{}).entries()
		if err != nil || len(entries) != 1 || len(entries[0].Maintenances) != 1 || entries[0].Maintenances[0].Name != "second" {
			t.Errorf("got %+v, %v, want the maintenance second", entries, err)
		}
		w.editMaintenance("second", inStage(complete))
		w.wantHappened("run web", "TERM web", "stop web", "run web")
	})
}

func TestPodsThatNoMaintenanceTargetsAreLeftAlone(t *testing.T) {
	for name, nm := range map[string]*v1alpha1.NodeMaintenance{
		"without a drain": drain("update", 1000, inStage(v1alpha1.NodeMaintenanceStageCordon)),
		"that is paused":  drain("update", 1000, paused),
		"whose plan keeps the pod": drain("update", 1000, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{{
				PodType: v1alpha1.PodTypeStatic, PodPriority: 1000, Behavior: new(v1alpha1.DrainBehaviorSkip),
			}}
		}),
		"with a priority that is higher": drain("update", 999),
		"on another node": drain("update", 1000, func(nm *v1alpha1.NodeMaintenance) {
			nm.Status.NodeStatuses[1].NodeRef.Name = "node-8"
		}),
		"of another type": drain("update", 1000, func(nm *v1alpha1.NodeMaintenance) {
			nm.Status.NodeStatuses[1].DrainTargets = nm.Status.NodeStatuses[1].DrainTargets[:1]
		}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, nm)
				w.add(evacuationOf("web"))
				w.pass(10 * time.Minute)
				if got := w.reported(); len(got) != 0 {
					t.Errorf("got the reports %+v, want none", got)
				}
				// The maintenance targets the pod only now.
				w.editMaintenance("update", func(nm *v1alpha1.NodeMaintenance) { *nm = *drain("update", 1000) })
				w.wantHappened("run web", "TERM web", "stop web")
			})
		})
	}
}

func TestPodsThatAreNotStaticPodsOfTheNodeAreLeftAlone(t *testing.T) {
	for name, mod := range map[string]func(*corev1.Pod){
		"no mirror pod":              func(p *corev1.Pod) { p.Annotations = nil },
		"a pod without the owner":    func(p *corev1.Pod) { p.OwnerReferences = nil },
		"a pod of another node":      func(p *corev1.Pod) { p.Spec.NodeName = "node-8" },
		"owned by another node":      func(p *corev1.Pod) { p.OwnerReferences[0].Name = "node-8" },
		"owned by something else":    func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" },
		"owned without a controller": func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil, drain("update", 1000))
				w.write("other/web.yaml", manifestOf("web"))
				must.Do(t, w.kube.Tracker().Add(mirror("web", mod)))
				w.add(evacuationOf("web"))
				w.pass(time.Minute)
				if got := w.reported(); len(got) != 0 {
					t.Errorf("got the reports %+v, want none", got)
				}
			})
		})
	}
}

func TestAManifestIsNotMovedWhileTheKubeletIsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
		w.kubelet.stop()
		w.add(evacuationOf("web"))
		w.untilReported("when the kubelet and the container runtime are healthy")
		w.pass(time.Minute)
		w.want("manifests/web.yaml")
		if got := w.reported(); len(got) != 1 {
			t.Errorf("got the reports %+v, want one without heartbeats", got)
		}
		w.kubelet.restart()
		w.wantHappened("run web", "TERM web", "stop web")
	})
}

func TestAManifestThatIsPutBackIsParkedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		newer := manifestOf("web", "  hostNetwork: true")
		w.stop()
		w.write("manifests/web.yaml", newer)
		w.until("the pod runs again", func() bool { return w.kubelet.uid("web") != "" })
		w.run()
		w.wantHappened("run web", "TERM web", "stop web", "run web", "TERM web", "stop web")
		w.want(".nm-parked/uid-update/web.yaml")
		w.untilEvent("Warning StaticPodParkedAgain ")
		if w.countEvents("(update)") == 0 {
			t.Errorf("got the events %q, want one that names the maintenance", w.events)
		}

		// The agent reports nothing while the kubelet is down.
		w.kubelet.stop()
		w.write("manifests/copy.yaml", newer)
		w.pass(time.Minute)
		w.want(".nm-parked/uid-update/web.yaml", "manifests/copy.yaml")
		w.kubelet.restart()
		w.until("it is parked", func() bool { return slices.Contains(w.list(), ".nm-parked/uid-update/copy.yaml") })

		w.remove(".nm-parked/uid-update/copy.yaml")
		w.editMaintenance("update", inStage(complete))
		w.until("the manifest is back", func() bool { return slices.Contains(w.list(), "manifests/web.yaml") })
		if got := w.read("manifests/web.yaml"); got != newer {
			t.Errorf("got %q, want the newest manifest", got)
		}
	})
}

func TestACancelledMaintenanceRestartsThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
		uid := w.kubelet.uid("web")
		w.add(evacuationOf("web"))
		w.until("the pod is terminating", func() bool { return slices.Contains(w.kubelet.happened(), "TERM web") })
		w.editMaintenance("update", inStage(complete))
		w.editEvacuation("web", func(e *v1alpha1.Evacuation) { e.Finalizers = nil })
		w.wantHappened("run web", "TERM web", "stop web", "run web")
		if got := w.kubelet.uid("web"); got != uid {
			t.Errorf("got the UID %s, want %s as before", got, uid)
		}
	})
}

func TestAStaticPodFromAURLIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, drain("update", 1000))
		must.Do(t, w.kube.Tracker().Add(mirror("web", func(p *corev1.Pod) { p.Annotations[annotationConfigSource] = "http" })))
		w.add(evacuationOf("web"))
		got := w.untilReported("default/web-node-7 comes from the kubelet's staticPodURL")
		if !got.done || !strings.Contains(got.message, "kubelet.k8s.io gives up") {
			t.Errorf("got %+v, want the evacuator to be done", got)
		}
		w.untilEvent("Warning StaticPodNotStopped ")
	})
}

func TestAPodWithoutAManifestIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, drain("update", 1000))
		must.Do(t, w.kube.Tracker().Add(mirror("web")))
		w.add(evacuationOf("web"))
		w.untilReported("has no manifest of static pod default/web-node-7")
	})
}

func TestARestartOfTheKubeletDuringATerminationIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": slow("web", 600)}, drain("update", 1000))
		w.add(evacuationOf("web"))
		w.untilReported("terminating")
		w.until("the pod is terminating", func() bool { return slices.Contains(w.kubelet.happened(), "TERM web") })
		w.kubelet.stop()
		w.pass(time.Second)
		w.kubelet.restart()
		w.untilEvent("Warning KubeletRestartedDuringTermination ")
		w.untilReported("has stopped")
		w.wantHappened("run web", "TERM web", "KILL web")
		if n := w.countEvents("KubeletRestartedDuringTermination"); n != 1 {
			t.Errorf("got %d events, want one", n)
		}
	})
}

func TestARestartOfTheAgentDuringATermination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
		w.add(evacuationOf("web"))
		w.untilReported("terminating")
		w.stop()
		w.run()
		w.untilReported("has stopped")
		w.wantHappened("run web", "TERM web", "stop web")
		if n := w.countEvents("Kubelet"); n != 0 {
			t.Errorf("got %d events of a restarted kubelet, want none", n)
		}
	})
}

func TestHeartbeatsWhileAPodTerminates(t *testing.T) {
	for name, tc := range map[string]struct {
		deadline int32
		want     time.Duration
	}{
		"ten seconds apart":         {1800, 10 * time.Second},
		"a quarter of the deadline": {16, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, map[string]string{"manifests/web.yaml": slow("web", 120)}, drain("update", 1000))
				e := evacuationOf("web")
				e.Spec.ProgressDeadlineSeconds = &tc.deadline
				w.add(e)
				w.untilReported("has stopped")
				reports := w.reported()
				for i := 1; i < len(reports); i++ {
					if d := reports[i].at - reports[i-1].at; d > tc.want+pollPeriod {
						t.Errorf("got reports %s apart, want %s", d, tc.want)
					}
				}
				if least := int(2 * time.Minute / (tc.want + pollPeriod)); len(reports) < least {
					t.Errorf("got %d reports, want at least %d", len(reports), least)
				}
			})
		})
	}
}

func TestALatePodIsNamedWithoutHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
		// The kubelet does not notice the change.
		w.kubelet.set(func(k *fakeKubelet) { k.down, k.unwell = false, false; k.every = time.Hour })
		w.add(evacuationOf("web"))
		w.untilReported("it should have stopped at")
		before := len(w.reported())
		w.pass(10 * time.Minute)
		if got := w.reported(); len(got) != before {
			t.Errorf("got the reports %+v, want none after the message", got[before:])
		}
	})
}

func TestAContainerThatRunsKeepsThePodFromBeingDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": slow("web", 120)}, drain("update", 1000))
		w.add(evacuationOf("web"))
		w.untilReported("terminating")
		// A user deletes the mirror pod.
		must.Do(t, w.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", "web-node-7"))
		w.pass(time.Minute)
		// A runtime that does not respond must not count as a stopped pod.
		w.kubelet.set(func(k *fakeKubelet) { k.runtime = errors.New("no runtime") })
		w.pass(2 * time.Minute)
		if slices.ContainsFunc(w.reported(), func(r report) bool { return strings.Contains(r.message, "has stopped") }) {
			t.Errorf("got the reports %+v, want no report that the pod has stopped", w.reported())
		}
		w.kubelet.set(func(k *fakeKubelet) { k.runtime = nil })
		w.untilReported("has stopped")
	})
}

// TestHoldsBackOff has a program that puts the manifest back each time that the Keeper parks it.
func TestHoldsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		end := time.Now().Add(time.Hour)
		for time.Now().Before(end) {
			if !slices.Contains(w.list(), "manifests/web.yaml") {
				w.write("manifests/web.yaml", manifestOf("web"))
			}
			w.pass(5 * time.Second)
		}
		if n := w.countEvents("StaticPodParkedAgain"); n < 5 || n > 30 {
			t.Errorf("the manifest was parked again %d times in an hour, want some and a pause of minutes between them", n)
		}
	})
}

// TestTheHoldersOfTheNodeAreReadByName checks that the agent does not list the maintenances if the
// Node names them, and does not read an unchanged maintenance every ten seconds.
func TestTheHoldersOfTheNodeAreReadByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
		w.editNode(func(n *corev1.Node) {
			n.Annotations = map[string]string{
				v1alpha1.AnnotationCordonedBy:   `{"storage":"s","maintenances":{"update":"uid-update","gone":"uid-gone"}}`,
				v1alpha1.AnnotationConditionsBy: `{"storage":"s","conditions":[],"maintenances":{"update":{"uid":"uid-update","stage":"Drain"}}}`,
			}
		})
		w.api.ClearActions()
		w.add(evacuationOf("web"))
		w.untilReported("has stopped")
		w.editEvacuation("web", departed)
		w.pass(10 * time.Minute)
		reads := w.readByName()
		is.True(t, reads <= 40, "maintenances were read %d times in ten minutes", reads)
		w.want(".nm-parked/uid-update/web.yaml")
		w.editNode(func(n *corev1.Node) { delete(n.Annotations, v1alpha1.AnnotationCordonedBy) })
		w.editMaintenance("update", inStage(complete))
		w.wantHappened("run web", "TERM web", "stop web", "run web")
	})
}

// TestTheMaintenanceOfAParkedPodIsReadByName removes the marks of the Node, as the server does at
// the end of a maintenance. The agents of all nodes of the maintenance then read at the same time.
func TestTheMaintenanceOfAParkedPodIsReadByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.editNode(markedBy)
		w.pass(2 * time.Minute)
		w.api.ClearActions()
		// The maintenance drains the node also without the marks, which any client can remove.
		w.editNode(func(n *corev1.Node) { n.Annotations = nil })
		w.wantHappened("run web", "TERM web", "stop web")
		w.editMaintenance("update", inStage(complete))
		w.wantHappened("run web", "TERM web", "stop web", "run web")
		is.True(t, w.readByName() > 0, "the maintenance was not read")
	})
}

func TestTheRuntimeMustAnswerBeforeAPodIsParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
		w.kubelet.set(func(k *fakeKubelet) { k.runtime = errors.New("no runtime") })
		w.add(evacuationOf("web"))
		w.untilReported("no runtime")
		w.pass(time.Minute)
		w.want("manifests/web.yaml")
		w.kubelet.set(func(k *fakeKubelet) { k.runtime = nil })
		w.untilReported("terminating")
		w.kubelet.set(func(k *fakeKubelet) { k.runtime = errors.New("no runtime") })
		w.untilReported("does not report its containers")
		w.kubelet.set(func(k *fakeKubelet) { k.runtime = nil })
		w.wantHappened("run web", "TERM web", "stop web")
	})
}

// TestManifestsOfAnotherClusterAreSetAside has a node that was reset and has joined another
// cluster.
func TestManifestsOfAnotherClusterAreSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.stop()
		must.Do(t, w.api.Tracker().Delete(maintenancesResource, "", "update"))
		w.editNode(func(n *corev1.Node) { n.UID = "uid-of-another-cluster" })
		w.run()
		w.untilEvent("Warning StaticPodOfAnotherCluster ")
		w.wantHappened("run web", "TERM web", "stop web")
		w.want(".nm-parked/foreign/web.yaml")
		done, err := RestoreForeign(w.dir())
		if err != nil || len(done) != 1 {
			t.Fatalf("got %+v, %v, want one manifest", done, err)
		}
		w.wantHappened("run web", "TERM web", "stop web", "run web")
	})
}

// An entry of an older version has no cluster. It belongs to the present cluster only if the Node
// already existed when the manifest was parked.
func TestAnEntryThatIsOlderThanTheNodeIsOfAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.stop()
		must.Do(t, w.folder(osFiles{}).change(types.NamespacedName{Namespace: "default", Name: "web-node-7"}, func(e *Entry) { e.Cluster = nil }))
		w.editNode(func(n *corev1.Node) {
			n.UID, n.CreationTimestamp = "uid-of-another-cluster", metav1.NewTime(time.Now().Add(time.Second))
		})
		w.run()
		w.untilEvent("Warning StaticPodOfAnotherCluster ")
		w.want(".nm-parked/foreign/web.yaml")
	})
}

// One of two manifests of a pod was parked by an older agent.
func TestTheClusterOfAnEntryStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, drain("update", 1000))
		w.stop()
		w.write(".nm-parked/uid-update/new.yaml", manifestOf("web"))
		w.write(".nm-parked/uid-update/old.yaml", manifestOf("web"))
		must.Do(t, w.folder(osFiles{}).change(types.NamespacedName{Namespace: "default", Name: "web-node-7"}, func(e *Entry) {
			if e.File == "uid-update/old.yaml" {
				e.Cluster = &Cluster{Node: "uid-of-another-cluster"}
			}
		}))
		w.run()
		w.untilEvent("Warning StaticPodOfAnotherCluster ")
		w.want(".nm-parked/foreign/old.yaml", ".nm-parked/uid-update/new.yaml")
	})
}

func TestAFileThatIsNoManifestStaysAsLongAsItsMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, drain("update", 1000))
		w.write(".nm-parked/uid-update/notes", "{")
		w.pass(time.Minute)
		w.want(".nm-parked/uid-update/notes")
		w.editMaintenance("update", inStage(complete))
		w.until("it is restored", func() bool { return slices.Equal(w.list(), []string{"manifests/notes"}) })
	})
}

func TestProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.stop()
		w.remove("manifests")
		w.write("manifests", manifestOf("web"))
		k := w.newKeeper()
		is.True(t, k.Problem() != "", "got no problem before the folder is checked")
		k.reconcile(t.Context())
		if got := k.Problem(); !strings.Contains(got, "single file") {
			t.Errorf("got the problem %q", got)
		}
		w.remove("manifests")
		w.mkdir("manifests")
		k.reconcile(t.Context())
		if got := k.Problem(); got != "" {
			t.Errorf("got the problem %q, want none", got)
		}
	})
}

func TestBadConfigs(t *testing.T) {
	good := func() Config {
		k := &fakeKubelet{}
		w := newTree(t, nil)
		return Config{
			Dir: w.dir(), NodeName: node, Kubelet: k, Containers: k, Kube: kubefake.NewClientset(), Maintenance: fake.NewClientset(),
			Server: func() (string, error) { return "", nil }, CA: func() ([]byte, error) { return nil, nil },
			Static:  func() []types.NamespacedName { return nil },
			Leaving: func() bool { return false }, Event: func(string, string, string) {},
			APILossRestorePeriod: time.Minute, HauloutLossRestorePeriod: time.Minute,
		}
	}
	must.Get(New(good()))(t)
	for name, mod := range map[string]func(*Config){
		"no node":       func(c *Config) { c.NodeName = "" },
		"no kubelet":    func(c *Config) { c.Kubelet = nil },
		"no containers": func(c *Config) { c.Containers = nil },
		"no events":     func(c *Config) { c.Event = nil },
		"no server":     func(c *Config) { c.Server = nil },
		"no longer one": func(c *Config) { c.HauloutLossRestorePeriod = 0 },
		"no client":     func(c *Config) { c.Kube = nil },
		"no period":     func(c *Config) { c.APILossRestorePeriod = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			config := good()
			mod(&config)
			if _, err := New(config); err == nil {
				t.Error("got no error")
			}
		})
	}
}

func TestAStaticPodWhoseFolderIsOnAnotherMountIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
		w.stop()
		k := w.newKeeper()
		k.folder.files = onlyManifests{}
		w.runKeeper(k)
		w.add(evacuationOf("web"))
		w.untilReported("must be on one mount")
		w.want("manifests/web.yaml")
	})
}

func TestAManifestThatIsParkedDuringADecisionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		k := w.newKeeper()
		entries := must.Get(k.Parked())(t)
		w.pass(time.Second)
		w.write("manifests/web.yaml", manifestOf("web"))
		w.until("it is parked", func() bool { return slices.Equal(w.list(), []string{".nm-parked/uid-update/web.yaml"}) })
		k.restoreUntargeted(t.Context(), entries, nil)
		w.want(".nm-parked/uid-update/web.yaml")
	})
}
