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

// Name is what this controller is called in logs, metrics, queues and as a field manager.
const Name = "node"

const (
	// conditionsDelay is how long events of a node are gathered before its conditions are written.
	// Cordons and Evacuations go first.
	conditionsDelay = 500 * time.Millisecond
	// workers bounds the nodes that are synced at the same time.
	workers = 16
	// quietRetry is how soon a node is synced again that waits for an eviction in flight.
	quietRetry = 50 * time.Millisecond
	// releaseRetry is how soon a node is synced again that waits until its Evacuations are
	// withdrawn, if no event comes before.
	releaseRetry = 5 * time.Second
	// confirmationAge is how old the live read of a maintenance may be on which a cordon is based.
	confirmationAge = time.Second
	// fieldManager owns what the controller writes.
	fieldManager = "haulout-" + Name
)

// Config is what the controller needs.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Selection, State and Rights are shared with the controller of maintenances.
	Selection *selection.Selection
	State     *nodestate.State
	Rights    *rights.Cache
	Clock     clock.WithTicker
	// Liveness learns what the workers are busy with; it may be nil.
	Liveness *loop.Tracker
	// Evacuators are the classes of the built-in evacuators that are on.
	Evacuators sets.Set[string]
	// StorageID is the ID of the storage that the maintenances are in. It is written into every
	// annotation on a node, and only what has it is undone.
	StorageID string
	// AdoptStorage is the ID of another storage whose annotations count as ours; empty is none.
	AdoptStorage string
	// AdvertisePlanned adds a condition to the nodes that maintenances in stage Idle select.
	// Without it they touch no node.
	AdvertisePlanned bool
}

// Controller keeps what the server writes to nodes.
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
	// storage is the ID of our storage; adopted is that of another one whose annotations count as
	// ours, or "".
	storage, adopted string
	advertise        bool
	queue            *loop.Queue[string]
	synced           []cache.InformerSynced

	// holding are, by maintenance, the generation that a live read confirmed, and when.
	holding loop.Memory[types.UID, heldGeneration]
	// foreign are the storages whose marks are on nodes, by node.
	foreign loop.Memory[types.UID, string]
}

type heldGeneration struct {
	generation int64
	at         time.Time
}

// New makes a controller and registers its handlers and indexes; the informers must not run yet. A
// controller runs once.
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

// Run works until the context ends, and returns when the last write is done. The informers must
// have been started. How many nodes are synced at the same time does not depend on the argument.
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
	nodesWithForeignMarks.Set(0) // another replica counts from now on
}

// Sync brings a node to what it should be. The cache is enough for it: if the node has changed
// since, the API refuses the write, and the node is decided again from a live read.
func (c *Controller) Sync(ctx context.Context, name string) error {
	cached, exists, err := c.state.Nodes.Get(name)
	if err != nil || !exists {
		return err
	}
	err = c.sync(ctx, cached)
	if apierrors.IsConflict(err) {
		var node *corev1.Node
		node, err = c.host.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && node.UID != cached.UID:
			return nil // the cache will show it
		case err != nil:
			err = fmt.Errorf("read node %s: %w", name, err)
		default:
			err = c.sync(ctx, node)
		}
	}
	c.note(ctx, name, err)
	return err
}

// note remembers why a node cannot be synced. The maintenances of the node show it.
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
		// Without a holder the node would be released, which an authorizer that does not answer
		// must not bring about.
		return err
	case f.undecided:
		// A maintenance may be about to hold the node: the answer of the authorizer is an event.
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

// hold writes the node and then, in a sync of their own, its conditions.
func (c *Controller) hold(ctx context.Context, node *corev1.Node, f facts) error {
	wrote, err := c.write(ctx, f)
	if wrote || err != nil {
		c.enqueueConditions(node.Name)
	}
	switch {
	case wrote:
		return err
	case err != nil:
		// A node that is cordoned and refuses a taint is drained all the same.
		_, _, holdersErr := c.holdersOf(ctx, node, f, c.recordOf(node))
		return errors.Join(err, holdersErr)
	}
	_, err = c.writeConditions(ctx, node, f)
	return ignoreAsking(err)
}

// release writes the conditions and then the node itself: a node that is seen schedulable has
// nothing of a maintenance any more.
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

// ignoreAsking returns nil for what waits for the first answer of the authorizer: the node is
// synced again when that is there.
func ignoreAsking(err error) error {
	if errors.Is(err, rights.ErrAsking) {
		return nil
	}
	return err
}
