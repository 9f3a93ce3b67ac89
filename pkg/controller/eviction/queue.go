// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Request is the request to evict a pod.
type Request struct {
	// Evacuation is the Evacuation of the pod, in the same namespace.
	Evacuation types.NamespacedName
	// Pod and UID identify the pod.
	Pod string
	UID types.UID
	// ReplacedFirst is set if the Evacuation has the evacuator of Deployments. Then a surge may be
	// the remedy for a budget that allows no disruption.
	ReplacedFirst bool
	// Deployment is the name of the Deployment of the pod, and NotReplaced a phrase that follows
	// it: why the Deployment is not scaled up, whatever the budget of the pod. Both may be empty.
	// Like ReplacedFirst, they may differ in a repeated request.
	Deployment, NotReplaced string
	// FailedEvictions is the stored counter of failed evictions.
	FailedEvictions int32
	// Blocker is the stored blocker of the pod. The queue reports it until the first answer or, if
	// it comes from a budget, until it has reviewed the budget.
	Blocker *Blocker
}

// Blocker is the reason why a pod cannot be evicted: a reason of the condition Blocked, and a
// message with the cause and a remedy.
type Blocker = pdb.Refusal

// State is the state of the eviction of a pod.
type State struct {
	// Known is false if the eviction was not requested; the other fields are then empty.
	Known bool
	// FailedEvictions counts the calls that were refused because of a budget.
	FailedEvictions int32
	// Blocker is nil while nothing blocks the pod. A pod that only waits for other pods of its lane
	// is not blocked.
	Blocker *Blocker
	// Budget is the only PodDisruptionBudget that selects the pod. Its name is empty if no budget
	// or several budgets select the pod, or if the queue has not looked up the budgets yet.
	Budget types.NamespacedName
	// Message describes what a pod that is not blocked yet waits for; it may be empty.
	Message string
}

// Config has the dependencies and options of a Queue.
type Config struct {
	// Host is the cluster whose pods are evicted.
	Host Host
	// Pods and Budgets are shared informers of the same cluster. New registers its handlers; the
	// caller starts them.
	Pods    *podcache.Pods
	Budgets policyinformers.PodDisruptionBudgetInformer
	Clock   clock.WithTicker
	// Policy configures how evictions are sent.
	Policy Policy
	// Owners returns the workloads of pods without budgets, which wait for each other. If it is
	// nil, no pod waits for other pods.
	Owners Owners
	// Changed is called when the State of an Evacuation's pod has changed. It must not block.
	Changed func(evacuation types.NamespacedName)
	// Wanted reports whether the Evacuation of a request still needs the eviction. It is called
	// before the eviction is sent, but after the eviction was added to InFlight.
	Wanted func(Request) bool
	// InFlight records the evictions in flight; nil means that no other component reads them.
	InFlight *inflight.Evictions
	// Evicted is called after an eviction was accepted, with the pod in its state before the
	// eviction. protected is set if a budget selects the pod. The eviction counts as in flight
	// until Evicted returns.
	Evicted func(pod *corev1.Pod, protected bool)
}

// Queue evicts each requested pod once. It uses the budgets fully without exceeding them.
type Queue struct {
	cfg    Config
	pods   corelisters.PodLister
	synced []cache.InformerSynced
	// kick wakes the loop of Run.
	kick chan struct{}

	// mu guards all fields below. Of the Config, only the caches and InFlight are used while mu is
	// locked.
	mu sync.Mutex
	// changed has the Evacuations for which Changed is to be called after mu is released.
	changed []types.NamespacedName
	// items has the requested items, by the namespace and name of the Evacuation. byUID also has
	// the items that were removed after their eviction had been sent.
	items map[string]map[string]*item
	byUID map[types.UID]*item
	// resting has the items in phaseResting and phaseAccepted, and the parked ones whose state must
	// be reviewed.
	resting line

	lanes map[laneKey]lane
	// ring has all lanes, in round-robin order. turn is the index of the lane that was used last.
	ring        []lane
	turn        int
	budgetLanes budgetLanes
	ownerLanes  ownerLanes

	budgets *pdb.Index
	// churn has the pending changes of budgets, by namespace.
	churn map[string]*churn
	// stepped is set once step has been called.
	stepped bool

	// calls is the limit of calls in flight, inFlight their number, and protected the number of
	// calls in flight for pods with budgets. tries counts all calls since the start.
	calls               concurrency
	inFlight, protected int
	tries               uint64
	// overloadedBy is the pod for which the API server last reported overload; it is empty after
	// any other answer. pausedUntil is the time from which the queue may send evictions again after
	// overload.
	overloadedBy types.UID
	pausedUntil  time.Time
}

