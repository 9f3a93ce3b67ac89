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
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Name is the name of this controller in logs, metrics and queues.
const Name = "deletion-cost"

const (
	// lowerAfter is how long a pod waits before its cost is lowered.
	lowerAfter = 10 * time.Second
	// lowerEvery is the time between two such writes: every change of a pod makes the controllers
	// of ReplicaSets and of budgets reconcile.
	lowerEvery = 200 * time.Millisecond
	// lowerAttempts is how often lowering a cost is tried, lowerAfter apart. The pod can leave
	// without it.
	lowerAttempts = 5
	// callTimeout is the deadline of one sync. A webhook may take 30 s.
	callTimeout = 40 * time.Second
	// workers is the number of workers. At most one lowers a cost: if that hangs, costs of other
	// pods are still restored.
	workers = 2
)

// Config has the dependencies of the controller.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Clock is the clock; nil means the real one.
	Clock clock.WithTicker
	// Liveness tracks what the workers are busy with; nil disables tracking.
	Liveness *loop.Tracker
}

// Controller lowers the deletion cost of the pods that wait to leave, and restores it when they may
// stay. A pod waits while its Evacuation is with the evacuator of Deployments, or up for eviction.
// The pod has all the information, so the controller also restores what another process lowered.
//
// Kept in memory, and droppable at any time: which pods were lowered in the present turns of their
// Evacuations, and when the others may be (turns).
type Controller struct {
	*host.Cluster
	clock       clock.WithTicker
	pods        corelisters.PodLister
	evacuations maintenancelisters.EvacuationLister
	synced      []cache.InformerSynced
	queue       *loop.Queue[types.NamespacedName]

	// mu guards everything below.
	mu    sync.Mutex
	turns map[types.NamespacedName]*turn
	// next is when the next cost may be lowered, and busy that a worker lowers one.
	next time.Time
	busy bool
}

// turn is what is known of a pod in a turn of its Evacuation.
type turn struct {
	// since is when the turn began.
	since time.Time
	// slot is when the cost may be lowered; zero if the pod has no slot.
	slot time.Time
	// done: the cost was lowered in this turn, or cannot be. If a user or a controller has restored
	// it since, it stays.
	done bool
	// failures counts the attempts that have failed.
	failures int
	// badCost is the malformed cost that an event has reported.
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
		pods: config.Cluster.Pods.Lister(), evacuations: config.Cluster.Evacuations.Lister(), turns: map[types.NamespacedName]*turn{},
		queue: loop.NewQueue(loop.Config[types.NamespacedName]{
			Name: Name, Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness,
			LogAs: func(key types.NamespacedName) (string, any) { return "pod", key },
		}),
	}
	var err error
	c.synced, err = podcache.AddHandlers(
		podcache.Handled{Informer: c.Pods, Handler: podcache.HandlerOf(c.podChanged)},
		podcache.Handled{Informer: c.Evacuations.Informer(), Handler: podcache.HandlerOf(c.evacuationChanged)},
	)
	return c, err
}

// Run works until the context ends, and returns when the last write is done. The informers must
// have been started.
func (c *Controller) Run(ctx context.Context, _ int) {
	defer c.queue.ShutDown()
	if ctx, ok := loop.Start(ctx, Name, workers, c.synced...); ok {
		c.queue.Run(ctx, workers, c.sync)
	}
}

func (c *Controller) podChanged(_, pod *corev1.Pod) {
	if pod == nil {
		// An Evacuation has to follow, which is deleted or has an event of its own.
		return
	}
	if _, err := c.evacuationOf(pod); err == nil || IsLowered(pod) {
		c.queue.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	}
}

func (c *Controller) evacuationChanged(old, evacuation *v1alpha1.Evacuation) {
	if evacuation == nil {
		evacuation = old
	}
	c.queue.Add(types.NamespacedName{Namespace: evacuation.Namespace, Name: evacuation.Spec.PodRef.Name})
}

