// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	versioned "haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/rights"
)

// Name is the name of this controller in logs, metrics, queues and its field manager.
const Name = "node"

const (
	// conditionsDelay is how long changes of a node are collected before its conditions are
	// written. Cordons and Evacuations are more urgent.
	conditionsDelay = 500 * time.Millisecond
	// workers is the maximum number of nodes that are synced at the same time.
	workers = 16
	// quietRetry is the time after which a node that waits for an eviction in flight is synced
	// again.
	quietRetry = 50 * time.Millisecond
	// releaseRetry is the time after which a node whose Evacuations have to be withdrawn first is
	// synced again without an event.
	releaseRetry = 5 * time.Second
	// confirmationAge is the maximum age of the live read of a maintenance before a cordon.
	confirmationAge = time.Second
	fieldManager    = "haulout-" + Name
)

// Config has the dependencies and options of the controller.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Selection, State and Rights are shared with the nodemaintenance controller.
	Selection *selection.Selection
	State     *nodestate.State
	Rights    *rights.Cache
	Clock     clock.WithTicker
	// Liveness tracks which item each worker processes; nil disables tracking.
	Liveness *loop.Tracker
	// Evacuators are the classes of the enabled built-in evacuators.
	Evacuators sets.Set[string]
	// StorageID is the ID of the storage of the maintenances. It is part of every annotation on a
	// node. The controller removes only cordons, taints and conditions that are recorded with it.
	StorageID string
	// AdoptStorage is the ID of another storage whose annotations count as ours; empty means none.
	AdoptStorage string
	// AdvertisePlanned adds a condition to the nodes that maintenances in stage Idle select.
	// Without it, maintenances in stage Idle do not change nodes.
	AdvertisePlanned bool
	// ProtectHeld annotates the nodes that maintenances hold, so that autoscalers do not delete
	// them.
	ProtectHeld bool
}

// Controller reconciles the cordon, taints, annotations and conditions of nodes.
type Controller struct {
	host              kubernetes.Interface
	maintenance       versioned.Interface
	maintenanceLister maintenancelisters.NodeMaintenanceLister
	nodes             cache.Indexer
	selection         *selection.Selection
	state             *nodestate.State
	rights            *rights.Cache
	recorder          events.EventRecorder
	clock             clock.WithTicker
	evacuators        sets.Set[string]
	// storage and adopted are StorageID and AdoptStorage of the Config.
	storage, adopted   string
	advertise, protect bool
	queue              *loop.Queue[string]
	synced             []cache.InformerSynced

	// holding has, by maintenance, the generation that a live read confirmed, and the time of that
	// read.
	holding loop.Memory[types.UID, heldGeneration]
	// foreign has, by node, the other storage that its annotations name.
	foreign loop.Memory[types.UID, string]
	// refusals has, by node, the time at which its annotations for autoscalers were refused.
	refusals loop.Memory[types.UID, time.Time]
}

type heldGeneration struct {
	generation int64
	at         time.Time
}

// New creates a controller and registers its handlers and indexes; the informers must not run yet.
// A controller runs once.
func New(config Config) (*Controller, error) {
	registerMetrics()
	nodes, maintenances := config.Cluster.Nodes.Informer(), config.Cluster.NodeMaintenances
	c := &Controller{
		host:              config.Cluster.Client,
		maintenance:       config.Cluster.Maintenance,
		maintenanceLister: maintenances.Lister(),
		nodes:             nodes.GetIndexer(),
		selection:         config.Selection,
		state:             config.State,
		rights:            config.Rights,
		recorder:          config.Cluster.Recorder,
		clock:             config.Clock,
		evacuators:        config.Evacuators,
		storage:           config.StorageID,
		adopted:           config.AdoptStorage,
		advertise:         config.AdvertisePlanned,
		protect:           config.ProtectHeld,
		queue: loop.NewQueue(loop.Config[string]{
			Name: Name, Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, Failed: func() { nodeErrors.Inc() },
			LogAs: func(name string) (string, any) { return "node", klog.KRef("", name) },
		}),
		synced: []cache.InformerSynced{nodes.HasSynced, maintenances.Informer().HasSynced, config.Selection.HasSynced, config.State.HasSynced},
	}
	if err := nodestate.AddNodesByMaintenance(nodes); err != nil {
		return nil, fmt.Errorf("add index: %w", err)
	}
	c.subscribe()
	return c, nil
}

