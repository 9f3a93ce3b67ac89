// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package eviction decides which pod may be evicted next and evicts it, within the budgets, as fast
// as the API server allows.
//
// Each pod is in a lane: that of its PodDisruptionBudget, that of its owner if no budget protects
// it, or that of all others. A lane offers the next pod to evict. A step of the queue chooses from
// these offers and returns the calls to make (dispatch.go). Each call is made without the lock. Its
// answer changes the concurrency limit of the queue, the state of the pod, which may rest or be
// blocked, and the lane (call.go). Then the pod is placed again. Events of pods and budgets also
// place pods, and open and close lanes.
//
// All state of a queue may be dropped at any time: a new queue starts its back-offs and its
// patience again.
package eviction

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/host/owners"
)

// Host is the access of the queue to the host cluster. An evict.Client without a rate limit
// implements it: the queue limits its requests itself.
type Host interface {
	// Evict posts one eviction and does not retry. Any answer but success is an error. With dryRun
	// in its delete options, budgets, webhooks and policies answer and the pod stays.
	Evict(ctx context.Context, eviction *policyv1.Eviction) error
	// Finish deletes a pod whose eviction its budget has already granted.
	Finish(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error
	// Pod reads a pod from the API, not from a cache.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// Owners returns the workload of a pod. owners.Cached implements it. Its methods read caches: they
// must not block.
type Owners interface {
	// Of returns the workload of the pods of a namespace that have the given controller; false if
	// such pods do not wait for each other.
	Of(namespace string, controller *metav1.OwnerReference) (owners.Workload, bool)
	// Pods returns the pods of a namespace whose controller has the UID.
	Pods(namespace string, controller types.UID) []*corev1.Pod
	// HasSynced reports whether the caches have been filled.
	HasSynced() bool
}
