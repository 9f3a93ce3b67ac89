// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// RequestPatience is the time for which a requested Evacuation is assumed to exist although it is
// not in the cache.
const RequestPatience = 10 * time.Second

// mostRequestPatience is the longest wait between two requests for a pod whose requests keep
// failing.
const mostRequestPatience = time.Minute

// Requests records for which pods an Evacuation was requested, until the Evacuation is in the
// cache. It prevents a second request, and makes it possible to withdraw the Evacuation before it
// is in the cache. It also records which pods cannot have an Evacuation. A new leader requests
// again. Requests is safe for concurrent use.
type Requests struct {
	clock clock.PassiveClock
	// ended is called with the node of a request when it is certain that the requested Evacuation
	// does not exist.
	ended func(node string)

	mu   sync.Mutex
	pods map[types.UID]Request
	// byEvacuation and byNode are indexes of the UIDs of the pods.
	byEvacuation map[types.NamespacedName]types.UID
	byNode       map[string]sets.Set[types.UID]
}

// Request is a request for the Evacuation of a pod.
type Request struct {
	Evacuation types.NamespacedName
	// Pod is the UID of the pod, Node the node that the pod was bound to or nominated for.
	Pod  types.UID
	Node string
	// Tried is the time at which the last request was sent. The next request is not sent before
	// Until.
	Tried, Until time.Time
	// Unanswered is set while the API server has not responded to the request.
	Unanswered bool
	// Terminating is set if the request was refused because the namespace is being deleted.
	Terminating bool
	// Failures counts the consecutive failures; Failure is the last error.
	Failures int
	Failure  string
}

// IsRecent reports whether a request was made a moment ago and has not failed.
func (r Request) IsRecent(now time.Time) bool {
	return !r.Terminating && r.Failures == 0 && now.Before(r.Until)
}

// ErrNotRequested is returned for a request that was not sent, or whose pod no longer exists.
var ErrNotRequested = errors.New("no Evacuation is requested")

// InconclusiveError wraps an error of a request that is not caused by its pod.
type InconclusiveError struct{ Err error }

// Error returns the text of the error, and Unwrap the error.
func (i InconclusiveError) Error() string { return i.Err.Error() }
func (i InconclusiveError) Unwrap() error { return i.Err }

func newRequests(clock clock.PassiveClock, ended func(node string)) *Requests {
	return &Requests{clock: clock, ended: ended, pods: map[types.UID]Request{}, byEvacuation: map[types.NamespacedName]types.UID{}, byNode: map[string]sets.Set[types.UID]{}}
}

// Do calls send, which requests the Evacuation of a pod, and returns its error. Do records the
// request before it calls send, since the event of the Evacuation may arrive before the response.
// The record is dropped when the Evacuation is in the cache. After a failure, no request is sent
// for the pod for RequestPatience, which doubles with each failure, so that a webhook that hangs
// for some pods does not delay others.
func (r *Requests) Do(pod *Pod, send func() error) error {
	r.remember(pod)
	err := send()
	if errors.Is(err, ErrNotRequested) {
		r.End(pod.Node, pod.UID)
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	request, known := r.pods[pod.UID]
	if !known {
		return err
	}
	request.Unanswered = false
	switch {
	case err == nil, errors.As(err, &InconclusiveError{}):
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		request.Terminating = true
	default:
		request.Failures++
		request.Failure = TextOf(err)
		request.Until = r.clock.Now().Add(backoff(request.Failures))
	}
	r.pods[pod.UID] = request
	return err
}

func (r *Requests) remember(pod *Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	request := r.pods[pod.UID]
	r.forget(pod.UID)
	// Keep Terminating and the failures: a namespace that is being deleted remains so.
	request.Evacuation = types.NamespacedName{Namespace: pod.Namespace, Name: protocol.CanonicalName(pod.Name, pod.UID)}
	request.Pod, request.Node, request.Unanswered = pod.UID, pod.Node, true
	request.Tried = r.clock.Now()
	request.Until = request.Tried.Add(RequestPatience)
	if r.byNode[request.Node] == nil {
		r.byNode[request.Node] = sets.New[types.UID]()
	}
	r.byNode[request.Node].Insert(pod.UID)
	r.byEvacuation[request.Evacuation] = pod.UID
	r.pods[pod.UID] = request
}

// backoff returns the time after which a request is repeated. failures is at least 1.
func backoff(failures int) time.Duration {
	const doublings = 3
	return min(RequestPatience<<min(failures-1, doublings), mostRequestPatience)
}

// Of returns the last request for a pod, the zero value if there is none.
func (r *Requests) Of(pod types.UID) Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[pod]
}

// For returns the request for an Evacuation that is not in the cache.
func (r *Requests) For(evacuation types.NamespacedName) (Request, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	uid, requested := r.byEvacuation[evacuation]
	return r.pods[uid], requested && !r.pods[uid].Terminating
}

// On returns the requests for pods of a node.
func (r *Requests) On(node string) []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var on []Request
	for uid := range r.byNode[node] {
		on = append(on, r.pods[uid])
	}
	return on
}

// End records that the requested Evacuation of a pod does not exist.
func (r *Requests) End(node string, pod types.UID) {
	r.Forget(pod)
	r.ended(node)
}

// Forget drops the request for a pod: its Evacuation is in the cache, or the Evacuation or the pod
// was deleted.
func (r *Requests) Forget(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(pod)
}

func (r *Requests) forget(pod types.UID) {
	known, ok := r.pods[pod]
	if !ok {
		return
	}
	if r.byNode[known.Node].Delete(pod); r.byNode[known.Node].Len() == 0 {
		delete(r.byNode, known.Node)
	}
	delete(r.byEvacuation, known.Evacuation)
	delete(r.pods, pod)
}

// maxText is the maximum length of the text of an error, in bytes.
const maxText = 512

// TextOf returns one line about an error, "" for nil. If the error consists of several errors, the
// line quotes the first in sorted order, so that it does not depend on the order in which they
// occurred.
func TextOf(err error) string {
	if err == nil {
		return ""
	}
	all := flatten(err)
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = one.Error()
	}
	slices.Sort(texts)
	more := ""
	if len(texts) > 1 {
		more = fmt.Sprintf(" and %d more errors", len(texts)-1)
	}
	return drainplan.Fit(protocol.OneLine(texts[0], len(texts[0])), maxText-len(more)) + more
}

func flatten(err error) []error {
	var parts []error
	switch e := any(err).(type) {
	case interface{ Errors() []error }:
		parts = e.Errors()
	case interface{ Unwrap() []error }:
		parts = e.Unwrap()
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil && inner.Error() == err.Error() {
			return flatten(inner)
		}
	}
	var out []error
	for _, part := range parts {
		out = append(out, flatten(part)...)
	}
	if len(out) == 0 {
		return []error{err}
	}
	return out
}