// Run runs the controller until the context ends, and returns after the last write. The informers
// must have been started. Run uses the number of workers in the constant workers, not its argument.
func (c *Controller) Run(ctx context.Context, _ int) {
	defer c.queue.ShutDown()
	ctx, ok := loop.Start(ctx, Name, workers, c.synced...)
	if !ok {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.queue.Run(ctx, workers, c.Sync) })
	wait.UntilWithContext(ctx, c.enqueueAll, loop.Resync)
	wg.Wait()
	nodesWithForeignMarks.Set(0) // the next leader sets the metric
}

// Sync reconciles a node from its cached state. If the node has changed since, the API server
// refuses the write with a conflict, and Sync decides again from a live read.
func (c *Controller) Sync(ctx context.Context, name string) error {
	cached, exists := c.state.Nodes.Get(name)
	if !exists {
		return nil
	}
	err := c.sync(ctx, cached)
	if apierrors.IsConflict(err) {
		var node *corev1.Node
		node, err = c.host.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && node.UID != cached.UID:
			return nil // the informer will deliver the deletion
		case err != nil:
			err = fmt.Errorf("read node %s: %w", name, err)
		default:
			err = c.sync(ctx, node)
		}
	}
	c.note(ctx, name, err)
	return err
}

// note records why a node cannot be synced. The status of its maintenances reports it.
func (c *Controller) note(ctx context.Context, name string, err error) {
	if err == nil || ctx.Err() == nil && !loop.IsOnlyConflict(err) {
		c.state.Troubles.Note(name, Name, nodestate.TextOf(err))
	}
}

func (c *Controller) sync(ctx context.Context, node *corev1.Node) error {
	f, err := c.gather(ctx, node)
	if len(f.holders) > 0 {
		return errors.Join(err, c.hold(ctx, node, f))
	}
	switch {
	case err != nil:
		// A node without a holder is released, but not while the authorizer does not respond.
		return err
	case f.undecided:
		// A maintenance may be about to hold the node. When the authorizer responds, the node is
		// enqueued.
		return nil
	case c.state.HasOurs(node.Name):
		c.queue.AddAfter(node.Name, releaseRetry)
		return nil
	case c.state.IsEvicting(node.Name):
		c.queue.AddAfter(node.Name, quietRetry)
		return nil
	}
	return c.release(ctx, node, f)
}

// hold writes the node now. A later sync writes its conditions.
func (c *Controller) hold(ctx context.Context, node *corev1.Node, f facts) error {
	wrote, err := c.write(ctx, f)
	if wrote || err != nil {
		c.enqueueConditions(node.Name)
	}
	switch {
	case wrote:
		return err
	case err != nil:
		// A webhook may refuse the taint of a cordoned node. That must not stop the drain of the
		// node.
		_, _, holdersErr := c.holdersOf(ctx, node, f, c.recordOf(node))
		return errors.Join(err, holdersErr)
	}
	_, err = c.writeConditions(ctx, node, f)
	return ignoreAsking(err)
}

// release writes the conditions before the node: a schedulable node must not have the conditions of
// a maintenance.
func (c *Controller) release(ctx context.Context, node *corev1.Node, f facts) error {
	stored, conditionsErr := c.writeConditions(ctx, node, f)
	if apierrors.IsConflict(conditionsErr) {
		return conditionsErr
	}
	if stored != nil {
		f.node = stored
	}
	_, err := c.write(ctx, f)
	return errors.Join(ignoreAsking(conditionsErr), err)
}

// ignoreAsking returns nil while the first access review of a requester is pending. When it ends,
// the node is enqueued.
func ignoreAsking(err error) error {
	if errors.Is(err, rights.ErrAsking) {
		return nil
	}
	return err
}
