// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package podcache has the indexes and the transforms of the informers that the controllers share.
package podcache

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// PodsByNode is the name of the index of pods by the node that they are bound to or nominated for.
const PodsByNode = "haulout.dev/pods-by-node"

// NodeOf returns the node a pod counts for: the one it is bound to or, for a Pending pod that is
// not, the one it is nominated for, since the scheduler may be about to bind it.
//
// A pod with scheduling gates counts for none: the scheduler does not try it, so nothing binds it,
// and nothing removes a nomination that others than the scheduler have made (KEP-5278). Without its
// gates it counts again; by then the scheduler sees that the node is cordoned.
func NodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	if pod.Status.Phase == corev1.PodPending && len(pod.Spec.SchedulingGates) == 0 {
		return pod.Status.NominatedNodeName
	}
	return ""
}

// AddPodsByNode adds the index PodsByNode, unless another controller has done so. The informer must
// not run yet.
func AddPodsByNode(informer cache.SharedIndexInformer) error {
	return AddIndex(informer, PodsByNode, func(obj any) ([]string, error) {
		if pod := UnpackPod(obj); pod != nil {
			if node := NodeOf(pod); node != "" {
				return []string{node}, nil
			}
		}
		return nil, nil
	})
}

// AddIndex adds an index to an informer, unless one of the same name is there. The informer must
// not run yet.
func AddIndex(informer cache.SharedIndexInformer, name string, index cache.IndexFunc) error {
	if _, there := informer.GetIndexer().GetIndexers()[name]; there {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{name: index})
}

// Readiness returns the status of the condition Ready of a node.
func Readiness(node *corev1.Node) corev1.ConditionStatus {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			return node.Status.Conditions[i].Status
		}
	}
	return ""
}
