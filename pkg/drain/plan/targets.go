// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Targets are the compiled drain targets of a node. The zero value covers no pod.
type Targets struct {
	// Entries are the targets in the order of the status: by pod type, and the entry for all pods
	// of the type before the entries with a selector. They are shared and must not be changed.
	Entries   []v1alpha1.DrainPlanEntry
	selectors []labels.Selector
}

// CompileTargets compiles the targets in a status.
func CompileTargets(entries []v1alpha1.DrainPlanEntry) (Targets, error) {
	t := Targets{Entries: entries, selectors: make([]labels.Selector, len(entries))}
	for i := range entries {
		s, err := compileSelector(entries[i].PodSelector)
		if err != nil {
			return Targets{}, fmt.Errorf("entry %d: %w", i, err)
		}
		t.selectors[i] = s
	}
	return t, nil
}

// Cover reports whether the pod is asked to leave.
func (t Targets) Cover(pod Pod) bool { return t.First(pod) >= 0 }

// First returns the index of the first entry that covers the pod, or -1.
func (t Targets) First(pod Pod) int {
	for i := range t.Entries {
		if t.Entries[i].PodType == pod.Type && pod.Priority <= t.Entries[i].PodPriority && matches(t.selectors[i], &pod) {
			return i
		}
	}
	return -1
}

// compileSelector compiles a selector. It returns nil for a selector of all pods.
func compileSelector(s *metav1.LabelSelector) (labels.Selector, error) {
	if planorder.SelectsAll(s) {
		return nil, nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

func matches(s labels.Selector, pod *Pod) bool {
	return s == nil || s.Matches(pod.Labels)
}

// key identifies a target: the pod type, and the canonical form of the selector.
type key struct {
	podType  v1alpha1.PodType
	selector string
}

// generically returns the key that selects all pods of the same type.
func (k key) generically() key { return key{podType: k.podType} }

func typeRank(t v1alpha1.PodType) int {
	rank, _ := planorder.TypeRank(string(t))
	return rank
}

func compareGenericFirst(a, b key) int {
	switch {
	case a.selector == "" && b.selector != "":
		return -1
	case a.selector != "" && b.selector == "":
		return 1
	}
	return 0
}

func entryKey(e *v1alpha1.DrainPlanEntry) key {
	t := e.PodType
	if t == "" {
		t = v1alpha1.PodTypeDefault
	}
	return key{podType: t, selector: planorder.CanonicalSelector(e.PodSelector)}
}

// SameTargets reports whether two states of a maintenance have equal targets on the same nodes.
func SameTargets(a, b *v1alpha1.NodeMaintenance) bool {
	return slices.EqualFunc(a.Status.NodeStatuses, b.Status.NodeStatuses, func(x, y v1alpha1.NodeMaintenanceNodeStatus) bool {
		return x.NodeRef == y.NodeRef && SameEntries(x.DrainTargets, y.DrainTargets)
	})
}
