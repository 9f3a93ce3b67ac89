// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package surge

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Refusal is the reason why a Deployment is not scaled up. The zero value means that it is scaled
// up.
type Refusal struct {
	// Fact is a phrase that follows the name of the Deployment.
	Fact string
	// Because explains why the fact prevents a surge, if that is not obvious.
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

// Refuse returns the reason why a Deployment is not scaled up. replicas does not include the extra
// replicas of a surge. oneNodeClaims are the claims of its pods for which OneNode is true.
func Refuse(d *appsv1.Deployment, replicas int32, oneNodeClaims []string) Refusal {
	switch {
	case d.DeletionTimestamp != nil:
		return Refusal{Fact: "is being deleted"}
	case d.Annotations[v1alpha1.AnnotationSurge] == v1alpha1.SurgeDisabled:
		return Refusal{Fact: fmt.Sprintf("has the annotation %s: %s", v1alpha1.AnnotationSurge, v1alpha1.SurgeDisabled)}
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

// RefuseAutoscaled returns the reason why the autoscaler of a Deployment is not used to scale it
// up. a is the first of autoscalers. extra is how many replicas a can add.
func RefuseAutoscaled(autoscalers []*autoscalingv2.HorizontalPodAutoscaler, a *autoscalingv2.HorizontalPodAutoscaler, extra int32) Refusal {
	switch owner := metav1.GetControllerOfNoCopy(a); {
	case len(autoscalers) > 1:
		return Refusal{Fact: fmt.Sprintf("is scaled by %d HorizontalPodAutoscalers", len(autoscalers))}
	case owner != nil && isScaledObject(owner):
		// KEDA sets the spec and the annotations of its autoscalers back immediately, and its own
		// annotation autoscaling.keda.sh/paused-scale-in is on an object that the server may not
		// write.
		return Refusal{
			Fact: fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, which ScaledObject %s of KEDA controls", a.Name, owner.Name),
			Because: "KEDA would set minReplicas back to minReplicaCount of the ScaledObject; " +
				"a minReplicaCount above the present replicas starts another pod before one leaves",
		}
	case owner != nil:
		return Refusal{
			Fact:    fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, which %s %s controls", a.Name, owner.Kind, owner.Name),
			Because: "the controller would undo a change of the autoscaler",
		}
	case !slices.ContainsFunc(a.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.AbleToScale && c.Status == corev1.ConditionTrue
	}):
		return Refusal{Fact: fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, which is not able to scale (AbleToScale is not True)", a.Name)}
	case LacksMetrics(a):
		// This autoscaler would scale up to minReplicas, but never down again.
		return Refusal{Fact: fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, which could not scale it down again (ScalingActive is False)", a.Name)}
	case neverScalesDown(a):
		// A surge could not be reverted, since minReplicas is only the lower limit of the
		// autoscaler.
		return Refusal{Fact: fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, "+
			"which never scales down (behavior.scaleDown.selectPolicy is Disabled)", a.Name)}
	case extra <= 0:
		return Refusal{Fact: fmt.Sprintf("is scaled by HorizontalPodAutoscaler %s, which cannot scale up: maxReplicas is %d", a.Name, a.Spec.MaxReplicas)}
	}
	return Refusal{}
}

// isScaledObject reports whether the controller of an autoscaler is a ScaledObject of KEDA.
func isScaledObject(owner *metav1.OwnerReference) bool {
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && group.Group == "keda.sh" && owner.Kind == "ScaledObject"
}

// LacksMetrics reports whether an autoscaler cannot compute a replica count, and therefore does not
// scale down.
func LacksMetrics(a *autoscalingv2.HorizontalPodAutoscaler) bool {
	return slices.ContainsFunc(a.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse
	})
}

func neverScalesDown(a *autoscalingv2.HorizontalPodAutoscaler) bool {
	behavior := a.Spec.Behavior
	return behavior != nil && behavior.ScaleDown != nil && behavior.ScaleDown.SelectPolicy != nil &&
		*behavior.ScaleDown.SelectPolicy == autoscalingv2.DisabledPolicySelect
}
