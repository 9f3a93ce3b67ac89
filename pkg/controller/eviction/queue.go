// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/podcache"
)

// probeInterval is how often the closed lanes together may ask the API whether it sees what the
// cache does: ten times a minute.
const probeInterval = 6 * time.Second

// Request asks that a pod be evicted.
type Request struct {
	// Evacuation is whom the eviction is for. The pod is in its namespace.
	Evacuation types.NamespacedName
	// Pod and UID identify the pod.
	Pod string
	UID types.UID
	// ReplacedFirst: the evacuator of Deployments is among those of the Evacuation, so the owner of
	// the pod's Deployment may have the pod replaced before it leaves.
	ReplacedFirst bool
	// FailedEvictions is the counter from which to go on.
	FailedEvictions int32
	// Blocker is what is known to have blocked the pod before, so that a restart does not forget it
	// for a while.
	Blocker *Blocker
}

// Blocker is what keeps a pod from being evicted.
type Blocker struct {
	// Reason is a reason of the condition Blocked.
	Reason string
	// Message names what blocks and says what can be done about it.
	Message string
}

// State is how far the eviction of a pod is.
type State struct {
	// Known is false if the eviction was not asked for; the rest is then empty.
	Known bool
	// FailedEvictions counts the calls that were refused because of a budget.
	FailedEvictions int32
	// Blocker is nil while nothing blocks the pod. A pod that merely waits for its turn is not
	// blocked.
	Blocker *Blocker
	// Budget is the only PodDisruptionBudget that selects the pod; its name is empty if none or
	// several do, or if that is not known yet.
	Budget types.NamespacedName
	// Message says in a sentence or two what a pod waits for that is not blocked, or not yet; empty
	// if there is nothing to say.
	Message string
}

// Config is what a Queue needs.
type Config struct {
	// Host is the cluster whose pods are evicted.
	Host Host
	// Pods and Budgets are shared informers of the same cluster. New registers its handlers; the
	// caller starts them.
	Pods    *podcache.Pods
	Budgets policyinformers.PodDisruptionBudgetInformer
	Clock   clock.WithTicker
	// Policy is how evictions are sent.
	Policy Policy
	// Owners tells which pods without budgets take turns; nil has none take turns.
	Owners Owners
	// Changed is called when the State of an Evacuation's pod has changed. It must not block nor
	// call the Queue.
	Changed func(evacuation types.NamespacedName)
	// Wanted reports whether there still is the Evacuation that a request was made for, when its
	// eviction is about to be sent. It must not block nor call the Queue. Nil says yes.
	Wanted func(Request) bool
	// InFlight takes in the evictions in flight; nil keeps them for the queue alone.
	InFlight *inflight.Evictions
	// Evicted is called with the pod, as it was before, when its eviction was accepted; protected
	// is whether a budget selects it. The call that evicted the pod counts as in flight until it
	// returns. Nil is not called.
	Evicted func(pod *corev1.Pod, protected bool)
}

// Policy is how evictions are sent. All of it has options of the server.
type Policy struct {
	// MaxConcurrent bounds the evictions in flight, for all pods together.
	MaxConcurrent int
	// DeniedAfter is how long admission has to refuse a pod before the pod is called blocked.
	// KubeVirt refuses to evict virtual machines and migrates them in that time.
	DeniedAfter time.Duration
	// UnprotectedMaxUnavailable is how many pods of an owner without a budget may be missing, at
	// least one; 100% bounds nothing.
	UnprotectedMaxUnavailable Percent
	// UnprotectedPatience is how long after an eviction the next share of an owner's pods goes
	// although others are still missing.
	UnprotectedPatience time.Duration
}

// DefaultPolicy returns the defaults of the options.
func DefaultPolicy() Policy {
	return Policy{
		MaxConcurrent: DefaultMaxConcurrent, DeniedAfter: 5 * time.Minute, UnprotectedMaxUnavailable: 25, UnprotectedPatience: 5 * time.Minute,
	}
}

