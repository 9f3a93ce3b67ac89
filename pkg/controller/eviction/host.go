// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package eviction decides which pod may be evicted next and evicts it, within the budgets and as
// fast as the API server allows.
//
// Each pod is in a lane: the lane of its PodDisruptionBudget, the lane of its owner if no budget
// protects it, or the lane of all other pods. A lane offers the next pod to evict. A step of the
// queue chooses from these offers and returns the calls to make (dispatch.go). Each call is made
// without the lock. Its answer changes the concurrency limit of the queue, the state of the pod,
// which may rest or be blocked, and the state of the lane (call.go). Then the pod is placed again.
// Events of pods and budgets also place pods, and open and close lanes.
//
// The state of a queue may be lost at any time: a new queue starts its back-offs and its wait times
// again.
package eviction

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/host/owners"
)

// Host sends the requests of the queue to the host cluster. An evict.Client without a rate limit
// implements it, since the queue limits its requests itself.
type Host interface {
	// Evict posts one eviction and does not retry. Every answer except success is an error. If its
	// delete options have dryRun, budgets, webhooks and policies are checked and the pod stays.
	Evict(ctx context.Context, eviction *policyv1.Eviction) error
	// Finish deletes a pod whose eviction its budget has already granted.
	Finish(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error
	// Pod reads a pod from the API, not from a cache.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// Owners returns the workload of a pod. owners.Cached implements it. Its methods read caches, since
// they must not block.
type Owners interface {
	// Of returns the workload of the pods of a namespace that have the given controller. It returns
	// false if these pods do not wait for each other.
	Of(namespace string, controller *metav1.OwnerReference) (owners.Workload, bool)
	// Pods returns the pods of a namespace whose controller has the UID.
	Pods(namespace string, controller types.UID) []*corev1.Pod
	// HasSynced reports whether the caches have been filled.
	HasSynced() bool
}
