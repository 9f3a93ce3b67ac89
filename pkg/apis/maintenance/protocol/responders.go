// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// UnaskedResponders returns the names of the eviction responders of a pod (KEP-4563) that a drain
// does not ask: all but those of Haulout. The field spec.evictionResponders is empty in a cluster
// without the feature gate EvictionRequestAPI.
func UnaskedResponders(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.EvictionResponders {
		if name := pod.Spec.EvictionResponders[i].Name; !strings.HasPrefix(name, v1alpha1.GroupName+"/") {
			names = append(names, name)
		}
	}
	return names
}
