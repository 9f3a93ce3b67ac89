// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
)

// TestRemedyOfABudgetThatNeverAllows covers the advice in the condition Blocked: it mentions the
// annotation only if the evacuator of Deployments can replace the pod.
func TestRemedyOfABudgetThatNeverAllows(t *testing.T) {
	const annotation = v1alpha1.AnnotationSurge + ": " + v1alpha1.SurgeAlways
	for name, tt := range map[string]struct {
		evacuators []string
		want       bool
	}{
		"a pod of a Deployment that can be scaled up": {[]string{v1alpha1.EvacuatorClassDeployment}, true},
		"a pod of another controller":                 {nil, false},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			budget := budgetOf("web")
			budget.Spec.MinAvailable, budget.Spec.MaxUnavailable = nil, ptr.To(intstr.FromInt32(0))
			budget.Status.CurrentHealthy, budget.Status.DesiredHealthy, budget.Status.ExpectedPods = 1, 1, 1
			w := newWorld(t, 0, newEvacuation(withEvacuators(tt.evacuators...), active(evict)), newPod(labelled("web")),
				newNode(corev1.ConditionTrue), budget)
			w.host.answer(refuse)
			w.until("the budget blocks the pod", time.Second,
				hasReason(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget))
			got := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionBlocked).Message
			if !strings.Contains(got, "never allows an eviction (maxUnavailable 0)") || strings.Contains(got, annotation) != tt.want {
				t.Errorf("got message %q, want that it never allows one, and %q in it: %v", got, annotation, tt.want)
			}
		})
	}
}
