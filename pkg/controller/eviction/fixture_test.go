// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

const namespace = "shop"

var start = informertest.Start

// fakeHost returns the answers of the test to evictions, and records the evictions.
type fakeHost struct {
	client *fake.Clientset
	// answer returns the result of an eviction. It is called without a lock and may block.
	answer func(pod string) error
	// finish, unless nil, is called with the context of each call that finishes an eviction.
	finish func(ctx context.Context) error

	mu    sync.Mutex
	calls []string
	// versions has, for each eviction, the version that the pod must have; "" if it may have any.
	versions []string
	flying   int
	mostEver int
}

func (h *fakeHost) Evict(_ context.Context, eviction *policyv1.Eviction) error {
	if eviction.Annotations[v1alpha1.AnnotationEvictNow] != "haulout-apiserver" {
		// Its review would refuse it until the evacuators are done, which the queue knows already.
		panic(fmt.Sprintf("the eviction of pod %s has no mark", eviction.Name))
	}
	h.mu.Lock()
	h.calls = append(h.calls, fmt.Sprintf("%s/%s", eviction.Name, *eviction.DeleteOptions.Preconditions.UID))
	h.versions = append(h.versions, ptr.Deref(eviction.DeleteOptions.Preconditions.ResourceVersion, ""))
	h.flying++
	h.mostEver = max(h.mostEver, h.flying)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.flying--
		h.mu.Unlock()
	}()
	return h.answer(eviction.Name)
}

func (h *fakeHost) Finish(ctx context.Context, _, name string, options metav1.DeleteOptions) error {
	h.mu.Lock()
	h.calls = append(h.calls, fmt.Sprintf("finish %s/%s", name, *options.Preconditions.UID))
	h.mu.Unlock()
	if h.finish == nil {
		return nil
	}
	return h.finish(ctx)
}

func (h *fakeHost) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return h.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (h *fakeHost) sent() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

func (h *fakeHost) inFlight() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.flying
}

// world is a queue with a fake cluster.
type world struct {
	*testing.T
	client *fake.Clientset
	host   *fakeHost
	clock  informertest.Clock
	queue  *Queue

	live bool
	// unwanted makes Wanted return false, as after the withdrawal of all Evacuations.
	unwanted atomic.Bool
	mu       sync.Mutex
	changes  map[string]int
	version  int
}

type worldConfig struct {
	// live is set if the queue runs in its own goroutine. Otherwise the test calls its steps, so
	// that it can check that a step does nothing.
	live bool
	// maxConcurrent is the option of the queue; 0 means 50.
	maxConcurrent int
	answer        func(pod string) error
	pods          []*corev1.Pod
	budgets       []*policyv1.PodDisruptionBudget
	// turns makes pods without budgets wait for each other, in shares of unprotected percent.
	// objects are the owners.
	turns       bool
	unprotected Percent
	objects     []runtime.Object
}

// newWorld returns a queue on a cluster of the objects.
func newWorld(t *testing.T, cfg worldConfig, objects ...runtime.Object) *world {
	t.Helper()
	client := fake.NewClientset()
	w := &world{T: t, client: client, changes: map[string]int{}, version: 100}
	w.host = &fakeHost{client: client, answer: cfg.answer}
	for _, pod := range cfg.pods {
		must.Do(w, client.Tracker().Add(pod))
	}
	for _, budget := range cfg.budgets {
		must.Do(w, client.Tracker().Add(budget))
	}
	for _, object := range append(objects, cfg.objects...) {
		must.Do(w, client.Tracker().Add(object))
	}
	cluster := must.Get(host.NewCluster(host.Clients{Client: client, Maintenance: versionedfake.NewClientset()}, 0))(w)
	policy := DefaultPolicy()
	policy.MaxConcurrent, policy.UnprotectedMaxUnavailable = cmp.Or(cfg.maxConcurrent, 50), cfg.unprotected
	var owners Owners
	if cfg.turns {
		owners = cluster.Owners
	}
	queue := must.Get(New(Config{
		Host: w.host, Pods: cluster.Pods, Budgets: cluster.Budgets, Clock: w.clock, Policy: policy, Owners: owners,
		Wanted: func(Request) bool { return !w.unwanted.Load() }, Evicted: func(*corev1.Pod, bool) {},
		Changed: func(evacuation types.NamespacedName) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changes[evacuation.Name]++
		},
	}))(w)
	w.queue = queue
	ctx, cancel := context.WithCancel(t.Context())
	watches := informertest.Count(client)
	cluster.Start(ctx)
	watches.Wait(t, 0, "pods", "poddisruptionbudgets")
	cache.WaitForCacheSync(ctx.Done(), queue.synced...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if cfg.live {
			queue.Run(ctx)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		cluster.Shutdown()
	})
	w.live = cfg.live
	return w
}

// settled runs the queue until it has nothing left to do at the current time.
func (w *world) settled() {
	synctest.Wait()
	if w.live {
		return
	}
	for {
		select {
		case <-w.queue.kick:
		default:
		}
		w.step()
		synctest.Wait()
		if len(w.queue.kick) == 0 {
			return
		}
	}
}

