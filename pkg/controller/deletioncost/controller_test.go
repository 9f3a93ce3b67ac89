// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deletioncost

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/must"
)

var (
	start               = informertest.Start
	evacuationsResource = v1alpha1.SchemeGroupVersion.WithResource("evacuations")
)

const (
	surge = v1alpha1.EvacuatorClassDeployment
	evict = v1alpha1.EvacuatorClassEviction
)

func ownedBy(apiVersion, kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "web", UID: "uid-web", Controller: ptr.To(true)}}
	}
}

// ofReplicaSet returns newPod with a ReplicaSet as its owner and a number in its name.
func ofReplicaSet(i int, pairs ...string) *corev1.Pod {
	pod := newPod(pairs...)
	pod.Name, pod.UID = fmt.Sprintf("web-%d", i), types.UID(fmt.Sprintf("uid-%d", i))
	ownedBy("apps/v1", "ReplicaSet")(pod)
	return pod
}

// evacuationOf returns an Evacuation whose class has been active since the start.
func evacuationOf(pod *corev1.Pod, class string, mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: protocol.CanonicalName(pod.Name, pod.UID), Finalizers: []string{v1alpha1.FinalizerInstigatorNodeMaintenance},
		},
		Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}},
		Status: v1alpha1.EvacuationStatus{
			ActiveEvacuatorClass: class, ActiveEvacuatorSince: &metav1.Time{Time: start},
			EvacuationCancellationPolicy: v1alpha1.EvacuationCancellationPolicyAllow,
		},
	}
	for _, mod := range mods {
		mod(e)
	}
	return e
}

func withdrawn(e *v1alpha1.Evacuation) { e.Finalizers = nil }

func paused(e *v1alpha1.Evacuation) {
	e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPaused}}
}
func forbids(e *v1alpha1.Evacuation) {
	e.Status.EvacuationCancellationPolicy = v1alpha1.EvacuationCancellationPolicyForbid
}
func declined(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorCompleted = true }
func complete(e *v1alpha1.Evacuation) {
	e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue}}
}

// world has a controller and two fake clusters. It runs in a bubble of synctest, which begins at
// start.
type world struct {
	*testing.T
	host *fake.Clientset
	// client is the client of the controller.
	client   kubernetes.Interface
	own      *versionedfake.Clientset
	inFlight *inflight.Evictions
	events   *events.FakeRecorder
	// answer returns the error of a patch of a pod; nil applies all patches. patches counts the
	// patches.
	answer  func(pod string) error
	patches atomic.Int32
	// surplus is set if the evacuator of Deployments lowers the costs of pods without an
	// Evacuation.
	surplus atomic.Bool
	// surging is set while the evacuator of Deployments has scaled up the Deployment of the pods.
	surging atomic.Bool
	// neverLower is NeverLower of the controller's configuration.
	neverLower bool
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	var pods, evacuations []runtime.Object
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok {
			pods = append(pods, pod)
		} else {
			evacuations = append(evacuations, object)
		}
	}
	w := &world{
		T: t, host: fake.NewClientset(pods...), own: versionedfake.NewClientset(evacuations...),
		inFlight: &inflight.Evictions{}, events: events.NewFakeRecorder(10),
		answer: func(string) error { return nil },
	}
	w.client = w.host
	informertest.Versioned(t, w.host)
	w.host.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.patches.Add(1)
		err := w.answer(action.(clienttesting.PatchAction).GetName())
		return err != nil, nil, err
	})
	return w
}

func (w *world) run() {
	w.Helper()
	cluster := must.Get(host.NewCluster(host.Clients{Client: w.host, Unlimited: w.client, Maintenance: w.own, Recorder: w.events}, 0))(w)
	cluster.InFlight = w.inFlight
	c := must.Get(New(Config{
		Cluster: cluster, IsSurplus: func(*corev1.Pod) bool { return w.surplus.Load() }, IsSurging: func(*corev1.Pod) bool { return w.surging.Load() }, NeverLower: w.neverLower,
	}))(w)
	watches := informertest.Count(w.host, w.own)
	ctx, stop := context.WithCancel(context.Background())
	cluster.Start(ctx)
	watches.Wait(w.T, 0, "pods", "evacuations")
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(w.Context(), 1)
	}()
	w.Cleanup(func() {
		<-done
		stop()
		cluster.Shutdown()
	})
}

func (w *world) edit(e *v1alpha1.Evacuation, mod func(*v1alpha1.Evacuation)) {
	w.Helper()
	changed := e.DeepCopy()
	mod(changed)
	if err := w.own.Tracker().Update(evacuationsResource, changed, e.Namespace); err != nil {
		w.Fatal(err)
	}
}

