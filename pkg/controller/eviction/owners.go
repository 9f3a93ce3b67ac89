// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/host/owners"
)

// Owners tells which workload a pod belongs to, as owners.Cached does. Its methods read caches:
// they must not block.
type Owners interface {
	// Of returns the workload of the pods of a namespace that have the given controller; false if
	// such pods need no turns.
	Of(namespace string, controller *metav1.OwnerReference) (Owner, bool)
	// Pods returns the pods of a namespace whose controller has the UID.
	Pods(namespace string, controller types.UID) []*corev1.Pod
	// HasSynced reports whether the caches have been filled.
	HasSynced() bool
}

// Owner is the workload that pods belong to.
type Owner = owners.Workload
