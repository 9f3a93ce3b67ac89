/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

// requestPatience is how long a request for an Evacuation is taken for granted although the cache
// does not show it.
const requestPatience = 10 * time.Second

// requestedEvacuations remembers, until the cache shows it, for which pods an Evacuation has been
// asked: so that they are not asked for again at once, and so that what was asked for can be taken
// back at once. It also remembers which pods cannot have one.
type requestedEvacuations struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	pods map[types.UID]evacuationRequest
}

type evacuationRequest struct {
	evacuation types.NamespacedName
	// node is the node that the pod counted for.
	node  string
	until time.Time
	// terminating: it was refused because the namespace goes away.
	terminating bool
	// failures counts the requests that failed one after the other; failure is the last error.
	failures int
	failure  string
}

func newRequestedEvacuations(clock clock.PassiveClock) *requestedEvacuations {
	return &requestedEvacuations{clock: clock, pods: map[types.UID]evacuationRequest{}}
}

func (r *requestedEvacuations) remember(pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods[pod.UID] = evacuationRequest{
		evacuation: types.NamespacedName{Namespace: pod.Namespace, Name: protocol.CanonicalName(pod.Name, pod.UID)},
		node:       controllercache.NodeOf(pod), until: r.clock.Now().Add(requestPatience),
		// No namespace comes back.
		terminating: r.pods[pod.UID].terminating,
		failures:    r.pods[pod.UID].failures, failure: r.pods[pod.UID].failure,
	}
}

// refuse notes that a pod cannot have an Evacuation because its namespace goes away.
func (r *requestedEvacuations) refuse(pod types.UID) {
	r.change(pod, func(request *evacuationRequest) { request.terminating = true })
}

// failed notes that no Evacuation could be created for a pod, and reports whether that is the
// second time.
func (r *requestedEvacuations) failed(pod types.UID, err error) (twice bool) {
	r.change(pod, func(request *evacuationRequest) {
		request.failures++
		request.failure = err.Error()
		twice = request.failures == 2
	})
	return twice
}

// failure returns why no Evacuation could be created for a pod, if that has failed twice.
func (r *requestedEvacuations) failure(pod types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if request := r.pods[pod]; request.failures >= 2 {
		return request.failure
	}
	return ""
}

// retry has a pod asked again without waiting.
func (r *requestedEvacuations) retry(pod types.UID) {
	r.change(pod, func(request *evacuationRequest) { request.until = time.Time{} })
}

func (r *requestedEvacuations) change(pod types.UID, modify func(*evacuationRequest)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if request, ok := r.pods[pod]; ok {
		modify(&request)
		r.pods[pod] = request
	}
}

// on returns the requests for pods of the nodes that the cache does not show yet.
func (r *requestedEvacuations) on(nodes sets.Set[string]) []evacuationRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []evacuationRequest
	for _, request := range r.pods {
		if nodes.Has(request.node) && !request.terminating {
			out = append(out, request)
		}
	}
	return out
}

// isPending reports whether an Evacuation of a pod of a node was requested a moment ago and the
// cache does not show it yet.
func (r *requestedEvacuations) isPending(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, request := range r.pods {
		if request.node == node && !request.terminating && request.failures == 0 && r.clock.Now().Before(request.until) {
			return true
		}
	}
	return false
}

// wait returns how long to wait before asking again.
func (r *requestedEvacuations) wait(pod types.UID) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	request, ok := r.pods[pod]
	if !ok {
		return 0
	}
	return request.until.Sub(r.clock.Now())
}

// inTerminatingNamespace says whether the pod was refused an Evacuation because its namespace goes
// away.
func (r *requestedEvacuations) inTerminatingNamespace(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[pod].terminating
}

// forget drops what is remembered of a pod: the cache shows its Evacuation as it was asked for, or
// that is gone, or the pod is.
func (r *requestedEvacuations) forget(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, pod)
}
