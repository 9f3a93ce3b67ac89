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

package surge

import corev1 "k8s.io/api/core/v1"

// CordonToleration returns a phrase with the toleration that lets the scheduler put a pod on
// cordoned nodes; "" if the pod has none.
func CordonToleration(p *corev1.Pod) string {
	for i := range p.Spec.Tolerations {
		t := &p.Spec.Tolerations[i]
		if t.Effect != "" && t.Effect != corev1.TaintEffectNoSchedule {
			continue
		}
		switch {
		case t.Key == "" && t.Operator == corev1.TolerationOpExists:
			return "tolerates the cordon taint " + corev1.TaintNodeUnschedulable + " (it tolerates all taints)"
		case t.Key == corev1.TaintNodeUnschedulable && (t.Operator == corev1.TolerationOpExists || t.Value == ""):
			return "tolerates the cordon taint " + corev1.TaintNodeUnschedulable
		}
	}
	return ""
}