func (c *Controller) evacuationOf(pod *corev1.Pod) (*v1alpha1.Evacuation, error) {
	return c.evacuations.Evacuations(pod.Namespace).Get(protocol.CanonicalName(pod.Name, pod.UID))
}

// asks reports whether an Evacuation still asks its pod to leave.
func asks(evacuation *v1alpha1.Evacuation) bool {
	return !protocol.IsComplete(evacuation) &&
		(!protocol.IsWithdrawn(evacuation) || evacuation.Status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid)
}

// waitsSince returns since when a pod waits to be replaced or evicted; zero if it does not.
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
		c.forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	evacuation, err := c.evacuationOf(pod)
	if err == nil && asks(evacuation) {
		c.reportBadCost(key, pod)
		c.lower(ctx, key, pod, waitsSince(&evacuation.Status))
		return nil
	}
	if loop.IgnoreNotFound(err) != nil {
		return err
	}
	c.forget(key)
	if !IsLowered(pod) {
		return nil
	}
	// Pods and Evacuations come from two API servers, and the cache of pods may be ahead.
	evacuation, err = c.Maintenance.MaintenanceV1alpha1().Evacuations(key.Namespace).Get(ctx, protocol.CanonicalName(pod.Name, pod.UID), metav1.GetOptions{})
	if loop.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the Evacuation of pod %s: %w", key, err)
	}
	if err == nil && asks(evacuation) {
		// The cache will show the Evacuation and, later, its deletion.
		return nil
	}
	return Restore(ctx, c.Unlimited, pod)
}

// lower lowers the deletion cost of a pod that has waited for a while, once in a turn of its
// Evacuation: a user or the evacuator of Deployments may have restored it.
func (c *Controller) lower(ctx context.Context, key types.NamespacedName, pod *corev1.Pod, since time.Time) {
	if since.IsZero() || !IsOfReplicaSet(pod) {
		return
	}
	again, may := c.begin(key, pod, since)
	if again > 0 {
		c.queue.AddAfter(key, again)
	}
	if !may {
		return
	}
	err := Lower(ctx, c.Unlimited, pod)
	if err != nil {
		klog.FromContext(ctx).Info("The pod waits, and its deletion cost cannot be lowered", "reason", err.Error())
		c.queue.AddAfter(key, lowerAfter)
	}
	c.end(key, err)
}

// begin reports whether the cost of a waiting pod may be lowered now. Otherwise, again is how soon
// to ask again; 0 means not in this turn.
func (c *Controller) begin(key types.NamespacedName, pod *corev1.Pod, since time.Time) (again time.Duration, may bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, t := c.clock.Now(), c.turn(key)
	if !t.since.Equal(since) {
		*t = turn{since: since, badCost: t.badCost}
	}
	if t.done = t.done || !CanLower(pod); t.done {
		return 0, false
	}
	due := since.Add(lowerAfter)
	if c.InFlight.Has(pod.UID) {
		due = now.Add(lowerAfter)
	}
	if now.Before(due) {
		return due.Sub(now), false
	}
	if t.slot.IsZero() || c.busy && !now.Before(t.slot) {
		t.slot = now
		if c.busy {
			t.slot = now.Add(lowerEvery)
		}
		if c.next.After(t.slot) {
			t.slot = c.next
		}
		c.next = t.slot.Add(lowerEvery)
	}
	if now.Before(t.slot) {
		return t.slot.Sub(now), false
	}
	c.busy = true
	return 0, true
}

// end records the end of an attempt to lower a cost.
func (c *Controller) end(key types.NamespacedName, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	t := c.turn(key)
	if err != nil {
		t.failures++
		t.slot = c.clock.Now().Add(lowerAfter)
	}
	t.done = err == nil || t.failures >= lowerAttempts
}

// turn must be called with the lock held.
func (c *Controller) turn(key types.NamespacedName) *turn {
	if c.turns[key] == nil {
		c.turns[key] = &turn{}
	}
	return c.turns[key]
}

func (c *Controller) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.turns, key)
}
