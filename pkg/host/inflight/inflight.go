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

// Package inflight keeps the evictions that have been sent to the host cluster and not been
// answered. The sender of evictions writes it, and the controller of nodes reads it: a node is not
// released while a pod may still be evicted on behalf of a maintenance that has ended.
package inflight

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Eviction is an eviction that has been sent.
type Eviction struct {
	// Evacuation is the Evacuation that it was sent for.
	Evacuation types.NamespacedName
	// Pod and UID are those of the pod, which is in the namespace of the Evacuation.
	Pod string
	UID types.UID
}

// Evictions is the set of evictions in flight. Its zero value is empty. It is safe for concurrent
// use.
type Evictions struct {
	mu  sync.Mutex
	all map[types.UID]Eviction
}

// Add notes that an eviction is about to be sent. Whoever withdraws an Evacuation first and then
// finds no eviction here can be sure that none will be sent, provided that the sender adds it
// before it asks whether the Evacuation is still wanted.
func (e *Evictions) Add(eviction Eviction) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = map[types.UID]Eviction{}
	}
	e.all[eviction.UID] = eviction
}

// Remove notes that the eviction of a pod has been answered, or was not sent.
func (e *Evictions) Remove(pod types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.all, pod)
}

// List returns the evictions in flight, in no order.
func (e *Evictions) List() []Eviction {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]Eviction, 0, len(e.all))
	for _, eviction := range e.all {
		out = append(out, eviction)
	}
	return out
}
