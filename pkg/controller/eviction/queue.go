// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

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

// Blocker is what keeps a pod from being evicted: a reason of the condition Blocked and a message
// that names what blocks and says what can be done about it.
type Blocker = pdb.Refusal

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
	// Changed is called when the State of an Evacuation's pod has changed. It must not block.
	Changed func(evacuation types.NamespacedName)
	// Wanted reports whether there still is the Evacuation that a request was made for, when its
	// eviction is about to be sent and counts as in flight.
	Wanted func(Request) bool
	// InFlight takes in the evictions in flight; nil keeps them for the queue alone.
	InFlight *inflight.Evictions
	// Evicted is called with the pod, as it was before, when its eviction was accepted; protected
	// is whether a budget selects it. The call that evicted the pod counts as in flight until it
	// returns.
	Evicted func(pod *corev1.Pod, protected bool)
}

// Queue evicts the pods it is given, each once, in an order that empties the budgets without
// breaking or overrunning them.
type Queue struct {
	cfg    Config
	pods   corelisters.PodLister
	synced []cache.InformerSynced
	// kick wakes the loop of Run.
	kick chan struct{}

	// mu guards everything below. Nothing of Config but the caches and InFlight is called under it.
	mu sync.Mutex
	// changed are the Evacuations to call Changed for when mu is released.
	changed []types.NamespacedName
	// items are those that are requested, by the namespace and name of the Evacuation. byUID also
	// has those that were removed after their eviction had been sent.
	items map[string]map[string]*item
	byUID map[types.UID]*item
	// resting are the items that wait for a time.
	resting line

	lanes map[laneKey]lane
	// ring has all lanes, in the order in which they get their turns; turn is whose was last.
	ring        []lane
	turn        int
	budgetLanes budgetLanes
	ownerLanes  ownerLanes

	budgets *pdb.Index
	// churn are the changes of budgets that are still to be evaluated, by namespace.
	churn map[string]*churn
	// stepped is whether the queue has begun to send.
	stepped bool

	// calls is how many calls may be in flight, inFlight how many are, and protected those of them
	// for pods with budgets. tries counts all calls.
	calls               concurrency
	inFlight, protected int
	tries               uint64
	// overloadedBy is the pod whose eviction was last answered with overload; empty after any
	// answer that was not. pausedUntil is until when the API server wants to be left alone.
	overloadedBy types.UID
	pausedUntil  time.Time
}

// New returns a Queue that evicts nothing before it runs.
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
	q.synced = append(q.synced, synced...)
	return q, err
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
	for ctx.Err() == nil {
		due, next := q.step()
		for _, c := range due {
			calls.Go(func() { q.send(ctx, c) })
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

// unlock releases the queue and then reports what has changed, so that the callback may ask for it.
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

// Add asks for a pod to be evicted. Asking again for the same Evacuation sends nothing twice.
func (q *Queue) Add(r Request) {
	q.mu.Lock()
	defer q.unlock()
	now, namespace := q.cfg.Clock.Now(), r.Evacuation.Namespace
	it, known := q.items[namespace][r.Evacuation.Name]
	if !known {
		if it = q.byUID[r.UID]; it == nil || !it.removed {
			it = &item{}
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
	if it.phase == phaseParked || !known && !it.isSent() {
		q.place(it, now)
		q.wake()
	}
}

// Remove gives up the eviction of an Evacuation's pod. One that has been sent cannot be called
// back.
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

// State returns how far the eviction of an Evacuation's pod is.
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
