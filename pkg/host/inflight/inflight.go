// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package inflight has the evictions that have been sent to the host cluster and whose outcome is
// not known: the API server has not responded, or the cache does not show yet that the pod
// terminates. The eviction queue writes it. The node controller and the evacuator of Deployments
// read it. While a pod may still be evicted for a maintenance that has ended, its node is not
// released and the surge of its Deployment is not reverted.
package inflight

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Eviction is an eviction that has been sent.
type Eviction struct {
	// Evacuation is the Evacuation for which the eviction was sent.
	Evacuation types.NamespacedName
	// Pod and UID identify the pod, which is in the namespace of the Evacuation.
	Pod string
	UID types.UID
}

// Evictions is the set of evictions in flight. Its zero value is empty. It is safe for concurrent
// use.
type Evictions struct {
	// byPod has the Eviction of each pod, by the UID of the pod.
	byPod sync.Map
}

// Add records that an eviction is about to be sent. The sender must call Add before it checks that
// the Evacuation was not withdrawn. Then a client that withdraws the Evacuation first, and then
// finds no eviction here, can be sure that none will be sent.
func (e *Evictions) Add(eviction Eviction) { e.byPod.Store(eviction.UID, eviction) }

// Remove records that the outcome of a pod's eviction is known, or that no eviction was sent.
func (e *Evictions) Remove(pod types.UID) { e.byPod.Delete(pod) }

// Has reports whether an eviction of a pod is in flight.
func (e *Evictions) Has(pod types.UID) bool {
	_, ok := e.byPod.Load(pod)
	return ok
}

// List returns the evictions in flight, in no order.
func (e *Evictions) List() []Eviction {
	var all []Eviction
	e.byPod.Range(func(_, eviction any) bool {
		all = append(all, eviction.(Eviction))
		return true
	})
	return all
}
