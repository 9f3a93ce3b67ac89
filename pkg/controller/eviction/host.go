// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package eviction decides which pod may be evicted next and evicts it, within the budgets, as fast
// as the API server lets it.
//
// Pods that share a PodDisruptionBudget share a lane, because every eviction under a budget is an
// update of that one object. A lane whose budget allows no disruption sends nothing but rare
// probes; the budget's watch event opens it again. Pods without a budget that share an owner share
// a lane, too, in which at most a share of the owner's pods may be missing.
//
// All that a queue remembers is a cache: it may be dropped at any time. A new one begins its
// back-offs and its patience again.
package eviction

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
