// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package evacuation makes the evacuators of each Evacuation active, one after the other. After the
// last one, it evicts the pod through a queue.
//
// A sync gathers all inputs, decides with a pure function, and acts. A new leader finds all state
// that it needs in the status of the objects.
//
// These records are kept in memory and may be lost at any time:
//
//   - departed: the pods that a watch has reported as deleted. Other pods are read live.
//   - down and pins: the pods of a namespace that are down, and the nodes that they are limited to.
//     They are read again.
//   - surplus: the surplus complete Evacuations of a namespace. They are found again.
//   - failures: the Evacuations whose writes fail. They are reported a minute later.
//   - hung: the Evacuations whose writes hang. One more sync of each hangs.
//   - reporters: the evacuators that have reported. A new leader finds those of the Evacuations
//     that still exist. It waits for a shorter time for the first report of the others.
//   - arrivals: when the pods of Evacuations were created, and which of them had returned. A new
//     leader counts from zero.
package evacuation

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Name is the name of this controller in logs, metrics and queues.
const Name = "evacuation"

// The defaults of the options.
const (
	DefaultCompletedTTL           = 5 * time.Minute
	DefaultEvacuatorStartDeadline = 5 * time.Minute
)

// withdrawalPatience is the time after which an Evacuation is reconciled again if no maintenance
// drains its pod any more and the nodemaintenance controller has not withdrawn it yet.
const withdrawalPatience = time.Second

const (
	// syncTimeout is the deadline of one sync. A webhook may hang for up to 30 s, and Evacuations
	// of other namespaces wait for the same workers.
	syncTimeout = 5 * time.Second
	// hangsAfter is the minimum time after which a failed sync counts as hanging. Such an
	// Evacuation is reconciled by hangingWorkers, with hangingTimeout as the deadline of a sync. It
	// is longer because a webhook with failurePolicy Ignore lets the write pass after its own
	// timeout.
	hangsAfter     = time.Second
	hangingTimeout = 30 * time.Second
	hangingWorkers = 2
)

// Config has the dependencies and options of the controller.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Selection has the maintenances that select the node of a pod.
	Selection *selection.Selection
	// State has the nodes that workers have in their hands. It is shared with the nodemaintenance
	// controller.
	State *nodestate.State
	// Clock is the clock; nil means the real one.
	Clock clock.WithTicker
	// Liveness tracks which item each worker processes; nil disables tracking.
	Liveness *loop.Tracker
	// CompletedTTL is how long Evacuations are kept after their pod has left; 0 means the default.
	CompletedTTL time.Duration
	// EvacuatorStartDeadline is the time within which an evacuator has to send its first report, if
	// its class has not reported before; 0 means the default.
	EvacuatorStartDeadline time.Duration
	// EvictionPolicy defines how evictions are sent; the zero value means the default.
	EvictionPolicy eviction.Policy
	// Evictions sends the evictions.
	Evictions eviction.Host
	// SurgeTimeout returns how long the evacuator of Deployments may make no progress with a pod
	// before the condition Blocked reports SurgePending. It must not block. Nil means
	// protocol.DefaultSurgeTimeout for all pods.
	SurgeTimeout func(pod *corev1.Pod) time.Duration
	// Standing returns the reason why a pod must not leave, nil if there is no reason. class is the
	// active class: the evacuator of Deployments or eviction. It must not block. Nil means that
	// every pod may leave.
	Standing func(pod *corev1.Pod, class string) *eviction.Blocker
	// NotReplaced returns the Deployment of a pod that is not scaled up before its pods leave,
	// whatever their budgets, and the reason as a phrase that follows its name. It must not block.
	// Nil means that there is no such Deployment.
	NotReplaced func(pod *corev1.Pod) (deployment, why string)
	// DaemonSetBudgetPatience is how long the budget of a DaemonSet pod may allow no disruption
	// before the pod is kept on its node; 0 means the default.
	DaemonSetBudgetPatience time.Duration
	// RawEvictionTTL is how long an Evacuation that was made for an eviction is kept after the last
	// eviction of its pod; 0 means the default.
	RawEvictionTTL time.Duration
	// LongGrace is how long a terminating pod may be stopping within its grace period before the
	// condition Blocked reports LongGracePeriod; 0 means the default.
	LongGrace time.Duration
}

