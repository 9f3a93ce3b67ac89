// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
)

// withdrawalWorkers is the maximum number of Evacuations that are withdrawn at the same time.
const withdrawalWorkers = 16

// answerRetry is the time after which an Evacuation is read again while the API server has not
// responded to its request.
const answerRetry = 50 * time.Millisecond

// withdrawals removes our finalizer from the Evacuations of pods whose node no maintenance drains
// any more: the maintenance has ended, was force-deleted, or does not select the node. A previous
// leader that has not noticed the change may have created Evacuations of these pods. withdrawals
// also withdraws the Evacuations of unwanted pods. The key is an Evacuation, so that an Evacuation
// which cannot be withdrawn delays only its own node.
type withdrawals struct {
	c     *Controller
	queue *loop.Queue[withdrawal]
}

// withdrawal is the key of the queue: an Evacuation, and the reason why it may have to be
// withdrawn.
type withdrawal struct {
	types.NamespacedName
	// unwanted is set if, according to a decision, the maintenances that drain the node no longer
	// ask the pod to leave: its labels have changed, another node has the same name, or a
	// maintenance releases the node. Only a decision can determine this. The stored targets in the
	// cache of a new leader are not sufficient, since they may be older than the Evacuation.
	unwanted bool
}

// String returns the name of a withdrawal in logs and failures. An unwanted withdrawal has its own
// name, so that the success of a stray withdrawal of the same Evacuation does not clear its
// failure.
func (w withdrawal) String() string {
	if w.unwanted {
		return w.NamespacedName.String() + " (unwanted)"
	}
	return w.NamespacedName.String()
}

func newWithdrawals(c *Controller, config Config) *withdrawals {
	return &withdrawals{c: c, queue: loop.NewQueue(loop.Config[withdrawal]{
		Name: Name + "-withdrawals", Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, Busy: Name + " withdrawal of",
		Failed: func() { syncErrors.Inc() },
		LogAs:  func(key withdrawal) (string, any) { return "evacuation", klog.KRef(key.Namespace, key.Name) },
	})}
}

func (w *withdrawals) enqueue(e *v1alpha1.Evacuation) {
	if nodestate.IsOurs(e) {
		w.queue.Add(withdrawal{NamespacedName: types.NamespacedName{Namespace: e.Namespace, Name: e.Name}})
	}
}

// enqueueUnwanted enqueues an Evacuation for withdrawal unless a maintenance asks its pod to leave.
// Each sync of a maintenance calls it again. After a failure, only the backoff causes a retry.
func (w *withdrawals) enqueueUnwanted(e *v1alpha1.Evacuation) {
	w.queue.AddUnlessFailed(withdrawal{NamespacedName: types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, unwanted: true})
}

// sync withdraws an Evacuation unless a maintenance drains the node of its pod. A failure is
// recorded for the node.
func (w *withdrawals) sync(ctx context.Context, key withdrawal) error {
	e, err := w.get(ctx, key)
	if err != nil {
		return err
	}
	if e == nil || !nodestate.IsOurs(e) {
		for _, unwanted := range []bool{false, true} {
			w.c.state.Troubles.End(withdrawal{key.NamespacedName, unwanted}.String())
		}
		return nil
	}
	node := w.c.state.NodeOf(e)
	if w.isStray(e, node) || key.unwanted && node != "" && !w.c.wanted(e, node) {
		err = w.c.removeInstigator(ctx, e)
	}
	switch {
	case err == nil:
		w.c.state.Troubles.End(key.String())
	case node != "" && ctx.Err() == nil && !loop.IsOnlyConflict(err):
		w.c.state.Troubles.Note(node, key.String(), nodestate.TextOf(err))
	}
	return err
}

// get returns an Evacuation from the cache, or from the API if a request for it was recorded. It
// returns nil if the Evacuation does not exist or need not be withdrawn yet.
func (w *withdrawals) get(ctx context.Context, key withdrawal) (*v1alpha1.Evacuation, error) {
	request, requested := w.c.state.Requests.For(key.NamespacedName)
	switch {
	case !requested:
		cached, err := w.c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return cached, err
	case w.c.isTargeted(request.Node):
		return nil, nil
	case request.Unanswered:
		w.queue.AddAfter(key, answerRetry)
		return nil, nil
	}
	live, err := w.c.maintenance.MaintenanceV1alpha1().Evacuations(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !nodestate.IsOurs(live) {
		w.c.state.Requests.End(request.Node, request.Pod)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read evacuation %s: %w", key.NamespacedName, err)
	}
	return live, nil
}

// isStray reports whether no maintenance drains the node of an Evacuation of ours.
func (w *withdrawals) isStray(e *v1alpha1.Evacuation, node string) bool {
	if node != "" {
		return !w.c.isTargeted(node)
	}
	// The pod is no longer nominated for a node. If the pod is not in the cache, it is either
	// deleted, which ends the Evacuation, or too new for the cache.
	return w.c.state.PodOf(e) != nil
}

// removeInstigator removes our finalizer from an Evacuation, and deletes the Evacuation if it has
// no other instigator and its evacuator allows the cancellation.
func (c *Controller) removeInstigator(ctx context.Context, e *v1alpha1.Evacuation) error {
	rest := slices.DeleteFunc(slices.Clone(e.Finalizers), func(f string) bool {
		return f == v1alpha1.FinalizerInstigatorNodeMaintenance
	})
	if err := c.setFinalizers(ctx, e, rest); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("withdraw from evacuation %s/%s: %w", e.Namespace, e.Name, err)
	}
	if protocol.HasInstigator(rest) || e.DeletionTimestamp != nil ||
		e.Status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid {
		return nil
	}
	// The deletion gets its own deadline, since the patch may have used up the first deadline.
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := c.maintenance.MaintenanceV1alpha1().Evacuations(e.Namespace).Delete(ctx, e.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(e.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete evacuation %s/%s: %w", e.Namespace, e.Name, err)
	}
	return nil
}
