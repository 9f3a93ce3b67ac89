// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/rights"
)

// Name is the name of this controller in logs, metrics, queues and its field manager.
const Name = "nodetask"

const fieldManager = "haulout-" + Name

// Config has the dependencies of the controller.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Selection, State and Rights are shared with the node and the nodemaintenance controllers.
	Selection *selection.Selection
	State     *nodestate.State
	Rights    *rights.Cache
	Clock     clock.WithTicker
	// Liveness tracks which item each worker processes; nil disables tracking.
	Liveness *loop.Tracker
}

// Controller reconciles NodeTasks.
type Controller struct {
	Config

	queue   *loop.Queue[string]
	holders holds.Index
	synced  []cache.InformerSynced
	// started is the time since which this leader serves.
	started time.Time
	// heard has the last change of each NodeTask that this leader has seen, by the name of the
	// node.
	heard loop.Memory[string, heard]
}

// heard is the last change of the times of a NodeTask. The replicas that serve the writes of
// workers set these times, with clocks of their own.
type heard struct {
	uid             types.UID
	state, progress *metav1.Time
	// at is the time of the change, and entered that of the last change of the state, by the clock
	// of this leader; zero if it has seen none.
	at, entered time.Time
}

// hear returns the last change of the times of a NodeTask that this leader has seen.
func (c *Controller) hear(node string, task *v1alpha1.NodeTask, now time.Time) heard {
	if task == nil {
		c.heard.Forget(node)
		return heard{}
	}
	latest := heard{uid: task.UID, state: task.Status.StateTime, progress: task.Status.ProgressTime}
	c.heard.Change(node, func(last heard, known bool) (heard, bool) {
		switch {
		case !known || last.uid != latest.uid:
		case last.state.Equal(latest.state) && last.progress.Equal(latest.progress):
			latest.at, latest.entered = last.at, last.entered
		case last.state.Equal(latest.state):
			latest.at, latest.entered = now, last.entered
		default:
			latest.at, latest.entered = now, now
		}
		return latest, true
	})
	return latest
}

// New creates a controller and registers its handlers; the informers must not run yet. A controller
// runs once.
func New(config Config) *Controller {
	registerMetrics()
	c := &Controller{
		Config: config,
		queue: loop.NewQueue(loop.Config[string]{
			Name: Name, Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, Failed: func() { syncErrors.Inc() },
			LogAs: func(name string) (string, any) { return "nodeTask", klog.KRef("", name) },
		}),
		synced: []cache.InformerSynced{config.Selection.HasSynced, config.State.HasSynced},
	}
	c.holders = holds.Index{On: c.Selection.MaintenancesOn, Get: c.Cluster.NodeMaintenances.Lister().Get}
	config.Selection.Subscribe(selection.Subscriber{Node: c.nodeChanged, Maintenance: c.maintenanceChanged, Released: c.queue.Add})
	config.State.Subscribe(nodestate.Subscriber{
		Task: func(task *v1alpha1.NodeTask) { c.queue.Add(task.Name) }, Changed: c.enqueueConcerned,
	})
	c.Rights.Subscribe(c.enqueueConcerned)
	return c
}

// Run runs the controller until the context ends, and returns after the last write. The informers
// must have been started.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer c.queue.ShutDown()
	ctx, ok := loop.Start(ctx, Name, workers, c.synced...)
	if !ok {
		return
	}
	c.started = c.Clock.Now()
	var wg sync.WaitGroup
	wg.Go(func() { loop.Gauges(ctx, c.tasks, publish) })
	wg.Go(func() { c.queue.Run(ctx, workers, c.Sync) })
	wait.UntilWithContext(ctx, c.resync, loop.Resync)
	wg.Wait()
}

// resync enqueues everything, in case an event was missed.
func (c *Controller) resync(context.Context) {
	for _, task := range c.tasks() {
		c.queue.Add(task.Name)
	}
	for _, nm := range loop.All(c.Cluster.NodeMaintenances.Lister().List) {
		c.enqueueNodes(nm)
	}
}

func (c *Controller) tasks() []*v1alpha1.NodeTask {
	return loop.All(c.Cluster.NodeTasks.Lister().List)
}

// enqueueNodes enqueues the nodes of a maintenance, and the nodes of its NodeTasks. A maintenance
// without a task may keep other maintenances from offering its nodes.
func (c *Controller) enqueueNodes(nm *v1alpha1.NodeMaintenance) {
	if !c.State.HasTasks() {
		return
	}
	for name := range c.State.TasksOf(nm.UID) {
		c.queue.Add(name)
	}
	for _, node := range c.Selection.NodesOf(nm.Name) {
		c.queue.Add(node.Name)
	}
}

// maintenanceChanged enqueues the nodes of a maintenance if a field has changed that decisions
// read.
func (c *Controller) maintenanceChanged(old, nm *v1alpha1.NodeMaintenance) {
	if old != nil && nm != nil && old.UID == nm.UID && isSame(old, nm) {
		return
	}
	for _, m := range []*v1alpha1.NodeMaintenance{old, nm} {
		if m != nil {
			c.enqueueNodes(m)
		}
	}
}

// isSame reports whether two states of a maintenance are equal in all fields that decisions read.
func isSame(a, b *v1alpha1.NodeMaintenance) bool {
	return a.Generation == b.Generation && a.DeletionTimestamp.Equal(b.DeletionTimestamp) && v1alpha1.IsDone(a) == v1alpha1.IsDone(b) &&
		a.Status.ObservedGeneration == b.Status.ObservedGeneration && isDrained(a) == isDrained(b) &&
		slices.EqualFunc(a.Status.NodeStatuses, b.Status.NodeStatuses, func(x, y v1alpha1.NodeMaintenanceNodeStatus) bool {
			var none v1alpha1.NodeMaintenanceNodeTask
			return x.NodeRef == y.NodeRef && x.Reason == y.Reason && ptr.Deref(x.Task, none).State == ptr.Deref(y.Task, none).State
		})
}

func (c *Controller) nodeChanged(change selection.NodeChange) {
	c.enqueueConcerned(cmp.Or(change.New, change.Old).Name)
}

// enqueueConcerned enqueues a node if it has a NodeTask, or if a maintenance with a task selects
// it.
func (c *Controller) enqueueConcerned(node string) {
	if !c.State.HasTasks() {
		return
	}
	if c.State.TaskOn(node) != nil || c.holders.Any(node, func(nm *v1alpha1.NodeMaintenance) bool { return nm.Spec.Task != nil }) {
		c.queue.Add(node)
	}
}