func (c *Config) setDefaults() {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.CompletedTTL == 0 {
		c.CompletedTTL = DefaultCompletedTTL
	}
	if c.EvacuatorStartDeadline == 0 {
		c.EvacuatorStartDeadline = DefaultEvacuatorStartDeadline
	}
	if c.EvictionPolicy == (eviction.Policy{}) {
		c.EvictionPolicy = eviction.DefaultPolicy()
	}
	if c.Standing == nil {
		c.Standing = func(*corev1.Pod, string) *eviction.Blocker { return nil }
	}
	if c.NotReplaced == nil {
		c.NotReplaced = func(*corev1.Pod) (string, string) { return "", "" }
	}
	if c.SurgeTimeout == nil {
		c.SurgeTimeout = func(*corev1.Pod) time.Duration { return protocol.DefaultSurgeTimeout }
	}
	if c.DaemonSetBudgetPatience == 0 {
		c.DaemonSetBudgetPatience = protocol.DefaultBudgetPatience
	}
	if c.RawEvictionTTL == 0 {
		c.RawEvictionTTL = protocol.DefaultRawEvictionTTL
	}
	if c.LongGrace == 0 {
		c.LongGrace = protocol.DefaultLongGrace
	}
}

// evictions is the part of the queue of evictions that the controller uses.
type evictions interface {
	Add(eviction.Request)
	Remove(evacuation types.NamespacedName)
	State(evacuation types.NamespacedName) eviction.State
	Run(ctx context.Context)
}

// Controller reconciles Evacuations.
type Controller struct {
	host        kubernetes.Interface
	maintenance versioned.Interface
	recorder    events.EventRecorder
	clock       clock.WithTicker
	evictions   evictions

	completedTTL   time.Duration
	startDeadline  time.Duration
	budgetPatience time.Duration
	longGrace      time.Duration
	rawEvictionTTL time.Duration
	surgeTimeout   func(*corev1.Pod) time.Duration
	standing       func(*corev1.Pod, string) *eviction.Blocker
	notReplaced    func(*corev1.Pod) (deployment, why string)
	// servingSince is the time at which this leader started. It is set before the first worker
	// starts.
	servingSince time.Time

	evacuationLister maintenancelisters.EvacuationLister
	// draining returns the maintenances in stage Drain.
	draining          func() ([]*v1alpha1.NodeMaintenance, error)
	evacuationIndexer cache.Indexer
	pods              *podcache.Pods
	podLister         corelisters.PodLister
	nodeLister        corelisters.NodeLister
	// selection has the nodes of a maintenance, and holders returns the maintenances that select a
	// node.
	selection    *selection.Selection
	state        *nodestate.State
	holders      holds.Index
	budgetLister policylisters.PodDisruptionBudgetLister
	synced       []cache.InformerSynced

	// queue has the keys of Evacuations. A key without a name makes a worker count the complete
	// Evacuations of the namespace.
	queue *loop.Queue[types.NamespacedName]
	// hanging has the Evacuations whose last sync hung, so that other Evacuations do not wait for
	// them.
	hanging *loop.Queue[types.NamespacedName]
	// departed are the pods whose deletion a watch has reported. Without it, a sync would have to
	// read each of them from the API server. A UID is never reused.
	departed loop.Memory[types.UID, struct{}]
	arrivals arrivals
	// surplus has, by namespace, the complete Evacuations that are to be deleted before the end of
	// their TTL. Any replica can find them again.
	surplus loop.Memory[string, sets.Set[types.UID]]
	// reporters are the evacuators that have reported.
	reporters reporters
	// failures are the Evacuations that cannot be reconciled, with the error. hung are the failed
	// Evacuations whose last sync took long.
	failures *loop.Failures[types.NamespacedName]
	hung     loop.Memory[types.NamespacedName, struct{}]
	// down has the pods of each namespace that are down. pins has the nodes that pods without a
	// node are limited to. Both are valid for a moment, then they are read again.
	down loop.Memory[string, knownDown]
	pins loop.Memory[types.NamespacedName, *knownPin]
}

