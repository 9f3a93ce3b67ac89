// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/holds"
	versioned "haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/rights"
)

// Name is the name of this controller in logs, metrics, queues and its field manager.
const Name = "nodemaintenance"

const (
	// debounce is how long events of pods, nodes and Evacuations are collected before their
	// maintenances are reconciled. If a sync takes longer than that, the next sync of the same
	// maintenance is delayed by the duration of the last one, up to maxDebounce, so that other
	// maintenances are not starved.
	debounce    = 50 * time.Millisecond
	maxDebounce = 2 * time.Second
	// decisionPause is the pause after a decision about a maintenance, as a multiple of the time
	// that the decision took, up to maxDebounce. A decision reads all nodes of the maintenance, and
	// each pod causes several events while it leaves. Without a pause that grows with the number of
	// nodes, the cost of a drain would grow with its square.
	decisionPause = 100
	// DefaultStallTimeout is how long a drain may make no progress before it counts as stalled. It
	// is longer than every other timeout of a drain.
	DefaultStallTimeout = 15 * time.Minute
	fieldManager        = "haulout-" + Name
)

// Config has the dependencies and options of the controller.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Clock is the clock; nil means the real one.
	Clock clock.WithTicker
	// Selection, State and Rights are shared with the node controller.
	Selection *selection.Selection
	State     *nodestate.State
	Rights    *rights.Cache
	// Liveness tracks which item each worker processes; nil disables tracking.
	Liveness *loop.Tracker
	// StallTimeout is how long a drain may make no progress before it counts as stalled; 0 means
	// DefaultStallTimeout.
	StallTimeout time.Duration
	// LongGrace is the maximum time for which a terminating pod counts as progress of its drain,
	// even if its grace period is longer; 0 means 2 hours.
	LongGrace time.Duration
	// CompletedTTL is how long a completed maintenance is kept before it is deleted; 0 means
	// forever.
	CompletedTTL time.Duration
}

// Controller reconciles NodeMaintenances.
type Controller struct {
	cluster     *host.Cluster
	maintenance versioned.Interface
	recorder    events.EventRecorder
	clock       clock.WithTicker

	maintenanceLister maintenancelisters.NodeMaintenanceLister
	evacuationLister  maintenancelisters.EvacuationLister
	nodeLister        corelisters.NodeLister
	podLister         corelisters.PodLister
	nodeIndexer       cache.Indexer
	synced            []cache.InformerSynced

	queue       *loop.Queue[string]
	withdrawals *withdrawals
	forecasts   *forecasts
	selection   *selection.Selection
	// holders returns the maintenances of a node, each in the state that latest has.
	holders holds.Index
	state   *nodestate.State
	rights  *rights.Cache
	// latest has the maintenances, each in the cached state or in the newer state that this process
	// has written.
	latest loop.Latest[*v1alpha1.NodeMaintenance]
	// written has the time of the last status write of each maintenance, to pace the writes.
	written loop.Memory[string, time.Time]
	// costs has the duration of the last sync of each maintenance, and pauses the pause after its
	// last decision.
	costs, pauses loop.Memory[string, time.Duration]
	// problems has the failures of each maintenance, and the text of the last event about a status
	// that cannot be written.
	problems *loop.Failures[string]
	// stallTimeout, longGrace and completedTTL are the fields of the Config.
	stallTimeout, longGrace, completedTTL time.Duration
}

// New creates a controller and registers its handlers and indexes; the informers must not run yet.
// A controller runs once.
func New(config Config) (*Controller, error) {
	registerMetrics()
	if config.StallTimeout == 0 {
		config.StallTimeout = DefaultStallTimeout
	}
	if config.LongGrace == 0 {
		config.LongGrace = protocol.DefaultLongGrace
	}
	nodes := config.Cluster.Nodes
	c := &Controller{
		cluster:           config.Cluster,
		maintenance:       config.Cluster.Maintenance,
		recorder:          config.Cluster.Recorder,
		clock:             config.Clock,
		maintenanceLister: config.Cluster.NodeMaintenances.Lister(),
		evacuationLister:  config.Cluster.Evacuations.Lister(),
		nodeLister:        nodes.Lister(),
		podLister:         config.Cluster.Pods.Lister(),
		nodeIndexer:       nodes.Informer().GetIndexer(),
		synced:            []cache.InformerSynced{config.Selection.HasSynced, config.State.HasSynced},
		queue: loop.NewQueue(loop.Config[string]{
			Name: Name, Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, Failed: func() { syncErrors.Inc() },
			LogAs: func(item string) (string, any) { return "nodeMaintenance", item },
		}),
		selection:    config.Selection,
		state:        config.State,
		rights:       config.Rights,
		latest:       loop.NewLatest[*v1alpha1.NodeMaintenance](config.Cluster.NodeMaintenances.Informer().GetStore()),
		problems:     loop.NewFailures[string](config.Clock, nil),
		stallTimeout: config.StallTimeout,
		longGrace:    config.LongGrace,
		completedTTL: config.CompletedTTL,
	}
	c.holders = holds.Index{On: c.selection.MaintenancesOn, Get: func(name string) (*v1alpha1.NodeMaintenance, error) {
		if nm, exists := c.latest.Get(name); exists {
			return nm, nil
		}
		return nil, apierrors.NewNotFound(v1alpha1.Resource("nodemaintenances"), name)
	}}
	c.withdrawals = newWithdrawals(c, config)
	c.forecasts = newForecasts(c, config)
	if err := nodestate.AddNodesByMaintenance(nodes.Informer()); err != nil {
		return nil, fmt.Errorf("add index: %w", err)
	}
	c.subscribe()
	return c, nil
}

