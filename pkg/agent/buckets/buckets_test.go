// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package buckets

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/agent/config"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func entry(priority int32, seconds int64) configv1alpha1.ShutdownGracePeriodByPodPriority {
	return configv1alpha1.ShutdownGracePeriodByPodPriority{Priority: priority, ShutdownGracePeriodSeconds: seconds}
}

// The examples of KEP-2712, in the order of its text: from high to low.
var (
	fourClasses  = []configv1alpha1.ShutdownGracePeriodByPodPriority{entry(100000, 300), entry(10000, 180), entry(1000, 120), entry(0, 60)}
	threeClasses = []configv1alpha1.ShutdownGracePeriodByPodPriority{entry(100000, 300), entry(1000, 120), entry(0, 60)}
	migrated     = []configv1alpha1.ShutdownGracePeriodByPodPriority{entry(2000000000, 180), entry(0, 120)}
)

func TestIndexOfTheExamplesOfTheKEP(t *testing.T) {
	for name, test := range map[string]struct {
		entries  []configv1alpha1.ShutdownGracePeriodByPodPriority
		priority int32
		want     time.Duration
	}{
		"at least 100000":          {fourClasses, 100000, 300 * time.Second},
		"far above all entries":    {fourClasses, math.MaxInt32, 300 * time.Second},
		"just below 100000":        {fourClasses, 99999, 180 * time.Second},
		"10000":                    {fourClasses, 10000, 180 * time.Second},
		"just below 10000":         {fourClasses, 9999, 120 * time.Second},
		"1000":                     {fourClasses, 1000, 120 * time.Second},
		"just below 1000":          {fourClasses, 999, 60 * time.Second},
		"no priority":              {fourClasses, 0, 60 * time.Second},
		"below all entries":        {fourClasses, -5, 60 * time.Second},
		"the lowest priority":      {fourClasses, math.MinInt32, 60 * time.Second},
		"a class without an entry": {threeClasses, 10000, 120 * time.Second},
		"just below the entry above the missing one": {threeClasses, 99999, 120 * time.Second},
		"a critical pod of a migrated configuration": {migrated, 2000001000, 180 * time.Second},
		"another pod of a migrated configuration":    {migrated, 1999999999, 120 * time.Second},
		"a table of one entry, above":                {fourClasses[:1], 200000, 300 * time.Second},
		"a table of one entry, below":                {fourClasses[:1], 0, 300 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(test.entries)
			if got := table[table.Index(test.priority)].Period; got != test.want {
				t.Errorf("the pod has %v, want %v", got, test.want)
			}
		})
	}
}

func TestNewSortsACopy(t *testing.T) {
	entries := slices.Clone(fourClasses)
	want := Table{{0, time.Minute}, {1000, 2 * time.Minute}, {10000, 3 * time.Minute}, {100000, 5 * time.Minute}}
	if diff := cmp.Diff(want, New(entries)); diff != "" {
		t.Errorf("the table differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(fourClasses, entries); diff != "" {
		t.Errorf("the configuration was changed:\n%s", diff)
	}
}

func TestEmptyTable(t *testing.T) {
	table := New(nil)
	if len(table) != 1 || table.Index(5) != 0 || table[0].Period != 0 {
		t.Errorf("the table is %v: want one bucket of no time", table)
	}
}

func TestTimes(t *testing.T) {
	for name, test := range map[string]struct {
		priorities []int32
		want       time.Duration
	}{
		"no pods":                      {nil, 0},
		"one bucket":                   {[]int32{1000, 9999, 5000}, 120 * time.Second},
		"a pod below the lowest entry": {[]int32{-1}, 60 * time.Second},
		"two buckets":                  {[]int32{math.MaxInt32, 0}, 360 * time.Second},
		"all buckets":                  {[]int32{0, 1000, 10000, 100000}, 660 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if got := New(fourClasses).LocalTime(test.priorities); got != test.want {
				t.Errorf("the pods need %v, want %v", got, test.want)
			}
		})
	}
}

func TestDrainPlan(t *testing.T) {
	want := []string{
		"Default 999", "Default 9999", "Default 99999", "Default 2147483647",
		"DaemonSet 999", "DaemonSet 9999", "DaemonSet 99999", "DaemonSet 2147483647",
		"Static 999", "Static 9999", "Static 99999", "Static 2147483647",
	}
	var got []string
	for _, e := range New(fourClasses).DrainPlan() {
		is.True(t, e.PodSelector == nil, "an entry has a selector: %v", e)
		got = append(got, fmt.Sprintf("%s %d", e.PodType, e.PodPriority))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the plan differs (-want +got):\n%s", diff)
	}
}