// New creates a controller and registers its handlers and indexes; the informers must not run yet.
// A controller runs once.
func New(config Config) (*Controller, error) {
	registerMetrics()
	config.setDefaults()
	maintenances, evacuations := config.Cluster.NodeMaintenances, config.Cluster.Evacuations
	c := &Controller{
		host: config.Cluster.Unlimited, maintenance: config.Cluster.Maintenance, recorder: config.Cluster.Recorder, clock: config.Clock,
		selection:    config.Selection,
		state:        config.State,
		holders:      holds.Index{On: config.Selection.MaintenancesOn, Get: maintenances.Lister().Get},
		completedTTL: config.CompletedTTL, startDeadline: config.EvacuatorStartDeadline,
		budgetPatience: config.DaemonSetBudgetPatience, longGrace: config.LongGrace, rawEvictionTTL: config.RawEvictionTTL,
		surgeTimeout: config.SurgeTimeout, standing: config.Standing, notReplaced: config.NotReplaced,
		budgetLister:     config.Cluster.Budgets.Lister(),
		evacuationLister: evacuations.Lister(), evacuationIndexer: evacuations.Informer().GetIndexer(),
		draining: config.Cluster.Draining, pods: config.Cluster.Pods, podLister: config.Cluster.Pods.Lister(), nodeLister: config.Cluster.Nodes.Lister(),
		queue: loop.NewQueue(loop.Config[types.NamespacedName]{
			Name: Name, Backoff: 5 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, Failed: func() { syncErrors.Inc() },
			LogAs: func(key types.NamespacedName) (string, any) { return "evacuation", key },
		}),
		hanging: loop.NewQueue(loop.Config[types.NamespacedName]{
			Name: Name + "-hanging", Backoff: time.Second, Clock: config.Clock, Liveness: config.Liveness, Busy: Name + " hanging",
			Failed: func() { syncErrors.Inc() },
			LogAs:  func(key types.NamespacedName) (string, any) { return "evacuation", key },
		}),
		failures: loop.NewFailures[types.NamespacedName](config.Clock, nil),
	}
	queue, err := eviction.New(eviction.Config{
		Owners: config.Cluster.Owners,
		Host:   config.Evictions, Pods: config.Cluster.Pods, Budgets: config.Cluster.Budgets, Clock: config.Clock,
		Policy:   config.EvictionPolicy,
		InFlight: config.Cluster.InFlight,
		Wanted:   c.isWanted,
		Changed:  func(evacuation types.NamespacedName) { c.queue.Add(evacuation) },
		Evicted:  c.sendEvicted,
	})
	if err != nil {
		return nil, fmt.Errorf("queue of evictions: %w", err)
	}
	c.evictions = queue
	config.Selection.Subscribe(selection.Subscriber{Maintenance: c.maintenanceChanged})
	c.synced = append(c.synced, maintenances.Informer().HasSynced, config.Selection.HasSynced, config.State.HasSynced)
	return c, c.watch(evacuations.Informer(), config.Cluster.Nodes.Informer(), config.Cluster.Pods)
}

