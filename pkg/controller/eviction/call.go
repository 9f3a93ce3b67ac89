// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

const (
	// callTimeout is longer than the API server may take for an eviction: twenty conflicts of half
	// a second on the pod, and as many on the budget.
	callTimeout = 40 * time.Second
	// finishTimeout ends the call that deletes the pod of an interrupted eviction. With it the last
	// deletion ends well before the disruption controller forgets the entry, the difference between
	// two machines' clocks included.
	finishTimeout = 15 * time.Second
	// finishGrace is how long a call that is under way when the queue is told to stop may go on, so
	// as not to interrupt it between the two steps of the API server.
	finishGrace = 4 * time.Second
	// resendAfter is how long a pod may look untouched in the cache after its eviction was
	// accepted.
	resendAfter = time.Minute
	// overloadPause is how long nothing is sent to an overloaded API server that does not say
	// itself.
	overloadPause = time.Second
)

// call is an eviction on its way.
type call struct {
	// Request is the one that the pod is evicted for; the item may have got another one meanwhile.
	*Request
	it   *item
	pod  *corev1.Pod
	lane lane
	pass pass
	// number is the call's among all tries of the queue.
	number uint64
	sent   time.Time
	took   time.Duration
	// budgetVersion is the resourceVersion of the budget that the pass was derived from.
	budgetVersion string
	// limit and laneLimit are how many calls were allowed, of the queue and of the lane, when it
	// was sent.
	limit, laneLimit int
}

// send makes one call, unless the Evacuation was withdrawn, and has the queue take in the answer.
// The eviction already counts as in flight: a client that withdraws the Evacuation either finds it
// there or prevents it.
func (q *Queue) send(ctx context.Context, c *call) {
	ctx, cancel := untilFinished(ctx)
	defer cancel()
	a := answer{verdict: verdictWithdrawn}
	if q.cfg.Wanted(*c.Request) {
		a = q.ask(ctx, c)
	}
	q.settle(c, a)
	q.wake()
}

// ask is the only place where the queue talks to the API.
func (q *Queue) ask(ctx context.Context, c *call) answer {
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(c.Evacuation.Namespace, c.Pod), "podUID", c.UID)
	a := answerOf(q.evict(klog.NewContext(ctx, logger), c), c.pass == passUnready)
	c.took = q.cfg.Clock.Since(c.sent)
	evictionsTotal.WithLabelValues(string(a.verdict)).Inc()
	logger.V(4).Info("Eviction answered", "answer", a.verdict, "took", c.took, "message", a.message)
	if a.verdict == verdictUnknown {
		a = q.reread(ctx, c, a)
	}
	if a.verdict == verdictAccepted {
		q.cfg.Evicted(c.pod, c.lane.common().protected)
	}
	return a
}

// evict makes the call that a pass gives the right to.
func (q *Queue) evict(ctx context.Context, c *call) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(c.UID)}}
	if c.pass == passGranted {
		klog.FromContext(ctx).Info("Finishing an eviction that was interrupted after its budget had granted it")
		ctx, cancel := context.WithTimeout(ctx, finishTimeout)
		defer cancel()
		return q.cfg.Host.Finish(ctx, c.Evacuation.Namespace, c.Pod, options)
	}
	return q.cfg.Host.Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Evacuation.Namespace, Name: c.Pod}, DeleteOptions: &options,
	})
}

// untilFinished returns a context for one call, which outlives the end of its parent for a while.
func untilFinished(ctx context.Context) (context.Context, context.CancelFunc) {
	callCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(finishGrace, cancel) })
	return callCtx, func() {
		stop()
		cancel()
	}
}

// reread finds out what has become of a pod whose eviction got lost.
func (q *Queue) reread(ctx context.Context, c *call, a answer) answer {
	pod, err := q.cfg.Host.Pod(ctx, c.Evacuation.Namespace, c.Pod)
	switch {
	case apierrors.IsNotFound(err) || err == nil && pod.UID != c.UID:
		a = answer{verdict: verdictGone}
	case err != nil:
		a = answer{verdict: verdictOverloaded, message: err.Error()}
	case pod.DeletionTimestamp != nil:
		a = answer{verdict: verdictAccepted}
	}
	a.lost = true
	return a
}

// settle takes in an answer: the lane and the queue learn their pace from it, the pod goes where it
// belongs now.
func (q *Queue) settle(c *call, a answer) {
	q.mu.Lock()
	defer q.unlock()
	it, now := c.it, q.cfg.Clock.Now()
	q.inFlight--
	if c.lane.common().protected {
		q.protected--
	}
	q.pace(c, a, now)
	if it.phase = phaseWaiting; a.verdict != verdictWithdrawn {
		it.tried = c.number
		it.settle(a, q.cfg.Policy.DeniedAfter, now)
	}
	c.lane.settle(c, a, now)
	if a.verdict == verdictWithdrawn && !it.askedAgain && !it.removed {
		q.cfg.InFlight.Remove(it.UID)
		q.park(it, nil, now)
		return
	}
	q.place(it, now)
	if a.verdict == verdictBudgetClosed {
		q.report(it)
	}
}

// pace adapts how many calls may be in flight. What admission or a lost connection says about one
// pod tells nothing about the others.
func (q *Queue) pace(c *call, a answer, now time.Time) {
	switch a.verdict {
	case verdictOverloaded:
		q.calls.bad(c.limit)
		if q.overloadedBy != "" && q.overloadedBy != c.UID {
			q.pausedUntil = latest(q.pausedUntil, now.Add(max(overloadPause, a.retryAfter)))
		}
		q.overloadedBy = c.UID
	case verdictUnknown, verdictDenied, verdictWithdrawn:
	default:
		q.calls.good()
		q.overloadedBy = ""
	}
}
