/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package cache

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