func (w *world) annotations(pod string) map[string]string {
	w.Helper()
	got, err := w.host.CoreV1().Pods("shop").Get(w.Context(), pod, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return got.Annotations
}

// until waits until a pod has exactly the desired annotations.
func (w *world) until(pod string, want map[string]string) {
	w.Helper()
	if !informertest.Until(50*time.Millisecond, func() bool { return maps.Equal(w.annotations(pod), want) }) {
		w.Fatalf("%s has the annotations %v, want %v", pod, w.annotations(pod), want)
	}
}

// wait advances the time.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestCostsAreLoweredAndRestored(t *testing.T) {
	for name, tc := range map[string]struct {
		original map[string]string
		class    string
		end      func(*world, *v1alpha1.Evacuation)
	}{
		"restored when no instigator asks any more": {
			map[string]string{costKey: "7"}, evict, func(w *world, e *v1alpha1.Evacuation) { w.edit(e, withdrawn) },
		},
		"also while it waits for the evacuator of Deployments": {
			map[string]string{costKey: "7"}, surge, func(w *world, e *v1alpha1.Evacuation) { w.edit(e, withdrawn) },
		},
		"removed if the pod had none": {
			nil, evict, func(w *world, e *v1alpha1.Evacuation) { w.edit(e, withdrawn) },
		},
		"restored when the maintenance is paused": {
			map[string]string{costKey: "7"}, surge, func(w *world, e *v1alpha1.Evacuation) { w.edit(e, paused) },
		},
		"restored when the Evacuation is complete": {
			map[string]string{costKey: "7"}, evict, func(w *world, e *v1alpha1.Evacuation) { w.edit(e, complete) },
		},
		"restored when a user deletes the Evacuation": {
			map[string]string{costKey: "7"}, evict, func(w *world, e *v1alpha1.Evacuation) {
				w.edit(e, func(e *v1alpha1.Evacuation) { e.DeletionTimestamp = &metav1.Time{Time: start} })
			},
		},
		"restored when the Evacuation is removed without its finalizers": {
			map[string]string{costKey: "7"}, evict, func(w *world, e *v1alpha1.Evacuation) {
				if err := w.own.Tracker().Delete(evacuationsResource, e.Namespace, e.Name); err != nil {
					w.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := ofReplicaSet(0)
				pod.Annotations = maps.Clone(tc.original)
				e := evacuationOf(pod, tc.class)
				w := newWorld(t, pod, e)
				w.run()
				w.until(pod.Name, map[string]string{costKey: lowest, originalKey: tc.original[costKey]})
				if waited := time.Since(start); waited < lowerAfter || waited > lowerAfter+time.Second {
					t.Errorf("the cost was lowered after %s, want %s", waited, lowerAfter)
				}
				tc.end(w, e)
				w.until(pod.Name, tc.original)
			})
		})
	}
}

func TestCostsThatAreNotLowered(t *testing.T) {
	with := func(pod *corev1.Pod, mod func(*corev1.Pod)) *corev1.Pod {
		mod(pod)
		return pod
	}
	terminating := func(p *corev1.Pod) {
		p.Finalizers, p.DeletionTimestamp = []string{"example.com/wait"}, &metav1.Time{Time: start}
	}
	for name, tc := range map[string]struct {
		pod      *corev1.Pod
		class    string
		mods     []func(*v1alpha1.Evacuation)
		inFlight bool
		never    bool
		surging  bool
	}{
		"of a pod without an owner":                  {pod: newPod(), class: evict},
		"of a pod that keeps its cost":               {pod: ofReplicaSet(0, costKey, "7", v1alpha1.AnnotationDeletionCost, "Keep"), class: evict},
		"of any pod, if the controller never lowers": {pod: ofReplicaSet(0), class: evict, never: true},
		"of a StatefulSet":                           {pod: with(newPod(), ownedBy("apps/v1", "StatefulSet")), class: evict},
		"of a ReplicaSet of another API group":       {pod: with(newPod(), ownedBy("example.com/v1", "ReplicaSet")), class: evict},
		"of an owner with an invalid API version":    {pod: with(newPod(), ownedBy("a/b/c", "ReplicaSet")), class: evict},
		"a malformed cost, which cannot be restored": {pod: ofReplicaSet(0, costKey, "low"), class: evict},
		"the lowest cost":                            {pod: ofReplicaSet(0, costKey, lowest), class: evict},
		"a cost that was lowered, and changed since": {pod: ofReplicaSet(0, costKey, "9", originalKey, "7"), class: evict},
		"of a terminating pod":                       {pod: with(ofReplicaSet(0), terminating), class: evict},
		"of a pod whose eviction was sent":           {pod: ofReplicaSet(0), class: evict, inFlight: true},
		"of a pod whose Deployment is scaled up":     {pod: ofReplicaSet(0), class: surge, surging: true},
		"of a pod with another evacuator":            {pod: ofReplicaSet(0), class: "example.com"},
		"of a pod that the evacuator has declined":   {pod: ofReplicaSet(0), class: surge, mods: []func(*v1alpha1.Evacuation){declined}},
		"of a pod whose Evacuation is complete":      {pod: ofReplicaSet(0), class: evict, mods: []func(*v1alpha1.Evacuation){complete}},
		"of a pod whose maintenance is paused":       {pod: ofReplicaSet(0), class: evict, mods: []func(*v1alpha1.Evacuation){paused}},
		"of a pod that no instigator asks any more ": {pod: ofReplicaSet(0), class: evict, mods: []func(*v1alpha1.Evacuation){withdrawn}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tc.pod, evacuationOf(tc.pod, tc.class, tc.mods...))
				w.neverLower = tc.never
				w.surging.Store(tc.surging)
				if tc.inFlight {
					w.inFlight.Add(inflight.Eviction{Pod: tc.pod.Name, UID: tc.pod.UID})
				}
				w.run()
				wait(time.Minute)
				if n := w.patches.Load(); n != 0 {
					t.Errorf("got %d writes, want none", n)
				}
				if tc.inFlight || tc.surging {
					w.inFlight.Remove(tc.pod.UID)
					w.surging.Store(false)
					w.until(tc.pod.Name, map[string]string{costKey: lowest, originalKey: ""})
				}
			})
		})
	}
}

