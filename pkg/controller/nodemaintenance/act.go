// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

// reconcile drains the nodes of a maintenance and updates its status. The node controller cordons
// and releases the nodes.
func (c *Controller) reconcile(ctx context.Context, nm *v1alpha1.NodeMaintenance) error {
	var next time.Duration
	if v1alpha1.IsHolding(nm) {
		next = c.selection.ReleaseExpired(nm.Name)
		c.problems.Note(nm.Name, "status", nodestate.TextOf(c.selection.TooLarge(nm)))
	}
	began := c.clock.Now()
	f, err := c.gather(ctx, nm)
	if err != nil {
		return err
	}
	f.wake = sooner(f.wake, next)
	d, err := decide(f)
	if err != nil {
		return err
	}
	c.noteDecision(nm.Name, c.clock.Since(began))
	if d.confirm {
		found, err := c.nominatedPod(ctx, f)
		if err != nil {
			return err
		}
		f.live = &found
		if d, err = decide(f); err != nil {
			return err
		}
	}
	if d.superseded {
		return c.supersede(ctx, f)
	}
	return c.act(ctx, f, d)
}

const (
	// confirmPatience is the time after which a maintenance is reconciled again if a live list
	// returned a pod that is missing in the cache.
	confirmPatience = time.Second
	// pageSize is the number of pods per page of a live list.
	pageSize = 1000
)

// nominatedPod lists pods from the API and returns one that the plan covers and that is nominated
// for one of the subject's nodes, or "" if there is none. The API cannot select nominated pods by
// node, so the node controller does not list them.
func (c *Controller) nominatedPod(ctx context.Context, f *facts) (string, error) {
	plan, err := drainplan.CompileTargets(f.subject.Spec.DrainPlan)
	if err != nil {
		return "", err
	}
	rules, err := holds.RulesOf(f.subject.NodeMaintenance)
	if err != nil {
		return "", err
	}
	nodes := make(map[string]*corev1.Node, len(f.subject.inside))
	for _, node := range f.subject.inside {
		nodes[node.Name] = node
	}
	options := metav1.ListOptions{FieldSelector: "spec.nodeName=,status.phase=Pending", Limit: pageSize}
	for {
		list, err := c.cluster.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			options.Continue = ""
			continue
		}
		if err != nil {
			return "", fmt.Errorf("list the pods that may be nominated for a node: %w", err)
		}
		for i := range list.Items {
			pod := &list.Items[i]
			node := nodes[podcache.NodeOf(pod)]
			if node == nil || !drainplan.IsLive(pod) {
				continue
			}
			if live := c.state.Classify(pod, node); live.Kept == "" && plan.Cover(live.Plan) && !rules.Skips(live.Plan) {
				return pod.Namespace + "/" + pod.Name, nil
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return "", nil
		}
	}
}

// act applies a decision: it enqueues unwanted Evacuations for withdrawal, writes the status, and
// then takes the actions that depend on the new status.
func (c *Controller) act(ctx context.Context, f *facts, d *decision) error {
	nm := f.subject.NodeMaintenance
	for _, node := range d.withdraw {
		c.enqueueEvacuations(node)
		// Another maintenance may have targets for the node that ask fewer pods.
		for _, e := range c.state.OurEvacuations(node) {
			c.withdrawals.enqueueUnwanted(e)
		}
	}
	if d.wake > 0 {
		c.queue.AddAfter(nm.Name, d.wake)
	}
	released := v1alpha1.IsEnding(nm) && len(f.held) == 0
	written, err := c.writeStatus(ctx, nm, d.status, released)
	if err != nil {
		return loop.IgnoreNotFound(err)
	}
	if v1alpha1.IsEnding(nm) {
		c.announceProgressing(nm, written)
		if !released {
			return nil
		}
		return c.dropFinalizer(ctx, written)
	}
	c.announceProgress(f, d, written)
	if !v1alpha1.IsDraining(nm) {
		return nil
	}
	// Only stored targets may be used from here on.
	f.subject.NodeMaintenance = written
	for _, n := range d.counts {
		for _, e := range n.unwanted {
			c.withdrawals.enqueueUnwanted(e)
		}
	}
	if err := c.evacuate(ctx, f, d); err != nil {
		return shownError{err}
	}
	return nil
}

// shownError is an error that occurs after the status write of a sync. The next sync writes it into
// the status.
type shownError struct{ error }

func (e shownError) Unwrap() error { return e.error }

