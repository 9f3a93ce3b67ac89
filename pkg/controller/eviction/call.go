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

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// callTimeout is longer than the longest eviction in the API server, which has twenty conflicts
	// of half a second on the pod, and as many on the budget.
	callTimeout = 40 * time.Second
	// finishTimeout is the timeout of the call that deletes the pod of an interrupted eviction. The
	// call ends well before the disruption controller removes the entry, even if the clocks of the
	// two machines differ.
	finishTimeout = 15 * time.Second
	// finishGrace is how long a call in flight may continue after the queue stops, so that it is
	// not aborted between the two steps of the API server.
	finishGrace = 4 * time.Second
	// resendAfter is how long a pod may stay unchanged in the cache after its eviction was
	// accepted. Then it is evicted again.
	resendAfter = time.Minute
	// overloadPause is how long the queue sends no evictions to an overloaded API server that sets
	// no Retry-After.
	overloadPause = time.Second
)

// call is an eviction in flight.
type call struct {
	// Request is the request at the time of the call. The request of the item may have been
	// replaced since.
	*Request
	it   *item
	pod  *corev1.Pod
	lane lane
	pass pass
	// number is the sequence number of the call in this queue.
	number uint64
	sent   time.Time
	took   time.Duration
	// budgetVersion is the resourceVersion of the budget that the pass is based on.
	budgetVersion string
	// limit and laneLimit are the concurrency limits of the queue and of the lane at the time of
	// the call.
	limit, laneLimit int
}

// send makes one call, unless the Evacuation was withdrawn, and processes the answer. The eviction
// already counts as in flight. So a client that withdraws the Evacuation either finds the eviction
// in flight or prevents it.
func (q *Queue) send(ctx context.Context, c *call) {
	ctx, cancel := untilFinished(ctx)
	defer cancel()
	a := answer{verdict: verdictWithdrawn}
	if q.cfg.Wanted(*c.Request) {
		a = q.ask(ctx, c)
	}
	q.handleAnswer(c, a)
	q.wake()
}

// ask sends the eviction. It makes all API calls of the queue.
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

func (q *Queue) evict(ctx context.Context, c *call) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(c.UID)}}
	if c.pass == passGranted {
		klog.FromContext(ctx).Info("Finishing an eviction that was interrupted after its budget had granted it")
		ctx, cancel := context.WithTimeout(ctx, finishTimeout)
		defer cancel()
		return q.cfg.Host.Finish(ctx, c.Evacuation.Namespace, c.Pod, options)
	}
	if c.pass == passProbe {
		// The API server asks no budget about a pod that has just finished, and would delete it
		// with the status that its owner may want to read. A probe is sent to learn about the
		// budget only, so it is refused if the pod has changed.
		options.Preconditions.ResourceVersion = ptr.To(c.pod.ResourceVersion)
	}
	return q.cfg.Host.Evict(ctx, newEviction(c.Evacuation.Namespace, c.Pod, options))
}

func newEviction(namespace, pod string, options metav1.DeleteOptions) *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: pod,
			// Its review would cost a call, and only confirm that the evacuators are done.
			Annotations: map[string]string{v1alpha1.AnnotationEvictNow: "haulout-apiserver"},
		},
		DeleteOptions: &options,
	}
}

// untilFinished returns a context for one call. It ends after callTimeout, or finishGrace after the
// end of its parent.
func untilFinished(ctx context.Context) (context.Context, context.CancelFunc) {
	callCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(finishGrace, cancel) })
	return callCtx, func() {
		stop()
		cancel()
	}
}

// reread reads a pod after an eviction without a clear answer.
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

// handleAnswer processes an answer. It updates the concurrency limits of the queue and of the lane,
// and places the item again.
func (q *Queue) handleAnswer(c *call, a answer) {
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
		it.handleAnswer(a, q.cfg.Policy.DeniedAfter, now)
	}
	c.lane.handleAnswer(c, a, now)
	if a.verdict == verdictWithdrawn && !it.askedAgain && !it.removed {
		// What is reported stays until the pod is placed again or removed.
		q.cfg.InFlight.Remove(it.UID)
		q.park(it)
		return
	}
	q.place(it, now)
	if a.verdict == verdictBudgetClosed {
		q.report(it)
	}
}

// pace adapts the limit of calls in flight to an answer. A denial by admission and a lost
// connection do not change the limit, since they say nothing about other pods.
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