// isWanted reports whether, according to the caches, the pod of an Evacuation still has to be
// evicted by the server. The nodemaintenance controller needs a moment to withdraw many
// Evacuations, and after a change of the leader it may start later than this controller. Until the
// Evacuation is withdrawn, it is reconciled repeatedly.
func (c *Controller) isWanted(r eviction.Request) bool {
	evacuation, err := c.evacuationLister.Evacuations(r.Evacuation.Namespace).Get(r.Evacuation.Name)
	switch {
	case err != nil || evacuation.Spec.PodRef.UID != r.UID:
		return false
	case c.mustStay(r):
		// The pod got a reason to stay after the last decision. Decide again.
		c.queue.AddAfter(r.Evacuation, waitRetry)
		return false
	case protocol.IsWithdrawn(evacuation):
		return c.isHeldAndTargeted(evacuation)
	case protocol.OnlyEvictionAsks(evacuation):
		// The other instigators have withdrawn after the last decision.
		return false
	case !c.Asks(evacuation):
		c.queue.AddAfter(r.Evacuation, withdrawalPatience)
		return false
	}
	return true
}

// mustStay reports whether the pod of a request must not leave. A pod that is not replaced first
// only waits for the end of a scale-down under its budget.
func (c *Controller) mustStay(r eviction.Request) bool {
	pod, err := c.podLister.Pods(r.Evacuation.Namespace).Get(r.Pod)
	if err != nil {
		return false
	}
	why := c.standing(pod, v1alpha1.EvacuatorClassEviction)
	return why != nil && (r.ReplacedFirst || why.Reason == v1alpha1.ReasonPodWaits)
}

// Asks reports whether, according to the caches, an Evacuation that is not withdrawn still asks its
// pod to leave. If it does so for maintenances alone, one of them must still drain the node of the
// pod, and must not be paused. This is the last check before an eviction is sent, and before a
// scale-down that deletes the pod. So neither follows a pause that the cache has, a claim that this
// process has granted, or the end of the only maintenance that asks.
func (c *Controller) Asks(evacuation *v1alpha1.Evacuation) bool {
	return !protocol.OnlyMaintenancesDecide(evacuation) || c.isDrained(evacuation)
}

// isDrained reports whether a maintenance drains the node of the pod of an Evacuation and no worker
// stops it, the pod is not paused, and no drain plan keeps it. The nodemaintenance controller reads
// the same caches before it requests an Evacuation.
func (c *Controller) isDrained(evacuation *v1alpha1.Evacuation) bool {
	pod, err := c.podLister.Pods(evacuation.Namespace).Get(evacuation.Spec.PodRef.Name)
	if err != nil {
		return false
	}
	node, err := c.nodeLister.Get(pod.Spec.NodeName)
	if err != nil {
		return false
	}
	hands := c.state.HandsOn(node)
	return c.holders.Any(node.Name, func(nm *v1alpha1.NodeMaintenance) bool {
		return v1alpha1.IsDraining(nm) && !hands.Stops(nm, node.Name)
	}) && c.pausedBy(evacuation, pod) == nil && !c.stays(pod)
}

// isHeldAndTargeted reports whether a maintenance still drains the pod of an Evacuation that only
// foreign finalizers keep.
func (c *Controller) isHeldAndTargeted(evacuation *v1alpha1.Evacuation) bool {
	if !isDeadButHeld(evacuation) {
		return false
	}
	pod, err := c.podLister.Pods(evacuation.Namespace).Get(evacuation.Spec.PodRef.Name)
	if err != nil || pod.UID != evacuation.Spec.PodRef.UID {
		return false
	}
	nm, err := c.askedBy(pod)
	return err == nil && nm != nil
}

// Run runs the controller until the context ends, and returns after the last write. The informers
// must have been started.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer c.queue.ShutDown()
	defer c.hanging.ShutDown()
	ctx, ok := loop.Start(ctx, Name, workers, c.synced...)
	if !ok {
		return
	}
	c.servingSince = c.clock.Now()
	var wg sync.WaitGroup
	wg.Go(func() { loop.Gauges(ctx, c.evacuations, publishBlocked) })
	wg.Go(func() { c.evictions.Run(ctx) })
	wg.Go(func() { c.queue.Run(ctx, workers, c.sync) })
	wg.Go(func() { c.hanging.Run(ctx, hangingWorkers, c.syncHanging) })
	wait.UntilWithContext(ctx, c.resync, loop.Resync)
	wg.Wait()
}