// Queue evicts the pods it is given, each once, in an order that empties the budgets without
// breaking or overrunning them.
type Queue struct {
	host    Host
	pods    corelisters.PodLister
	clock   clock.WithTicker
	changed func(types.NamespacedName)
	wanted  func(Request) bool
	evicted func(pod *corev1.Pod, protected bool)
	// underway are the evictions in flight, for others to read.
	underway *inflight.Evictions
	synced   []cache.InformerSynced
	// kick wakes the loop of Run.
	kick chan struct{}

	// mu guards everything below.
	mu      sync.Mutex
	budgets *pdb.Index
	items   map[types.NamespacedName]*item
	byUID   map[types.UID]*item
	// sent are the items that were removed after their eviction had been sent. A pod that is asked
	// to leave again, for the same or another Evacuation, gets its item back: its eviction must not
	// be sent twice.
	sent  map[types.UID]*item
	free  *lane
	lanes map[types.NamespacedName]*lane
	// ring has all lanes, in the order in which they get their turns; turn is whose is next.
	ring []*lane
	turn int
	// resting are the items that wait for a time.
	resting itemHeap
	probes  flowcontrol.PassiveRateLimiter

	// stepped is whether the queue has begun to send.
	stepped bool
	// churn are the changes of budgets that are still to be evaluated, by namespace.
	churn map[string]*churn
	// inNamespace are the items by namespace.
	inNamespace map[string]map[*item]struct{}

	concurrency concurrency
	// inFlight are the calls in flight, and budgeted those of them for pods with budgets.
	inFlight, budgeted int
	// tries counts the calls.
	tries  uint64
	policy Policy
	// owners is nil if no pods take turns. ownerLanes are the lanes of pods that do, by their
	// owner, byController the owners by the controllers of their pods, and ownerOf the owners by
	// the UIDs of the pods that they count.
	owners       Owners
	ownerLanes   map[ownerKey]*lane
	byController map[ownerKey]*owned
	ownerOf      map[types.UID]*owned
	// overloadedBy is the pod whose eviction was last answered with overload; empty after any
	// answer that was not.
	overloadedBy types.UID
	// pausedUntil is until when the API server wants to be left alone.
	pausedUntil time.Time
}

// New returns a Queue that evicts nothing before it runs.
func New(cfg Config) (*Queue, error) {
	if cfg.Policy.MaxConcurrent < 1 {
		return nil, fmt.Errorf("max concurrent evictions is %d, must be at least 1", cfg.Policy.MaxConcurrent)
	}
	if cfg.Wanted == nil {
		cfg.Wanted = func(Request) bool { return true }
	}
	if cfg.InFlight == nil {
		cfg.InFlight = &inflight.Evictions{}
	}
	if cfg.Evicted == nil {
		cfg.Evicted = func(*corev1.Pod, bool) {}
	}
	registerMetrics()
	q := &Queue{
		host:    cfg.Host,
		pods:    cfg.Pods.Lister(),
		clock:   cfg.Clock,
		changed: cfg.Changed,
		wanted:  cfg.Wanted,
		evicted: cfg.Evicted, underway: cfg.InFlight,
		kick:    make(chan struct{}, 1),
		budgets: pdb.NewIndex(nil),
		items:   map[types.NamespacedName]*item{},
		byUID:   map[types.UID]*item{},
		sent:    map[types.UID]*item{},
		lanes:   map[types.NamespacedName]*lane{},
		resting: itemHeap{less: (*item).dueBefore},
		probes:  flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(1/probeInterval.Seconds()), 1, cfg.Clock),
		churn:   map[string]*churn{}, inNamespace: map[string]map[*item]struct{}{},
		concurrency: concurrency{limit: cfg.Policy.MaxConcurrent, most: cfg.Policy.MaxConcurrent},
		policy:      cfg.Policy, ownerLanes: map[ownerKey]*lane{}, byController: map[ownerKey]*owned{}, ownerOf: map[types.UID]*owned{},
	}
	if cfg.Owners != nil && cfg.Policy.UnprotectedMaxUnavailable < 100 {
		q.owners = cfg.Owners
		q.synced = append(q.synced, cfg.Owners.HasSynced)
	}
	q.free = newLane(types.NamespacedName{}, nil, cfg.Clock.Now())
	q.ring = []*lane{q.free}

	pods, err := cfg.Pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { q.podChanged(obj, false) },
		UpdateFunc: func(_, obj any) { q.podChanged(obj, false) },
		DeleteFunc: func(obj any) { q.podChanged(obj, true) },
	})
	if err != nil {
		return nil, err
	}
	budgets, err := cfg.Budgets.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    q.budgetSet,
		UpdateFunc: func(_, obj any) { q.budgetSet(obj) },
		DeleteFunc: q.budgetRemoved,
	})
	if err != nil {
		return nil, err
	}
	q.synced = append(q.synced, pods.HasSynced, budgets.HasSynced)
	return q, nil
}

