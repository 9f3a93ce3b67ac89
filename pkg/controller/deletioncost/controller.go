// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deletioncost

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Name is the name of this controller in logs, metrics and queues.
const Name = "deletion-cost"

const (
	// lowerAfter is how long a pod waits for its replacement or eviction before its cost is
	// lowered.
	lowerAfter = 10 * time.Second
	// lowerEvery is the minimum time between two such writes: every change of a pod makes the
	// controllers of ReplicaSets and of budgets reconcile.
	lowerEvery = 200 * time.Millisecond
	// lowerAttempts is how often lowering a cost is tried, with lowerAfter between two attempts.
	// The pod can leave even if all of them fail.
	lowerAttempts = 5
	// callTimeout is the deadline of one sync. A webhook may take 30 s.
	callTimeout = 40 * time.Second
	// workers is how many pods are synced, and how many costs are restored, at the same time.
	workers = 2
)

// Config has the dependencies of the controller.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Clock is the clock; nil means the real one.
	Clock clock.WithTicker
	// Liveness tracks which item each worker processes; nil disables tracking.
	Liveness *loop.Tracker
	// IsSurplus reports whether the evacuator of Deployments has lowered the cost of a pod that has
	// no Evacuation. Its cost is restored later.
	IsSurplus func(*corev1.Pod) bool
	// IsSurging reports whether the evacuator of Deployments has scaled up the Deployment of a pod.
	// Until the end of the surge, the cost of the pod is not lowered here.
	IsSurging func(*corev1.Pod) bool
	// NeverLower is set if the controller only restores costs.
	NeverLower bool
}

// Controller lowers the deletion cost of pods that wait for their replacement or eviction, and
// restores it when they may stay. A pod waits while the evacuator of Deployments or eviction is the
// active class of its Evacuation. The pod's annotations have all the information, so the controller
// also restores costs that another process lowered.
//
// The attempts for each pod while its current class is active (turns) are kept in memory and may be
// lost at any time.
type Controller struct {
	*host.Cluster
	clock      clock.WithTicker
	pods       corelisters.PodLister
	isSurplus  func(*corev1.Pod) bool
	isSurging  func(*corev1.Pod) bool
	neverLower bool
	synced     cache.InformerSynced
	// queue has the pods that changed. lowering has the pods whose cost is to be lowered. It has a
	// worker of its own, so that costs of other pods are still restored if one write hangs.
	queue, lowering *loop.Queue[types.NamespacedName]
	turns           loop.Memory[types.NamespacedName, turn]
}

// turn has the attempts to lower the cost of a pod while one class of its Evacuation is active.
type turn struct {
	// since is the time at which the class became active, due the time from which the cost may be
	// lowered.
	since, due time.Time
	// done is set if the cost was lowered since then, or cannot be lowered. If a user or a
	// controller has restored the cost since, it is not lowered again.
	done bool
	// failures counts the attempts that have failed.
	failures int
	// badCost is the malformed cost about which an event was sent.
	badCost string
}

// New creates a controller and registers its handlers; the informers must not run yet. A controller
// runs once.
func New(config Config) (*Controller, error) {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	c := &Controller{
		Cluster: config.Cluster, clock: config.Clock,
		pods:      config.Cluster.Pods.Lister(),
		isSurplus: config.IsSurplus, isSurging: config.IsSurging, neverLower: config.NeverLower,
	}
	queue := func(name string) *loop.Queue[types.NamespacedName] {
		return loop.NewQueue(loop.Config[types.NamespacedName]{
			Name: name, Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness,
			LogAs: func(key types.NamespacedName) (string, any) { return "pod", key },
		})
	}
	c.queue, c.lowering = queue(Name), queue(Name+"-lowering")
	var err error
	c.synced, err = podcache.AddHandlers(
		podcache.Handled{Informer: c.Pods, Handler: podcache.HandlerOf(c.podChanged)},
		podcache.Handled{Informer: c.Evacuations.Informer(), Handler: podcache.HandlerOf(c.evacuationChanged)},
	)
	return c, err
}

// Run runs the controller until the context ends, and returns after the last write. The informers
// must have been started.
func (c *Controller) Run(ctx context.Context, _ int) {
	defer c.queue.ShutDown()
	defer c.lowering.ShutDown()
	ctx, ok := loop.Start(ctx, Name, workers, c.synced)
	if !ok {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.queue.Run(ctx, workers, c.sync) })
	wg.Go(func() { c.lowering.Run(ctx, 1, c.lower) })
	wg.Wait()
}

func (c *Controller) podChanged(_, pod *corev1.Pod) {
	if pod == nil {
		// The Evacuation of the pod is deleted next, and that deletion enqueues the pod.
		return
	}
	if c.EvacuationOf(pod) != nil || IsLowered(pod) {
		c.queue.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	}
}

