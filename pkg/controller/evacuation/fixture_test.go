// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/must"
)

var (
	evacuationsResource = v1alpha1.SchemeGroupVersion.WithResource("evacuations")
	podsResource        = corev1.SchemeGroupVersion.WithResource("pods")
)

// fakeAPI adds the features of our API that the controller needs to the fake clientset: resource
// versions, conflicts, the status subresource, finalizers. It records the writes.
type fakeAPI struct {
	client *versionedfake.Clientset
	clock  informertest.Clock

	mu      sync.Mutex
	version int
	writes  []string
	kept    bool
}

// keep accepts deletions from now on and keeps the objects.
func (a *fakeAPI) keep() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = true
}

func newFakeAPI(clock informertest.Clock, objects ...runtime.Object) *fakeAPI {
	api := &fakeAPI{client: versionedfake.NewClientset(objects...), clock: clock, version: 1000}
	api.client.PrependReactor("update", "evacuations", api.update)
	api.client.PrependReactor("delete", "evacuations", api.delete)
	return api
}

func (a *fakeAPI) stored(namespace, name string) (*v1alpha1.Evacuation, error) {
	obj, err := a.client.Tracker().Get(evacuationsResource, namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(*v1alpha1.Evacuation).DeepCopy(), nil
}

func (a *fakeAPI) update(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sent := action.(clienttesting.UpdateAction).GetObject().(*v1alpha1.Evacuation)
	stored, err := a.stored(sent.Namespace, sent.Name)
	if err != nil {
		return true, nil, err
	}
	if sent.ResourceVersion != stored.ResourceVersion {
		a.writes = append(a.writes, "conflict")
		return true, nil, apierrors.NewConflict(evacuationsResource.GroupResource(), sent.Name,
			fmt.Errorf("has %s", stored.ResourceVersion))
	}
	updated := sent.DeepCopy()
	if action.GetSubresource() == "status" {
		a.writes = append(a.writes, "status")
		updated = stored
		updated.Status = *sent.Status.DeepCopy()
	} else {
		a.writes = append(a.writes, "finalizers")
		updated.Status = stored.Status
	}
	return true, updated, a.store(updated)
}

// store writes an Evacuation. The caller must have the lock.
func (a *fakeAPI) store(evacuation *v1alpha1.Evacuation) error {
	a.version++
	evacuation.ResourceVersion = strconv.Itoa(a.version)
	if evacuation.DeletionTimestamp != nil && len(evacuation.Finalizers) == 0 {
		return a.client.Tracker().Delete(evacuationsResource, evacuation.Namespace, evacuation.Name)
	}
	return a.client.Tracker().Update(evacuationsResource, evacuation, evacuation.Namespace)
}

func (a *fakeAPI) delete(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept {
		return true, nil, nil
	}
	request := action.(clienttesting.DeleteActionImpl)
	stored, err := a.stored(request.Namespace, request.Name)
	if err != nil {
		return true, nil, err
	}
	if p := request.DeleteOptions.Preconditions; p != nil &&
		(*p.UID != stored.UID || *p.ResourceVersion != stored.ResourceVersion) {
		return true, nil, apierrors.NewConflict(evacuationsResource.GroupResource(), stored.Name,
			fmt.Errorf("precondition"))
	}
	if policy := request.DeleteOptions.PropagationPolicy; policy == nil || *policy != metav1.DeletePropagationBackground {
		return true, nil, apierrors.NewBadRequest("the deletion would wait for dependents")
	}
	a.writes = append(a.writes, "delete")
	stored.DeletionTimestamp = &metav1.Time{Time: a.clock.Now()}
	return true, nil, a.store(stored)
}

// edit changes an Evacuation as another client.
func (a *fakeAPI) edit(
	t *testing.T, evacuation *v1alpha1.Evacuation, mod func(*v1alpha1.Evacuation),
) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	stored := must.Get(a.stored(evacuation.Namespace, evacuation.Name))(t)
	mod(stored)
	must.Do(t, a.store(stored))
}

func (a *fakeAPI) written() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.writes)
}

// fakeHost sends evictions to the fake host cluster.
type fakeHost struct {
	client *fake.Clientset
	mu     sync.Mutex
	evict  func(*policyv1.Eviction) error
	calls  int
}

func (h *fakeHost) Evict(_ context.Context, eviction *policyv1.Eviction) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	return h.evict(eviction)
}

func (h *fakeHost) Finish(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	return h.client.CoreV1().Pods(namespace).Delete(ctx, name, options)
}

func (h *fakeHost) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return h.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// answer sets the response to evictions, and returns the previous one.
func (h *fakeHost) answer(evict func(*policyv1.Eviction) error) func(*policyv1.Eviction) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.evict
	h.evict = evict
	return before
}

// refuse is the response of a budget that allows no disruption.
func refuse(*policyv1.Eviction) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause,
	})
	return err
}

func (h *fakeHost) sent() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

// world has a controller and two fake clusters.
type world struct {
	*testing.T
	clock  informertest.Clock
	api    *fakeAPI
	client *fake.Clientset
	host   *fakeHost
	events *events.FakeRecorder
	target *v1alpha1.Evacuation
	// accept is the default response to evictions. It deletes the pod.
	accept func(*policyv1.Eviction) error
	// answers makes writes of Evacuations with hangs in their names succeed immediately.
	answers atomic.Bool
}