func TestCostsThatTheLastLeaderLowered(t *testing.T) {
	lowered, restored := map[string]string{costKey: lowest, originalKey: "7"}, map[string]string{costKey: "7"}
	for name, tc := range map[string]struct {
		mods []func(*v1alpha1.Evacuation)
		// none: there is no Evacuation. unseen: the Evacuation is missing in the cache.
		none, unseen bool
		want         map[string]string
	}{
		"restored without an Evacuation":                             {none: true, want: restored},
		"restored if the Evacuation is complete":                     {mods: []func(*v1alpha1.Evacuation){complete}, want: restored},
		"restored if no instigator asks":                             {mods: []func(*v1alpha1.Evacuation){withdrawn}, want: restored},
		"kept while the pod is asked to leave":                       {want: lowered},
		"kept while the evacuator forbids the cancellation":          {mods: []func(*v1alpha1.Evacuation){withdrawn, forbids}, want: lowered},
		"kept if the cache of Evacuations is behind that of the pod": {unseen: true, want: lowered},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := ofReplicaSet(0, costKey, lowest, originalKey, "7")
				e := evacuationOf(pod, evict, tc.mods...)
				objects := []runtime.Object{pod, e}
				if tc.none || tc.unseen {
					objects = objects[:1]
				}
				w := newWorld(t, objects...)
				if tc.unseen {
					w.own.PrependReactor("get", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) { return true, e, nil })
				}
				w.run()
				wait(time.Minute)
				w.until(pod.Name, tc.want)
			})
		})
	}
	t.Run("restored although the first attempts fail", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, ofReplicaSet(0, costKey, lowest, originalKey, "7"))
			w.answer = func(string) error {
				if w.patches.Load() <= 10 {
					return apierrors.NewInternalError(errors.New("no"))
				}
				return nil
			}
			w.run()
			w.until("web-0", restored)
		})
	})
}

func TestLoweringHasARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 50
		var objects []runtime.Object
		for i := range pods {
			pod := ofReplicaSet(i)
			objects = append(objects, pod, evacuationOf(pod, evict))
		}
		w := newWorld(t, objects...)
		w.run()
		wait(lowerAfter - time.Since(start) + 2*time.Second)
		if n, most := w.patches.Load(), int32(2*time.Second/lowerEvery)+1; n > most || n < most-2 {
			t.Errorf("got %d in two seconds, want up to %d", n, most)
		}
		wait(pods * lowerEvery)
		if n := w.patches.Load(); n != pods {
			t.Errorf("got %d writes, want one for each of %d pods", n, pods)
		}
	})
}

func TestLoweringIsRetriedAFewTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := ofReplicaSet(0)
		e := evacuationOf(pod, evict)
		w := newWorld(t, pod, e)
		w.answer = func(string) error {
			return apierrors.NewForbidden(corev1.Resource("pods"), "web-0", errors.New("a policy refuses it"))
		}
		w.run()
		wait(lowerAfter + time.Second)
		// An event does not cause an earlier attempt.
		w.edit(e, func(e *v1alpha1.Evacuation) { e.Status.FailedEvictionCounter = 1 })
		wait(time.Second)
		if n := w.patches.Load(); n != 1 {
			t.Errorf("got %d attempts, want 1 before the next retry is due", n)
		}
		wait(time.Hour)
		if n := w.patches.Load(); n != lowerAttempts {
			t.Errorf("got %d attempts, want %d", n, lowerAttempts)
		}
	})
}

