// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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
