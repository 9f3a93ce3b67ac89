// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package owners determines the workloads of pods. It has two implementations of protocol.Owners:
// Cached reads the informers of the controllers, and Live reads the API. Previews need the owners
// of many pods at the same time, so they read them in bulk (see Kind).
package owners

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

var (
	jobKind  = batchv1.SchemeGroupVersion.WithKind("Job").GroupKind()
	nodeKind = corev1.SchemeGroupVersion.WithKind("Node").GroupKind()
)

// DeploymentOf returns the name of the Deployment that controls the ReplicaSet of a pod. It returns
// false if owners has no such ReplicaSet, or if the ReplicaSet has no Deployment. The Deployment
// may not exist.
func DeploymentOf(ctx context.Context, pod *corev1.Pod, owners protocol.Owners) (types.NamespacedName, bool, error) {
	owner := protocol.ControllerOf(pod, "ReplicaSet")
	if owner == nil {
		return types.NamespacedName{}, false, nil
	}
	set, err := owners.ReplicaSet(ctx, pod.Namespace, owner.Name)
	if err != nil || set == nil || set.UID != owner.UID {
		return types.NamespacedName{}, false, err
	}
	deployment := protocol.ControllerOf(set, "Deployment")
	if deployment == nil {
		return types.NamespacedName{}, false, nil
	}
	return types.NamespacedName{Namespace: set.Namespace, Name: deployment.Name}, true, nil
}
