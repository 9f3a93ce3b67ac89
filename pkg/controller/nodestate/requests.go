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
	"haulout.dev/haulout/pkg/host/podcache"
)

// RequestPatience is how long a request for an Evacuation is taken for granted although the cache
// does not show it.
const RequestPatience = 10 * time.Second

// mostRequestPatience is how long a pod whose requests keep failing is left alone at most.
const mostRequestPatience = time.Minute

// Requests remembers, until the cache shows it, for which pods an Evacuation was requested: so that
// it is not requested twice, and so that it can be withdrawn before the cache shows it. It also
// remembers which pods cannot have one. A new leader requests once more. It is safe for concurrent
// use.
type Requests struct {
	clock clock.PassiveClock
	// ended is called with the node of a request that turns out to be for nothing.
	ended func(node string)

	mu   sync.Mutex
	pods map[types.UID]Request
	// byEvacuation and byNode are the UIDs of the pods.
	byEvacuation map[types.NamespacedName]types.UID
	byNode       map[string]sets.Set[types.UID]
}

// Request is a request for the Evacuation of a pod.
type Request struct {
	Evacuation types.NamespacedName
	// Pod is the UID of the pod, Node the node that it counted for.
	Pod  types.UID
	Node string
	// Tried is when the last request was sent, and no other one is sent until Until.
	Tried, Until time.Time
	// Unanswered: the request is under way.
	Unanswered bool
	// Terminating: it was refused because the namespace is being deleted.
	Terminating bool
	// Failures counts the requests that failed one after the other; Failure is the last error.
	Failures int
	Failure  string
}

// IsRecent reports whether a request was made a moment ago and has not failed.
func (r Request) IsRecent(now time.Time) bool {
	return !r.Terminating && r.Failures == 0 && now.Before(r.Until)
}

// ErrNotRequested is the outcome of a request that was not sent, or whose pod is gone.
var ErrNotRequested = errors.New("no Evacuation is requested")

// InconclusiveError marks an error of a request that tells nothing about its pod.
type InconclusiveError struct{ Err error }

// Error returns the text of the error, and Unwrap the error.
func (i InconclusiveError) Error() string { return i.Err.Error() }
func (i InconclusiveError) Unwrap() error { return i.Err }

func newRequests(clock clock.PassiveClock, ended func(node string)) *Requests {
	return &Requests{clock: clock, ended: ended, pods: map[types.UID]Request{}, byEvacuation: map[types.NamespacedName]types.UID{}, byNode: map[string]sets.Set[types.UID]{}}
}

// Do has a request for the Evacuation of a pod sent, and returns its error. The request is
// remembered before it is sent, lest the event of the Evacuation outrun the memory of it, and until
// the cache shows it; no other one is sent meanwhile. After a failure the pod is not asked again
// for RequestPatience, which doubles with each failure, so that a webhook that hangs for some pods
// does not hold back others.
func (r *Requests) Do(pod *corev1.Pod, send func() error) error {
	r.remember(pod)
	err := send()
	if errors.Is(err, ErrNotRequested) {
		r.End(podcache.NodeOf(pod), pod.UID)
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
		request.Failure = err.Error()
		request.Until = r.clock.Now().Add(backoff(request.Failures))
	}
	r.pods[pod.UID] = request
	return err
}

func (r *Requests) remember(pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	request := r.pods[pod.UID]
	r.forget(pod.UID)
	// What was refused before, and has failed, still has: a namespace that is being deleted never
	// comes back.
	request.Evacuation = types.NamespacedName{Namespace: pod.Namespace, Name: protocol.CanonicalName(pod.Name, pod.UID)}
	request.Pod, request.Node, request.Unanswered = pod.UID, podcache.NodeOf(pod), true
	request.Tried = r.clock.Now()
	request.Until = request.Tried.Add(RequestPatience)
	if r.byNode[request.Node] == nil {
		r.byNode[request.Node] = sets.New[types.UID]()
	}
	r.byNode[request.Node].Insert(pod.UID)
	r.byEvacuation[request.Evacuation] = pod.UID
	r.pods[pod.UID] = request
}

// backoff returns how long to wait before a request is repeated that has failed a number of times,
// at least once.
func backoff(failures int) time.Duration {
	const doublings = 3
	return min(RequestPatience<<min(failures-1, doublings), mostRequestPatience)
}

// Of returns the last request for a pod, the zero value if nothing is remembered.
func (r *Requests) Of(pod types.UID) Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[pod]
}

// For returns the request for an Evacuation that the cache does not show.
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

// End notes that an Evacuation that was requested for a pod of a node does not exist.
func (r *Requests) End(node string, pod types.UID) {
	r.Forget(pod)
	r.ended(node)
}

// Forget drops what is remembered of a pod: the cache shows its Evacuation as it was requested, or
// the Evacuation or the pod is deleted.
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

// maxText bounds the text of an error, in bytes.
const maxText = 512

// TextOf returns one line about an error. Of several errors it quotes the one that sorts first, so
// that the text stays the same while they fail in another order; no error is no text.
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
	return drainplan.Fit(texts[0], maxText-len(more)) + more
}

// flatten returns the single errors of an error that consists of several.
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
