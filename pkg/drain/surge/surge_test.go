// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package surge

import (
	"cmp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

// web returns a Deployment of 2 replicas with the usual strategy.
func web(modifiers ...func(*appsv1.Deployment)) *appsv1.Deployment {
	return build.With(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
	}, modifiers...)
}

func surging(limit string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.Parse(limit))}
	}
}

func recreating(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }

// scaler returns an autoscaler that can scale web from 2 to at most 4.
func scaler(modifiers ...func(*autoscalingv2.HorizontalPodAutoscaler)) *autoscalingv2.HorizontalPodAutoscaler {
	a := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "load"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1", Kind: "Deployment", Name: "web",
			},
			MaxReplicas: 4,
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			CurrentReplicas: 2, DesiredReplicas: 2,
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{
				{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue},
			},
		},
	}
	return build.With(a, modifiers...)
}

func atMost(n int32) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(a *autoscalingv2.HorizontalPodAutoscaler) { a.Spec.MaxReplicas = n }
}

func budget(
	minAvailable, maxUnavailable string, modifiers ...func(*policyv1.PodDisruptionBudget),
) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Status:     policyv1.PodDisruptionBudgetStatus{ExpectedPods: 2, CurrentHealthy: 2, DesiredHealthy: 2},
	}
	if minAvailable != "" {
		b.Spec.MinAvailable = ptr.To(intstr.Parse(minAvailable))
	}
	if maxUnavailable != "" {
		b.Spec.MaxUnavailable = ptr.To(intstr.Parse(maxUnavailable))
	}
	return build.With(b, modifiers...)
}

func scalingDown(policy autoscalingv2.ScalingPolicySelect) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(a *autoscalingv2.HorizontalPodAutoscaler) {
		a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleDown: &autoscalingv2.HPAScalingRules{SelectPolicy: &policy},
		}
	}
}

func always(d *appsv1.Deployment) {
	d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeAlways}
}

func failing(b *policyv1.PodDisruptionBudget) {
	b.Status.Conditions = []metav1.Condition{
		{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason},
	}
}

