// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package surge decides whether a Deployment is scaled up so that its pods are replaced before they
// leave, and returns the reason if it is not. The evacuator of Deployments and the preview of a
// drain share these rules, so that the preview predicts what the evacuator does. The package uses
// neither a client nor a clock.
package surge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Replicas returns the desired replicas of a Deployment.
func Replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// Most returns how many extra replicas a Deployment with the given replicas allows: its maxSurge,
// which is 25% by default.
func Most(d *appsv1.Deployment, replicas int32) int32 {
	limit := intstr.FromString("25%")
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil && rolling.MaxSurge != nil {
		limit = *rolling.MaxSurge
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&limit, int(replicas), true)
	if err != nil {
		return 0
	}
	return int32(n)
}

// AutoscaledTo returns how many replicas a Deployment has or will have. a is its autoscaler, or
// nil.
func AutoscaledTo(d *appsv1.Deployment, a *autoscalingv2.HorizontalPodAutoscaler) int32 {
	if a == nil {
		return Replicas(d)
	}
	// minReplicas may have been raised a moment ago, before the autoscaler has acted on it.
	return max(Replicas(d), a.Status.CurrentReplicas, a.Status.DesiredReplicas, ptr.Deref(a.Spec.MinReplicas, 1))
}

// Scales returns the Deployment that an autoscaler scales. It returns false if the autoscaler
// scales an object of another kind.
func Scales(a *autoscalingv2.HorizontalPodAutoscaler) (types.NamespacedName, bool) {
	ref := a.Spec.ScaleTargetRef
	if ref.Kind != "Deployment" || !strings.HasPrefix(ref.APIVersion, appsv1.GroupName+"/") {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: a.Namespace, Name: ref.Name}, true
}

// Claims returns the names of the volume claims that all pods of a Deployment share.
func Claims(d *appsv1.Deployment) []string {
	var names []string
	volumes := d.Spec.Template.Spec.Volumes
	for i := range volumes {
		if source := volumes[i].PersistentVolumeClaim; source != nil {
			names = append(names, source.ClaimName)
		}
	}
	return names
}

// OneNode reports whether only one node, or only one pod, can use a volume claim at the same time.
func OneNode(claim *corev1.PersistentVolumeClaim) bool {
	modes := claim.Status.AccessModes
	if len(modes) == 0 {
		modes = claim.Spec.AccessModes
	}
	return !slices.Contains(modes, corev1.ReadWriteMany) && !slices.Contains(modes, corev1.ReadOnlyMany)
}

const (
	// shortestTimeout and longestTimeout limit the value of the annotation of the surge timeout.
	shortestTimeout = time.Second
	longestTimeout  = 24 * time.Hour
)

// TimeoutFor returns how long a surge of a Deployment with these annotations may make no progress.
// It returns the fallback if the annotation maintenance.haulout.dev/surge-timeout is not set or,
// with an error, if its value is not a duration from 1s to 24h.
func TimeoutFor(annotations map[string]string, fallback time.Duration) (time.Duration, error) {
	value, set := annotations[v1alpha1.AnnotationSurgeTimeout]
	if !set {
		return fallback, nil
	}
	timeout, err := time.ParseDuration(value)
	if err != nil || timeout < shortestTimeout || timeout > longestTimeout {
		return fallback, fmt.Errorf("annotation %s: %.64q must be a duration from 1s to 24h, such as \"20m\"; %s is used",
			v1alpha1.AnnotationSurgeTimeout, value, fallback)
	}
	return timeout, nil
}

// CheckMode returns an error if the annotation maintenance.haulout.dev/surge has an invalid value.
// Such a value is treated as if the annotation was not set.
func CheckMode(annotations map[string]string) error {
	switch value, set := annotations[v1alpha1.AnnotationSurge]; {
	case !set, value == v1alpha1.SurgeDisabled, value == v1alpha1.SurgeAlways:
		return nil
	default:
		return fmt.Errorf("annotation %s: %.64q must be %q or %q; it is ignored", v1alpha1.AnnotationSurge, value,
			v1alpha1.SurgeDisabled, v1alpha1.SurgeAlways)
	}
}

// IsAlways reports whether the pods of a Deployment with these annotations are replaced even if
// their budgets never allow an eviction.
func IsAlways(annotations map[string]string) bool {
	return annotations[v1alpha1.AnnotationSurge] == v1alpha1.SurgeAlways
}

// CordonToleration returns a phrase about the toleration because of which the scheduler may bind a
// pod to cordoned nodes; "" if the pod has no such toleration.
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

// Candidate is a Deployment whose pods may be asked to leave, with the objects that its surge
// depends on.
type Candidate struct {
	Deployment *appsv1.Deployment
	// Autoscalers are the autoscalers of the Deployment, sorted by name.
	Autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	// OneNodeClaims are the claims of the Deployment for which OneNode is true.
	OneNodeClaims []string
}

// DecidesOf returns a copy of a Deployment that has only the fields on which surges and
// protocol.BuiltInOf depend.
func DecidesOf(full *appsv1.Deployment) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: full.Namespace, Name: full.Name, UID: full.UID, OwnerReferences: full.OwnerReferences},
		Spec:       appsv1.DeploymentSpec{Selector: full.Spec.Selector},
	}
	if surge, ok := full.Annotations[v1alpha1.AnnotationSurge]; ok {
		d.Annotations = map[string]string{v1alpha1.AnnotationSurge: surge}
	}
	d.DeletionTimestamp = full.DeletionTimestamp
	d.Spec.Replicas, d.Spec.Strategy, d.Spec.Paused = full.Spec.Replicas, full.Spec.Strategy, full.Spec.Paused
	for _, name := range Claims(full) {
		d.Spec.Template.Spec.Volumes = append(d.Spec.Template.Spec.Volumes, corev1.Volume{
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}},
		})
	}
	return d
}

// Refuse returns the reason why the Deployment would not be scaled up.
func (c *Candidate) Refuse() Refusal {
	why := Refuse(c.Deployment, Replicas(c.Deployment), c.OneNodeClaims)
	if !why.IsZero() || len(c.Autoscalers) == 0 {
		return why
	}
	a := c.Autoscalers[0]
	extra := a.Spec.MaxReplicas - AutoscaledTo(c.Deployment, a)
	if _, up := a.Annotations[v1alpha1.AnnotationSurgeRecord]; up {
		// The active surge already uses the remaining replicas.
		extra = 1
	}
	return RefuseAutoscaled(c.Autoscalers, a, extra)
}

// RefuseUnder returns the reason why a pod of the Deployment cannot leave under a budget that
// allows no eviction now: the Deployment would not be scaled up, or that would not help.
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
