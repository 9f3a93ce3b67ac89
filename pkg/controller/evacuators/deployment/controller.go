// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package deployment is the built-in evacuator of pods that belong to Deployments. It replaces a
// pod before the pod leaves: it scales the Deployment up within its maxSurge, waits until the new
// replicas are available, and exchanges them for old pods: a scale-down of the extra replicas
// deletes exactly these. If more pods leave than there are extra replicas, the others leave by
// eviction before.
//
// A sync gathers all inputs about one Deployment, decides with a pure function, and acts. All state
// that has to survive a crash is in the API: the replica count and the record of its change are
// written together, and reverted together. The evacuator never reverts a replica count that a user
// or another controller has changed since.
//
// The following is kept in memory and may be lost at any time: which Deployments have leaving pods,
// with the last writes and reports of this process (tracked), and the budgets by the labels of
// their pods (budgets).
package deployment

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/pdb"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Name is the name of this controller in logs, metrics and queues.
const Name = "deployment-evacuator"

// Config has the dependencies and options of the controller.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Selection has the maintenances that select the node of a pod.
	Selection *selection.Selection
	// Clock is the clock; nil means the real one.
	Clock clock.WithTicker
	// Liveness tracks which item each worker processes; nil disables tracking.
	Liveness *loop.Tracker
	// SurgeTimeout is how long a surge may make no progress. After that, pods leave without a
	// replacement if their budgets allow it; 0 means the default.
	SurgeTimeout time.Duration
	// Evictions sends the questions whether pods may leave. It should have no rate limit, since
	// they are sent one after the other.
	Evictions eviction.Host
	// Asks reports whether, according to the caches, an Evacuation that is not withdrawn still asks
	// its pod to leave. It must not block. Nil means that it does.
	Asks func(*v1alpha1.Evacuation) bool
	// EvacuatorStartDeadline is the time within which an evacuator has to send its first report.
	// This evacuator delays its first report by at most a quarter of that time; 0 means that it
	// reports immediately.
	EvacuatorStartDeadline time.Duration
	// Off disables the evacuator: it starts no surge, reverts existing surges, and reports
	// completion immediately.
	Off bool
}

// item is an item of the queue. It is a Deployment, an Evacuation for whose pod the Deployment has
// to be found, or an autoscaler that has a record but no longer scales a Deployment.
type item struct {
	isEvacuation, isAutoscaler bool
	types.NamespacedName
}

// logAs returns the key and the value of an item in the log.
func (i item) logAs() (key string, value any) {
	switch {
	case i.isEvacuation:
		return "evacuation", i.NamespacedName
	case i.isAutoscaler:
		return "autoscaler", i.NamespacedName
	}
	return "deployment", i.NamespacedName
}

// Controller is the evacuator.
type Controller struct {
	*host.Cluster
	clock         clock.WithTicker
	timeout       time.Duration
	startDeadline time.Duration
	off           bool
	// servingSince is the time at which this leader started. It is set before the first worker
	// starts, and the queue of evictions may read it before.
	servingSince atomic.Pointer[time.Time]

	// holders returns the maintenances that select a node.
	holders          holds.Index
	evacuationLister maintenancelisters.EvacuationLister
	nodeLister       corelisters.NodeLister
	podLister        corelisters.PodLister
	// latestDeployments and latestAutoscalers have the objects in the cached state or in the newer
	// state that this process has written.
	latestDeployments loop.Latest[*appsv1.Deployment]
	latestAutoscalers loop.Latest[*autoscalingv2.HorizontalPodAutoscaler]
	synced            []cache.InformerSynced

	queue *loop.Queue[item]
	known tracked
	// lowered has the Deployments whose replica count any client has lowered, until some time after
	// their ReplicaSets have deleted the pods.
	lowered   loop.Memory[types.NamespacedName, lowering]
	evictions eviction.Host
	asks      func(*v1alpha1.Evacuation) bool
	// asking has an item for each worker that asks whether pods may leave.
	asking   chan struct{}
	removals removals

	// matching protects budgets, which the event handler for budgets updates.
	matching sync.RWMutex
	budgets  *pdb.Index
}