// New returns a Queue. It evicts no pod before Run is called.
func New(cfg Config) (*Queue, error) {
	most := cfg.Policy.MaxConcurrent
	if most < 1 {
		return nil, fmt.Errorf("max concurrent evictions is %d, must be at least 1", most)
	}
	if cfg.InFlight == nil {
		cfg.InFlight = &inflight.Evictions{}
	}
	registerMetrics()
	q := &Queue{
		cfg: cfg, pods: cfg.Pods.Lister(), kick: make(chan struct{}, 1),
		items: map[string]map[string]*item{}, byUID: map[types.UID]*item{}, resting: line{order: byDue},
		lanes: map[laneKey]lane{}, budgets: pdb.NewIndex(nil), churn: map[string]*churn{}, calls: concurrency{limit: most, most: most},
		ownerLanes: ownerLanes{
			share: cfg.Policy.UnprotectedMaxUnavailable, patience: cfg.Policy.UnprotectedPatience,
			byController: map[laneKey]*ownerLane{}, byPod: map[types.UID]*ownerLane{},
		},
	}
	if cfg.Owners != nil && cfg.Policy.UnprotectedMaxUnavailable < 100 {
		q.ownerLanes.owners, q.synced = cfg.Owners, []cache.InformerSynced{cfg.Owners.HasSynced}
	}
	synced, err := podcache.AddHandlers(
		podcache.Handled{Informer: cfg.Pods, Handler: podcache.HandlerOf(q.podChanged)},
		podcache.Handled{Informer: cfg.Budgets.Informer(), Handler: podcache.HandlerOf(q.budgetChanged)},
	)
	q.synced = append(q.synced, synced)
	return q, err
}

// Run evicts pods until ctx is done, and returns after the last answer.
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
	for ctx.Err() == nil {
		began := q.cfg.Clock.Now()
		due, next := q.step()
		took := q.cfg.Clock.Since(began)
		for _, c := range due {
			calls.Go(func() { q.send(ctx, c) })
		}
		// With thousands of lanes a step takes milliseconds, in which no other function gets the
		// lock.
		if took > time.Millisecond {
			select {
			case <-ctx.Done():
			case <-q.cfg.Clock.After(min(4*took, time.Second)):
			}
		}
		var expired <-chan time.Time
		if !next.IsZero() {
			expired = q.cfg.Clock.After(next.Sub(q.cfg.Clock.Now()))
		}
		select {
		case <-ctx.Done():
		case <-q.kick:
		case <-expired:
		}
	}
}

// unlock releases mu before it calls Changed, so that the callback can call State.
func (q *Queue) unlock() {
	changed := q.changed
	q.changed = nil
	q.mu.Unlock()
	for _, evacuation := range changed {
		q.cfg.Changed(evacuation)
	}
}

func (q *Queue) wake() {
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// Add requests the eviction of a pod. A repeated request for the same Evacuation causes no second
// eviction, but it may change the remedy for the budget.
func (q *Queue) Add(r Request) {
	q.mu.Lock()
	defer q.unlock()
	now, namespace := q.cfg.Clock.Now(), r.Evacuation.Namespace
	it, known := q.items[namespace][r.Evacuation.Name]
	if !known {
		if it = q.byUID[r.UID]; it == nil || !it.removed {
			it = &item{changes: rate.NewLimiter(rate.Inf, changesInARow)}
			q.byUID[r.UID] = it
		}
		it.Request, it.removed, it.added, it.failed, it.matched = &r, false, now, r.FailedEvictions, false
		it.inherit(r.Blocker, q.cfg.Policy.DeniedAfter, now)
		if q.items[namespace] == nil {
			q.items[namespace] = map[string]*item{}
		}
		q.items[namespace][r.Evacuation.Name] = it
	}
	it.askedAgain = true
	changed := known && it.updateRemedy(&r)
	if it.phase == phaseParked || (changed || !known) && !it.isSent() {
		q.place(it, now)
		q.wake()
	}
}

// Remove withdraws the request of an Evacuation. An eviction that was sent cannot be undone.
func (q *Queue) Remove(evacuation types.NamespacedName) {
	q.mu.Lock()
	defer q.unlock()
	it, known := q.items[evacuation.Namespace][evacuation.Name]
	if !known {
		return
	}
	if delete(q.items[evacuation.Namespace], evacuation.Name); len(q.items[evacuation.Namespace]) == 0 {
		delete(q.items, evacuation.Namespace)
	}
	if it.removed = true; it.phase != phaseInFlight {
		q.place(it, q.cfg.Clock.Now())
	}
}

// State returns the state of the eviction of an Evacuation's pod.
func (q *Queue) State(evacuation types.NamespacedName) State {
	q.mu.Lock()
	defer q.mu.Unlock()
	it, known := q.items[evacuation.Namespace][evacuation.Name]
	if !known {
		return State{}
	}
	state := State{Known: true, FailedEvictions: it.failed, Blocker: it.blocker, Message: it.note}
	if len(it.budgets) == 1 {
		state.Budget = types.NamespacedName{Namespace: evacuation.Namespace, Name: it.budgets[0]}
	}
	return state
}

func (q *Queue) podChanged(old, current *corev1.Pod) {
	pod, gone := cmp.Or(current, old), current == nil
	q.mu.Lock()
	defer q.unlock()
	if q.ownerLanes.podChanged(pod, gone) {
		q.wake()
	}
	if gone || !canBeAsked(pod) {
		q.cfg.InFlight.Remove(pod.UID)
	}
	if it, known := q.byUID[pod.UID]; known && it.phase != phaseInFlight && (it.removed || it.phase != phaseAccepted) {
		q.place(it, q.cfg.Clock.Now())
		q.wake()
	}
}
