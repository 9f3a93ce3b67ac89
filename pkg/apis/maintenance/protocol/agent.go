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

package protocol

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// HasNodeAgent reports whether a node has a node agent that can stop and restart its static pods,
// as its condition shows. An agent that crashes leaves the condition True, so a drain does not end
// without its static pods: their Evacuations become blocked.
func HasNodeAgent(node *corev1.Node) bool {
	return node != nil && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == maintenancev1alpha1.NodeConditionAgentReady && c.Status == corev1.ConditionTrue
	})
}