// New creates a controller and registers its handlers and indexes; the informers must not run yet.
// A controller runs once.
func New(config Config) (*Controller, error) {
	registerMetrics()
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.SurgeTimeout == 0 {
		config.SurgeTimeout = protocol.DefaultSurgeTimeout
	}
	if config.Asks == nil {
		config.Asks = func(*v1alpha1.Evacuation) bool { return true }
	}
	c := &Controller{
		Cluster: config.Cluster, clock: config.Clock,
		evictions: config.Evictions, asks: config.Asks, asking: make(chan struct{}, maxAsking), removals: removals{byDeployment: map[types.NamespacedName]removal{}},
		timeout: config.SurgeTimeout, startDeadline: config.EvacuatorStartDeadline, off: config.Off,
		holders:          holds.Index{On: config.Selection.MaintenancesOn, Get: config.Cluster.NodeMaintenances.Lister().Get},
		evacuationLister: config.Cluster.Evacuations.Lister(),
		nodeLister:       config.Cluster.Nodes.Lister(), podLister: config.Cluster.Pods.Lister(),
		latestDeployments: loop.NewLatest[*appsv1.Deployment](config.Cluster.Deployments.Informer().GetStore()),
		latestAutoscalers: loop.NewLatest[*autoscalingv2.HorizontalPodAutoscaler](config.Cluster.Autoscalers.Informer().GetStore()),
		queue: loop.NewQueue(loop.Config[item]{
			Name: Name, Backoff: 5 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, LogAs: item.logAs, Failed: func() { syncErrors.Inc() },
		}),
		budgets: pdb.NewIndex(nil),
	}
	if err := podcache.AddIndex(c.Autoscalers.Informer(), autoscalersByDeployment, indexByDeployment); err != nil {
		return nil, fmt.Errorf("add index: %w", err)
	}
	c.synced = append(c.synced, c.Owners.HasSynced, c.NodeMaintenances.Informer().HasSynced, config.Selection.HasSynced)
	return c, c.watch()
}

// Run runs the controller until the context ends, and returns after the last write. The informers
// must have been started.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer c.queue.ShutDown()
	ctx, ok := loop.Start(ctx, Name, workers, c.synced...)
	if !ok {
		return
	}
	c.servingSince.Store(ptr.To(c.clock.Now()))
	c.queue.Run(ctx, workers, c.sync)
}

// since returns the time at which this leader started, the present if it has not: the queue of
// evictions may start earlier.
func (c *Controller) since() time.Time {
	return ptr.Deref(c.servingSince.Load(), c.clock.Now())
}

func (c *Controller) sync(ctx context.Context, key item) error {
	switch {
	case key.isEvacuation:
		return c.syncEvacuation(ctx, key.NamespacedName)
	case key.isAutoscaler:
		return c.syncAutoscaler(ctx, key.NamespacedName)
	}
	return c.syncDeployment(ctx, key.NamespacedName)
}

func (c *Controller) syncDeployment(ctx context.Context, key types.NamespacedName) error {
	// The handlers ignore events of Deployments that are not tracked. What changes while this sync
	// reads it must cause another one.
	c.known.change(key, func(*state) {})
	s, err := c.gather(ctx, key)
	if err != nil {
		return err
	}
	c.known.noteSync(key, s.now, len(s.pods), c.startDeadline)
	d := decide(s)
	// Each report makes the evacuation controller reconcile an Evacuation, and each written cost
	// the deletion-cost controller a pod.
	c.known.decided(key, d, s)
	notReplaced := ""
	if s.deployment != nil {
		notReplaced = s.reasonToDecline()
	}
	c.known.change(key, func(s *state) { s.notReplaced = notReplaced })
	if len(d.ask) > 0 {
		var asked bool
		if d.memory.answers, asked = c.askFirst(ctx, s, d.ask); asked {
			d.wakeAt(s.now)
		} else {
			d.wakeAt(s.now.Add(removeRetry))
		}
	}
	// The writes of costs may take ten seconds.
	if c.writeCosts(ctx, d); d.shrinks(s) && (c.isPausedSince(s) || c.isUnasked(d.removed)) {
		c.removals.drop(key, 0)
		c.queue.AddAfter(item{NamespacedName: key}, removeRetry)
		return nil
	}
	if len(d.removed) > 0 {
		if retry := c.claim(key, s, d.removed); retry > 0 {
			c.queue.AddAfter(item{NamespacedName: key}, retry)
			return nil
		}
	} else if len(d.ask) == 0 && !d.keepsClaim {
		// An earlier claim is not needed any more.
		c.removals.drop(key, 0)
	}
	scaled, err := c.act(ctx, key, s, d)
	if len(d.removed) > 0 && !c.mayShrink(key, *d.scale.value, scaled, err) {
		c.removals.drop(key, 1)
	}
	if scaled && !(d.idle && err == nil) {
		// Store the memory even if a report failed. Otherwise the reports that were written would
		// count as progress again.
		c.known.change(key, func(s *state) { s.memory = d.memory })
	}
	if !scaled && !apierrors.IsConflict(err) && ctx.Err() == nil {
		c.tellScaleFailed(ctx, key, s, d, err)
	}
	if err != nil {
		return err
	}
	if end := deletesUntil(c.known.get(key).scaledDown, s.deployment); s.now.Before(end) {
		// StandingOfEvicted and IsSurplus need the state until then.
		d.wakeAt(end)
	} else if d.idle {
		c.known.Forget(key)
	}
	if !d.wake.IsZero() {
		c.queue.AddAfter(item{NamespacedName: key}, d.wake.Sub(s.now))
	}
	return nil
}