// Run runs the controller until the context ends, and returns after the last write. The informers
// must have been started.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer c.queue.ShutDown()
	defer c.withdrawals.queue.ShutDown()
	defer c.forecasts.queue.ShutDown()
	ctx, ok := loop.Start(ctx, Name, workers, c.synced...)
	if !ok {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { loop.Gauges(ctx, c.maintenances, publish) })
	wg.Go(func() { c.queue.Run(ctx, workers, c.timedSync) })
	wg.Go(func() { c.withdrawals.queue.Run(ctx, withdrawalWorkers, c.withdrawals.sync) })
	wg.Go(func() { c.forecasts.queue.Run(ctx, forecastWorkers, c.forecasts.reconcile) })
	wait.UntilWithContext(ctx, c.resync, loop.Resync)
	wg.Wait()
}

// resync enqueues everything, in case an event was missed.
func (c *Controller) resync(context.Context) {
	for _, obj := range c.maintenances() {
		c.queue.Add(obj.Name)
	}
	for _, e := range loop.All(c.evacuationLister.List) {
		c.withdrawals.enqueue(e)
	}
}

// timedSync calls sync and records how long it took.
func (c *Controller) timedSync(ctx context.Context, item string) error {
	started := c.clock.Now()
	err := c.sync(ctx, item)
	c.noteSync(ctx, item, err)
	took := c.clock.Since(started)
	syncDuration.Observe(took.Seconds())
	c.noteCost(item, took)
	return err
}

// noteSync records the error of a sync. An error that lasts long enough is written into the status,
// even if nothing else in the status can be computed.
func (c *Controller) noteSync(ctx context.Context, item string, err error) {
	if err != nil && (loop.IsOnlyConflict(err) || ctx.Err() != nil) {
		return
	}
	if c.problems.Note(item, "sync", nodestate.TextOf(err)) {
		c.queue.Add(item) // so that the next sync removes the error from the status
	}
	var shown shownError
	if err == nil || errors.As(err, &shown) {
		c.problems.Tell(item, "") // the same refusal of a later write gets another event
		return
	}
	nm, exists := c.latest.Get(item)
	if !exists || v1alpha1.IsDone(nm) {
		return
	}
	if status, visible := c.showFailure(nm); visible {
		written, writeErr := c.writeStatus(ctx, nm, *status, false)
		if writeErr != nil {
			klog.FromContext(ctx).Error(writeErr, "Cannot write the error of the sync into the status")
			c.announceUnwritable(ctx, nm, writeErr)
			return
		}
		c.announceProgressing(nm, written)
	}
}

func (c *Controller) sync(ctx context.Context, item string) error {
	nm, exists := c.latest.Get(item)
	if !exists {
		c.forget(item)
		return nil
	}
	shown, err := c.selection.Shows(nm)
	switch {
	case err != nil:
		return err
	case !shown && !v1alpha1.IsDone(nm):
		return nil // the selection enqueues the maintenance when it has this state
	case nm.DeletionTimestamp != nil && len(nm.Finalizers) == 0:
		return c.finishDeletion(ctx, nm)
	case v1alpha1.IsDone(nm):
		return c.finishCompleted(ctx, nm)
	default:
		return c.reconcile(ctx, nm)
	}
}

// forget drops what is kept in memory about a deleted maintenance.
func (c *Controller) forget(name string) {
	c.written.Forget(name)
	c.problems.Forget(name)
	c.costs.Forget(name)
	c.pauses.Forget(name)
}

// noteCost records the duration of the last sync of a maintenance, if it is longer than debounce.
func (c *Controller) noteCost(item string, took time.Duration) {
	c.costs.Change(item, func(time.Duration, bool) (time.Duration, bool) { return min(took, maxDebounce), took > debounce })
}

// noteDecision records how long a decision took, if the pause after it is longer than debounce.
func (c *Controller) noteDecision(item string, took time.Duration) {
	pause := decisionPause * took
	c.pauses.Change(item, func(time.Duration, bool) (time.Duration, bool) { return min(pause, maxDebounce), pause > debounce })
}

// debounce returns how long to collect events before a maintenance is reconciled.
func (c *Controller) debounce(item string) time.Duration {
	took, _ := c.costs.Get(item)
	pause, _ := c.pauses.Get(item)
	return max(debounce, took, pause)
}
