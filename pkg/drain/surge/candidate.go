// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package surge

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Candidate is a Deployment whose pods may be asked to leave, with the objects that its surge
// depends on.
type Candidate struct {
	Deployment *appsv1.Deployment
	// Autoscalers are the autoscalers of the Deployment, sorted by name.
	Autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	// OneNodeClaims are its claims for which OneNode is true.
	OneNodeClaims []string
}

// DecidesOf returns a copy of a Deployment with only the fields that surges depend on.
func DecidesOf(full *appsv1.Deployment) *appsv1.Deployment {
	d := protocol.DecidesOf(full)
	d.DeletionTimestamp = full.DeletionTimestamp
	d.Spec.Replicas, d.Spec.Strategy, d.Spec.Paused = full.Spec.Replicas, full.Spec.Strategy, full.Spec.Paused
	for _, name := range Claims(full) {
		d.Spec.Template.Spec.Volumes = append(d.Spec.Template.Spec.Volumes, corev1.Volume{
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}},
		})
	}
	return d
}

// Refuse returns why the Deployment would not be scaled up.
func (c *Candidate) Refuse() Refusal {
	why := Refuse(c.Deployment, Replicas(c.Deployment), c.OneNodeClaims)
	if !why.IsZero() || len(c.Autoscalers) == 0 {
		return why
	}
	a := c.Autoscalers[0]
	extra := a.Spec.MaxReplicas - AutoscaledTo(c.Deployment, a)
	if _, up := a.Annotations[maintenancev1alpha1.AnnotationSurgeRecord]; up {
		// Its own surge uses the remaining replicas.
		extra = 1
	}
	return RefuseAutoscaled(c.Autoscalers, a, extra)
}

// RefuseUnder returns why a pod of the Deployment cannot leave under a budget that allows no
// eviction now: because the Deployment would not be scaled up, or because that would not help.
func (c *Candidate) RefuseUnder(budgets ...*policyv1.PodDisruptionBudget) Refusal {
	if why := c.Refuse(); !why.IsZero() {
		return why
	}
	var a *autoscalingv2.HorizontalPodAutoscaler
	if len(c.Autoscalers) > 0 {
		a = c.Autoscalers[0]
	}
	replicas := AutoscaledTo(c.Deployment, a)
	extra := Most(c.Deployment, replicas)
	if a != nil {
		extra = max(1, min(extra, a.Spec.MaxReplicas-replicas))
	}
	return RefuseBudgets(c.Deployment, a, budgets, replicas, extra)
}
