// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

type entries = []maintenancev1alpha1.DrainPlanEntry

const (
	typeDefault   = maintenancev1alpha1.PodTypeDefault
	typeDaemonSet = maintenancev1alpha1.PodTypeDaemonSet
	typeStatic    = maintenancev1alpha1.PodTypeStatic
	maxPriority   = maintenancev1alpha1.MaxPodPriority
)

func entry(t maintenancev1alpha1.PodType, priority int32) maintenancev1alpha1.DrainPlanEntry {
	return maintenancev1alpha1.DrainPlanEntry{PodType: t, PodPriority: priority}
}

func entryFor(t maintenancev1alpha1.PodType, priority int32, app string) maintenancev1alpha1.DrainPlanEntry {
	e := entry(t, priority)
	e.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	return e
}

func pod(t maintenancev1alpha1.PodType, priority int32) Pod { return Pod{Type: t, Priority: priority} }

func podOf(app string, t maintenancev1alpha1.PodType, priority int32) Pod {
	return Pod{Type: t, Priority: priority, Labels: labels.Set{"app": app}}
}

func node(name string, pods ...Pod) *Node { return &Node{Name: name, Pods: pods} }

// maintenance returns a Maintenance that was created at the given minute.
func maintenance(name string, minute int, plan entries, nodes ...string) Maintenance {
	return Maintenance{
		Name: name, Created: time.Date(2026, 11, 1, 0, minute, 0, 0, time.UTC), Plan: plan, Nodes: nodes,
		Before: map[string]entries{},
	}
}

func (m Maintenance) before(node string, targets ...maintenancev1alpha1.DrainPlanEntry) Maintenance {
	m.Before[node] = targets
	return m
}

func (m Maintenance) uncordoned(nodes ...string) Maintenance {
	m.Uncordoned = nodes
	return m
}

// defaultPlan returns the plan to which the API server defaults an empty plan.
func defaultPlan() entries {
	spec := maintenancev1alpha1.NodeMaintenanceSpec{}
	maintenancev1alpha1.SetDefaults_NodeMaintenanceSpec(&spec)
	return spec.DrainPlan
}
