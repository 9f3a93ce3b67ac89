// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// world is a controller with two fake clusters.
type world struct {
	*testing.T
	host *fake.Clientset
	api  *maintenancefake.Clientset

	mu      sync.Mutex
	version int
	// done has the writes of the controller, in order.
	done []string
	// events has the events of the controller.
	events *events.FakeRecorder
}

// newWorld starts a controller.
func newWorld(
	t *testing.T, evacuation *v1alpha1.Evacuation, nm *v1alpha1.NodeMaintenance,
	pod *corev1.Pod, node *corev1.Node,
) *world {
	t.Helper()
	w := &world{
		T: t, host: fake.NewClientset(pod, node), api: maintenancefake.NewClientset(evacuation, nm), version: 10,
	}
	w.events = events.NewFakeRecorder(10)
	w.api.PrependReactor("update", "evacuations", w.update)
	w.start()
	return w
}

// start runs a new controller until the test ends or stop is called.
func (w *world) start() (stop func()) {
	w.Helper()
	cluster := must.Get(host.NewCluster(host.Clients{Client: w.host, Maintenance: w.api, Recorder: w.events}, 0))(w)
	c := must.Get(New(Config{Cluster: cluster}))(w)
	ctx, cancel := context.WithCancel(w.Context())
	watches := informertest.Count(w.host, w.api)
	cluster.Start(ctx)
	watches.Wait(w.T, 0, "nodes", "pods", "daemonsets", "nodemaintenances", "evacuations")
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, 2)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		cluster.Shutdown()
	})
	w.Cleanup(stop)
	return stop
}

var evacuationsResource = v1alpha1.SchemeGroupVersion.WithResource("evacuations")

// update refuses an update that has an old resourceVersion.
func (w *world) update(action clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := action.(clienttesting.UpdateAction).GetObject().(*v1alpha1.Evacuation).DeepCopy()
	stored, err := w.api.Tracker().Get(evacuationsResource, sent.Namespace, sent.Name)
	if err != nil {
		return true, nil, err
	}
	if stored.(*v1alpha1.Evacuation).ResourceVersion != sent.ResourceVersion {
		return true, nil, apierrors.NewConflict(evacuationsResource.GroupResource(), sent.Name, errors.New("stale"))
	}
	w.done = append(w.done, "report")
	w.version++
	sent.ResourceVersion = strconv.Itoa(w.version)
	return true, sent, w.api.Tracker().Update(evacuationsResource, sent, sent.Namespace)
}

func (w *world) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.done)
}

// until waits until the controller has made exactly the given writes. It advances the time by step
// whenever the controller has nothing left to do.
func (w *world) until(step time.Duration, want ...string) {
	w.Helper()
	if !informertest.Until(step, func() bool { return slices.Equal(w.written(), want) }) {
		w.Fatalf("got the writes %v, want %v", w.written(), want)
	}
}

// status returns the stored status of the Evacuation.
func (w *world) status() v1alpha1.EvacuationStatus {
	w.Helper()
	e := must.Get(w.api.MaintenanceV1alpha1().Evacuations("logging").Get(w.Context(), newEvacuation().Name,
		metav1.GetOptions{}))(w)
	return e.Status
}

func (w *world) updateNode(mods ...func(*corev1.Node)) {
	w.Helper()
	must.Get(w.host.CoreV1().Nodes().Update(w.Context(), newNode(mods...), metav1.UpdateOptions{}))(w)
}

// wantRequested reports an error unless the eviction is requested and the evacuator has not deleted
// the pod itself.
func (w *world) wantRequested() {
	w.Helper()
	if st := w.status(); st.ActiveEvacuatorCompleted || st.ExpectedEvacuationFinishTime == nil {
		w.Errorf("got %+v, want what is expected, and the class still active", st)
	}
	for _, action := range w.host.Actions() {
		if action.GetResource().Resource == "pods" && action.GetVerb() != "list" && action.GetVerb() != "watch" {
			w.Errorf("got %s of a pod, want its eviction to be left to the queue", action.GetVerb())
		}
	}
}

func TestRequestsTheEvictionWhenTheDrainGetsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nm := newMaintenance(func(nm *v1alpha1.NodeMaintenance) {
			nm.Status.NodeStatuses[0].DrainTargets = nil
		})
		w := newWorld(t, newEvacuation(), nm, newPod(), newNode())
		must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().UpdateStatus(t.Context(), newMaintenance(),
			metav1.UpdateOptions{}))(w)
		w.updateNode(tainted)
		w.until(0, "report")
		w.wantRequested()
	})
}

func TestTaintBeforeTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nm := newMaintenance(func(nm *v1alpha1.NodeMaintenance) {
			nm.Status.NodeStatuses[0].DrainTargets = nil
		})
		w := newWorld(t, newEvacuation(), nm, newPod(), newNode(tainted))
		must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().UpdateStatus(t.Context(), newMaintenance(),
			metav1.UpdateOptions{}))(w)
		w.until(0, "report")
		w.wantRequested()
	})
}

func TestNoRequestDuringAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nm := newMaintenance(func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = true })
		w := newWorld(t, newEvacuation(), nm, newPod(), newNode(tainted))
		// The report that declines the other Evacuation shows that the controller works.
		w.addDeclined()
		w.until(time.Second, "report")
		is.True(t, w.status().ExpectedEvacuationFinishTime == nil, "the eviction is requested during the pause")
		must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), newMaintenance(), metav1.UpdateOptions{}))(w)
		w.until(0, "report", "report")
		w.wantRequested()
	})
}

func TestRestartAfterTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newEvacuation(reported(0, time.Minute, "The pod is evicted for …")), newMaintenance(),
			newPod(), newNode(tainted))
		// Evacuations that are created later are still processed.
		w.addDeclined()
		w.until(time.Millisecond, "report")
		if st := w.status(); st.Message != "The pod is evicted for …" {
			t.Errorf("got %q, want nothing to be reported again", st.Message)
		}
	})
}

// addDeclined adds an Evacuation of a pod without a DaemonSet, which the evacuator declines.
func (w *world) addDeclined() {
	w.Helper()
	declined := newEvacuation(func(e *v1alpha1.Evacuation) {
		e.Name, e.Spec.PodRef.Name = protocol.CanonicalName("other", podUID), "other"
	})
	must.Do(w, w.host.Tracker().Add(newPod(func(p *corev1.Pod) { p.Name, p.OwnerReferences = "other", nil })))
	must.Do(w, w.api.Tracker().Add(declined))
}

func TestCancellationAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newEvacuation(), newMaintenance(), newPod(), newNode())
		// The cache does not have this change, and the write conflicts with it.
		w.mu.Lock()
		w.version++
		withdrawn := newEvacuation(func(e *v1alpha1.Evacuation) {
			e.Finalizers, e.ResourceVersion = nil, strconv.Itoa(w.version)
		})
		must.Do(w, w.api.Tracker().Update(evacuationsResource, withdrawn, withdrawn.Namespace))
		w.mu.Unlock()
		w.updateNode(tainted)
		w.addDeclined()
		w.until(time.Millisecond, "report")
	})
}

// withVolumes makes a node ready. The node reports the given CSI volumes and one other volume as in
// use.
func withVolumes(names ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/nfs/share"}
		for _, name := range names {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse,
				corev1.UniqueVolumeName("kubernetes.io/csi/csi.example.com^"+name))
		}
	}
}

func notReady(n *corev1.Node) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
}

func claiming(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
	}
}

// bind creates a claim and the CSI volume that is bound to it.
func (w *world) bind(claim, handle string) {
	w.Helper()
	must.Do(w, w.host.Tracker().Add(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "logging", Name: claim},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + claim},
	}))
	must.Do(w, w.host.Tracker().Add(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + claim},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: handle},
		}},
	}))
}