// step runs one step of the queue, and waits for the answers.
func (w *world) step() {
	var calls sync.WaitGroup
	due, _ := w.queue.step()
	for _, c := range due {
		calls.Go(func() { w.queue.send(w.Context(), c) })
	}
	calls.Wait()
}

// pass advances the clock in steps, and runs the queue after each step.
func (w *world) pass(total, step time.Duration) {
	for end := w.clock.Now().Add(total); w.clock.Now().Before(end); {
		w.clock.Step(step)
		w.settled()
	}
}

// until waits for a condition. It delivers all events and, if step is not 0, advances the clock by
// step until the condition is true.
func (w *world) until(what string, step time.Duration, condition func() bool) {
	w.Helper()
	if !informertest.Until(step, func() bool {
		w.settled()
		return condition()
	}) {
		w.Fatalf("never came true: %s; sent: %v", what, w.host.sent())
	}
}

func (w *world) add(pods ...string) {
	for _, pod := range pods {
		w.queue.Add(Request{Evacuation: evacuationOf(pod), Pod: pod, UID: types.UID("uid-" + pod)})
	}
}

func (w *world) state(pod string) State {
	return w.queue.State(evacuationOf(pod))
}

func (w *world) reason(pod string) string {
	if blocker := w.state(pod).Blocker; blocker != nil {
		return blocker.Reason
	}
	return ""
}

func (w *world) isOpen(budget string) bool {
	l := w.laneOf(budget)
	return l != nil && l.open
}

// laneOf returns the lane of a budget, or nil.
func (w *world) laneOf(budget string) *budgetLane {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	l, ok := w.queue.lanes[laneKey{NamespacedName: types.NamespacedName{Namespace: namespace, Name: budget}}].(*budgetLane)
	if !ok {
		return nil
	}
	as := *l
	return &as
}

// item returns the item of a pod.
func (w *world) item(pod string) *item {
	return w.queue.items[namespace][evacuationOf(pod).Name]
}

func (w *world) updatePod(pod *corev1.Pod) {
	w.Helper()
	w.version++
	pod.ResourceVersion = strconv.Itoa(w.version)
	must.Get(w.client.CoreV1().Pods(namespace).Update(w.Context(), pod, metav1.UpdateOptions{}))(w)
}

func (w *world) updateBudget(budget *policyv1.PodDisruptionBudget) {
	w.Helper()
	w.version++
	budget.ResourceVersion = strconv.Itoa(w.version)
	must.Get(w.client.PolicyV1().PodDisruptionBudgets(namespace).Update(w.Context(), budget, metav1.UpdateOptions{}))(w)
}

func (w *world) create(budget *policyv1.PodDisruptionBudget) {
	w.Helper()
	w.version++
	budget.ResourceVersion = strconv.Itoa(w.version)
	must.Get(w.client.PolicyV1().PodDisruptionBudgets(namespace).Create(w.Context(), budget, metav1.CreateOptions{}))(w)
	w.settled()
}

func (w *world) remove(budget string) {
	w.Helper()
	must.Do(w, w.client.PolicyV1().PodDisruptionBudgets(namespace).Delete(w.Context(), budget, metav1.DeleteOptions{}))
	w.settled()
}

// sentTo returns a function that reports whether at least n evictions were sent.
func (w *world) sentTo(n int) func() bool {
	return func() bool { return len(w.host.sent()) >= n }
}

func evacuationOf(pod string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: "uid-" + pod + "-" + pod}
}

func newPod(name string, mods ...func(*corev1.Pod)) *corev1.Pod {
	return build.With(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1",
			CreationTimestamp: metav1.NewTime(start.Add(-time.Hour)), Labels: map[string]string{"app": "web"},
		},
		Status: build.Ready(),
	}, mods...)
}

// ofApp sets another label of a pod.
func ofApp(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"app": app} }
}

func stopping(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} }

func notReady(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func costs(cost string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: cost} }
}

func younger(by time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(p.CreationTimestamp.Add(by)) }
}

func newBudget(name string, allowed int32, mods ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	return build.With(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1", Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status: policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: 1, DisruptionsAllowed: allowed, CurrentHealthy: 9 + allowed, DesiredHealthy: 9,
			ExpectedPods: 10,
		},
	}, mods...)
}

// forApp makes a budget select the pods with another label.
func forApp(app string) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector.MatchLabels = map[string]string{"app": app} }
}

// oneMayGo makes a budget one that allows a disruption if all pods are healthy.
func oneMayGo(b *policyv1.PodDisruptionBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(1)) }

// allHealthy makes all pods of a budget healthy, so that none of them holds it.
func allHealthy(b *policyv1.PodDisruptionBudget) { b.Status.ExpectedPods = b.Status.CurrentHealthy }

func withHealthy(healthy int32) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy = healthy }
}

func success(string) error { return nil }

func budgetRefuses(string) error { return budgetClosed() }

func budgetLags(string) error { return budgetStale() }

func podNames(n int) ([]string, []*corev1.Pod) {
	var names []string
	var pods []*corev1.Pod
	for i := range n {
		name := fmt.Sprintf("web-%d", i)
		names, pods = append(names, name), append(pods, newPod(name))
	}
	return names, pods
}
