// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package surge has the rules by which a Deployment is scaled up so that its pods are replaced
// before they leave, and the reasons why one is not. The evacuator of Deployments and the preview
// of a drain share them, so that the preview predicts what the evacuator does. Values in, values
// out, without client or clock.
package surge

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Replicas returns the desired replicas of a Deployment.
func Replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// Most returns how many extra replicas a Deployment allows for the given number of replicas: its
// maxSurge, which is 25% by default.
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

// AutoscaledTo returns how many replicas a Deployment has or will have, given its autoscaler, which
// may be nil.
func AutoscaledTo(d *appsv1.Deployment, a *autoscalingv2.HorizontalPodAutoscaler) int32 {
	if a == nil {
		return Replicas(d)
	}
	// The autoscaler may not have acted on a minReplicas that was raised just now.
	return max(Replicas(d), a.Status.CurrentReplicas, a.Status.DesiredReplicas, ptr.Deref(a.Spec.MinReplicas, 1))
}

// Scales returns the Deployment that an autoscaler scales; false if it scales something else.
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
