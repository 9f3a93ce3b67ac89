// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// EvacuationsByNode is the name of the index of Evacuations by the node of their pod. Evacuations
// of pods without a node are under the empty name.
const EvacuationsByNode = "haulout.dev/evacuations-by-node"

// AddEvacuationsByNode adds the index EvacuationsByNode, unless another controller has done so. The
// informer must not run yet.
func AddEvacuationsByNode(informer cache.SharedIndexInformer) error {
	return AddIndex(informer, EvacuationsByNode, func(obj any) ([]string, error) {
		if evacuation, ok := obj.(*v1alpha1.Evacuation); ok {
			return []string{evacuation.Spec.NodeName}, nil
		}
		return nil, nil
	})
}
