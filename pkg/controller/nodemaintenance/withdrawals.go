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

// withdrawalWorkers bounds the Evacuations that are withdrawn at the same time.
const withdrawalWorkers = 16

// answerRetry is how soon an Evacuation is read again whose request is under way.
const answerRetry = 50 * time.Millisecond

// withdrawals has our finalizer removed from the Evacuations of pods whose node no maintenance
// drains any more: it has ended, was deleted by force, or does not select the node. A deposed
// leader that has not noticed yet may have created one. So it does from those of pods that are
// unwanted. The key is an Evacuation, so one that cannot be withdrawn holds up its own node only.
type withdrawals struct {
	c     *Controller
	queue *loop.Queue[withdrawal]
}

// withdrawal is the key of the queue: an Evacuation, and why it may have to be withdrawn.
type withdrawal struct {
	types.NamespacedName
	// unwanted: a decision has found that the maintenances that drain the node do not ask the pod
	// to leave any more: its labels have changed, or the node is another one of the same name. The
	// stored targets alone do not tell: those that a new leader sees may be older than the
	// Evacuation.
	unwanted bool
}

// String is the name of a withdrawal in reports and in what fails: an Evacuation that is wanted, as
// far as the stored targets tell, does not end the failure to withdraw it as unwanted.
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

// enqueueUnwanted has an Evacuation withdrawn unless a maintenance asks its pod to leave. Each sync
// of a maintenance names it again, so one that cannot be withdrawn is left to its backoff.
func (w *withdrawals) enqueueUnwanted(e *v1alpha1.Evacuation) {
	w.queue.AddUnlessFailed(withdrawal{NamespacedName: types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, unwanted: true})
}

// sync withdraws an Evacuation unless a maintenance drains the node of its pod. What keeps it from
// being withdrawn is told about the node.
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

// get returns an Evacuation, from the API if it was requested and the cache does not show it; nil
// if there is none, or not yet.
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

// isStray reports whether no maintenance asks pods to leave the node that an Evacuation of ours is
// about.
func (w *withdrawals) isStray(e *v1alpha1.Evacuation, node string) bool {
	if node != "" {
		return !w.c.isTargeted(node)
	}
	// The pod was nominated for a node and is not any more. One that is not known is deleted, which
	// ends the Evacuation, or not yet in the cache.
	return w.c.state.PodOf(e) != nil
}

// removeInstigator removes our finalizer from an Evacuation and, where no other instigator has
// asked for it and nothing forbids it, deletes it. One whose evacuator cannot stop any more is left
// to it.
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
	// A deadline of its own: after a slow change it would not be sent.
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := c.maintenance.MaintenanceV1alpha1().Evacuations(e.Namespace).Delete(ctx, e.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(e.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete evacuation %s/%s: %w", e.Namespace, e.Name, err)
	}
	return nil
}
