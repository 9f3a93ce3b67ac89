// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/controller/deletioncost"
)

const (
	// maxCostAttempts is how often a write of a deletion cost is tried, and costBackoff is the
	// backoff after the first failure, which doubles with each further one. An admission policy may
	// refuse all changes of a pod.
	maxCostAttempts = 5
	costBackoff     = 5 * time.Second
	// costTimeout is the deadline of one write of a deletion cost, and how long one sync starts
	// such writes.
	costTimeout = 5 * time.Second
)

// attempts counts the consecutive failed writes of a pod's deletion cost.
type attempts struct {
	failed int
	// next is when the next attempt is allowed.
	next time.Time
}

func (a attempts) areOver() bool { return a.failed >= maxCostAttempts }

// mayWriteCost reports whether the deletion cost of a pod may be written now, and otherwise
// schedules the next sync.
func (d *decision) mayWriteCost(s situation, p *pod) bool {
	tried := s.attempts[p.UID]
	if tried.areOver() {
		return false
	}
	if s.now.Before(tried.next) {
		d.wakeAt(tried.next)
		d.retries = true
		return false
	}
	return true
}

// restoreCosts restores the deletion cost of pods that may stay.
func (d *decision) restoreCosts(s situation) {
	for i := range s.pods {
		if p := &s.pods[i]; p.evacuation == nil {
			d.restoreCost(s, p)
		}
	}
}

func (d *decision) restoreCost(s situation, p *pod) {
	if !deletioncost.IsLowered(p.Pod) || !d.mayWriteCost(s, p) {
		return
	}
	d.restore = append(d.restore, p.Pod)
	// Do not wait after a failure, which must not keep the Deployment scaled up.
	d.awaitsRestore = d.awaitsRestore || s.attempts[p.UID].failed == 0
}

// lowerWaiting lowers the deletion cost of the waiting pods while the surge makes no progress, one
// at a time.
func (d *decision) lowerWaiting(s situation, leaving []*pod) {
	for _, p := range leaving {
		if !deletioncost.CanLower(p.Pod) || !d.mayWriteCost(s, p) {
			continue
		}
		at := latest(s.lastSign(p.evacuation).Add(deletioncost.LowerAfter), s.memory.lowered.Add(deletioncost.LowerEvery))
		if s.now.Before(at) {
			d.wakeAt(at)
			continue
		}
		d.lower = append(d.lower, p.Pod)
		d.memory.lowered = s.now
		d.wakeAt(s.now.Add(deletioncost.LowerEvery))
		return
	}
}

// writeCosts restores and lowers deletion costs. It is best effort: it records a failure and
// continues with the other pods.
func (c *Controller) writeCosts(ctx context.Context, key types.NamespacedName, s situation, d decision) {
	starting, cancel := context.WithTimeout(ctx, costTimeout)
	defer cancel()
	write := func(pods []*corev1.Pod, write func(context.Context, kubernetes.Interface, *corev1.Pod) error) {
		for _, p := range pods {
			if starting.Err() != nil {
				// The next sync continues with the others, which were not tried yet.
				c.queue.AddAfter(item{NamespacedName: key}, 0)
				return
			}
			call, cancel := context.WithTimeout(ctx, costTimeout)
			err := write(call, c.host, p)
			cancel()
			c.noteCost(ctx, key, s.now, p, err)
		}
	}
	write(d.restore, deletioncost.Restore)
	write(d.lower, deletioncost.Lower)
}

// noteCost records the result of a write of a pod's deletion cost, and enqueues the Deployment
// after a failure.
func (c *Controller) noteCost(ctx context.Context, key types.NamespacedName, now time.Time, p *corev1.Pod, err error) {
	if err == nil {
		c.known.costWritten(key, p.UID)
		return
	}
	if ctx.Err() != nil {
		return
	}
	tried := c.known.costFailed(key, p.UID, now)
	klog.FromContext(ctx).Info("Cannot write the deletion cost of a pod", "pod", klog.KObj(p), "attempts", tried.failed,
		"isLastAttempt", tried.areOver(), "reason", err.Error())
	c.queue.AddAfter(item{NamespacedName: key}, 0)
}