// resync enqueues all Evacuations, in case an event was missed.
func (c *Controller) resync(context.Context) {
	c.arrivals.sweep(c.clock.Now())
	for _, evacuation := range c.evacuations() {
		c.queue.Add(keyOf(evacuation))
	}
}

func (c *Controller) evacuations() []*v1alpha1.Evacuation {
	return loop.All(c.evacuationLister.List)
}

// sync reconciles an Evacuation, unless its last sync hung, or counts the complete Evacuations of a
// namespace. The two queues never reconcile the same Evacuation at the same time, since an
// Evacuation moves to the other queue only at the end of its sync.
func (c *Controller) sync(ctx context.Context, key types.NamespacedName) error {
	if key.Name == "" {
		return c.findSurplus(key.Namespace)
	}
	if c.hangs(key) {
		c.hanging.Add(key)
		return nil
	}
	return c.reconcileWithin(ctx, syncTimeout, key)
}

// syncHanging reconciles an Evacuation whose last sync hung.
func (c *Controller) syncHanging(ctx context.Context, key types.NamespacedName) error {
	if !c.hangs(key) {
		c.queue.Add(key)
		return nil
	}
	return c.reconcileWithin(ctx, hangingTimeout, key)
}

func (c *Controller) reconcileWithin(ctx context.Context, timeout time.Duration, key types.NamespacedName) error {
	begun := c.clock.Now()
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := c.reconcile(bounded, key)
	c.noteOutcome(ctx, key, err, c.clock.Since(begun) >= hangsAfter)
	return err
}

func (c *Controller) reconcile(ctx context.Context, key types.NamespacedName) error {
	evacuation, err := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.evictions.Remove(key)
		return nil
	}
	if err != nil {
		return err
	}
	s, err := c.gather(ctx, evacuation)
	if err != nil {
		return err
	}
	d := decide(s)
	if s.pod != nil && d.isForPeople() {
		nm, err := c.askedBy(s.pod)
		if err != nil {
			return err
		}
		d.mention(nm)
	}
	return c.act(ctx, s, d)
}

// noteOutcome sends an event about an error that prevents the reconciliation of an Evacuation, and
// records whether the sync took long. It sends one event for each error text. A conflict is neither
// a failure nor a success.
func (c *Controller) noteOutcome(ctx context.Context, key types.NamespacedName, err error, tookLong bool) {
	if err == nil {
		c.failures.Forget(key)
		c.hung.Forget(key)
		return
	}
	if ctx.Err() != nil || loop.IsOnlyConflict(err) {
		return
	}
	if tookLong {
		c.hung.Set(key, struct{}{})
	} else {
		c.hung.Forget(key)
	}
	c.failures.Note(key, "", protocol.OneLine(err.Error(), protocol.MaxMessage/2))
	failure, _ := c.failures.Of(key)
	if failure == nil || !c.failures.Tell(key, failure.Text) {
		return
	}
	evacuation, err := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
	if err != nil {
		if apierrors.IsNotFound(err) {
			c.failures.Forget(key)
			c.hung.Forget(key)
		}
		return
	}
	c.send(evacuation, []event{{corev1.EventTypeWarning, EventBlocked, actionEvacuate,
		fmt.Sprintf("Evacuation of pod %s failed and will be retried: %s", evacuation.Spec.PodRef.Name, failure.Text)}})
}

// hangs reports whether the last sync of an Evacuation took long and failed.
func (c *Controller) hangs(key types.NamespacedName) bool {
	_, hung := c.hung.Get(key)
	return hung
}