func (c *Controller) evacuationChanged(old, evacuation *v1alpha1.Evacuation) {
	if evacuation == nil {
		evacuation = old
	}
	c.queue.Add(types.NamespacedName{Namespace: evacuation.Namespace, Name: evacuation.Spec.PodRef.Name})
}

// asks reports whether there is an Evacuation that still requires its pod to leave. A paused one
// does not: a scale-down by another client should not choose the pod before the resume.
func asks(evacuation *v1alpha1.Evacuation) bool {
	return evacuation != nil && !protocol.IsComplete(evacuation) && !protocol.IsPaused(evacuation) &&
		(!protocol.IsWithdrawn(evacuation) || evacuation.Status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid)
}

// waitsSince returns when a pod began to wait for its replacement or eviction; zero if it does not
// wait.
func waitsSince(status *v1alpha1.EvacuationStatus) time.Time {
	class := status.ActiveEvacuatorClass
	waits := class == v1alpha1.EvacuatorClassEviction || class == v1alpha1.EvacuatorClassDeployment && !status.ActiveEvacuatorCompleted
	if !waits || status.ActiveEvacuatorSince == nil {
		return time.Time{}
	}
	return status.ActiveEvacuatorSince.Time
}

func (c *Controller) sync(ctx context.Context, key types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
		c.turns.Forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	if asks(c.EvacuationOf(pod)) {
		c.reportBadCost(key, pod)
		if IsOfReplicaSet(pod) && !c.neverLower && !Keeps(pod) {
			c.lowering.Add(key)
		}
		return nil
	}
	c.turns.Forget(key)
	if !IsLowered(pod) {
		return nil
	}
	if c.isSurplus(pod) {
		c.queue.AddAfter(key, lowerAfter)
		return nil
	}
	// Pods and Evacuations come from two API servers, and the cache of pods may be newer.
	evacuation, err := c.Maintenance.MaintenanceV1alpha1().Evacuations(key.Namespace).Get(ctx, protocol.CanonicalName(pod.Name, pod.UID), metav1.GetOptions{})
	if loop.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the Evacuation of pod %s: %w", key, err)
	}
	if err == nil && asks(evacuation) {
		// The events of this Evacuation will enqueue the pod.
		return nil
	}
	return Restore(ctx, c.Unlimited, pod)
}

// turn returns the attempts for a pod whose class became active at the given time.
func (c *Controller) turn(key types.NamespacedName, since time.Time) (t turn) {
	c.turns.Change(key, func(last turn, _ bool) (turn, bool) {
		if t = last; !last.since.Equal(since) {
			t = turn{since: since, due: since.Add(lowerAfter), badCost: last.badCost}
		}
		return t, true
	})
	return t
}

// lower lowers the deletion cost of a pod that has waited for lowerAfter, at most once while the
// class stays active: if a user or the evacuator of Deployments restores the cost, it stays
// restored.
func (c *Controller) lower(ctx context.Context, key types.NamespacedName) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if err != nil || pod.DeletionTimestamp != nil {
		return loop.IgnoreNotFound(err)
	}
	evacuation := c.EvacuationOf(pod)
	if !asks(evacuation) {
		return nil
	}
	since := waitsSince(&evacuation.Status)
	if since.IsZero() {
		return nil
	}
	t := c.turn(key, since)
	switch wait := t.due.Sub(c.clock.Now()); {
	case t.done:
		return nil
	case wait > 0:
		c.lowering.AddAfter(key, wait)
		return nil
	case c.InFlight.Has(pod.UID), c.isSurging(pod):
		c.lowering.AddAfter(key, lowerAfter)
		return nil
	}
	tried := CanLower(pod) && !Keeps(pod)
	if tried {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err = Lower(call, c.Unlimited, pod)
		cancel()
	}
	c.tried(key, since, err)
	if err != nil {
		klog.FromContext(ctx).Info("Cannot lower the deletion cost of a waiting pod", "reason", err.Error())
		c.lowering.AddAfter(key, lowerAfter)
	}
	if tried {
		select {
		case <-c.clock.After(lowerEvery):
		case <-ctx.Done():
		}
	}
	return nil
}

// tried records an attempt to lower a cost.
func (c *Controller) tried(key types.NamespacedName, since time.Time, err error) {
	c.turns.Change(key, func(t turn, known bool) (turn, bool) {
		if !known || !t.since.Equal(since) {
			return t, known
		}
		if err != nil {
			t.failures++
			t.due = c.clock.Now().Add(lowerAfter)
		}
		t.done = err == nil || t.failures >= lowerAttempts
		return t, true
	})
}