// touchedNodes returns the names of the nodes that a maintenance may have changed: the nodes in its
// status and the nodes whose annotations name it.
func (c *Controller) touchedNodes(nm *v1alpha1.NodeMaintenance) sets.Set[string] {
	names := make(sets.Set[string], len(nm.Status.NodeStatuses))
	for i := range nm.Status.NodeStatuses {
		names.Insert(nm.Status.NodeStatuses[i].NodeRef.Name)
	}
	annotated, err := c.nodeIndexer.IndexKeys(nodestate.NodesByMaintenance, string(nm.UID))
	if err == nil {
		names.Insert(annotated...)
	}
	return names
}

// maxParallel is the maximum number of parallel calls for one maintenance.
const maxParallel = 16

// roundTime is how long one sync may send requests for a maintenance. Then a new sync gathers the
// facts again, so that a cancellation need not wait for thousands of requests.
const roundTime = time.Second

// requestTimeout is the deadline of one request to this server. A webhook may hang for up to 30 s,
// and the other requests of the sync wait for it.
const requestTimeout = 5 * time.Second

// inRounds calls do for 0 to n-1, in parallel, until roundTime is over. If numbers are left, it
// enqueues the maintenance, and the next sync follows immediately.
func (c *Controller) inRounds(ctx context.Context, maintenance string, n int, do func(ctx context.Context, i int) error) error {
	end := c.clock.Now().Add(roundTime)
	var left atomic.Bool
	err := inParallel(ctx, n, func(ctx context.Context, i int) error {
		if c.clock.Now().After(end) {
			left.Store(true)
			return nil
		}
		return do(ctx, i)
	})
	if left.Load() {
		c.queue.Add(maintenance)
	}
	return err
}

// inParallel calls do for 0 to n-1, at most maxParallel at a time, and returns their errors when
// all calls have ended. After the end of the context it makes no more calls.
func inParallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	if n == 0 {
		return nil
	}
	errs := make([]error, n, n+1)
	workqueue.ParallelizeUntil(ctx, maxParallel, n, func(i int) { errs[i] = do(ctx, i) })
	return utilerrors.NewAggregate(append(errs, ctx.Err()))
}

const (
	// maxStatusBytes is the maximum size of a maintenance that keeps the messages of its nodes. The
	// limit of etcd is 1.5 MiB by default.
	maxStatusBytes = 1 << 20
	// statusPace is the time between two writes of counters and messages. For objects larger than
	// bytesPerPace, it is multiplied by their size in units of bytesPerPace.
	statusPace   = time.Second
	bytesPerPace = 100 << 10
)

