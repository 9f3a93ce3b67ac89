// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package buckets has the table of KEP-2712: the time in which the pods of each priority must end
// when their node shuts down.
package buckets

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Bucket is a range of priorities, from Priority up to the Priority of the next bucket, with the
// time in which its pods must end.
type Bucket struct {
	// Priority is the lowest priority of the bucket.
	Priority int32
	// Period is the time in which the pods must end.
	Period time.Duration
}

// Table is a non-empty list of buckets, in ascending order of their priorities.
type Table []Bucket

// New returns the table of a validated configuration. Without entries, all pods are in one bucket
// without any time to end.
func New(entries []configv1alpha1.ShutdownGracePeriodByPodPriority) Table {
	if len(entries) == 0 {
		return Table{{Priority: 0}}
	}
	t := make(Table, 0, len(entries))
	for _, e := range entries {
		t = append(t, Bucket{Priority: e.Priority, Period: time.Duration(e.ShutdownGracePeriodSeconds) * time.Second})
	}
	slices.SortStableFunc(t, func(a, b Bucket) int { return cmp.Compare(a.Priority, b.Priority) })
	return t
}

// Index returns the index of the bucket of a pod priority: the last bucket whose priority is not
// higher. Pods below the lowest bucket are in the lowest one.
func (t Table) Index(priority int32) int {
	above := sort.Search(len(t), func(i int) bool { return t[i].Priority > priority })
	return max(above-1, 0)
}

// DrainPlan returns the plan of a NodeMaintenance that evacuates the buckets one after the other,
// within each pod type. The entries of a plan have upper bounds and the table has lower ones, so
// the entry of a bucket ends just below the next bucket. The plan does not have the times: they
// apply to pods that end without the API.
func (t Table) DrainPlan() []v1alpha1.DrainPlanEntry {
	types := []v1alpha1.PodType{
		v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic,
	}
	plan := make([]v1alpha1.DrainPlanEntry, 0, len(types)*len(t))
	for _, podType := range types {
		for i := range t {
			highest := int32(math.MaxInt32)
			if i+1 < len(t) {
				highest = t[i+1].Priority - 1
			}
			plan = append(plan, v1alpha1.DrainPlanEntry{PodType: podType, PodPriority: highest})
		}
	}
	return plan
}

// LocalTime returns the total time in which pods of these priorities must end, one bucket after the
// other. Buckets without pods need no time.
func (t Table) LocalTime(priorities []int32) time.Duration {
	occupied := make([]bool, len(t))
	for _, p := range priorities {
		occupied[t.Index(p)] = true
	}
	var sum time.Duration
	for i, b := range t {
		if occupied[i] {
			sum += b.Period
		}
	}
	return sum
}
