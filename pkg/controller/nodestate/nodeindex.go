// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/podcache"
)

// NodesByMaintenance is the index of nodes by the UIDs of the maintenances that their annotations
// name.
const NodesByMaintenance = "haulout.dev/nodes-by-maintenance"

// AddNodesByMaintenance adds the index, unless another controller has done so. The informer must
// not run yet.
func AddNodesByMaintenance(informer cache.SharedIndexInformer) error {
	return podcache.AddIndex(informer, NodesByMaintenance, func(obj any) ([]string, error) {
		node, ok := obj.(*corev1.Node)
		if !ok {
			return nil, nil
		}
		var uids []string
		for uid := range marks.UIDs(node) {
			uids = append(uids, string(uid))
		}
		return uids, nil
	})
}