// Run evicts until ctx is done, and returns when the last answer has come.
func (q *Queue) Run(ctx context.Context) {
	if !cache.WaitForNamedCacheSyncWithContext(ctx, q.synced...) {
		return
	}
	var calls sync.WaitGroup
	defer func() {
		calls.Wait()
		evictionsInFlight.Set(0)
		countLanes(nil)
	}()
	for {
		wake := q.step(ctx, &calls)
		var timer clock.Timer
		var expired <-chan time.Time
		if !wake.IsZero() {
			timer = q.clock.NewTimer(wake.Sub(q.clock.Now()))
			expired = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-q.kick:
		case <-expired:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// Add asks for a pod to be evicted. Asking again for the same Evacuation changes nothing.
func (q *Queue) Add(r Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it, known := q.items[r.Evacuation]; known {
		if it.phase == phaseParked {
			q.place(it, q.clock.Now())
			q.wake()
		}
		return
	}
	it, sent := q.sent[r.UID]
	if sent {
		delete(q.sent, r.UID)
	} else {
		it = &item{phase: phaseWaiting}
	}
	it.Request, it.added, it.failed, it.matched = r, q.clock.Now(), r.FailedEvictions, false
	it.inherit(r.Blocker, q.policy.DeniedAfter, it.added)
	q.items[r.Evacuation] = it
	if q.inNamespace[r.Evacuation.Namespace] == nil {
		q.inNamespace[r.Evacuation.Namespace] = map[*item]struct{}{}
	}
	q.inNamespace[r.Evacuation.Namespace][it] = struct{}{}
	q.byUID[r.UID] = it
	if !sent {
		q.place(it, it.added)
		q.wake()
	}
}

// Remove gives up the eviction of an Evacuation's pod. One that has been sent cannot be called
// back.
func (q *Queue) Remove(evacuation types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it, known := q.items[evacuation]
	if !known {
		return
	}
	delete(q.items, evacuation)
	if delete(q.inNamespace[evacuation.Namespace], it); len(q.inNamespace[evacuation.Namespace]) == 0 {
		delete(q.inNamespace, evacuation.Namespace)
	}
	if q.byUID[it.UID] == it {
		delete(q.byUID, it.UID)
	}
	if it.phase == phaseInFlight || it.phase == phaseAccepted && q.isStillThere(it) {
		// One that is accepted rests until it is forgotten.
		q.sent[it.UID] = it
		return
	}
	it.leaveHeap()
	q.leaveLane(it)
}

// forget drops what is remembered of an eviction that was sent for an item that is no longer
// requested.
func (q *Queue) forget(it *item) {
	// A pod that has left the cache is missing until its event says so: the owner still counts it
	// as available, and others would go in its place.
	if it.takenFrom != nil && q.isStillThere(it) {
		delete(it.takenFrom.taken, it.UID)
	}
	it.leaveHeap()
	q.underway.Remove(it.UID)
	delete(q.sent, it.UID)
}

// State returns how far the eviction of an Evacuation's pod is.
func (q *Queue) State(evacuation types.NamespacedName) State {
	q.mu.Lock()
	defer q.mu.Unlock()
	it, known := q.items[evacuation]
	if !known {
		return State{}
	}
	state := State{Known: true, FailedEvictions: it.failed, Blocker: it.blocker, Message: it.note}
	if len(it.budgets) == 1 {
		state.Budget = types.NamespacedName{Namespace: evacuation.Namespace, Name: it.budgets[0]}
	}
	return state
}

func (q *Queue) wake() {
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

func (q *Queue) podChanged(obj any, gone bool) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ownedPodChanged(pod, gone)
	if gone || !canBeAsked(pod) {
		q.underway.Remove(pod.UID)
	}
	if it, sent := q.sent[pod.UID]; sent && it.phase == phaseAccepted && !q.isStillThere(it) {
		q.forget(it)
	}
	if it, known := q.byUID[pod.UID]; known && it.phase != phaseInFlight && it.phase != phaseAccepted {
		q.place(it, q.clock.Now())
		q.wake()
	}
}

func (q *Queue) budgetSet(obj any) {
	if budget, ok := obj.(*policyv1.PodDisruptionBudget); ok {
		q.budgetChanged(budget.Namespace, budget.Name, budget)
	}
}

func (q *Queue) budgetRemoved(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if budget, ok := obj.(*policyv1.PodDisruptionBudget); ok {
		q.budgetChanged(budget.Namespace, budget.Name, nil)
	}
}

// budgetObserved tells the budget's lane and, if it opens, ends the rest of the pods that its
// budget had refused.
func (q *Queue) budgetObserved(budget *policyv1.PodDisruptionBudget, now time.Time) {
	l := q.lanes[pdb.NameOf(budget)]
	if l == nil || !l.observe(budget, now) {
		return
	}
	for it := range l.members {
		if it.phase == phaseResting && it.restsForBudget {
			it.due, it.failures = now, 0
			q.place(it, now)
		}
	}
}

func logger(ctx context.Context, it *item) klog.Logger {
	return klog.FromContext(ctx).WithValues("pod", klog.KRef(it.Evacuation.Namespace, it.Pod), "podUID", it.UID)
}
