/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/loop"
	versioned "haulout.dev/haulout/pkg/generated/clientset/versioned"
	externalversions "haulout.dev/haulout/pkg/generated/informers/externalversions"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	controllercache "haulout.dev/haulout/pkg/host/cache"
	"haulout.dev/haulout/pkg/host/noderights"
)

// Name is what this controller is called in logs, metrics, queues and as a field manager.
const Name = "nodemaintenance"

const (
	// debounce is how long events of pods, nodes and Evacuations are gathered before their
	// maintenances are looked at. A maintenance that takes longer than that to look at waits for as
	// long as it took last, up to maxDebounce, so that it leaves room for others.
	debounce    = 50 * time.Millisecond
	maxDebounce = 2 * time.Second
	// resync is how often everything is looked at although nothing happened.
	resync = 10 * time.Minute
	// sweepItem is the item of the queue that stands for no maintenance but for the search for what
	// gone ones left behind. No object has an empty name.
	sweepItem = ""
	// DefaultStallTimeout is how long nothing may move in a drain before it counts as stalled. It
	// exceeds every other wait.
	DefaultStallTimeout = 15 * time.Minute
	// defaultBudgetPatience is the default of Config.DaemonSetBudgetPatience.
	defaultBudgetPatience = 5 * time.Minute
	// fieldManager owns what the controller writes.
	fieldManager = "haulout-" + Name
)

// Config is what the controller needs.
type Config struct {
	// Host is the client of the host cluster, HostInformers are its informers. Their transform must
	// leave what cache.Strip leaves.
	Host          kubernetes.Interface
	HostInformers informers.SharedInformerFactory
	// Maintenance is the client of our own API as the server itself, MaintenanceInformers are its
	// informers.
	Maintenance          versioned.Interface
	MaintenanceInformers externalversions.SharedInformerFactory
	// Recorder writes events into the host cluster.
	Recorder events.EventRecorder
	// Clock is the time; nil is the real one.
	Clock clock.WithTicker
	// Authorizer answers for the host cluster who may delete which node.
	Authorizer authorizer.Authorizer
	// AskEveryNodeByName switches off the question whether a requester may delete all nodes.
	AskEveryNodeByName bool
	// DaemonSetBudgetPatience is how long the budget of a DaemonSet pod may be closed before the
	// pod is kept on its node; 0 is 5 minutes.
	DaemonSetBudgetPatience time.Duration
	// Liveness is told what the workers are busy with; nil tells nobody.
	Liveness *loop.Tracker
	// Evacuators are the classes of the built-in evacuators that are on. Pods that only one of the
	// others could move are left running.
	Evacuators sets.Set[string]
	// EvictionsInFlight returns the requests whose evictions have been sent and not been answered;
	// nil if there never is one.
	EvictionsInFlight func() []eviction.Request
	// OwnPod is the pod that this server runs in; an empty name means none. It and the replicas
	// with the same controller leave their nodes last and once: one that comes back to a held node
	// stays.
	OwnPod types.NamespacedName
	// StorageID is the ID of the storage that the maintenances are in. It is written into every
	// annotation on a node, and only what has it is undone.
	StorageID string
	// AdoptStorage is the ID of another storage whose annotations count as ours; empty is none.
	AdoptStorage string
	// StallTimeout is how long nothing may move in a drain before it counts as stalled; 0 is 15
	// minutes.
	StallTimeout time.Duration
	// CompletedTTL is how long a completed maintenance is kept before it is deleted; 0 is for ever.
	CompletedTTL time.Duration
	// AdvertisePlanned has a condition put on the nodes that maintenances in stage Idle select.
	// Without it they touch no node.
	AdvertisePlanned bool
}

// Controller runs NodeMaintenances.
type Controller struct {
	host        kubernetes.Interface
	maintenance versioned.Interface
	recorder    events.EventRecorder
	clock       clock.WithTicker
	evacuators  sets.Set[string]
	// evictionsInFlight may be nil.
	evictionsInFlight func() []eviction.Request

	maintenanceLister maintenancelisters.NodeMaintenanceLister
	evacuationLister  maintenancelisters.EvacuationLister
	nodeLister        corelisters.NodeLister
	podLister         corelisters.PodLister
	podIndexer        cache.Indexer
	nodeIndexer       cache.Indexer
	evacuationIndexer cache.Indexer
	volumeIndexer     cache.Indexer
	daemonSetLister   appslisters.DaemonSetLister
	// priorityClassLister tells which priority the pods of a DaemonSet would have.
	priorityClassLister schedulinglisters.PriorityClassLister
	synced              []cache.InformerSynced

	queue     *loop.Queue[string]
	selection *selection
	rights    *noderights.Cache
	cordons   *cordonWatch
	// taints knows how often somebody took our taint off.
	taints    *cordonWatch
	written   *writtenStatuses
	confirmed *confirmations
	requested *requestedEvacuations
	ownPod    types.NamespacedName
	// ownOwner is the UID of the controller of ownPod, once that pod was seen.
	ownOwner atomic.Value
	views    *views
	memories *memories
	stored   *storedTargets
	tallies  *tallies
	costs    *costs

	nodes     *nodeReconciler
	problems  *problems
	forecasts *forecasts
	// stallTimeout is how long nothing may move before the drain counts as stalled, completedTTL
	// how long a completed maintenance is kept, 0 for ever.
	stallTimeout, completedTTL time.Duration
	// budgetPatience is how long the budget of a DaemonSet pod may be closed before the pod is
	// kept.
	budgetPatience time.Duration
}

