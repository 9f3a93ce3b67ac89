/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/evacuators"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	controllercache "haulout.dev/haulout/pkg/controller/cache"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	externalversions "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/informertest"
)

// world is a controller between two fake clusters.
type world struct {
	*testing.T
	host  *fake.Clientset
	api   *maintenancefake.Clientset
	clock *clocktesting.FakeClock

	mu      sync.Mutex
	version int
	// done is what was written, in order.
	done []string
	// refuse, if set, answers the next deletions.
	refuse error
}

// newWorld starts a controller. Pods that are deleted stay, in the state in which a kubelet finds them.
func newWorld(t *testing.T, evacuation *maintenancev1alpha1.Evacuation, nm *maintenancev1alpha1.NodeMaintenance, pod *corev1.Pod, node *corev1.Node) *world {
	t.Helper()
	w := &world{T: t, host: fake.NewClientset(pod, node), api: maintenancefake.NewClientset(evacuation, nm), clock: clocktesting.NewFakeClock(start), version: 10}
	w.api.PrependReactor("update", "evacuations", w.update)
	w.host.PrependReactor("delete", "pods", w.delete)
	w.start()
	return w
}

// start starts a controller that knows nothing but what the clusters hold, until the test ends or stop is called.
func (w *world) start() (stop func()) {
	w.Helper()
	hostInformers := informers.NewSharedInformerFactoryWithOptions(w.host, 0, informers.WithTransform(controllercache.NewTransform()))
	ownInformers := externalversions.NewSharedInformerFactory(w.api, 0)
	c, err := New(Config{Host: w.host, HostInformers: hostInformers, Maintenance: w.api, MaintenanceInformers: ownInformers, Clock: w.clock})
	w.must(err)
	ctx, cancel := context.WithCancel(w.Context())
	watches := informertest.Count(w.host, w.api)
	hostInformers.Start(ctx.Done())
	ownInformers.Start(ctx.Done())
	watches.Wait(w.T, 0, "nodes", "pods", "nodemaintenances", "evacuations")
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, 2)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		hostInformers.Shutdown()
		ownInformers.Shutdown()
	})
	w.Cleanup(stop)
	return stop
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

var evacuationsResource = maintenancev1alpha1.SchemeGroupVersion.WithResource("evacuations")

// update refuses what was decided from an old state.
func (w *world) update(action clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := action.(clienttesting.UpdateAction).GetObject().(*maintenancev1alpha1.Evacuation).DeepCopy()
	stored, err := w.api.Tracker().Get(evacuationsResource, sent.Namespace, sent.Name)
	if err != nil {
		return true, nil, err
	}
	if stored.(*maintenancev1alpha1.Evacuation).ResourceVersion != sent.ResourceVersion {
		return true, nil, apierrors.NewConflict(evacuationsResource.GroupResource(), sent.Name, errors.New("stale"))
	}
	w.done = append(w.done, "report")
	w.version++
	sent.ResourceVersion = strconv.Itoa(w.version)
	return true, sent, w.api.Tracker().Update(evacuationsResource, sent, sent.Namespace)
}

func (w *world) delete(action clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		w.done = append(w.done, "refused")
		return true, nil, w.refuse
	}
	request := action.(clienttesting.DeleteActionImpl)
	w.done = append(w.done, "delete "+string(*request.DeleteOptions.Preconditions.UID))
	return true, nil, w.host.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), newPod(stopping(time.Minute)), "logging")
}

func (w *world) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.done)
}

func (w *world) refuseDeletions(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = err
}

// until waits until these were the writes. The clock moves by a step whenever the controller has done what it could.
func (w *world) until(step time.Duration, want ...string) {
	w.Helper()
	err := wait.PollUntilContextTimeout(w.Context(), time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		w.clock.Step(step)
		synctest.Wait()
		return slices.Equal(w.written(), want), nil
	})
	if err != nil {
		w.Fatalf("got the writes %v, want %v", w.written(), want)
	}
}

const deletion = "delete " + string(podUID)

func TestDeletesWhenTheDrainGetsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nm := newMaintenance(func(nm *maintenancev1alpha1.NodeMaintenance) { nm.Status.NodeStatuses[0].DrainTargets = nil })
		w := newWorld(t, newEvacuation(), nm, newPod(), newNode())
		update := func(nm *maintenancev1alpha1.NodeMaintenance) {
			_, err := w.api.MaintenanceV1alpha1().NodeMaintenances().UpdateStatus(t.Context(), nm, metav1.UpdateOptions{})
			w.must(err)
		}
		update(newMaintenance())
		_, err := w.host.CoreV1().Nodes().Update(t.Context(), newNode(tainted), metav1.UpdateOptions{})
		w.must(err)
		w.until(0, "report", deletion)
		e, err := w.api.MaintenanceV1alpha1().Evacuations("logging").Get(t.Context(), newEvacuation().Name, metav1.GetOptions{})
		w.must(err)
		if e.Status.ActiveEvacuatorCompleted || e.Status.ExpectedEvacuationFinishTime == nil {
			t.Errorf("got %+v, want what is expected, and the turn kept", e.Status)
		}
	})
}

func TestTaintBeforeTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nm := newMaintenance(func(nm *maintenancev1alpha1.NodeMaintenance) { nm.Status.NodeStatuses[0].DrainTargets = nil })
		w := newWorld(t, newEvacuation(), nm, newPod(), newNode(tainted))
		_, err := w.api.MaintenanceV1alpha1().NodeMaintenances().UpdateStatus(t.Context(), newMaintenance(), metav1.UpdateOptions{})
		w.must(err)
		w.until(0, "report", deletion)
	})
}

func TestDeletionThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newEvacuation(), newMaintenance(), newPod(), newNode())
		w.refuseDeletions(apierrors.NewInternalError(errors.New("no")))
		_, err := w.host.CoreV1().Nodes().Update(t.Context(), newNode(tainted), metav1.UpdateOptions{})
		w.must(err)
		w.until(0, "report", "refused")
		w.refuseDeletions(nil)
		w.until(resendAfter/100, "report", "refused", deletion)
		if passed := w.clock.Since(start); passed < resendAfter {
			t.Errorf("got it tried again after %s, want %s", passed, resendAfter)
		}
	})
}

func TestPodThatIsGoneIsNoFailure(t *testing.T) {
	for name, answer := range map[string]error{
		"from the API":               apierrors.NewNotFound(corev1.Resource("pods"), podName),
		"and another has taken over": apierrors.NewConflict(corev1.Resource("pods"), podName, errors.New("UID")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, newEvacuation(), newMaintenance(), newPod(), newNode())
				w.refuseDeletions(answer)
				_, err := w.host.CoreV1().Nodes().Update(t.Context(), newNode(tainted), metav1.UpdateOptions{})
				w.must(err)
				w.until(0, "report", "refused")
				w.refuseDeletions(nil)
				// The cache has not heard of it. When it has, there is nothing to delete.
				w.until(resendAfter/100, "report", "refused", deletion)
			})
		})
	}
}

func TestCrashBetweenReportAndDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newEvacuation(reported(0, time.Minute, "The pod is deleted for …")), newMaintenance(), newPod(), newNode(tainted))
		w.until(0, "report", deletion)
	})
}

func TestCancellationAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newEvacuation(), newMaintenance(), newPod(), newNode())
		// The cache does not see it, but the write does.
		w.mu.Lock()
		w.version++
		withdrawn := newEvacuation(func(e *maintenancev1alpha1.Evacuation) {
			e.Finalizers, e.ResourceVersion = nil, strconv.Itoa(w.version)
		})
		w.must(w.api.Tracker().Update(evacuationsResource, withdrawn, withdrawn.Namespace))
		w.mu.Unlock()
		_, err := w.host.CoreV1().Nodes().Update(t.Context(), newNode(tainted), metav1.UpdateOptions{})
		w.must(err)
		// What comes after it is done.
		declined := newEvacuation(func(e *maintenancev1alpha1.Evacuation) {
			e.Name, e.Spec.PodRef.Name = evacuators.CanonicalName("other", podUID), "other"
		})
		w.must(w.host.Tracker().Add(newPod(func(p *corev1.Pod) { p.Name, p.OwnerReferences = "other", nil })))
		w.must(w.api.Tracker().Add(declined))
		w.until(time.Millisecond, "report")
	})
}
