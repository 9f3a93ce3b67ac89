// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/host/rights"
)

// Name is the name of this controller in logs, metrics, queues and its field manager.
const Name = "rollout"

const (
	// debounce is how long events of nodes, tasks and maintenances are collected before the
	// rollouts are reconciled. If the last syncs of all rollouts took longer, they are collected
	// for as long as these, up to maxDebounce.
	debounce     = 50 * time.Millisecond
	maxDebounce  = 2 * time.Second
	fieldManager = "haulout-" + Name
)

// Config has the dependencies and options of the controller.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Clock is the clock of the deadlines and delays.
	Clock clock.WithTicker
	// Selection and Rights are shared with the controllers of nodes and of maintenances.
	Selection *selection.Selection
	Rights    *rights.Cache
	// Liveness tracks which rollout the worker processes; nil disables tracking.
	Liveness *loop.Tracker
	// MaxUnavailableNodes is the percentage of all nodes of the cluster that may be out of service
	// when a unit starts, from 1 to 100.
	MaxUnavailableNodes int
	// ServerNode is the name of the node on which this server runs; "" if it does not run in a pod.
	// The unit of this node starts last.
	ServerNode string
}

// Controller reconciles NodeMaintenanceRollouts.
type Controller struct {
	Config

	maintenances cache.Indexer
	synced       []cache.InformerSynced
	queue        *loop.Queue[string]
	// rollouts and created have the rollouts and the maintenances, each in the cached state or in
	// the newer state that this process has written.
	rollouts loop.Latest[*v1alpha1.NodeMaintenanceRollout]
	created  loop.Latest[*v1alpha1.NodeMaintenance]
	// current is set when this process knows all units that earlier leaders have announced.
	current bool
	// nodes are the nodes that the next syncs share, and changes counts the changes of nodes and of
	// their maintenances.
	nodes   *nodes
	changes atomic.Int64
	// goals has the expressions of the rollouts by name.
	goals map[string]*goal
	// failedStarts has the last failed starts of units, by rollout and unit.
	failedStarts map[string]map[string]*failedStart
	// problems has the failures of each rollout.
	problems *loop.Failures[string]
	// written has the time of the last status write of each rollout, to pace the writes.
	written loop.Memory[string, time.Time]
	// costs has the duration of the last sync of each rollout.
	costs loop.Memory[string, time.Duration]
	// started is the time since which this leader serves.
	started time.Time
}

// failedStart is a start of a unit that has failed.
type failedStart struct {
	// at is the time, zero if the API has not answered: then the unit is tried again before all
	// others. refused is set if the API has refused the maintenance.
	at      time.Time
	refused bool
	// unanswered is the time of the last creation without an answer, zero if there was none.
	unanswered time.Time
}

// New creates a controller and registers its handlers and indexes; the informers must not run yet.
// A controller runs once.
func New(config Config) (*Controller, error) {
	registerMetrics()
	rollouts, maintenances := config.Cluster.Rollouts.Informer(), config.Cluster.NodeMaintenances.Informer()
	c := &Controller{
		Config:       config,
		maintenances: maintenances.GetIndexer(),
		synced:       []cache.InformerSynced{config.Selection.HasSynced},
		queue: loop.NewQueue(loop.Config[string]{
			Name: Name, Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, Failed: func() { syncErrors.Inc() },
			LogAs: func(item string) (string, any) { return "rollout", item },
		}),
		rollouts:     loop.NewLatest[*v1alpha1.NodeMaintenanceRollout](rollouts.GetStore()),
		created:      loop.NewLatest[*v1alpha1.NodeMaintenance](maintenances.GetStore()),
		goals:        map[string]*goal{},
		failedStarts: map[string]map[string]*failedStart{},
		problems:     loop.NewFailures[string](config.Clock, nil),
	}
	if err := podcache.AddIndex(maintenances, byRollout, indexByRollout); err != nil {
		return nil, fmt.Errorf("add index: %w", err)
	}
	return c, c.subscribe()
}

// byRollout is the index of maintenances by the UID of the rollout that they belong to.
const byRollout = "haulout.dev/maintenances-by-rollout"

func indexByRollout(obj any) ([]string, error) {
	if nm, ok := obj.(*v1alpha1.NodeMaintenance); ok {
		if owner := protocol.RolloutOf(nm); owner != nil {
			return []string{string(owner.UID)}, nil
		}
	}
	return nil, nil
}

// Run runs the controller until the context ends, and returns after the last write. The informers
// must have been started. There is one worker whatever the number: the units of all rollouts start
// one after the other, each after the announcement of the one before it.
func (c *Controller) Run(ctx context.Context, _ int) {
	defer c.queue.ShutDown()
	ctx, ok := loop.Start(ctx, Name, 1, c.synced...)
	if !ok {
		return
	}
	c.started = c.Clock.Now()
	var wg sync.WaitGroup
	wg.Go(func() { loop.Gauges(ctx, c.all, publish) })
	wg.Go(func() { c.queue.Run(ctx, 1, c.timedSync) })
	resync := func(context.Context) { c.enqueueIf(func(*v1alpha1.NodeMaintenanceRollout) bool { return true }) }
	wait.UntilWithContext(ctx, resync, loop.Resync)
	wg.Wait()
}

// all returns the rollouts, each in the cached state or in the newer state that this process has
// written.
func (c *Controller) all() []*v1alpha1.NodeMaintenanceRollout {
	var all []*v1alpha1.NodeMaintenanceRollout
	for _, r := range loop.All(c.Cluster.Rollouts.Lister().List) {
		if latest, exists := c.rollouts.Get(r.Name); exists {
			all = append(all, latest)
		}
	}
	return all
}

// timedSync calls sync and records how long it took.
func (c *Controller) timedSync(ctx context.Context, name string) error {
	started := c.Clock.Now()
	err := c.sync(ctx, name)
	if err == nil || !loop.IsOnlyConflict(err) && ctx.Err() == nil {
		// The status reports an error that lasts. The next sync removes one that is over.
		if c.problems.Note(name, "sync", nodestate.TextOf(err)) {
			c.queue.Add(name)
		}
	}
	_, exists := c.rollouts.Get(name)
	c.costs.Change(name, func(time.Duration, bool) (time.Duration, bool) { return c.Clock.Since(started), exists })
	return err
}

func (c *Controller) sync(ctx context.Context, name string) error {
	r, exists := c.rollouts.Get(name)
	if !exists {
		c.written.Forget(name)
		c.problems.Forget(name)
		delete(c.goals, name)
		delete(c.failedStarts, name)
		return nil
	}
	if r.DeletionTimestamp != nil {
		// The garbage collector deletes the maintenances, which releases the nodes.
		return nil
	}
	return c.reconcile(ctx, r)
}

// debounce returns how long to collect events before rollouts are reconciled: at least as long as
// the last syncs of all of them took. A sync reads all nodes, and most events concern all rollouts.
// So events that never stop keep the worker busy for half of the time at most.
func (c *Controller) debounce() time.Duration {
	var round time.Duration
	for _, name := range c.costs.Keys() {
		took, _ := c.costs.Get(name)
		round += took
	}
	return min(max(debounce, round), maxDebounce)
}
