// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
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
// remembers which pods cannot have one. It is safe for concurrent use.
type Requests struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	pods map[types.UID]request
	// byEvacuation and byNode are the UIDs of the pods.
	byEvacuation map[types.NamespacedName]types.UID
	byNode       map[string]sets.Set[types.UID]
}

type request struct {
	evacuation types.NamespacedName
	// node is the node that the pod counted for.
	node  string
	until time.Time
	// tried is when the last request was sent.
	tried time.Time
	// unanswered: the request is under way.
	unanswered bool
	// terminating: it was refused because the namespace is being deleted.
	terminating bool
	// failures counts the requests that failed one after the other; failure is the last error.
	failures int
	failure  string
}

func newRequests(clock clock.PassiveClock) *Requests {
	return &Requests{clock: clock, pods: map[types.UID]request{}, byEvacuation: map[types.NamespacedName]types.UID{}, byNode: map[string]sets.Set[types.UID]{}}
}

// Remember notes, before the request is sent, that an Evacuation is requested for a pod. The caller
// calls Answered after it.
func (r *Requests) Remember(pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.pods[pod.UID]
	r.forget(pod.UID)
	node := podcache.NodeOf(pod)
	if r.byNode[node] == nil {
		r.byNode[node] = sets.New[types.UID]()
	}
	r.byNode[node].Insert(pod.UID)
	evacuation := types.NamespacedName{Namespace: pod.Namespace, Name: protocol.CanonicalName(pod.Name, pod.UID)}
	r.byEvacuation[evacuation] = pod.UID
	r.pods[pod.UID] = request{
		evacuation: evacuation, node: node, until: r.clock.Now().Add(RequestPatience), tried: r.clock.Now(), unanswered: true,
		// A namespace that is being deleted never comes back.
		terminating: before.terminating,
		failures:    before.failures, failure: before.failure,
	}
}

// Answered notes that the request for a pod was answered, or has failed.
func (r *Requests) Answered(pod types.UID) {
	r.change(pod, func(r *request) { r.unanswered = false })
}

// Refuse notes that a pod cannot have an Evacuation because its namespace is being deleted.
func (r *Requests) Refuse(pod types.UID) {
	r.change(pod, func(r *request) { r.terminating = true })
}

// Failed notes that no Evacuation could be created for a pod, and reports whether that is the
// second time. The pod is not asked again for RequestPatience, which doubles with each failure, so
// that a webhook that hangs for some pods does not hold back others.
func (r *Requests) Failed(pod types.UID, err error) (twice bool) {
	r.change(pod, func(request *request) {
		request.failures++
		request.failure = err.Error()
		request.until = r.clock.Now().Add(Backoff(request.failures))
		twice = request.failures == 2
	})
	return twice
}

// Backoff returns how long to wait before a request is repeated that has failed a number of times,
// at least once.
func Backoff(failures int) time.Duration {
	const doublings = 3
	return min(RequestPatience<<min(failures-1, doublings), mostRequestPatience)
}

// Tried returns when a request for a pod was last sent, zero if none was.
func (r *Requests) Tried(pod types.UID) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[pod].tried
}

// HasFailed reports whether the last request for a pod has failed.
func (r *Requests) HasFailed(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[pod].failures > 0
}

// Failure returns why no Evacuation could be created for a pod, if that has failed twice.
func (r *Requests) Failure(pod types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if request := r.pods[pod]; request.failures >= 2 {
		return request.failure
	}
	return ""
}

func (r *Requests) change(pod types.UID, modify func(*request)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if request, ok := r.pods[pod]; ok {
		modify(&request)
		r.pods[pod] = request
	}
}

// On returns the Evacuations that were requested for pods of a node and that the cache does not
// show.
func (r *Requests) On(node string) []types.NamespacedName {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []types.NamespacedName
	for uid := range r.byNode[node] {
		if request := r.pods[uid]; !request.terminating {
			out = append(out, request.evacuation)
		}
	}
	return out
}

// Pods returns the UIDs of the pods of a node for which something is remembered.
func (r *Requests) Pods(node string) []types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byNode[node].UnsortedList()
}

// Of returns the request for an Evacuation that the cache does not show.
func (r *Requests) Of(evacuation types.NamespacedName) (Request, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	uid, requested := r.byEvacuation[evacuation]
	one := r.pods[uid]
	return Request{Pod: uid, Node: one.node, Unanswered: one.unanswered}, requested && !one.terminating
}

// Request is a request for an Evacuation.
type Request struct {
	// Pod is the UID of the pod, Node the node that it counted for.
	Pod  types.UID
	Node string
	// Unanswered: the request is under way.
	Unanswered bool
}

// AnyRecent reports whether a request for a pod of a node was made a moment ago and has not failed.
func (r *Requests) AnyRecent(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.byNode[node] {
		if request := r.pods[uid]; !request.terminating && request.failures == 0 && r.clock.Now().Before(request.until) {
			return true
		}
	}
	return false
}

// Wait returns how long to wait before asking again.
func (r *Requests) Wait(pod types.UID) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	request, ok := r.pods[pod]
	if !ok {
		return 0
	}
	return request.until.Sub(r.clock.Now())
}

// InTerminatingNamespace reports whether a pod was refused an Evacuation because its namespace is
// being deleted.
func (r *Requests) InTerminatingNamespace(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[pod].terminating
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
	if r.byNode[known.node].Delete(pod); r.byNode[known.node].Len() == 0 {
		delete(r.byNode, known.node)
	}
	delete(r.byEvacuation, known.evacuation)
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
