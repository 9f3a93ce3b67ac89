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

// Package surge has the rules by which a Deployment is scaled up so that its pods are replaced
// before they leave, and the reasons why one is not. The evacuator of Deployments and the preview
// of a drain share them, so that the preview predicts what the evacuator does. Values in, values
// out, without client or clock.
package surge

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Refusal is why a Deployment is not scaled up. The zero value means that it is.
type Refusal struct {
	// Fact is a phrase that follows the name of the Deployment.
	Fact string
	// Because explains why that prevents a surge, if it is not obvious.
	Because string
}

// IsZero reports whether there is no refusal.
func (r Refusal) IsZero() bool { return r == Refusal{} }

// String returns the whole text, without a full stop.
func (r Refusal) String() string {
	if r.Because == "" {
		return r.Fact
	}
	return r.Fact + ": " + r.Because
}

// Refuse returns why a Deployment with so many replicas, not counting those of a surge, is not
// scaled up. oneNodeClaims are the claims of its pods for which OneNode is true.
func Refuse(d *appsv1.Deployment, replicas int32, oneNodeClaims []string) Refusal {
	switch {
	case d.DeletionTimestamp != nil:
		return Refusal{Fact: "is being deleted"}
	case d.Annotations[maintenancev1alpha1.AnnotationSurge] == maintenancev1alpha1.SurgeDisabled:
		return Refusal{Fact: fmt.Sprintf("has the annotation %s: %s", maintenancev1alpha1.AnnotationSurge, maintenancev1alpha1.SurgeDisabled)}
	case d.Spec.Paused:
		return Refusal{Fact: "is paused"}
	case d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		return Refusal{"has the strategy Recreate", "its pods must not run at the same time"}
	case replicas == 0:
		return Refusal{Fact: "is scaled to 0"}
	case Most(d, replicas) <= 0:
		return Refusal{"has maxSurge 0", "it does not allow more pods than its replicas"}
	case len(oneNodeClaims) > 0:
		return Refusal{fmt.Sprintf("cannot be scaled up, as volume claim %s is for one node at a time", oneNodeClaims[0]), "its pods cannot run at the same time"}
	}
	return Refusal{}
}

// RefuseAutoscaled returns why a Deployment is not scaled up by its autoscaler, the first of
// autoscalers, for which so many extra replicas are possible.
func RefuseAutoscaled(autoscalers []*autoscalingv2.HorizontalPodAutoscaler, a *autoscalingv2.HorizontalPodAutoscaler, extra int32) Refusal {
	switch owner := metav1.GetControllerOfNoCopy(a); {
	case len(autoscalers) > 1:
		return Refusal{Fact: fmt.Sprintf("is scaled by %d HorizontalPodAutoscalers", len(autoscalers))}
	case owner != nil:
		return Refusal{Fact: fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, which %s %s keeps as it is", a.Name, owner.Kind, owner.Name)}
	case !slices.ContainsFunc(a.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.AbleToScale && c.Status == corev1.ConditionTrue
	}):
		return Refusal{Fact: fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, which is not able to scale (AbleToScale is not True)", a.Name)}
	case neverScalesDown(a):
		// Its surge could not be reverted: minReplicas is only the lower limit of the autoscaler.
		return Refusal{Fact: fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, "+
			"which never scales down (behavior.scaleDown.selectPolicy is Disabled)", a.Name)}
	case extra <= 0:
		return Refusal{Fact: fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, which cannot scale up: maxReplicas is %d", a.Name, a.Spec.MaxReplicas)}
	}
	return Refusal{}
}

func neverScalesDown(a *autoscalingv2.HorizontalPodAutoscaler) bool {
	behavior := a.Spec.Behavior
	return behavior != nil && behavior.ScaleDown != nil && behavior.ScaleDown.SelectPolicy != nil &&
		*behavior.ScaleDown.SelectPolicy == autoscalingv2.DisabledPolicySelect
}

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
	return max(Replicas(d), a.Status.CurrentReplicas, a.Status.DesiredReplicas)
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