// writeStatus stores a status if it differs, and returns the stored maintenance. A status that
// differs only in counters and messages is stored by a later sync, unless urgent is set.
// writeStatus takes ownership of status.
func (c *Controller) writeStatus(ctx context.Context, nm *v1alpha1.NodeMaintenance, status v1alpha1.NodeMaintenanceStatus,
	urgent bool) (*v1alpha1.NodeMaintenance, error) {
	changed := *nm
	next := &changed
	next.Status = status
	c.keepSmall(next)
	if sameStatus(&nm.Status, &next.Status) {
		return nm, nil
	}
	if !urgent && !isUrgent(nm, next) {
		if wait := c.writePause(nm.Name, next.Size()); wait > 0 {
			c.queue.AddAfter(nm.Name, wait)
			return nm, nil
		}
	}
	stored, err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
	if isTooLarge(err) {
		c.dropMessages(next)
		stored, err = c.maintenance.MaintenanceV1alpha1().NodeMaintenances().UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	if isTooLarge(err) {
		// The sync is retried with backoff and, after a while, the stored status reports the
		// returned error.
		c.maintenanceEvent(nm, corev1.EventTypeWarning, EventStatusTooLarge, actionDrain,
			"The status of %s is too large to be stored: select fewer nodes per NodeMaintenance or use fewer pod selectors", wording.Count(len(next.Status.NodeStatuses), "node"))
		return nil, fmt.Errorf("write status: %d bytes are too large to be stored: %w", next.Size(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}
	c.latest.Wrote(stored)
	c.written.Set(nm.Name, c.clock.Now())
	return stored, nil
}

// isUrgent reports whether a status differs in more than counters, messages and states of the work
// that pass by. Other components or a new leader need all other changes immediately. The first
// status of a maintenance of a rollout that ends is not urgent: in most cases it has released its
// nodes moments later, which is urgent.
func isUrgent(old, next *v1alpha1.NodeMaintenance) bool {
	switch {
	case !sameWork(old, next):
		return true
	case protocol.RolloutOf(next) != nil && v1alpha1.IsEnding(next):
		return false
	}
	changed := func(conditionType string) bool {
		was, is := conditionOf(old, conditionType), conditionOf(next, conditionType)
		return was == nil || is == nil || was.Status != is.Status
	}
	return old.Status.ObservedGeneration != next.Status.ObservedGeneration ||
		changed(v1alpha1.ConditionDrained) || changed(v1alpha1.ConditionProgressing) || changed(v1alpha1.ConditionReady) ||
		v1alpha1.IsHolding(next) && (!drainplan.SameTargets(old, next) || !samePools(old, next))
}

// sameWork reports whether two statuses record the same work on the same nodes. An offer is work as
// soon as a worker has claimed it, which takes moments if a worker is idle.
func sameWork(a, b *v1alpha1.NodeMaintenance) bool {
	state := func(entry *v1alpha1.NodeMaintenanceNodeStatus) v1alpha1.NodeTaskState {
		if entry.Task == nil || entry.Task.State == v1alpha1.NodeTaskOffered {
			return ""
		}
		return entry.Task.State
	}
	return slices.EqualFunc(a.Status.NodeStatuses, b.Status.NodeStatuses, func(x, y v1alpha1.NodeMaintenanceNodeStatus) bool {
		return x.NodeRef == y.NodeRef && state(&x) == state(&y)
	})
}

// samePools reports whether two statuses have the same pools of the same nodes.
func samePools(a, b *v1alpha1.NodeMaintenance) bool {
	return slices.EqualFunc(a.Status.NodeStatuses, b.Status.NodeStatuses, func(x, y v1alpha1.NodeMaintenanceNodeStatus) bool {
		return x.NodeRef == y.NodeRef && v1alpha1.PoolOf(a, &x) == v1alpha1.PoolOf(b, &y)
	})
}

// keepSmall drops the messages of all nodes if the object would become too large, and sets the
// condition NodeMessagesOmitted.
func (c *Controller) keepSmall(nm *v1alpha1.NodeMaintenance) {
	if nm.Size() > maxStatusBytes {
		c.dropMessages(nm)
		return
	}
	meta.RemoveStatusCondition(&nm.Status.Conditions, v1alpha1.ConditionNodeMessagesOmitted)
}

// dropMessages drops the messages of all nodes, and sets the condition NodeMessagesOmitted.
func (c *Controller) dropMessages(nm *v1alpha1.NodeMaintenance) {
	for i := range nm.Status.NodeStatuses {
		entry := &nm.Status.NodeStatuses[i]
		entry.DrainMessage = ""
		if entry.Task != nil && entry.Task.Message != "" {
			entry.Task = entry.Task.DeepCopy() // the cache may have the same one
			entry.Task.Message = ""
		}
	}
	setCondition(nm, &nm.Status, v1alpha1.ConditionNodeMessagesOmitted, verdict{metav1.ConditionTrue, v1alpha1.ReasonStatusTooLarge,
		"The status would be too large with a message for each node; the counters and reasons are complete"}, c.clock.Now())
}

// isTooLarge reports whether the API server or etcd refused an object because of its size. For a
// refusal by etcd it compares the text, since the API server returns no typed error.
func isTooLarge(err error) bool {
	return err != nil && (apierrors.IsRequestEntityTooLargeError(err) || strings.Contains(err.Error(), "request is too large"))
}

// writePause returns the time until the status of a maintenance may be written again. size is the
// size of the object.
func (c *Controller) writePause(name string, size int) time.Duration {
	last, known := c.written.Get(name)
	if !known {
		return 0
	}
	pace := max(statusPace, statusPace*time.Duration(size)/bytesPerPace)
	return pace - c.clock.Since(last)
}

// sameNodeStatus reports whether two statuses of a node are equal. It has to compare every field of
// the type. A test checks that.
func sameNodeStatus(a, b *v1alpha1.NodeMaintenanceNodeStatus) bool {
	return a.NodeRef == b.NodeRef && a.Reason == b.Reason && a.DrainMessage == b.DrainMessage && a.PodsPendingEvacuation == b.PodsPendingEvacuation &&
		a.PodsEvacuating == b.PodsEvacuating && a.PodsBlocked == b.PodsBlocked && a.PodsKept == b.PodsKept && a.PodsPeak == b.PodsPeak &&
		a.PodsGonePeak == b.PodsGonePeak && ptr.Equal(a.PodsWaiting, b.PodsWaiting) && ptr.Equal(a.PoolIndex, b.PoolIndex) && equality.Semantic.DeepEqual(a.Task, b.Task) &&
		drainplan.SameEntries(a.DrainTargets, b.DrainTargets)
}

func sameStatus(a, b *v1alpha1.NodeMaintenanceStatus) bool {
	if len(a.NodeStatuses) != len(b.NodeStatuses) {
		return false
	}
	for i := range a.NodeStatuses {
		if !sameNodeStatus(&a.NodeStatuses[i], &b.NodeStatuses[i]) {
			return false
		}
	}
	x, y := *a, *b
	x.NodeStatuses, y.NodeStatuses = nil, nil
	return equality.Semantic.DeepEqual(x, y)
}