// hanging is a client whose writes of some pods hang until their deadline.
type hanging struct {
	kubernetes.Interface
	prefix string
}

type hangingCore struct {
	corev1client.CoreV1Interface
	prefix string
}

type hangingPods struct {
	corev1client.PodInterface
	prefix string
}

func (h hanging) CoreV1() corev1client.CoreV1Interface {
	return hangingCore{h.Interface.CoreV1(), h.prefix}
}

func (h hangingCore) Pods(namespace string) corev1client.PodInterface {
	return hangingPods{h.CoreV1Interface.Pods(namespace), h.prefix}
}

func (h hangingPods) Patch(
	ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, sub ...string,
) (*corev1.Pod, error) {
	if strings.HasPrefix(name, h.prefix) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.PodInterface.Patch(ctx, name, kind, data, options, sub...)
}

func TestWritesThatHangDelayNoRestoring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stays := ofReplicaSet(0)
		asked := evacuationOf(stays, evict)
		objects := []runtime.Object{stays, asked}
		var stuck []*v1alpha1.Evacuation
		for i := range 10 {
			sound, hangs := ofReplicaSet(i+1), ofReplicaSet(200+i)
			stuck = append(stuck, evacuationOf(hangs, evict))
			objects = append(objects, sound, evacuationOf(sound, evict), hangs, stuck[i])
		}
		w := newWorld(t, objects...)
		w.client = hanging{w.host, "web-20"}
		w.run()
		wait(time.Hour)
		for _, object := range objects {
			if pod, ok := object.(*corev1.Pod); ok && (len(w.annotations(pod.Name)) == 0) != strings.HasPrefix(pod.Name, "web-20") {
				t.Errorf("%s has the annotations %v", pod.Name, w.annotations(pod.Name))
			}
		}
		// The next class of the hanging pods becomes active.
		now := metav1.Now()
		for _, e := range stuck {
			w.edit(e, func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorSince = &now })
		}
		wait(lowerAfter + time.Second)
		begun := time.Now()
		w.edit(asked, withdrawn)
		w.until(stays.Name, nil)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the cost was restored after %s", took)
		}
	})
}

// TestCostThatWasRestoredStays: another client restores the cost while the pod waits. The evacuator
// of Deployments does so before it reverts a surge.
func TestCostThatWasRestoredStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := ofReplicaSet(0, costKey, "7")
		e := evacuationOf(pod, surge)
		w := newWorld(t, pod, e)
		w.run()
		lowered := map[string]string{costKey: lowest, originalKey: "7"}
		w.until(pod.Name, lowered)
		current, err := w.host.CoreV1().Pods("shop").Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := Restore(t.Context(), w.host, current); err != nil {
			t.Fatal(err)
		}
		wait(time.Minute)
		w.until(pod.Name, map[string]string{costKey: "7"})
		// When the next class becomes active, the controller waits again before it lowers the cost.
		now := metav1.Now()
		w.edit(e, func(e *v1alpha1.Evacuation) {
			e.Status.ActiveEvacuatorClass, e.Status.ActiveEvacuatorSince = evict, &now
		})
		w.until(pod.Name, lowered)
		if waited := time.Since(now.Time); waited < lowerAfter {
			t.Errorf("it was lowered after %s", waited)
		}
	})
}

// TestCostOfASurplusPodIsRestoredLater leaves the cost of a replacement as it is until the
// evacuator of Deployments has taken its surge back.
func TestCostOfASurplusPodIsRestoredLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lowered := map[string]string{costKey: lowest, originalKey: "7"}
		w := newWorld(t, ofReplicaSet(0, costKey, lowest, originalKey, "7"))
		w.surplus.Store(true)
		w.run()
		wait(time.Hour)
		w.until("web-0", lowered)
		w.surplus.Store(false)
		wait(lowerAfter + time.Second)
		w.until("web-0", map[string]string{costKey: "7"})
	})
}

func TestMalformedCostIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := ofReplicaSet(0, costKey, "low")
		e := evacuationOf(pod, evict)
		w := newWorld(t, pod, e)
		w.run()
		wait(time.Second)
		w.edit(e, func(e *v1alpha1.Evacuation) { e.Status.FailedEvictionCounter = 1 })
		wait(time.Second)
		changed := pod.DeepCopy()
		changed.Annotations[costKey] = "lower"
		if _, err := w.host.CoreV1().Pods("shop").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		wait(time.Minute)
		close(w.events.Events)
		var got []string
		for event := range w.events.Events {
			got = append(got, event)
		}
		if len(got) != 2 || !strings.Contains(got[0], EventBadDeletionCost) || !strings.Contains(got[0], `"low"`) || !strings.Contains(got[1], `"lower"`) {
			t.Errorf("got the events %q", got)
		}
	})
}