// defaulted returns the plan as the server stores it: with defaults, and validated.
func defaulted(t *testing.T, plan []v1alpha1.DrainPlanEntry) []v1alpha1.DrainPlanEntry {
	t.Helper()
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "shutdown-a-12345678"},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
			}}},
			Stage:     v1alpha1.NodeMaintenanceStageDrain,
			DrainPlan: plan,
		},
	}
	v1alpha1.SetObjectDefaults_NodeMaintenance(nm)
	internal := &maintenance.NodeMaintenance{}
	must.Do(t, v1alpha1.Convert_v1alpha1_NodeMaintenance_To_maintenance_NodeMaintenance(nm, internal, nil))
	if errs := validation.ValidateNodeMaintenance(internal); len(errs) > 0 {
		t.Fatalf("the server refuses the plan: %v", errs)
	}
	return nm.Spec.DrainPlan
}

// firstCovering returns the entry that evacuates a pod: the first entry of the pod's type whose
// upper bound is at least the pod's priority.
func firstCovering(plan []v1alpha1.DrainPlanEntry, podType v1alpha1.PodType, priority int32) int {
	return slices.IndexFunc(plan, func(e v1alpha1.DrainPlanEntry) bool {
		return e.PodType == podType && e.PodPriority >= priority
	})
}

// randomTable returns a table that the validation of the configuration accepts. Its priorities are
// mostly near each other, near the ends of the range, or near priorities that are in every plan.
func randomTable(random *rand.Rand) []configv1alpha1.ShutdownGracePeriodByPodPriority {
	anchors := append(v1alpha1.FrozenPriorities(), math.MinInt32, math.MinInt32+2, -1, 0, 1, 1000)
	seen := map[int32]bool{}
	var entries []configv1alpha1.ShutdownGracePeriodByPodPriority
	for range 1 + random.IntN(config.MaxTableEntries) {
		priority := int32(random.Uint32())
		if random.IntN(3) > 0 {
			near := int64(anchors[random.IntN(len(anchors))]) + int64(random.IntN(7)) - 3
			priority = int32(min(max(near, math.MinInt32), math.MaxInt32))
		}
		if !seen[priority] {
			seen[priority] = true
			entries = append(entries, entry(priority, 1+random.Int64N(100)))
		}
	}
	return entries
}

// interesting returns the priorities at and around each boundary of the table and of the default
// drain plan.
func interesting(table Table, random *rand.Rand) []int32 {
	priorities := []int32{math.MinInt32, 0, math.MaxInt32, int32(random.Uint32())}
	for _, p := range v1alpha1.FrozenPriorities() {
		priorities = append(priorities, p-1, p)
	}
	for _, b := range table {
		priorities = append(priorities, b.Priority)
		if b.Priority > math.MinInt32 {
			priorities = append(priorities, b.Priority-1)
		}
		if b.Priority < math.MaxInt32 {
			priorities = append(priorities, b.Priority+1)
		}
	}
	return priorities
}

func TestEachPriorityIsInOneBucketAndLeavesWithIt(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		entries := randomTable(random)
		table := New(entries)
		plan := defaulted(t, table.DrainPlan())
		for _, priority := range interesting(table, random) {
			index := table.Index(priority)
			if got := bucketsOf(table, priority); !slices.Equal(got, []int{index}) {
				t.Fatalf("seed %d: priority %d is in the buckets %v, Index returns %d: %v", seed, priority, got, index, table)
			}
			for _, podType := range []v1alpha1.PodType{"Default", "DaemonSet", "Static"} {
				first := firstCovering(plan, podType, priority)
				must.True(t, first >= 0, "seed %d: no entry covers %s pods of priority %d: %v", seed, podType, priority, plan)
				if got := table.Index(plan[first].PodPriority); got != index {
					t.Fatalf("seed %d: a %s pod of priority %d is in bucket %d and leaves with bucket %d: %v", seed, podType, priority, index, got, table)
				}
			}
		}
	}
}

// bucketsOf follows the definition of KEP-2712: the priority is at least that of the entry and less
// than that of the next entry. Pods with a priority below all entries belong to the lowest entry.
func bucketsOf(table Table, priority int32) []int {
	var in []int
	for i, b := range table {
		above := i == 0 || priority >= b.Priority
		below := i == len(table)-1 || priority < table[i+1].Priority
		if above && below {
			in = append(in, i)
		}
	}
	return in
}

// TestIndexAsTheKubeletGroups has the cases of the kubelet's groupByPriority: a table must have the
// same meaning in both programs.
func TestIndexAsTheKubeletGroups(t *testing.T) {
	table := New([]configv1alpha1.ShutdownGracePeriodByPodPriority{entry(1, 10), entry(2, 20), entry(3, 30), entry(4, 40)})
	for priority, want := range map[int32]int{-1: 0, 0: 0, 1: 0, 2: 1, 3: 2, 4: 3, 5: 3, 1000: 3} {
		if got := table.Index(priority); got != want {
			t.Errorf("priority %d is in bucket %d, want %d", priority, got, want)
		}
	}
}

// The longest table that the configuration accepts must make a plan that the server accepts.
func TestLongestTable(t *testing.T) {
	var entries []configv1alpha1.ShutdownGracePeriodByPodPriority
	for i := range config.MaxTableEntries {
		entries = append(entries, entry(int32(i*7), 1))
	}
	defaulted(t, New(entries).DrainPlan())
}
