// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	oneBudget   = "one-budget"
	manyBudgets = "many-budgets"
	noBudgets   = "no-budgets"
	// singleReplicas are Deployments with one pod and a budget that allows no disruption: no pod
	// may leave before its replacement is ready.
	singleReplicas = "single-replicas"
	// appLabel distinguishes the Deployments.
	appLabel = "app"
	// mayBeMissing is maxUnavailable of the budgets.
	mayBeMissing = "10%"
)

var workloadNames = []string{oneBudget, manyBudgets, noBudgets, singleReplicas}

// workload is the set of objects on the nodes to drain.
type workload struct {
	name        string
	deployments []*appsv1.Deployment
	budgets     []*policyv1.PodDisruptionBudget
}

func newWorkload(name string, s settings) workload {
	w, apps, pods := workload{name: name}, 1, s.pods
	switch name {
	case manyBudgets:
		apps = s.deployments
	case singleReplicas:
		apps, pods = s.singles, s.singles
	}
	for i := range apps {
		app := fmt.Sprintf("app-%02d", i)
		w.deployments = append(w.deployments, newDeployment(app, pods/apps))
		switch name {
		case noBudgets:
		case singleReplicas:
			w.budgets = append(w.budgets,
				newBudget(app, policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))}))
		default:
			w.budgets = append(w.budgets,
				newBudget(app, policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromString(mayBeMissing))}))
		}
	}
	return w
}

// withoutSurge returns the workload with the annotation surge: Disabled on all Deployments.
func (w workload) withoutSurge() workload {
	without := w
	without.deployments = nil
	for _, d := range w.deployments {
		copied := d.DeepCopy()
		copied.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
		without.deployments = append(without.deployments, copied)
	}
	return without
}

// watched returns the budgets with which the command measures availability. A Deployment without a
// budget gets one that requires nothing; it is not created in the cluster.
func (w workload) watched() []policyv1.PodDisruptionBudget {
	budgets := w.budgets
	if len(budgets) == 0 {
		for _, d := range w.deployments {
			none := policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(0))}
			budgets = append(budgets, newBudget(d.Name, none))
		}
	}
	watched := make([]policyv1.PodDisruptionBudget, 0, len(budgets))
	for _, b := range budgets {
		own := *b
		own.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: b.Name}
		watched = append(watched, own)
	}
	return watched
}

// isHopeless reports whether a contender can never drain the workload: the budgets allow no
// disruption, and the contender does not start replacements first.
func (w workload) isHopeless(contender string) bool {
	replacesFirst := []string{maintenance, badInput, drainPoolWebhook}
	return w.name == singleReplicas && !slices.Contains(replacesFirst, contender)
}

func newDeployment(app string, replicas int) *appsv1.Deployment {
	labels := map[string]string{appLabel: app}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "app", Image: "example/app",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU:    resource.MustParse("50m"),
						corev1.ResourceMemory: resource.MustParse("32Mi"),
					}},
				}}},
			},
		},
	}
}

func newBudget(app string, spec policyv1.PodDisruptionBudgetSpec) *policyv1.PodDisruptionBudget {
	spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: app}}
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: spec}
}

func (w workload) pods() int {
	sum := 0
	for _, d := range w.deployments {
		sum += int(*d.Spec.Replicas)
	}
	return sum
}