// New makes a controller and registers its handlers and indexes; the informers must not run yet. A
// controller runs once.
func New(config Config) (*Controller, error) {
	registerMetrics()
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.DaemonSetBudgetPatience == 0 {
		config.DaemonSetBudgetPatience = defaultBudgetPatience
	}
	if config.StallTimeout == 0 {
		config.StallTimeout = DefaultStallTimeout
	}
	nodes, pods := config.HostInformers.Core().V1().Nodes(), config.HostInformers.Core().V1().Pods()
	volumes := config.HostInformers.Storage().V1().VolumeAttachments()
	daemonSets, priorityClasses := config.HostInformers.Apps().V1().DaemonSets(), config.HostInformers.Scheduling().V1().PriorityClasses()
	maintenances := config.MaintenanceInformers.Maintenance().V1alpha1().NodeMaintenances()
	evacuations := config.MaintenanceInformers.Maintenance().V1alpha1().Evacuations()
	c := &Controller{
		host: config.Host, maintenance: config.Maintenance, recorder: config.Recorder, clock: config.Clock, evacuators: config.Evacuators,
		evictionsInFlight: config.EvictionsInFlight,
		maintenanceLister: maintenances.Lister(), evacuationLister: evacuations.Lister(), nodeLister: nodes.Lister(), podLister: controllercache.PodLister(pods.Informer().GetIndexer()),
		podIndexer: pods.Informer().GetIndexer(), nodeIndexer: nodes.Informer().GetIndexer(), evacuationIndexer: evacuations.Informer().GetIndexer(),
		volumeIndexer: volumes.Informer().GetIndexer(), daemonSetLister: daemonSets.Lister(), priorityClassLister: priorityClasses.Lister(),
		queue: loop.NewQueue(loop.Config[string]{
			Name: Name, Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, Failed: func() { syncErrors.Inc() },
			LogAs: func(item string) (string, any) { return "nodeMaintenance", item },
		}),
		selection: newSelection(config.Clock),
		cordons:   newCordonWatch(config.Clock),
		taints:    newCordonWatch(config.Clock),
		written:   newWrittenStatuses(config.Clock),
		confirmed: newConfirmations(config.Clock),
		requested: newRequestedEvacuations(config.Clock),
		ownPod:    config.OwnPod,
		views:     newViews(),
		memories:  newMemories(),
		stored:    newStoredTargets(),
		tallies:   &tallies{byName: map[string]tally{}},
		costs:     &costs{byItem: map[string]time.Duration{}},
		problems:  newProblems(config.Clock), stallTimeout: config.StallTimeout, budgetPatience: config.DaemonSetBudgetPatience, completedTTL: config.CompletedTTL,
	}
	c.rights = noderights.NewCache(noderights.CacheConfig{
		Authorizer: config.Authorizer, EveryByName: config.AskEveryNodeByName, Clock: config.Clock, Answered: c.rightsKnown,
	})
	c.nodes = newNodeReconciler(c, config)
	c.forecasts = newForecasts(c, config)
	if err := errors.Join(
		controllercache.AddPodsByNode(pods.Informer()),
		controllercache.AddIndex(nodes.Informer(), nodesByOwner, indexNodeByOwner),
		controllercache.AddIndex(nodes.Informer(), nodesByConditionsOf, indexNodeByConditionsOf),
		controllercache.AddEvacuationsByNode(evacuations.Informer()),
		controllercache.AddIndex(volumes.Informer(), attachedByNode, indexAttachedByNode),
	); err != nil {
		return nil, fmt.Errorf("add indexes: %w", err)
	}
	return c, c.watch(maintenances.Informer(), nodes.Informer(), pods.Informer(), evacuations.Informer(), volumes.Informer(),
		daemonSets.Informer(), priorityClasses.Informer())
}

// Run works until the context ends, and returns when the last write is done. The informers must
// have been started.
func (c *Controller) Run(ctx context.Context, workers int) {
	logger := klog.FromContext(ctx).WithName(Name)
	ctx = klog.NewContext(ctx, logger)
	defer c.queue.ShutDown()
	defer c.nodes.queue.ShutDown()
	defer c.forecasts.queue.ShutDown()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return
	}
	logger.Info("Controller starts", "workers", workers)
	c.queue.Add(sweepItem)
	var wg sync.WaitGroup
	wg.Go(func() { c.queue.Run(ctx, workers, c.timedSync) })
	wg.Go(func() { c.nodes.queue.Run(ctx, nodeWorkers, c.nodes.reconcile) })
	wg.Go(func() { c.forecasts.queue.Run(ctx, forecastWorkers, c.forecasts.reconcile) })
	wg.Go(func() { c.rights.Run(ctx) })
	wait.UntilWithContext(ctx, c.resync, resync)
	wg.Wait()
	c.tallies.reset()
}