func TestVolumesThatTheNodeHasNotReleased(t *testing.T) {
	created := func(e *v1alpha1.Evacuation) { e.CreationTimestamp = *at(0) }
	for name, tt := range map[string]struct {
		node []func(*corev1.Node)
		pod  []func(*corev1.Pod)
		want bool
	}{
		"of a pod that has left delay the request": {
			node: []func(*corev1.Node){tainted, withVolumes("vol-1")}, want: true,
		},
		"of a remaining pod do not": {
			node: []func(*corev1.Node){tainted, withVolumes("vol-1")}, pod: []func(*corev1.Pod){claiming("data")},
		},
		"of both delay the request": {
			node: []func(*corev1.Node){tainted, withVolumes("vol-1", "vol-2")},
			pod:  []func(*corev1.Pod){claiming("data")}, want: true,
		},
		"that are not CSI volumes do not": {node: []func(*corev1.Node){tainted, withVolumes()}},
		"of a node that is not ready do not": {
			node: []func(*corev1.Node){tainted, withVolumes("vol-1"), notReady},
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newEvacuation(created), newMaintenance(), newPod(tt.pod...), newNode())
			w.bind("data", "vol-1")
			w.updateNode(tt.node...)
			w.until(0, "report")
			if waits := w.status().ExpectedEvacuationFinishTime == nil; waits != tt.want {
				t.Errorf("got that it waits: %v, want %v; %s", waits, tt.want, w.status().Message)
			}
		})
	}
	bubble.Run(t, "end the wait when they are released", func(t *testing.T) {
		w := newWorld(t, newEvacuation(created), newMaintenance(), newPod(), newNode(tainted, withVolumes("vol-1")))
		w.until(0, "report")
		w.updateNode(tainted, withVolumes())
		w.until(0, "report", "report")
		w.wantRequested()
	})
	bubble.Run(t, "end the wait when its time is over", func(t *testing.T) {
		w := newWorld(t, newEvacuation(created), newMaintenance(), newPod(), newNode(tainted, withVolumes("vol-1")))
		w.until(0, "report")
		w.until(DefaultVolumeDetachTimeout/50, "report", "report")
		if passed := time.Since(start); passed < DefaultVolumeDetachTimeout {
			t.Errorf("got the request after %s, want %s", passed, DefaultVolumeDetachTimeout)
		}
		w.wantRequested()
	})
	bubble.Run(t, "are waited for although an earlier request was by hand", func(t *testing.T) {
		other := types.UID("22222222-2222-3333-4444-555555555555")
		byHand := newEvacuation(func(e *v1alpha1.Evacuation) {
			e.Name, e.UID = protocol.CanonicalName("second", other), "evacuation-2"
			e.Spec.PodRef = v1alpha1.PodReference{Name: "second", UID: other}
			e.CreationTimestamp = *at(-24 * time.Hour)
			e.Finalizers = append(e.Finalizers, v1alpha1.FinalizerInstigatorPrefix+"manual.maintenance.haulout.dev")
		})
		second := newPod(func(p *corev1.Pod) { p.Name, p.UID = "second", other })
		w := newWorld(t, newEvacuation(created), newMaintenance(), newPod(), newNode())
		must.Do(w, w.host.Tracker().Add(second))
		must.Do(w, w.api.Tracker().Add(byHand))
		synctest.Wait()
		w.updateNode(tainted, withVolumes("vol-1"))
		w.until(0, "report", "report")
		is.True(t, w.status().ExpectedEvacuationFinishTime == nil, "the request does not wait: %s", w.status().Message)
	})
	bubble.Run(t, "are read once for all pods of a node", func(t *testing.T) {
		w := newWorld(t, newEvacuation(created), newMaintenance(), newPod(claiming("data")), newNode())
		w.bind("data", "vol-1")
		other := types.UID("22222222-2222-3333-4444-555555555555")
		must.Do(w, w.host.Tracker().Add(newPod(func(p *corev1.Pod) { p.Name, p.UID = "second", other })))
		must.Do(w, w.api.Tracker().Add(newEvacuation(created, func(e *v1alpha1.Evacuation) {
			e.Name, e.UID = protocol.CanonicalName("second", other), "evacuation-2"
			e.Spec.PodRef = v1alpha1.PodReference{Name: "second", UID: other}
		})))
		synctest.Wait()
		w.updateNode(tainted, withVolumes("vol-1", "vol-2"))
		w.until(0, "report", "report")
		reads := 0
		for _, action := range w.host.Actions() {
			if action.GetVerb() == "get" && action.GetResource().Resource == "persistentvolumes" {
				reads++
			}
		}
		// Two workers may read the volumes at the same time.
		if reads == 0 || reads > 2 {
			t.Errorf("got %d reads of the volume of a claim, want at most one by each of the two workers", reads)
		}
	})
}

func TestDaemonSetsThatAreUpdatedByDeletionAreWarnedOfOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		strategy appsv1.DaemonSetUpdateStrategyType
		want     int
	}{
		"OnDelete":      {appsv1.OnDeleteDaemonSetStrategyType, 1},
		"RollingUpdate": {appsv1.RollingUpdateDaemonSetStrategyType, 0},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newEvacuation(), newMaintenance(), newPod(), newNode())
			must.Do(w, w.host.Tracker().Add(&appsv1.DaemonSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: "logging", Name: "logger", UID: "ds"},
				Spec:       appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: tt.strategy}},
			}))
			other := types.UID("22222222-2222-3333-4444-555555555555")
			must.Do(w, w.host.Tracker().Add(newPod(func(p *corev1.Pod) { p.Name, p.UID = "second", other })))
			must.Do(w, w.api.Tracker().Add(newEvacuation(func(e *v1alpha1.Evacuation) {
				e.Name, e.UID = protocol.CanonicalName("second", other), "evacuation-2"
				e.Spec.PodRef = v1alpha1.PodReference{Name: "second", UID: other}
			})))
			synctest.Wait()
			w.updateNode(tainted)
			w.until(0, "report", "report")
			is.Equal(t, len(w.events.Events), tt.want, "events")
		})
	}
}