// newWorld starts a controller at the time start plus at. An eviction deletes the pod. If objects
// has no maintenance, newWorld adds one that drains all nodes. The test must run in a bubble of
// synctest.
func newWorld(
	t *testing.T, at time.Duration, evacuation *v1alpha1.Evacuation, objects ...runtime.Object,
) *world {
	t.Helper()
	return newWorldWith(t, at, evacuation, func(*fake.Clientset) {}, objects...)
}

// unscaled is the label of the pods of a Deployment that is not scaled up.
const unscaled = "unscaled"

func notReplaced(pod *corev1.Pod) (deployment, why string) {
	if _, is := pod.Labels[unscaled]; !is {
		return "", ""
	}
	return "web", "has the strategy Recreate"
}

// newWorldWith is newWorld with changes to the fake host cluster before the controller starts.
func newWorldWith(
	t *testing.T, at time.Duration, evacuation *v1alpha1.Evacuation, prepare func(*fake.Clientset),
	objects ...runtime.Object,
) *world {
	t.Helper()
	var nm runtime.Object = newMaintenance()
	var inHost []runtime.Object
	for _, object := range objects {
		if _, ok := object.(*v1alpha1.NodeMaintenance); ok {
			nm = object
		} else {
			inHost = append(inHost, object)
		}
	}
	// The clock of a bubble begins at start.
	var clock informertest.Clock
	clock.Step(at)
	w := &world{
		T: t, clock: clock, api: newFakeAPI(clock, evacuation, nm), client: fake.NewClientset(inHost...),
		events: events.NewFakeRecorder(100), target: evacuation,
	}
	prepare(w.client)
	w.host = &fakeHost{client: w.client, evict: func(e *policyv1.Eviction) error {
		return w.client.Tracker().Delete(podsResource, e.Namespace, e.Name)
	}}
	w.accept = w.host.evict
	cluster := must.Get(host.NewCluster(host.Clients{Client: w.client, Unlimited: w.client, Maintenance: w.api.client, Recorder: w.events}, 0))(w)
	cluster.Maintenance = hanging{w.api.client, &w.answers}
	selected := must.Get(selection.New(cluster.Nodes.Informer(), cluster.NodeMaintenances.Informer(), clock))(w)
	c := must.Get(New(Config{
		Cluster: cluster, Selection: selected, State: newState(t, cluster, selected), Clock: clock, Evictions: w.host, NotReplaced: notReplaced,
	}))(w)
	ctx, cancel := context.WithCancel(t.Context())
	watches := informertest.Count(w.client, w.api.client)
	cluster.Start(ctx)
	watches.Wait(t, 0, "nodes", "pods", "poddisruptionbudgets", "nodemaintenances", "evacuations")
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The clock of a bubble runs when the test waits. Until then, the test may change the
		// answers of the host cluster.
		<-time.After(time.Nanosecond)
		c.Run(ctx, 2)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		cluster.Shutdown()
	})
	return w
}

func newState(t *testing.T, cluster *host.Cluster, selected *selection.Selection) *nodestate.State {
	t.Helper()
	return must.Get(nodestate.New(nodestate.Config{Cluster: cluster, Selection: selected, Clock: informertest.Clock{}}))(t)
}

// get returns the stored Evacuation, nil if it does not exist.
func (w *world) get() *v1alpha1.Evacuation {
	w.Helper()
	evacuation, err := w.api.stored(w.target.Namespace, w.target.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	must.Do(w, err)
	return evacuation
}

// until checks a condition of the stored Evacuation after each step, until it is met. The argument
// is nil if the Evacuation was deleted.
func (w *world) until(what string, step time.Duration, condition func(*v1alpha1.Evacuation) bool) {
	w.Helper()
	if !informertest.Until(step, func() bool { return condition(w.get()) }) {
		w.Fatalf("timed out waiting until %s at %s; writes: %v; evacuation: %+v",
			what, w.clock.Since(start), w.api.written(), w.get())
	}
}

func (w *world) expectEvent(reason string) {
	w.Helper()
	select {
	case got := <-w.events.Events:
		if !strings.Contains(got, reason) {
			w.Errorf("got event %q, want %s", got, reason)
		}
	case <-time.After(10 * time.Second):
		w.Errorf("got no event, want %s", reason)
	}
}

func hasClass(class string) func(*v1alpha1.Evacuation) bool {
	return func(e *v1alpha1.Evacuation) bool {
		return e != nil && e.Status.ActiveEvacuatorClass == class
	}
}

func hasReason(conditionType, reason string) func(*v1alpha1.Evacuation) bool {
	return func(e *v1alpha1.Evacuation) bool {
		if e == nil {
			return false
		}
		condition := meta.FindStatusCondition(e.Status.Conditions, conditionType)
		return condition != nil && condition.Status == metav1.ConditionTrue && condition.Reason == reason
	}
}

var (
	podDeleted = hasReason(v1alpha1.ConditionComplete, v1alpha1.ReasonPodDeleted)
	gone       = func(e *v1alpha1.Evacuation) bool { return e == nil }
)

func newNode(ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "uid-" + testNode},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

func newBudget(version string, allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "uid-web", ResourceVersion: version, Generation: 1,
		},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
		Status: policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: 1, DisruptionsAllowed: allowed, CurrentHealthy: 9 + allowed, DesiredHealthy: 9,
			ExpectedPods: 10,
		},
	}
}
