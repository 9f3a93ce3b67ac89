// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// crowdedBudgets are budgets that select no pod, in the namespace of the bad pods.
	crowdedBudgets = 5000
	// mostHolders is how many maintenances may hold a node. crowd is how many come to select
	// another node by its labels, which admission cannot refuse.
	mostHolders = 50
	crowd       = 400
	crowdLabel  = "bench.haulout.dev/crowd"
	// refusedEvacuations is how many Evacuations the server refuses before the drain begins.
	refusedEvacuations = 10_000
)

// createBudgets makes budgets that select no pod.
func (c *cluster) createBudgets(ctx context.Context) error {
	return each(ctx, make([]struct{}, crowdedBudgets), setupWriters, func(ctx context.Context, _ *struct{}) error {
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "crowd-"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: "none"}},
			},
		}
		_, err := c.kube.PolicyV1().PodDisruptionBudgets(badNamespace).Create(ctx, budget, metav1.CreateOptions{})
		return err
	})
}

// createCrowds makes as many maintenances of one node as may hold it, and of another one many more.
func (c *cluster) createCrowds(ctx context.Context) error {
	full, crowded := c.bad[1], c.bad[2]
	var all []*v1alpha1.NodeMaintenance
	// The maintenance of all bad nodes is one of the holders.
	for i := range mostHolders - 1 {
		all = append(all, crowding(fmt.Sprintf("full-%02d", i), byName(full)))
	}
	for i := range crowd {
		all = append(all, crowding(fmt.Sprintf("crowd-%03d", i), withLabel(crowdLabel)))
	}
	if err := each(ctx, all, setupWriters, func(ctx context.Context, nm **v1alpha1.NodeMaintenance) error {
		_, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, *nm, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return c.label(ctx, crowded, `"yes"`)
}

// label sets the label that the crowd selects, or removes it.
func (c *cluster) label(ctx context.Context, node, value string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, crowdLabel, value)
	_, err := c.kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func crowding(name string, selector *corev1.NodeSelector) *v1alpha1.NodeMaintenance {
	nm := badMaintenance(name)
	nm.Spec.NodeSelector = selector
	return nm
}

func byName(node string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
	}}}}
}

func withLabel(key string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: key, Operator: corev1.NodeSelectorOpExists},
	}}}}
}

// withoutLabels returns a maintenance with selector terms that no index serves. It is in stage
// Idle, since all nodes match.
func withoutLabels() *v1alpha1.NodeMaintenance {
	nm := badMaintenance("without-labels")
	nm.Spec.Stage, nm.Spec.NodeSelector = v1alpha1.NodeMaintenanceStageIdle, &corev1.NodeSelector{}
	for i := range 1000 {
		nm.Spec.NodeSelector.NodeSelectorTerms = append(nm.Spec.NodeSelector.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: fmt.Sprintf("bench.haulout.dev/label-%04d", i), Operator: corev1.NodeSelectorOpDoesNotExist},
			},
		})
	}
	return nm
}

// sendOneMore sends a maintenance of the node that has as many as may hold it.
func (c *cluster) sendOneMore(ctx context.Context) error {
	_, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, crowding("one-more", byName(c.bad[1])), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) && ctx.Err() == nil {
		return fmt.Errorf("maintenance %d of node %s was not refused as forbidden: %w", mostHolders+1, c.bad[1], err)
	}
	return nil
}

// sendEvacuations sends many Evacuations that the server must refuse.
func (c *cluster) sendEvacuations(ctx context.Context) error {
	return each(ctx, make([]struct{}, refusedEvacuations), setupWriters,
		func(ctx context.Context, _ *struct{}) error { return c.sendEvacuation(ctx) })
}

// sendEvacuation sends an Evacuation of a bad pod with 64 KiB of labels and a finalizer that would
// keep it after its pod is gone.
func (c *cluster) sendEvacuation(ctx context.Context) error {
	name := fmt.Sprintf("%s-%04d", waiting, 0)
	pod, err := c.kube.CoreV1().Pods(badNamespace).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Finalizers: []string{v1alpha1.FinalizerInstigatorPrefix + "bench.haulout.dev", "bench.haulout.dev/foreign"},
			Labels:     map[string]string{},
		},
		Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}},
	}
	for i := range 1000 {
		e.Labels[fmt.Sprintf("label-%04d", i)] = strings.Repeat("x", 55)
	}
	_, err = c.haulout.MaintenanceV1alpha1().Evacuations(badNamespace).Create(ctx, e, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) && ctx.Err() == nil {
		return fmt.Errorf("an Evacuation with a foreign finalizer and 64 KiB of labels was not refused as invalid: %w", err)
	}
	return nil
}
