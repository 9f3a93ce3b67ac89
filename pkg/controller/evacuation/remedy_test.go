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
		labels     []string
		want       bool
		also       string
	}{
		"a pod of a Deployment that can be scaled up": {[]string{v1alpha1.EvacuatorClassDeployment}, nil, true, "on the Deployment"},
		"a pod of a Deployment that is not scaled up": {
			[]string{v1alpha1.EvacuatorClassDeployment}, []string{unscaled}, false, "No replacement starts first (Deployment web has the strategy Recreate).",
		},
		"a pod of a Deployment that has opted out": {nil, []string{unscaled}, false, "No replacement starts first (Deployment web has the strategy Recreate)."},
		"a pod of another controller":              {nil, nil, false, "the pod can be deleted by hand"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			budget := budgetOf("web")
			budget.Spec.MinAvailable, budget.Spec.MaxUnavailable = nil, ptr.To(intstr.FromInt32(0))
			budget.Status.CurrentHealthy, budget.Status.DesiredHealthy, budget.Status.ExpectedPods = 1, 1, 1
			w := newWorld(t, 0, newEvacuation(withEvacuators(tt.evacuators...), active(evict)), newPod(labelled("web"), func(pod *corev1.Pod) {
				for _, label := range tt.labels {
					pod.Labels[label] = ""
				}
			}),
				newNode(corev1.ConditionTrue), budget)
			w.host.answer(refuse)
			w.until("the budget blocks the pod", time.Second,
				hasReason(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget))
			got := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionBlocked).Message
			if !strings.Contains(got, "never allows an eviction (maxUnavailable 0)") || strings.Contains(got, annotation) != tt.want ||
				!strings.Contains(got, tt.also) {
				t.Errorf("got message %q, want that it never allows one, %q, and %q in it: %v", got, tt.also, annotation, tt.want)
			}
		})
	}
}