// resync has everything looked at again: it only heals what was missed.
func (c *Controller) resync(context.Context) {
	for _, obj := range c.maintenances() {
		c.queue.Add(obj.Name)
	}
	c.queue.Add(sweepItem)
	c.nodes.enqueueAll()
}

// timedSync is sync, which remembers how long it took.
func (c *Controller) timedSync(ctx context.Context, item string) error {
	started := c.clock.Now()
	err := c.sync(ctx, item)
	c.noteSync(ctx, item, err)
	took := c.clock.Since(started)
	syncDuration.Observe(took.Seconds())
	c.costs.set(item, took)
	return err
}

// noteSync remembers why a sync failed. What has failed for long enough is shown on the maintenance
// even if nothing else of its status can be worked out.
func (c *Controller) noteSync(ctx context.Context, item string, err error) {
	if item == sweepItem || err != nil && (loop.IsOnlyConflict(err) || ctx.Err() != nil) {
		return
	}
	if c.problems.note(item, "sync", err) {
		c.queue.Add(item) // the status still shows it
	}
	var shown shownError
	if err == nil || errors.As(err, &shown) {
		return
	}
	nm, getErr := c.get(item)
	if getErr != nil || isDone(nm) {
		return
	}
	if status, visible := c.showFailure(nm); visible {
		c.tally(nm, status)
		written, writeErr := c.writeStatus(ctx, nm, *status)
		if writeErr != nil {
			klog.FromContext(ctx).Error(writeErr, "Cannot show on the object why its sync fails")
			return
		}
		c.announceProgressing(nm, written)
	}
}

func (c *Controller) sync(ctx context.Context, item string) error {
	if item == sweepItem {
		return c.sweepEvacuations(ctx)
	}
	nm, err := c.get(item)
	if apierrors.IsNotFound(err) {
		c.forget(item)
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.selection.setMaintenance(nm); err != nil {
		return err
	}
	switch {
	case nm.DeletionTimestamp != nil && len(nm.Finalizers) == 0:
		return c.finishDeletion(ctx, nm)
	case isEnding(nm):
		return c.complete(ctx, nm)
	case nm.Spec.Stage == maintenancev1alpha1.NodeMaintenanceStageCordon, nm.Spec.Stage == maintenancev1alpha1.NodeMaintenanceStageDrain:
		return c.hold(ctx, nm)
	default:
		return c.syncIdle(ctx, nm)
	}
}

// isEnding says whether a maintenance gives back what it holds.
func isEnding(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return nm.DeletionTimestamp != nil || nm.Spec.Stage == maintenancev1alpha1.NodeMaintenanceStageComplete
}

// isHolding says whether a maintenance keeps nodes cordoned.
func isHolding(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return !isEnding(nm) &&
		(nm.Spec.Stage == maintenancev1alpha1.NodeMaintenanceStageCordon || nm.Spec.Stage == maintenancev1alpha1.NodeMaintenanceStageDrain)
}

// isDraining says whether a maintenance asks pods to leave.
func isDraining(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return isHolding(nm) && nm.Spec.Stage == maintenancev1alpha1.NodeMaintenanceStageDrain
}

// get returns a maintenance as the cache has it, or as this controller wrote it if that is newer.
func (c *Controller) get(name string) (*maintenancev1alpha1.NodeMaintenance, error) {
	nm, err := c.maintenanceLister.Get(name)
	if err != nil {
		return nil, err
	}
	if written := c.written.latest(name); written != nil && written.UID == nm.UID {
		if order, err := resourceversion.CompareResourceVersion(written.ResourceVersion, nm.ResourceVersion); err == nil && order >= 0 {
			return written, nil
		}
	}
	return nm, nil
}

// forget drops what is remembered of a maintenance that is gone.
func (c *Controller) forget(name string) {
	c.selection.removeMaintenance(name)
	c.written.remove(name)
	c.confirmed.remove(name)
	c.memories.remove(name)
	c.stored.remove(name)
	c.tallies.remove(name)
	c.problems.remove(name)
	c.costs.set(name, 0)
	c.retainViews()
}

// retainViews forgets what is on nodes that no maintenance looks at any more.
func (c *Controller) retainViews() {
	c.views.retain(func(node string) bool {
		return slices.ContainsFunc(c.selection.maintenancesOn(node), func(name string) bool {
			nm, err := c.get(name)
			return err == nil && !isDone(nm)
		})
	})
}

// costs remembers how long the last sync of each item took.
type costs struct {
	mu     sync.Mutex
	byItem map[string]time.Duration
}

func (c *costs) set(item string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if took <= debounce {
		delete(c.byItem, item)
		return
	}
	c.byItem[item] = min(took, maxDebounce)
}

// debounce returns how long to gather events before an item is looked at.
func (c *costs) debounce(item string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(debounce, c.byItem[item])
}
