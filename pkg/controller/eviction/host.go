// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package eviction decides which pod may be evicted next and evicts it, within the budgets, as fast
// as the API server lets it.
//
// Each pod is in a lane: that of its PodDisruptionBudget, that of its owner if no budget protects
// it, or that of all others. A lane offers the pod that may go next. A step of the queue takes what
// the lanes offer and returns the calls to make (dispatch.go). Each call is made without the lock,
// and its answer taken in: by the queue, which paces itself, by the pod, which may rest or be
// blocked, and by the lane (call.go). Then the pod is placed again. Events place pods, too, and
// open and close lanes.
//
// All that a queue remembers is a cache: it may be dropped at any time. A new one begins its
// back-offs and its patience again.
package eviction

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/host/owners"
)

// Host is what the queue asks of the host cluster: an evict.Client whose requests are not limited,
// because the queue limits itself.
type Host interface {
	// Evict posts one eviction, once: whatever the answer, it does not try again by itself. Any
	// answer but success is an error. With dryRun in its delete options, budgets, webhooks and
	// policies answer and the pod stays.
	Evict(ctx context.Context, eviction *policyv1.Eviction) error
	// Finish deletes a pod whose eviction its budget has already granted.
	Finish(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error
	// Pod reads a pod from the API, not from a cache.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// Owners tells which workload a pod belongs to, as owners.Cached does. Its methods read caches:
// they must not block.
type Owners interface {
	// Of returns the workload of the pods of a namespace that have the given controller; false if
	// such pods need no turns.
	Of(namespace string, controller *metav1.OwnerReference) (owners.Workload, bool)
	// Pods returns the pods of a namespace whose controller has the UID.
	Pods(namespace string, controller types.UID) []*corev1.Pod
	// HasSynced reports whether the caches have been filled.
	HasSynced() bool
}
