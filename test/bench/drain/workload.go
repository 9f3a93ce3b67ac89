// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/bench/internal/apps"
)

const (
	oneBudget   = "one-budget"
	manyBudgets = "many-budgets"
	noBudgets   = "no-budgets"
	// singleReplicas are Deployments with one pod and a budget that allows no disruption: no pod
	// may leave before its replacement is ready.
	singleReplicas = "single-replicas"
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
	w, count, pods := workload{name: name}, 1, s.pods
	switch name {
	case manyBudgets:
		count = s.deployments
	case singleReplicas:
		count, pods = s.singles, s.singles
	}
	for i := range count {
		app := fmt.Sprintf("app-%02d", i)
		w.deployments = append(w.deployments, apps.Deployment(app, pods/count))
		switch name {
		case noBudgets:
		case singleReplicas:
			w.budgets = append(w.budgets,
				apps.Budget(app, policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))}))
		default:
			w.budgets = append(w.budgets,
				apps.Budget(app, policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromString(mayBeMissing))}))
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
			budgets = append(budgets, apps.Budget(d.Name, none))
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

func (w workload) pods() int {
	sum := 0
	for _, d := range w.deployments {
		sum += int(*d.Spec.Replicas)
	}
	return sum
}