func TestRefusals(t *testing.T) {
	autoscaled := func(list ...*autoscalingv2.HorizontalPodAutoscaler) []*autoscalingv2.HorizontalPodAutoscaler {
		return list
	}
	for name, test := range map[string]struct {
		deployment  *appsv1.Deployment
		claims      []string
		autoscalers []*autoscalingv2.HorizontalPodAutoscaler
		// budget is the budget of the pods; nil means minAvailable 2.
		budget *policyv1.PodDisruptionBudget
		// want is the beginning of the refusal. It is empty if the pod leaves.
		want string
	}{
		"the default of a quarter rounds up": {},
		"a budget that never allows an eviction": {
			budget: budget("", "0"),
			want: "is not scaled up under PodDisruptionBudget web (maxUnavailable 0), which never allows an " +
				"eviction: its pods are replaced nevertheless if it has the annotation " +
				"maintenance.haulout.dev/surge: Always",
		},
		"a budget of all pods": {
			budget: budget("100%", ""),
			want:   "is not scaled up under PodDisruptionBudget web (minAvailable 100% of at most 3 pods), which",
		},
		"a budget without a limit": {
			budget: budget("", ""),
			want:   "is not scaled up under PodDisruptionBudget web (neither minAvailable nor maxUnavailable), which",
		},
		"a budget that cannot be computed": {
			budget: budget("2", "", failing),
			want:   "is not scaled up under PodDisruptionBudget web (it cannot be computed), which",
		},
		"a budget that never allows, and a Deployment that is always replaced": {
			deployment: web(always), budget: budget("", "0"),
		},
		"a budget that cannot be computed, and a Deployment that is always replaced": {
			deployment: web(always), budget: budget("2", "", failing),
		},
		"the strategy Recreate": {deployment: web(recreating), want: "has the strategy Recreate: its pods must not"},
		"maxSurge 0":            {deployment: web(surging("0")), want: "has maxSurge 0: it does not allow more"},
		"maxSurge 0%":           {deployment: web(surging("0%")), want: "has maxSurge 0"},
		"an invalid maxSurge":   {deployment: web(surging("many")), want: "has maxSurge 0"},
		"paused":                {deployment: web(func(d *appsv1.Deployment) { d.Spec.Paused = true }), want: "is paused"},
		"in deletion": {
			deployment: web(func(d *appsv1.Deployment) {
				d.DeletionTimestamp = ptr.To(metav1.NewTime(time.Unix(0, 0)))
			}), want: "is being deleted",
		},
		"scaled to 0": {
			deployment: web(func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](0) }), want: "is scaled to 0",
		},
		"annotated": {
			deployment: web(func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{
					v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled,
				}
			}), want: "has the annotation maintenance.haulout.dev/surge: Disabled",
		},
		"a volume of one node": {
			claims: []string{"data"}, want: "cannot be scaled up, as volume claim data is for one node",
		},
		"an autoscaler with room": {autoscalers: autoscaled(scaler())},
		"an autoscaler whose budget grows with the replicas": {
			autoscalers: autoscaled(scaler()), budget: budget("", "0"),
			want: "is not scaled up under PodDisruptionBudget web (maxUnavailable 0)",
		},
		"an autoscaler whose budget grows with the replicas, and a Deployment that is always replaced": {
			deployment: web(always), autoscalers: autoscaled(scaler()), budget: budget("", "0"),
			want: "is scaled up by HorizontalPodAutoscaler load without effect under PodDisruptionBudget web " +
				"(maxUnavailable 0)",
		},
		"an autoscaler that never scales down": {
			autoscalers: autoscaled(scaler(scalingDown(autoscalingv2.DisabledPolicySelect))), want: "is scaled by HorizontalPodAutoscaler load, which never scales down",
		},
		"an autoscaler that scales down slowly": {
			autoscalers: autoscaled(scaler(scalingDown(autoscalingv2.MinChangePolicySelect))),
		},
		"an autoscaler without room": {
			autoscalers: autoscaled(scaler(atMost(2))),
			want:        "is scaled by HorizontalPodAutoscaler load, which cannot scale up: maxReplicas is 2",
		},
		"an autoscaler whose surge uses the room": {
			autoscalers: autoscaled(scaler(atMost(2), func(a *autoscalingv2.HorizontalPodAutoscaler) {
				a.Annotations = map[string]string{v1alpha1.AnnotationSurgeRecord: "{}"}
			})),
		},
		"an autoscaler that is not able to scale": {
			autoscalers: autoscaled(scaler(func(a *autoscalingv2.HorizontalPodAutoscaler) {
				a.Status.Conditions = nil
			})), want: "is scaled by HorizontalPodAutoscaler load, which is not able",
		},
		"an autoscaler without metrics": {
			autoscalers: autoscaled(scaler(func(a *autoscalingv2.HorizontalPodAutoscaler) {
				a.Status.Conditions = append(a.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
					Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse,
				})
			})),
			want: "is scaled by HorizontalPodAutoscaler load, which could not scale it down again (ScalingActive is False)",
		},
		"an autoscaler that another controller controls": {
			autoscalers: autoscaled(scaler(func(a *autoscalingv2.HorizontalPodAutoscaler) {
				a.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "ScaledObject", Name: "x", Controller: ptr.To(true)}}
			})), want: "is scaled by HorizontalPodAutoscaler load, which ScaledObject x controls: the controller would undo",
		},
		"an autoscaler of KEDA": {
			autoscalers: autoscaled(scaler(func(a *autoscalingv2.HorizontalPodAutoscaler) {
				a.OwnerReferences = []metav1.OwnerReference{{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: "x", Controller: ptr.To(true)}}
			})), want: "is scaled by HorizontalPodAutoscaler load, which ScaledObject x of KEDA controls: KEDA would set minReplicas " +
				"back to minReplicaCount of the ScaledObject; a minReplicaCount above the present replicas starts another pod " +
				"before one leaves",
		},
		"several autoscalers": {
			autoscalers: autoscaled(scaler(), scaler()), want: "is scaled by 2 HorizontalPodAutoscalers",
		},
		"the Deployment's own reasons first": {
			deployment: web(recreating), autoscalers: autoscaled(scaler(), scaler()), want: "has the strategy Recreate",
		},
	} {
		t.Run(name, func(t *testing.T) {
			candidate := Candidate{
				Deployment: DecidesOf(cmp.Or(test.deployment, web())), Autoscalers: test.autoscalers,
				OneNodeClaims: test.claims,
			}
			got := candidate.RefuseUnder(cmp.Or(test.budget, budget("2", ""))).String()
			is.True(t, (got == "") == (test.want == "") && strings.HasPrefix(got, test.want), "got %q, want %q", got, test.want)
		})
	}
}

func TestOneNode(t *testing.T) {
	const (
		once    = corev1.ReadWriteOnce
		oncePod = corev1.ReadWriteOncePod
		many    = corev1.ReadWriteMany
		read    = corev1.ReadOnlyMany
	)
	type modes = []corev1.PersistentVolumeAccessMode
	for name, test := range map[string]struct {
		wanted, bound modes
		want          bool
	}{
		"for one node":                        {modes{once}, nil, true},
		"for one pod":                         {modes{oncePod}, nil, true},
		"for many":                            {modes{many}, nil, false},
		"to be read by many":                  {modes{once, read}, nil, false},
		"the modes of the bound volume count": {modes{once}, modes{many}, false},
		"the modes of the bound volume count, even if they are fewer": {modes{many}, modes{once}, true},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{
				Spec:   corev1.PersistentVolumeClaimSpec{AccessModes: test.wanted},
				Status: corev1.PersistentVolumeClaimStatus{AccessModes: test.bound},
			}
			if got := OneNode(claim); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestDecidesOfKeepsClaims(t *testing.T) {
	volume := func(name string, source corev1.VolumeSource) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: source}
	}
	d := web(func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Volumes = []corev1.Volume{
			volume("scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
			volume("data", corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
			}),
		}
	})
	if got := Claims(DecidesOf(d)); len(got) != 1 || got[0] != "claim" {
		t.Errorf("claims are %q", got)
	}
}
